"""Submissions and messages in a transaction of the caller's, on PostgreSQL, with every driver [I-1, R-5, R-16]."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from perdure import (
    App,
    AwaitMessage,
    InvalidArgument,
    KeyTaken,
    NotFound,
    Pipeline,
    Run,
    ScheduleConflict,
    Succeeded,
    step,
)
from perdure.sync import connect as connect_sync
from tests.drivers import DRIVERS, asyncpg_connect, conninfo, psycopg_async, schema
from tests.postgres import PostgresServer
from tests.runtime.lab import Inv, Line, app, line

approval = AwaitMessage("approval/v1", name="approval", type=str)


@step("one/v1")
async def one(inv: Inv) -> str:
    return inv.input


def first_word(text: str) -> str:
    return text.partition(" ")[0]


plain = line(one)
keyed: Line = line(one, id="keyed", resource=first_word)
queued: Line = line(one, id="queued", resource=first_word, slot="serial")
waiting: Pipeline[str, object, str] = Pipeline(
    id="waiting", input=str, deps=object, steps=(approval,), output=lambda inv: inv[approval]
)
APP = app(plain, keyed, queued, build="test")
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer) -> str:
    """The store that all drivers take turns at, each as a tenant of its own."""
    return postgres.url()


async def table(url: str, driver: str) -> str:
    """A table of the caller's."""
    name = f"orders_{schema(url)}_{driver.replace('-', '_')}_{next(NUMBERS)}"
    async with await psycopg.AsyncConnection.connect(conninfo(url)) as con:
        await con.execute(f"CREATE TABLE {name} (id text)".encode())
    return name


async def count(url: str, name: str) -> int:
    async with await psycopg.AsyncConnection.connect(conninfo(url)) as con:
        row = await (await con.execute(f"SELECT count(*) FROM {name}".encode())).fetchone()
    return 0 if row is None else int(row[0])


async def ends(run: Run[Any]) -> bool:
    return isinstance(await run.result(timeout=60), Succeeded)


async def output(run: Run[str]) -> str:
    result = await run.result(timeout=60)
    assert isinstance(result, Succeeded)
    return result.output


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_run_and_an_order_in_one_commit(shop: str, driver: str) -> None:
    """I-1: together or not at all; the engine hears of the commit, in this process and in another."""
    url = shop
    orders = await table(url, driver)
    async with APP.engine(store=url) as engine, APP.client(store=url) as client:
        async with DRIVERS[driver](url) as caller:
            await caller.execute(f"INSERT INTO {orders} VALUES ('a')")
            lost = await client.submit(plain, "lost", tenant=driver, connection=caller.connection)
            assert lost.created
            with pytest.raises(NotFound):
                await lost.result(timeout=60)
            await caller.rollback()
        async with DRIVERS[driver](url) as caller:
            await caller.execute(f"INSERT INTO {orders} VALUES ('b')")
            runs = [
                await client.submit(plain, "kept", tenant=driver, connection=caller.connection, annotations={"a": "b"}),
                await engine.submit(
                    keyed,
                    "x 1",
                    tenant=driver,
                    connection=caller.connection,
                    idempotency_key="k",
                    deadline=timedelta(hours=1),
                ),
                *await client.submit_many(plain, ["many", "more"], tenant=driver, connection=caller.connection),
            ]
            await caller.execute(f"INSERT INTO {orders} VALUES ('c')")
            with pytest.raises(NotFound):
                await engine.info(runs[1].id if isinstance(runs[1], Run) else "")
            await caller.commit()
            for run in runs:
                assert isinstance(run, Run)
                assert await ends(run)
        with pytest.raises(NotFound):
            await client.run(lost.id)
        assert (await client.verify()).findings == ()
    assert await count(url, orders) == 2


@pytest.mark.parametrize("driver", DRIVERS)
async def test_refusals_leave_the_transaction_as_it_was(shop: str, driver: str) -> None:
    """R-5, I-1: busy slots and used keys, of runs that are there and of runs of the same transaction."""
    url = shop
    orders = await table(url, driver)
    async with APP.client(store=url) as client:
        there = await client.submit(keyed, "a 1", tenant=driver, delay=3600)
        under = await client.submit(plain, "k", tenant=driver, idempotency_key="k", delay=3600)
        async with DRIVERS[driver](url) as caller:
            con = caller.connection
            await caller.execute(f"INSERT INTO {orders} VALUES ('x')")
            joined = await client.submit(keyed, "a 1", tenant=driver, connection=con)
            assert (joined.id, joined.created) == (there.id, False)
            with pytest.raises(ScheduleConflict) as conflict:
                await client.submit(keyed, "a 2", tenant=driver, connection=con)
            assert conflict.value.run_id == there.id
            with pytest.raises(ScheduleConflict):
                await client.submit(keyed, "a 1", tenant=driver, on_busy="reject", connection=con)
            with pytest.raises(KeyTaken):
                await client.submit(plain, "other", tenant=driver, idempotency_key="k", connection=con)
            again = await client.submit(plain, "k", tenant=driver, idempotency_key="k", connection=con)
            assert (again.id, again.created) == (under.id, False)
            new = await client.submit(keyed, "b 1", tenant=driver, idempotency_key="b", connection=con)
            same = await client.submit(keyed, "b 1", tenant=driver, connection=con)
            assert (same.id, same.created) == (new.id, False)
            under_key = await client.submit(keyed, "b 1", tenant=driver, idempotency_key="c", connection=con)
            assert (under_key.id, under_key.created) == (new.id, False)
            with pytest.raises(ScheduleConflict):
                await client.submit(keyed, "b 2", tenant=driver, connection=con)
            behind = await client.submit(keyed, "b 3", tenant=driver, on_busy="queue", connection=con)
            many = await client.submit_many(keyed, ["c 1", "b 4", "c 1"], tenant=driver, connection=con)
            assert [type(each) for each in many] == [Run, ScheduleConflict, Run]
            await caller.commit()
        assert await count(url, orders) == 1
        assert (await client.info(behind.id)).status == "ready"
        assert (await client.submit(keyed, "b 1", tenant=driver, idempotency_key="c")).id == new.id
        assert (await client.verify()).findings == ()
    async with APP.engine(store=url), APP.client(store=url) as client:
        assert await ends(await client.submit(keyed, "b 1", tenant=driver, idempotency_key="b"))
        assert isinstance(await client.result(behind.id, timeout=60), Succeeded)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_messages(shop: str, driver: str) -> None:
    """B-24, I-1: to a run that waits, to one of the same transaction; and nothing of one that was rolled back."""
    url = shop
    application = App(waiting.bind(), store="memory://")
    async with application.engine(store=url) as engine, application.client(store=url) as client:
        first = await client.submit(waiting, "first")
        async with DRIVERS[driver](url) as caller:
            assert await client.send(first.id, "approval", "never", key="k", connection=caller.connection)
            await caller.rollback()
        async with DRIVERS[driver](url) as caller:
            assert await first.send("approval", "yes", key="k", connection=caller.connection)
            assert not await engine.send(first.id, "approval", "yes", key="k", connection=caller.connection)
            with pytest.raises(KeyTaken):
                await client.send(first.id, "approval", "no", key="k", connection=caller.connection)
            with pytest.raises(InvalidArgument):
                await client.send(first.id, "no such", 1, connection=caller.connection)
            second = await client.submit(waiting, "second", connection=caller.connection)
            assert await client.send(second.id, "approval", "too", connection=caller.connection)
            await caller.commit()
        assert await output(first) == "yes"
        assert await output(second) == "too"
        assert (await client.verify()).findings == ()


async def test_replacing_in_a_transaction_is_done_by_the_engine(postgres: PostgresServer) -> None:
    """R-5, R-16: whoever is to make place is canceled when the replacer is there, not before."""
    url = postgres.url()
    async with APP.engine(store=url) as engine, psycopg_async(url) as caller:
        old = await engine.submit(keyed, "a 1", delay=3600)
        new = await engine.submit(keyed, "a 2", on_busy="replace", connection=caller.connection)
        assert (await old.info()).status == "ready"
        await caller.commit()
        assert await ends(new)
        assert (await old.info()).status == "canceled"


async def test_serial_runs_have_their_turns(postgres: PostgresServer) -> None:
    """R-5: in the order in which they were submitted."""
    url = postgres.url()
    async with APP.engine(store=url) as engine, psycopg_async(url) as caller:
        runs = await engine.submit_many(queued, ["a 1", "a 2", "a 3"], connection=caller.connection)
        alone = await engine.submit(queued, "a 4", connection=caller.connection)
        await caller.commit()
        for run in (*runs, alone):
            assert isinstance(run, Run)
            assert await ends(run)


async def test_an_open_transaction_stalls_only_who_wants_the_same(postgres: PostgresServer) -> None:
    """I-1, R-16: runs go on while a caller holds a slot and a key; whoever wants those waits, and hears the truth."""
    url = postgres.url()
    async with APP.engine(store=url) as engine, psycopg_async(url) as caller, psycopg_async(url) as other:
        held = await engine.submit(keyed, "a 1", connection=caller.connection)
        under = await engine.submit(plain, "p", idempotency_key="k", connection=caller.connection)
        same = asyncio.ensure_future(engine.submit(keyed, "a 1"))
        key = asyncio.ensure_future(engine.submit(plain, "p", idempotency_key="k"))
        gone = await engine.submit(keyed, "b 1", connection=other.connection)
        instead = asyncio.ensure_future(engine.submit(keyed, "b 2"))
        for n in range(20):
            assert await ends(await engine.submit(keyed, f"c{n} 1"))
            assert await ends(await engine.submit(plain, str(n)))
        assert not key.done()
        assert not same.done()
        assert not instead.done()
        await caller.commit()
        joined = await asyncio.wait_for(same, 60)
        assert joined.created == (joined.id != held.id)  # it may have ended by then
        assert (await asyncio.wait_for(key, 60)).id == under.id
        await other.rollback()
        new = await asyncio.wait_for(instead, 60)
        assert new.created
        assert new.id != gone.id
        assert await ends(held)
        assert await ends(new)


async def test_a_message_in_an_open_transaction_stalls_only_its_run(postgres: PostgresServer) -> None:
    """J-6, I-1: the owner's next append waits, and is planned anew on the message; other runs go on."""
    url = postgres.url()
    reached, go_on = asyncio.Event(), asyncio.Event()

    @step("before/v1")
    async def before(inv: Inv) -> None:
        reached.set()
        await go_on.wait()

    talks: Pipeline[str, object, str] = Pipeline(
        id="talks", input=str, deps=object, steps=(before, approval), output=lambda inv: inv[approval]
    )
    application = App(talks.bind(), plain.bind(), store="memory://")
    async with application.engine(store=url) as engine, psycopg_async(url) as caller:
        run = await engine.submit(talks, "x")
        await reached.wait()
        await run.send("approval", "yes", connection=caller.connection)
        go_on.set()
        for n in range(10):
            assert await ends(await engine.submit(plain, str(n)))
        assert (await run.info()).status == "running"
        await caller.commit()
        assert await output(run) == "yes"
        assert (await engine.verify()).findings == ()


async def test_connections_that_do_not_fit(postgres: PostgresServer) -> None:
    """I-1: nothing is written where no commit of the caller's decides; the message says what to do."""
    url, elsewhere = postgres.url(), postgres.url()
    async with APP.client(store=url) as client, APP.client(store=elsewhere):

        async def refused(connection: Any, match: str) -> None:
            with pytest.raises(InvalidArgument, match=match):
                await client.submit(plain, "x", connection=connection)

        await refused(object(), "psycopg 3, asyncpg")
        async with await psycopg.AsyncConnection.connect(conninfo(url), autocommit=True) as con:
            await refused(con, "commits every statement")
            async with con.transaction():
                await client.submit(plain, "fits", connection=con)
            await con.set_autocommit(False)
            with pytest.raises(psycopg.errors.DivisionByZero):
                await con.execute("SELECT 1/0")
            await refused(con, "has failed already")
            await con.rollback()
            await con.execute("SET TRANSACTION READ ONLY")
            await refused(con, "read-only")
        await refused(con, "closed")
        con = await asyncpg_connect(url)
        await refused(con, "not in a transaction")
        await con.close()
        await refused(con, "closed")
        async with psycopg_async(elsewhere) as caller:
            await caller.execute(f"ALTER SCHEMA {schema(url)} RENAME TO away")
            await refused(caller.connection, "no store in a schema")
            await caller.execute(f"ALTER SCHEMA {schema(elsewhere)} RENAME TO {schema(url)}")
            await refused(caller.connection, "another store")
            await caller.rollback()
            await caller.execute("CREATE ROLE weak")
            await caller.execute("SET LOCAL ROLE weak")
            await refused(caller.connection, "'weak' may not write")
            await caller.rollback()
        assert len(await client.list()) == 1


async def test_only_postgresql_joins(postgres: PostgresServer, tmp_path: Any) -> None:
    """I-1: the other stores say so."""
    async with psycopg_async(postgres.url()) as caller:
        for url in ("memory://", f"sqlite:///{tmp_path}/x.db"):
            async with APP.client(store=url) as client:
                with pytest.raises(InvalidArgument, match="one in PostgreSQL does"):
                    await client.submit(plain, "x", connection=caller.connection)


async def test_what_the_server_refuses_comes_as_it_is(postgres: PostgresServer) -> None:
    """I-1: a slot that was taken after the snapshot of a serializable transaction."""
    url = postgres.url()
    async with APP.client(store=url) as client, psycopg_async(url) as caller:
        await caller.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        await caller.execute("SELECT 1")
        await client.submit(keyed, "a 1", delay=timedelta(hours=1))
        with pytest.raises(psycopg.errors.SerializationFailure):
            await client.submit(keyed, "a 1", connection=caller.connection)
        await caller.rollback()
        assert not (await client.submit(keyed, "a 1", connection=caller.connection)).created


def test_the_blocking_client_joins_a_blocking_connection(postgres: PostgresServer) -> None:
    """I-1"""
    url = postgres.url()
    with connect_sync(url) as client, psycopg.connect(conninfo(url)) as con:
        run = client.submit(plain, "x", connection=con)
        with pytest.raises(NotFound):
            client.info(run.id)
        con.commit()
        assert client.info(run.id).status == "ready"


async def test_a_caller_who_is_canceled_gets_its_blocking_connection_back(postgres: PostgresServer) -> None:
    """I-1: nobody uses it behind its back, and the transaction is still the caller's."""
    url = postgres.url()
    async with APP.client(store=url) as client, psycopg_async(url) as other:
        await client.submit(keyed, "a 1", connection=other.connection)
        with psycopg.connect(conninfo(url)) as con:
            waits = asyncio.ensure_future(client.submit(keyed, "a 1", connection=con))
            async with await psycopg.AsyncConnection.connect(conninfo(url), autocommit=True) as looks:
                while not await (await looks.execute("SELECT 1 FROM pg_locks WHERE NOT granted")).fetchone():
                    pass
            waits.cancel()
            await asyncio.sleep(0)
            assert not waits.done()
            await other.commit()
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert con.execute("SELECT 1").fetchone() == (1,)
