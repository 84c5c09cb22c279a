"""Timers, retries and backoff [R-4, R-12, M-5, R-18]."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest

from perdure import Canceled, Failed, InvalidArgument, Retry, Succeeded, step
from perdure.core.facts import OperationReserved, OperationSucceeded, RunCancelRequested
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import SECOND_US, Gate, Inv, World, app, line, names, until, virtually


@virtually
async def test_a_time_out_means_the_same_on_every_path_to_the_microsecond(system: VirtualSystem) -> None:
    """R-12, R-4: nobody is canceled a little early because something was rounded to seconds."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await system.sleep(0.9)

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline), concurrency=10) as engine, world.client(app(pipeline)) as client:
        await system.sleep(0.000_123)
        runs = [
            await door.submit(pipeline, "x", deadline=timedelta(seconds=1))
            for door in (engine, client)
            for _ in "12345"
        ]
        assert {(await run.info()).deadline_us % 1000 for run in runs} == {123}
        for run in runs:
            assert isinstance(await run.result(), Succeeded)
        late = await client.submit(pipeline, "x", deadline=timedelta(microseconds=899_999))
        assert isinstance(await late.result(), Canceled)
        [at_us] = [f.at_us for f in await late.journal() if isinstance(f.fact, RunCancelRequested)]
        assert at_us == (await late.info()).deadline_us


@pytest.mark.parametrize("value", [math.nan, -1, "5", math.inf, True, None.__class__])
@virtually
async def test_a_time_out_that_is_no_time_is_refused_everywhere_at_once(system: VirtualSystem, value: Any) -> None:
    """P-2: a comparison with NaN would poll for ever."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await asyncio.get_running_loop().create_future()

    pipeline = line(one)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidArgument):
            await run.result(timeout=value)
        with pytest.raises(InvalidArgument):
            await engine.submit(pipeline, "x", delay=value)
        with pytest.raises(InvalidArgument):
            await engine.gc(value)
        await run.cancel()


@virtually
async def test_a_step_has_its_start_in_the_journal_before_its_body_runs(system: VirtualSystem) -> None:
    """M-8: so that durations mean something, for `async def` and for `def`."""
    began_us: list[int] = []

    @step("one/v1")
    async def one(inv: Inv) -> None:
        began_us.append(system.now_us())
        await system.sleep(1)

    @step("two/v1")
    def two(inv: Inv) -> None:
        began_us.append(system.now_us())

    pipeline = line(one, two)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", delay=3)
        await run.result()
        journal = await run.journal()
        starts = [f.at_us for f in journal if isinstance(f.fact, OperationReserved)]
        ends = [f.at_us for f in journal if isinstance(f.fact, OperationSucceeded)]
        assert starts == began_us == [EPOCH_US + 3 * SECOND_US, EPOCH_US + 4 * SECOND_US]
        assert ends[0] - starts[0] == SECOND_US
        assert starts[0] >= (await run.info()).submitted_us


@virtually
async def test_a_retry_delay_is_honoured_and_visible(system: VirtualSystem) -> None:
    """R-4: attempts at 0, 2, 4 and 6 seconds, each announced by the run's due time."""
    world = World(system)

    @step("one/v1", retry=Retry(initial=2, factor=1, jitter=0))
    async def one(inv: Inv) -> None:
        if inv.attempt < 4:
            raise OSError("down")

    pipeline = line(one)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        announced: list[int] = []
        async for info in run.watch():
            if info.status == "ready" and info.due_us is not None:
                announced.append((info.due_us - EPOCH_US) // SECOND_US)
        starts = [f.at_us - EPOCH_US for f in await run.journal() if isinstance(f.fact, OperationReserved)]
        assert starts == [0, 2 * SECOND_US, 4 * SECOND_US, 6 * SECOND_US]
        assert announced == [2, 4, 6]


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("waited", [False, True], ids=["at once", "after a wait"])
@virtually
async def test_no_retries_means_one_attempt_and_then_failed_in_every_position(
    system: VirtualSystem, position: int, waited: bool
) -> None:
    """M-5: also after the run has waited for something, and it is never left stuck."""
    gate = Gate()

    def make(number: int) -> Any:
        @step(f"step-{number}/v1", retry=Retry(max_attempts=1, then="fail"))
        async def one(inv: Inv) -> None:
            if number == position:
                await gate()
                raise OSError("down")

        return one

    pipeline = line(*(make(number) for number in range(3)))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", delay=10 if waited else None)
        if waited:
            await run.hold()
            await run.release()
        await gate.until(1)
        gate.go.set()
        result = await run.result()
        assert isinstance(result, Failed)
        assert (result.failure.step, result.failure.attempt) == (f"step-{position}/v1", 1)
        assert gate.passes == 1


@pytest.mark.parametrize("said_by", ["step", "pipeline", "app", "nobody"])
@virtually
async def test_the_policy_in_force_is_the_one_said_nearest_to_the_step(system: VirtualSystem, said_by: str) -> None:
    """M-5: taken whole; a default that somebody set is not forgotten because a nearer level is silent."""
    levels = ["step", "pipeline", "app"]
    policies = {level: Retry(max_attempts=2 + n, initial=0) for n, level in enumerate(levels)}
    given = {level: policies[level] for level in levels[levels.index(said_by) :]} if said_by in levels else {}

    @step("one/v1", retry=given.get("step"))
    async def one(inv: Inv) -> None:
        raise OSError("down")

    pipeline = line(one, retry=given.get("pipeline"))
    async with World(system).engine(app(pipeline, retry=given.get("app") or Retry())) as engine:
        run = await engine.submit(pipeline, "x")
        if said_by == "nobody":
            await system.sleep(600)
            assert (await names(run)).count("OperationReserved") > 20  # without bound
            await run.cancel()
        else:
            await until(run, "held")
            assert (await names(run)).count("OperationReserved") == 2 + levels.index(said_by)
