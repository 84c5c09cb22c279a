"""Whose turn it is where more runs are due than there are places; nobody is passed over for ever [R-1]."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import (
    DefinitionError,
    InvalidArgument,
    KeyTaken,
    PrioritizeRun,
    Retry,
    Run,
    Selector,
    Succeeded,
    step,
)
from perdure.core.facts import RunPrioritized, RunSubmitted
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, Line, World, app, facts, line, until, virtually


class Shop:
    """A pipeline that notes in which order its runs start."""

    def __init__(self, **options: Any) -> None:
        self.entered: list[str] = []
        self.gate = Gate()

        @step("work/v1")
        async def work(inv: Inv) -> None:
            self.entered.append(inv.input)
            await self.gate()

        self.pipeline: Line = line(work, **options)


async def told(run: Run[Any]) -> list[object]:
    """The priorities in the run's journal."""
    return [f.priority for f in await facts(run) if isinstance(f, RunSubmitted | RunPrioritized)]


@virtually
async def test_the_higher_priority_starts_first(system: VirtualSystem) -> None:
    """R-1: of one priority whoever came first; what is running is not stopped."""
    shop = Shop()
    async with World(system).engine(app(shop.pipeline), concurrency=1) as engine:
        runs = [await engine.submit(shop.pipeline, "first", priority=-9)]
        await shop.gate.until(1)
        for name, priority in (("low", -3), ("a", None), ("b", 0), ("high", 9), ("c", 0)):
            runs.append(await engine.submit(shop.pipeline, name, priority=priority))
        assert [(await run.info()).priority for run in runs] == [-9, -3, 0, 0, 9, 0]
        assert [await told(run) for run in runs] == [[-9], [-3], [0], [0], [9], [0]]
        shop.gate.go.set()
        for run in runs:
            assert isinstance(await run.result(), Succeeded)
        assert shop.entered == ["first", "high", "a", "b", "c", "low"]
        assert (await engine.verify()).findings == ()


@virtually
async def test_an_endless_stream_of_urgent_runs_starves_nobody(system: VirtualSystem) -> None:
    """R-1: one place, and whenever an urgent run ends two more are there; the patient one has one place of 16."""
    entered: list[str] = []

    @step("work/v1")
    async def work(inv: Inv) -> None:
        entered.append(inv.input)
        if inv.input == "urgent" and len(entered) < 60:
            await engine.submit_many(pipeline, ["urgent", "urgent"], priority=9)

    pipeline = line(work)
    async with World(system).engine(app(pipeline), concurrency=1) as engine:
        await engine.submit_many(pipeline, ["urgent"] * 3, priority=9)
        patient = await engine.submit(pipeline, "patient", priority=-9)
        await patient.result()
        assert entered.index("patient") < 20
        await engine.idle()


@virtually
async def test_new_runs_have_their_share_of_a_single_place(system: VirtualSystem) -> None:
    """R-1: runs that come back again and again leave every fourth place to those that never started."""
    entered: list[str] = []

    @step("again/v1", retry=Retry(initial=0.001, cap=0.001, jitter=0))
    async def again(inv: Inv) -> None:
        entered.append(inv.input)
        if inv.input == "again":
            await system.sleep(1)  # so that the others are due once more when this one lets go
            if len(entered) == 9:
                await engine.submit_many(pipeline, ["new"] * 3)
            if inv.attempt < 20:
                raise OSError("once more")

    pipeline = line(again)
    async with World(system).engine(app(pipeline), concurrency=1) as engine:
        runs = [run for run in await engine.submit_many(pipeline, ["again"] * 3) if isinstance(run, Run)]
        for run in runs:
            await run.result()
        assert entered.count("again") == 60
        assert [n for n, name in enumerate(entered) if name == "new"][-1] < 24


@virtually
async def test_a_pipeline_says_what_its_runs_are_given(system: VirtualSystem) -> None:
    """R-1: unless the submission says otherwise; runs of the usual priority do not mention it."""
    shop = Shop(priority=5)
    shop.gate.go.set()
    async with World(system).engine(app(shop.pipeline)) as engine:
        assert await told(await engine.submit(shop.pipeline, "x")) == [5]
        assert await told(await engine.submit(shop.pipeline, "y", priority=-1)) == [-1]
        usual = await engine.submit(shop.pipeline, "z", priority=0)
        assert await told(usual) == [0]
        (row, *_) = await engine.store.journal_of(usual.id) or (0, ())
        assert row
        many = await engine.submit_many(shop.pipeline, ["a", "b"], priority=7)
        assert [await told(run) for run in many if isinstance(run, Run)] == [[7], [7]]


@pytest.mark.parametrize("wrong", [10, -10, 1.0, "high", True])
@virtually
async def test_a_priority_beyond_the_range_is_refused(system: VirtualSystem, wrong: Any) -> None:
    """P-2, R-1: at every door, with nothing written."""
    shop = Shop()
    with pytest.raises(DefinitionError, match="whole number from -9 to 9"):
        Shop(priority=wrong)
    async with World(system).engine(app(shop.pipeline)) as engine:
        with pytest.raises(InvalidArgument, match="whole number from -9 to 9"):
            await engine.submit(shop.pipeline, "x", priority=wrong)
        with pytest.raises(InvalidArgument, match="whole number from -9 to 9"):
            await engine.submit_many(shop.pipeline, ["x"], priority=wrong)
        assert await engine.list() == []
        run = await engine.submit(shop.pipeline, "x")
        with pytest.raises(InvalidArgument, match="whole number from -9 to 9"):
            await run.prioritize(wrong)
        assert await told(run) == [0]


@virtually
async def test_operators_change_what_waits_and_what_runs(system: VirtualSystem) -> None:
    """R-17, R-1, M-16: who and why is on record; saying it twice writes nothing; a run that has ended keeps its own."""
    shop = Shop()
    async with World(system).engine(app(shop.pipeline), concurrency=1) as engine:
        running = await engine.submit(shop.pipeline, "running")
        await shop.gate.until(1)
        waiting = [await engine.submit(shop.pipeline, name) for name in "abc"]
        await waiting[2].prioritize(4, note="the customer calls", actor="ada")
        await waiting[2].prioritize(4, actor="bob")
        await running.prioritize(2)
        assert [(f.actor, f.note) for f in await facts(waiting[2]) if isinstance(f, RunPrioritized)] == [
            ("ada", "the customer calls")
        ]
        verdicts = await engine.each(Selector(pipeline="line"), PrioritizeRun(4, actor="ada"), dry_run=True)
        assert sorted(v.verdict for v in verdicts) == ["done", "done", "done", "duplicate"]
        await engine.each(Selector(resource=waiting[1].id), PrioritizeRun(-4, actor="ada"))
        shop.gate.go.set()
        for run in (running, *waiting):
            await run.result()
        assert shop.entered == ["running", "c", "a", "b"]
        assert [(await run.info()).priority for run in (running, *waiting)] == [2, 0, -4, 4]
        assert (await engine.verify()).findings == ()
        with pytest.raises(KeyTaken):
            await running.prioritize(5)


@virtually
async def test_another_priority_wakes_nobody(system: VirtualSystem) -> None:
    """R-4, R-17: a delayed start keeps its time, a held run stays held."""
    shop = Shop()
    shop.gate.go.set()
    world = World(system)
    async with world.engine(app(shop.pipeline)) as engine:
        delayed = await engine.submit(shop.pipeline, "delayed", delay=50)
        held = await engine.submit(shop.pipeline, "held", delay=10)
        await held.hold(actor="me")
        for run in (delayed, held):
            await run.prioritize(9)
        await delayed.result()
        assert world.now_us() >= 50_000_000
        assert (await until(held, "held")).priority == 9
        assert shop.entered == ["delayed"]
