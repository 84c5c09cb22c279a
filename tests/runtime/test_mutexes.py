"""Mutexes: of the pipelines that name one, one at a time has an unfinished run for a resource [R-10]."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Canceled,
    Fail,
    Failed,
    InvalidArgument,
    MutexConflict,
    Run,
    Schedule,
    Succeeded,
    step,
)
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.drivers import DRIVERS
from tests.runtime import kinship
from tests.runtime.lab import Events, Gate, Inv, Line, World, app, facts, line, virtually

ACCOUNT = ("account",)
HOUR = 3600.0


def same(input: str) -> str:
    """The resource is the input."""
    return input


def held(gate: Gate, id: str, *mutexes: str, **options: Any) -> Line:
    """A pipeline of one step that waits at a gate, then ends as its input says."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()
        if inv.input.startswith("bad"):
            raise Fail("no")

    return line(one, id=id, resource=same, mutexes=mutexes, **options)


@virtually
async def test_the_second_pipeline_is_refused_until_the_first_has_ended(system: VirtualSystem) -> None:
    """R-10: the refusal names the mutex, the run and its pipeline; other resources and tenants are free."""
    gate = Gate()
    payout, close = held(gate, "payout", "account", "bank"), held(gate, "close", "account")
    audit = held(gate, "audit", "bank", "zone")
    async with World(system).engine(app(payout, close, audit)) as engine:
        first = await engine.submit(payout, "a")
        with pytest.raises(MutexConflict, match=first.id) as caught:
            await engine.submit(close, "a")
        assert (caught.value.run_id, caught.value.mutex, caught.value.pipeline) == (first.id, "account", "payout")
        with pytest.raises(MutexConflict, match="'bank'"):
            await engine.submit(audit, "a", on_busy="reject")
        assert not (await engine.submit(payout, "a")).created  # the slot comes first: joined as ever
        assert (await engine.submit(close, "b")).created
        assert (await engine.submit(close, "a", tenant="acme")).created
        assert len(await engine.list()) == 3
        assert (await engine.verify()).findings == ()
        gate.go.set()
        assert isinstance(await first.result(), Succeeded)
        assert isinstance(await (await engine.submit(close, "a")).result(), Succeeded)
        assert isinstance(await (await engine.submit(audit, "a")).result(), Succeeded)


@virtually
async def test_failures_cancels_and_abandons_free_it(system: VirtualSystem) -> None:
    """R-10, R-12: whatever the end is."""
    gate = Gate()
    payout, close = held(gate, "payout", *ACCOUNT), held(gate, "close", *ACCOUNT)
    async with World(system).engine(app(payout, close)) as engine:
        run = await engine.submit(payout, "bad", delay=HOUR)
        with pytest.raises(MutexConflict):
            await engine.submit(close, "bad")
        await run.cancel()
        assert isinstance(await run.result(), Canceled)
        run = await engine.submit(close, "bad", delay=HOUR)
        await run.hold(actor="me")
        with pytest.raises(MutexConflict):
            await engine.submit(payout, "bad")
        await run.abandon(actor="me", note="never mind", force=True)
        await run.result()
        gate.go.set()
        assert isinstance(await (await engine.submit(payout, "bad")).result(), Failed)
        assert (await engine.submit(close, "bad")).created


@virtually
async def test_many_are_refused_one_by_one(system: VirtualSystem) -> None:
    """R-10: a refused submission hurts no other; a run about itself alone excludes nobody."""
    gate = Gate()
    payout, close = held(gate, "payout", *ACCOUNT), held(gate, "close", *ACCOUNT, slot="none")

    @step("one/v1")
    async def one(inv: Inv) -> None:
        return None

    alone = line(one, id="alone", mutexes=ACCOUNT)
    async with World(system).engine(app(payout, close, alone)) as engine:
        await engine.submit(payout, "b")
        found = await engine.submit_many(close, ["a", "b", "a", "c"])
        assert [isinstance(each, Run) for each in found] == [True, False, False, True]
        assert [each.pipeline for each in found if isinstance(each, MutexConflict)] == ["payout", "close"]
        assert [(await engine.submit(alone, "x")).created for _ in range(2)] == [True, True]


@pytest.mark.parametrize("on_busy", ["queue", "replace"])
@virtually
async def test_nobody_waits_for_a_mutex(system: VirtualSystem, on_busy: Any) -> None:
    """R-10: refused at once, whether it is free or not."""
    payout = held(Gate(), "payout", *ACCOUNT)
    async with World(system).engine(app(payout)) as engine:
        with pytest.raises(InvalidArgument, match="mutexes"):
            await engine.submit(payout, "a", on_busy=on_busy)
        assert not await engine.list()


async def test_it_outlives_its_engine_and_a_lost_index(tmp_path: Path) -> None:
    """R-10, J-11: after a restart the same run has it; where index rows were lost, the facts give it back."""
    path = tmp_path / "store.db"
    gate = Gate()
    many = app(payout := held(gate, "payout", *ACCOUNT), close := held(gate, "close", *ACCOUNT))
    async with many.engine(store=SqliteStore(path)) as engine:
        run = await engine.submit(payout, "a", delay=HOUR)
        ended = await engine.submit(close, "b", delay=HOUR)
        await ended.cancel()
        await ended.result(timeout=30)
    async with many.client(store=SqliteStore(path)) as client:
        with pytest.raises(MutexConflict, match=run.id):
            await client.submit(close, "a")
    with closing(sqlite3.connect(path, isolation_level=None)) as con:
        con.execute("DELETE FROM run")
        assert con.execute("SELECT count(*) FROM mutex").fetchone() == (0,)
    async with many.engine(store=SqliteStore(path)) as engine:
        assert (await engine.verify()).findings == ()
        with pytest.raises(MutexConflict, match=run.id):
            await engine.submit(close, "a", delay=HOUR)
        assert (await engine.submit(payout, "b", delay=HOUR)).created
        await engine.cancel(run.id)
        await engine.result(run.id, timeout=30)
        assert (await engine.submit(close, "a", delay=HOUR)).created


@virtually
async def test_a_tick_is_passed_over(system: VirtualSystem) -> None:
    """R-10, R-14: as on a busy slot, and said so; the next one after the end is not."""
    gate, events = Gate(), Events()
    payout = held(gate, "payout", *ACCOUNT)
    nightly = held(gate, "nightly", *ACCOUNT)
    schedule = Schedule("nightly", nightly, input="a", every=HOUR, resource="a")
    async with World(system).engine(app(payout, nightly, schedules=(schedule,)), observers=(events,)) as engine:
        run = await engine.submit(payout, "a")
        await system.sleep(1.5 * HOUR)
        assert events.kinds().count("tick-skipped") == 1
        gate.go.set()
        await run.result()
        await system.sleep(HOUR)
        assert [info.pipeline for info in await engine.list()] == ["nightly", "payout"]


@virtually
async def test_a_child_that_is_refused_fails_its_step(system: VirtualSystem) -> None:
    """R-10, B-21: the failure names the run in the way."""
    gate = Gate()
    payout = held(gate, "payout", *ACCOUNT)
    sub = kinship.work(lambda inv: gate(), id="sub", resource=same, mutexes=ACCOUNT)
    parent = kinship.one(sub)
    async with World(system).engine(kinship.app(payout, sub, parent)) as engine:
        run = await engine.submit(payout, "a")
        result = await (await engine.submit(parent, "a")).result()
        assert isinstance(result, Failed)
        assert result.failure.reason == "child-refused"
        assert result.failure.cause is not None
        assert f"run {run.id} of pipeline 'payout' has mutex 'account'" in result.failure.cause.message
        fine = await engine.submit(parent, "b")
        gate.go.set()
        assert isinstance(await fine.result(), Succeeded)


@virtually
async def test_the_first_fact_tells_them_sorted(system: VirtualSystem) -> None:
    """R-10, J-11: what they are is decided when the run is submitted."""
    payout = held(Gate(), "payout", "zone", "account")
    async with World(system).engine(app(payout)) as engine:
        fact: Any = (await facts(await engine.submit(payout, "a")))[0]
        assert fact.mutexes == ("account", "zone")


async def test_two_workers_on_postgres(postgres_url: str) -> None:
    """R-10: whichever of them asks; what one's run had, the other's gets after its end."""
    gate = Gate()
    payout, close = held(gate, "payout", *ACCOUNT), held(gate, "close", *ACCOUNT)
    many = app(payout, close)
    async with many.engine(store=postgres_url) as one, many.engine(store=postgres_url) as other:
        run = await one.submit(payout, "a")
        with pytest.raises(MutexConflict, match=run.id):
            await other.submit(close, "a")
        gate.go.set()
        assert isinstance(await run.result(timeout=30), Succeeded)
        assert isinstance(await (await other.submit(close, "a")).result(timeout=30), Succeeded)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_in_a_callers_transaction(postgres_url: str, driver: str) -> None:
    """R-10, I-1: a refusal leaves the transaction as it was; a rollback leaves nothing taken."""
    payout, close = held(Gate(), "payout", *ACCOUNT), held(Gate(), "close", *ACCOUNT)
    async with app(payout, close).client(store=postgres_url) as client:
        async with DRIVERS[driver](postgres_url) as caller:
            await client.submit(close, driver, connection=caller.connection)
            await caller.rollback()
        run = await client.submit(payout, driver)
        async with DRIVERS[driver](postgres_url) as caller:
            with pytest.raises(MutexConflict, match=run.id):
                await client.submit(close, driver, connection=caller.connection)
            kept = await client.submit(close, f"{driver} b", connection=caller.connection)
            with pytest.raises(MutexConflict, match=kept.id):
                await client.submit(payout, f"{driver} b", connection=caller.connection)
            await caller.commit()
        with pytest.raises(MutexConflict, match=kept.id):
            await client.submit(payout, f"{driver} b")
        assert len(await client.list()) == 2
