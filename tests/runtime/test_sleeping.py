"""Sleeps under the engine: a week is over at once, and costs one commit [B-15, B-20]."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from perdure import App, Canceled, Sleep, Succeeded, step
from perdure.core.facts import OperationParked
from perdure.testing.clock import EPOCH_US, VirtualSystem
from perdure.testing.evolve import evolve
from tests.runtime.lab import SECOND_US, Inv, Line, World, app, facts, line, names, until, virtually

WEEK_US = 7 * 86_400 * SECOND_US


@step("before/v1")
async def before(inv: Inv) -> None: ...


@step("after/v1")
async def after(inv: Inv) -> None: ...


def napping(duration: timedelta = timedelta(days=7)) -> Line:
    return line(before, Sleep("nap/v1", duration), after)


@virtually
async def test_it_holds_nothing_and_costs_one_commit(system: VirtualSystem) -> None:
    """B-15, J-12, R-4."""
    world = World(system)
    pipeline = napping()
    async with world.engine(app(pipeline, concurrency=1)) as engine:
        run = await engine.submit(pipeline, "x")
        info = await until(run, "ready")
        assert (info.reason, info.step, info.worker, info.due_us) == ("sleeping", "nap/v1", "", EPOCH_US + WEEK_US)
        other = await engine.submit(pipeline, "other")
        assert isinstance(await run.result(), Succeeded)
        assert isinstance(await other.result(), Succeeded)
        assert await names(run) == [
            "RunSubmitted",
            "SegmentAttemptStarted",
            "OperationReserved",
            "OperationSucceeded",
            "OperationParked",
            "SegmentSuspended",
            "SegmentAttemptStarted",
            "ContinuationSegmentCreated",
            "OperationSucceeded",
            "OperationReserved",
            "OperationSucceeded",
            "SegmentCompleted",
            "OutcomeCommitted",
            "RunSucceeded",
        ]
        assert world.stores[0].calls["append"] == 2 * 4  # submitted and claimed, parked, woken, ended
        assert (await engine.verify()).findings == ()
    assert WEEK_US <= world.now_us() < WEEK_US + SECOND_US


@virtually
async def test_a_pipeline_may_begin_and_end_with_a_sleep(system: VirtualSystem) -> None:
    world = World(system)
    pipeline = line(Sleep("first/v1", 5), before, Sleep("last/v1", 5))
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await (await engine.submit(pipeline, "x")).result(), Succeeded)
    assert 10 * SECOND_US <= world.now_us() < 11 * SECOND_US


@virtually
async def test_a_cancel_ends_it_at_once(system: VirtualSystem) -> None:
    """R-12, U-9."""
    world = World(system)
    pipeline = napping()
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await until(run, "ready")
        await run.cancel()
        result = await run.result()
    assert isinstance(result, Canceled)
    assert (result.failure.step, result.in_doubt) == ("nap/v1", ())
    assert world.now_us() < SECOND_US


@virtually
async def test_retry_does_not_wake_it_and_resolve_does(system: VirtualSystem) -> None:
    """R-17, B-20."""
    world = World(system)
    pipeline = napping()
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        due_us = (await until(run, "ready")).due_us
        await run.retry()
        await system.sleep(1)
        info = await run.info()
        assert (info.status, info.due_us) == ("ready", due_us)
        await run.resolve("nap/v1", value=None)
        assert isinstance(await run.result(), Succeeded)
    assert world.now_us() < 3 * SECOND_US


def test_a_redeployment_with_another_duration_changes_no_open_sleep(tmp_path: Path) -> None:
    """B-20, R-4: the time is in the file."""

    def application(duration: timedelta) -> App:
        return App(napping(duration).bind(), store=f"sqlite:///{tmp_path}/store.db", build=str(duration))

    async def first() -> tuple[str, int | None]:
        async with application(timedelta(hours=1)).engine() as engine:
            run = await engine.submit(napping(), "x")
            return run.id, (await until(run, "ready")).due_us

    async def second(run_id: str) -> tuple[int | None, list[int], object]:
        async with application(timedelta(days=300)).engine() as engine:
            run = await engine.run(run_id)
            due_us = (await run.info()).due_us
            await run.retry()
            fixed = [fact.due_us for fact in await facts(run) if isinstance(fact, OperationParked)]
            assert (await run.info()).due_us == due_us
            await run.resolve("nap/v1", value=None)
            return due_us, fixed, await run.result()

    run_id, due_us = asyncio.run(first())
    found_us, fixed, result = asyncio.run(second(run_id))
    assert found_us == due_us
    assert fixed == [due_us]
    assert isinstance(result, Succeeded)


def test_edits_around_a_sleep_are_tested_like_any_others() -> None:
    """E-6, E-7, E-9, I-6."""
    new = line(before, Sleep("new/v1", 60), Sleep("nap/v1", 3_600), after)
    assert evolve(napping(), new, input="x", at=before, moment="before").ran("new") == ("before/v1", "after/v1")
    passed = evolve(napping(), new, input="x", at=after, moment="retrying")
    assert (passed.passed, passed.ran("new"), passed.succeeded) == (("new/v1",), ("after/v1",), True)
    gone = evolve(napping(), line(before, after), input="x", at=before, moment="after")
    assert gone.ran("new") == ("after/v1",)
    early = evolve(napping(), line(before, after), input="x", at="nap/v1", moment="before")
    assert early.ran("new") == ("after/v1",)
