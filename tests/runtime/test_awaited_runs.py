"""Waits for runs under the engine: woken by ends, refused in circles, over restarts [R-13, R-16, B-8]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import AwaitedRun, AwaitRuns, Canceled, Failed, Pipeline, Succeeded, step
from perdure.core.facts import OperationParked
from perdure.runtime.engine import Engine
from perdure.runtime.run import Run
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.kinship import Inv, Texts, app, never, one, work
from tests.runtime.lab import SECOND_US, Gate, World, facts, names, until, virtually


def _ids(inv: Inv) -> list[str]:
    return inv.input.split()


def waiting(runs: Callable[[Inv], list[str]] = _ids, id: str = "waiting", first: Any = (), **options: Any) -> Texts:
    """A pipeline that waits for the runs its input names, and gives what it saw."""
    wait: Any = AwaitRuns("wait/v1", runs=runs, **options)
    return Pipeline(id=id, input=str, deps=object, steps=[*first, wait], output=lambda inv: inv[wait])


async def _rests(run: Run[Any]) -> str:
    async for info in run.watch():
        if info.reason.startswith("waits for"):
            return info.reason
    raise AssertionError("it never waited")


def _gated(gate: Gate) -> Texts:
    async def body(inv: Inv) -> str:
        if inv.input != "quick":
            await gate()
        return inv.input

    return work(body)


@virtually
async def test_all_of_them_and_how_they_ended(system: VirtualSystem) -> None:
    """R-13, J-12: no worker, no place; the state says how each ended, in the order they were named."""
    world, gate = World(system), Gate()
    target, waiter = _gated(gate), waiting()
    async with world.engine(app(target, waiter, concurrency=2)) as engine:
        slow, gone = await engine.submit(target, "slow"), await engine.submit(target, "gone")
        await gate.until(2)
        run = await engine.submit(waiter, f"{slow.id} {gone.id} none {slow.id}", delay=1)
        await gone.cancel()
        assert await _rests(run) == "waits for 3 of 3 runs"
        assert (await run.info()).worker == ""
        gate.go.set()
        result = await run.result()
        assert isinstance(result, Succeeded)
        first, second, third = result.output
        assert (first.run_id, first.status, first.output) == (slow.id, "succeeded", "slow")
        assert (second.run_id, second.status, second.failure.kind) == (gone.id, "canceled", "canceled")
        assert third == AwaitedRun("none", "missing")
        assert (await names(run)).count("SegmentAttemptStarted") == 2
        assert (await engine.verify()).findings == ()


@virtually
async def test_any_of_them(system: VirtualSystem) -> None:
    """R-13: the others are `live`."""
    world, gate = World(system), Gate()
    target, waiter = _gated(gate), waiting(mode="any")
    async with world.engine(app(target, waiter)) as engine:
        slow, slower = await engine.submit(target, "slow"), await engine.submit(target, "slower")
        run = await engine.submit(waiter, f"{slow.id} {slower.id}")
        assert await _rests(run) == "waits for 1 of 2 runs"
        await slower.cancel()
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert [each.status for each in result.output] == ["live", "canceled"]
        gate.go.set()


@virtually
async def test_nobody_to_wait_for(system: VirtualSystem) -> None:
    """R-13: none at all, one that has ended, or one that never was: no wait."""
    world = World(system)
    target, waiter = work(), waiting()
    async with world.engine(app(target, waiter)) as engine:
        done = await engine.submit(target, "quick")
        await done.result()
        for input, seen in (("", []), (done.id, ["succeeded"]), ("never-was", ["missing"])):
            result = await (await engine.submit(waiter, input)).result()
            assert isinstance(result, Succeeded)
            assert [each.status for each in result.output] == seen
    assert world.now_us() < SECOND_US


@virtually
@pytest.mark.parametrize("on_timeout", ["fail", "go-on"])
async def test_a_time_out(system: VirtualSystem, on_timeout: str) -> None:
    """B-8: reason `await-timeout`, or on with what has ended by then."""
    world = World(system)
    target, waiter = work(never), waiting(timeout=60, on_timeout=on_timeout)
    async with world.engine(app(target, waiter)) as engine:
        slow = await engine.submit(target, "slow")
        result = await (await engine.submit(waiter, f"{slow.id} none")).result()
        if on_timeout == "fail":
            assert isinstance(result, Failed)
            assert (result.failure.step, result.failure.reason) == ("wait/v1", "await-timeout")
        else:
            assert isinstance(result, Succeeded)
            assert [each.status for each in result.output] == ["live", "missing"]
        assert (await slow.info()).status == "running"
        assert 60 * SECOND_US <= world.now_us() < 62 * SECOND_US


# --- circles


async def _fails_by_circle(run: Run[Any]) -> None:
    result = await run.result(timeout=3_600)
    assert isinstance(result, Failed)
    assert (result.failure.step, result.failure.reason) == ("wait/v1", "await-cycle")


@virtually
@pytest.mark.parametrize("delay", [0, 1], ids=["in the first append", "later"])
async def test_a_run_that_would_wait_for_itself_fails(system: VirtualSystem, delay: int) -> None:
    """R-13."""
    world = World(system)
    waiter = waiting(lambda inv: [inv.run_id])
    async with world.engine(app(waiter)) as engine:
        await _fails_by_circle(await engine.submit(waiter, "x", delay=delay))


@virtually
async def test_who_closes_a_circle_fails_and_lets_the_others_go_on(system: VirtualSystem) -> None:
    """R-13: of three."""
    world, gate = World(system), Gate()

    @step("before/v1")
    async def before(inv: Inv) -> None:
        if inv.input == "last":
            await gate()

    ids: dict[str, str] = {}
    waiter = waiting(lambda inv: [ids[inv.input]], first=[before])
    async with world.engine(app(waiter)) as engine:
        last = await engine.submit(waiter, "last")
        ids["middle"] = last.id
        middle = await engine.submit(waiter, "middle")
        ids["first"] = middle.id
        first = await engine.submit(waiter, "first")
        await _rests(middle)
        await _rests(first)
        ids["last"] = first.id
        gate.go.set()
        await _fails_by_circle(last)
        for run in (middle, first):
            assert isinstance(await run.result(), Succeeded)


@virtually
@pytest.mark.parametrize("order", ["holder", "other"])
async def test_a_circle_through_a_run_that_was_held(system: VirtualSystem, order: str) -> None:
    """R-13, R-16, R-17: neither a hold nor its release hides one; nobody waits for ever."""
    world = World(system)
    ids: dict[str, str] = {}
    waiter = waiting(lambda inv: [ids.get(inv.input, "none")])
    async with world.engine(app(waiter)) as engine:
        other = await engine.submit(waiter, "other", delay=100)
        ids["holder"] = other.id
        holder = await engine.submit(waiter, "holder")
        await _rests(holder)
        await holder.hold()
        ids["other"] = holder.id
        if order == "holder":  # the other one waits while the first is held
            await _fails_by_circle(other)
            await holder.release()
            assert isinstance(await holder.result(), Succeeded)
        else:
            await holder.release()
            await _fails_by_circle(other)
            assert isinstance(await holder.result(), Succeeded)


@virtually
async def test_a_circle_of_parent_and_child(system: VirtualSystem) -> None:
    """R-13, B-21: a child that waits for its parent fails, and so does the parent."""
    world = World(system)
    child = waiting(id="work")
    parent = one(child, input=lambda inv: inv.run_id)
    async with world.engine(app(parent, child)) as engine:
        result = await (await engine.submit(parent, "x")).result(timeout=3_600)
        assert isinstance(result, Failed)
        assert result.failure.cause is not None
        assert (result.failure.reason, result.failure.cause.reason) == ("child-failed", "await-cycle")


# --- cancels, holds, retention, restarts


@virtually
@pytest.mark.parametrize("on_cancel", ["leave", "cancel"])
async def test_a_cancel_goes_on_at_once_and_takes_the_others_along_if_told(
    system: VirtualSystem, on_cancel: str
) -> None:
    """R-13, R-12."""
    world = World(system)
    target, waiter = work(never), waiting(on_cancel=on_cancel)
    async with world.engine(app(target, waiter)) as engine:
        slow = await engine.submit(target, "slow")
        run = await engine.submit(waiter, slow.id)
        await _rests(run)
        await run.cancel()
        assert isinstance(await run.result(), Canceled)
        if on_cancel == "cancel":
            assert isinstance(await slow.result(timeout=60), Canceled)
        else:
            assert (await slow.info()).status == "running"


@virtually
async def test_what_is_awaited_is_kept_until_it_was_seen(system: VirtualSystem) -> None:
    """R-9: also while the waiter is held."""
    world = World(system)
    target, waiter = work(), waiting(mode="all")
    async with world.engine(app(target, waiter)) as engine:
        await engine.hold_pipeline("work")
        first, second = await engine.submit(target, "a"), await engine.submit(target, "b", delay=500)
        run = await engine.submit(waiter, f"{first.id} {second.id}")
        await _rests(run)
        await run.hold()
        await engine.release_pipeline("work")
        for each in (first, second):
            await each.result()
        await system.sleep(10)
        assert await engine.store.remove_ended(system.now_us(), 10) == 0
        await run.release()
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert [each.status for each in result.output] == ["succeeded", "succeeded"]
        assert await engine.store.remove_ended(system.now_us() + 1, 10) == 3


@virtually
async def test_an_end_by_another_process_wakes(system: VirtualSystem) -> None:
    """R-16: a run that is given up by a client ends without this engine."""
    world = World(system)
    target, waiter = work(), waiting()
    application = app(target, waiter)
    async with world.engine(application) as engine:
        await engine.hold_pipeline("work")
        slow = await engine.submit(target, "slow")
        run = await engine.submit(waiter, slow.id)
        await _rests(run)
        before_us = world.now_us()
        async with world.client(application) as client:
            await client.abandon(slow.id, force=True, note="gone")
        assert isinstance(await run.result(), Succeeded)
        assert world.now_us() - before_us < SECOND_US


async def _parked(engine: Engine, target: Texts, waiter: Texts) -> tuple[Run[Any], Run[Any]]:
    await engine.hold_pipeline(target.id)
    slow = await engine.submit(target, "slow")
    run = await engine.submit(waiter, slow.id)
    await _rests(run)
    return slow, run


def test_a_wait_is_in_the_file(tmp_path: Path) -> None:
    """R-4, R-16, B-20: another process goes on; whom it waits for was settled."""
    target = work()

    def store() -> SqliteStore:
        return SqliteStore(tmp_path / "store.db")

    async def first() -> tuple[str, str]:
        waiter = waiting()
        async with app(target, waiter).engine(store=store()) as engine:
            slow, run = await _parked(engine, target, waiter)
            return slow.id, run.id

    async def second(slow_id: str, run_id: str) -> None:
        async with app(target, waiting(lambda inv: ["another"])).engine(store=store()) as engine:
            assert (await engine.info(run_id)).status == "ready"
            await engine.release_pipeline("work")
            result = await engine.result(run_id, timeout=30)
            assert isinstance(result, Succeeded)
            output: Any = result.output
            assert [(each.run_id, each.status) for each in output] == [(slow_id, "succeeded")]
            parked = [f for f in await facts(await engine.run(run_id)) if isinstance(f, OperationParked)]
            assert [fact.awaits for fact in parked] == [(slow_id,)]

    asyncio.run(second(*asyncio.run(first())))


@virtually
async def test_edits_of_a_wait(system: VirtualSystem) -> None:
    """E-3: gone while it waits, the run is invalid once it is woken, and goes on when the step is back."""
    world = World(system)
    target, waiter = work(), waiting()

    @step("other/v1")
    async def other(inv: Inv) -> None: ...

    async with world.engine(app(target, waiter)) as engine:
        _, run = await _parked(engine, target, waiter)
    edited: Texts = Pipeline(id="waiting", input=str, deps=object, steps=[other], output=lambda inv: inv.input)
    async with world.engine(app(target, edited)) as engine:
        await engine.release_pipeline("work")
        await until(await engine.run(run.id), "invalid")
    async with world.engine(app(target, waiter)) as engine:
        assert isinstance(await (await engine.run(run.id)).result(), Succeeded)
