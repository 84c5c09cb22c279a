"""Waiting, watching, reading and cleaning up; and callers that are cancelled at any await [I-1, R-9, R-16]."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import pytest

from perdure import (
    Canceled,
    InvalidArgument,
    InvalidRun,
    KeyTaken,
    NotFound,
    Pipeline,
    Retry,
    RunInfo,
    ScheduleConflict,
    Succeeded,
    connect,
    step,
)
from perdure.core.facts import RunSubmitted
from perdure.storage.memory import MemoryStore
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import SECOND_US, Gate, Inv, Line, World, app, facts, line, names, virtually

T = TypeVar("T")


class CancelledAt:
    """Awaits `work`, whose task is cancelled when it suspends for the so-manieth time, counted from zero."""

    def __init__(self, work: Coroutine[Any, Any, T], nth: int) -> None:
        self._work = work
        self._nth = nth
        self.suspended = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        send: Callable[[], Any] = lambda: next(inner)  # noqa: E731  the next thing to do
        while True:
            try:
                waiting = send()
            except StopIteration as end:
                return end.value
            task = asyncio.current_task()
            if self.suspended == self._nth and task is not None:
                task.cancel()
            self.suspended += 1
            try:
                sent = yield waiting
            except BaseException as error:
                thrown = error
                send = lambda: inner.throw(thrown)  # noqa: B023, E731  called before the next turn
            else:
                given = sent
                send = lambda: inner.send(given)  # noqa: B023, E731  called before the next turn


async def cancelled_at(work: Coroutine[Any, Any, T], nth: int) -> bool:
    """Run `work` in a task of its own; whether it was cancelled before it was done."""

    async def awaiting() -> None:
        await CancelledAt(work, nth)

    task = asyncio.ensure_future(awaiting())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


def itself(input: str) -> str:
    return input


def one_for_all(input: str) -> str:
    return "same"


@step("plain/v1")
async def plain(inv: Inv) -> None:
    pass


def quick() -> Line:
    """A pipeline of one step that does nothing."""
    return line(plain, resource=itself)


def waiting(gate: Gate) -> Line:
    """A pipeline of one step that waits."""

    @step("wait/v1")
    async def wait(inv: Inv) -> None:
        await gate()

    return line(wait)


# --- callers that are cancelled


@pytest.mark.parametrize("options", [{}, {"delay": 1}], ids=["at once", "delayed"])
@pytest.mark.parametrize("by", ["engine", "client"])
@virtually
async def test_a_cancelled_submit_leaves_a_whole_run_or_none(
    system: VirtualSystem, by: str, options: dict[str, Any]
) -> None:
    """J-14, R-16: what was sent is durable and executed without anybody looking; no run without an id comes of it."""
    pipeline = quick()
    world = World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        door = engine if by == "engine" else client
        cancelled = nth = 0
        while await cancelled_at(door.submit(pipeline, f"run {nth}", **options), nth):
            cancelled += 1
            nth += 1
        assert cancelled >= 1
        before_us = world.now_us()
        await engine.idle()
        for info in await engine.list():
            assert info.run_id
            assert isinstance(await engine.result(info.run_id), Succeeded)
            assert (await names(await engine.run(info.run_id)))[-1] == "RunSucceeded"
        assert world.now_us() - before_us <= SECOND_US
        assert {info.resource for info in await engine.list()} <= {f"run {n}" for n in range(nth + 1)}
        assert (await engine.verify()).findings == ()
        again = await engine.submit(pipeline, "run 0")
        assert isinstance(await again.result(), Succeeded)


@pytest.mark.parametrize("state", ["running", "delayed"])
@pytest.mark.parametrize("by", ["engine", "client"])
@virtually
async def test_a_cancelled_cancel_is_asked_for_or_not_and_acts_at_once_if_so(
    system: VirtualSystem, by: str, state: str
) -> None:
    """J-14, R-12, R-16: a request that is durable is acted on though its caller is gone."""
    world = World(system)
    pipeline = waiting(Gate())
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        door = engine if by == "engine" else client
        nth = 0
        while True:
            run = await engine.submit(pipeline, "x", delay=None if state == "running" else 5000)
            await asyncio.sleep(0)
            cancelled = await cancelled_at(door.cancel(run.id, actor="me"), nth)
            await system.sleep(1)  # far less than any sweep
            asked = "RunCancelRequested" in await names(run)
            assert cancelled or asked
            if asked:
                assert (await run.info()).status == "canceled"
            else:
                await run.cancel()
            if not cancelled:
                break
            nth += 1
        assert nth >= 1


@virtually
async def test_a_cancelled_wait_disturbs_neither_the_run_nor_other_waiters(system: VirtualSystem) -> None:
    """R-16"""
    gate = Gate()
    pipeline = waiting(gate)
    world = World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        run = await engine.submit(pipeline, "x")
        staying = [asyncio.ensure_future(door.result(run.id)) for door in (engine, client)]
        for door in (engine, client):
            for nth in range(3):
                asyncio.get_running_loop().call_later(5, gate.go.set)
                if not await cancelled_at(door.result(run.id), nth):
                    break
        gate.go.set()
        for waiter in staying:
            assert isinstance(await waiter, Succeeded)


# --- result


@virtually
async def test_result_can_be_asked_for_before_and_after_the_end_by_anybody(system: VirtualSystem) -> None:
    """R-16: a waiter registers, then looks; an end at any moment between reaches it. A thousand times."""
    pipeline = quick()
    world = World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:

        async def wait(number: int) -> None:
            run = await engine.submit(pipeline, str(number), delay=0 if number % 2 else 0.001)
            for _ in range(number // 2 % 25):
                await asyncio.sleep(0)
            door = client if number % 3 else engine
            assert isinstance(await door.result(run.id, timeout=30), Succeeded)

        for start in range(0, 1000, 100):
            await asyncio.gather(*(wait(number) for number in range(start, start + 100)))


@virtually
async def test_a_result_that_does_not_come_in_time_is_a_time_out_and_the_run_goes_on(system: VirtualSystem) -> None:
    """I-1"""
    gate = Gate()
    pipeline = waiting(gate)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        timeouts: list[Any] = [0, 0.5, timedelta(seconds=3)]
        for timeout in timeouts:
            before_us = world.now_us()
            with pytest.raises(TimeoutError, match=run.id):
                await run.result(timeout=timeout)
            seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
            assert world.now_us() - before_us == seconds * SECOND_US
        gate.go.set()
        assert isinstance(await run.result(timeout=1), Succeeded)
        assert isinstance(await run.result(timeout=0), Succeeded)  # it is there already


@pytest.mark.parametrize("timeout", [math.nan, -1, "5", math.inf, True, timedelta(seconds=-1)])
@virtually
async def test_a_time_out_that_is_no_duration_is_refused_at_once(system: VirtualSystem, timeout: Any) -> None:
    """P-2: a comparison with NaN would never be over."""
    pipeline = waiting(Gate())
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidArgument, match="timeout"):
            await run.result(timeout=timeout)
        await run.cancel()


@virtually
async def test_an_output_that_does_not_decode_any_more_is_said_and_does_not_hang(system: VirtualSystem) -> None:
    """P-3, D-3: the run has ended; its result has a reason instead of a value."""

    @step("make/v1")
    async def make(inv: Inv) -> str:
        return "text"

    @step("make/v1")
    async def make_number(inv: Inv) -> int:
        return 1

    first: Any = Pipeline(id="line", input=str, deps=object, steps=(make,), output=lambda inv: inv[make])
    second: Any = Pipeline(id="line", input=str, deps=object, steps=(make_number,), output=lambda inv: inv[make_number])
    world = World(system)
    async with world.engine(app(first)) as engine:
        run = await engine.submit(first, "x")
        result = await run.result()
        assert isinstance(result, Succeeded)
    async with world.engine(app(second, build="next")) as engine:
        with pytest.raises(InvalidRun, match="output") as caught:
            await engine.result(run.id)
        assert caught.value.reason == "payload-unreadable"
    async with connect(MemoryStore(world.data), system=system) as client:  # who knows no types gets plain JSON
        plain_result = await client.result(run.id)
        assert isinstance(plain_result, Succeeded)
        assert plain_result.output == "text"


@virtually
async def test_the_result_belongs_to_its_reader(system: VirtualSystem) -> None:
    """M-7"""

    @step("make/v1")
    async def make(inv: Inv) -> list[int]:
        return [1]

    pipeline: Any = Pipeline(id="line", input=str, deps=object, steps=(make,), output=lambda inv: inv[make])
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        first, second = await asyncio.gather(run.result(), run.result())
        assert isinstance(first, Succeeded)
        assert isinstance(second, Succeeded)
        first.output.append(2)
        assert second.output == [1]
        third = await run.result()
        assert isinstance(third, Succeeded)
        assert third.output == [1]


# --- watch


@virtually
async def test_watching_from_another_process_sees_every_stand_to_the_end(system: VirtualSystem) -> None:
    """R-16"""

    @step("one/v1", retry=Retry(initial=10, cap=10, jitter=0))
    async def one(inv: Inv) -> None:
        await system.sleep(1)
        if inv.attempt == 1:
            raise OSError("down")

    @step("two/v1")
    async def two(inv: Inv) -> None:
        await system.sleep(1)

    pipeline = line(one, two)
    world = World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        run = await engine.submit(pipeline, "x", delay=5)
        seen: list[tuple[str, str, int]] = []
        async for info in client.watch(run.id):
            if not seen or seen[-1][:2] != (info.status, info.step):
                seen.append((info.status, info.step, world.now_us() // SECOND_US))
        assert seen == [
            ("ready", "", 0),
            ("running", "one/v1", 5),
            ("ready", "one/v1", 6),
            ("running", "one/v1", 16),
            ("running", "two/v1", 17),
            ("succeeded", "", 18),
        ]


@virtually
async def test_a_watcher_that_leaves_early_leaves_nothing(system: VirtualSystem) -> None:
    """R-16"""
    gate = Gate()
    pipeline = waiting(gate)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        infos: list[RunInfo] = []
        watching = run.watch()
        async for info in watching:
            infos.append(info)
            break
        gate.go.set()
        assert isinstance(await run.result(), Succeeded)
        assert infos[0].status == "running"


# --- read


@virtually
async def test_what_is_not_there_is_not_found(system: VirtualSystem) -> None:
    """I-1"""
    async with World(system).engine(app(quick())) as engine:
        calls: list[Callable[[], Any]] = [
            lambda: engine.run("nobody"),
            lambda: engine.info("nobody"),
            lambda: engine.result("nobody"),
            lambda: engine.cancel("nobody"),
            lambda: engine.hold("nobody"),
            lambda: engine.release("nobody"),
            lambda: engine.retry("nobody"),
            lambda: engine.resolve("nobody", skip=True),
            lambda: engine.explain("nobody"),
            lambda: engine.journal("nobody"),
            lambda: engine.verify("nobody"),
        ]
        for call in calls:
            with pytest.raises(NotFound, match="nobody"):
                await call()


ODD_IDS: list[Any] = ["", " ", "a\0b", "\ud800", "x" * 600, b"id", 3, ["id"], {}]


@pytest.mark.parametrize("odd", ODD_IDS, ids=ascii)
@virtually
async def test_an_id_that_can_be_none_is_refused_by_every_call(system: VirtualSystem, odd: Any) -> None:
    """P-2: also by those that only read; a store would say something else of its own."""
    async with World(system).engine(app(quick())) as engine:
        calls: list[Callable[[Any], Any]] = [
            engine.run, engine.info, engine.result, engine.cancel, engine.hold, engine.release, engine.retry,
            engine.explain, engine.journal, engine.verify, lambda run_id: engine.resolve(run_id, skip=True),
            lambda run_id: anext(engine.watch(run_id)),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidArgument, match="run id must"):
                await call(odd)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"status": "succeded"}, "there is no status 'succeded'; there are ready, running"),
        ({"status": ["held", ""]}, "there is no status ''"),
        ({"status": 3}, "a word or a sequence"),
        ({"status": None}, "a word or a sequence"),
        ({"pipeline": "\ud800"}, "pipeline must not hold a lone surrogate"),
        ({"tenant": 3}, "tenant must be a str"),
        ({"resource": "a\0"}, "resource must not hold NUL"),
        ({"after": 3}, "after=3 is no place in a list"),
        ({"limit": "5"}, "limit must be a whole number"),
        ({"limit": 0}, "limit must be a whole number between 1 and 1,000, not 0"),
        ({"limit": True}, "limit must be a whole number"),
        ({"submitted_after": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001  # the point
    ],
    ids=str,
)
@virtually
async def test_a_filter_that_fits_nothing_there_can_be_is_refused(
    system: VirtualSystem, where: dict[str, Any], said: str
) -> None:
    """I-1: an empty answer to a misspelt question looks like good news."""
    async with World(system).engine(app(quick())) as engine:
        with pytest.raises(InvalidArgument, match=said):
            await engine.list(**where)
        if where.keys() <= {"pipeline", "tenant", "status"}:
            with pytest.raises(InvalidArgument, match=said):
                await engine.counts(**where)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "3", math.nan])
@virtually
async def test_a_bound_for_gc_that_is_none_is_refused(system: VirtualSystem, limit: Any) -> None:
    """R-9: in a dry run, too."""
    async with World(system).engine(app(quick())) as engine:
        with pytest.raises(InvalidArgument, match="limit must be a whole number"):
            await engine.gc(1, limit=limit, dry_run=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"annotations": 0}, "annotations must be a mapping, not int"),
        ({"annotations": ["a"]}, "annotations must be a mapping, not list"),
        ({"actor": []}, "actor must be a str"),
        ({"pipeline": "quick"}, "submit takes a Pipeline, .* not 'quick'"),
        ({"pipeline": None}, "submit takes a Pipeline"),
    ],
    ids=str,
)
@virtually
async def test_what_no_submission_can_be_made_of_is_named(
    system: VirtualSystem, options: dict[str, Any], said: str
) -> None:
    """P-2"""
    pipeline = quick()
    async with World(system).engine(app(pipeline)) as engine:
        with pytest.raises(InvalidArgument, match=said):
            await cast(Any, engine).submit(**{"pipeline": pipeline, "input": "x", **options})
        assert not await engine.list()


@virtually
async def test_lists_are_pages_newest_first_and_filters_hold_together(system: VirtualSystem) -> None:
    """I-1"""
    pipeline, other = quick(), line(plain, id="other")
    async with World(system).engine(app(pipeline, other)) as engine:
        for n in range(5):
            await engine.submit(pipeline, f"run {n}", tenant="a" if n % 2 else "b", delay=1000)
            await system.sleep(1)
        ended = await engine.submit(other, "x")
        await ended.result()
        page = await engine.list(pipeline="line", limit=2)
        pages = [[info.resource for info in page]]
        while page.next is not None:
            page = await engine.list(pipeline="line", limit=2, after=page.next)
            pages.append([info.resource for info in page])
        assert pages == [["run 4", "run 3"], ["run 2", "run 1"], ["run 0"]]
        tenant = await engine.list(pipeline="line", tenant="a", status=("ready", "held"))
        assert [info.resource for info in tenant] == ["run 3", "run 1"]
        start = datetime.fromtimestamp(EPOCH_US / 1e6, UTC)
        between = await engine.list(
            submitted_after=start + timedelta(seconds=1), submitted_before=start + timedelta(seconds=3)
        )
        assert [info.resource for info in between] == ["run 2", "run 1"]
        assert [info.run_id for info in await engine.list(resource="run 2", status="ready")] != []
        assert await engine.counts() == {("line", "ready"): 5, ("other", "succeeded"): 1}
        assert await engine.counts(tenant="a") == {("line", "ready"): 2}
        for limit in (0, -1, 1001):
            with pytest.raises(InvalidArgument, match="limit"):
                await engine.list(limit=limit)
        with pytest.raises(InvalidArgument, match="time zone"):
            await engine.list(submitted_after=datetime(2030, 1, 1))  # noqa: DTZ001  a naive one is the point


@virtually
async def test_explain_and_journal_tell_the_same_story_in_engine_and_client(system: VirtualSystem) -> None:
    """E-11"""

    @step("skipped/v1", when=never)
    async def skipped(inv: Inv) -> None:
        raise AssertionError("skipped")

    pipeline = line(plain, skipped)
    world = World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        run = await engine.submit(pipeline, "x")
        await run.result()
        assert await client.explain(run.id) == await engine.explain(run.id)
        assert await client.journal(run.id) == await engine.journal(run.id)
        fates = [(explained.step, explained.fate) for explained in (await run.explain()).steps]
        assert fates == [("plain/v1", "succeeded"), ("skipped/v1", "skipped")]
        journal = await run.journal()
        assert [recorded.seq for recorded in journal] == list(range(1, len(journal) + 1))


def never(inv: Inv) -> bool:
    return False


# --- retention


@virtually
async def test_gc_removes_terminal_runs_that_are_old_enough_whole(system: VirtualSystem) -> None:
    """R-9, R-5: never a live one, whatever its age, nor one that holds its slot for ever."""
    pipeline = quick()
    once = line(plain, id="once", resource=itself, slot="once")
    gate = Gate()
    live = line_waiting(gate)
    world = World(system)
    async with world.engine(app(pipeline, once, live)) as engine:
        old = [await engine.submit(pipeline, f"old {n}") for n in range(7)]
        old_once = await engine.submit(once, "only")
        for run in [*old, old_once]:
            await run.result()
        running = await engine.submit(live, "x")
        parked = await engine.submit(pipeline, "parked", delay=100_000)
        held = await engine.submit(pipeline, "held", delay=1)
        await held.hold()
        await system.sleep(1000)
        young = await engine.submit(pipeline, "young")
        await young.result()
        with pytest.raises(InvalidArgument, match="older_than"):
            await engine.gc(-1)
        report = await engine.gc(500, dry_run=True)
        assert (report.removed, report.remaining) == (0, 7)
        done: list[int] = []
        report = await engine.gc(timedelta(seconds=500), limit=3, progress=done.append)
        assert (report.removed, report.remaining, done) == (3, 4, [3])
        report = await engine.gc(500)
        assert (report.removed, report.remaining) == (4, 0)
        left = {info.run_id for info in await engine.list()}
        assert left == {running.id, parked.id, held.id, young.id, old_once.id}
        for run in old:
            with pytest.raises(NotFound):
                await run.info()
        assert (await engine.gc(0)).removed == 0  # the young one ended now, not before now
        await system.sleep(1)
        assert (await engine.gc(0)).removed == 1
        assert (await engine.submit(once, "only")).id == old_once.id
        gate.go.set()
        assert isinstance(await running.result(), Succeeded)
        assert (await engine.verify()).findings == ()


def line_waiting(gate: Gate) -> Line:
    @step("wait/v1")
    async def wait(inv: Inv) -> None:
        await gate()

    return line(wait, id="waiting")


# --- clients of other processes


@virtually
async def test_a_client_submits_and_operates_and_the_engine_notices_at_once(system: VirtualSystem) -> None:
    """R-2: without a poll of a minute, whatever the client does."""
    gate = Gate()

    @step("one/v1", retry=Retry(initial=5000, cap=5000))
    async def one(inv: Inv) -> None:
        if inv.input == "wait":
            await gate()
        if inv.attempt == 1:
            raise OSError("down")

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline)), world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x")
        async for info in run.watch():
            if info.reason:  # it backs off
                break
        await run.retry(actor="me")
        assert isinstance(await run.result(), Succeeded)
        running = await client.submit(pipeline, "wait")
        await gate.until(1)
        await running.cancel(actor="me")
        assert isinstance(await running.result(), Canceled)
        delayed = await client.submit(pipeline, "x", delay=1000)
        await delayed.resolve("one/v1", skip=True, actor="me")
        assert isinstance(await delayed.result(), Succeeded)
        assert world.now_us() == 0


@virtually
async def test_a_slot_is_one_slot_for_all_clients(system: VirtualSystem) -> None:
    """R-5, M-1: twenty submissions at once, half of them equal."""
    gate = Gate()
    gate_line: Line = line(_waiting_step(gate), resource=one_for_all)
    world = World(system)
    async with world.engine(app(gate_line)) as engine, world.client(app(gate_line)) as client:

        async def submit(number: int) -> str:
            try:
                door = engine if number % 3 else client
                run = await door.submit(gate_line, "even" if number % 2 else "odd")
            except ScheduleConflict as error:
                return f"conflict {error.run_id}"
            return f"{'new' if run.created else 'joined'} {run.id}"

        told = await asyncio.gather(*(submit(number) for number in range(20)))
        [info] = await engine.list()
        assert {word.split()[1] for word in told} == {info.run_id}
        kinds = [word.split()[0] for word in told]
        assert (kinds.count("new"), kinds.count("joined"), kinds.count("conflict")) == (1, 9, 10)
        gate.go.set()
        await engine.result(info.run_id)


def _waiting_step(gate: Gate) -> Any:
    @step("wait/v1")
    async def wait(inv: Inv) -> None:
        await gate()

    return wait


@virtually
async def test_every_fact_from_outside_names_its_actor(system: VirtualSystem) -> None:
    """M-16"""
    pipeline = quick()
    world = World(system)
    async with world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x", actor="submitter", delay=10)
        await run.hold(actor="holder")
        await run.release(actor="releaser")
        await run.retry(actor="retrier")
        await run.cancel(actor="canceler")
        actors = [getattr(fact, "actor", None) for fact in await facts(run)]
        assert actors == ["submitter", "holder", "releaser", "retrier", "canceler"]
        first = (await facts(run))[0]
        assert isinstance(first, RunSubmitted)
        for options in ({"actor": "a\x00"}, {"note": "\ud800"}, {"note": "x" * 5000}):
            with pytest.raises(InvalidArgument):
                await run.retry(**options)
        with pytest.raises(InvalidArgument, match="reason"):
            await run.hold(reason="")
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await engine.result(run.id), Canceled)
        with pytest.raises(KeyTaken):
            await engine.cancel(run.id)
