"""What retention does to a store in memory: which runs may go, which go, and putting one back [R-9]."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.ports.store import EndedRun, IndexState, JournalRow, NewRun, RunTail
from perdure.storage.memory_data import MemoryData, MemoryRun


def removable(data: MemoryData, before_us: int | None) -> list[MemoryRun]:
    """Runs that ended before, whenever for None; the records of their slots and those about to be looked at stay."""
    return [
        run
        for run in data.runs()
        if run.ended_us is not None
        and (before_us is None or run.ended_us < before_us)
        and not (run.slot_held or data.awaits.awaited(run.run_id))
    ]


def page(data: MemoryData, before_us: int, limit: int, after: EndedRun | None) -> list[EndedRun]:
    """See `Store.ended_runs`; those that ended first come first."""
    found = sorted((run.ended_us or 0, run.locator, run.run_id) for run in removable(data, before_us))
    last = (-1, -1) if after is None else (after.ended_us, after.locator)
    return [EndedRun(*entry) for entry in found if entry[:2] > last][:limit]


def remove(data: MemoryData, tails: Sequence[RunTail]) -> int:
    """See `Store.remove_runs`."""
    wanted = {tail.locator: (tail.seq, tail.hash) for tail in tails}
    old = [
        run
        for run in removable(data, None)
        if run.rows and wanted.get(run.locator) == (run.rows[-1].first_seq, run.rows[-1].hash)
    ]
    for run in old:
        data.remove(run)
    return len(old)


def insert(data: MemoryData, new: NewRun, state: IndexState, ended_us: int, rows: Sequence[JournalRow]) -> bool:
    """See `Store.insert_ended`."""
    if data.run(new.run_id) is not None:
        return False
    run = data.add(new)
    run.rows, run.ended_us = list(rows), ended_us
    run.at = {row.first_seq: row for row in rows}
    data.put_row(run, replace(state, due_us=None, awaits=(), need=0, at_us=0, permits=()))
    return True
