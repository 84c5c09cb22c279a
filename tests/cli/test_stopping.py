"""Ctrl-C at any moment [I-2]."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import PATIENCE_S, environment

THREADS = Path("/proc/self/task")

ASLEEP = """
import asyncio, os, signal, threading, time
from pathlib import Path

from perdure.cli.stopping import run_to_end

main = Path("/proc/self/task", str(threading.get_native_id()), "stat")
waits = threading.Event()


def press():
    waits.wait()
    while main.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)


async def wait():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waits.set()
    await asyncio.get_running_loop().create_future()


threading.Thread(target=press, daemon=True).start()
try:
    run_to_end(wait())
except KeyboardInterrupt:
    print("interrupted")
"""
"""The signal goes to the other thread, so Python notes it down while the loop is already asleep in the kernel: what
happens to one that comes in the instants before."""


@pytest.mark.skipif(not THREADS.exists(), reason="no /proc on this system, which tells when a thread sleeps")
def test_ctrl_c_wakes_a_loop_that_nothing_else_would_wake() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASLEEP],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "interrupted\n", done.stderr
