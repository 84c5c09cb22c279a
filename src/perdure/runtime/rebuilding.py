"""Index rows that are gone are put back from the facts, many at a time, before and while an engine works [J-11].

Nobody would notice: without a row a run has neither owner nor due time. So engines look, when they start and every
minute. A look costs next to nothing where nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

import msgspec
from msgspec.structs import replace

from perdure.core.journal import NewerJournal
from perdure.core.projection import Projection
from perdure.errors import CorruptJournal
from perdure.ports.store import LostRun, Restored, Store
from perdure.runtime.claimer import Claimer
from perdure.runtime.guarding import give_back
from perdure.runtime.host import Host
from perdure.runtime.indexing import corrupt_state, facts_state, new_run, running_state
from perdure.runtime.loading import fold_rows

logger = logging.getLogger("perdure")

BATCH = 256
"""So many rows are put back in one transaction, fewer where journals are long."""

BREATH = 16
"""After so many journals others have their turn."""

FIRST_S = 1.0
"""How long an engine that starts does this before it does anything else: most losses are made good by then."""


class Batch(msgspec.Struct, frozen=True):
    """What became of a page of lost runs.

    Attributes:
        last: number of the last of them.
        restored: how many rows were put back.
        owned: ids of those that are somebody's again.
    """

    last: int
    restored: int
    owned: tuple[str, ...]


class Rebuilding:
    """Goes through what is lost. A journal whose very first fact is damaged cannot come back, and is told of once."""

    def __init__(self, store: Store, worker: str = "") -> None:
        self._store = store
        self.worker = worker
        self._hopeless: set[int] = set()

    async def batch(self, after: int, now_us: int) -> Batch | None:
        """Put back a page of rows, of runs with numbers above `after`; None: there are none left."""
        lost = await self._store.lost_runs(BATCH, after)
        if not lost:
            return None
        alive = await self._alive(lost)
        rows: list[Restored] = []
        for number, run in enumerate(lost, 1):
            row = self._row(run, alive, now_us) if run.locator not in self._hopeless else None
            if row is not None:
                rows.append(row)
            if number % BREATH == 0:
                await asyncio.sleep(0)
        restored = await self._store.restore_lost(rows) if rows else 0
        owned = tuple(row.new.run_id for row in rows if row.state.worker)
        return Batch(lost[-1].locator, restored, owned)

    async def _alive(self, lost: Collection[LostRun]) -> set[str]:
        """Those of the former owners that go on: what is theirs must not be begun by anybody else [R-3].

        An engine alone on its store begins nothing that it has, whatever the index says: a client need not know of it,
        and does not give it what it may have let go.
        """
        owners = {run.worker for run in lost} - {""}
        if not owners or not self._store.shared:
            return owners & {self.worker}
        return owners & {self.worker, *(row.id for row in await self._store.workers() if not row.dead)}

    def _row(self, run: LostRun, alive: Collection[str], now_us: int) -> Restored | None:
        """A row as it follows from the facts; None where they do not say what the run is about."""
        p = Projection(run.run_id, run.locator)
        problem: CorruptJournal | NewerJournal | None = None
        try:
            fold_rows(p, tuple(run.rows))
        except (CorruptJournal, NewerJournal) as error:
            problem = error
            logger.error("the index row of run %s was lost, and: %s", run.run_id, error)
        if p.submitted is None:
            self._hopeless.add(run.locator)
            return None
        new = new_run(p.submitted, p.submitted_us)
        held = new.slot_key is not None and (p.ended is None or new.slot_once)
        ended_us = p.ended_us if p.ended is not None and problem is None else None
        state = facts_state(p, now_us) if problem is None else corrupt_state(p.token, str(problem))
        if problem is None and p.ended is None and run.worker in alive:
            if p.worker == run.worker:
                state = running_state(p)
            else:  # picked, and about to be claimed
                state = replace(state, worker=run.worker, due_us=None, awaits=(), need=0, permits=())
        return Restored(run.locator, new, state, ended_us, held, run.rows[-1].first_seq)


async def rebuild(store: Store, now_us: int) -> int:
    """Put back all index rows that are missing; returns how many.

    A run whose journal is damaged comes back as corrupt; one whose very first fact is damaged cannot come back.
    """
    rebuilding = Rebuilding(store)
    rebuilt = after = 0
    while batch := await rebuilding.batch(after, now_us):
        rebuilt += batch.restored
        after = batch.last
    return rebuilt


class Mender:
    """An engine's care for rows that are gone.

    Args:
        mend: looks after what waits for slots and places under limits: it may wait for a run that came back, or be one.
    """

    def __init__(self, host: Host, claimer: Claimer, mend: Callable[[], Awaitable[None]]) -> None:
        self._host = host
        self._claimer = claimer
        self._mend = mend
        self._rebuilding = Rebuilding(host.store)
        self._after = 0
        self._looking = False

    async def begin(self) -> bool:
        """Put back what can be within a second, before this engine claims or submits anything; whether that is all."""
        steady_s = self._host.system.steady_s
        until_s = steady_s() + FIRST_S
        restored = 0
        while (found := await self._batch()) is not None:
            restored += found
            if steady_s() >= until_s:
                break
        if restored:
            logger.warning("%d index rows were gone; they were rebuilt from the facts", restored)
        return found is None

    async def look(self) -> None:
        """Put back what is missing, while this engine works."""
        if self._looking:
            return
        self._looking = True
        restored = 0
        try:
            while not self._host.draining and (found := await self._batch()) is not None:
                restored += found
                if found:
                    self._claimer.due_at(0)
        finally:
            self._looking = False
            if restored:
                logger.warning("%d index rows were gone; they were rebuilt from the facts meanwhile", restored)
        if restored:
            self._host.awaited = self._host.awaited or await self._host.store.anybody_waits()
            await self._mend()

    async def _batch(self) -> int | None:
        """How many rows were put back; None: nothing is left to be."""
        host = self._host
        self._rebuilding.worker = host.worker
        batch = await self._rebuilding.batch(self._after, host.system.now_us())
        if batch is None:
            self._after = 0
            return None
        self._after = batch.last
        known = self._claimer.known()
        for run_id in batch.owned:
            if run_id not in known:  # let go while it had no row; one that is another's is left alone
                await give_back(host, run_id)
        return batch.restored
