"""`claim`: who gets which due run, where workers share a PostgreSQL store with a million waiting runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from benchmarks.measurement import Measurement, percentile
from benchmarks.million import Crowd, fill, pipeline_id
from benchmarks.process import rss_mb
from perdure.core.chain import chain_hash
from perdure.core.facts import SegmentAttemptStarted
from perdure.ports.store import Append, Committed, IndexState, LoadedRun, RunFilter, Store
from perdure.runtime.system import RealSystem
from perdure.storage import open_store

PIPELINES = 10
SERVING = {pipeline_id(number): 1 for number in range(PIPELINES)}
PICKERS = 8
PAGE = 64
HOUR_US = 3_600_000_000
SINGLES = 200
WARM = 3
"""So many before those that are measured: a worker that works has its statements prepared."""
NEWER = 100_000


@contextmanager
def server(url: str | None) -> Generator[str]:
    """A URL of an empty store: the one given, or in a server of our own that syncs, removed afterwards."""
    if url is not None:
        yield url
        return
    from tests.postgres import PostgresServer

    own = PostgresServer(fsync=True, settings={"shared_buffers": "512MB", "max_wal_size": "4GB"})
    own.start()
    try:
        yield own.url(schema="bench")
    finally:
        own.remove()


async def claiming(url: str, *, runs: int, due: int = 10_000, singles: int = SINGLES) -> list[Measurement]:
    """Waiting runs, and `due` that are due, nine of ten of them in one pipeline and due longest; all are claimed by
    workers that pick, load and claim at once. Then one due run at a time; both again beside 100,000 due runs of a
    generation that these workers do not serve.
    """
    small = due // 10
    began = time.perf_counter()
    await fill(
        url,
        Crowd(runs, PIPELINES),
        Crowd(due - small, PIPELINES, only=0, due_in_us=-5 * HOUR_US, held_every=0),
        *[
            Crowd(small // (PIPELINES - 1), PIPELINES, only=number, due_in_us=-2 * HOUR_US, held_every=0)
            for number in range(1, PIPELINES)
        ],
    )
    filled_s = time.perf_counter() - began
    found = [await _all(url, runs, filled_s), await _singly(url, runs, "single", singles)]
    newer = Crowd(max(1, min(NEWER, runs)), PIPELINES, generation=2, due_in_us=-9 * HOUR_US, held_every=0)
    await fill(url, newer)
    found.append(await _singly(url, runs, "single, beside a newer generation", singles))
    return found


async def _all(url: str, runs: int, filled_s: float) -> Measurement:
    """Everything that is due, by all workers at once."""
    workers = [_Worker(open_store(url), f"w{number:015x}") for number in range(PICKERS)]
    for worker in workers:
        await worker.store.open(owner=None)
        await worker.store.next_due_us(SERVING)  # connected
    order: list[str] = []
    try:
        began, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*[worker.claim_all(order) for worker in workers])
        all_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    finally:
        for worker in workers:
            await worker.store.close()
    last_small = max(at for at, pipeline in enumerate(order) if pipeline != pipeline_id(0)) + 1
    picks = [ms for worker in workers for ms in worker.picks_ms]
    return Measurement(
        workload="claim",
        store="postgresql",
        concurrency=PICKERS,
        runs=runs,
        runs_per_s=len(order) / all_s,
        p50_ms=percentile(picks, 0.5),
        p99_ms=percentile(picks, 0.99),
        rss_mb=rss_mb(),
        extra={
            "what": "all",
            "claimed": len(order),
            "all_s": all_s,
            "client_cpu_s": cpu_s,
            "last_small": last_small,
            "fill_s": filled_s,
        },
    )


async def _singly(url: str, runs: int, what: str, singles: int) -> Measurement:
    """One run is due, and is claimed: found, loaded, and durable as its worker's."""
    worker = _Worker(open_store(url), "w" + "f" * 15)
    await worker.store.open(owner=None)
    took: list[float] = []
    try:
        for number, run in enumerate(await _some_runs(worker, singles + WARM)):
            await worker.wake(run)
            began = time.perf_counter()
            await worker.claim_some(1)
            if number >= WARM:
                took.append((time.perf_counter() - began) * 1e3)
    finally:
        await worker.store.close()
    return Measurement(
        workload="claim",
        store="postgresql",
        concurrency=1,
        runs=runs,
        p50_ms=percentile(took, 0.5),
        p99_ms=percentile(took, 0.99),
        extra={"what": what},
    )


async def _some_runs(worker: _Worker, count: int) -> list[LoadedRun]:
    """Waiting runs that are nobody's."""
    rows = (await worker.store.list_runs(RunFilter(pipeline=pipeline_id(0), statuses=("ready",)), limit=1_000)).rows
    ids = [row.run.run_id for row in rows if row.state.generation == 1]
    return list(await worker.store.load_many(ids[:count]))


class _Worker:
    """What an engine does to have a run, without the engine.

    Attributes:
        picks_ms: how long each pick took, with loading.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.picks_ms: list[float] = []
        self._name = name
        self._system = RealSystem()
        self._turn = 0

    async def claim_all(self, order: list[str]) -> None:
        """Claim until nothing is due; `order`: the pipelines of all claims, by all workers."""
        while found := await self.claim_some(PAGE):
            order += [run.row.run.pipeline for run in found]

    async def claim_some(self, limit: int) -> list[LoadedRun]:
        """Pick, load and claim."""
        began = time.perf_counter()
        ids = await self.store.pick(self._name, self._system.now_us(), limit, self._turn, SERVING)
        self._turn += len(ids)
        found = list(await self.store.load_many(ids))
        self.picks_ms.append((time.perf_counter() - began) * 1e3)
        claims = await asyncio.gather(*[self.store.append(self._claim(run)) for run in found])
        if len(found) != len(ids) or not all(isinstance(claim, Committed) for claim in claims):
            raise RuntimeError("a run was claimed twice")
        return found

    async def wake(self, run: LoadedRun) -> None:
        """Make a waiting run due."""
        state = msgspec.structs.replace(run.row.state, due_us=self._system.now_us())
        await self.store.set_index(run.row.locator, state, run.rows[-1].first_seq)

    def _claim(self, run: LoadedRun) -> Append:
        row, last = run.row, run.rows[-1]
        token, at_us = row.state.token + 1, self._system.now_us()
        facts = msgspec.json.encode([SegmentAttemptStarted(token, self._name, 1, "benchmark")])
        first_seq, append_id = last.first_seq + last.count, self._system.append_id()
        digest = chain_hash(last.hash, first_seq, 1, at_us, append_id, facts)
        state = IndexState("running", worker=self._name, token=token, generation=1)
        return Append(
            row.run.run_id,
            row.locator,
            first_seq,
            1,
            at_us,
            append_id,
            facts,
            digest,
            last.first_seq,
            last.hash,
            token,
            None,
            state,
        )
