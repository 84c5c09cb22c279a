"""Worker processes that are started, killed, paused and replaced."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.chaos.app import LEASE_S

ROOT = Path(__file__).parents[2]


class Crew:
    """So many workers of the current version; whoever dies is replaced.

    Attributes:
        version: of the code that is started from now on.
        did: what was done to them.
    """

    def __init__(self, folder: Path, url: str, size: int, dice: random.Random) -> None:
        self.folder, self.url, self.size, self.dice = folder, url, size, dice
        self.version = 1
        self.did: dict[str, int] = {"kills": 0, "pauses": 0, "deployments": 0, "started": 0}
        self.processes: list[tuple[int, subprocess.Popen[bytes]]] = []
        self.log = (folder / "workers.log").open("ab")

    def fill(self) -> None:
        """Replace the dead."""
        self.processes = [(version, process) for version, process in self.processes if process.poll() is None]
        while len(self.processes) < self.size:
            self.start(self.version)

    def start(self, version: int) -> None:
        """One more worker."""
        self.did["started"] += 1
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure", "run", "tests.chaos.app:app", "--store", self.url],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
                "PERDURE_CHAOS_BOOKS": str(self.folder / "books"),
                "PERDURE_CHAOS_VERSION": str(version),
            },
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        self.processes.append((version, process))

    def kill_one(self) -> None:
        """`kill -9`, and another in its place."""
        self.did["kills"] += 1
        self.dice.choice(self.processes)[1].kill()
        self.fill()

    async def pause_one(self) -> None:
        """Longer than its lease: it wakes when it has been found dead."""
        self.did["pauses"] += 1
        process = self.dice.choice(self.processes)[1]
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE_S * 2.5)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)

    async def deploy(self, version: int) -> None:
        """One after another, as a rolling deployment; for a moment there is one more."""
        self.did["deployments"] += 1
        self.version = version
        for old in [process for running, process in self.processes if running != version]:
            self.start(version)
            await asyncio.sleep(0.7)
            with suppress(ProcessLookupError):
                old.terminate()
        self.fill()

    def stop(self) -> None:
        """In good order."""
        for _, process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for _, process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            process.kill()
            process.wait()
        self.log.close()
