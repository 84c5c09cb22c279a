"""Who works on a store, what is missing there for a run to go on, and workers that are known to be dead [R-3, D-4].

Nothing of this is stored: what a run waits for follows from who works now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from perdure.ports.store import RunRow, Store, WorkerRow

WorkerState: TypeAlias = Literal["alive", "draining", "silent", "dead"]

BURIALS = 5
"""So often the beat of a worker that is known to be dead is read anew: its last renewal may still be on its way."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """An engine that works on a store, or did [R-2, R-3]. Times are microseconds since the epoch, UTC.

    Attributes:
        id: random per start; one that was found dead and goes on has another.
        host, process: where it runs.
        state: `draining`: it begins nothing more; `silent`: it has not renewed its lease for the length of one, and
            will be found dead unless it does; `dead`: another marked it so, and its runs went to others.
        since_us: when it started.
        seen_us: when it renewed its lease last; None where one engine owns the store, which needs no lease.
        lease_us: the length of its lease; 0 without one.
        serves: pipelines, and the generation of each that it deploys [D-4].
        superseded: those of them of which a newer generation is deployed: it serves only runs that none of them
            advanced.
        build: build id of its code.
        runs: how many runs are its own.
    """

    id: str
    host: str
    process: int
    state: WorkerState
    since_us: int
    seen_us: int | None
    lease_us: int
    serves: dict[str, int]
    superseded: tuple[str, ...]
    build: str
    runs: int


async def workers_of(store: Store, now_us: int) -> list[WorkerInfo]:
    """Who works on a store, the oldest first, and who died lately."""
    newest = await store.generations()
    return [worker_info(row, newest, now_us) for row in await store.workers()]


def worker_info(row: WorkerRow, newest: Mapping[str, int], now_us: int) -> WorkerInfo:
    """A worker's row for people and programs.

    Args:
        newest: generations of pipelines, see `Store.generations`.
        now_us: by the store's clock, as `row.seen_us` is.
    """
    behind = (pipeline for pipeline, generation in row.serves.items() if newest.get(pipeline, 0) > generation)
    return WorkerInfo(
        row.id,
        row.host,
        row.process,
        _state(row, now_us),
        row.since_us,
        row.seen_us if row.lease_us else None,
        row.lease_us,
        row.serves,
        tuple(sorted(behind)),
        row.build,
        row.runs,
    )


def _state(row: WorkerRow, now_us: int) -> WorkerState:
    if row.dead:
        return "dead"
    if row.lease_us and now_us - row.seen_us > row.lease_us:
        return "silent"
    return "draining" if row.draining else "alive"


async def lacking(store: Store, rows: Sequence[RunRow], now_us: int) -> dict[str, str]:
    """What worker the runs wait for that nobody who works on a shared store now can take, by run id [D-4]."""
    due = [row for row in rows if store.shared and is_waiting_for_worker(row, now_us)]
    if not due:
        return {}
    workers = [worker_info(row, {}, now_us) for row in await store.workers()]
    words = ((row, missing_worker(row.run.pipeline, row.state.generation, workers)) for row in due)
    found = [(row.run, text) for row, text in words if text]
    held = {hold.pipeline for hold in await store.pipeline_holds()} if found else set[str]()
    return {run.run_id: text for run, text in found if run.pipeline not in held}


async def lacking_owner(store: Store, row: RunRow, now_us: int) -> str:
    """What a run that somebody has waits for, if that worker does not answer any more, in words; empty otherwise."""
    if not store.shared or not row.state.worker:
        return ""
    return missing_owner(row.state.worker, [worker_info(each, {}, now_us) for each in await store.workers()])


def missing_owner(owner: str, workers: Sequence[WorkerInfo]) -> str:
    """Of `lacking_owner`, the words [R-3]."""
    state = next((worker.state for worker in workers if worker.id == owner), "dead")
    others = any(worker.state == "alive" and worker.id != owner for worker in workers)
    if state == "silent" and others:
        return f"its worker {owner} is silent; it goes on when another finds that one dead"
    if state in ("silent", "dead") and not others:
        return f"waits for a worker; its own, {owner}, is {state}, and no other is alive"
    return ""


def is_waiting_for_worker(row: RunRow, now_us: int) -> bool:
    """Whether only a worker is missing for a run to go on: it is due, nobody has it, and its slot is its own."""
    due_us = row.state.due_us
    due = row.state.status == "ready" and due_us is not None and due_us <= now_us
    return due and not row.state.worker and not row.waiting


def missing_worker(pipeline: str, generation: int, workers: Sequence[WorkerInfo]) -> str:
    """Why no worker takes a run that is due, in words; empty where one can [D-4].

    Args:
        generation: the greatest that advanced the run; 0 before the first.
        workers: of a store that many share.
    """
    working = [worker for worker in workers if worker.state == "alive"]
    having = Counter(worker.serves[pipeline] for worker in working if pipeline in worker.serves)
    if any(found >= generation for found in having):
        return ""
    if not working:
        return "waits for a worker; none is alive"
    if not having:
        others = _have(len(working), "serves others", "serve others")
        return f"waits for a worker that serves pipeline {pipeline}; {others}"
    older = ", ".join(
        _have(number, f"has generation {older}", f"have generation {older}") for older, number in sorted(having.items())
    )
    return f"waits for a worker that has generation {generation} of pipeline {pipeline}; {older}"


def _have(number: int, one: str, more: str) -> str:
    return f"1 worker {one}" if number == 1 else f"{number} workers {more}"


async def bury_known_dead(store: Store, worker: str) -> int | None:
    """Mark a worker dead of which the caller knows for certain that its process has ended, and make its runs due.

    Returns:
        How many runs became due; None if the worker had taken leave, or was found dead before.
    """
    for _ in range(BURIALS):
        row = next((row for row in await store.workers() if row.id == worker and not row.dead), None)
        if row is None:
            return None
        if await store.bury(worker, row.beat):
            return await store.take_over(await store.clock_us() or row.seen_us)
    return None
