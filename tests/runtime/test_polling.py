"""Polls under the engine: time passes, nobody waits [B-15]."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import App, Canceled, Fail, Failed, InvalidRun, Later, Retry, Succeeded, UnwindInvocation, poll, step
from perdure.core.facts import OperationRetryScheduled
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import SECOND_US, Events, Inv, Line, World, app, facts, line, until, virtually

HOUR_US = 3_600 * SECOND_US


def asking(times: int, delay: timedelta = timedelta(hours=1)) -> Line:
    """Says `Later` so often, then succeeds."""

    @poll("ask/v1")
    async def ask(inv: Inv) -> int | Later:
        return Later(delay) if inv.attempt <= times else inv.attempt

    return line(ask)


@virtually
async def test_it_is_asked_again_exactly_when_it_said(system: VirtualSystem) -> None:
    """B-15, R-4: a day of hourly questions holds no worker, and has no backoff."""
    world = World(system)
    pipeline = asking(24)
    events = Events()
    async with world.engine(app(pipeline, concurrency=1), observers=(events,)) as engine:
        run = await engine.submit(pipeline, "x")
        waiting = await until(run, "ready")
        assert (waiting.reason, waiting.step, waiting.worker) == ("polling", "ask/v1", "")
        other = await engine.submit(pipeline, "other")  # one place, and nobody sits on it
        assert isinstance(await run.result(), Succeeded)
        assert isinstance(await other.result(), Succeeded)
    assert 24 * HOUR_US <= world.now_us() < 24 * HOUR_US + SECOND_US
    found = [fact for fact in await _journal(world, pipeline, run.id) if isinstance(fact, OperationRetryScheduled)]
    assert [(fact.cause, fact.failure) for fact in found] == [("later", None)] * 24


async def _journal(world: World, pipeline: Line, run_id: str) -> list[Any]:
    async with world.client(app(pipeline)) as client:
        return list(await facts(await client.run(run_id)))


@virtually
async def test_a_poll_in_a_thread_may_say_later(system: VirtualSystem) -> None:
    @poll("ask/v1")
    def ask(inv: Inv) -> Later | None:
        return Later(5) if inv.attempt < 3 else None

    pipeline = line(ask)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await (await engine.submit(pipeline, "x")).result(), Succeeded)
    assert 10 * SECOND_US <= world.now_us() < 11 * SECOND_US


@virtually
async def test_a_cancel_and_a_deadline_end_it_at_once(system: VirtualSystem) -> None:
    """R-12."""
    world = World(system)
    pipeline = asking(1_000_000)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await until(run, "ready")
        await run.cancel()
        assert isinstance(await run.result(), Canceled)
        assert world.now_us() < SECOND_US
        late = await engine.submit(pipeline, "late", deadline=timedelta(minutes=90))
        result = await late.result()
        assert isinstance(result, Canceled)
        assert result.failure.reason == "deadline"
        assert world.now_us() < 90 * 60 * SECOND_US + 2 * SECOND_US


@virtually
async def test_retry_asks_now(system: VirtualSystem) -> None:
    """R-17."""
    world = World(system)
    pipeline = asking(1)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await until(run, "ready")
        await run.retry()
        assert isinstance(await run.result(), Succeeded)
    assert world.now_us() < SECOND_US


@virtually
async def test_a_plain_step_that_says_later_breaks_its_contract(system: VirtualSystem) -> None:
    """D-1: the run is invalid, nothing is retried; whatever the annotation pretends."""

    @step("ask/v1")
    async def ask(inv: Inv) -> int:
        return cast(int, Later(1))

    pipeline = line(ask)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidRun, match=r"contract-broken.*only a @poll may"):
            await run.result()


@virtually
async def test_an_unwind_handler_that_says_later_breaks_its_contract(system: VirtualSystem) -> None:
    async def undo(inv: UnwindInvocation[str, object], state: int) -> None:
        return cast(None, Later(1))

    @poll("ask/v1", unwind=undo)
    async def ask(inv: Inv) -> int | Later:
        return 1

    @step("fail/v1")
    async def fail(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(ask, fail)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidRun, match="the unwind handler of step 'ask/v1' returned Later"):
            await run.result()


@virtually
async def test_a_delay_that_is_none_is_an_error_like_any_other(system: VirtualSystem) -> None:
    @poll("ask/v1", retry=Retry(initial=1))
    async def ask(inv: Inv) -> int | Later:
        return Later(-1)

    pipeline = line(ask)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", deadline=timedelta(minutes=1))
        assert isinstance(await run.result(), Canceled)
        assert any("must not be negative" in str(fact) for fact in await facts(run))


def test_polling_survives_the_process(tmp_path: Path) -> None:
    """R-4: the time of the next question is in the file, not in a process."""
    pipeline = asking(1)

    def application() -> App:
        return App(pipeline.bind(), store=f"sqlite:///{tmp_path}/store.db", build="1")

    async def first() -> tuple[str, int | None]:
        async with application().engine() as engine:
            run = await engine.submit(pipeline, "x")
            info = await until(run, "ready")
            return run.id, info.due_us

    async def second(run_id: str) -> tuple[int | None, str, object]:
        async with application().engine() as engine:
            run = await engine.run(run_id)
            info = await run.info()
            await run.retry()
            return info.due_us, info.reason, await run.result()

    run_id, due_us = asyncio.run(first())
    found_us, reason, result = asyncio.run(second(run_id))
    assert (found_us, reason) == (due_us, "polling")
    assert isinstance(result, Succeeded)


@virtually
async def test_what_raises_between_is_retried_and_bounded_as_ever(system: VirtualSystem) -> None:
    """M-5: errors have their backoff and their bound, `Later` has neither."""

    @poll("ask/v1", retry=Retry(max_attempts=2, initial=1, jitter=0, then="fail"))
    async def ask(inv: Inv) -> int | Later:
        if inv.attempt in (3, 5):
            raise OSError("no answer")
        return Later(10)

    pipeline = line(ask)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        result = await (await engine.submit(pipeline, "x")).result()
    assert isinstance(result, Failed)
    assert (result.failure.attempt, result.failure.reason) == (5, "attempts-exhausted")
    assert 31 * SECOND_US <= world.now_us() < 32 * SECOND_US
