"""`check`: what an edit means for very many live runs; the time should follow distinct ledgers, not runs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.limits import append_all
from benchmarks.measurement import Measurement
from benchmarks.pipelines import TEXT, State
from benchmarks.places import Place
from benchmarks.process import commit, machine, rss_mb
from perdure import App, Invocation, Pipeline, nothing, step
from perdure.codec.json import codec_of
from perdure.core.commit import plan_outcome, plan_submission
from perdure.core.facts import Fact, Failure, RunFailed, RunSubmitted, SegmentAttemptStarted
from perdure.core.operations import RunOp, UnwindOp
from perdure.core.outcomes import Raised, Returned
from perdure.core.plan import Setting, Waiting
from perdure.core.projection import Projection
from perdure.core.reducer import fold_all
from perdure.core.retry import Retry
from perdure.define.locking import candidate_of
from perdure.define.step import AnyStep
from perdure.ports.store import Append
from perdure.runtime.appending import seal
from perdure.runtime.census import check
from perdure.runtime.indexing import new_run, resting_state
from perdure.runtime.system import RealSystem
from perdure.storage import open_store
from perdure.testing.handlers import HandlersOnly

STEPS = 16
LEDGERS = (20, 2_000, 10_000)
REPEATS = 3
RESULTS = Path(__file__).with_name("RESULTS.md")
HEADING = "## check"

Inv = Invocation[int, object]
Line = Pipeline[int, object, None]


def _always(inv: Inv) -> bool:
    return True


def _step(name: str) -> AnyStep[int, object]:
    @step(f"{name}/v1", when=_always)
    async def handler(inv: Inv) -> State:
        return State(0, TEXT)

    return handler


def line(*, edited: bool, pipeline: str = "checked") -> Line:
    """Steps that may all be skipped; `edited`: one is inserted in the middle and the last two change places."""
    names = [f"step-{number:02}" for number in range(STEPS)]
    if edited:
        names[-2:] = reversed(names[-2:])
        names.insert(STEPS // 2, "inserted")
    return Pipeline(id=pipeline, input=int, deps=object, steps=[_step(name) for name in names], output=nothing)


class _Author(HandlersOnly):
    """Conditions of one past: step number i is skipped where bit i is set."""

    def __init__(self, skipped: int) -> None:
        self._skipped = skipped

    def condition(self, step: str, /) -> bool:
        return not self._skipped >> int(step[5:7]) & 1

    def output(self) -> bytes:
        return b"null"

    def failure_output(self, ended: RunFailed, /) -> bytes:
        return b"null"


def pasts() -> Iterator[tuple[int, int]]:
    """How far a run got, and which steps before that it skipped: each pair is another ledger."""
    for stop in range(STEPS - 3, 0, -1):
        for skipped in range(2**stop):
            yield stop, skipped


def past(stop: int, skipped: int, now_us: int) -> list[Fact]:
    """The facts of a run after its submission: at step `stop`, whose first attempt failed and is retried tomorrow."""
    p = Projection("template")
    retry = Retry(initial=86_400, cap=86_400, jitter=0)
    setting = Setting(now_us, True, 0.5, lambda _step: retry, _Author(skipped))
    topology = line(edited=False).topology
    submitted, claim = _submitted("template"), SegmentAttemptStarted(1, "w0123456789abcde", 1, "benchmark")
    plan = plan_submission(p, topology, submitted, claim, setting)
    facts = plan.facts[1:]
    state = Returned(codec_of(State).encode(State(0, TEXT)))
    while isinstance(plan.next, (RunOp, UnwindOp)):
        at = int(plan.next.step[5:7])
        failure = Failure(plan.next.step, "no route", attempt=1)
        plan = plan_outcome(p, topology, plan.next, state if at < stop else Raised(failure), setting)
        facts += plan.facts
    if plan.rest is None:
        raise RuntimeError("the run does not rest")
    return facts


def _submitted(run_id: str) -> RunSubmitted:
    return RunSubmitted(run_id, "checked", msgspec.Raw(b"1"), codec_of(int).digest(1).hex(), run_id)


def resting(system: RealSystem, facts: list[Fact], now_us: int) -> Append:
    """A new run that went through these facts, in one append."""
    run_id = system.run_id()
    p = Projection(run_id)
    submitted = _submitted(run_id)
    fold_all(p, [submitted, *facts], now_us)
    append = seal(p, [submitted, *facts], now_us, system.append_id(), 0)
    append.new, append.index = new_run(submitted, now_us), resting_state(p, Waiting(p.due_us), now_us)
    return append


async def fill(where: Place, runs: int, ledgers: int) -> None:
    """Runs that rest at `ledgers` distinct places, evenly."""
    await where.prepare()
    system = RealSystem()
    store = open_store(where.url)
    await store.open(owner=system.worker_id())
    try:
        now_us = system.now_us()
        kinds = [past(stop, skipped, now_us) for stop, skipped in itertools.islice(pasts(), ledgers)]
        turns = itertools.cycle(kinds)
        for begin in range(0, runs, 5_000):
            built = [[resting(system, next(turns), now_us)] for _ in range(min(5_000, runs - begin))]
            await append_all(store, built, 512)
    finally:
        await store.close()


async def checking(where: Place, *, runs: int, ledgers: int) -> Measurement:
    """What `Client.check` does with an edit, in its two parts: read the store, then judge; the median of three."""
    await fill(where, runs, ledgers)
    async with App(line(edited=False).bind(), store=where.url).client() as client:
        await client.deploy()
        found: list[tuple[float, float]] = []
        report = await client.check([line(edited=True)])
        candidates = {"checked": candidate_of(line(edited=True))}
        for _ in range(REPEATS):
            started = time.perf_counter()
            census = await client.census()
            counted = time.perf_counter()
            check(census, candidates)
            found.append((time.perf_counter() - started, counted - started))
    (checked,) = report.pipelines
    if (checked.runs, checked.ledgers, checked.unchanged) != (runs, min(runs, ledgers), 0):
        raise RuntimeError(f"the check found {checked.runs} runs with {checked.ledgers} ledgers")
    whole_s, census_s = sorted(found)[REPEATS // 2]
    return Measurement(
        workload="check",
        store=where.kind,
        runs=runs,
        bytes_per_run=None,
        rss_mb=rss_mb(),
        extra={"ledgers": ledgers, "check_ms": whole_s * 1e3, "census_ms": census_s * 1e3},
    )


def section(path: Path = RESULTS, heading: str = HEADING) -> str:
    """A section of the page, this workload's if no other is named, an empty line before it; empty if there is none."""
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    _, found, after = page.partition(f"\n{heading}\n")
    return f"\n{heading}\n{after.partition(f'{chr(10)}## ')[0].rstrip()}\n" if found else ""


def record(found: list[Measurement], path: Path = RESULTS) -> None:
    """Write the section of the results page that is about this workload; the rest of the page stays."""
    page = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    rest = page.replace(section(path), "") if section(path) else page
    rows = [
        f"| {m.runs or 0:,} | {m.extra['ledgers'] or 0:,.0f} | {m.extra['check_ms']:,.0f} ms "
        f"| {m.extra['census_ms']:,.0f} ms |"
        for m in found
    ]
    worst_ms = max(float(m.extra["check_ms"] or 0) for m in found)
    lines = [
        HEADING,
        "",
        "<!-- Written by `python -m benchmarks check --record` -->",
        "",
        f"Commit {commit()}. {machine()}.",
        f"Bar: 100,000 live runs in under 2,000 ms; the slowest took {worst_ms:,.0f} ms: "
        f"{'reached' if worst_ms < 2_000 else '**missed**'}.",
        "",
        "| live runs | distinct ledgers | check | of it, reading the store |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
    ]
    path.write_text(f"{rest.rstrip()}\n\n" + "\n".join(lines), encoding="utf-8")
