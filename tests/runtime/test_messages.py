"""Messages under the engine: kept in order, consumed once, checked where they are sent [B-4, B-20, B-24]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from perdure import (
    AwaitMessage,
    Canceled,
    Engine,
    Failed,
    InvalidArgument,
    KeyTaken,
    NotAllowed,
    NotFound,
    PayloadError,
    Pipeline,
    Run,
    StoreUnavailable,
    Succeeded,
    step,
)
from perdure.core.facts import MessageReceived, OperationWoken
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import SECOND_US, Events, Failing, Gate, Inv, World, app, facts, names, until, virtually

HOUR_US = 3_600 * SECOND_US


@dataclass
class Approval:
    by: str
    amount: int = 0


approval = AwaitMessage("approval/v1", name="approval", type=Approval)
Approved = Pipeline[str, object, Any]
WAITS = "waits for message 'approval'"


@step("before/v1")
async def before(inv: Inv) -> None: ...


@step("after/v1")
async def after(inv: Inv) -> None: ...


def senders(*awaits: Any) -> Callable[[Inv], object]:
    """Who sent what these awaits consumed."""

    def read(inv: Inv) -> list[str]:
        return [inv[each].by for each in awaits]

    return read


def is_await(step: object) -> bool:
    return isinstance(step, AwaitMessage)


def state_of(step: Any) -> Callable[[Inv], Any]:
    return lambda inv: inv[step]


def approved(*steps: Any, read: Callable[[Inv], object] | None = None) -> Approved:
    """A pipeline whose output is what its await was told."""
    steps = steps or (before, approval, after)
    told = read or state_of(next(filter(is_await, steps)))
    pipeline: Approved = Pipeline(id="line", input=str, deps=object, steps=steps, output=told)
    return pipeline


def awaiting(name: str = "approval", type: Any = Approval, **options: Any) -> Approved:
    """One await, with other options."""
    return approved(before, AwaitMessage("approval/v1", name=name, type=type, **options), after)


async def kept(run: Run[Any]) -> list[tuple[str, object]]:
    """The messages in the journal."""
    return [
        (fact.name, msgspec.json.decode(fact.payload)) for fact in await facts(run) if isinstance(fact, MessageReceived)
    ]


async def waiting(engine: Engine, pipeline: Approved) -> Run[Any]:
    """A run that waits for its message."""
    run = await engine.submit(pipeline, "x")
    info = await until(run, "ready")
    assert (info.reason, info.step, info.worker) == (WAITS, "approval/v1", "")
    return run


@virtually
async def test_it_wakes_the_run_and_is_its_state(system: VirtualSystem) -> None:
    """B-24, J-16, J-12: what waits costs nothing, and nobody looks at it meanwhile."""
    world, pipeline = World(system), approved()
    async with world.engine(app(pipeline, concurrency=1)) as engine:
        run = await waiting(engine, pipeline)
        other = await engine.submit(pipeline, "other")
        await until(other, "ready")
        loads = world.stores[0].calls["load"]
        await system.sleep(86_400)
        assert world.stores[0].calls["load"] == loads
        assert (await run.info()).due_us is None
        assert await run.send("approval", Approval("ada", 3), actor="ada")
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == Approval("ada", 3)
        assert (await other.info()).reason == WAITS
        assert (await names(run))[4:10] == [
            "OperationParked",
            "SegmentSuspended",
            "MessageReceived",
            "SegmentAttemptStarted",
            "ContinuationSegmentCreated",
            "OperationWoken",
        ]
        assert (await engine.verify()).findings == ()


@virtually
async def test_one_that_comes_early_is_kept(system: VirtualSystem) -> None:
    """B-24: before the run starts, and before it comes to the await: it does not rest there at all."""
    world, pipeline = World(system), approved()
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", delay=timedelta(hours=1))
        await run.send("approval", Approval("early"))
        info = await run.info()
        assert (info.status, info.due_us) == ("ready", EPOCH_US + HOUR_US)  # it does not begin sooner
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == Approval("early")
        assert "SegmentSuspended" not in await names(run)


@virtually
async def test_two_of_one_name_go_to_two_awaits_in_their_order(system: VirtualSystem) -> None:
    """B-24: whenever they come; the first await consumes the first."""
    world = World(system)
    second = AwaitMessage("second/v1", name="approval", type=Approval)
    gate = Gate()

    @step("between/v1")
    async def between(inv: Inv) -> None:
        await gate()

    pipeline = approved(approval, between, second, read=senders(approval, second))
    async with world.engine(app(pipeline)) as engine:
        run = await waiting(engine, pipeline)
        await run.send("approval", Approval("one"))
        await run.send("approval", Approval("two"))
        await run.send("approval", Approval("three"))
        gate.go.set()
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == ["one", "two"]
        assert len(await kept(run)) == 3


@virtually
async def test_a_key_takes_effect_once(system: VirtualSystem) -> None:
    """B-24, J-4: an equal one is a duplicate, also after the end; another one is refused."""
    world = World(system)
    second = AwaitMessage("second/v1", name="approval", type=Approval)
    pipeline = approved(approval, second, read=senders(approval, second))
    async with world.engine(app(pipeline)) as engine:
        run = await waiting(engine, pipeline)
        assert await run.send("approval", Approval("one"), key="k")
        assert not await run.send("approval", msgspec.Raw(b'{"amount": 0, "by": "one"}'), key="k")
        with pytest.raises(KeyTaken, match="key 'k' was used for another message 'approval'") as taken:
            await run.send("approval", Approval("two"), key="k")
        assert taken.value.key == "message:approval:k"
        async for info in run.watch():
            if info.step == "second/v1":
                break
        assert await run.send("approval", Approval("two"), key="l")
        assert isinstance(await run.result(), Succeeded)
        assert not await run.send("approval", Approval("two"), key="l")
        with pytest.raises(KeyTaken):
            await run.send("approval", Approval("three"), key="l")
        with pytest.raises(KeyTaken, match="has ended"):
            await run.send("approval", Approval("two"), key="m")
        with pytest.raises(KeyTaken, match="has ended"):
            await run.send("approval", Approval("two"))
        assert len(await kept(run)) == 2


@virtually
async def test_what_does_not_fit_is_refused_and_leaves_nothing(system: VirtualSystem) -> None:
    """B-4, P-2, P-4."""
    world, pipeline = World(system), awaiting()
    async with world.engine(app(pipeline, payload_limit=1_000)) as engine:
        run = await waiting(engine, pipeline)
        before = await names(run)
        with pytest.raises(PayloadError, match=r"\$\.amount: Expected `int`, got `str`"):
            await run.send("approval", msgspec.Raw(b'{"by": "ada", "amount": "7"}'))
        with pytest.raises(PayloadError, match=r"\$"):
            await run.send("approval", "no approval")
        with pytest.raises(PayloadError, match=r"\$"):
            await run.send("approval")
        for name, hint in (("aproval", "did you mean 'approval'?"), ("zzz", "it awaits 'approval'")):
            with pytest.raises(InvalidArgument, match=f"awaits no message '{name}'") as refused:
                await run.send(name, Approval("ada"))
            assert hint in str(refused.value)
        for wrong in ("", "x" * 300, "a\ud800"):
            with pytest.raises(InvalidArgument):
                await run.send(wrong, Approval("ada"))
        with pytest.raises(InvalidArgument, match="key"):
            await run.send("approval", Approval("ada"), key="\ud800")
        over = Approval("x" * (1_001 - len('{"by":"","amount":0}')))
        with pytest.raises(PayloadError, match="the message has 1,001 bytes, the limit is 1,000"):
            await run.send("approval", over)
        with pytest.raises(NotFound):
            await engine.send("nothing", "approval", Approval("ada"))
        assert await names(run) == before
        fits = Approval(over.by[1:])
        await run.send("approval", fits)
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == fits


@virtually
async def test_a_hold_keeps_it_until_the_release(system: VirtualSystem) -> None:
    """R-17, B-24."""
    world, pipeline = World(system), approved()
    async with world.engine(app(pipeline)) as engine:
        run = await waiting(engine, pipeline)
        await run.hold()
        await run.send("approval", Approval("ada"))
        await system.sleep(60)
        assert (await run.info()).status == "held"
        assert "OperationWoken" not in await names(run)
        await run.release()
        assert isinstance(await run.result(), Succeeded)


@virtually
async def test_a_run_that_unwinds_takes_none(system: VirtualSystem) -> None:
    """B-24: nobody will read it, and the sender learns that."""
    world, gate = World(system), Gate()

    async def undo(inv: object, state: None) -> None:
        await gate()

    @step("undone/v1", unwind=undo)
    async def undone(inv: Inv) -> None: ...

    pipeline = approved(undone, approval)
    async with world.engine(app(pipeline)) as engine:
        run = await waiting(engine, pipeline)
        await run.cancel()
        await gate.reached.wait()
        with pytest.raises(NotAllowed, match="unwinds"):
            await run.send("approval", Approval("late"))
        gate.go.set()
        result = await run.result()
        assert isinstance(result, Canceled)
        assert (result.failure.step, result.in_doubt) == ("approval/v1", ())  # U-9: it never began anything
        assert await kept(run) == []


@virtually
async def test_a_time_out_fails_it_or_gives_the_declared_value(system: VirtualSystem) -> None:
    """B-8."""
    world, day = World(system), timedelta(days=1)
    failing = awaiting(timeout=day)
    async with world.engine(app(failing)) as engine:
        run = await engine.submit(failing, "x")
        info = await until(run, "ready")
        assert (info.reason, info.due_us) == (WAITS, EPOCH_US + 24 * HOUR_US)
        result = await run.result()
        assert isinstance(result, Failed)
        assert (result.failure.reason, result.failure.step, result.in_doubt) == ("await-timeout", "approval/v1", ())
        assert "waits for message 'approval', and that took too long" in result.failure.message
        with pytest.raises(KeyTaken, match="has ended"):  # B-9
            await run.send("approval", Approval("late"))
    giving = awaiting(timeout=day, on_timeout=Approval("nobody"))
    async with world.engine(app(giving)) as engine:
        run = await engine.submit(giving, "x")
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == Approval("nobody")
        woken = [fact for fact in await facts(run) if isinstance(fact, OperationWoken)]
        assert woken == [OperationWoken("approval/v1", "time")]
    assert 48 * HOUR_US <= world.now_us() < 48 * HOUR_US + SECOND_US


@pytest.mark.parametrize("early_us", [-2, 0, 2])
@virtually
async def test_a_message_and_the_time_out_at_one_moment_end_it_once(system: VirtualSystem, early_us: int) -> None:
    """B-7, B-8: what is first in the journal wins, never both."""
    world, pipeline = World(system), awaiting(timeout=10, on_timeout=Approval("nobody"))
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        due_us = (await until(run, "ready")).due_us or 0
        await system.sleep((due_us - system.now_us() - early_us) / SECOND_US)
        try:
            await run.send("approval", Approval("ada"))
            sent = True
        except KeyTaken:
            sent = False
        result = await run.result()
        assert isinstance(result, Succeeded)
        order = [type(fact).__name__ for fact in await facts(run)]
        woken = [fact for fact in await facts(run) if isinstance(fact, OperationWoken)]
        assert len(woken) == 1
        by_message = sent and order.index("MessageReceived") < order.index("OperationWoken")
        assert woken[0].by == ("message" if by_message else "time")
        assert result.output == Approval("ada" if by_message else "nobody")
        assert (await engine.verify()).findings == ()
    assert early_us <= 0 or by_message  # it was sent before the time had come


@virtually
async def test_a_message_that_came_while_no_engine_ran_beats_a_time_out_that_passed(system: VirtualSystem) -> None:
    """B-7, R-4: it was in the journal first."""
    world, pipeline = World(system), awaiting(timeout=3_600)
    async with world.engine(app(pipeline)) as engine:
        run_id = (await waiting(engine, pipeline)).id
    async with world.client(app(pipeline)) as client:
        await client.send(run_id, "approval", Approval("ada"))
    await system.sleep(7_200)
    async with world.engine(app(pipeline, build="next")) as engine:
        result = await engine.result(run_id)
    assert isinstance(result, Succeeded)
    assert result.output == Approval("ada")


@virtually
async def test_a_crash_between_message_and_wake_loses_neither(system: VirtualSystem) -> None:
    """J-14, R-16, B-24."""
    world, pipeline = World(system), approved()
    async with world.engine(app(pipeline)) as engine:
        run_id = (await waiting(engine, pipeline)).id
    async with world.client(app(pipeline)) as client:
        await client.send(run_id, "approval", Approval("ada"))
        info = await client.info(run_id)
        assert (info.status, info.reason) == ("ready", "")
        assert info.due_us is not None
        assert info.due_us <= system.now_us()

    def wakes(append: Any) -> bool:
        return b"OperationWoken" in append.facts

    broken = StoreUnavailable("the disk is gone")
    async with world.engine(app(pipeline), around=Failing) as engine:
        store = world.stores[-1]
        assert isinstance(store, Failing)
        store.fail_if("append", wakes, broken)
        await until(await engine.run(run_id), "running", "ready")
    async with world.engine(app(pipeline)) as engine:
        result = await engine.result(run_id)
        run = await engine.run(run_id)
        assert (await names(run)).count("OperationWoken") == 1
    assert isinstance(result, Succeeded)
    assert result.output == Approval("ada")


@virtually
async def test_observers_are_told_that_it_waits_and_why_it_goes_on(system: VirtualSystem) -> None:
    """R-15."""
    world, pipeline, events = World(system), approved(), Events()
    async with world.engine(app(pipeline), observers=[events]) as engine:
        run = await waiting(engine, pipeline)
        found = await events.until("waiting")
        assert (found.step, found.detail) == ("approval/v1", WAITS)
        await run.send("approval", Approval("ada"))
        await run.result()
    woken = [event for event in events if event.kind == "woken"]
    assert [(event.step, event.detail) for event in woken] == [("approval/v1", "by message")]
