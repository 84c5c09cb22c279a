"""Steps of many items: each durable by itself, several at once, none done twice [B-10, B-20, B-22, U-12]."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from perdure import (
    Canceled,
    Fail,
    Failed,
    ForEach,
    InvalidRun,
    Invocation,
    ItemCounts,
    ItemInvocation,
    Later,
    Pipeline,
    Retry,
    Settled,
    Succeeded,
    UnwindInvocation,
    step,
)
from perdure.core.facts import (
    ItemFailed,
    ItemOutputRecorded,
    ItemRetryScheduled,
)
from perdure.define.items import ItemReport
from perdure.ports.observer import Event
from perdure.runtime.host import Next
from perdure.runtime.stuck import STUCK_US
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import SECOND_US, Events, Gate, Gated, Inv, World, app, facts, line, names, until, virtually

One = ItemInvocation[str, object, int]
Handler = Callable[[One], Coroutine[Any, Any, Any]] | Callable[[One], Any]

ONCE = Retry(max_attempts=1, then="fail")


def letters(inv: Inv) -> list[int]:
    """As many items as the input has letters: their code points."""
    return [ord(letter) for letter in inv.input]


def each(
    handler: Handler, *, id: str = "each/v1", items: Any = letters, **options: Any
) -> ForEach[Any, Any, Any, Any, Any]:
    """A step of items, whose types nobody asks for here."""
    made: Any = ForEach
    found: ForEach[Any, Any, Any, Any, Any] = made(id, items=items, handler=handler, **options)
    return found


def made_by(found: ForEach[Any, Any, Any, Any, Any], *others: Any, **options: Any) -> Pipeline[str, object, Any]:
    """A pipeline whose output is the state of that step."""
    return Pipeline(id="line", input=str, deps=object, steps=(found, *others), output=_output(found), **options)


def _output(found: ForEach[Any, Any, Any, Any, Any]) -> Any:
    def output(inv: Inv) -> object:
        return inv[found]

    output.__annotations__["return"] = found.codec.type
    return output


async def double(inv: One) -> int:
    return 2 * inv.item


async def take_back(inv: UnwindInvocation[str, object], state: Any) -> None:
    """Takes back what all items did."""


class Crowd:
    """Handlers that wait until they are let go, one by one."""

    def __init__(self) -> None:
        self.gates: dict[int, asyncio.Event] = {}
        self.started: list[int] = []
        self.most = 0
        self.now = 0
        self._news = asyncio.Event()

    async def __call__(self, index: int) -> None:
        gate = self.gates.setdefault(index, asyncio.Event())
        self.started.append(index)
        self.now += 1
        self.most = max(self.most, self.now)
        self._news.set()
        try:
            await gate.wait()
        finally:
            self.now -= 1
            self._news.set()

    async def until(self, started: int, now: int | None = None) -> None:
        """Wait until so many were started, and so many run."""
        while len(self.started) < started or now not in (None, self.now):
            self._news.clear()
            await self._news.wait()

    def let_go(self, *indices: int) -> None:
        """These may end."""
        for index in indices:
            self.gates.setdefault(index, asyncio.Event()).set()


# --- outputs and bounds


@virtually
async def test_outputs_are_in_index_order_whatever_the_order_of_completion(system: VirtualSystem) -> None:
    """B-10"""
    ended: list[int] = []
    crowd = Crowd()

    async def slow(inv: One) -> str:
        await crowd(inv.index)
        ended.append(inv.index)
        return f"{inv.index}:{inv.item}"

    pipeline = made_by(each(slow))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abcd")
        await crowd.until(4)
        for index in (3, 2, 1, 0):
            crowd.let_go(index)
            await crowd.until(4, index)
        result = await run.result()
    assert isinstance(result, Succeeded)
    assert result.output == ["0:97", "1:98", "2:99", "3:100"]
    assert ended == [3, 2, 1, 0]


@virtually
async def test_no_items_are_an_empty_list_at_once(system: VirtualSystem) -> None:
    """B-10"""
    pipeline = made_by(each(double))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "")
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == []
        assert "ItemReserved" not in await names(run)


@pytest.mark.parametrize("bound", [1, 2, 3, 7])
@virtually
async def test_the_bound_is_reached_and_held(system: VirtualSystem, bound: int) -> None:
    """B-2: as many as may run do, and a new one starts as soon as one ends."""
    crowd = Crowd()

    async def waits(inv: One) -> int:
        await crowd(inv.index)
        return inv.index

    pipeline = made_by(each(waits, concurrency=bound))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abcdefghij")
        for index in range(10):
            await crowd.until(min(10, index + bound), min(bound, 10 - index))
            crowd.let_go(index)
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == list(range(10))
    assert crowd.most == bound
    assert crowd.started == list(range(10))


@virtually
async def test_def_handlers_run_in_threads_several_at_once(system: VirtualSystem) -> None:
    """B-10, R-15"""
    together = threading.Barrier(3)

    def blocking(inv: One) -> str:
        together.wait(30)  # broken unless three are in it at once
        return threading.current_thread().name

    pipeline = made_by(each(blocking, concurrency=3))
    async with World(system).engine(app(pipeline)) as engine:
        result = await (await engine.submit(pipeline, "abcdef")).result()
    assert isinstance(result, Succeeded)
    assert set(result.output) == {"perdure-handler"}


@virtually
async def test_what_ended_together_is_recorded_together(system: VirtualSystem) -> None:
    """J-12: appends follow the completions, not the items."""
    pipeline = made_by(each(double, concurrency=100))
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await (await engine.submit(pipeline, "a" * 100)).result(), Succeeded)
        assert world.stores[-1].calls["append"] == 2  # submission with all reservations, outputs with the end


@virtually
async def test_ten_thousand_items(system: VirtualSystem) -> None:
    """B-10: the appends are as many as the bound asks for."""

    def many(inv: Inv) -> list[int]:
        return list(range(10_000))

    pipeline = made_by(each(double, items=many, concurrency=500))
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == [2 * number for number in range(10_000)]
        assert world.stores[-1].calls["append"] <= 10_000 / 500 + 1
        assert (await engine.verify()).findings == ()


# --- attempts


@virtually
async def test_one_backs_off_while_the_others_go_on(system: VirtualSystem) -> None:
    """M-5, M-8: attempts count for each item, and one that is due again does not wait for another to end."""
    starts: list[tuple[int, int, int]] = []
    world = World(system)
    gate = Gate()

    async def flaky(inv: One) -> int:
        starts.append((world.now_us() // SECOND_US, inv.index, inv.attempt))
        if inv.index == 0:
            await gate()
        if inv.index == 1 and inv.attempt < 3:
            raise OSError("down")
        if inv.index == 1:
            gate.go.set()
        return inv.attempt

    pipeline = made_by(each(flaky, concurrency=2, retry=Retry(initial=10, cap=10, jitter=0)))
    async with world.engine(app(pipeline)) as engine:
        result = await (await engine.submit(pipeline, "abcd")).result(timeout=3600)
    assert isinstance(result, Succeeded)
    assert result.output == [1, 3, 1, 1]
    assert starts == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1), (10, 1, 2), (20, 1, 3)]


@virtually
async def test_a_run_that_only_waits_for_items_backing_off_holds_no_place(system: VirtualSystem) -> None:
    """R-4"""

    async def flaky(inv: One) -> int:
        if inv.attempt == 1:
            raise OSError("down")
        return inv.attempt

    @step("other/v1")
    async def other(inv: Inv) -> None:
        pass

    pipeline = made_by(each(flaky, retry=Retry(initial=3600, cap=3600, jitter=0)))
    beside = line(other, id="other")
    events = Events()
    async with World(system).engine(app(pipeline, beside, concurrency=1), observers=[events]) as engine:
        run = await engine.submit(pipeline, "ab")
        await events.until("released")
        assert engine.running == 0
        assert isinstance(await (await engine.submit(beside, "x")).result(timeout=60), Succeeded)
        result = await run.result(timeout=7200)
        assert isinstance(result, Succeeded)
        assert result.output == [2, 2]


@virtually
async def test_each_attempt_of_an_item_has_the_time(system: VirtualSystem) -> None:
    """R-18: the others keep theirs."""

    async def hangs(inv: One) -> int:
        if inv.index == 1 and inv.attempt == 1:
            await asyncio.Event().wait()
        return inv.attempt

    pipeline = made_by(each(hangs, timeout=5))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abc")
        result = await run.result(timeout=600)
        found = [fact for fact in await facts(run) if isinstance(fact, ItemRetryScheduled)]
    assert isinstance(result, Succeeded)
    assert result.output == [1, 2, 1]
    assert [(fact.index, fact.cause, fact.failure and fact.failure.reason) for fact in found] == [
        (1, "timeout", "attempt-timeout")
    ]


async def test_a_def_handler_of_an_item_sees_that_its_time_is_over() -> None:
    """R-18, R-12"""
    nap, seen = threading.Event(), threading.Event()

    def hangs(inv: One) -> int:
        if inv.index == 1 and inv.attempt == 1:
            while not inv.canceled:
                nap.wait(0.001)
            seen.set()
        return inv.attempt

    pipeline = made_by(each(hangs, timeout=0.2, retry=Retry(initial=0, jitter=0)))
    async with app(cast("Any", pipeline)).engine() as engine:
        result = await (await engine.submit(pipeline, "abc")).result(timeout=20)
        assert await asyncio.to_thread(seen.wait, 20)
    assert isinstance(result, Succeeded)
    assert result.output[1] > 1


@virtually
async def test_middleware_and_observers_see_every_item(system: VirtualSystem) -> None:
    """R-15"""
    wrapped: list[tuple[int, int]] = []

    async def around(inv: Invocation[Any, Any], following: Next) -> object:
        assert isinstance(inv, ItemInvocation)
        wrapped.append((inv.index, inv.attempt))
        return await following()

    async def flaky(inv: One) -> int:
        if inv.index == 1 and inv.attempt == 1:
            raise OSError("down")
        if inv.index == 2:
            raise Fail("no")
        return inv.index

    events = Events()
    pipeline = made_by(each(flaky, collect=True))
    async with World(system).engine(app(pipeline, middleware=[around]), observers=[events]) as engine:
        assert isinstance(await (await engine.submit(pipeline, "abc")).result(), Succeeded)
    assert sorted(wrapped) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    told = [(event.kind, event.attempt, event.detail) for event in events if event.step == "each/v1"]
    assert ("attempt-started", 1, "item 0") in told
    assert ("attempt-succeeded", 1, "item 0") in told
    assert ("retry-scheduled", 1, "item 1: down") in told
    assert ("attempt-succeeded", 2, "item 1") in told
    assert ("attempt-failed", 1, "item 2: no") in told


@virtually
async def test_a_memo_is_of_one_item_and_seen_by_its_later_attempts(system: VirtualSystem) -> None:
    """M-15, B-23"""
    made: list[int] = []

    async def remembers(inv: One) -> int:
        async def make() -> int:
            made.append(inv.index)
            return 10 * inv.index + inv.attempt

        found = await inv.memo("made", make)
        if inv.attempt == 1:
            raise OSError("after the memo")
        return found

    pipeline = made_by(each(remembers))
    async with World(system).engine(app(pipeline)) as engine:
        result = await (await engine.submit(pipeline, "abc")).result()
    assert isinstance(result, Succeeded)
    assert result.output == [1, 11, 21]
    assert sorted(made) == [0, 1, 2]


@virtually
async def test_items_read_states_and_have_keys_of_their_own(system: VirtualSystem) -> None:
    """B-22, M-3"""

    @step("before/v1")
    async def before(inv: Inv) -> str:
        return "state"

    async def reads(inv: One) -> str:
        return f"{inv[before]} {inv.idempotency_key.removeprefix(inv.run_id)}"

    found = each(reads, needs=(before,))
    pipeline: Pipeline[str, object, Any] = Pipeline(
        id="line", input=str, deps=object, steps=(before, found), output=_output(found)
    )
    async with World(system).engine(app(pipeline)) as engine:
        result = await (await engine.submit(pipeline, "ab")).result()
    assert isinstance(result, Succeeded)
    assert result.output == ["state /item/0/each/v1", "state /item/1/each/v1"]


# --- failures


@virtually
async def test_an_item_that_fails_fails_the_step_after_those_that_run(system: VirtualSystem) -> None:
    """B-22: and no other is started."""
    crowd = Crowd()

    async def fails(inv: One) -> int:
        await crowd(inv.index)
        if inv.index == 1:
            raise Fail("not this one", reason="bad")
        return inv.index

    pipeline = made_by(each(fails, concurrency=3))
    events = Events()
    async with World(system).engine(app(pipeline), observers=[events]) as engine:
        run = await engine.submit(pipeline, "abcdef")
        await crowd.until(3)
        crowd.let_go(1)
        await events.until("attempt-failed")
        assert (await run.info()).status == "running"
        crowd.let_go(0, 2)
        result = await run.result()
        assert isinstance(result, Failed)
        assert (result.failure.reason, result.failure.item, result.failure.step) == ("bad", 1, "each/v1")
        assert result.in_doubt == ("each/v1",)
        assert result.item_counts == (ItemCounts("each/v1", 6, completed=2, failed=1),)  # U-12
        assert result.item_counts[0].not_started == 3
        outputs = [fact.index for fact in await facts(run) if isinstance(fact, ItemOutputRecorded)]
    assert outputs == [0, 2]
    assert crowd.started == [0, 1, 2]


@virtually
async def test_collected_items_that_fail_are_part_of_the_state(system: VirtualSystem) -> None:
    """B-10: by their own word or because their attempts are used up."""

    async def some(inv: One) -> int:
        if inv.index == 1:
            raise Fail("no", reason="bad")
        if inv.index == 2:
            raise OSError("down")
        return inv.index

    pipeline = made_by(each(some, collect=True, retry=Retry(max_attempts=2, initial=0, jitter=0, then="fail")))
    async with World(system).engine(app(pipeline)) as engine:
        result = await (await engine.submit(pipeline, "abcd")).result()
    assert isinstance(result, Succeeded)
    state: list[Settled[int]] = result.output
    assert [one.value for one in state] == [0, None, None, 3]
    assert [one.failure.reason if one.failure else "" for one in state] == ["", "bad", "attempts-exhausted", ""]


@virtually
async def test_an_item_whose_attempts_are_used_up_holds_the_run(system: VirtualSystem) -> None:
    """M-5: the others that run end first; released, it has as many attempts again."""
    down = True

    async def flaky(inv: One) -> int:
        if inv.index == 1 and down:
            raise OSError("down")
        return inv.attempt

    pipeline = made_by(each(flaky, concurrency=2, retry=Retry(max_attempts=2, initial=0, jitter=0)))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abcd")
        info = await until(run, "held")
        assert (info.reason, info.step) == ("attempts-exhausted", "each/v1")
        down = False
        await run.release(actor="ada")
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output[1] == 3


# --- stops


@virtually
async def test_a_cancel_stops_the_handlers_and_keeps_what_was_done(system: VirtualSystem) -> None:
    """R-12, U-12: `step.reports(inv)` says what became of each, with the keys of their handlers."""
    crowd = Crowd()
    seen: list[ItemReport[int, int]] = []
    stopped: list[int] = []

    async def waits(inv: One) -> int:
        if inv.index == 1:
            raise Fail("no")
        try:
            await crowd(inv.index)
        except asyncio.CancelledError:
            stopped.append(inv.index)
            raise
        return inv.index + 100

    async def find_all(inv: UnwindInvocation[str, object]) -> None:
        seen.extend(found.reports(inv))

    found = each(waits, concurrency=4, collect=True, unwind=take_back, unwind_in_doubt=find_all)
    pipeline = made_by(found)
    events = Events()
    async with World(system).engine(app(pipeline), observers=[events]) as engine:
        run = await engine.submit(pipeline, "abcdef")
        await crowd.until(4)  # 0, 2, 3, and 4 in the place of 1
        crowd.let_go(0)
        await crowd.until(5)
        await events.until("attempt-succeeded")
        await run.cancel(actor="ada")
        assert isinstance(await run.result(), Canceled)
        assert (await engine.verify()).findings == ()
    assert sorted(stopped) == [2, 3, 4, 5]
    assert [(one.index, one.item, one.status, one.value) for one in seen] == [
        (0, 97, "completed", 100),
        (1, 98, "failed", None),
        *((index, 97 + index, "in-doubt", None) for index in (2, 3, 4, 5)),
    ]
    assert {one.idempotency_key for one in seen} == {f"{run.id}/item/{index}/each/v1" for index in range(6)}
    assert seen[1].failure is not None


@virtually
async def test_a_cancel_before_any_item_runs_twice_reports_those_not_started(system: VirtualSystem) -> None:
    """U-12"""
    gate = Gate()
    seen: list[str] = []

    async def waits(inv: One) -> int:
        await gate()
        return 0

    def find_all(inv: UnwindInvocation[str, object]) -> None:
        seen.extend(one.status for one in found.reports(inv))

    found = each(waits, concurrency=1, unwind=take_back, unwind_in_doubt=find_all)
    pipeline = made_by(found)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abc")
        await gate.until(1)
        await run.cancel(actor="ada")
        assert isinstance(await run.result(), Canceled)
    assert seen == ["in-doubt", "not-started", "not-started"]


@virtually
async def test_a_step_that_settles_finishes_its_items_first(system: VirtualSystem) -> None:
    """R-12"""
    crowd = Crowd()

    async def waits(inv: One) -> int:
        await crowd(inv.index)
        return inv.index

    @step("after/v1")
    async def after(inv: Inv) -> None:
        pass

    pipeline = made_by(each(waits, concurrency=2, on_cancel="settle"), after)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abcd")
        await crowd.until(2)
        await run.cancel(actor="ada")
        crowd.let_go(0, 1, 2, 3)
        assert isinstance(await run.result(), Canceled)
        assert "BoundaryResolved" in await names(run)
    assert crowd.started == [0, 1, 2, 3]


@virtually
async def test_a_hold_lets_those_that_run_end_and_a_release_starts_others_at_once(system: VirtualSystem) -> None:
    """R-17: a release is not left waiting for an item to end."""
    crowd = Crowd()
    events = Events()

    async def waits(inv: One) -> int:
        await crowd(inv.index)
        return inv.index

    pipeline = made_by(each(waits, concurrency=3))
    async with World(system).engine(app(pipeline), observers=[events]) as engine:
        run = await engine.submit(pipeline, "abcde")
        await crowd.until(3)
        await run.hold(actor="ada")
        crowd.let_go(0, 1)
        await events.until("attempt-succeeded", 2)
        assert crowd.started == [0, 1, 2]
        await run.release(actor="ada")
        await crowd.until(5)
        assert crowd.now == 3
        crowd.let_go(2, 3, 4)
        assert isinstance(await run.result(), Succeeded)


@virtually
async def test_a_held_run_rests_when_its_items_have_ended(system: VirtualSystem) -> None:
    """R-17"""
    crowd = Crowd()

    async def waits(inv: One) -> int:
        await crowd(inv.index)
        return inv.index

    pipeline = made_by(each(waits, concurrency=2))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abcde")
        await crowd.until(2)
        await run.hold(actor="ada")
        crowd.let_go(0, 1, 2, 3, 4)
        await engine.idle()
        assert ((await run.info()).status, engine.running, crowd.started) == ("held", 0, [0, 1])
        await run.release(actor="ada")
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert crowd.started == [0, 1, 2, 3, 4]


@virtually
async def test_resolved_from_outside_the_handlers_are_fenced(system: VirtualSystem) -> None:
    """R-17: what they return late is dropped, and the step has the operator's state."""
    gate = Gate()
    events = Events()

    async def stubborn(inv: One) -> int:
        try:
            await gate()
        except asyncio.CancelledError:
            return 1  # as if nothing had happened
        return 0

    pipeline = made_by(each(stubborn))
    async with World(system).engine(app(pipeline), observers=[events]) as engine:
        run = await engine.submit(pipeline, "abc")
        await gate.until(3)
        await run.resolve("each/v1", value=[7, 8, 9], actor="ada")
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == [7, 8, 9]
        assert "ItemOutputRecorded" not in await names(run)
    assert [event.detail for event in events if event.kind == "late"] == ["item 0", "item 1", "item 2"]


# --- stops of the engine


@virtually
async def test_a_drain_lets_items_end_and_starts_no_other(system: VirtualSystem) -> None:
    """R-6"""
    crowd = Crowd()

    async def waits(inv: One) -> int:
        await crowd(inv.index)
        return inv.attempt

    pipeline = made_by(each(waits, concurrency=2))
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abcd")
        await crowd.until(2)
        asyncio.get_running_loop().call_later(5, crowd.let_go, 0, 1)
        await engine.drain(3600)
        assert crowd.started == [0, 1]
    crowd.let_go(2, 3)
    async with world.engine(app(pipeline)) as engine:
        result = await (await engine.run(run.id)).result()
        assert isinstance(result, Succeeded)
        assert result.output == [1, 1, 1, 1]
    assert crowd.started == [0, 1, 2, 3]


@virtually
async def test_a_drain_whose_time_is_over_interrupts_the_items(system: VirtualSystem) -> None:
    """R-6: which costs no attempt of a policy, and others see the interruption in `inv.canceled`."""
    crowd = Crowd()

    async def waits(inv: One) -> int:
        if inv.attempt == 1:
            await crowd(inv.index)
        return inv.attempt

    pipeline = made_by(each(waits, concurrency=2, retry=ONCE))
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "ab")
        await crowd.until(2)
        await engine.drain(0)
        assert engine.running == 0
    async with world.engine(app(pipeline)) as engine:
        run = await engine.run(run.id)
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == [2, 2]
        causes = [fact.cause for fact in await facts(run) if isinstance(fact, ItemRetryScheduled)]
    assert causes == ["interrupted", "interrupted"]


@virtually
async def test_items_reserved_while_a_drain_begins_do_not_start(system: VirtualSystem) -> None:
    """R-6: their reservation was on its way."""
    started: list[int] = []

    async def notes(inv: One) -> int:
        started.append(inv.index)
        return inv.attempt

    pipeline = made_by(each(notes, concurrency=2))
    world = World(system)
    async with world.engine(app(pipeline), around=Gated) as engine, world.client(app(pipeline)) as client:
        store = world.stores[-1]
        assert isinstance(store, Gated)
        store.shut("append")
        run = await client.submit(pipeline, "ab", delay=1)
        await store.arrived["append"].wait()
        draining = asyncio.ensure_future(engine.drain(600))
        await asyncio.sleep(0)
        store.open_gate("append")
        await draining
        assert started == []
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await (await engine.run(run.id)).result(), Succeeded)


@virtually
async def test_an_abort_leaves_no_task_behind(system: VirtualSystem) -> None:
    """R-8: as a kill would; the next engine does what was not recorded, and that alone."""
    crowd = Crowd()
    before: set[asyncio.Task[Any]] = set()

    async def waits(inv: One) -> tuple[int, int]:
        if inv.attempt == 1:
            await crowd(inv.index)
        return inv.index, inv.attempt

    pipeline = made_by(each(waits, concurrency=3))
    world = World(system)
    before = asyncio.all_tasks()
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abcde")
        await crowd.until(3)
        crowd.let_go(0)
        await crowd.until(4)
        engine.abort()
        for _ in range(10):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() - before == set()
    assert crowd.now == 0
    crowd.let_go(*range(5))
    async with world.engine(app(pipeline)) as engine:
        run = await engine.run(run.id)
        result = await run.result(timeout=3600)
        assert isinstance(result, Succeeded)
        assert result.output == [(0, 1), (1, 2), (2, 2), (3, 2), (4, 1)]
        lost = [(f.index, f.attempt) for f in await facts(run) if isinstance(f, ItemRetryScheduled)]
        assert lost == [(1, 1), (2, 1), (3, 1)]
        assert (await engine.verify()).findings == ()


@virtually
async def test_a_stop_before_the_tasks_have_run_is_noticed(system: VirtualSystem) -> None:
    """R-16: a task cancelled before its first step would never say that it ended."""

    async def attempt(inv: One) -> int:
        return inv.attempt

    def stop_those_before(event: Event) -> None:
        if event.kind == "attempt-started" and (event.detail, event.attempt) == ("item 2", 1):
            host: Any = vars(engine)["_host"]
            host.live[event.run_id].stop_handler("fenced")

    pipeline = made_by(each(attempt, concurrency=3))
    async with World(system).engine(app(pipeline), observers=[stop_those_before]) as engine:
        result = await (await engine.submit(pipeline, "abc")).result(timeout=600)
        assert isinstance(result, Succeeded)
        assert result.output == [2, 2, 1]
        assert (await engine.verify()).findings == ()


# --- broken contracts


def wrong(value: object) -> int:
    """Something that the annotation does not say."""
    return cast("int", value)


def _returns_text(inv: One) -> int:
    return wrong("text" if inv.item == 98 else inv.item)


@step("never/v1")
async def undeclared(inv: Inv) -> str:
    return ""


async def _reads_undeclared(inv: One) -> int:
    if inv.item == 98:
        return len(inv[undeclared])
    return inv.item


async def _later(inv: One) -> int:
    return wrong(Later(1) if inv.item == 98 else inv.item)


@pytest.mark.parametrize("broken", [_returns_text, _reads_undeclared, _later])
@virtually
async def test_a_handler_that_breaks_its_contract_makes_the_run_invalid(system: VirtualSystem, broken: Handler) -> None:
    """D-1, D-2: what the others made is kept, and a deployment mends it."""
    called: list[int] = []
    pipeline = made_by(each(broken, concurrency=2))
    world = World(system)
    async with world.engine(app(pipeline, build="one")) as engine:
        run = await engine.submit(pipeline, "abcd")
        info = await until(run, "invalid")
        assert "contract-broken" in info.reason or "payload-unserialisable" in info.reason
        with pytest.raises(InvalidRun):
            await run.result(timeout=1)

    async def mended(inv: One) -> int:
        called.append(inv.index)
        return inv.item

    pipeline = made_by(each(mended, concurrency=2))
    async with world.engine(app(pipeline, build="two")) as engine:
        run = await engine.run(run.id)
        result = await run.result(timeout=600)
        assert isinstance(result, Succeeded)
        assert result.output == [97, 98, 99, 100]
        assert (await engine.verify()).findings == ()
        causes = [fact.cause for fact in await facts(run) if isinstance(fact, ItemRetryScheduled)]
    assert causes == ["interrupted"]
    assert called[0] == 1  # tried before, so it comes first
    assert 0 not in called


@virtually
async def test_an_invalid_run_that_is_canceled_meanwhile_is_canceled(system: VirtualSystem) -> None:
    """R-12: whatever a handler of a canceled run does."""
    crowd = Crowd()

    async def waits(inv: One) -> int:
        if inv.index == 0:
            return wrong("text")
        try:
            await crowd(inv.index)
        except asyncio.CancelledError:
            return wrong(object())
        return 0

    pipeline = made_by(each(waits, concurrency=2))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "ab")
        await crowd.until(1)
        await run.cancel(actor="ada")
        assert isinstance(await run.result(timeout=60), Canceled)


def _raises(inv: Inv) -> list[int]:
    raise ValueError("what are the items?")


def _unencodable(inv: Inv) -> list[Any]:
    return [1, "two"]


def _text(inv: Inv) -> Any:
    return "text"


def _too_many(inv: Inv) -> list[int]:
    return list(range(11))


def _too_large(inv: Inv) -> list[int]:
    return [10**15] * 10


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (_raises, "raised ValueError: what are the items?"),
        (_unencodable, r"$[1]"),
        (_text, "must be a list or a tuple, not str"),
        (_too_many, "are 11; its limit is 10, which `limit=` raises"),
        (_too_large, "the limit is 100"),
    ],
)
@virtually
async def test_items_that_cannot_be_make_the_run_invalid(system: VirtualSystem, items: Any, said: str) -> None:
    """B-1, B-2, D-1: before anything is done; mended by a deployment."""
    pipeline = made_by(each(double, items=items, limit=10))
    world = World(system)
    async with world.engine(app(pipeline, payload_limit=100)) as engine:
        run = await engine.submit(pipeline, "ab")
        info = await until(run, "invalid")
        assert said in info.reason
        assert "BoundaryOpened" not in await names(run)
    pipeline = made_by(each(double))
    async with world.engine(app(pipeline, build="mended", payload_limit=100)) as engine:
        assert isinstance(await (await engine.run(run.id)).result(timeout=600), Succeeded)


@virtually
async def test_an_output_over_the_limit_holds_the_run(system: VirtualSystem) -> None:
    """P-4: the others are kept."""

    async def big(inv: One) -> str:
        return "x" * (200 if inv.index == 1 and inv.attempt == 1 else 2)

    pipeline = made_by(each(big))
    async with World(system).engine(app(pipeline, payload_limit=100)) as engine:
        run = await engine.submit(pipeline, "abc")
        info = await until(run, "held")
        assert info.reason == "payload-too-large"
        outputs = [fact.index for fact in await facts(run) if isinstance(fact, ItemOutputRecorded)]
        assert outputs == [0, 2]
        await run.release(actor="ada")
        assert isinstance(await run.result(), Succeeded)


# --- deployments


@virtually
async def test_a_deployment_changes_the_code_and_not_the_items(system: VirtualSystem) -> None:
    """B-20"""
    crowd = Crowd()

    async def first(inv: One) -> str:
        if inv.index:
            await crowd(inv.index)
        return f"old {inv.item}"

    pipeline = made_by(each(first, concurrency=1))
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abc")
        await crowd.until(1)
        await engine.drain(0)

    async def second(inv: One) -> str:
        return f"new {inv.item}"

    def none(inv: Inv) -> list[int]:
        return []

    pipeline = made_by(each(second, items=none, concurrency=5))
    async with world.engine(app(pipeline)) as engine:
        result = await (await engine.run(run.id)).result()
    assert isinstance(result, Succeeded)
    assert result.output == ["old 97", "new 98", "new 99"]


@virtually
async def test_a_removed_step_makes_the_run_invalid_until_it_is_back(system: VirtualSystem) -> None:
    """E-2, D-1"""
    gate = Gate()

    async def waits(inv: One) -> int:
        if inv.attempt == 1 and inv.index:
            await gate()
        return inv.item

    @step("other/v1")
    async def other(inv: Inv) -> None:
        pass

    pipeline = made_by(each(waits), other)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "ab")
        await gate.until(1)
        await engine.drain(0)
    async with world.engine(app(line(other))) as engine:
        await until(await engine.run(run.id), "invalid")
    async with world.engine(app(pipeline)) as engine:
        result = await (await engine.run(run.id)).result(timeout=600)
        assert isinstance(result, Succeeded)
        assert result.output == [97, 98]


# --- odd ends


@pytest.mark.parametrize(
    "error", [GeneratorExit, asyncio.CancelledError, SystemExit, KeyboardInterrupt, BaseException, StopIteration]
)
@virtually
async def test_whatever_a_handler_of_an_item_raises_is_recorded(
    system: VirtualSystem, error: type[BaseException]
) -> None:
    """M-5"""

    async def odd(inv: One) -> int:
        if inv.index == 1:
            raise error
        return 0

    pipeline = made_by(each(odd, collect=True, retry=ONCE))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abc")
        result = await run.result(timeout=60)
        assert isinstance(result, Succeeded)
        assert [one.value for one in result.output] == [0, None, 0]
        failed = [fact for fact in await facts(run) if isinstance(fact, ItemFailed)]
    assert [fact.in_doubt for fact in failed] == [True]


@virtually
async def test_an_item_that_runs_for_very_long_is_reported_once(system: VirtualSystem) -> None:
    """R-15"""
    crowd = Crowd()
    events = Events()

    async def waits(inv: One) -> int:
        if inv.index == 1:
            await crowd(inv.index)
        return 0

    pipeline = made_by(each(waits))
    async with World(system).engine(app(pipeline), observers=[events]) as engine:
        run = await engine.submit(pipeline, "abc")
        asyncio.get_running_loop().call_later(5 * STUCK_US / SECOND_US, crowd.let_go, 1)
        assert isinstance(await run.result(), Succeeded)
    told = [(event.step, event.attempt, event.detail) for event in events if event.kind == "stuck"]
    assert told == [("each/v1", 1, "item 1: 10 minutes")]
