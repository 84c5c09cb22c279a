"""The one worker of a store that one engine owns, by a lock that ends with its process: it needs no lease [R-2]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from perdure.ports.store import WorkerRow
from perdure.storage.sqlite.owner import holder_of


class Alone:
    """Who works on a file.

    Attributes:
        row: this process's own engine, if it has one.
    """

    row: WorkerRow | None = None

    def is_here(self, worker: str) -> bool:
        """Whether that is this process's engine; it cannot have been found dead."""
        return self.row is not None and self.row.id == worker

    async def workers(self, path: Path, owned: Callable[[str], Awaitable[Sequence[str]]]) -> Sequence[WorkerRow]:
        """Its row, or what the lock file tells of another process's."""
        if self.row is not None:
            return [replace(self.row, runs=len(await owned(self.row.id)))]
        holder = holder_of(path)
        if holder is None:
            return []
        since_us = int(datetime.fromisoformat(holder.since).timestamp() * 1_000_000)
        runs = len(await owned(holder.worker))
        return [WorkerRow(holder.worker, holder.host, holder.pid, since_us, seen_us=0, runs=runs)]
