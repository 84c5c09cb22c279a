"""Loops: turn after turn, each durable before the next starts [B-15, B-23]."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from perdure import (
    Canceled,
    Done,
    Fail,
    Failed,
    ItemInvocation,
    Loop,
    More,
    Pipeline,
    Retry,
    Succeeded,
    UnwindInvocation,
)
from perdure.core.facts import ItemOutputRecorded, ItemRetryScheduled
from perdure.define.items import ItemReport
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, World, app, facts, until, virtually

Turn = ItemInvocation[str, object, int]
Counting = Loop[str, object, str, int]


def zero(inv: Inv) -> int:
    return 0


async def to_five(inv: Turn) -> More[int] | Done[str]:
    return More(inv.item + 1) if inv.item < 5 else Done(f"done at {inv.index} with {inv.item}")


async def forget(inv: UnwindInvocation[str, object], state: str) -> None:
    """Takes the whole loop back."""


def line_of(loop: Counting) -> Pipeline[str, object, str]:
    """A pipeline whose output is the state of its loop."""
    pipeline: Pipeline[str, object, str] = Pipeline(
        id="line", input=str, deps=object, steps=(loop,), output=lambda inv: inv[loop]
    )
    return pipeline


def loop_of(turn: Any, **options: Any) -> Counting:
    """A loop from zero."""
    made: Any = Loop
    return cast("Counting", made("loop/v1", first=zero, turn=turn, **options))


@virtually
async def test_each_turn_is_about_what_the_one_before_returned(system: VirtualSystem) -> None:
    """B-15"""
    pipeline = line_of(loop_of(to_five))
    async with World(system).engine(app(cast("Any", pipeline))) as engine:
        run = await engine.submit(pipeline, "x")
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == "done at 5 with 5"
        outputs = [(f.index, f.more) for f in await facts(run) if isinstance(f, ItemOutputRecorded)]
        assert (await engine.verify()).findings == ()
    assert outputs == [(index, index < 5) for index in range(6)]


@virtually
async def test_a_turn_costs_one_commit(system: VirtualSystem) -> None:
    """B-23: what it returned, the end of the step and of the run are in the last one."""
    pipeline = line_of(loop_of(to_five))
    world = World(system)
    async with world.engine(app(cast("Any", pipeline))) as engine:
        assert isinstance(await (await engine.submit(pipeline, "x")).result(), Succeeded)
        assert world.stores[-1].calls["append"] == 1 + 6


@virtually
async def test_a_def_turn_and_a_done_at_once(system: VirtualSystem) -> None:
    """B-15"""

    def at_once(inv: Turn) -> More[int] | Done[str]:
        return Done("now")

    pipeline = line_of(loop_of(at_once))
    async with World(system).engine(app(cast("Any", pipeline))) as engine:
        result = await (await engine.submit(pipeline, "x")).result()
    assert isinstance(result, Succeeded)
    assert result.output == "now"


@virtually
async def test_after_so_many_turns_the_run_is_held_and_released_for_as_many_again(system: VirtualSystem) -> None:
    """B-23"""
    turns: list[int] = []

    async def endless(inv: Turn) -> More[int] | Done[str]:
        turns.append(inv.index)
        return More(inv.item + 1) if inv.item < 7 else Done("at last")

    pipeline = line_of(loop_of(endless, max=3))
    async with World(system).engine(app(cast("Any", pipeline))) as engine:
        run = await engine.submit(pipeline, "x")
        for held in range(1, 3):
            info = await until(run, "held")
            assert (info.reason, info.step) == ("max-turns", "loop/v1")
            assert turns == list(range(3 * held))
            await run.release(actor="ada")
            await engine.idle()
        result = await run.result()
    assert isinstance(result, Succeeded)
    assert result.output == "at last"
    assert turns == list(range(8))


@virtually
async def test_turns_have_attempts_and_memos_of_their_own(system: VirtualSystem) -> None:
    """M-5, M-15, B-23"""
    made: list[int] = []

    async def remembers(inv: Turn) -> More[int] | Done[str]:
        async def make() -> int:
            made.append(inv.index)
            return inv.index

        found = await inv.memo("made", make)
        if inv.attempt == 1:
            raise OSError("after the memo")
        return More(inv.item + found) if inv.index < 2 else Done(f"{inv.item} {inv.attempt}")

    pipeline = line_of(loop_of(remembers, retry=Retry(initial=60, cap=60, jitter=0)))
    async with World(system).engine(app(cast("Any", pipeline))) as engine:
        result = await (await engine.submit(pipeline, "x")).result(timeout=3600)
    assert isinstance(result, Succeeded)
    assert result.output == "1 2"
    assert made == [0, 1, 2]


@pytest.mark.parametrize("wrong", ["text", None, More("text"), Done(1), [More(1)]])
@virtually
async def test_a_turn_that_returns_something_else_makes_the_run_invalid(system: VirtualSystem, wrong: object) -> None:
    """D-1: mended by a deployment, which goes on with the turn that broke."""
    calls: list[int] = []

    async def breaks(inv: Turn) -> More[int] | Done[str]:
        calls.append(inv.index)
        return More(inv.item + 1) if inv.index < 2 else cast("Done[str]", wrong)

    pipeline = line_of(loop_of(breaks))
    world = World(system)
    async with world.engine(app(cast("Any", pipeline))) as engine:
        run = await engine.submit(pipeline, "x")
        info = await until(run, "invalid")
        assert "'loop/v1'" in info.reason
    pipeline = line_of(loop_of(to_five))
    async with world.engine(app(cast("Any", pipeline), build="mended")) as engine:
        result = await (await engine.run(run.id)).result(timeout=600)
        assert isinstance(result, Succeeded)
        assert result.output == "done at 5 with 5"
    assert calls == [0, 1, 2]


@virtually
async def test_a_turn_that_fails_for_good_fails_the_step_and_is_reported(system: VirtualSystem) -> None:
    """U-12, B-22"""
    seen: list[ItemReport[int, str]] = []

    async def fails(inv: Turn) -> More[int] | Done[str]:
        if inv.index == 2:
            raise Fail("enough", reason="enough")
        return More(inv.item + 10)

    async def find_all(inv: UnwindInvocation[str, object]) -> None:
        seen.extend(loop.reports(inv))

    loop = loop_of(fails, unwind=forget, unwind_in_doubt=find_all)
    pipeline = line_of(loop)
    async with World(system).engine(app(cast("Any", pipeline))) as engine:
        run = await engine.submit(pipeline, "x")
        result = await run.result()
    assert isinstance(result, Failed)
    assert result.failure.reason == "enough"
    assert [(one.item, one.status, one.idempotency_key) for one in seen] == [
        (0, "completed", f"{run.id}/item/0/loop/v1"),
        (10, "completed", f"{run.id}/item/1/loop/v1"),
        (20, "failed", f"{run.id}/item/2/loop/v1"),
    ]


@virtually
async def test_a_cancel_ends_the_turn_that_runs(system: VirtualSystem) -> None:
    """R-12"""
    gate = Gate()
    seen: list[str] = []

    async def waits(inv: Turn) -> More[int] | Done[str]:
        if inv.index == 1:
            await gate()
        return More(1)

    def find_all(inv: UnwindInvocation[str, object]) -> None:
        seen.extend(one.status for one in loop.reports(inv))

    loop = loop_of(waits, unwind=forget, unwind_in_doubt=find_all)
    pipeline = line_of(loop)
    async with World(system).engine(app(cast("Any", pipeline))) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        await run.cancel(actor="ada")
        assert isinstance(await run.result(), Canceled)
    assert seen == ["completed", "in-doubt"]


@virtually
async def test_after_a_crash_the_turn_that_was_lost_is_tried_again_and_no_other(system: VirtualSystem) -> None:
    """B-20, M-17: in the code that is deployed then."""
    gate = Gate()
    calls: list[tuple[str, int, int]] = []

    async def old(inv: Turn) -> More[int] | Done[str]:
        calls.append(("old", inv.index, inv.attempt))
        if inv.index == 2:
            await gate()
        return More(inv.item + 1)

    async def new(inv: Turn) -> More[int] | Done[str]:
        calls.append(("new", inv.index, inv.attempt))
        return More(inv.item + 1) if inv.index < 3 else Done(f"{inv.item}")

    pipeline = line_of(loop_of(old))
    world = World(system)
    async with world.engine(app(cast("Any", pipeline))) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        engine.abort()
        await asyncio.sleep(0)
    pipeline = line_of(loop_of(new))
    async with world.engine(app(cast("Any", pipeline))) as engine:
        again = await engine.run(run.id)
        result = await again.result(timeout=600)
        assert isinstance(result, Succeeded)
        assert result.output == "3"
        causes = [(f.index, f.cause) for f in await facts(again) if isinstance(f, ItemRetryScheduled)]
    assert causes == [(2, "lost")]
    assert calls == [("old", 0, 1), ("old", 1, 1), ("old", 2, 1), ("new", 2, 2), ("new", 3, 1)]
