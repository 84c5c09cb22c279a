"""What the engine is held against: the same appends without an engine, and SQLite without anything."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.measurement import Measurement, percentile
from benchmarks.pipelines import TEXT, State, trivial
from benchmarks.places import Place
from benchmarks.process import rss_mb
from perdure.codec.json import codec_of
from perdure.core.commit import plan_outcome, plan_submission
from perdure.core.facts import RunFailed, RunSubmitted, SegmentAttemptStarted
from perdure.core.operations import RunOp
from perdure.core.outcomes import Returned
from perdure.core.plan import Plan, Setting
from perdure.core.projection import Projection
from perdure.core.retry import DEFAULT_RETRY
from perdure.core.topology import Topology
from perdure.ports.store import Append, Committed, Store
from perdure.runtime.appending import seal
from perdure.runtime.indexing import new_run, resting_state, running_state
from perdure.runtime.system import RealSystem
from perdure.storage import open_store
from perdure.testing.handlers import HandlersOnly

ROW = "x" * 280
"""About 300 bytes with the other columns: what a step of W1 writes."""


class _Evaluator(HandlersOnly):
    """The author's functions of a pipeline without any."""

    def condition(self, step: str, /) -> bool:
        return True

    def output(self) -> bytes:
        return b"null"

    def failure_output(self, ended: RunFailed, /) -> bytes:
        return b"null"


def setting(now_us: int) -> Setting:
    """What planning is told where nothing can go wrong."""
    return Setting(now_us, True, 0.5, lambda _step: DEFAULT_RETRY, _Evaluator())


def state_of(position: int) -> bytes:
    """The encoded state that the handler at `position` would return."""
    return codec_of(State).encode(State(position, TEXT))


def submission(system: RealSystem, topology: Topology) -> tuple[Projection, RunSubmitted, SegmentAttemptStarted]:
    """The beginnings of a run: nothing folded yet, its submission and its claim."""
    run_id = system.run_id()
    submitted = RunSubmitted(run_id, "raw", msgspec.Raw(b"1"), codec_of(int).digest(1).hex(), run_id)
    return Projection(run_id), submitted, SegmentAttemptStarted(1, "w0123456789abcde", 1, "benchmark")


def prebuilt(system: RealSystem, topology: Topology) -> list[Append]:
    """Every append of one clean run, exactly as the engine would send them; the locator is filled in when known."""
    p, submitted, claim = submission(system, topology)
    now_us = system.now_us()
    plan = plan_submission(p, topology, submitted, claim, setting(now_us))
    first = seal(p, plan.facts, now_us, system.append_id(), 0)
    first.new, first.index = new_run(submitted, now_us), running_state(p)
    appends = [first]
    for position in range(len(topology.steps)):
        plan = _succeed(p, topology, plan, position, now_us)
        append = seal(p, plan.facts, now_us, system.append_id(), p.token)
        if plan.rest is not None:
            append.index = resting_state(p, plan.rest, now_us)
        appends.append(append)
    return appends


def _succeed(p: Projection, topology: Topology, plan: Plan, position: int, now_us: int) -> Plan:
    if not isinstance(plan.next, RunOp):
        raise RuntimeError(f"nothing to do at step {position}")
    return plan_outcome(p, topology, plan.next, Returned(state_of(position)), setting(now_us))


async def append_all(store: Store, runs: Sequence[Sequence[Append]], concurrency: int) -> float:
    """Send the appends of each run one after the other, of `concurrency` runs at a time; the seconds it took."""
    waiting = iter(runs)

    async def caller() -> None:
        for appends in waiting:
            locator = 0
            for append in appends:
                append.locator = locator
                result = await store.append(append)
                if not isinstance(result, Committed):
                    raise RuntimeError(f"refused: {result}")
                locator = result.locator

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    return time.perf_counter() - started


async def raw(where: Place, *, runs: int, steps: int, concurrency: int) -> Measurement:
    """Prebuilt appends through the engine's own appender, with its durability; counted in steps of those runs."""
    await where.prepare()
    system, topology = RealSystem(), trivial(steps).topology
    store = open_store(where.url)
    await store.open(owner=system.worker_id())
    try:
        await append_all(store, [prebuilt(system, topology) for _ in range(8)], concurrency)
        built = [prebuilt(system, topology) for _ in range(runs)]
        cpu_s = time.process_time()
        wall_s = await append_all(store, built, concurrency)
        cpu_s = time.process_time() - cpu_s
    finally:
        await store.close()
    return Measurement(
        workload="raw",
        store=where.kind,
        concurrency=concurrency,
        runs=runs,
        steps_per_s=runs * steps / wall_s,
        runs_per_s=runs / wall_s,
        rss_mb=rss_mb(),
        extra={"steps": steps, "cpu_us_per_step": cpu_s / (runs * steps) * 1e6},
    )


class BareLoop:
    """A plain SQLite commit loop: one small row in each transaction, WAL and synchronous=FULL, nothing around it."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise RuntimeError(f"{path} exists")
        self._path = path
        self._con = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._con.execute("PRAGMA journal_mode = WAL")
        self._con.execute("PRAGMA synchronous = FULL")
        self._con.execute("CREATE TABLE row (n INTEGER PRIMARY KEY, run INTEGER, seq INTEGER, body TEXT) STRICT")
        self._number = 0

    def commit(self) -> float:
        """One transaction; how long it took, in seconds."""
        self._number += 1
        execute = self._con.execute
        started = time.perf_counter()
        execute("BEGIN IMMEDIATE")
        execute("INSERT INTO row (run, seq, body) VALUES (1, ?, ?)", (self._number, ROW))
        execute("COMMIT")
        return time.perf_counter() - started

    def commits(self, count: int) -> list[float]:
        """`count` transactions one after the other; how long each took."""
        return [self.commit() for _ in range(count)]

    def close(self) -> None:
        """Close the file and remove it."""
        self._con.close()
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(name := f"{self._path}{suffix}"):
                os.unlink(name)


def bare(where: Place, *, runs: int) -> Measurement:
    """`runs` transactions of one row; each counts as a step."""
    if where.path is None:
        raise RuntimeError("bare measures a SQLite file")
    loop = BareLoop(where.path.with_name(f"{where.path.name}-bare"))
    try:
        loop.commits(min(64, runs))
        cpu_s = time.process_time()
        times_s = loop.commits(runs)
        cpu_s = time.process_time() - cpu_s
    finally:
        loop.close()
    return Measurement(
        workload="bare",
        store="sqlite",
        concurrency=1,
        runs=runs,
        steps_per_s=runs / sum(times_s),
        runs_per_s=runs / sum(times_s),
        p50_ms=percentile(times_s, 0.5) * 1e3,
        p99_ms=percentile(times_s, 0.99) * 1e3,
        commits_per_run=1.0,
        rss_mb=rss_mb(),
        extra={"cpu_us_per_step": cpu_s / runs * 1e6},
    )
