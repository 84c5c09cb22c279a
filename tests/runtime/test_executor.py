"""Calling handlers: whatever they return or raise is an outcome and breaks nothing else [M-4, M-5, D-1, R-15, R-18]."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn, cast

import pytest

from perdure import (
    Fail,
    Failed,
    FailureDetail,
    InvalidRun,
    Invocation,
    Pipeline,
    Retry,
    Succeeded,
    UnwindInvocation,
    step,
)
from perdure.core.facts import OperationReserved, OperationRetryScheduled, RunHeld
from perdure.define.failure import MESSAGE_LIMIT_BYTES
from perdure.runtime.host import Next
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import SECOND_US, Gate, Gated, Inv, World, app, facts, line, names, until, virtually

ONCE = Retry(max_attempts=1, then="fail")

# --- exceptions


class BrokenText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text for you")


class BrokenBase(Exception):
    """Its constructor takes more than pickle or copy would give it."""

    def __init__(self, one: int, two: int, *, three: int) -> None:
        super().__init__()
        self.args = (object(),)


def grouped() -> ExceptionGroup[Exception]:
    return ExceptionGroup("several", [ValueError("one"), ExceptionGroup("inner", [OSError("two")])])


def chained() -> Exception:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    error.add_note("a note")
    return error


def circular() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


ODD: dict[str, Callable[[], BaseException]] = {
    "NUL and surrogate": lambda: ValueError("a\x00b\ud800"),
    "megabytes": lambda: ValueError("ä" * 3_000_000),
    "no text": ValueError,
    "broken text": BrokenText,
    "odd constructor": lambda: BrokenBase(1, 2, three=3),
    "group": grouped,
    "base group": lambda: BaseExceptionGroup("base", [KeyboardInterrupt(), SystemExit(3)]),
    "chained": chained,
    "circular": circular,
    "BaseException": lambda: BaseException("base"),
    "SystemExit": lambda: SystemExit(1),
    "KeyboardInterrupt": KeyboardInterrupt,
    "StopIteration": lambda: StopIteration(7),
    "StopAsyncIteration": StopAsyncIteration,
    "GeneratorExit": GeneratorExit,
    "CancelledError": lambda: asyncio.CancelledError("my own"),
    "TimeoutError": TimeoutError,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("kind", ["async", "def"])
@virtually
async def test_whatever_a_handler_raises_is_recorded_once_and_read_back(
    system: VirtualSystem, kind: str, odd: Callable[[], BaseException]
) -> None:
    """M-5, M-10: the run fails once, by its policy; the engine goes on with other runs."""

    def raise_it() -> NoReturn:
        raise odd()

    @step("odd/v1", retry=ONCE)
    async def odd_async(inv: Inv) -> None:
        raise_it()

    @step("odd/v1", retry=ONCE)
    def odd_def(inv: Inv) -> None:
        raise_it()

    @step("even/v1")
    async def even(inv: Inv) -> None:
        pass

    pipeline = line(odd_async) if kind == "async" else line(odd_def)
    other = line(even, id="other")
    world = World(system)
    async with world.engine(app(pipeline, other)) as engine:
        run = await engine.submit(pipeline, "x")
        result = await run.result()
        assert isinstance(result, Failed)
        failure = result.failure
        assert failure.reason == "attempts-exhausted"
        assert 0 < len(failure.message.encode()) <= MESSAGE_LIMIT_BYTES
        assert "\x00" not in failure.message
        assert failure.error
        assert isinstance(await (await engine.submit(other, "x")).result(), Succeeded)
        assert (await engine.verify()).findings == ()
        assert engine.running == 0
    async with world.engine(app(pipeline, other)) as engine:
        assert await (await engine.run(run.id)).result() == result


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@virtually
async def test_whatever_an_unwind_handler_raises_is_retried(
    system: VirtualSystem, odd: Callable[[], BaseException]
) -> None:
    """U-8"""
    attempts: list[int] = []

    async def undo(inv: UnwindInvocation[str, object], state: None) -> None:
        attempts.append(inv.attempt)
        if inv.attempt == 1:
            raise odd()

    @step("first/v1", unwind=undo)
    async def first(inv: Inv) -> None:
        pass

    @step("second/v1")
    async def second(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(first, second)
    async with World(system).engine(app(pipeline)) as engine:
        result = await (await engine.submit(pipeline, "x")).result()
        assert isinstance(result, Failed)
        assert (attempts, result.half_unwound, result.uncompensated) == ([1, 2], (), ())


@virtually
async def test_kind_and_reason_come_from_the_cause_chain_and_arguments_win(system: VirtualSystem) -> None:
    """M-10"""

    class Declined(FailureDetail, Exception):
        kind = "user"
        reason = "declined"

    @step("fail/v1")
    async def fail(inv: Inv) -> None:
        try:
            raise Declined("inner")
        except Declined as error:
            if inv.input == "plain":
                raise Fail("outer") from error
            raise Fail("outer", kind="system", reason="mine") from error

    pipeline = line(fail)
    async with World(system).engine(app(pipeline)) as engine:
        found: list[tuple[str, str]] = []
        for input in ("plain", "explicit"):
            result = await (await engine.submit(pipeline, input)).result()
            assert isinstance(result, Failed)
            assert result.failure.message.startswith("outer")
            assert result.in_doubt == ()  # M-9: its own word
            found.append((result.failure.kind, result.failure.reason))
        assert found == [("user", "declined"), ("system", "mine")]


@virtually
async def test_a_handler_that_cancels_its_own_task_harms_nobody(system: VirtualSystem) -> None:
    """M-5, R-16: a cancellation that is not the engine's ends the attempt or nothing, never the run's owner."""

    @step("stray/v1")
    async def stray(inv: Inv) -> int:
        task = asyncio.current_task()
        assert task is not None
        if inv.attempt == 1:
            task.cancel("left over")
        return inv.attempt

    @step("after/v1")
    async def after(inv: Inv) -> None:
        await asyncio.sleep(0)

    pipeline = line(stray, after)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        assert isinstance(await run.result(timeout=100), Succeeded)
        assert engine.running == 0


# --- contracts


@virtually
async def test_a_handler_that_returns_nothing_where_it_promised_something_is_invalid(system: VirtualSystem) -> None:
    """M-4, D-1, D-2: nothing is committed, and it is not called again by itself."""
    calls: list[int] = []

    @step("promise/v1")
    async def promise(inv: Inv) -> str:
        calls.append(inv.attempt)
        return cast(str, None) if len(calls) == 1 else "kept"

    pipeline = line(promise)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidRun, match="promise/v1") as caught:
            await run.result()
        assert (caught.value.reason, caught.value.run_id) == ("contract-broken", run.id)
        info = await run.info()
        assert (info.status, info.due_us) == ("invalid", None)
        assert (await names(run))[-1] == "OperationReserved"
        await system.sleep(100_000)
        assert calls == [1]
    async with world.engine(app(pipeline)) as engine:  # the same build: no reason to try
        assert calls == [1]
        await engine.retry(run.id, actor="me")
        assert isinstance(await engine.result(run.id), Succeeded)
        assert calls == [1, 2]
        causes = [f.cause for f in await facts(await engine.run(run.id)) if isinstance(f, OperationRetryScheduled)]
        assert causes == ["interrupted"]  # D-2: no failure is counted for what the engine did not record


@virtually
async def test_a_step_that_may_return_nothing_may(system: VirtualSystem) -> None:
    """M-4"""

    @step("maybe/v1")
    async def maybe(inv: Inv) -> str | None:
        return None

    @step("never/v1")
    async def never(inv: Inv) -> None:
        return None

    pipeline = line(maybe, never)
    async with World(system).engine(app(pipeline)) as engine:
        assert isinstance(await (await engine.submit(pipeline, "x")).result(), Succeeded)


@pytest.mark.parametrize(
    ("value", "path"),
    [({"a": [1.0, object()]}, "a"), ({"a": [float("nan")]}, "a"), ({1: 2.0}, "$"), ("text", "$")],
    ids=["object", "NaN", "key", "type"],
)
@virtually
async def test_a_state_that_cannot_be_stored_makes_the_run_invalid_with_its_path(
    system: VirtualSystem, value: Any, path: str
) -> None:
    """D-1, P-2: nothing is committed, the handler is not called again."""
    calls: list[int] = []

    @step("odd/v1")
    async def odd(inv: Inv) -> dict[str, list[float]]:
        calls.append(1)
        return cast("dict[str, list[float]]", value)

    pipeline = line(odd)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidRun, match="odd/v1") as caught:
            await run.result()
        assert caught.value.reason == "payload-unserialisable"
        assert path in caught.value.detail
        await system.sleep(10_000)
        assert calls == [1]
        assert "OperationSucceeded" not in await names(run)


@virtually
async def test_a_state_over_the_limit_holds_the_run_with_all_names(system: VirtualSystem) -> None:
    """P-4: step, size, limit and the way out are named; the effect is not repeated, the run does not fail."""
    effects: list[int] = []

    @step("big/v1")
    async def big(inv: Inv) -> str:
        effects.append(1)
        return "x" * 5000

    pipeline = line(big)
    async with World(system).engine(app(pipeline, payload_limit=1000)) as engine:
        run = await engine.submit(pipeline, "x")
        info = await until(run, "held")
        assert (info.reason, info.step, effects) == ("payload-too-large", "big/v1", [1])
        [held] = [fact for fact in await facts(run) if isinstance(fact, RunHeld)]
        for word in ("big/v1", "5,002", "1,000", "limit", "resolve"):
            assert word in held.note
        await system.sleep(100_000)
        assert effects == [1]
        await run.resolve("big/v1", value="a reference", actor="me")
        assert isinstance(await run.result(), Succeeded)


@virtually
async def test_reading_the_states_is_reading_a_copy(system: VirtualSystem) -> None:
    """M-7, M-2: what a handler changes is its own."""
    seen: list[list[int]] = []

    @step("make/v1")
    async def make(inv: Inv) -> list[int]:
        return [1]

    @step("spoil/v1", needs=(make,))
    async def spoil(inv: Inv) -> None:
        mine = inv[make]
        mine.append(2)
        seen.append([*inv[make]])

    @step("look/v1", needs=(make,))
    async def look(inv: Inv) -> None:
        seen.append([*inv[make]])

    pipeline = line(make, spoil, look)
    async with World(system).engine(app(pipeline)) as engine:
        assert isinstance(await (await engine.submit(pipeline, "x")).result(), Succeeded)
        assert seen == [[1, 2], [1]]


# --- time-outs


@virtually
async def test_an_attempt_that_takes_too_long_is_cancelled_and_retried(system: VirtualSystem) -> None:
    """R-18: reason attempt-timeout, after exactly the bound, with the policy's backoff."""
    ended: list[str] = []

    @step("slow/v1", timeout=5, retry=Retry(initial=7, jitter=0))
    async def slow(inv: Inv) -> None:
        try:
            await system.sleep(4.9 if inv.attempt == 3 else 3600)
        except asyncio.CancelledError:
            ended.append(f"cancelled {inv.attempt}")
            raise

    pipeline = line(slow)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        assert isinstance(await run.result(), Succeeded)
        journal = await run.journal()
        scheduled = [(f.at_us - EPOCH_US, f.fact) for f in journal if isinstance(f.fact, OperationRetryScheduled)]
        assert [at_us for at_us, _ in scheduled] == [5 * SECOND_US, 5 * SECOND_US + 12 * SECOND_US]
        for _, fact in scheduled:
            assert fact.failure is not None
            assert (fact.cause, fact.failure.reason) == ("timeout", "attempt-timeout")
            assert "5" in fact.failure.message
        assert ended == ["cancelled 1", "cancelled 2"]


@virtually
async def test_a_time_out_counts_towards_the_bound(system: VirtualSystem) -> None:
    """M-5, R-18"""

    @step("slow/v1", timeout=1, retry=Retry(max_attempts=2, initial=0))
    async def slow(inv: Inv) -> None:
        await system.sleep(3600)

    pipeline = line(slow)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        info = await until(run, "held")
        assert (info.reason, engine.running) == ("attempts-exhausted", 0)


@virtually
async def test_a_handler_that_succeeds_while_it_is_stopped_has_succeeded(system: VirtualSystem) -> None:
    """M-4: its value is not thrown away."""

    @step("stubborn/v1", timeout=1)
    async def stubborn(inv: Inv) -> int:
        try:
            await system.sleep(3600)
        except asyncio.CancelledError:
            await system.sleep(10)
        return inv.attempt

    @step("after/v1")
    async def after(inv: Inv) -> None:
        await system.sleep(5)

    pipeline = line(stubborn, after)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        assert isinstance(await run.result(), Succeeded)
        assert "OperationRetryScheduled" not in await names(run)


@virtually
async def test_the_nearest_bound_is_in_force(system: VirtualSystem) -> None:
    """R-18, M-5: step, then pipeline, then app."""

    @step("own/v1", timeout=1, retry=Retry(max_attempts=1, then="fail"))
    async def own(inv: Inv) -> None:
        await system.sleep(3600)

    @step("none/v1")
    async def none(inv: Inv) -> None:
        await system.sleep(3600)

    apps_retry = Retry(max_attempts=1, then="fail")
    pipelines = [
        line(own, id="step", timeout=2, retry=Retry()),
        line(none, id="pipeline", timeout=2, retry=Retry(max_attempts=1, then="fail")),
        line(none, id="app"),
    ]
    async with World(system).engine(app(*pipelines, retry=apps_retry, timeout=3)) as engine:
        for seconds, pipeline in enumerate(pipelines, start=1):
            run = await engine.submit(pipeline, "x")
            result = await run.result()
            assert isinstance(result, Failed)
            [reserved] = [f for f in await run.journal() if isinstance(f.fact, OperationReserved)]
            assert result.failure.at_us - reserved.at_us == seconds * SECOND_US


# --- `def` handlers


@virtually
async def test_more_runs_than_threads_all_finish(system: VirtualSystem) -> None:
    """I-1: `def` handlers queue for threads; async ones need none."""
    together: list[int] = []
    inside = 0
    lock = threading.Lock()

    @step("sync/v1")
    def sync(inv: Inv) -> str:
        nonlocal inside
        with lock:
            inside += 1
            together.append(inside)
        name = threading.current_thread().name
        with lock:
            inside -= 1
        return name

    pipeline = line(sync)
    async with World(system).engine(app(pipeline, threads=2)) as engine:
        runs = [await engine.submit(pipeline, str(n)) for n in range(30)]
        for run in runs:
            assert isinstance(await run.result(), Succeeded)
        assert max(together) <= 2


@virtually
async def test_many_async_runs_need_no_thread(system: VirtualSystem) -> None:
    """I-1"""
    gate = Gate()

    @step("async/v1")
    async def waits(inv: Inv) -> None:
        await gate()

    pipeline = line(waits)
    async with World(system).engine(app(pipeline, threads=2)) as engine:
        before = set(threading.enumerate())
        runs = [await engine.submit(pipeline, str(n)) for n in range(50)]
        await gate.until(50)
        assert not set(threading.enumerate()) - before
        gate.go.set()
        for run in runs:
            assert isinstance(await run.result(), Succeeded)


request_id: ContextVar[str] = ContextVar("request_id", default="nobody's")


@virtually
async def test_context_variables_of_a_handler_reach_its_thread_and_nobody_else(system: VirtualSystem) -> None:
    """I-1: middleware sets one, the handler sees it, the next attempt does not."""
    seen: list[str] = []

    async def named(inv: Invocation[Any, Any], following: Next) -> object:
        seen.append(f"before {request_id.get()}")
        request_id.set(f"{inv.step_id}")
        return await following()

    @step("one/v1")
    def one(inv: Inv) -> None:
        seen.append(request_id.get())
        request_id.set("changed in the thread")

    @step("two/v1")
    async def two(inv: Inv) -> None:
        seen.append(request_id.get())

    pipeline = line(one, two)
    async with World(system).engine(app(pipeline, middleware=[named])) as engine:
        await (await engine.submit(pipeline, "x")).result()
        assert [name for name in seen if not name.startswith("before")] == ["one/v1", "two/v1"]


@virtually
async def test_a_handler_does_not_see_the_context_of_whoever_submitted(system: VirtualSystem) -> None:
    """R-7: a run that is recovered in another process has no such context either."""
    seen: list[str] = []

    @step("look/v1")
    async def look(inv: Inv) -> None:
        seen.append(request_id.get())

    pipeline = line(look)
    async with World(system).engine(app(pipeline)) as engine:
        request_id.set("the submitter's")
        await (await engine.submit(pipeline, "x")).result()
        await (await engine.submit(pipeline, "y", delay=1)).result()
        assert seen == ["nobody's", "nobody's"]


async def test_a_time_out_of_a_def_handler_is_recorded_and_its_late_return_dropped() -> None:
    """R-18, R-12: the thread ends when it likes; what it returns then is nobody's."""
    blocked, release, returned = threading.Event(), threading.Event(), threading.Event()

    @step("blocking/v1", timeout=0.05, retry=Retry(initial=0, jitter=0))
    def blocking(inv: Inv) -> int:
        if not blocked.is_set():
            blocked.set()
            release.wait(20)
            returned.set()
        return inv.attempt

    pipeline: Pipeline[str, object, int] = Pipeline(
        id="line", input=str, deps=object, steps=(blocking,), output=lambda inv: inv[blocking]
    )
    async with app(cast(Any, pipeline)).engine() as engine:
        run = await engine.submit(pipeline, "x")
        result = await run.result(timeout=20)
        release.set()
        assert await asyncio.to_thread(returned.wait, 20)
        assert isinstance(result, Succeeded)
        assert result.output > 1
        assert await run.result() == result
        [first, *_] = [fact for fact in await facts(run) if isinstance(fact, OperationRetryScheduled)]
        assert first.cause == "timeout"
        assert (await engine.verify()).findings == ()


async def test_a_def_handler_that_never_got_a_thread_is_not_started_after_its_end() -> None:
    """R-12: a run canceled while its handler waits for a thread is not called any more."""
    release = threading.Event()
    started: list[str] = []

    @step("blocking/v1")
    def blocking(inv: Inv) -> None:
        started.append(inv.input)
        release.wait(20)

    pipeline = line(blocking)
    async with app(pipeline, threads=1).engine() as engine:
        first = await engine.submit(pipeline, "first")
        second = await engine.submit(pipeline, "second")
        await second.cancel()
        assert not isinstance(await second.result(timeout=20), Succeeded)
        release.set()
        assert isinstance(await first.result(timeout=20), Succeeded)
        third = await engine.submit(pipeline, "third")
        assert isinstance(await third.result(timeout=20), Succeeded)
        assert started == ["first", "third"]


async def test_waiting_for_a_thread_is_no_part_of_an_attempts_time() -> None:
    """R-18: with more work than threads, nobody times out for the others' sake."""
    release = threading.Event()

    @step("blocking/v1")
    def blocking(inv: Inv) -> None:
        release.wait(20)

    @step("quick/v1", timeout=0.05, retry=ONCE)
    def quick(inv: Inv) -> None:
        pass

    @step("later/v1", timeout=0.1, retry=Retry(max_attempts=1))
    async def later(inv: Inv) -> None:
        await asyncio.get_running_loop().create_future()

    slow, fast, clock = line(blocking, id="slow"), line(quick, id="fast"), line(later, id="clock")
    async with app(slow, fast, clock, threads=1).engine() as engine:
        first = await engine.submit(slow, "x")
        second = await engine.submit(fast, "x")
        ticking = await engine.submit(clock, "x")
        await until(ticking, "held")  # more time than `quick` may take has passed
        release.set()
        assert isinstance(await first.result(timeout=20), Succeeded)
        assert isinstance(await second.result(timeout=20), Succeeded)


# --- middleware


@virtually
async def test_middleware_wraps_every_attempt_the_first_outermost(system: VirtualSystem) -> None:
    """R-15: forward and unwind, `async def` and `def`; it sees the value and may replace it."""
    order: list[str] = []

    def named(name: str) -> Any:
        async def wrapper(inv: Invocation[Any, Any], following: Next) -> object:
            order.append(f"{name} before {inv.step_id} {inv.phase} {inv.attempt}")
            try:
                value = await following()
            except Fail:
                order.append(f"{name} saw Fail")
                raise
            order.append(f"{name} after {value}")
            return value

        return wrapper

    def undo(inv: UnwindInvocation[str, object], state: int) -> None:
        order.append(f"undo {state}")

    @step("one/v1", unwind=undo)
    def one(inv: Inv) -> int:
        return 7

    @step("two/v1")
    async def two(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(one, two)
    async with World(system).engine(app(pipeline, middleware=[named("outer"), named("inner")])) as engine:
        await (await engine.submit(pipeline, "x")).result()
    assert order == [
        "outer before one/v1 forward 1",
        "inner before one/v1 forward 1",
        "inner after 7",
        "outer after 7",
        "outer before two/v1 forward 1",
        "inner before two/v1 forward 1",
        "inner saw Fail",
        "outer saw Fail",
        "outer before one/v1 unwind 1",
        "inner before one/v1 unwind 1",
        "undo 7",
        "inner after None",
        "outer after None",
    ]


@virtually
async def test_middleware_that_raises_fails_the_attempt_and_nothing_else(system: VirtualSystem) -> None:
    """R-15: before the handler, after it, and with what it likes."""
    calls: list[str] = []

    async def troubled(inv: Invocation[Any, Any], following: Next) -> object:
        if inv.attempt == 1:
            raise OSError("before")
        value = await following()
        if inv.attempt == 2:
            raise BaseException("after")
        return value

    @step("one/v1")
    async def one(inv: Inv) -> int:
        calls.append(f"handler {inv.attempt}")
        return inv.attempt

    pipeline = line(one)
    async with World(system).engine(app(pipeline, middleware=[troubled])) as engine:
        run = await engine.submit(pipeline, "x")
        assert isinstance(await run.result(), Succeeded)
        assert calls == ["handler 2", "handler 3"]
        scheduled = [fact for fact in await facts(run) if isinstance(fact, OperationRetryScheduled)]
        assert [fact.failure and fact.failure.message for fact in scheduled] == ["before", "after"]


@virtually
async def test_middleware_is_bound_by_the_time_of_an_attempt(system: VirtualSystem) -> None:
    """R-18"""

    async def slow(inv: Invocation[Any, Any], following: Next) -> object:
        if inv.attempt == 1:
            await system.sleep(3600)
        return await following()

    @step("one/v1", timeout=2)
    async def one(inv: Inv) -> None:
        pass

    pipeline = line(one)
    async with World(system).engine(app(pipeline, middleware=[slow])) as engine:
        run = await engine.submit(pipeline, "x")
        assert isinstance(await run.result(), Succeeded)
        [scheduled] = [fact for fact in await facts(run) if isinstance(fact, OperationRetryScheduled)]
        assert scheduled.cause == "timeout"


@virtually
async def test_a_handler_starts_after_its_reservation_is_committed(system: VirtualSystem) -> None:
    """M-8, J-12: the journal says so, and so does the order of things when the store is slow."""
    started: list[str] = []
    world = World(system)

    @step("one/v1")
    async def one(inv: Inv) -> None:
        started.append("one")
        gated(world).shut("append")

    @step("two/v1")
    async def two(inv: Inv) -> None:
        started.append("two")

    pipeline = line(one, two)
    async with world.engine(app(pipeline), around=Gated) as engine:
        store = gated(world)
        store.shut("append")
        submitting = asyncio.ensure_future(engine.submit(pipeline, "x"))
        await store.arrived["append"].wait()
        await system.sleep(60)
        assert started == []
        store.open_gate("append")
        run = await submitting
        await store.arrived["append"].wait()
        await system.sleep(60)
        assert started == ["one"]
        store.open_gate("append")
        assert isinstance(await run.result(), Succeeded)
        assert started == ["one", "two"]


def gated(world: World) -> Gated:
    """The store of the engine that runs."""
    store = world.stores[-1]
    assert isinstance(store, Gated)
    return store
