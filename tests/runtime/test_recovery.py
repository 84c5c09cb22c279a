"""Trouble inside the engine: a bug, a store that does not answer, hurts one run and not for long [R-8, R-16]."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from perdure import Canceled, Engine, Retry, StoreUnavailable, Succeeded, step
from perdure.core.facts import OperationReserved
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Failing, Gate, Inv, Line, World, app, line, names, until, virtually


class Bug(RuntimeError):
    """What nobody expects."""


def three_steps(effects: list[str]) -> Line:
    """A pipeline that notes what it does."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        effects.append("one")

    @step("two/v1")
    async def two(inv: Inv) -> None:
        effects.append("two")
        if inv.attempt == 1:
            raise OSError("down")

    @step("three/v1")
    async def three(inv: Inv) -> None:
        effects.append("three")

    return line(one, two, three)


def failing(world: World) -> Failing:
    """The store of the engine that runs."""
    store = world.stores[-1]
    assert isinstance(store, Failing)
    return store


@pytest.mark.parametrize("error", [Bug("a bug"), StoreUnavailable("no answer"), asyncio.CancelledError("stray")])
@pytest.mark.parametrize("nth", range(1, 6))
@virtually
async def test_any_append_may_fail_and_the_run_goes_on_without_a_restart(
    system: VirtualSystem, nth: int, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """R-16: after an unexpected error the run has a due time; the work that was not recorded is done again [M-3]."""
    effects: list[str] = []
    pipeline = three_steps(effects)
    world = World(system)
    async with world.engine(app(pipeline), around=Failing) as engine:
        run = await engine.submit(pipeline, "x", delay=1)
        failing(world).fail_nth("append", nth, error)
        assert isinstance(await run.result(timeout=600), Succeeded)
        assert [name for name in effects if name == "three"] != []
        assert engine.running == 0
        assert (await engine.verify()).findings == ()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING and run.id in record.getMessage()]


@pytest.mark.parametrize("call", ["load", "due", "next_due_us", "set_index"])
@virtually
async def test_any_call_may_fail_and_the_run_goes_on_without_a_restart(system: VirtualSystem, call: str) -> None:
    """R-16, R-8"""
    effects: list[str] = []
    pipeline = three_steps(effects)
    world = World(system)
    async with world.engine(app(pipeline), around=Failing) as engine, world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x", delay=1)
        store = failing(world)
        store.fail_nth("append", 2, Bug("so that the run has to be let go"))
        store.plan(call, *[Bug(f"{call} {n}") for n in range(3)], *[StoreUnavailable(f"{call}") for _ in range(3)])
        assert isinstance(await run.result(timeout=3600), Succeeded)
        await engine.idle()
        assert engine.running == 0


@virtually
async def test_a_bug_that_stays_is_met_with_growing_distance(system: VirtualSystem) -> None:
    """R-16: it does not spin, and after five lost attempts the run is held [M-5]."""
    effects: list[str] = []
    pipeline = three_steps(effects)
    world = World(system)
    async with world.engine(app(pipeline), around=Failing) as engine:
        run = await engine.submit(pipeline, "x", delay=1)
        failing(world).fail_if("append", lambda append: b"OperationSucceeded" in append.facts, Bug("always"))
        info = await until(run, "held")
        assert info.reason == "lost-attempts"
        assert effects == ["one"] * 5
        starts = [f.at_us for f in await run.journal() if isinstance(f.fact, OperationReserved)]
        waits = [after - before for before, after in itertools.pairwise(starts)]
        assert all(wait_us >= 1_000_000 for wait_us in waits)
        assert waits == sorted(waits)


@virtually
async def test_a_submission_that_fails_inside_tells_its_caller(system: VirtualSystem) -> None:
    """I-1: and leaves nothing behind that is owned."""
    pipeline = three_steps([])
    world = World(system)
    async with world.engine(app(pipeline), around=Failing) as engine:
        failing(world).plan("append", Bug("now"))
        with pytest.raises(Bug):
            await engine.submit(pipeline, "x")
        assert (await engine.list(), engine.running) == ([], 0)
        assert isinstance(await (await engine.submit(pipeline, "x")).result(), Succeeded)


@virtually
async def test_nothing_is_lost_when_the_engine_stops_amid_trouble(system: VirtualSystem) -> None:
    """R-6, R-16: it does not wait for ever either; the next engine goes on."""
    effects: list[str] = []
    pipeline = three_steps(effects)
    world = World(system)
    async with world.engine(app(pipeline), around=Failing) as engine:
        run = await engine.submit(pipeline, "x", delay=1)
        store = failing(world)
        store.fail_nth("append", 2, Bug("once"))
        store.fail_if("load", lambda _: True, StoreUnavailable("for good"))
        store.fail_if("set_index", lambda _: True, StoreUnavailable("for good"))
        await system.sleep(5)
        before_us = world.now_us()
    assert world.now_us() - before_us < 60_000_000
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)


@virtually
async def test_an_outcome_waits_for_a_store_that_cannot_be_read(system: VirtualSystem) -> None:
    """R-8: a handler's success is not thrown away because a read failed after it."""
    gate = Gate()
    effects: list[int] = []

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()
        effects.append(inv.attempt)

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline), around=Failing), world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x")
        await gate.until(1)
        store = failing(world)
        store.plan("load", *[StoreUnavailable("no answer") for _ in range(8)])
        await client.hold(run.id, actor="me")  # the engine has to read it
        gate.go.set()
        await until(run, "held")
        assert effects == [1]
        assert "OperationSucceeded" in await names(run)
        await run.release(actor="me")
        assert isinstance(await run.result(), Succeeded)


@virtually
async def test_a_cancel_is_noticed_although_the_first_look_failed(system: VirtualSystem) -> None:
    """R-16, R-12: also where the list of runs that need attention could not be read."""
    gate = Gate()

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline), around=Failing) as engine, world.client(app(pipeline)) as client:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        failing(world).plan("attention", StoreUnavailable("no answer"), Bug("once"))
        await client.cancel(run.id, actor="me")
        assert isinstance(await run.result(timeout=120), Canceled)


@pytest.mark.parametrize("poison_s", [0, 5, 15])
@virtually
async def test_an_operation_that_kills_its_worker_takes_no_other_along(system: VirtualSystem, poison_s: float) -> None:
    """M-5: one poison among twenty long steps. It is held after five losses; all the others finish, at their pace."""
    world = World(system)
    deaths: list[int] = []
    died = asyncio.Event()
    engines: list[Engine] = []

    @step("long/v1")
    async def long(inv: Inv) -> None:
        if inv.input == "poison":
            await system.sleep(poison_s)
            deaths.append(world.now_us())
            engines[-1].abort()
            died.set()
        await system.sleep(60)

    pipeline = line(long)
    patient = app(pipeline, retry=Retry())
    async with world.client(patient) as client:
        runs = [await client.submit(pipeline, "poison" if n == 7 else "harmless") for n in range(20)]
        while len(deaths) < 5:
            async with world.engine(patient) as engine:
                engines.append(engine)
                died.clear()
                await died.wait()
        async with world.engine(patient) as engine:
            info = await until(await engine.run(runs[7].id), "held")
            assert info.reason == "lost-attempts"
            for n, run in enumerate(runs):
                if n != 7:
                    assert isinstance(await engine.result(run.id), Succeeded)
            await engine.idle()
        assert len(deaths) == 5
        assert world.now_us() < 3600 * 1_000_000
