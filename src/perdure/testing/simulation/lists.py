"""What a store that fails answers about many runs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.ports.limits import LimitUse
from perdure.ports.notes import Notebook
from perdure.ports.store import ListPlace, RunCounts, RunFilter, RunPage
from perdure.storage.memory import MemoryStore


class FaultyLists:
    """The lists and limits of a `FaultyStore`: true, and late like everything else."""

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
