"""What steps have done outside of a store, and waiting for it; for tests in which servers come and go."""

from __future__ import annotations

import asyncio
from collections import Counter

DEADLINE_S = 60.0


class Book:
    """What was done outside, and a gate before what is still to be done.

    Attributes:
        done: how often each step of each run was done.
        room: how many steps may still be done before everybody waits at the gate.
    """

    def __init__(self, room: int) -> None:
        self.done: Counter[tuple[str, str]] = Counter()
        self.room = room
        self._full = asyncio.Event()
        self._more = asyncio.Event()

    async def write(self, run_id: str, name: str) -> None:
        """Do a step, if there is room; otherwise when there is."""
        while self.room <= 0:
            self._full.set()
            await self._more.wait()
        self.room -= 1
        self.done[run_id, name] += 1

    async def full(self) -> None:
        """Until somebody waits for room."""
        await asyncio.wait_for(self._full.wait(), DEADLINE_S)

    def open(self, room: int) -> None:
        """Let so many more be done."""
        self._full.clear()
        self.room = room
        self._more.set()
        self._more = asyncio.Event()


async def reached(waiting: Counter[str], **wanted: int) -> None:
    """Until so many wait in a step; every turn of the loop may bring one."""
    async with asyncio.timeout(DEADLINE_S):
        while any(waiting[name] < count for name, count in wanted.items()):  # noqa: ASYNC110  # whoever counts tells nobody
            await asyncio.sleep(0)
