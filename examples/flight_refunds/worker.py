"""The worker process: an engine on the journal, until standard input closes or somebody kills it.

python -m examples.flight_refunds.worker DIRECTORY SPEED VERSION
"""

import asyncio
import os
import sys
import threading
from pathlib import Path

from examples.flight_refunds.app import app_for
from examples.flight_refunds.settings import Settings
from examples.flight_refunds.versions import VERSIONS


async def work(settings: Settings, version: str) -> None:
    """Says `ready` once the engine runs, then works.

    Nothing here recovers or deploys anything: the journal has it all, and an engine deploys what it is started with.
    When it is asked to end it starts no new attempt and lets those end that are running.
    """
    orphaned = asyncio.Event()
    _watch_parent(asyncio.get_running_loop(), orphaned)
    async with app_for(settings, VERSIONS[version]).engine():
        print("ready", flush=True)
        await orphaned.wait()


def _watch_parent(loop: asyncio.AbstractEventLoop, orphaned: asyncio.Event) -> None:
    """Sets `orphaned` when whoever started this process closes our standard input, or is gone."""

    def wait_for_end() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        loop.call_soon_threadsafe(orphaned.set)

    threading.Thread(target=wait_for_end, daemon=True).start()


if __name__ == "__main__":
    asyncio.run(work(Settings(Path(sys.argv[1]), "fast" if sys.argv[2] == "fast" else "watch"), sys.argv[3]))
