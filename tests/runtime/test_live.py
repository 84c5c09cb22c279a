"""An owned run, told from outside: cancel, hold, release, retry, resolve; and its memos [R-12, R-17, M-15]."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from perdure import (
    Canceled,
    Fail,
    Failed,
    KeyTaken,
    NotAllowed,
    PayloadError,
    Pipeline,
    Retry,
    Succeeded,
    UnwindInvocation,
    step,
)
from perdure.core.facts import (
    OperationFailed,
    OperationProgress,
    OperationReserved,
    OperationResolved,
    RunCancelRequested,
    RunHeld,
    RunReleased,
)
from perdure.define.step import OnCancel
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Events, Gate, Gated, Inv, Line, World, app, facts, line, names, until, virtually


class Stage:
    """A pipeline of three steps whose second one behaves as told; everything that happens is noted."""

    def __init__(self, on_cancel: OnCancel = "cancel", retry: Retry | None = None, way: str = "wait") -> None:
        self.gate = Gate()
        self.notes: list[str] = []
        self.way = way

        async def undo(inv: UnwindInvocation[str, object], state: int) -> None:
            self.notes.append(f"undo {inv.step_id}")

        async def undo_in_doubt(inv: UnwindInvocation[str, object]) -> None:
            self.notes.append(f"undo {inv.step_id} in doubt")

        @step("first/v1", unwind=undo)
        async def first(inv: Inv) -> int:
            self.notes.append("first")
            return 1

        @step("second/v1", unwind=undo, unwind_in_doubt=undo_in_doubt, on_cancel=on_cancel, retry=retry)
        async def second(inv: Inv) -> int:
            self.notes.append(f"second {inv.attempt}")
            try:
                await self.gate()
            except asyncio.CancelledError:
                self.notes.append("cancelled")
                match self.way:
                    case "swallow":
                        return 2
                    case "fail":
                        raise Fail("cleaned up") from None
                    case "error":
                        raise OSError("in the cleaning up") from None
                    case _:
                        raise
            if self.way == "break":
                raise OSError("down")
            return 2

        @step("third/v1")
        async def third(inv: Inv) -> int:
            self.notes.append("third")
            return 3

        self.pipeline: Line = line(first, second, third)


# --- cancel


@virtually
async def test_a_cancel_stops_the_running_handler_and_the_run_unwinds(system: VirtualSystem) -> None:
    """R-12, U-1, U-12: the attempt was started and did not end by its own word, so it is in doubt."""
    stage = Stage()
    async with World(system).engine(app(stage.pipeline)) as engine:
        run = await engine.submit(stage.pipeline, "x")
        await stage.gate.until(1)
        await run.cancel(reason="no money", actor="me")
        result = await run.result()
        assert isinstance(result, Canceled)
        assert (result.failure.kind, result.failure.reason, result.in_doubt) == ("canceled", "no money", ("second/v1",))
        assert stage.notes == ["first", "second 1", "cancelled", "undo second/v1 in doubt", "undo first/v1"]
        [request] = [fact for fact in await facts(run) if isinstance(fact, RunCancelRequested)]
        assert (request.actor, request.reason) == ("me", "no money")  # M-16


@virtually
async def test_a_handler_that_returns_while_it_is_cancelled_has_succeeded(system: VirtualSystem) -> None:
    """R-12: its success commits, and the cancel acts on the next operation."""
    stage = Stage(way="swallow")
    async with World(system).engine(app(stage.pipeline)) as engine:
        run = await engine.submit(stage.pipeline, "x")
        await stage.gate.until(1)
        await run.cancel()
        result = await run.result()
        assert isinstance(result, Canceled)
        assert (result.failure.step, result.in_doubt) == ("third/v1", ())
        assert stage.notes == ["first", "second 1", "cancelled", "undo second/v1", "undo first/v1"]


@virtually
async def test_a_handler_that_fails_while_it_is_cancelled_is_canceled_and_not_in_doubt(system: VirtualSystem) -> None:
    """R-12, M-9: its own word says that nothing is left."""
    stage = Stage(way="fail")
    async with World(system).engine(app(stage.pipeline)) as engine:
        run = await engine.submit(stage.pipeline, "x")
        await stage.gate.until(1)
        await run.cancel()
        result = await run.result()
        assert isinstance(result, Canceled)
        assert result.in_doubt == ()
        assert stage.notes == ["first", "second 1", "cancelled", "undo first/v1"]


@virtually
async def test_a_handler_that_raises_while_it_is_cancelled_is_canceled_and_in_doubt(system: VirtualSystem) -> None:
    """R-12: no retry."""
    stage = Stage(way="error")
    async with World(system).engine(app(stage.pipeline)) as engine:
        run = await engine.submit(stage.pipeline, "x")
        await stage.gate.until(1)
        await run.cancel()
        result = await run.result()
        assert isinstance(result, Canceled)
        assert result.in_doubt == ("second/v1",)
        assert "OperationRetryScheduled" not in await names(run)


@virtually
async def test_a_handler_that_breaks_its_contract_while_it_is_cancelled_is_canceled(system: VirtualSystem) -> None:
    """R-12: any other end resolves it as canceled; the run does not stay invalid for ever."""
    gate = Gate()

    @step("one/v1")
    async def one(inv: Inv) -> int:
        with suppress(asyncio.CancelledError):
            await gate()
        return None  # type: ignore[return-value]  # the breach is the point

    pipeline = line(one)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        await run.cancel()
        result = await run.result()
        assert isinstance(result, Canceled)
        assert result.in_doubt == ("one/v1",)


@virtually
async def test_a_step_that_settles_is_not_disturbed_and_retried_to_its_end(system: VirtualSystem) -> None:
    """R-12: the cancel acts on what comes after it."""
    stage = Stage(on_cancel="settle", retry=Retry(initial=5, jitter=0), way="break")
    async with World(system).engine(app(stage.pipeline)) as engine:
        run = await engine.submit(stage.pipeline, "x")
        await stage.gate.until(1)
        await run.cancel()
        await system.sleep(100)
        assert "cancelled" not in stage.notes
        stage.gate.go.set()
        await stage.gate.until(3)
        stage.way = "wait"
        result = await run.result()
        assert isinstance(result, Canceled)
        assert result.failure.step == "third/v1"
        assert stage.notes[-2:] == ["undo second/v1", "undo first/v1"]
        assert "third" not in stage.notes


@pytest.mark.parametrize("how", ["engine", "client"])
@pytest.mark.parametrize("phase", ["queued", "delayed", "backing off", "held", "no engine"])
@virtually
async def test_a_run_that_waits_is_canceled_at_once_without_a_call(system: VirtualSystem, phase: str, how: str) -> None:
    """R-12: by the engine's own client, or by one in another process."""
    calls: list[str] = []
    gate = Gate()

    @step("only/v1", retry=Retry(initial=1000, cap=1000))
    async def only(inv: Inv) -> None:
        calls.append(inv.input)
        if inv.input == "blocker":
            await gate()
        raise OSError("down")

    pipeline = line(only)
    world = World(system)
    async with world.client(app(pipeline)) as client:
        async with world.engine(app(pipeline), concurrency=1) as engine:
            canceler = engine if how == "engine" else client
            if phase in ("queued", "no engine"):
                await engine.submit(pipeline, "blocker")
                await gate.until(1)
            run = await engine.submit(pipeline, "x", delay=5000 if phase in ("delayed", "held") else None)
            if phase == "backing off":
                await until(run, "ready")
            if phase == "held":
                await run.hold(actor="me")
            if phase == "no engine":
                engine.abort()
                await client.cancel(run.id, actor="me")
            else:
                before_us = world.now_us()
                await canceler.cancel(run.id, actor="me")
                if phase == "held":
                    await client.release(run.id, actor="me")  # what follows is held still
                if phase == "queued":
                    gate.go.set()
                result = await client.result(run.id)
                assert isinstance(result, Canceled)
                assert world.now_us() == before_us
                assert result.in_doubt == (("only/v1",) if phase == "backing off" else ())
            gate.go.set()
        if phase == "no engine":
            async with world.engine(app(pipeline)):
                assert isinstance(await client.result(run.id), Canceled)
        assert calls.count("x") == (1 if phase == "backing off" else 0)


@virtually
async def test_the_first_cancel_wins_and_later_ones_are_harmless(system: VirtualSystem) -> None:
    """R-12, J-4: also the equal one, and after the end they are refused with the key that is taken."""
    stage = Stage()
    async with World(system).engine(app(stage.pipeline)) as engine:
        run = await engine.submit(stage.pipeline, "x")
        await asyncio.gather(*(run.cancel(reason=f"reason {n}") for n in range(10)))
        result = await run.result()
        assert isinstance(result, Canceled)
        requests = [fact for fact in await facts(run) if isinstance(fact, RunCancelRequested)]
        assert [request.reason for request in requests] == [result.failure.reason] == ["reason 0"]
        with pytest.raises(KeyTaken, match="ended") as caught:
            await run.cancel()
        assert caught.value.key == "terminal"


@virtually
async def test_unwinding_is_not_canceled(system: VirtualSystem) -> None:
    """U-11"""
    gate = Gate()
    undone: list[str] = []

    async def undo(inv: UnwindInvocation[str, object], state: None) -> None:
        await gate()
        undone.append(inv.step_id)

    @step("one/v1", unwind=undo)
    async def one(inv: Inv) -> None:
        pass

    @step("two/v1")
    async def two(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(one, two)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        await run.cancel()
        await system.sleep(10)
        gate.go.set()
        result = await run.result()
        assert isinstance(result, Failed)
        assert (result.failure.kind, undone, gate.passes) == ("system", ["one/v1"], 1)


@virtually
async def test_a_cancel_that_races_with_the_end_leaves_one_end(system: VirtualSystem) -> None:
    """R-12, J-6, M-12: a thousand times, at every distance from the end; whoever was first is what is told."""
    ended = {"Succeeded": 0, "Canceled": 0}

    @step("one/v1")
    async def one(inv: Inv) -> None:
        for _ in range(int(inv.input) % 7):
            await asyncio.sleep(0)

    @step("two/v1")
    async def two(inv: Inv) -> None:
        pass

    pipeline = line(one, two)
    async with World(system).engine(app(pipeline)) as engine:

        async def race(number: int) -> None:
            run = await engine.submit(pipeline, str(number))
            for _ in range(number // 7 % 12):
                await asyncio.sleep(0)
            try:
                await run.cancel()
                refused = False
            except KeyTaken:
                refused = True
            result = await run.result()
            journal = await names(run)
            assert sum(name in ("RunSucceeded", "RunFailed") for name in journal) == 1
            assert journal[-1] == ("RunSucceeded" if isinstance(result, Succeeded) else "RunFailed")
            assert not (refused and isinstance(result, Canceled))
            ended[type(result).__name__] += 1

        for start in range(0, 1000, 50):
            await asyncio.gather(*(race(number) for number in range(start, start + 50)))
        assert (await engine.verify()).findings == ()
    assert min(ended.values()) > 50, ended  # both outcomes really happened


async def test_a_thread_is_told_of_a_cancel_and_its_late_return_is_dropped() -> None:
    """R-12: on real threads."""
    started, told, go = threading.Event(), threading.Event(), threading.Event()

    @step("one/v1")
    def one(inv: Inv) -> int:
        started.set()
        while not inv.canceled and not go.wait(0.001):
            pass
        told.set()
        go.wait(20)
        return 7

    pipeline = line(one)
    async with app(pipeline).engine() as engine:
        run = await engine.submit(pipeline, "x")
        assert await asyncio.to_thread(started.wait, 20)
        await run.cancel()
        result = await run.result(timeout=20)
        assert isinstance(result, Canceled)
        assert result.in_doubt == ("one/v1",)
        assert await asyncio.to_thread(told.wait, 20)
        go.set()
        assert (await names(run))[-1] == "RunFailed"
        assert (await engine.verify()).findings == ()


# --- hold, release, retry


@virtually
async def test_a_hold_lets_the_running_attempt_end_and_starts_no_other(system: VirtualSystem) -> None:
    """R-17: the success is recorded; release goes on with the next step."""
    stage = Stage()
    async with World(system).engine(app(stage.pipeline)) as engine:
        run = await engine.submit(stage.pipeline, "x")
        await stage.gate.until(1)
        await run.hold(reason="audit", note="looks odd", actor="me")
        await run.hold(reason="again", actor="you")  # held already
        stage.gate.go.set()
        info = await until(run, "held")
        assert (info.reason, engine.running) == ("audit", 0)
        assert stage.notes == ["first", "second 1"]
        await run.release(note="fine", actor="me")
        assert isinstance(await run.result(), Succeeded)
        told = [fact for fact in await facts(run) if isinstance(fact, (RunHeld, RunReleased))]
        assert [(type(fact).__name__, fact.actor, fact.note) for fact in told] == [
            ("RunHeld", "me", "looks odd"),
            ("RunReleased", "me", "fine"),
        ]


@virtually
async def test_only_a_held_run_can_be_released(system: VirtualSystem) -> None:
    """R-17"""
    stage = Stage()
    async with World(system).engine(app(stage.pipeline)) as engine:
        run = await engine.submit(stage.pipeline, "x", delay=10)
        with pytest.raises(NotAllowed, match="not held"):
            await run.release()
        stage.gate.go.set()
        assert isinstance(await run.result(), Succeeded)
        for call in (run.release, run.hold, run.retry):
            with pytest.raises(KeyTaken):
                await call()


@virtually
async def test_a_hold_while_unwinding_holds_the_unwinding(system: VirtualSystem) -> None:
    """R-17"""
    gate = Gate()
    undone: list[str] = []

    async def undo(inv: UnwindInvocation[str, object], state: None) -> None:
        undone.append(inv.step_id)
        await gate()

    @step("one/v1", unwind=undo)
    async def one(inv: Inv) -> None:
        pass

    @step("two/v1", unwind=undo)
    async def two(inv: Inv) -> None:
        pass

    @step("three/v1")
    async def three(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(one, two, three)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        await run.hold(actor="me")
        gate.go.set()
        await until(run, "held")
        await system.sleep(1000)
        assert undone == ["two/v1"]
        await run.release(actor="me")
        assert isinstance(await run.result(), Failed)
        assert undone == ["two/v1", "one/v1"]


@virtually
async def test_retry_goes_on_now_whatever_the_run_waits_for(system: VirtualSystem) -> None:
    """R-17: a backoff, a hold, a delay."""
    calls: list[str] = []

    @step("one/v1", retry=Retry(initial=10_000, cap=10_000))
    async def one(inv: Inv) -> None:
        calls.append(inv.input)
        if inv.attempt == 1 and inv.input == "backoff":
            raise OSError("down")

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        backoff = await engine.submit(pipeline, "backoff")
        await until(backoff, "ready")
        held = await engine.submit(pipeline, "held", delay=10)
        await held.hold(actor="me")
        delayed = await engine.submit(pipeline, "delayed", delay=100_000)
        for run in (backoff, held, delayed):
            await run.retry(actor="me")
            assert isinstance(await run.result(), Succeeded)
        assert world.now_us() == 0
        assert calls == ["backoff", "backoff", "held", "delayed"]


@virtually
async def test_a_retry_of_a_running_attempt_disturbs_it_not(system: VirtualSystem) -> None:
    """R-17"""
    stage = Stage()
    async with World(system).engine(app(stage.pipeline)) as engine:
        run = await engine.submit(stage.pipeline, "x")
        await stage.gate.until(1)
        await run.retry(actor="me")
        stage.gate.go.set()
        assert isinstance(await run.result(), Succeeded)
        assert stage.notes == ["first", "second 1", "third"]


# --- resolve


@pytest.mark.parametrize("how", ["value", "skip", "fail"])
@pytest.mark.parametrize("by", ["engine", "client"])
@virtually
async def test_a_resolution_fences_the_running_attempt(system: VirtualSystem, how: str, by: str) -> None:
    """R-17: its handler is cancelled, and whatever it still returns or raises is dropped."""
    stage = Stage(way="swallow")
    events = Events()
    world = World(system)
    async with (
        world.engine(app(stage.pipeline), observers=[events]) as engine,
        world.client(app(stage.pipeline)) as client,
    ):
        run = await engine.submit(stage.pipeline, "x")
        await stage.gate.until(1)
        operator = engine if by == "engine" else client
        match how:
            case "value":
                await operator.resolve(run.id, "second/v1", value=22, note="seen in the books", actor="me")
            case "skip":
                await operator.resolve(run.id, "second/v1", skip=True, actor="me")
            case _:
                await operator.resolve(run.id, "second/v1", fail="never arrived", actor="me")
        result = await run.result()
        journal = await facts(run)
        [resolved] = [fact for fact in journal if isinstance(fact, OperationResolved)]
        assert (resolved.step, resolved.how, resolved.actor) == ("second/v1", how, "me")
        assert "cancelled" in stage.notes
        assert (await events.until("late")).step == "second/v1"
        if how == "fail":
            assert isinstance(result, Failed)
            assert (result.failure.kind, result.failure.reason, result.in_doubt) == (
                "user",
                "resolved",
                ("second/v1",),
            )
            assert stage.notes[-2:] == ["undo second/v1 in doubt", "undo first/v1"]
        else:
            assert isinstance(result, Succeeded)
            assert result.in_doubt == (() if how == "value" else ("second/v1",))
            assert stage.notes[-1] == "third"
        assert (await engine.verify()).findings == ()


@virtually
async def test_a_resolution_that_comes_while_the_handler_ends_drops_its_end(system: VirtualSystem) -> None:
    """R-17, J-6: the engine is just reading the resolution when the handler returns."""
    gate = Gate()

    @step("one/v1")
    async def one(inv: Inv) -> int:
        await gate()
        return 1

    pipeline: Pipeline[str, object, int] = Pipeline(
        id="line", input=str, deps=object, steps=(one,), output=lambda inv: inv[one]
    )
    world = World(system)
    bound: Any = pipeline
    async with world.engine(app(bound), around=Gated) as engine, world.client(app(bound)) as client:
        store = world.stores[0]
        assert isinstance(store, Gated)
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        store.shut("load")
        await client.resolve(run.id, "one/v1", value=2, actor="me")
        await store.arrived["load"].wait()
        gate.go.set()
        await system.sleep(1)
        store.open_gate("load")
        result = await client.result(run.id)
        assert isinstance(result, Succeeded)
        assert result.output == 2
        assert (await client.verify()).findings == ()


@pytest.mark.parametrize("state", ["delayed", "backing off", "held", "invalid", "no engine"])
@virtually
async def test_a_run_that_waits_can_be_resolved(system: VirtualSystem, state: str) -> None:
    """R-17: whatever it waits for; it then goes on at once."""
    calls: list[str] = []

    @step("one/v1", retry=Retry(initial=10_000, cap=10_000))
    async def one(inv: Inv) -> int:
        calls.append("one")
        if state == "invalid":
            return None  # type: ignore[return-value]  # the breach is the point
        raise OSError("down")

    @step("two/v1", needs=(one,))
    async def two(inv: Inv) -> int:
        calls.append(f"two {inv[one]}")
        return inv[one]

    pipeline: Pipeline[str, object, int] = Pipeline(
        id="line", input=str, deps=object, steps=(one, two), output=lambda inv: inv[two]
    )
    world = World(system)
    bound: Any = pipeline
    async with world.client(app(bound)) as client:
        async with world.engine(app(bound)) as engine:
            run = await engine.submit(pipeline, "x", delay=5000 if state in ("delayed", "held", "no engine") else None)
            if state == "held":
                await run.hold(actor="me")
            if state == "backing off":
                await until(run, "ready")
            if state == "invalid":
                await until(run, "invalid")
            if state != "no engine":
                await run.resolve("one/v1", value=7, actor="me")
                if state == "held":
                    await run.release(actor="me")
                assert isinstance(await run.result(), Succeeded)
                assert world.now_us() == 0
        if state == "no engine":
            await client.resolve(run.id, "one/v1", value=7, actor="me")
            async with world.engine(app(bound)):
                result = await client.result(run.id)
                assert isinstance(result, Succeeded)
                assert result.output == 7
        assert calls[-1] == "two 7"
        assert calls.count("one") == (1 if state in ("backing off", "invalid") else 0)


@virtually
async def test_a_resolution_must_fit(system: VirtualSystem) -> None:
    """R-17, P-2: the step, its type, its size, and the state of the run."""
    stage = Stage()
    world = World(system)
    async with world.engine(app(stage.pipeline, payload_limit=100)) as engine:
        run = await engine.submit(stage.pipeline, "x", delay=10)
        with pytest.raises(NotAllowed, match="first/v1"):
            await run.resolve("second/v1", value=1)
        with pytest.raises(NotAllowed, match="first/v1"):
            await run.resolve("nowhere/v1", value=1)
        with pytest.raises(PayloadError):
            await run.resolve("first/v1", value="text")
        with pytest.raises(PayloadError):
            await run.resolve(value=10**400)
        stage.gate.go.set()
        assert isinstance(await run.result(), Succeeded)
        verdicts: list[dict[str, Any]] = [{"value": 1}, {"skip": True}, {"fail": "why"}]
        for options in verdicts:
            with pytest.raises(KeyTaken, match="ended"):
                await run.resolve(**options)


@virtually
async def test_a_value_over_the_limit_is_no_way_around_it(system: VirtualSystem) -> None:
    """P-4, R-17"""

    @step("one/v1")
    async def one(inv: Inv) -> str:
        raise OSError("down")

    pipeline = line(one)
    world = World(system)
    small = app(pipeline, payload_limit=1000, retry=Retry(initial=100, cap=100))
    async with world.engine(small) as engine, world.client(small) as client:
        run = await engine.submit(pipeline, "x")
        await until(run, "ready")
        for door in (engine, client):
            with pytest.raises(PayloadError, match="1,000"):
                await door.resolve(run.id, value="x" * 2000)
        await run.cancel()


@virtually
async def test_unwinding_can_be_resolved_as_done_as_skipped_or_as_failed(system: VirtualSystem) -> None:
    """R-17, U-8, U-9"""

    async def undo(inv: UnwindInvocation[str, object], state: None) -> None:
        raise OSError("down")

    @step("one/v1", unwind=undo)
    async def one(inv: Inv) -> None:
        pass

    @step("two/v1", unwind=undo)
    async def two(inv: Inv) -> None:
        pass

    @step("three/v1", unwind=undo)
    async def three(inv: Inv) -> None:
        pass

    @step("four/v1")
    async def four(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(one, two, three, four)
    async with World(system).engine(app(pipeline, retry=Retry(unwind_max_attempts=1))) as engine:
        run = await engine.submit(pipeline, "x")
        verdicts: list[tuple[str, dict[str, Any]]] = [
            ("three/v1", {"value": None}),
            ("two/v1", {"skip": True}),
            ("one/v1", {"fail": "cannot"}),
        ]
        for number, (name, words) in enumerate(verdicts):
            async for info in run.watch():
                if info.status == "held" and info.step == name:
                    break
            assert len([f for f in await facts(run) if isinstance(f, RunHeld)]) == number + 1
            await run.resolve(name, actor="me", **words)
        result = await run.result()
        assert isinstance(result, Failed)
        assert [failure.step for failure in result.unwind_failures] == ["one/v1"]
        assert result.uncompensated == ("one/v1", "two/v1")


# --- memos


@virtually
async def test_a_memo_is_kept_across_attempts_and_in_the_unwind(system: VirtualSystem) -> None:
    """M-15: the function is called once; the unwind handler sees what it returned."""
    calls: list[str] = []
    seen: list[object] = []

    def number() -> int:
        calls.append("number")
        return 42

    async def text() -> str:
        calls.append("text")
        return "made"

    async def undo(inv: UnwindInvocation[str, object], state: int) -> None:
        seen.append(await inv.memo("number", number))

    @step("one/v1", unwind=undo)
    async def one(inv: Inv) -> int:
        first = await inv.memo("number", number)
        if inv.attempt < 3:
            raise OSError("down")
        seen.append(await inv.memo("text", text))
        seen.append(await inv.memo("text", text))
        return first

    @step("two/v1")
    async def two(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(one, two)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        assert isinstance(await run.result(), Failed)
        assert calls == ["number", "text"]
        assert seen == ["made", "made", 42]
        progress = [fact for fact in await facts(run) if isinstance(fact, OperationProgress)]
        assert [(fact.step, fact.name, bytes(fact.value)) for fact in progress] == [
            ("one/v1", "number", b"42"),
            ("one/v1", "text", b'"made"'),
        ]


@virtually
async def test_a_memo_survives_the_worker(system: VirtualSystem) -> None:
    """M-15"""
    gate = Gate()
    calls: list[int] = []

    def number() -> int:
        calls.append(1)
        return len(calls)

    @step("one/v1")
    async def one(inv: Inv) -> int:
        found = await inv.memo("number", number)
        await gate()
        return found

    pipeline: Any = Pipeline(id="line", input=str, deps=object, steps=(one,), output=lambda inv: inv[one])
    world = World(system)
    run_id = ""
    for _ in range(3):
        async with world.engine(app(pipeline)) as engine:
            run = await engine.submit(pipeline, "x") if not run_id else await engine.run(run_id)
            run_id = run.id
            await gate.reached.wait()
            gate.reached.clear()
            engine.abort()
    gate.go.set()
    async with world.engine(app(pipeline)) as engine:
        result = await engine.result(run_id)
        assert isinstance(result, Succeeded)
        assert (result.output, calls) == (1, [1])


@virtually
async def test_memos_made_at_once_are_each_kept_once(system: VirtualSystem) -> None:
    """M-15: names of a gather, equal names too, while facts from outside come in between."""
    made: list[str] = []
    go = asyncio.Event()

    async def make(name: str) -> str:
        made.append(name)
        await asyncio.sleep(0)
        return name

    @step("one/v1")
    async def one(inv: Inv) -> list[str]:
        await go.wait()
        names = [f"memo {n % 5}" for n in range(20)]
        return list(await asyncio.gather(*(inv.memo(name, partial(make, name)) for name in names)))

    pipeline: Any = Pipeline(id="line", input=str, deps=object, steps=(one,), output=lambda inv: inv[one])
    world = World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        run = await engine.submit(pipeline, "x")
        go.set()
        for _ in range(10):
            await client.retry(run.id, actor="me")
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == [f"memo {n % 5}" for n in range(20)]
        progress = [fact.name for fact in await facts(run) if isinstance(fact, OperationProgress)]
        assert sorted(progress) == sorted(set(progress)) == [f"memo {n}" for n in range(5)]
        assert len(made) == 5
        assert len([f for f in await facts(run) if isinstance(f, OperationReserved)]) == 1
        assert (await engine.verify()).findings == ()


@pytest.mark.parametrize("why", ["cancel", "time-out"])
@virtually
async def test_a_memo_in_flight_when_the_handler_is_cancelled_is_kept_in_order(system: VirtualSystem, why: str) -> None:
    """J-14, M-15: the append is not called back, and nothing else is appended to the run before it is known."""
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return 7

    @step("one/v1", timeout=1)
    async def one(inv: Inv) -> int:
        return await inv.memo("slow", make)

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline), around=Gated) as engine, world.client(app(pipeline)) as client:
        store = world.stores[0]
        assert isinstance(store, Gated)
        store.shut("append")
        submitting = asyncio.ensure_future(engine.submit(pipeline, "x"))
        await store.arrived["append"].wait()
        store.open_gate("append")
        store.shut("append")
        run = await submitting
        await store.arrived["append"].wait()  # the memo
        if why == "cancel":
            await client.cancel(run.id, actor="me")
        await system.sleep(5)
        store.open_gate("append")
        result = await client.result(run.id)
        assert isinstance(result, Canceled if why == "cancel" else Succeeded)
        assert made == [1]
        assert store.broken == []
        assert (await client.verify()).findings == ()


@virtually
async def test_a_memo_over_the_limit_is_refused_and_not_tried_for_ever(system: VirtualSystem) -> None:
    """P-4, M-15: the run is invalid with name, size and limit; the handler is not called again by itself."""
    calls: list[int] = []

    @step("one/v1")
    async def one(inv: Inv) -> None:
        calls.append(1)
        await inv.memo("big", lambda: "x" * 5000, type=str)

    pipeline = line(one)
    async with World(system).engine(app(pipeline, payload_limit=1000)) as engine:
        run = await engine.submit(pipeline, "x")
        info = await until(run, "invalid")
        for word in ("big", "one/v1", "5,002", "1,000"):
            assert word in info.reason
        await system.sleep(10_000)
        assert calls == [1]
        assert "OperationProgress" not in await names(run)


@virtually
async def test_a_memo_after_the_attempt_was_ended_is_not_recorded(system: VirtualSystem) -> None:
    """M-15, R-17: a handler that goes on although it was cancelled writes nothing more."""
    gate, ended = Gate(), asyncio.Event()

    @step("one/v1")
    async def one(inv: Inv) -> None:
        try:
            await gate()
        except asyncio.CancelledError:
            try:
                await inv.memo("late", lambda: 1, type=int)
            finally:
                ended.set()

    pipeline = line(one)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        await run.resolve("one/v1", skip=True, actor="me")
        assert isinstance(await run.result(), Succeeded)
        await ended.wait()
        assert "OperationProgress" not in await names(run)
        [failed] = [fact for fact in await facts(run) if isinstance(fact, (OperationFailed, OperationResolved))]
        assert isinstance(failed, OperationResolved)
