"""Cancellation, places that stay taken, and every event in every state [R-12, R-17, J-6]."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from perdure import (
    Canceled,
    Client,
    ConflictError,
    Engine,
    Event,
    Fail,
    InvalidRun,
    KeyTaken,
    NotAllowed,
    Retry,
    Succeeded,
    UnwindInvocation,
    connect,
    step,
)
from perdure.storage.memory import MemoryStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, Line, World, app, line, names, until, virtually

Call: TypeAlias = Callable[[Client, str], Awaitable[None]]


@pytest.mark.parametrize("holder", ["queued", "running", "waiting"])
@virtually
async def test_canceling_the_holder_of_a_place_frees_it_in_every_state(system: VirtualSystem, holder: str) -> None:
    """R-12, M-1: the place in the engine and the slot of the resource go with the run that is canceled."""
    gate = Gate()

    @step("one/v1", retry=Retry(initial=9000, cap=9000))
    async def one(inv: Inv) -> None:
        if inv.input == "holder" and holder == "waiting":
            raise OSError("wait for a retry")
        if inv.input in ("holder", "blocker"):
            await gate()

    def resource(input: str) -> str:
        return "blocker" if input == "blocker" else "one"

    pipeline = line(one, resource=resource)
    world = World(system)
    async with world.engine(app(pipeline), concurrency=1) as engine:
        blocker = await engine.submit(pipeline, "blocker") if holder == "queued" else None
        run = await engine.submit(pipeline, "holder")
        if holder == "waiting":
            await until(run, "ready")
        await run.cancel()
        if blocker is not None:
            await blocker.cancel()
        assert isinstance(await run.result(), Canceled)
        following = await engine.submit(pipeline, "next")
        assert isinstance(await following.result(), Succeeded)
        assert world.now_us() == 0


@virtually
async def test_a_worker_killed_between_claim_and_start_strands_neither_place_nor_slot(system: VirtualSystem) -> None:
    """R-7, M-1"""
    gate = Gate()

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()

    def resource(input: str) -> str:
        return "one"

    pipeline = line(one, resource=resource)
    world = World(system)
    engines: list[Engine] = []

    def killer(event: Event) -> None:
        if event.kind == "claimed":  # durable, and the handler has not been called yet
            engines[0].abort()

    async with world.engine(app(pipeline), concurrency=1, observers=[killer]) as engine:
        engines.append(engine)
        run = await engine.submit(pipeline, "x")
        await system.sleep(10)
        assert gate.passes == 0
        assert (await names_in(world, run.id))[-1] == "OperationReserved"
    gate.go.set()
    async with world.engine(app(pipeline), concurrency=1) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)
        assert (await engine.submit(pipeline, "other")).created


async def names_in(world: World, run_id: str) -> list[str]:
    """The journal of a run, by whoever is no engine."""
    async with connect(MemoryStore(world.data), system=world.system) as client:
        return [type(recorded.fact).__name__ for recorded in await client.journal(run_id)]


@virtually
async def test_a_cancel_at_any_moment_stops_the_run_at_the_next_boundary(system: VirtualSystem) -> None:
    """R-12: it does not get lost because a step completed just then; nothing is reserved after it but unwinding."""
    dice = random.Random(20)

    def make(number: int) -> Any:
        @step(f"step-{number}/v1")
        async def one(inv: Inv) -> None:
            for _ in range(dice.randrange(3)):
                await asyncio.sleep(0)

        return one

    pipeline = line(*(make(number) for number in range(60)))
    async with World(system).engine(app(pipeline)) as engine:

        async def one(number: int) -> int:
            run = await engine.submit(pipeline, str(number))
            for _ in range(dice.randrange(200)):
                await asyncio.sleep(0)
            try:
                await run.cancel()
            except KeyTaken:
                return 60
            result = await run.result()
            journal = await names(run)
            after = journal[journal.index("RunCancelRequested") :]
            assert "OperationReserved" not in after
            done = journal.count("OperationSucceeded")
            assert isinstance(result, Canceled) or done == 60  # it came while the last step was succeeding
            return done

        reached = await asyncio.gather(*(one(number) for number in range(100)))
        assert len(set(reached)) > 10  # they were caught at many places
        assert (await engine.verify()).findings == ()


async def ask_cancel(client: Client, run_id: str) -> None:
    await client.cancel(run_id)


async def ask_hold(client: Client, run_id: str) -> None:
    await client.hold(run_id)


async def ask_release(client: Client, run_id: str) -> None:
    await client.release(run_id)


async def ask_retry(client: Client, run_id: str) -> None:
    await client.retry(run_id)


async def ask_value(client: Client, run_id: str) -> None:
    await client.resolve(run_id, value=None)


async def ask_skip(client: Client, run_id: str) -> None:
    await client.resolve(run_id, skip=True)


async def ask_fail(client: Client, run_id: str) -> None:
    await client.resolve(run_id, fail="why")


EVENTS: dict[str, Call] = {
    "cancel": ask_cancel,
    "hold": ask_hold,
    "release": ask_release,
    "retry": ask_retry,
    "value": ask_value,
    "skip": ask_skip,
    "fail": ask_fail,
}
STATES = ("delayed", "running", "backing off", "held", "held by policy", "invalid", "canceling", "unwinding", "ended")


def in_every_state(state: str, gate: Gate) -> Line:
    """A pipeline whose run comes to that state."""

    async def undo(inv: UnwindInvocation[str, object], value: None) -> None:
        if state in ("unwinding", "canceling"):
            await gate()

    @step("first/v1", unwind=undo)
    async def first(inv: Inv) -> None:
        pass

    @step("second/v1", retry=Retry(max_attempts=1 if state == "held by policy" else None, initial=5000, cap=5000))
    async def second(inv: Inv) -> None:
        match state:
            case "running" | "canceling":
                await gate()
            case "backing off" | "held by policy":
                if not gate.go.is_set():
                    raise OSError("down")
            case "unwinding":
                raise Fail("no")
            case _:
                pass

    def when(inv: Inv) -> bool:
        if state == "invalid" and not gate.go.is_set():
            raise ValueError("not yet")
        return True

    @step("third/v1", when=when)
    async def third(inv: Inv) -> None:
        pass

    return line(first, second, third)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("beside", [False, True], ids=["engine", "client"])
@virtually
async def test_every_event_in_every_state_is_defined(
    system: VirtualSystem, state: str, event: str, beside: bool
) -> None:
    """R-12, R-17, J-6: it is accepted or refused by name; no wedge, no crash; and the run can be brought to its end."""
    gate = Gate()
    pipeline = in_every_state(state, gate)
    world = World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        delayed = state in ("delayed", "held")
        run = await engine.submit(pipeline, "x", delay=5000 if delayed else None)
        match state:
            case "held":
                await run.hold()
            case "running" | "unwinding":
                await gate.until(1)
            case "canceling":
                await gate.until(1)
                await run.cancel()
                await gate.until(2)
            case "backing off":
                await until(run, "ready")
            case "held by policy":
                await until(run, "held")
            case "invalid":
                await until(run, "invalid")
            case "ended":
                await run.result()
            case _:
                pass
        door = client if beside else engine
        try:
            await EVENTS[event](door, run.id)
            refused: ConflictError | None = None
        except ConflictError as error:
            refused = error
        if state == "ended":
            assert isinstance(refused, KeyTaken)
        if event == "cancel" and state != "ended":
            assert refused is None
        if event == "release" and not state.startswith("held"):
            assert isinstance(refused, KeyTaken if state == "ended" else NotAllowed)
        await system.sleep(1)
        gate.go.set()
        for _ in range(5):  # whatever it waits for now, an operator can let it go on
            info = await run.info()
            if info.ended:
                break
            if info.status in ("held", "invalid", "ready"):
                await run.retry()
            await system.sleep(1)
        try:
            result = await run.result(timeout=60)
        except InvalidRun:
            raise AssertionError("it stayed invalid") from None
        if event == "cancel" and state not in ("ended", "unwinding"):
            assert isinstance(result, Canceled)
        assert (await engine.verify()).findings == ()
        assert engine.running == 0


@virtually
async def test_retention_takes_no_run_that_executes(system: VirtualSystem) -> None:
    """R-9: nothing of a live run is removed, however old it is; no orphan has effects afterwards."""
    gate = Gate()
    effects: list[str] = []

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()
        effects.append(inv.input)

    pipeline = line(one)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await system.sleep(100_000)
        assert (await engine.gc(1)).removed == 0
        await run.cancel()
        assert isinstance(await run.result(), Canceled)
        await system.sleep(10)
        assert (await engine.gc(1)).removed == 1
        gate.go.set()
        await system.sleep(10)
        assert effects == []
