"""The life of a run: retries when the policy says, holds, lost and interrupted attempts, deadlines [M-5, R-4]."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    Canceled,
    Fail,
    Failed,
    Retry,
    Succeeded,
    UnwindInvocation,
    step,
)
from perdure.core.facts import (
    OperationReserved,
    OperationRetryScheduled,
    RunCancelRequested,
    RunHeld,
)
from perdure.core.retry import backoff_us
from perdure.runtime.live import LiveRun
from perdure.runtime.run import Run
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import (
    PROMPT,
    SECOND_US,
    Gate,
    Inv,
    Line,
    World,
    app,
    facts,
    line,
    until,
    virtually,
)

STEADY = Retry(initial=2.0, factor=3.0, cap=30.0, jitter=0.0)


async def times_us(run: Run[Any], kind: type = OperationReserved) -> list[int]:
    """When facts of a kind were recorded, in virtual microseconds."""
    return [f.at_us - EPOCH_US for f in await run.journal() if isinstance(f.fact, kind)]


# --- retries


@virtually
async def test_attempts_start_exactly_when_the_backoff_says(system: VirtualSystem) -> None:
    """R-4: 2, 6, 18, then the cap of 30 s."""

    @step("flaky/v1", retry=STEADY)
    async def flaky(inv: Inv) -> None:
        if inv.attempt < 7:
            raise OSError("down")

    pipeline = line(flaky)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        assert isinstance(await run.result(), Succeeded)
        waits = [2, 6, 18, 30, 30, 30]
        assert await times_us(run) == [sum(waits[:n]) * SECOND_US for n in range(7)]


@virtually
async def test_the_default_backoff_is_as_documented(system: VirtualSystem) -> None:
    """R-4: 100 ms, doubled, at most 30 s, with a tenth of jitter; the due time is a fact."""

    @step("flaky/v1")
    async def flaky(inv: Inv) -> None:
        if inv.attempt < 13:
            raise OSError("down")

    pipeline = line(flaky)
    async with World(system).engine(app(pipeline, retry=Retry())) as engine:
        run = await engine.submit(pipeline, "x")
        await run.result()
        journal = await run.journal()
        waits = [f.fact.due_us - f.at_us for f in journal if isinstance(f.fact, OperationRetryScheduled)]
        for failures, wait_us in enumerate(waits, start=1):
            plain_us = min(100_000 * 2 ** (failures - 1), 30_000_000)
            assert 0.9 * plain_us <= wait_us <= 1.1 * plain_us
            assert backoff_us(Retry(), failures, 0.0) <= wait_us <= backoff_us(Retry(), failures, 1.0)
        starts = [f.at_us for f in journal if isinstance(f.fact, OperationReserved)]
        due = [f.fact.due_us for f in journal if isinstance(f.fact, OperationRetryScheduled)]
        assert starts[1:] == due


@virtually
async def test_a_backoff_holds_no_place_and_survives_a_restart(system: VirtualSystem) -> None:
    """R-4: while one run backs off, others have its place; a new engine starts the attempt when it was due."""

    @step("flaky/v1", retry=Retry(initial=60, cap=60, jitter=0))
    async def flaky(inv: Inv) -> None:
        if inv.input == "flaky" and inv.attempt == 1:
            raise OSError("down")

    pipeline = line(flaky)
    world = World(system)
    async with world.engine(app(pipeline), concurrency=1) as engine:
        run = await engine.submit(pipeline, "flaky")
        info = await until(run, "ready")
        assert (info.due_us, info.worker, info.reason) == (EPOCH_US + 60 * SECOND_US, "", "error")
        other = await engine.submit(pipeline, "other")
        assert isinstance(await other.result(), Succeeded)
        await system.sleep(20)
    async with world.engine(app(pipeline)) as engine:
        again = await engine.run(run.id)
        assert isinstance(await again.result(), Succeeded)
        assert await times_us(again) == [0, 60 * SECOND_US]


@virtually
async def test_a_bounded_policy_holds_the_run_and_retry_counts_anew(system: VirtualSystem) -> None:
    """M-5, R-17"""

    @step("flaky/v1", retry=Retry(max_attempts=3, initial=1, factor=1, jitter=0))
    async def flaky(inv: Inv) -> None:
        if inv.attempt < 6:
            raise OSError(f"attempt {inv.attempt}")

    pipeline = line(flaky)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        info = await until(run, "held")
        assert (info.reason, info.step, info.due_us) == ("attempts-exhausted", "flaky/v1", None)
        assert engine.running == 0
        held = [fact for fact in await facts(run) if isinstance(fact, RunHeld)]
        assert [(fact.step, fact.note, fact.actor) for fact in held] == [("flaky/v1", "attempt 3", "perdure")]
        await run.retry(actor="me")
        assert isinstance(await run.result(), Succeeded)
        assert await times_us(run) == [0, SECOND_US, 2 * SECOND_US, 2 * SECOND_US, 3 * SECOND_US, 4 * SECOND_US]


@virtually
async def test_a_bounded_policy_may_fail_the_run_instead(system: VirtualSystem) -> None:
    """M-5, U-9: reason attempts-exhausted, and the step is in doubt."""

    @step("flaky/v1", retry=Retry(max_attempts=2, initial=0, then="fail"))
    async def flaky(inv: Inv) -> None:
        raise OSError("down")

    pipeline = line(flaky)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        result = await run.result()
        assert isinstance(result, Failed)
        assert (result.failure.reason, result.failure.message) == ("attempts-exhausted", "down")
        assert (result.failure.attempt, result.failure.error, result.in_doubt) == (2, "OSError", ("flaky/v1",))


@virtually
async def test_a_type_that_is_never_retried_fails_at_once(system: VirtualSystem) -> None:
    """M-5, M-9: subclasses too; the step is in doubt, for the handler has not said that it cleaned up."""

    @step("flaky/v1", retry=Retry(never=(LookupError,), initial=1, jitter=0))
    async def flaky(inv: Inv) -> None:
        if inv.attempt == 1:
            raise OSError("this one is")
        raise KeyError("this one is not")

    pipeline = line(flaky)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        result = await run.result()
        assert isinstance(result, Failed)
        assert (result.failure.attempt, result.failure.error, result.in_doubt) == (2, "KeyError", ("flaky/v1",))


@virtually
async def test_a_bound_is_forward_only_unless_given_for_unwind(system: VirtualSystem) -> None:
    """M-5, U-8: an unwind is retried past `max_attempts`; with a bound of its own it holds the run."""
    unwound: list[int] = []

    def make(retry: Retry, id: str) -> Line:
        async def undo(inv: UnwindInvocation[str, object], state: None) -> None:
            unwound.append(1)
            if len(unwound) % 5:
                raise OSError("not yet")

        @step("first/v1", unwind=undo, retry=retry)
        async def first(inv: Inv) -> None:
            pass

        @step("second/v1")
        async def second(inv: Inv) -> None:
            raise Fail("no")

        return line(first, second, id=id)

    free = make(Retry(max_attempts=2, initial=0), "free")
    bound = make(Retry(max_attempts=9, unwind_max_attempts=2, initial=0), "bound")
    async with World(system).engine(app(free, bound)) as engine:
        run = await engine.submit(free, "x")
        result = await run.result()
        assert isinstance(result, Failed)
        assert (len(unwound), result.unwind_failures, result.uncompensated) == (5, (), ())
        run = await engine.submit(bound, "x")
        info = await until(run, "held")
        assert (info.reason, info.step, len(unwound)) == ("attempts-exhausted", "first/v1", 7)
        await run.resolve("first/v1", value=None, actor="me")
        result = await run.result()
        assert isinstance(result, Failed)
        assert (result.uncompensated, result.half_unwound) == ((), ())


# --- lost and interrupted attempts


def lasting(gate: Gate, retry: Retry = PROMPT) -> Line:
    """A pipeline whose only step waits at a gate."""

    @step("lasting/v1", retry=retry)
    async def lasting(inv: Inv) -> None:
        await gate()

    return line(lasting)


@virtually
async def test_a_lost_attempt_is_retried_at_once_the_next_with_backoff(system: VirtualSystem) -> None:
    """M-17: the first loss is answered at once, further ones wait; both count towards a bound."""
    gate = Gate()
    pipeline = lasting(gate, retry=Retry(initial=10, cap=100, factor=3, jitter=0))
    world = World(system)
    run_id = ""
    for expected in range(4):
        async with world.engine(app(pipeline)) as engine:
            run = await engine.submit(pipeline, "x") if not run_id else await engine.run(run_id)
            run_id = run.id
            await gate.until(expected + 1)
            engine.abort()
    gate.go.set()
    async with world.engine(app(pipeline)) as engine:
        run = await engine.run(run_id)
        assert isinstance(await run.result(), Succeeded)
        assert await times_us(run) == [0, 0, 30 * SECOND_US, 120 * SECOND_US, 220 * SECOND_US]
        causes = [fact.cause for fact in await facts(run) if isinstance(fact, OperationRetryScheduled)]
        assert causes == ["lost"] * 4


@virtually
async def test_five_losses_in_a_row_hold_the_run_whatever_the_policy(system: VirtualSystem) -> None:
    """M-5: an operation that kills its worker is not run for ever."""
    gate = Gate()
    pipeline = lasting(gate)
    world = World(system)
    run_id = ""
    for attempt in range(1, 6):
        async with world.engine(app(pipeline)) as engine:
            run = await engine.submit(pipeline, "x") if not run_id else await engine.run(run_id)
            run_id = run.id
            await gate.reached.wait()
            gate.reached.clear()
            assert gate.passes == attempt
            engine.abort()
    async with world.engine(app(pipeline)) as engine:
        run = await engine.run(run_id)
        info = await until(run, "held")
        assert (info.reason, info.step, gate.passes) == ("lost-attempts", "lasting/v1", 5)
        gate.go.set()
        await run.release(actor="me")
        assert isinstance(await run.result(), Succeeded)


@virtually
async def test_an_error_between_ends_a_row_of_losses(system: VirtualSystem) -> None:
    """M-5: five in a row, not five in all."""
    gate = Gate()
    lost = (1, 2, 3, 4, 6, 7, 8, 9)

    @step("poor/v1")
    async def poor(inv: Inv) -> None:
        if inv.attempt in lost:
            await gate()
        if inv.attempt < 10:
            raise OSError("an error")

    pipeline = line(poor)
    world = World(system)
    run_id = ""
    for _ in lost:
        async with world.engine(app(pipeline)) as engine:
            run = await engine.submit(pipeline, "x") if not run_id else await engine.run(run_id)
            run_id = run.id
            await gate.reached.wait()
            gate.reached.clear()
            engine.abort()
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await (await engine.run(run_id)).result(), Succeeded)


@virtually
async def test_an_attempt_interrupted_by_shutdown_costs_nothing(system: VirtualSystem) -> None:
    """R-6, M-5: no failure, no backoff, nothing counted: a bound of one is not used up by ten restarts."""
    gate = Gate()
    pipeline = lasting(gate, retry=Retry(max_attempts=1, initial=100, cap=100, then="fail"))
    world = World(system)
    run_id = ""
    for _ in range(10):
        async with world.engine(app(pipeline), drain_timeout=0) as engine:
            run = await engine.submit(pipeline, "x") if not run_id else await engine.run(run_id)
            run_id = run.id
            await gate.reached.wait()
            gate.reached.clear()
    gate.go.set()
    async with world.engine(app(pipeline)) as engine:
        run = await engine.run(run_id)
        assert isinstance(await run.result(), Succeeded)
        scheduled = [fact for fact in await facts(run) if isinstance(fact, OperationRetryScheduled)]
        assert [(fact.cause, fact.failure) for fact in scheduled] == [("interrupted", None)] * 10
        assert await times_us(run) == [0] * 11


# --- deadlines


@virtually
async def test_a_deadline_cancels_a_running_handler_at_its_time(system: VirtualSystem) -> None:
    """R-12: to the microsecond; the attempt was started, so it is in doubt."""
    pipeline = lasting(Gate())
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", deadline=timedelta(seconds=90, microseconds=1))
        result = await run.result()
        assert isinstance(result, Canceled)
        assert (result.failure.reason, result.failure.kind, result.in_doubt) == (
            "deadline",
            "canceled",
            ("lasting/v1",),
        )
        assert await times_us(run, RunCancelRequested) == [90 * SECOND_US + 1]
        [request] = [fact for fact in await facts(run) if isinstance(fact, RunCancelRequested)]
        assert (request.actor, request.reason) == ("perdure", "deadline")


@pytest.mark.parametrize("why", ["delayed", "backing off", "held", "held by policy"])
@virtually
async def test_a_deadline_cancels_a_run_that_waits(system: VirtualSystem, why: str) -> None:
    """R-12: at its time, whatever the run waits for; without a call where nothing had been started.

    An operator's hold goes on to hold what follows [R-17].
    """
    gate = Gate()
    gate.go.set()

    @step("flaky/v1", retry=Retry(max_attempts=1 if why == "held by policy" else None, initial=1000, cap=1000))
    async def flaky(inv: Inv) -> None:
        await gate()
        raise OSError("down")

    pipeline = line(flaky)
    async with World(system).engine(app(pipeline)) as engine:
        delay = None if why in ("backing off", "held by policy") else 5000
        run = await engine.submit(pipeline, "x", delay=delay, deadline=timedelta(seconds=10))
        if why == "held":
            await run.hold(actor="me")
            await system.sleep(20)
            assert (await run.info()).status == "held"
            await run.release(actor="me")
        result = await run.result()
        assert isinstance(result, Canceled)
        assert await times_us(run, RunCancelRequested) == [10 * SECOND_US]
        assert gate.passes == (0 if delay else 1)
        assert result.in_doubt == (() if delay else ("flaky/v1",))


@virtually
async def test_a_deadline_of_the_pipeline_holds_for_every_run(system: VirtualSystem) -> None:
    """R-12: and an argument wins over it."""

    @step("lasting/v1")
    async def lasting(inv: Inv) -> None:
        await asyncio.get_running_loop().create_future()

    pipeline = line(lasting, deadline=5)
    async with World(system).engine(app(pipeline)) as engine:
        runs = [
            await engine.submit(pipeline, "x"),
            await engine.submit(pipeline, "x", deadline=timedelta(seconds=2)),
            await engine.submit(pipeline, "x", deadline=datetime(1960, 1, 1, tzinfo=UTC)),
        ]
        for run in runs:
            assert isinstance(await run.result(), Canceled)
        assert [(await times_us(run, RunCancelRequested))[0] for run in runs] == [5_000_000, 2_000_000, 0]


@virtually
async def test_a_deadline_that_passed_while_nobody_ran_acts_at_the_start(system: VirtualSystem) -> None:
    """R-12, R-4: no attempt starts after it."""
    gate = Gate()
    pipeline = lasting(gate)
    world = World(system)
    async with world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x", deadline=timedelta(seconds=10))
    await system.sleep(11)
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await (await engine.run(run.id)).result(), Canceled)
        assert gate.passes == 0


@virtually
async def test_a_run_that_ends_in_time_has_no_deadline_left(system: VirtualSystem) -> None:
    """R-12: nothing is canceled later, and nothing of the run is kept until then."""
    gate = Gate()
    gate.go.set()
    pipeline = lasting(gate)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", deadline=timedelta(seconds=1000))
        assert isinstance(await run.result(), Succeeded)
        del run
        gc.collect()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, LiveRun)]
        await system.sleep(2000)
        [info] = await engine.list()
        assert info.status == "succeeded"


@virtually
async def test_unwinding_has_no_deadline(system: VirtualSystem) -> None:
    """U-11, R-12"""

    async def undo(inv: UnwindInvocation[str, object], state: None) -> None:
        await system.sleep(100)

    @step("first/v1", unwind=undo)
    async def first(inv: Inv) -> None:
        pass

    @step("second/v1")
    async def second(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(first, second)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", deadline=timedelta(seconds=50))
        result = await run.result()
        assert isinstance(result, Failed)
        assert (result.uncompensated, result.half_unwound) == ((), ())
