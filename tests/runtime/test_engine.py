"""An engine's life: it starts without looking at everything, drains, stops, and leaves nothing behind [R-6, R-7]."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Canceled,
    DefinitionError,
    Invocation,
    Pipeline,
    Retry,
    StoreInUse,
    StoreUnavailable,
    Succeeded,
    nothing,
    step,
)
from perdure.core.facts import OperationReserved, OperationRetryScheduled, OperationSucceeded
from perdure.storage.memory import MemoryStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import (
    SECOND_US,
    Events,
    Failing,
    Gate,
    Inv,
    Line,
    World,
    app,
    facts,
    line,
    names,
    until,
    virtually,
)


def waits(gate: Gate) -> Line:
    """A pipeline of two steps, the first waits."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()

    @step("two/v1")
    async def two(inv: Inv) -> None:
        pass

    return line(one, two)


# --- drain


@virtually
async def test_a_drain_waits_for_running_attempts_and_starts_nothing_more(system: VirtualSystem) -> None:
    """R-6: the attempt that runs succeeds, the next step is not begun, the run is due for the next engine."""
    gate = Gate()
    pipeline = waits(gate)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        later = await engine.submit(pipeline, "y", delay=1)
        await gate.until(1)
        draining = asyncio.ensure_future(engine.drain(30))
        await system.sleep(20)
        assert not draining.done()
        after = await engine.submit(pipeline, "z")  # durable, but not started here
        gate.go.set()
        await draining
        assert engine.running == 0
        assert (await names(run))[-1] == "OperationSucceeded"
        assert [(await r.info()).status for r in (run, later, after)] == ["ready"] * 3
        assert gate.passes == 1
    async with world.engine(app(pipeline)) as engine:
        for old in (run, later, after):
            assert isinstance(await engine.result(old.id), Succeeded)
        journal = await facts(await engine.run(run.id))
        assert not [fact for fact in journal if isinstance(fact, OperationRetryScheduled)]


@virtually
async def test_after_the_drain_time_attempts_are_interrupted(system: VirtualSystem) -> None:
    """R-6: no failure, no backoff: the next engine starts the attempt at once."""
    gate = Gate()
    pipeline = waits(gate)
    world = World(system)
    async with world.engine(app(pipeline), drain_timeout=timedelta(seconds=30)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
    assert world.now_us() == 30_000_000
    gate.go.set()
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)
        assert world.now_us() == 30_000_000
        journal = await facts(await engine.run(run.id))
        [scheduled] = [fact for fact in journal if isinstance(fact, OperationRetryScheduled)]
        assert (scheduled.cause, scheduled.failure) == ("interrupted", None)


@virtually
async def test_an_interrupted_handler_may_clean_up_and_even_succeed(system: VirtualSystem) -> None:
    """R-6: what it returns within the grace counts; one that does not end is left behind and is lost."""
    released: list[str] = []

    @step("one/v1")
    async def one(inv: Inv) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await system.sleep(1 if inv.input == "quick" else 3600)
            released.append(inv.input)

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline), drain_timeout=0) as engine:
        quick, slow = [await engine.submit(pipeline, input) for input in ("quick", "slow")]
        await asyncio.sleep(0)
    assert released == ["quick"]
    assert world.now_us() <= 15_000_000
    async with world.client(app(pipeline)) as client:
        assert isinstance(await client.result(quick.id), Succeeded)
        assert (await client.info(slow.id)).status == "running"
        assert (await client.verify()).findings == ()


@virtually
async def test_stopping_twice_is_stopping_once(system: VirtualSystem) -> None:
    """R-6"""
    gate = Gate()
    pipeline = waits(gate)
    async with World(system).engine(app(pipeline), drain_timeout=5) as engine:
        await engine.submit(pipeline, "x")
        await asyncio.gather(engine.stop(), engine.stop())
        await engine.stop()
        with pytest.raises(StoreUnavailable):
            await engine.submit(pipeline, "y")


@virtually
async def test_a_stop_that_is_cancelled_stops_at_once_and_lets_go_of_the_store(system: VirtualSystem) -> None:
    """R-6: as a second signal would; the next engine can start, and the attempt counts as lost."""
    gate = Gate()
    pipeline = waits(gate)
    world = World(system)

    async def serve() -> None:
        async with world.engine(app(pipeline), drain_timeout=3600) as engine:
            await engine.submit(pipeline, "x")
            await gate.until(1)

    serving = asyncio.ensure_future(serve())
    await gate.until(1)
    await system.sleep(10)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert world.now_us() == 10_000_000
    gate.go.set()
    async with world.engine(app(pipeline)) as engine:
        [info] = await engine.list()
        assert isinstance(await engine.result(info.run_id), Succeeded)


@virtually
async def test_nobody_waits_for_a_result_that_can_not_come_any_more(system: VirtualSystem) -> None:
    """R-16, R-8: when the engine or the client is gone, a waiting caller is told."""
    pipeline = waits(Gate())
    world = World(system)
    run_id = ""
    for way in ("stop", "abort"):
        async with world.engine(app(pipeline), drain_timeout=0) as engine:
            run_id = (await engine.submit(pipeline, "x")).id
            waiting = asyncio.ensure_future(engine.result(run_id))
            await asyncio.sleep(0)
            if way == "abort":
                engine.abort()
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(10):
                await waiting
    async with world.client(app(pipeline)) as client:
        waiting = asyncio.ensure_future(client.result(run_id))
        await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(10):
            await waiting


# --- what it leaves behind


async def test_a_stopped_engine_leaves_no_task_and_no_thread(tmp_path: object) -> None:
    """R-6: after work of every kind, on a real file."""
    url = f"sqlite:///{tmp_path}/left.db"

    @step("async/v1")
    async def one(inv: Inv) -> None:
        await inv.memo("a", lambda: 1, type=int)

    @step("sync/v1")
    def two(inv: Inv) -> None:
        if inv.attempt == 1:
            raise OSError("down")

    @step("last/v1", timeout=30)
    async def three(inv: Inv) -> None:
        pass

    pipeline = line(one, two, three)
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    async with app(pipeline).engine(store=url) as engine, app(pipeline).client(store=url) as client:
        runs = [await engine.submit(pipeline, str(n), deadline=timedelta(hours=1)) for n in range(20)]
        runs += [await client.submit(pipeline, str(n)) for n in range(20)]
        parked = await engine.submit(pipeline, "parked", delay=3600)
        for run in runs:
            assert isinstance(await run.result(timeout=60), Succeeded)
        await parked.cancel()
        assert isinstance(await parked.result(timeout=60), Canceled)
    assert asyncio.all_tasks() == tasks
    for thread in set(threading.enumerate()) - threads:
        thread.join(20)
        assert not thread.is_alive(), thread


@virtually
async def test_starting_and_stopping_again_and_again_gathers_nothing(system: VirtualSystem) -> None:
    """R-6"""
    pipeline = waits(Gate())
    world = World(system)
    tasks = asyncio.all_tasks()
    for _ in range(20):
        async with world.engine(app(pipeline)):
            pass
    assert asyncio.all_tasks() == tasks
    assert world.data.stores == []


# --- start


@virtually
async def test_a_second_engine_is_refused_and_disturbs_nobody(system: VirtualSystem) -> None:
    """R-2: the error names the holder; dependencies that were opened are closed again."""
    gate = Gate()
    pipeline = waits(gate)
    opened: list[str] = []

    @asynccontextmanager
    async def deps() -> AsyncGenerator[None]:
        opened.append("opened")
        try:
            yield None
        finally:
            opened.append("closed")

    other = _other()
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(StoreInUse, match=engine.worker):
            async with App(other.bind(deps)).engine(store=MemoryStore(world.data), system=system):
                raise AssertionError("two owners")
        assert opened == ["opened", "closed"]
        gate.go.set()
        assert isinstance(await run.result(), Succeeded)


def _other() -> Pipeline[str, None, None]:
    @step("other/v1")
    async def other(inv: Invocation[str, None]) -> None:
        pass

    return Pipeline(id="other", input=str, deps=type(None), steps=(other,), output=nothing)


@virtually
async def test_dependencies_outlive_the_drain(system: VirtualSystem) -> None:
    """R-6: a handler that is still ending has what it needs."""
    order: list[str] = []
    gate = Gate()

    @asynccontextmanager
    async def deps() -> AsyncGenerator[list[str]]:
        order.append("opened")
        yield order
        order.append("closed")

    @step("use/v1")
    async def use(inv: Invocation[str, list[str]]) -> None:
        await gate()
        inv.deps.append("used")

    pipeline: Pipeline[str, list[str], None] = Pipeline(
        id="line", input=str, deps=list[str], steps=(use,), output=nothing
    )
    async with App(pipeline.bind(deps)).engine(store=MemoryStore(), system=system) as engine:
        await engine.submit(pipeline, "x")
        await gate.until(1)
        asyncio.get_running_loop().call_later(10, gate.go.set)
    assert order == ["opened", "used", "closed"]


@virtually
async def test_an_engine_that_cannot_start_closes_what_it_opened(system: VirtualSystem) -> None:
    """R-2: the store can be used by the next one."""
    pipeline = waits(Gate())
    world = World(system)

    class Refusing(Failing):
        async def take_over(self, now_us: int, /) -> int:
            raise StoreUnavailable("not now")

    with pytest.raises(StoreUnavailable, match="not now"):
        async with world.engine(app(pipeline), around=Refusing):
            raise AssertionError("started")
    async with world.engine(app(pipeline)) as engine:
        assert engine.running == 0


@virtually
async def test_runs_of_an_owner_that_was_lost_go_on_without_being_asked(system: VirtualSystem) -> None:
    """R-7: recovery is built in and on; committed steps are not run again."""
    gate = Gate()
    calls: list[str] = []

    @step("one/v1")
    async def one(inv: Inv) -> None:
        calls.append("one")

    @step("two/v1")
    async def two(inv: Inv) -> None:
        calls.append("two")
        await gate()

    @step("three/v1")
    async def three(inv: Inv) -> None:
        calls.append("three")

    pipeline = line(one, two, three)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        engine.abort()
    gate.go.set()
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)
        assert calls == ["one", "two", "two", "three"]
        journal = await facts(await engine.run(run.id))
        assert [f.attempt for f in journal if isinstance(f, OperationReserved)] == [1, 1, 2, 1]
        assert [f.attempt for f in journal if isinstance(f, OperationSucceeded)] == [1, 2, 1]


@virtually
async def test_idle_waits_for_what_is_due_and_not_for_what_is_not(system: VirtualSystem) -> None:
    """R-7"""
    gate = Gate()
    pipeline = waits(gate)
    async with World(system).engine(app(pipeline), concurrency=1) as engine:
        await engine.idle()
        runs = [await engine.submit(pipeline, str(n)) for n in range(4)]
        await engine.submit(pipeline, "x", delay=3600)
        idle = asyncio.ensure_future(engine.idle())
        await system.sleep(5)
        assert not idle.done()
        gate.go.set()
        await idle
        assert [(await run.info()).status for run in runs] == ["succeeded"] * 4


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"concurrency": True}, {"drain_timeout": -1}, {"drain_timeout": float("nan")}]
)
@virtually
async def test_options_out_of_range_are_refused(system: VirtualSystem, options: dict[str, Any]) -> None:
    """P-2: and the store is not left open."""
    world = World(system)
    [option] = options
    with pytest.raises(DefinitionError, match=option):
        async with world.engine(app(waits(Gate())), **options):
            raise AssertionError("started")
    assert world.data.owner is None


@virtually
async def test_a_handler_that_cannot_be_canceled_is_waited_for_once(system: VirtualSystem) -> None:
    """R-6: an engine that was drained and is left then does not begin to drain anew."""

    @step("stubborn/v1")
    async def stubborn(inv: Inv) -> None:
        until_us = system.now_us() + 600 * SECOND_US
        while system.now_us() < until_us:
            with contextlib.suppress(asyncio.CancelledError):
                await system.sleep(60)

    pipeline, events = line(stubborn), Events()
    async with World(system).engine(app(pipeline, drain_timeout=100), observers=[events]) as engine:
        await engine.submit(pipeline, "x")
        await events.until("attempt-started")
        began_us = system.now_us()
        await engine.drain()
    assert system.now_us() - began_us < 130 * SECOND_US


# --- observers


@virtually
async def test_observers_are_told_in_order_after_it_is_durable(system: VirtualSystem) -> None:
    """R-15"""
    events = Events()

    @step("one/v1", retry=Retry(initial=1, jitter=0))
    async def one(inv: Inv) -> None:
        if inv.attempt == 1:
            raise OSError("down")

    @step("two/v1")
    async def two(inv: Inv) -> None:
        pass

    pipeline = line(one, two)
    async with World(system).engine(app(pipeline), observers=[events]) as engine:
        run = await engine.submit(pipeline, "x", delay=1)
        await run.result()
        await engine.idle()
        told = [(event.kind, event.step, event.attempt) for event in events if event.run_id == run.id]
        assert told == [
            ("submitted", "", 0),
            ("claimed", "", 0),
            ("attempt-started", "one/v1", 1),
            ("retry-scheduled", "one/v1", 1),
            ("released", "", 0),
            ("claimed", "", 0),
            ("attempt-started", "one/v1", 2),
            ("attempt-succeeded", "one/v1", 2),
            ("attempt-started", "two/v1", 1),
            ("attempt-succeeded", "two/v1", 1),
            ("succeeded", "", 0),
        ]
        assert {event.pipeline for event in events} == {"line"}
        assert [event.at_us for event in events] == sorted(event.at_us for event in events)


@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError(), GeneratorExit(), SystemExit(3)])
@virtually
async def test_an_observer_that_raises_changes_nothing(
    system: VirtualSystem, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """R-15: nor does it keep the others from being told."""
    events = Events()

    def broken(event: object) -> None:
        raise error

    pipeline = waits(Gate())
    async with World(system).engine(app(pipeline), observers=[broken, events]) as engine:
        run = await engine.submit(pipeline, "x")
        await run.cancel()
        assert isinstance(await run.result(), Canceled)
        await events.until("canceled")
    assert [record for record in caplog.records if "observer failed" in record.getMessage()]


@virtually
async def test_trouble_is_told_too(system: VirtualSystem) -> None:
    """R-15: invalid, held, uncompensated, overdue, stuck."""
    events = Events()

    @step("one/v1")
    async def one(inv: Inv) -> str:
        match inv.input:
            case "invalid":
                return None  # type: ignore[return-value]  # the breach is the point
            case "stuck":
                await system.sleep(3600)
            case _:
                pass
        return "one"

    pipeline = line(one)
    world = World(system)
    async with world.client(app(pipeline)) as client:
        await client.submit(pipeline, "overdue")
    await system.sleep(120)
    async with world.engine(app(pipeline), observers=[events]) as engine:
        await events.until("overdue")
        await engine.submit(pipeline, "invalid")
        assert "contract-broken" in (await events.until("invalid")).detail
        run = await engine.submit(pipeline, "stuck")
        await events.until("stuck")
        assert world.now_us() < 120_000_000 + 3600_000_000
        await run.result()
        held = await engine.submit(pipeline, "held", delay=10)
        await held.hold(actor="me")
        await until(held, "held")


# --- deadlines and trouble


@virtually
async def test_a_deadline_acts_although_the_store_did_not_answer_just_then(system: VirtualSystem) -> None:
    """R-12, R-16"""
    pipeline = waits(Gate())
    world = World(system)
    async with world.engine(app(pipeline), around=Failing) as engine, world.client(app(pipeline)) as client:
        run = await engine.submit(pipeline, "x", deadline=timedelta(seconds=10))
        await system.sleep(9)
        store = world.stores[0]
        assert isinstance(store, Failing)
        store.plan("load", *[StoreUnavailable("no answer") for _ in range(4)])
        assert isinstance(await client.result(run.id, timeout=20), Canceled)
