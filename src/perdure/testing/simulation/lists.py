"""What a store that fails answers about many runs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.ports.limits import LimitUse
from perdure.ports.notes import Notebook
from perdure.ports.store import (
    IndexState,
    JournalRow,
    ListPlace,
    LostRun,
    NewRun,
    Restored,
    RunCounts,
    RunFilter,
    RunPage,
)
from perdure.storage.memory import MemoryStore


class FaultyLists:
    """The lists, limits and lost rows of a `FaultyStore`: true, and late like everything else."""

    _inner: MemoryStore

    async def _read(self) -> None:
        """A read is about to be answered."""
        raise NotImplementedError

    @property
    def notes(self) -> Notebook:
        return self._inner.notes

    async def list_runs(
        self, where: RunFilter, /, *, after: ListPlace | None = None, oldest_first: bool = False, limit: int = 50
    ) -> RunPage:
        await self._read()
        return await self._inner.list_runs(where, after=after, oldest_first=oldest_first, limit=limit)

    async def count_runs(self, where: RunFilter, /, *, cap: int | None = None) -> RunCounts:
        await self._read()
        return await self._inner.count_runs(where, cap=cap)

    async def ids_from(self, prefix: str, limit: int, /) -> Sequence[str]:
        await self._read()
        return await self._inner.ids_from(prefix, limit)

    async def limits(self) -> Sequence[LimitUse]:
        await self._read()
        return await self._inner.limits()

    async def resize_limits(self, bounds: Mapping[str, int], /) -> None:
        await self._read()
        await self._inner.resize_limits(bounds)

    async def grant_permits(self, now_us: int, /) -> int:
        await self._read()
        return await self._inner.grant_permits(now_us)

    async def journal_of(self, run_id: str, /) -> tuple[int, Sequence[JournalRow]] | None:
        await self._read()
        return await self._inner.journal_of(run_id)

    async def missing_index(self, limit: int, /) -> Sequence[str]:
        await self._read()
        return await self._inner.missing_index(limit)

    async def lost_runs(self, limit: int, after: int = 0, /) -> Sequence[LostRun]:
        await self._read()
        return await self._inner.lost_runs(limit, after)

    async def restore_lost(self, rows: Sequence[Restored], /) -> int:
        await self._read()
        return await self._inner.restore_lost(rows)

    async def restore_index(
        self, locator: int, new: NewRun, state: IndexState, ended_us: int | None, /, *, slot_held: bool
    ) -> None:
        await self._read()
        await self._inner.restore_index(locator, new, state, ended_us, slot_held=slot_held)
