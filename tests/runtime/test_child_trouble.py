"""Child runs in trouble: cancels, holds, redeployments and crashes of either side [B-21, R-12, R-16]."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Canceled,
    Child,
    Failed,
    Invocation,
    Pipeline,
    Retry,
    Succeeded,
    nothing,
    retired,
    step,
)
from perdure.core.facts import RunCancelRequested
from perdure.errors import StoreUnavailable
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.kinship import app, children, many, never, one, waiting_parent, work
from tests.runtime.lab import SECOND_US, Events, Failing, Gate, Gated, World, facts, names, until, virtually

Inv = Invocation[str, object]
Texts = Pipeline[str, object, Any]

PROMPT = Retry(initial=0, cap=0, jitter=0)


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(EPOCH_US / 1_000_000 + seconds, UTC)


# --- cancels, deadlines, holds


@virtually
async def test_a_cancel_takes_children_and_their_children_along(system: VirtualSystem) -> None:
    """B-21, R-12: the parent goes on when they have ended."""
    world = World(system)
    inner = work(never, id="inner")
    middle = one(inner, id="work")
    outer = one(middle)
    events = Events()
    async with world.engine(app(outer, middle, inner), observers=[events]) as engine:
        run = await waiting_parent(engine, outer)
        await events.until("attempt-started")
        await run.cancel()
        result = await run.result()
        assert isinstance(result, Canceled)
        for pipeline in ("work", "inner"):
            [sub] = await children(engine, pipeline)
            assert (await sub.info()).status == "canceled"
            asked = [fact for fact in await facts(sub) if isinstance(fact, RunCancelRequested)]
            assert [fact.reason for fact in asked] == ["parent-canceled"]
    assert world.now_us() < 5 * SECOND_US


@virtually
@pytest.mark.parametrize("on_cancel", ["settle", "leave"])
async def test_a_cancel_may_leave_children_alone(system: VirtualSystem, on_cancel: str) -> None:
    """B-21: `settle` waits for their own end and takes their result; `leave` goes on at once."""
    world, gate = World(system), Gate()

    async def body(inv: Inv) -> str:
        await gate()
        return inv.input

    child = work(body)
    parent = one(child, on_cancel=on_cancel)
    async with world.engine(app(parent, child)) as engine:
        run = await waiting_parent(engine, parent)
        await gate.reached.wait()
        await run.cancel()
        if on_cancel == "settle":
            await system.sleep(5)
            assert (await run.info()).status == "ready"
            gate.go.set()
        result = await run.result()
        [sub] = await children(engine)
        assert isinstance(result, Succeeded if on_cancel == "settle" else Canceled)
        assert "RunCancelRequested" not in await names(sub)
        gate.go.set()
        assert isinstance(await sub.result(), Succeeded)


@virtually
async def test_a_cancel_that_comes_while_children_are_submitted_reaches_them(system: VirtualSystem) -> None:
    """R-12, R-16: the parent is owned then, and asks them once it rests."""
    world = World(system)
    child = work(never)
    parent = many(child)
    async with world.engine(app(parent, child), around=Gated) as engine:
        store = world.stores[-1]
        assert isinstance(store, Gated)
        created = asyncio.Event()
        original = store.append

        def append(sent: Any, /) -> Any:  # the wave's submissions wait; the cancel goes by another store
            if sent.new is not None and sent.new.pipeline == "work" and not created.is_set():
                created.set()
                store.shut("append")
            return original(sent)

        vars(store)["append"] = append
        run = await engine.submit(parent, "a b c")
        await created.wait()
        async with world.client(app(parent, child)) as client:
            await client.cancel(run.id)
        store.open_gate("append")
        assert isinstance(await run.result(timeout=60), Canceled)
        assert {(await sub.info()).status for sub in await children(engine)} == {"canceled"}


@virtually
async def test_an_operator_cancels_a_child(system: VirtualSystem) -> None:
    """B-21: to the parent it is a child that failed, by its kind `canceled`."""
    world = World(system)
    child = work(never)
    parent = one(child)
    async with world.engine(app(parent, child)) as engine:
        run = await waiting_parent(engine, parent)
        [sub] = await children(engine)
        await sub.cancel(reason="not needed")
        result = await run.result()
        assert isinstance(result, (Failed, Canceled))
        assert (result.failure.reason, result.failure.message) == (
            "child-failed",
            "its child run is canceled: " + result.failure.cause.message,  # type: ignore[union-attr]  # fails if it is None
        )


@virtually
async def test_the_deadline_of_a_parent_cancels_its_children(system: VirtualSystem) -> None:
    """R-12, B-21."""
    world = World(system)
    child = work(never)
    parent = one(child)
    async with world.engine(app(parent, child)) as engine:
        run = await waiting_parent(engine, parent, deadline=_at(60))
        result = await run.result()
        assert isinstance(result, Canceled)
        [sub] = await children(engine)
        assert (await sub.info()).status == "canceled"
    assert 60 * SECOND_US <= world.now_us() < 70 * SECOND_US


@virtually
async def test_a_held_parent_looks_when_it_is_released_and_keeps_its_children_till_then(system: VirtualSystem) -> None:
    """R-17, R-9, R-16: retention does not take what it has yet to read."""
    world, gate = World(system), Gate()

    async def body(inv: Inv) -> str:
        await gate()
        return inv.input

    child = work(body)
    parent = one(child)
    async with world.engine(app(parent, child)) as engine:
        run = await waiting_parent(engine, parent)
        await gate.reached.wait()
        await run.hold(note="wait")
        gate.go.set()
        [sub] = await children(engine)
        await sub.result()
        await system.sleep(1_000)
        assert (await run.info()).status == "held"
        assert await engine.store.count_ended(system.now_us()) == 0
        await run.release()
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == "x"
        assert await engine.store.count_ended(system.now_us() + 1) == 2


@virtually
async def test_a_held_child_keeps_its_parent_waiting(system: VirtualSystem) -> None:
    """R-17."""
    world = World(system)
    child = work()
    parent = one(child)
    async with world.engine(app(parent, child)) as engine:
        await engine.hold_pipeline("work")
        run = await waiting_parent(engine, parent)
        await system.sleep(1_000)
        assert (await run.info()).status == "ready"
        await engine.release_pipeline("work")
        assert isinstance(await run.result(), Succeeded)


@virtually
async def test_a_parent_that_is_abandoned_leaves_its_children(system: VirtualSystem) -> None:
    """R-17: they go on, and nobody reads how they end."""
    world, gate = World(system), Gate()

    async def body(inv: Inv) -> str:
        await gate()
        return inv.input

    child = work(body)
    parent = one(child)
    async with world.engine(app(parent, child)) as engine:
        run = await waiting_parent(engine, parent)
        await gate.reached.wait()
        await run.abandon(note="given up", force=True)
        assert (await run.info()).status == "failed"
        gate.go.set()
        [sub] = await children(engine)
        assert isinstance(await sub.result(), Succeeded)
        assert await engine.store.anybody_waits() is False


# --- redeployments


async def _parent_that_waits(world: World, parent: Texts, child: Texts, input: str = "x") -> str:
    """A parent whose children wait at a step that fails; the engine is gone then."""
    async with world.engine(app(parent, child)) as engine:
        await engine.hold_pipeline(child.id)
        return (await waiting_parent(engine, parent, input)).id


@step("tail/v1")
async def tail(inv: Inv) -> None: ...


def edited(*steps: Any) -> Texts:
    """The parent, as it is deployed next."""
    return Pipeline(id="outer", input=str, deps=object, steps=steps, output=nothing)


@virtually
async def test_a_child_step_that_is_removed_makes_its_parent_invalid_until_it_is_back(system: VirtualSystem) -> None:
    """E-3, B-21, R-9, R-16: what ended meanwhile is there to be read."""
    world, gate = World(system), Gate()

    async def body(inv: Inv) -> str:
        if inv.input != "a":
            await gate()
        return inv.input

    child = work(body)
    parent = many(child, concurrency=2)
    run_id = await _parent_that_waits(world, parent, child, "a b c")
    async with world.engine(app(edited(tail), child)) as engine:
        await engine.release_pipeline(child.id)
        await until(await engine.run(run_id), "invalid")  # woken by the end of the first
        gate.go.set()
        subs = await children(engine)
        assert [type(await sub.result()) for sub in subs] == [Succeeded, Succeeded]
        await system.sleep(100)
        assert await engine.store.count_ended(system.now_us()) == 0
    async with world.engine(app(parent, child)) as engine:
        result = await (await engine.run(run_id)).result()
        assert isinstance(result, Succeeded)
        assert result.output == ["a", "b", "c"]
        assert {sub.id for sub in subs} < {sub.id for sub in await children(engine)}


@virtually
async def test_another_shape_under_its_id_makes_the_parent_invalid(system: VirtualSystem) -> None:
    """E-3: a handler cannot go on where a child run was begun."""
    world = World(system)
    child = work()
    run_id = await _parent_that_waits(world, one(child), child)

    @step("sub/v1")
    async def sub(inv: Inv) -> None: ...

    async with world.engine(app(edited(sub), child)) as engine:
        await engine.release_pipeline(child.id)
        info = await until(await engine.run(run_id), "invalid")
        assert info.reason.startswith("shape-changed")


@virtually
async def test_a_retired_child_step_finishes_what_it_began(system: VirtualSystem) -> None:
    """E-4, B-21: a run that waits there goes on; a new one passes by."""
    world = World(system)
    child = work()
    run_id = await _parent_that_waits(world, one(child), child)
    made: Any = Child("sub/v1", pipeline=child, input=lambda inv: inv.input)
    async with world.engine(app(edited(retired(made), tail), child)) as engine:
        await engine.release_pipeline(child.id)
        assert isinstance(await (await engine.run(run_id)).result(), Succeeded)
        fresh = await engine.submit(edited(retired(made), tail), "new")
        assert isinstance(await fresh.result(), Succeeded)
        assert len(await children(engine)) == 1


@virtually
async def test_a_child_follows_the_deployments_of_its_own_pipeline(system: VirtualSystem) -> None:
    """B-21, D-1; and what was settled when the step opened stays [B-20]."""
    world = World(system)
    run_id = await _parent_that_waits(world, one(work()), work())
    newer = work(lambda inv: f"newer {inv.input}")
    async with world.engine(app(one(newer, input=lambda inv: "another"), newer)) as engine:
        await engine.release_pipeline("work")
        result = await (await engine.run(run_id)).result()
        assert isinstance(result, Succeeded)
        assert result.output == "newer x"


# --- crashes


@virtually
@pytest.mark.parametrize("nth", range(1, 13))
async def test_a_crash_at_every_append_submits_no_child_twice(system: VirtualSystem, nth: int) -> None:
    """B-21, I-1, R-16: before each append in turn the process dies; the next one finishes the work, each child once."""
    world = World(system)
    ran: list[str] = []

    def body(inv: Inv) -> str:
        ran.append(inv.run_id)
        return inv.input

    child = work(body)
    parent = many(child, concurrency=2)
    build = app(parent, child, drain_timeout=0)
    run_id = ""
    async with world.engine(build, around=Failing) as engine:
        store = world.stores[-1]
        assert isinstance(store, Failing)
        run = await engine.submit(parent, "a b c")
        run_id = run.id
        store.fail_nth("append", nth, StoreUnavailable("the process is gone"))
        await system.sleep(1)
        store.fail_if("append", lambda _: True, StoreUnavailable("the process is gone"))
        await system.sleep(1)
        store.abort()
    async with world.engine(build) as engine:
        run = await engine.run(run_id)
        result = await run.result(timeout=3_600)
        assert isinstance(result, Succeeded)
        assert result.output == ["a", "b", "c"]
        subs = await children(engine)
        assert len(subs) == 3
        assert {sub.id for sub in subs} == set(ran)
        assert (await names(run)).count("BoundaryOpened") == 1
        assert (await engine.verify()).findings == ()


def test_another_process_goes_on_with_the_children(tmp_path: Path) -> None:
    """R-4, B-21: all of them are in the file; a child that was interrupted runs again, and is not submitted again."""
    started = asyncio.Event()

    async def stuck(inv: Inv) -> str:
        started.set()
        await asyncio.Event().wait()
        return inv.input

    async def first() -> str:
        child = work(stuck)
        parent = many(child)
        async with app(parent, child, drain_timeout=0).engine(store=SqliteStore(tmp_path / "store.db")) as engine:
            run = await waiting_parent(engine, parent, "a b")
            await started.wait()
            return run.id

    async def second(run_id: str) -> None:
        child = work()
        async with app(many(child), child).engine(store=SqliteStore(tmp_path / "store.db")) as engine:
            result = await engine.result(run_id, timeout=30)
            assert isinstance(result, Succeeded)
            output: Any = result.output
            assert (output, len(await children(engine))) == (["A", "B"], 2)
            assert (await engine.verify()).findings == ()

    asyncio.run(second(asyncio.run(first())))
