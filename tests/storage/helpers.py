"""Processes of their own, and waiting for what happens there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from perdure.ports.store import Store, Trouble

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0


def start(command: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a command of `tests/storage/process.py` in a process of its own; its lines come through `stdout`."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.storage.process", command, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"},
    )


def run(command: str, *arguments: object) -> list[str]:
    """Run a command to its end; the lines it printed."""
    process = start(command, *arguments)
    output, _ = process.communicate(timeout=DEADLINE_S * 2)
    assert process.returncode == 0, output
    return output.splitlines()


def line(process: subprocess.Popen[str]) -> str:
    """The next line a process prints; fails if it ends instead."""
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, f"the process ended with {process.wait()}"
    return text.rstrip("\n")


def kill(process: subprocess.Popen[str]) -> list[str]:
    """End a process as a power cut would; the whole lines it printed that have not been read."""
    process.kill()
    with process:  # not `communicate`, which does not see what `line` has buffered
        text: str = process.stdout.read() if process.stdout is not None else ""
    return text[: text.rfind("\n") + 1].splitlines()


async def soon(awaitable: Awaitable[T]) -> T:
    """Wait, but not for ever."""
    return await asyncio.wait_for(awaitable, DEADLINE_S)


class Troubles:
    """Listens to a store's troubles."""

    def __init__(self, store: Store) -> None:
        self.seen: list[Trouble] = []
        self._told = asyncio.Event()
        store.on_trouble(self._tell)

    def _tell(self, trouble: Trouble) -> None:
        self.seen.append(trouble)
        self._told.set()

    async def next(self) -> Trouble:
        """The next trouble that is told from now on."""
        self._told.clear()
        await soon(self._told.wait())
        return self.seen[-1]

    async def first(self) -> Trouble:
        """The first trouble, told already or soon."""
        await soon(self._told.wait())
        return self.seen[0]
