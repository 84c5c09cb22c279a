"""Who works on a store in memory [R-3]."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.ports.store import WorkerRow

if TYPE_CHECKING:
    from perdure.storage.memory_data import MemoryData

DEAD_KEPT = 20
"""So many rows of dead workers are kept, for people to see."""


def alive(data: MemoryData) -> set[str]:
    """Workers whose runs are theirs."""
    return {id for id, row in data.workers.items() if not row.dead}


def is_stranded(data: MemoryData, pipeline: str, generation: int) -> bool:
    """Whether nobody may take a run that this generation has advanced, or nobody who is alive can."""
    if any(hold.pipeline == pipeline and not hold.released_us for hold in data.pipeline_holds):
        return True
    served = any(not row.dead and row.serves.get(pipeline, -1) >= generation for row in data.workers.values())
    return data.shared and not served


def register(data: MemoryData, worker: WorkerRow) -> None:
    """Insert a worker's row, or change what it serves; and remove what is old."""
    dead = sorted((row for row in data.workers.values() if row.dead), key=lambda row: (-row.since_us, row.id))
    for row in dead[DEAD_KEPT:]:
        del data.workers[row.id]
    known = data.workers.get(worker.id)
    if known is not None:
        worker = replace(known, serves=worker.serves, build=worker.build, schedules=worker.schedules)
    data.workers[worker.id] = worker


def renew(data: MemoryData, worker: str, now_us: int, *, draining: bool) -> bool:
    """Count a beat, unless the worker is dead."""
    row = data.workers.get(worker)
    if row is None or row.dead:
        return False
    data.workers[worker] = replace(row, beat=row.beat + 1, seen_us=now_us, draining=draining)
    return True


def bury(data: MemoryData, worker: str, beat: int) -> bool:
    """Mark a worker dead, if nothing was heard of it meanwhile."""
    row = data.workers.get(worker)
    if row is None or row.dead or row.beat != beat:
        return False
    data.workers[worker] = replace(row, dead=True)
    return True


def workers(data: MemoryData) -> list[WorkerRow]:
    """All rows, with the runs that are theirs."""
    owners = Counter(run.state.worker for run in data.runs() if run.state is not None)
    rows = [replace(row, runs=owners[id]) for id, row in data.workers.items()]
    return sorted(rows, key=lambda row: (row.since_us, row.id))
