"""Busy slots, idempotency keys, and many submissions at once [R-5, R-16, M-1]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from perdure import (
    App,
    Canceled,
    Client,
    Engine,
    InvalidArgument,
    Invocation,
    KeyTaken,
    NotFound,
    PayloadError,
    Pipeline,
    Run,
    ScheduleConflict,
    StoreUnavailable,
    Succeeded,
    UnwindInvocation,
    nothing,
    step,
)
from perdure.core.facts import RunCancelRequested, RunSubmitted
from perdure.core.plan import ENGINE_ACTOR
from perdure.storage.sqlite.store import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Failing, Gate, Inv, Line, World, app, facts, line, until, virtually

Undo: TypeAlias = UnwindInvocation[str, object]


def slot(input: str) -> str:
    return input[0]


class Place:
    """A pipeline that notes who is inside, and lets in whom it is told to.

    Attributes:
        entered: inputs, in the order in which their runs started.
        most: how many were inside at once.
    """

    def __init__(self, **options: Any) -> None:
        self.entered: list[str] = []
        self.undone: list[str] = []
        self.most = self.inside = 0
        self.gate = Gate()
        self.undo_gate = Gate()
        self.undo_gate.go.set()

        async def undo(inv: Undo, state: str) -> None:
            await self.undo_gate()
            self.undone.append(state)

        @step("first/v1", unwind=undo)
        async def first(inv: Inv) -> str:
            self.entered.append(inv.input)
            return inv.input

        @step("second/v1")
        async def second(inv: Inv) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            try:
                await self.gate()
            finally:
                self.inside -= 1

        self.pipeline: Line = line(first, second, resource=slot, **options)


async def pass_time(seconds: float) -> None:
    """Move the virtual clock."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


async def requested(run: Run[Any]) -> list[tuple[str, str]]:
    """Who asked for the run to be canceled, and why."""
    return [(fact.reason, fact.actor) for fact in await facts(run) if isinstance(fact, RunCancelRequested)]


# --- on_busy


@virtually
async def test_reject_refuses_an_equal_input_too(system: VirtualSystem) -> None:
    """R-5"""
    place = Place()
    async with World(system).engine(app(place.pipeline)) as engine:
        run = await engine.submit(place.pipeline, "abc", on_busy="reject")
        assert run.created
        with pytest.raises(ScheduleConflict, match=run.id) as caught:
            await engine.submit(place.pipeline, "abc", on_busy="reject")
        assert caught.value.run_id == run.id
        place.gate.go.set()
        await run.result()
        assert (await engine.submit(place.pipeline, "abc", on_busy="reject")).created


@virtually
async def test_a_queue_is_first_come_first_served(system: VirtualSystem) -> None:
    """R-5, M-1: one at a time, in the order of submission, equal input or not."""
    place = Place()
    async with World(system).engine(app(place.pipeline)) as engine:
        runs = [await engine.submit(place.pipeline, f"a{n % 3}", on_busy="queue") for n in range(7)]
        assert all(run.created for run in runs)
        assert len({run.id for run in runs}) == 7
        info = await runs[3].info()
        assert (info.status, info.reason) == ("ready", "waits for its slot")
        await place.gate.until(1)
        assert place.entered == ["a0"]
        place.gate.go.set()
        for run in runs:
            assert isinstance(await run.result(), Succeeded)
        assert place.entered == [f"a{n % 3}" for n in range(7)]
        assert place.most == 1
        assert (await engine.verify()).findings == ()


@virtually
async def test_a_queued_run_keeps_its_start_time(system: VirtualSystem) -> None:
    """R-4, R-5: it has its turn, and waits with the slot in its hands."""
    place = Place()
    world = World(system)
    async with world.engine(app(place.pipeline)) as engine:
        first = await engine.submit(place.pipeline, "a0")
        second = await engine.submit(place.pipeline, "a1", on_busy="queue", delay=3600)
        place.gate.go.set()
        await first.result()
        with pytest.raises(ScheduleConflict, match=second.id):
            await engine.submit(place.pipeline, "a2")
        await second.result()
        assert world.now_us() >= 3_600_000_000


@virtually
async def test_a_queued_run_can_be_canceled_and_has_done_nothing(system: VirtualSystem) -> None:
    """R-12, M-1: by request and by its deadline, both while another has the slot."""
    place = Place()
    async with World(system).engine(app(place.pipeline)) as engine:
        holder = await engine.submit(place.pipeline, "a0")
        asked = await engine.submit(place.pipeline, "a1", on_busy="queue")
        late = await engine.submit(place.pipeline, "a2", on_busy="queue", deadline=timedelta(minutes=5))
        last = await engine.submit(place.pipeline, "a3", on_busy="queue")
        await asked.cancel(actor="me")
        assert isinstance(await asked.result(), Canceled)
        assert isinstance(await late.result(), Canceled)
        assert place.entered == ["a0"]
        assert (await holder.info()).status == "running"
        place.gate.go.set()
        assert isinstance(await last.result(), Succeeded)
        assert place.entered == ["a0", "a3"]


@virtually
async def test_operators_do_not_start_a_run_that_waits(system: VirtualSystem) -> None:
    """M-1, R-17: hold, release and retry leave it in the queue."""
    place = Place()
    async with World(system).engine(app(place.pipeline)) as engine:
        holder = await engine.submit(place.pipeline, "a0")
        waiting = await engine.submit(place.pipeline, "a1", on_busy="queue")
        await waiting.hold(actor="me")
        await waiting.release(actor="me")
        await waiting.retry(actor="me")
        await engine.hold_pipeline("line")
        await engine.release_pipeline("line")
        await pass_time(200)
        assert place.entered == ["a0"]
        await waiting.hold(actor="me")
        place.gate.go.set()
        await holder.result()
        await pass_time(200)
        assert (await waiting.info()).status == "held"
        await waiting.release(actor="me")
        assert isinstance(await waiting.result(), Succeeded)
        assert place.most == 1


@virtually
async def test_replace_cancels_the_run_and_starts_when_it_has_unwound(system: VirtualSystem) -> None:
    """R-5, M-1: the new run is durable at once, the old one undoes what it did first."""
    place = Place()
    place.undo_gate.go.clear()
    async with World(system).engine(app(place.pipeline)) as engine:
        old = await engine.submit(place.pipeline, "a0")
        await place.gate.reached.wait()
        new = await engine.submit(place.pipeline, "a1", on_busy="replace", actor="me")
        assert new.created
        assert await requested(old) == [("replaced", "me")]
        await place.undo_gate.reached.wait()
        assert place.entered == ["a0"]
        newest = await engine.submit(place.pipeline, "a2", on_busy="replace")  # also while the old run unwinds
        assert isinstance(await new.result(), Canceled)
        place.undo_gate.go.set()
        assert isinstance(await old.result(), Canceled)
        place.gate.go.set()
        assert isinstance(await newest.result(), Succeeded)
        assert place.entered == ["a0", "a2"]
        assert place.undone == ["a0"]


@virtually
async def test_replace_on_a_free_slot_is_an_ordinary_submission(system: VirtualSystem) -> None:
    """R-5"""
    place = Place()
    place.gate.go.set()
    async with World(system).engine(app(place.pipeline)) as engine:
        for policy in ("replace", "queue", "reject"):
            run = await engine.submit(place.pipeline, "abc", on_busy=policy)
            assert isinstance(await run.result(), Succeeded)
            assert [fact.waits for fact in await facts(run) if isinstance(fact, RunSubmitted)] == [""]


@virtually
async def test_what_a_client_began_to_replace_the_engine_finishes(system: VirtualSystem) -> None:
    """R-16: the client dies between the new run and the cancel of the old one."""
    place = Place()
    world = World(system)
    async with world.engine(app(place.pipeline)) as engine:
        old = await engine.submit(place.pipeline, "a0")
        await place.gate.reached.wait()

        class Dies(Failing):
            async def waiting_runs(self) -> Any:
                raise StoreUnavailable("the client's process died here")

        async with app(place.pipeline).client(store=Dies(world.data), system=system) as client:
            with pytest.raises(StoreUnavailable):
                await client.submit(place.pipeline, "a1", on_busy="replace", actor="me")
        assert isinstance(await old.result(), Canceled)
        assert await requested(old) == [("replaced", ENGINE_ACTOR)]
        (new,) = [info.run_id for info in await engine.list(status=["ready", "running"])]
        place.gate.go.set()
        assert isinstance(await (await engine.run(new)).result(), Succeeded)
        assert place.entered == ["a0", "a1"]


@virtually
async def test_a_canceled_caller_has_replaced_nevertheless(system: VirtualSystem) -> None:
    """J-14, R-16: at any await of the submission, the engine it runs beside does the rest."""
    for awaits in range(12):
        place = Place()
        async with World(system).engine(app(place.pipeline)) as engine:
            old = await engine.submit(place.pipeline, "a0")
            await place.gate.reached.wait()
            task = asyncio.ensure_future(engine.submit(place.pipeline, "a1", on_busy="replace"))
            for _ in range(awaits):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await pass_time(10)
            alive = await engine.list(status=["ready", "running"])
            submitted = len(await engine.list()) == 2
            assert len(alive) == 1
            assert (alive[0].run_id != old.id) == submitted
            place.gate.go.set()
            await (await engine.run(alive[0].run_id)).result()


@virtually
async def test_the_queue_survives_the_engine(system: VirtualSystem) -> None:
    """R-16: who waits is found in the store, whoever had the slot when the engine was killed."""
    place = Place()
    world = World(system)
    async with world.engine(app(place.pipeline)) as engine:
        for n in range(4):
            await engine.submit(place.pipeline, f"a{n}", on_busy="queue")
        await place.gate.reached.wait()
        engine.abort()
    async with world.client(app(place.pipeline)) as client:
        await client.submit(place.pipeline, "a4", on_busy="queue")
    place.gate.go.set()
    async with world.engine(app(place.pipeline)) as engine:
        await engine.idle()
        assert {info.status for info in await engine.list()} == {"succeeded"}
    assert list(dict.fromkeys(place.entered)) == [f"a{n}" for n in range(5)]
    assert place.most == 1


@virtually
async def test_the_queue_survives_the_index(system: VirtualSystem) -> None:
    """J-11: rebuilt from the facts, the slot goes to who submitted first."""
    place = Place()
    world = World(system)
    async with world.engine(app(place.pipeline)) as engine:
        for n in range(4):
            await engine.submit(place.pipeline, f"a{n}", on_busy="queue")
        await place.gate.reached.wait()
        engine.abort()
    world.data.lose_index()
    place.gate.go.set()
    async with world.engine(app(place.pipeline)) as engine:
        await engine.idle()
        assert {info.status for info in await engine.list()} == {"succeeded"}
        assert (await engine.verify()).findings == ()
    assert list(dict.fromkeys(place.entered)) == [f"a{n}" for n in range(4)]
    assert place.most == 1


@virtually
async def test_a_slot_that_is_never_free_is_not_waited_for(system: VirtualSystem) -> None:
    """R-5: refused, whether the pipeline says so now or said so when it was taken."""
    once, later = Place(slot="once"), Place()
    once.gate.go.set()
    world = World(system)
    async with world.engine(app(once.pipeline)) as engine:
        with pytest.raises(InvalidArgument, match="wait for ever"):
            await engine.submit(once.pipeline, "abc", on_busy="queue")
        run = await engine.submit(once.pipeline, "abc")
        await run.result()
    async with world.engine(app(later.pipeline)) as engine:
        for policy in ("queue", "replace"):
            with pytest.raises(ScheduleConflict, match="for ever"):
                await engine.submit(later.pipeline, "axe", on_busy=policy)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_busy": "wait"}, "on_busy must be one of join, reject, queue, replace, not 'wait'"),
        ({"key_window": 5}, "key_window needs an idempotency_key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "x" * 513}, "idempotency_key"),
        ({"idempotency_key": "k", "key_window": 0}, "longer than nothing"),
        ({"idempotency_key": "k", "key_window": -1}, "key_window"),
        ({"idempotency_key": "k", "key_window": float("nan")}, "key_window"),
    ],
)
@virtually
async def test_policies_that_cannot_be(system: VirtualSystem, options: dict[str, Any], problem: str) -> None:
    """P-2: refused before anything is written."""
    place = Place()
    async with World(system).engine(app(place.pipeline)) as engine:
        with pytest.raises(InvalidArgument, match=problem):
            await engine.submit(place.pipeline, "abc", **options)
        assert await engine.list() == []


# --- keys


@virtually
async def test_a_key_gives_the_same_run_after_its_end(system: VirtualSystem) -> None:
    """R-5: within its window, across restarts, whatever the slot is used for meanwhile."""
    place = Place()
    place.gate.go.set()
    world = World(system)
    async with world.engine(app(place.pipeline)) as engine:
        first = await engine.submit(place.pipeline, "abc", idempotency_key="k", key_window=timedelta(hours=1))
        assert first.created
        await first.result()
        await (await engine.submit(place.pipeline, "axe")).result()
    async with world.engine(app(place.pipeline)) as engine:
        again = await engine.submit(place.pipeline, "abc", idempotency_key="k")
        assert (again.id, again.created) == (first.id, False)
        with pytest.raises(KeyTaken, match=first.id) as caught:
            await engine.submit(place.pipeline, "axe", idempotency_key="k")
        assert caught.value.key == "k"
        await pass_time(3600)
        late = await engine.submit(place.pipeline, "axe", idempotency_key="k")
        assert late.created


@virtually
async def test_a_key_is_of_its_tenant_and_pipeline(system: VirtualSystem) -> None:
    """R-5"""
    one, other = Place(id="one"), Place(id="other")
    async with World(system).engine(app(one.pipeline, other.pipeline)) as engine:
        runs = [
            await engine.submit(one.pipeline, "abc", idempotency_key="k"),
            await engine.submit(one.pipeline, "abc", idempotency_key="k", tenant="acme"),
            await engine.submit(other.pipeline, "abc", idempotency_key="k"),
        ]
        assert len({run.id for run in runs}) == 3
        one.gate.go.set()
        other.gate.go.set()


@virtually
async def test_a_key_stands_for_the_run_that_was_joined(system: VirtualSystem) -> None:
    """R-5: who joined under a key gets that run again when it has ended."""
    place = Place()
    async with World(system).engine(app(place.pipeline)) as engine:
        first = await engine.submit(place.pipeline, "abc")
        joined = await engine.submit(place.pipeline, "abc", idempotency_key="k")
        assert (joined.id, joined.created) == (first.id, False)
        with pytest.raises(ScheduleConflict):
            await engine.submit(place.pipeline, "axe", idempotency_key="refused")
        place.gate.go.set()
        await first.result()
        again = await engine.submit(place.pipeline, "abc", idempotency_key="k")
        assert (again.id, again.created) == (first.id, False)
        assert (await engine.submit(place.pipeline, "axe", idempotency_key="refused")).created


@virtually
async def test_a_key_goes_with_every_policy(system: VirtualSystem) -> None:
    """R-5: a repeated call neither rejects, queues nor replaces what it submitted itself."""
    place = Place()
    async with World(system).engine(app(place.pipeline)) as engine:
        holder = await engine.submit(place.pipeline, "a0", on_busy="reject", idempotency_key="0")
        assert (await engine.submit(place.pipeline, "a0", on_busy="reject", idempotency_key="0")).id == holder.id
        queued = await engine.submit(place.pipeline, "a1", on_busy="queue", idempotency_key="1")
        assert (await engine.submit(place.pipeline, "a1", on_busy="queue", idempotency_key="1")).id == queued.id
        newest = await engine.submit(place.pipeline, "a2", on_busy="replace", idempotency_key="2")
        again = await engine.submit(place.pipeline, "a2", on_busy="replace", idempotency_key="2")
        assert (again.id, again.created) == (newest.id, False)
        assert isinstance(await queued.result(), Canceled)
        place.gate.go.set()
        assert isinstance(await newest.result(), Succeeded)


@virtually
async def test_concurrent_calls_under_one_key_are_one_run(system: VirtualSystem) -> None:
    """R-5: also where nothing else excludes them."""
    place = Place(slot="none")
    world = World(system)
    async with world.engine(app(place.pipeline)) as engine, world.client(app(place.pipeline)) as client:
        doors: list[Client] = [engine, client]
        runs = await asyncio.gather(
            *(doors[n % 2].submit(place.pipeline, "abc", idempotency_key="k") for n in range(10))
        )
        assert len({run.id for run in runs}) == 1
        assert [run.created for run in runs].count(True) == 1
        place.gate.go.set()


@virtually
async def test_retention_keeps_keys_for_their_window(system: VirtualSystem) -> None:
    """R-5, R-9: the key outlives the run; when both are gone it is free."""
    place = Place()
    place.gate.go.set()
    async with World(system).engine(app(place.pipeline)) as engine:
        first = await engine.submit(place.pipeline, "abc", idempotency_key="k", key_window=1000)
        await first.result()
        assert (await engine.gc(0, dry_run=True)).remaining >= 0
        await pass_time(1)
        assert (await engine.gc(0)).removed == 1
        again = await engine.submit(place.pipeline, "abc", idempotency_key="k")
        assert (again.id, again.created) == (first.id, False)
        with pytest.raises(NotFound):
            await again.result()
        with pytest.raises(KeyTaken):
            await engine.submit(place.pipeline, "axe", idempotency_key="k")
        await pass_time(1000)
        await engine.gc(0)
        assert (await engine.submit(place.pipeline, "axe", idempotency_key="k")).created


# --- many


@virtually
async def test_many_runs_are_submitted_in_order_and_executed(system: VirtualSystem) -> None:
    """R-5: by an engine, which executes them, and by a client beside it."""
    place = Place()
    place.gate.go.set()
    world = World(system)
    async with world.engine(app(place.pipeline), concurrency=1) as engine, world.client(app(place.pipeline)) as client:
        doors: tuple[Client, ...] = (engine, client)
        for first, door in enumerate(doors):
            runs = await door.submit_many(place.pipeline, [f"{chr(256 + 700 * first + n)}" for n in range(600)])
            done = [run for run in runs if isinstance(run, Run)]
            assert len(done) == 600
            assert [run.id for run in done] == sorted(run.id for run in done)
            for run in done:
                assert isinstance(await engine.result(run.id), Succeeded)
        assert len(place.entered) == 1200


@virtually
async def test_of_many_each_fares_alone(system: VirtualSystem) -> None:
    """R-5, M-1: who meets a busy slot joins or is refused, and hurts nobody."""
    place = Place()
    async with World(system).engine(app(place.pipeline)) as engine:
        live = await engine.submit(place.pipeline, "abc")
        joined, refused, new, twin, rival = await engine.submit_many(
            place.pipeline, ["abc", "axe", "bus", "bus", "bee"]
        )
        assert isinstance(joined, Run)
        assert (joined.id, joined.created) == (live.id, False)
        assert isinstance(refused, ScheduleConflict)
        assert refused.run_id == live.id
        assert isinstance(new, Run)
        assert isinstance(twin, Run)
        assert (new.created, twin.created, twin.id) == (True, False, new.id)
        assert isinstance(rival, ScheduleConflict)
        (rejected,) = await engine.submit_many(place.pipeline, ["abc"], on_busy="reject")
        assert isinstance(rejected, ScheduleConflict)
        assert await engine.submit_many(place.pipeline, []) == []
        place.gate.go.set()


@virtually
async def test_of_many_none_is_written_if_one_cannot_be(system: VirtualSystem) -> None:
    """P-2: the path begins with the number of the input."""

    @step("first/v1")
    async def first(inv: Invocation[int, object]) -> None:
        return None

    pipeline: Pipeline[int, object, None] = Pipeline(id="n", input=int, deps=object, steps=[first], output=nothing)
    async with World(system).engine(App(pipeline.bind(), store="memory://", build="test")) as engine:
        inputs: list[Any] = [*range(1000), "text"]
        with pytest.raises(PayloadError) as caught:
            await engine.submit_many(pipeline, inputs)
        assert caught.value.path == "$[1000]"
        with pytest.raises(InvalidArgument, match="join or reject"):
            await engine.submit_many(pipeline, [1], on_busy="queue")  # type: ignore[arg-type]  # refused at run time, too
        assert await engine.list() == []


@virtually
async def test_many_of_a_canceled_caller_are_executed(system: VirtualSystem) -> None:
    """J-14, R-16: what was handed to the store is found."""
    place = Place()
    place.gate.go.set()
    async with World(system).engine(app(place.pipeline)) as engine:
        task = asyncio.ensure_future(engine.submit_many(place.pipeline, [chr(256 + n) for n in range(50)]))
        while not await engine.list():  # noqa: ASYNC110 - nothing tells that appends have landed
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await pass_time(1)
        await engine.idle()
        assert {info.status for info in await engine.list()} == {"succeeded"}


# --- in a file


@asynccontextmanager
async def _engine(path: Path, pipeline: Line) -> AsyncGenerator[Engine]:
    async with app(pipeline).engine(store=SqliteStore(path)) as engine:
        yield engine


async def test_policies_survive_a_restart_in_a_file(tmp_path: Path) -> None:
    """R-5, R-16: queue, replacement and key on SQLite, through a kill of the engine and a client beside it."""
    place = Place()
    path = tmp_path / "store.db"
    async with _engine(path, place.pipeline) as engine:
        old = await engine.submit(place.pipeline, "a0", idempotency_key="k")
        await place.gate.reached.wait()
        waiting = await engine.submit(place.pipeline, "a1", on_busy="queue")
        engine.abort()
    async with app(place.pipeline).client(store=SqliteStore(path)) as client:
        new = await client.submit(place.pipeline, "a2", on_busy="replace")
        last = await client.submit(place.pipeline, "a3", on_busy="queue")
        again = await client.submit(place.pipeline, "a0", idempotency_key="k")
        assert (again.id, again.created) == (old.id, False)
    place.gate.go.set()
    async with _engine(path, place.pipeline) as engine, app(place.pipeline).client(store=SqliteStore(path)) as client:
        for run_id in (old.id, waiting.id):
            assert isinstance(await engine.result(run_id), Canceled)
        for run_id in (new.id, last.id):
            assert isinstance(await engine.result(run_id), Succeeded)
        beside = await client.submit(place.pipeline, "a0", idempotency_key="k")
        assert (beside.id, beside.created) == (old.id, False)
        with pytest.raises(KeyTaken):
            await client.submit(place.pipeline, "a9", idempotency_key="k")
        many = await client.submit_many(place.pipeline, [chr(256 + n) for n in range(100)])
        for run in many:
            assert isinstance(run, Run)
            assert isinstance(await engine.result(run.id), Succeeded)
        assert (await client.verify()).findings == ()
    assert list(dict.fromkeys(place.entered))[:3] == ["a0", "a2", "a3"]
    assert place.most == 1 or place.entered.count("a0") == 1


async def test_a_queue_drains_across_processes_clients(tmp_path: Path) -> None:
    """R-16: an engine hears of runs that clients queue while it executes, and starts each when its turn comes."""
    place = Place()
    path = tmp_path / "store.db"
    async with (
        _engine(path, place.pipeline) as engine,
        app(place.pipeline).client(store=SqliteStore(path)) as client,
    ):
        runs = [await client.submit(place.pipeline, f"a{n}", on_busy="queue") for n in range(5)]
        await until(await engine.run(runs[0].id), "running")
        place.gate.go.set()
        for run in runs:
            assert isinstance(await client.result(run.id), Succeeded)
    assert place.entered == [f"a{n}" for n in range(5)]
