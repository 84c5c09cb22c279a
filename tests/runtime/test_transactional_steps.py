"""Transactional steps on PostgreSQL: the effect and the success of its step in one commit, or neither [I-1, J-14]."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from perdure import (
    Canceled,
    Fail,
    Failed,
    ForEach,
    InvalidRun,
    Invocation,
    ItemInvocation,
    Later,
    Retry,
    Succeeded,
    UnwindInvocation,
    poll,
    step,
)
from perdure.core.facts import OperationRetryScheduled
from tests.drivers import conninfo, schema
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresServer
from tests.runtime.lab import Inv, app, line
from tests.storage.test_postgres_faults import proxied

WAITS = "FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND objid = 4711"


class Books:
    """A table of the application's, in the database of the store."""

    def __init__(self, url: str) -> None:
        self.name = f"books_{schema(url)}"
        self._conninfo = conninfo(url)

    async def write(self, con: AsyncConnection[Any], text: str) -> None:
        await con.execute(f"INSERT INTO {self.name} VALUES (%s)".encode(), (text,))

    async def sql(self, text: str) -> list[Any]:
        """On a connection of its own."""
        async with await AsyncConnection.connect(self._conninfo, autocommit=True) as con:
            cursor = await con.execute(text.replace("BOOKS", self.name).encode())
            return await cursor.fetchall() if cursor.description is not None else []

    async def wait_in_commits(self) -> None:
        """A commit with the entry `late 1` waits for whoever has an advisory lock."""
        await self.sql(
            """
            CREATE FUNCTION BOOKS_wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF NEW.entry = 'late 1' THEN PERFORM pg_advisory_xact_lock(4711); END IF; RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER w AFTER INSERT ON BOOKS DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION BOOKS_wait();
            """
        )

    async def until(self, query: str) -> None:
        """Wait until a query finds something."""
        async with asyncio.timeout(60):
            while not await self.sql(query):
                pass

    async def entries(self) -> list[str]:
        return [row[0] for row in await self.sql("SELECT entry FROM BOOKS ORDER BY 1")]


@asynccontextmanager
async def books(url: str) -> AsyncGenerator[Books]:
    found = Books(url)
    await found.sql("CREATE TABLE BOOKS (entry text PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    yield found


async def test_effect_and_success_are_one_commit(postgres: PostgresServer) -> None:
    """M-3, M-5, I-1: an attempt that raises, says Fail or Later leaves nothing; the one that returns leaves it once."""
    url = postgres.url()
    async with books(url) as ledger:

        @step("book/v1")
        async def book(inv: Inv) -> int:
            con = await inv.tx(AsyncConnection)
            assert await inv.tx(AsyncConnection) is con
            cast("Any", con).row_factory = dict_row  # its own business
            async with con.transaction():  # a savepoint
                await ledger.write(con, f"{inv.input} {inv.attempt}")
            assert await ledger.entries() == []
            await inv.memo("note", lambda: 1, type=int)
            if inv.attempt == 1:
                raise OSError("down")
            return inv.attempt

        @poll("ask/v1")
        async def ask(inv: Inv) -> int | Later:
            await ledger.write(await inv.tx(AsyncConnection), f"asked {inv.attempt}")
            return Later(0) if inv.attempt == 1 else inv.attempt

        pipeline = line(book, ask)
        async with app(pipeline).engine(store=url) as engine:
            run = await engine.submit(pipeline, "x")
            assert isinstance(await run.result(timeout=60), Succeeded)
            assert await ledger.entries() == ["asked 2", "x 2"]
            assert (await engine.verify()).findings == ()
            counted = await ledger.sql("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
            assert counted[0][0] <= 1  # the engine's hold on its store


async def test_unwinding_in_transactions(postgres: PostgresServer) -> None:
    """U-2, I-1: what a step wrote is taken back in one commit, too; `Fail` rolls its own back [M-9]."""
    url = postgres.url()
    async with books(url) as ledger:

        async def unbook(inv: UnwindInvocation[str, object], booked: str) -> None:
            con = await inv.tx(AsyncConnection)
            await con.execute(f"DELETE FROM {ledger.name}".encode())
            if inv.attempt == 1:
                raise OSError("down")

        @step("book/v1", unwind=unbook)
        async def book(inv: Inv) -> str:
            await ledger.write(await inv.tx(AsyncConnection), "booked")
            return "booked"

        @step("refuse/v1")
        async def refuse(inv: Inv) -> None:
            await ledger.write(await inv.tx(AsyncConnection), "refused")
            assert await ledger.entries() == ["booked"]
            raise Fail("no")

        pipeline = line(book, refuse)
        async with app(pipeline).engine(store=url) as engine:
            assert isinstance(await engine.result((await engine.submit(pipeline, "x")).id, timeout=60), Failed)
            assert await ledger.entries() == []


async def test_stopped_attempts_leave_nothing(postgres: PostgresServer) -> None:
    """R-12, R-18, R-6: a time-out, a cancel and a shutdown roll back, also in the middle of a statement."""
    url = postgres.url()
    async with books(url) as ledger:
        inside = asyncio.Event()

        @step("slow/v1", timeout=0.3)
        async def slow(inv: Inv) -> None:
            con = await inv.tx(AsyncConnection)
            await ledger.write(con, f"slow {inv.attempt}")
            if inv.attempt == 1:
                await con.execute("SELECT pg_sleep(60)")

        @step("stuck/v1")
        async def stuck(inv: Inv) -> None:
            await ledger.write(await inv.tx(AsyncConnection), f"stuck {inv.attempt}")
            inside.set()
            await asyncio.Event().wait()

        pipeline, other = line(slow), line(stuck, id="other")
        async with app(pipeline, other).engine(store=url) as engine:
            assert isinstance(await (await engine.submit(pipeline, "x")).result(timeout=60), Succeeded)
            run = await engine.submit(other, "x")
            await inside.wait()
            await run.cancel()
            assert isinstance(await run.result(timeout=60), Canceled)
            assert await ledger.entries() == ["slow 2"]
            inside.clear()
            again = await engine.submit(other, "y")
            await inside.wait()
            await engine.drain(0)
            assert (await again.info()).status == "ready"
        assert await ledger.entries() == ["slow 2"]


async def test_a_crash_between_effect_and_commit_leaves_neither(postgres: PostgresServer) -> None:
    """I-1, M-5: the process is gone with the effect; the next engine's attempt makes it once."""
    url = postgres.url()
    async with books(url) as ledger:
        inside = asyncio.Event()

        @step("book/v1")
        async def book(inv: Inv) -> None:
            await ledger.write(await inv.tx(AsyncConnection), f"{inv.attempt}")
            if inv.attempt == 1:
                inside.set()
                await asyncio.Event().wait()

        pipeline = line(book)
        engine = app(pipeline).engine(store=url, lease=1)
        opened = await engine.__aenter__()
        run = await opened.submit(pipeline, "x")
        await inside.wait()
        ours = asyncio.all_tasks()
        opened.abort()
        await asyncio.wait(ours - {asyncio.current_task()}, timeout=5)
        assert await ledger.entries() == []
        async with app(pipeline).engine(store=url, lease=1) as another:
            assert isinstance(await another.result(run.id, timeout=60), Succeeded)
        assert await ledger.entries() == ["2"]


@pytest.mark.parametrize("lost", [b"COMMIT", b"pg_current_xact_id"], ids=["in-the-commit", "before-the-commit"])
async def test_a_lost_answer_is_found_out(postgres: PostgresServer, lost: bytes) -> None:
    """J-14: committed once where the commit arrived, tried again where it did not; no effect twice, none missing."""
    direct = postgres.url()
    async with books(direct) as ledger, proxied(postgres) as proxy:

        @step("book/v1")
        async def book(inv: Inv) -> int:
            await ledger.write(await inv.tx(AsyncConnection), f"{inv.input} {inv.attempt}")
            if inv.attempt == 1:
                proxy.lose = lost
            return inv.attempt

        pipeline = line(book)
        async with app(pipeline).engine(store=proxy.url(direct)) as engine:
            run = await engine.submit(pipeline, "x")
            assert isinstance(await run.result(timeout=60), Succeeded)
            causes = [each.fact.cause for each in await run.journal() if isinstance(each.fact, OperationRetryScheduled)]
        assert proxy.lost == 1
        assert await ledger.entries() == (["x 1"] if lost == b"COMMIT" else ["x 2"])
        assert causes == ([] if lost == b"COMMIT" else ["error"])


async def test_backends_that_are_killed(postgres: PostgresServer) -> None:
    """J-14, M-5: while the handler runs, and in the commit, which waits for a lock then."""
    url = postgres.url()
    async with books(url) as ledger:
        killed = asyncio.Event()

        @step("book/v1")
        async def book(inv: Inv) -> None:
            con = await inv.tx(AsyncConnection)
            await ledger.write(con, f"{inv.input} {inv.attempt}")
            if inv.input == "early" and inv.attempt == 1:
                await ledger.sql(f"SELECT pg_terminate_backend({con.info.backend_pid})")
            if inv.input == "late" and inv.attempt == 1:
                killed.set()

        pipeline = line(book)
        await ledger.wait_in_commits()
        async with app(pipeline).engine(store=url) as engine:
            early = await engine.submit(pipeline, "early")
            assert isinstance(await early.result(timeout=60), Succeeded)
            async with await AsyncConnection.connect(conninfo(url)) as holder:
                await holder.execute("SELECT pg_advisory_xact_lock(4711)")
                late = await engine.submit(pipeline, "late")
                await killed.wait()
                await ledger.until(f"SELECT pg_terminate_backend(pid) {WAITS}")
            assert isinstance(await late.result(timeout=60), Succeeded)
            assert (await engine.verify()).findings == ()
        assert await ledger.entries() == ["early 2", "late 2"]


async def test_a_commit_that_goes_on_when_its_connection_is_gone(postgres: PostgresServer) -> None:
    """J-14: finding nothing proves nothing while the old session is at it; nobody tries again before it has ended."""
    url = postgres.url()
    async with books(url) as ledger:
        used: list[AsyncConnection[Any]] = []

        @step("book/v1")
        async def book(inv: Inv) -> None:
            used.append(await inv.tx(AsyncConnection))
            await ledger.write(used[-1], f"{inv.input} {inv.attempt}")

        pipeline = line(book)
        await ledger.wait_in_commits()
        async with app(pipeline).engine(store=url) as engine:
            async with await AsyncConnection.connect(conninfo(url)) as holder:
                await holder.execute("SELECT pg_advisory_xact_lock(4711)")
                run = await engine.submit(pipeline, "late")
                await ledger.until(f"SELECT 1 {WAITS}")
                with socket.socket(fileno=os.dup(used[0].fileno())) as line_of_it:
                    line_of_it.shutdown(socket.SHUT_RDWR)
                await ledger.until("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_xact_status%'")
                assert (await run.info()).status == "running"
                assert await ledger.entries() == []
            assert isinstance(await run.result(timeout=60), Succeeded)
            assert (await engine.verify()).findings == ()
        assert await ledger.entries() == ["late 1"]
        assert len(used) == 1


async def test_facts_from_outside_come_first(postgres: PostgresServer) -> None:
    """J-6, R-17: a success is planned anew on them in the same transaction; a verdict of an operator's undoes it."""
    url = postgres.url()
    async with books(url) as ledger:
        inside, go_on = asyncio.Event(), asyncio.Event()

        @step("book/v1")
        async def book(inv: Inv) -> None:
            await ledger.write(await inv.tx(AsyncConnection), inv.input)
            inside.set()
            await go_on.wait()

        @step("resolved/v1")
        async def resolved(inv: Inv) -> None:
            await ledger.write(await inv.tx(AsyncConnection), inv.input)
            await client.resolve(inv.run_id, skip=True)

        pipeline, other = line(book), line(resolved, id="other")
        async with app(pipeline, other).engine(store=url) as engine, app(pipeline, other).client(store=url) as client:
            kept = await engine.submit(pipeline, "kept")
            await inside.wait()
            await client.prioritize(kept.id, 3)
            go_on.set()
            assert isinstance(await kept.result(timeout=60), Succeeded)
            inside.clear()
            go_on.clear()
            undone = await engine.submit(pipeline, "undone")
            await inside.wait()
            await client.resolve(undone.id, skip=True)
            assert isinstance(await undone.result(timeout=60), Succeeded)
            at_once = await engine.submit(other, "undone at once")
            assert isinstance(await at_once.result(timeout=60), Succeeded)
            assert await ledger.entries() == ["kept"]
            assert (await engine.verify()).findings == ()


async def test_a_worker_that_was_fenced_off_commits_no_effect(postgres: PostgresServer) -> None:
    """J-3, R-3: a newer claim, or the run's removal, undoes what the handler wrote; its connection is free again."""
    url = postgres.url()
    own = schema(url)
    async with books(url) as ledger:

        @step("book/v1")
        async def book(inv: Inv) -> None:
            await ledger.write(await inv.tx(AsyncConnection), inv.input)
            await ledger.sql(inv.input.replace("ID", inv.run_id))
            tried.append(inv.run_id)

        tried: list[str] = []
        pipeline = line(book)
        async with app(pipeline).engine(store=url) as engine:
            await engine.submit(pipeline, f"UPDATE {own}.run SET token = token + 1 WHERE id = 'ID'")
            await engine.submit(pipeline, f"DELETE FROM {own}.journal j USING {own}.run WHERE n = j.run AND id = 'ID'")
            kept = await engine.submit(pipeline, "SELECT 'ID'")
            assert isinstance(await kept.result(timeout=60), Succeeded)
            held = "SELECT 1 FROM pg_locks WHERE relation = to_regclass('BOOKS') AND mode = 'RowExclusiveLock'"
            while len(tried) < 3 or await ledger.sql(held):
                await asyncio.wait_for(engine.idle(), 60)
        assert await ledger.entries() == ["SELECT 'ID'"]


async def test_a_worker_that_was_found_dead_commits_no_effect(postgres: PostgresServer) -> None:
    """R-3, I-1: a worker marked dead while its handler runs undoes what that wrote; the next identity does it."""
    url = postgres.url()
    async with books(url) as ledger:

        @step("book/v1")
        async def book(inv: Inv) -> None:
            await ledger.write(await inv.tx(AsyncConnection), f"{inv.attempt}")
            if inv.attempt == 1:
                await ledger.sql(f"UPDATE {schema(url)}.worker SET dead = true")

        pipeline = line(book)
        async with app(pipeline).engine(store=url, lease=1) as engine:
            run = await engine.submit(pipeline, "x")
            assert isinstance(await run.result(timeout=60), Succeeded)
        assert await ledger.entries() == ["2"]


async def test_behind_a_pooler(postgres: PostgresServer, pooler: PgBouncer) -> None:
    """I-1: an engine and a caller that get a server connection for a transaction at a time."""
    direct = postgres.url()
    url = pooler.through(direct)
    async with books(direct) as ledger:

        @step("book/v1")
        async def book(inv: Inv) -> None:
            await ledger.write(await inv.tx(AsyncConnection), inv.input)

        pipeline = line(book)
        async with app(pipeline).engine(store=url) as engine:
            async with await AsyncConnection.connect(conninfo(url), prepare_threshold=None) as con:
                await ledger.write(con, "a")
                runs = [await engine.submit(pipeline, text, connection=con) for text in "bcd"]
            for run in runs:
                assert isinstance(await run.result(timeout=60), Succeeded)
        assert await ledger.entries() == list("abcd")


async def test_constraints_that_are_checked_at_the_end(postgres: PostgresServer) -> None:
    """M-5: what the server says at the commit is the attempt's exception, and may be one that is never tried again."""
    url = postgres.url()
    async with books(url) as ledger:
        await ledger.sql("INSERT INTO BOOKS VALUES ('taken')")

        @step("book/v1", retry=Retry(initial=0, cap=0, never=(psycopg.errors.UniqueViolation,)))
        async def book(inv: Inv) -> None:
            await ledger.write(await inv.tx(AsyncConnection), "taken")

        @step("swallow/v1", retry=Retry(initial=0, cap=0, max_attempts=2, then="fail"))
        async def swallow(inv: Inv) -> None:
            con = await inv.tx(AsyncConnection)
            try:
                await con.execute("SELECT 1/0")
            except psycopg.errors.DivisionByZero:
                return

        pipeline, other = line(book), line(swallow, id="other")
        async with app(pipeline, other).engine(store=url) as engine:
            result = await (await engine.submit(pipeline, "x")).result(timeout=60)
            assert isinstance(result, Failed)
            assert "not committed" in result.failure.message
            assert "duplicate key" in result.failure.message
            result = await (await engine.submit(other, "x")).result(timeout=60)
            assert isinstance(result, Failed)
            assert "aborted" in result.failure.message
        assert await ledger.entries() == ["taken"]


async def ends_it(con: AsyncConnection[Any]) -> None:
    await con.commit()


async def ends_and_begins(con: AsyncConnection[Any]) -> None:
    await con.execute("COMMIT")
    await con.execute("BEGIN")


async def test_handlers_that_break_the_contract(postgres: PostgresServer) -> None:
    """D-1, I-1: the run is invalid, and says what is wrong; no success without its transaction."""
    url = postgres.url()

    @step("a/v1")
    async def wrong_kind(inv: Inv) -> None:
        await inv.tx(dict)

    @step("b/v1")
    def in_a_thread(inv: Inv) -> None:
        inv.tx(AsyncConnection).close()

    def ended_by(how: Callable[[AsyncConnection[Any]], Any], id: str) -> Any:
        @step(id)
        async def ended(inv: Inv) -> None:
            await how(await inv.tx(AsyncConnection))

        return ended

    def inputs(inv: Inv) -> list[int]:
        return [1]

    async def of_item(inv: ItemInvocation[str, object, int]) -> int:
        await inv.tx(AsyncConnection)
        return 1

    each = ForEach("e/v1", items=inputs, handler=of_item)
    lines = [
        (line(wrong_kind, id="a"), "not a <class 'dict'>"),
        (line(in_a_thread, id="b"), "must be `async def`"),
        (line(ended_by(ends_it, "c/v1"), id="c"), "itself ended the transaction"),
        (line(ended_by(ends_and_begins, "d/v1"), id="d"), "itself ended the transaction"),
        (line(each, id="e"), "items are recorded many at once"),
    ]
    async with app(*[pipeline for pipeline, _ in lines]).engine(store=url) as engine:
        for pipeline, problem in lines:
            with pytest.raises(InvalidRun, match="contract-broken") as error:
                await (await engine.submit(pipeline, "x")).result(timeout=60)
            assert problem in str(error.value)


async def test_other_stores_have_none(tmp_path: Any) -> None:
    """D-1, I-1"""

    @step("a/v1")
    async def writes(inv: Inv) -> None:
        await inv.tx(AsyncConnection)

    pipeline = line(writes)
    for url in ("memory://", f"sqlite:///{tmp_path}/x.db"):
        async with app(pipeline).engine(store=url) as engine:
            with pytest.raises(InvalidRun, match="no transactions for handlers"):
                await (await engine.submit(pipeline, "x")).result(timeout=60)


async def test_more_handlers_than_connections(postgres: PostgresServer) -> None:
    """They take turns; whatever a task that a handler left behind asks for afterwards, it does not get."""
    url = postgres.url()
    async with books(url) as ledger:
        left: list[Invocation[str, object]] = []

        @step("book/v1")
        async def book(inv: Inv) -> None:
            con, same = await asyncio.gather(inv.tx(AsyncConnection), inv.tx(AsyncConnection))
            assert con is same
            await ledger.write(con, inv.input)
            left.append(inv)

        pipeline = line(book)
        async with app(pipeline).engine(store=url) as engine:
            runs = [await engine.submit(pipeline, f"{n:02}") for n in range(30)]
            for run in runs:
                assert isinstance(await run.result(timeout=60), Succeeded)
            for inv in left[:2]:
                with pytest.raises(asyncio.CancelledError):
                    await inv.tx(AsyncConnection)
        assert await ledger.entries() == [f"{n:02}" for n in range(30)]


async def test_a_handler_without_an_engine(postgres: PostgresServer) -> None:
    """I-6: a test brings its own connection, and rolls it back."""
    url = postgres.url()
    async with books(url) as ledger:

        @step("book/v1")
        async def book(inv: Inv) -> int:
            await ledger.write(await inv.tx(AsyncConnection), inv.input)
            return 1

        pipeline = line(book)
        async with await AsyncConnection.connect(conninfo(url)) as con:
            assert await book(pipeline.fake(input="x", deps=None, tx=con)) == 1
            await con.rollback()
        assert await ledger.entries() == []
        with pytest.raises(Exception, match="none was given"):
            await book(pipeline.fake(input="x", deps=None))
