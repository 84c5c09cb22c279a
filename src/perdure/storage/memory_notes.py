"""What a store in memory has noted of a run beside its row [J-11]. No hand can change it there."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.ports.notes import Astray, Notes
from perdure.ports.records import NewRun
from perdure.storage.memory_data import MemoryData


class MemoryNotebook:
    """A `Notebook`."""

    def __init__(self, data: MemoryData) -> None:
        self._data = data

    async def of(self, run_id: str, /) -> Notes | None:
        data, run = self._data, self._data.run(run_id)
        if run is None or data.row(run) is None:
            return None
        return Notes(
            run.slot_held,
            frozenset(data.mutexes.of(run.locator)),
            frozenset(data.awaits.targets(run_id)),
            frozenset(data.limits.places(run.locator)) | frozenset(data.mutexes.entrances.places(run.locator)),
            data.limits.in_line(run.locator),
        )

    async def astray(self, limit: int, /) -> Sequence[Astray]:
        return []

    async def note_anew(self, locator: int, new: NewRun, /) -> None:
        """Nothing can be wrong."""

    async def forget_astray(self) -> None:
        """Likewise."""
