"""Index rows in memory that are lost, or wrong, put back by whoever knows them from the facts [J-11]."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.ports.store import IndexState, JournalRow, LostRun, NewRun, Restored
from perdure.storage.memory_base import MemoryBase


class MemoryLost(MemoryBase):
    """What a `MemoryStore` does about them."""

    async def missing_index(self, limit: int, /) -> Sequence[str]:
        self._live()
        return [run.run_id for run in self.data.runs() if run.state is None][:limit]

    async def lost_runs(self, limit: int, after: int = 0, /) -> Sequence[LostRun]:
        self._live()
        lost = [run for run in self.data.runs() if run.state is None and run.locator > after][:limit]
        return [LostRun(run.locator, run.run_id, run.lost_by, tuple(run.rows)) for run in lost]

    async def restore_lost(self, rows: Sequence[Restored], /) -> int:
        self._live()
        self._flush()
        restored = 0
        for row in sorted(rows, key=lambda row: row.locator):
            run = self.data.at(row.locator)
            if run is not None and run.state is None and run.rows[-1].first_seq == row.tail_seq:
                self.data.restore(run, row.new, row.state, row.ended_us, row.slot_held)
                restored += 1
        if restored:
            self._committed()
        return restored

    async def journal_of(self, run_id: str, /) -> tuple[int, Sequence[JournalRow]] | None:
        self._live()
        run = self.data.run(run_id)
        return None if run is None else (run.locator, list(run.rows))

    async def restore_index(
        self, locator: int, new: NewRun, state: IndexState, ended_us: int | None, /, *, slot_held: bool
    ) -> None:
        self._live()
        self._flush()
        run = self.data.at(locator)
        if run is not None:
            self.data.restore(run, new, state, ended_us, slot_held)
            self._committed()
