"""The bound of a queue: a submission that finds no room under a limit is refused, and leaves nothing [R-11]."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from perdure import (
    Canceled,
    Client,
    Fail,
    Failed,
    InvalidArgument,
    Limit,
    QueueFull,
    Run,
    Schedule,
    ScheduleConflict,
    Succeeded,
    step,
)
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.drivers import DRIVERS, conninfo, schema
from tests.runtime import kinship
from tests.runtime.lab import Events, Gate, Inv, Line, World, app, line, virtually

HOUR = 3600.0


def first_letter(input: str) -> str:
    """A key: the first letter, which an input must have."""
    return input[0]


def same(input: str) -> str:
    """The resource is the input."""
    return input


def held(gate: Gate, limit: Limit[str], id: str = "line", **options: Any) -> Line:
    """A pipeline of one step that waits at a gate, then ends as its input says."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()
        if inv.input.endswith("bad"):
            raise Fail("no")

    return line(one, id=id, limits=(limit,), **options)


async def used(client: Client) -> dict[str, tuple[int, int, int | None]]:
    """In flight, waiting, and how many may wait, by key."""
    return {use.key: (use.held, use.waiting, use.queue) for use in await client.limits()}


@virtually
async def test_who_finds_no_room_is_refused(system: VirtualSystem) -> None:
    """R-11: with the limit and its key; other keys have room of their own, and whoever ends, however, leaves some."""
    gate = Gate()
    pipeline = held(gate, Limit("imports", key=first_letter, in_flight=1, queue=2))
    async with World(system).engine(app(pipeline)) as engine:
        runs = [await engine.submit(pipeline, input) for input in ("n1", "n2", "n3 bad")]
        problem = (
            r"pipeline 'line': limit 'imports' key 'n' has no room for another run; it lets in 3 that have not ended "
            r"\(in_flight=1, queue=2\)"
        )
        with pytest.raises(QueueFull, match=problem) as caught:
            await engine.submit(pipeline, "n4")
        assert (caught.value.limit, caught.value.key) == ("imports", "n")
        assert await used(engine) == {"n": (1, 2, 2)}
        assert len(await engine.list()) == 3
        await engine.submit(pipeline, "s1")
        await runs[1].cancel()
        assert isinstance(await runs[1].result(), Canceled)
        later = await engine.submit(pipeline, "n5", delay=HOUR)
        with pytest.raises(QueueFull):
            await engine.submit(pipeline, "n6", idempotency_key="k")
        gate.go.set()
        assert isinstance(await runs[2].result(), Failed)
        again = await engine.submit(pipeline, "n6", idempotency_key="k")
        assert again.created
        for run in (runs[0], again, later):
            assert isinstance(await run.result(), Succeeded)
        assert (await engine.verify()).findings == ()
        assert (await used(engine))["n"] == (0, 0, None)


@virtually
async def test_no_queue_at_all(system: VirtualSystem) -> None:
    """R-11: only what begins at once comes in; whoever joins needs no room."""
    gate = Gate()
    pipeline = held(gate, Limit("imports", in_flight=1, queue=0), resource=same)
    async with World(system).engine(app(pipeline)) as engine:
        first = await engine.submit(pipeline, "a")
        with pytest.raises(QueueFull):
            await engine.submit(pipeline, "b")
        assert not (await engine.submit(pipeline, "a")).created
        with pytest.raises(ScheduleConflict):
            await engine.submit(pipeline, "a", on_busy="reject")
        for on_busy in ("queue", "replace"):
            with pytest.raises(QueueFull):
                await engine.submit(pipeline, "a", on_busy=on_busy)
        gate.go.set()
        assert isinstance(await first.result(), Succeeded)
        assert (await engine.submit(pipeline, "b")).created


@virtually
async def test_of_many_as_many_as_there_is_room_for(system: VirtualSystem) -> None:
    """R-11: in their order; a refused one hurts no other, and one whose key cannot be told lets none in."""
    gate = Gate()
    pipeline = held(gate, Limit("imports", key=first_letter, in_flight=1, queue=1))
    async with World(system).engine(app(pipeline)) as engine:
        with pytest.raises(InvalidArgument, match="cannot be submitted: the key of limit 'imports' raised IndexError"):
            await engine.submit_many(pipeline, ["n1", ""])
        with pytest.raises(InvalidArgument, match="the key of limit 'imports' raised IndexError"):
            await engine.submit(pipeline, "")
        assert not await engine.list()
        found = await engine.submit_many(pipeline, ["n1", "n2", "n3", "s1", "n4"])
        assert [type(one) for one in found] == [Run, Run, QueueFull, Run, QueueFull]
        gate.go.set()
        for one in found:
            assert not isinstance(one, Run) or isinstance(await one.result(), Succeeded)


@virtually
async def test_a_tick_is_passed_over(system: VirtualSystem) -> None:
    """R-11, R-14: and said so; the next one that finds room is not."""
    gate, events = Gate(), Events()
    nightly = held(gate, Limit("imports", in_flight=1, queue=0), id="nightly")
    schedule = Schedule("nightly", nightly, input="a", every=HOUR)
    async with World(system).engine(app(nightly, schedules=(schedule,)), observers=(events,)) as engine:
        await system.sleep(2.5 * HOUR)
        assert events.kinds().count("tick-skipped") == 1
        gate.go.set()
        await system.sleep(HOUR)
        assert len(await engine.list()) == 2


@virtually
async def test_a_child_that_is_refused_fails_its_step(system: VirtualSystem) -> None:
    """R-11, B-21: the failure says what there was no room for."""
    gate = Gate()
    sub = kinship.work(lambda inv: gate(), id="sub", limits=(Limit("imports", in_flight=1, queue=0),))
    parent = kinship.one(sub)
    async with World(system).engine(kinship.app(sub, parent)) as engine:
        first = await engine.submit(parent, "a")
        await gate.until(1)
        result = await (await engine.submit(parent, "b")).result()
        assert isinstance(result, Failed)
        assert result.failure.reason == "child-refused"
        assert result.failure.cause is not None
        assert "limit 'imports' has no room for another run" in result.failure.cause.message
        gate.go.set()
        assert isinstance(await first.result(), Succeeded)


@virtually
async def test_another_number_in_the_next_deployment(system: VirtualSystem) -> None:
    """R-11: who is inside stays inside; who comes goes by the number of the code that submits it."""
    gate, world = Gate(), World(system)
    small, large = (held(gate, Limit("imports", in_flight=1, queue=queue)) for queue in (1, 2))
    plain = held(gate, Limit("imports", in_flight=1))
    async with world.engine(app(plain)) as engine:
        await engine.submit(plain, "from before there was a bound", delay=HOUR)
    async with world.engine(app(large)) as engine:
        for input in ("a", "b", "c"):
            await engine.submit(large, input, delay=HOUR)
    async with world.engine(app(small)) as engine:
        with pytest.raises(QueueFull, match="it lets in 2 that have not ended"):
            await engine.submit(small, "d")
        gate.go.set()
        await system.sleep(2 * HOUR)
        assert (await engine.submit(small, "d")).created


async def test_a_client_beside_the_engine(tmp_path: Any) -> None:
    """R-11: whoever submits to a file counts with everybody else; it lasts over a restart."""
    gate = Gate()
    pipeline = held(gate, Limit("imports", in_flight=2, queue=4))
    path, many = tmp_path / "store.db", app(pipeline)
    async with many.engine(store=SqliteStore(path)) as engine, many.client(store=SqliteStore(path)) as client:
        asked = [side.submit(pipeline, str(number)) for number in range(10) for side in (engine, client)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(one, Run) for one in found) == 6
        assert sum(isinstance(one, QueueFull) for one in found) == 14
    async with many.engine(store=SqliteStore(path)) as engine:
        with pytest.raises(QueueFull):
            await engine.submit(pipeline, "again")
        gate.go.set()
        await gate.until(6)


async def test_clients_and_workers_over_one_server(postgres_url: str) -> None:
    """R-11: four that submit at once while runs end: at no moment are more inside than there is room for, and
    everything comes in that finds room."""
    gate = Gate()
    gate.go.set()
    limit, other = Limit("imports", in_flight=2, queue=3), Limit("exports", in_flight=4, queue=4)
    one, two = held(gate, limit, id="one"), held(gate, other, id="two")
    many = app(one, two)
    entered = 0

    async def submit(client: Client, name: str) -> None:
        nonlocal entered
        for number in range(12):
            for pipeline in (one, two) if number % 2 else (two, one):
                try:
                    await client.submit(pipeline, f"{name}.{number}")
                    entered += 1
                except QueueFull:
                    pass

    async def watch() -> None:
        async with await psycopg.AsyncConnection.connect(
            conninfo(postgres_url), autocommit=True, prepare_threshold=None
        ) as con:
            inside = f"SELECT pipeline, count(*) FROM {schema(postgres_url)}.run WHERE ended_us IS NULL GROUP BY 1"
            while True:
                for pipeline, count in await (await con.execute(inside.encode())).fetchall():
                    assert count <= {"one": 5, "two": 8}[pipeline]

    async with (
        many.engine(store=postgres_url) as a,
        many.engine(store=postgres_url) as b,
        many.client(store=postgres_url) as c,
        many.client(store=postgres_url) as d,
    ):
        watcher = asyncio.create_task(watch())
        await asyncio.gather(*(submit(client, name) for client, name in zip((a, b, c, d), "abcd", strict=True)))
        watcher.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watcher
        for info in await c.list(limit=1000):
            assert isinstance(await c.result(info.run_id, timeout=30), Succeeded)
        assert len(await c.list(limit=1000)) == entered > 13
        assert await used(c) == {"": (0, 0, None)}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_in_a_callers_transaction(postgres_url: str, driver: str) -> None:
    """R-11, I-1: a refusal leaves the transaction as it was; a rollback leaves nothing taken."""
    pipeline = held(Gate(), Limit("imports", key=first_letter, in_flight=1, queue=1))
    async with app(pipeline).client(store=postgres_url) as client:
        async with DRIVERS[driver](postgres_url) as caller:
            await client.submit(pipeline, f"{driver} a", connection=caller.connection)
            await client.submit(pipeline, f"{driver} b", connection=caller.connection)
            await caller.rollback()
        run = await client.submit(pipeline, f"{driver} c")
        async with DRIVERS[driver](postgres_url) as caller:
            kept = await client.submit(pipeline, f"{driver} d", connection=caller.connection)
            with pytest.raises(QueueFull):
                await client.submit(pipeline, f"{driver} e", connection=caller.connection)
            many = await client.submit_many(pipeline, [f"{driver} f", f"{driver} g"], connection=caller.connection)
            assert [type(one) for one in many] == [QueueFull, QueueFull]
            await caller.commit()
        with pytest.raises(QueueFull):
            await client.submit(pipeline, f"{driver} h")
        assert {info.run_id for info in await client.list()} == {run.id, kept.id}
