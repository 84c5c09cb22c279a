"""Picks: runs that are due become one worker's, in a transaction of their own that waits for no run [R-1].

It is one statement, which finds them, takes them and reads them, so that a claim is two round trips: this one, and its
append. A pick that is lost in a crash of the server only means that its runs are due still, so its commit does not wait
for the disk. One whose answer is lost is looked up: a run is not left with a worker that does not know. Where even that
cannot be told, the worker finds what it does not know later, and gives it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from perdure.ports.store import LoadedRun, Serving, Tenancy
from perdure.storage.postgres import turns
from perdure.storage.postgres.readers import Readers
from perdure.storage.postgres.session import Session

ATTEMPTS = 3
"""How often more is looked for while others take what was found."""
LOOK_AGAIN_S = 0.02
LOOKS = 50
"""How often it is asked what became of a pick whose answer was lost."""
REMEMBERED = 10_000
"""So many runs are remembered as picked; what is remembered of one that has been claimed is of no use any more."""


class _Unsure(msgspec.Struct):
    """A pick whose answer was lost: by whom, and by which process of the server it is done, if it is."""

    worker: str
    pid: int


class Picker:
    """What one store has picked.

    Args:
        lock: of all that pick from these tables.

    Attributes:
        last: whose turn among tenants was the last.
    """

    def __init__(self, lock: int) -> None:
        self._lock = lock
        self.last: Tenancy = ("", "")
        self._untold: list[str] = []
        self._unsure: list[_Unsure] = []
        self._read: dict[str, LoadedRun] = {}
        self._told: set[str] = set()
        self._one_at_a_time = asyncio.Lock()

    async def pick(
        self, readers: Readers, worker: str, now_us: int, limit: int, turn: int, serving: Serving
    ) -> Sequence[str]:
        """See the port. What a canceled caller did not hear of, the next one gets.

        Raises:
            StoreUnavailable: the server does not answer. What it may have picked by then, the next call finds out.
        """
        task = asyncio.get_running_loop().create_task(self._pick(readers, worker, now_us, limit, turn, serving))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._keep)
            raise

    async def due(self, now_us: int, limit: int, turn: int, serving: Serving, session: Session) -> list[str]:
        """Whom `pick` would pick."""
        return (await turns.due_served(session, now_us, _more(limit, 0), turn, serving, self.last))[:limit]

    def read_along(self, run_ids: Sequence[str]) -> Sequence[LoadedRun] | None:
        """Runs as they were read when they were picked just now; None if others are asked for."""
        if not self._read or any(run_id not in self._read for run_id in run_ids):
            return None
        return [self._read.pop(run_id) for run_id in run_ids]

    def _keep(self, task: asyncio.Task[list[str]]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._untold += task.result()

    async def _pick(
        self, readers: Readers, worker: str, now_us: int, limit: int, turn: int, serving: Serving
    ) -> list[str]:
        async with self._one_at_a_time:
            self._read = {}
            await self._make_sure(readers)
            found, self._untold = self._untold[:limit], self._untold[limit:]
            for attempt in range(ATTEMPTS):
                want = limit - len(found)
                if not want:
                    break
                more = _more(want, attempt)
                place = turn + len(found)
                try:
                    picked, all_there = await readers.read(
                        partial(self._take, worker, now_us, want, more, place, serving)
                    )
                    found += picked
                    unsure = bool(self._unsure)
                    await self._make_sure(readers)
                except BaseException:
                    self._untold += found
                    raise
                if unsure:
                    found, self._untold = [*found, *self._untold[:want]], self._untold[want:]
                elif all_there:
                    break
            return found

    async def _take(
        self, worker: str, now_us: int, want: int, limit: int, turn: int, serving: Serving, session: Session
    ) -> tuple[list[str], bool]:
        """What was picked, and whether that is all there is."""
        pid = session.con.info.backend_pid
        if len(self._told) > REMEMBERED:
            self._told.intersection_update(await turns.picked(session, worker, 0) or ())
        try:
            taken = await turns.take(session, self._lock, worker, now_us, want, limit, turn, serving, self.last)
        except Exception:
            if not session.lost:
                raise  # the server has said that it did nothing
            self._unsure.append(_Unsure(worker, pid))
            return [], False
        self.last = taken.last
        picked = taken.run_ids
        self._read.update({run.row.run.run_id: run for run in taken.loaded})
        self._told.update(picked)
        return picked, taken.all_there

    async def _make_sure(self, readers: Readers) -> None:
        """Find out what became of picks whose answer was lost."""
        while self._unsure:
            pick = self._unsure[0]
            for _ in range(LOOKS):
                found = await readers.read(partial(turns.picked, worker=pick.worker, pid=pick.pid))
                if found is not None:
                    new = [run_id for run_id in found if run_id not in self._told]
                    self._untold += new
                    self._told = set(found)
                    break
                await asyncio.sleep(LOOK_AGAIN_S)
            self._unsure.remove(pick)


def _more(limit: int, attempt: int) -> int:
    """So many are looked for, because others pick at the same time."""
    return (limit + 8) << attempt
