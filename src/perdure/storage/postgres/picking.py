"""Picks: runs that are due become one worker's, in a transaction of their own that waits for nobody [R-1].

A pick that is lost in a crash of the server only means that its runs are due still, so its commit does not wait for the
disk. One whose answer is lost is looked up by its transaction: a run is never left with a worker that does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from perdure.errors import InvalidArgument
from perdure.ports.store import Serving, Tenancy
from perdure.storage.postgres import turns
from perdure.storage.postgres.readers import Readers
from perdure.storage.postgres.session import Session

ATTEMPTS = 3
"""How often more is looked for while others take what was found."""
LOOK_AGAIN_S = 0.02
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off"


class _Pick(msgspec.Struct):
    """What a transaction picked, and whether it was heard to commit."""

    run_ids: list[str]
    transaction: str
    sure: bool


class Picker:
    """What one store has picked.

    Attributes:
        last: whose turn among tenants was the last.
    """

    def __init__(self) -> None:
        self.last: Tenancy = ("", "")
        self._untold: list[str] = []
        self._unsure: list[_Pick] = []

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
        next_ones = await turns.due_served(session, now_us, _more(limit), turn, serving, self.last)
        return next_ones.shared.run_ids[:limit]

    def _keep(self, task: asyncio.Task[list[str]]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._untold += task.result()

    async def _pick(
        self, readers: Readers, worker: str, now_us: int, limit: int, turn: int, serving: Serving
    ) -> list[str]:
        await self._make_sure(readers)
        found, self._untold = self._untold[:limit], self._untold[limit:]
        for _ in range(ATTEMPTS):
            want, place = limit - len(found), turn + len(found)
            if not want:
                break
            try:
                more, all_taken = await readers.read(partial(self._take, worker, now_us, want, place, serving))
                found += more
                unsure = bool(self._unsure)
                await self._make_sure(readers)
            except BaseException:
                self._untold += found
                raise
            if unsure:
                found, self._untold = [*found, *self._untold[:want]], self._untold[want:]
            elif all_taken:
                break
        return found

    async def _take(
        self, worker: str, now_us: int, limit: int, turn: int, serving: Serving, session: Session
    ) -> tuple[list[str], bool]:
        """What was picked, and whether that is all there is."""
        next_ones = await turns.due_served(session, now_us, _more(limit), turn, serving, self.last)
        if not next_ones.shared.run_ids:
            return [], True
        pick = _Pick([], "", sure=True)
        try:
            await session.plain(_BEGIN)
            pick.run_ids, pick.transaction = await turns.take(session, worker, next_ones, limit)
            pick.sure = not pick.run_ids
            await session.plain("COMMIT")
            pick.sure = True
        except Exception:
            if not await session.rolled_back():
                session.drop()
            if pick.sure:
                raise
            self._unsure.append(pick)
            return [], False
        if pick.run_ids:
            place = next_ones.shared.run_ids.index(pick.run_ids[-1])
            self.last = next_ones.last(self.last, place + 1)
        return pick.run_ids, len(pick.run_ids) == min(limit, len(next_ones.shared.run_ids))

    async def _make_sure(self, readers: Readers) -> None:
        """Find out what became of picks whose answer was lost."""
        while self._unsure:
            pick = self._unsure[0]
            try:
                status = await readers.read(partial(_status, pick.transaction))
            except InvalidArgument:  # a number that this server has not given yet: it came back without that pick
                status = "aborted"
            if status == "in progress":
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            if pick in self._unsure:
                self._unsure.remove(pick)
            if status == "committed":
                self._untold += pick.run_ids


def _more(limit: int) -> int:
    """So many are looked for, because others pick at the same time."""
    return 2 * limit + 8


async def _status(transaction: str, session: Session) -> str:
    row = await session.one("SELECT pg_xact_status(%s::text::xid8)", (transaction,))
    return "" if row is None or row[0] is None else str(row[0])
