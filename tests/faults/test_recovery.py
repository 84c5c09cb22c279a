"""Crash recovery, duplicate execution, lost wake-ups [R-2, R-3, R-7, R-16, J-3, J-7]."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Canceled, NotFound, Retry, StoreInUse, StoreUnavailable, Succeeded, step
from perdure.core.facts import OperationReserved, OperationSucceeded, RunSucceeded, SegmentAttemptStarted
from perdure.ports.store import Serving
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import (
    PROMPT,
    SECOND_US,
    Events,
    Failing,
    Gate,
    Gated,
    Inv,
    Line,
    Watched,
    World,
    app,
    facts,
    line,
    names,
    until,
    virtually,
)


def counted(effects: list[str], gate: Gate | None = None) -> Line:
    """A pipeline of two steps that note their input; the second may wait."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        effects.append(f"one {inv.input}")

    @step("two/v1")
    async def two(inv: Inv) -> None:
        if gate is not None:
            await gate()
        effects.append(f"two {inv.input}")

    return line(one, two)


async def left_behind(world: World, pipeline: Line, inputs: Sequence[str], gate: Gate) -> list[str]:
    """Runs whose owner was killed in the middle of their second step."""
    async with world.engine(app(pipeline)) as engine:
        runs = [await engine.submit(pipeline, input) for input in inputs]
        await gate.until(len(runs))
        engine.abort()
    gate.go.set()
    return [run.id for run in runs]


@virtually
async def test_a_store_that_fails_amid_recovery_leaves_no_run_with_a_dead_owner(system: VirtualSystem) -> None:
    """R-16: recovery is a loop over what is durable, not a list that is gone through once."""
    effects: list[str] = []
    gate = Gate()
    pipeline = counted(effects, gate)
    world = World(system)
    run_ids = await left_behind(world, pipeline, [str(n) for n in range(20)], gate)
    async with world.engine(app(pipeline), around=Failing) as engine, world.client(app(pipeline)) as client:
        store = world.stores[-1]
        assert isinstance(store, Failing)
        store.plan("append", *[StoreUnavailable("connection lost") for _ in range(10)])
        store.plan("load", *[StoreUnavailable("connection lost") for _ in range(10)])
        for run_id in run_ids:
            assert isinstance(await client.result(run_id, timeout=300), Succeeded)
        await engine.idle()
    assert all(effects.count(f"one {n}") == 1 for n in range(20))


@virtually
async def test_one_run_that_cannot_be_dispatched_keeps_no_other_from_starting(system: VirtualSystem) -> None:
    """R-16: each claimed run is dispatched alone; the odd one stays due and visible."""
    effects: list[str] = []
    pipeline = counted(effects)
    world = World(system)
    async with world.client(app(pipeline)) as client:
        runs = [await client.submit(pipeline, str(n)) for n in range(5)]
        async with world.engine(app(pipeline), around=Failing) as engine:
            store = world.stores[-1]
            assert isinstance(store, Failing)
            store.fail_if("load", lambda run_id: run_id == runs[1].id, KeyError("no such handler"))
            for n in (0, 2, 3, 4):
                assert isinstance(await client.result(runs[n].id, timeout=10), Succeeded)
            assert (await client.info(runs[1].id)).status == "ready"
            store.fail_if("load", lambda _: False, KeyError())
            assert isinstance(await client.result(runs[1].id, timeout=120), Succeeded)
            await engine.idle()


@virtually
async def test_a_stale_list_of_due_runs_executes_nothing_twice(system: VirtualSystem) -> None:
    """J-3, D-8: a run is executed by winning its claim now, not for having been due a while ago."""
    effects: list[str] = []
    pipeline = counted(effects)

    class Stale(Watched):
        seen: Sequence[str] = ()

        async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
            found = await super().due(now_us, limit, turn, serving)
            self.seen = [*self.seen, *found]
            return list(dict.fromkeys([*self.seen, *found]))[-limit:]

    world = World(system)
    async with world.engine(app(pipeline), around=Stale) as engine:
        runs = [await engine.submit(pipeline, str(n), delay=n) for n in range(10)]
        for run in runs:
            assert isinstance(await run.result(), Succeeded)
            assert (await names(run)).count("SegmentAttemptStarted") == 1
    assert len(effects) == len(set(effects)) == 20


@virtually
async def test_a_killed_worker_is_recovered_without_configuration_and_without_repeating_steps(
    system: VirtualSystem,
) -> None:
    """R-7, M-6"""
    effects: list[str] = []
    gate = Gate()
    pipeline = counted(effects, gate)
    world = World(system)
    [run_id] = await left_behind(world, pipeline, ["x"], gate)
    async with world.client(app(pipeline)) as client:
        assert (await client.info(run_id)).status == "running"
        async with world.engine(app(pipeline)):
            assert isinstance(await client.result(run_id), Succeeded)
    assert effects == ["one x", "two x"]


@virtually
async def test_a_waiting_run_wakes_whatever_version_of_the_code_is_deployed(system: VirtualSystem) -> None:
    """R-4, D-4: an edit elsewhere strands no timer."""
    effects: list[str] = []

    @step("one/v1", retry=Retry(initial=30, cap=30, jitter=0))
    async def one(inv: Inv) -> None:
        effects.append(inv.input)
        if inv.attempt == 1 and inv.input == "backoff":
            raise OSError("down")

    @step("other/v1")
    async def other(inv: Inv) -> None:
        pass

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline, build="first")) as engine:
        delayed = await engine.submit(pipeline, "delayed", delay=30)
        backoff = await engine.submit(pipeline, "backoff")
        await until(backoff, "ready")
    async with world.engine(app(pipeline, line(other, id="new"), build="second")) as engine:
        for run in (delayed, backoff):
            assert isinstance(await engine.result(run.id), Succeeded)
        assert world.now_us() == 30 * SECOND_US


@virtually
async def test_recovery_invents_no_ids(system: VirtualSystem) -> None:
    """P-2: however often it runs."""
    gate = Gate()
    effects: list[str] = []
    pipeline = counted(effects, gate)
    world = World(system)
    before = set(await left_behind(world, pipeline, ["a", "b", "c"], gate))
    for _ in range(5):
        async with world.engine(app(pipeline)) as engine:
            assert {info.run_id for info in await engine.list()} == before
            engine.abort()


async def test_one_file_has_one_owner_and_every_run_is_claimed_once(tmp_path: Path) -> None:
    """R-2, J-7: whoever else tries is refused, and disturbs nothing."""
    effects: list[str] = []
    pipeline = counted(effects)
    path = tmp_path / "store.db"
    async with app(pipeline).engine(store=SqliteStore(path)) as engine:
        submitting = [asyncio.ensure_future(engine.submit(pipeline, str(n))) for n in range(100)]

        async def intrude() -> None:
            with pytest.raises(StoreInUse):
                async with app(pipeline).engine(store=SqliteStore(path)):
                    raise AssertionError("two owners")

        await asyncio.gather(*(intrude() for _ in range(8)))
        for submitted in submitting:
            run = await submitted
            assert isinstance(await run.result(timeout=30), Succeeded)
            claims = [fact for fact in await facts(run) if isinstance(fact, SegmentAttemptStarted)]
            assert [(claim.token, claim.worker) for claim in claims] == [(1, engine.worker)]
    assert len(effects) == len(set(effects)) == 200


@virtually
async def test_a_worker_that_was_given_up_cannot_change_a_run_that_ended_without_it(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """J-3, J-7: its late outcome is fenced off, and it says so."""
    gate = Gate()
    effects: list[str] = []

    @step("one/v1")
    async def one(inv: Inv) -> int:
        effects.append(f"began {inv.attempt}")
        if inv.attempt == 1:
            await gate()
        return inv.attempt

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline)) as stale:
        run = await stale.submit(pipeline, "x")
        await gate.until(1)
        world.data.owner = None  # as if its lease had run out
        async with world.engine(app(pipeline)) as engine:
            assert isinstance(await engine.result(run.id), Succeeded)
            before = await engine.journal(run.id)
            gate.go.set()
            await system.sleep(10)
            assert stale.running == 0
            assert await engine.journal(run.id) == before
            assert (await engine.verify()).findings == ()
    succeeded = [f.fact for f in before if isinstance(f.fact, OperationSucceeded)]
    assert [fact.attempt for fact in succeeded] == [2]
    assert sum(isinstance(f.fact, RunSucceeded) for f in before) == 1
    assert [record for record in caplog.records if "taken over" in record.getMessage()]


@virtually
async def test_two_workers_at_one_run_are_told_apart_at_the_first_append(system: VirtualSystem) -> None:
    """J-2, J-7: of two claims one is refused, before any handler of it was called."""
    effects: list[str] = []
    pipeline = counted(effects)
    world = World(system)
    async with world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x")
        async with world.engine(app(pipeline), around=Gated) as first:
            store = world.stores[-1]
            assert isinstance(store, Gated)
            store.shut("append")
            await store.arrived["append"].wait()  # its claim is under way
            world.data.owner = None
            async with world.engine(app(pipeline)):
                assert isinstance(await client.result(run.id), Succeeded)
                store.open_gate("append")
                await first.idle()
        assert effects == ["one x", "two x"]
        claims = [fact for fact in await facts(run) if isinstance(fact, SegmentAttemptStarted)]
        assert len(claims) == 1


@virtually
async def test_an_event_right_after_the_submission_is_not_missed(system: VirtualSystem) -> None:
    """R-16: a cancel, zero milliseconds after the run exists; a result asked for before it does anything."""
    pipeline = counted([], Gate())
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        for n in range(100):
            run = await engine.submit(pipeline, str(n))
            waiting = asyncio.ensure_future(run.result())
            await run.cancel()
            assert isinstance(await waiting, Canceled)
        assert world.now_us() == 0


async def test_a_row_deleted_between_being_found_and_being_claimed_costs_nothing(tmp_path: Path) -> None:
    """J-2, R-16: the engine notices, its place and the resource are free, other runs go on."""
    effects: list[str] = []
    events = Events()
    pipeline = counted(effects)
    path = tmp_path / "store.db"

    class Deleting(SqliteStore):
        victims: tuple[str, ...] = ()

        async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
            found = await super().due(now_us, limit, turn, serving)
            for run_id in set(found) & set(self.victims):
                with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as con:
                    con.execute("DELETE FROM journal WHERE run = (SELECT n FROM run WHERE id = ?)", (run_id,))
                    con.execute("DELETE FROM run WHERE id = ?", (run_id,))
            return found

    store = Deleting(path)
    async with app(pipeline, concurrency=1).engine(store=store, observers=[events]) as engine:
        runs = [await engine.submit(pipeline, str(n), delay=0.001) for n in range(3)]
        store.victims = (runs[1].id,)
        for n in (0, 2):
            assert isinstance(await runs[n].result(timeout=30), Succeeded)
        await engine.idle()
        if "one 1" not in effects:  # it was not faster than we
            with pytest.raises(NotFound):
                await runs[1].info()
        assert engine.running == 0


@virtually
async def test_a_run_that_finished_before_anybody_waits_is_told_at_once(system: VirtualSystem) -> None:
    """R-16"""
    pipeline = counted([])
    world = World(system)
    async with world.engine(app(pipeline, retry=PROMPT)) as engine, world.client(app(pipeline)) as client:
        run = await engine.submit(pipeline, "x")
        await engine.idle()
        for door in (engine, client):
            assert isinstance(await door.result(run.id, timeout=0), Succeeded)
        reserved = [fact for fact in await facts(run) if isinstance(fact, OperationReserved)]
        assert [fact.attempt for fact in reserved] == [1, 1]
