"""Statements on one connection that do not wait for each other's answers [J-12, J-14]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg.pq.abc import PGresult

from perdure.storage.postgres.packed import Int8s, Texts
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.session import Session
from perdure.storage.postgres.wire import Statement, Wire, prepared
from tests.postgres import PostgresServer
from tests.storage.helpers import soon

INSERT = "INSERT INTO @thing SELECT * FROM unnest(%s, %s) RETURNING n"
ADD = "INSERT INTO @thing VALUES (%s, %s) RETURNING n"
MB = "x" * (1 << 20)


class Answers:
    """What became of what was sent, in the order in which it was told."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.told: list[tuple[str, list[int] | Exception]] = []

    def send(self, name: str, *statements: Statement) -> None:
        def landed(outcome: list[PGresult] | Exception) -> None:
            rows = outcome if isinstance(outcome, Exception) else [result.ntuples for result in outcome]
            self.told.append((name, rows))

        self.wire.send(prepared(statements), landed)


@asynccontextmanager
async def a_wire(postgres: PostgresServer, schema: str) -> AsyncGenerator[tuple[Answers, Session]]:
    postgres.sql(f"CREATE SCHEMA {schema} CREATE TABLE thing (n bigint PRIMARY KEY, word text)")
    session = await Session.connect(Place.of(postgres.url(schema=schema)))
    try:
        yield Answers(Wire(session)), session
    finally:
        session.drop()


async def test_what_is_sent_together_is_one_transaction(postgres: PostgresServer) -> None:
    """One that fails takes back what was sent with it, and nothing of those before and after it."""
    async with a_wire(postgres, "wire_together") as (answers, session):
        answers.send("first", (INSERT, (Int8s([1, 2]), Texts(["a", None]))), (ADD, (3, "c")))
        answers.send("second", (ADD, (4, "d")), (ADD, (1, "again")), (ADD, (5, "e")))
        answers.send("third", (ADD, (6, "")), ("SELECT n FROM @thing WHERE word = %s", ("c",)))
        assert answers.wire.in_flight == 3
        await soon(answers.wire.leave())
        assert [name for name, _ in answers.told] == ["first", "second", "third"]
        assert (answers.told[0][1], answers.told[2][1]) == ([2, 1], [1, 1])
        assert isinstance(answers.told[1][1], psycopg.errors.UniqueViolation)
        assert [row[0] for row in await session.rows("SELECT n FROM @thing ORDER BY n")] == [1, 2, 3, 6]


async def test_the_connection_is_as_any_other_in_between(postgres: PostgresServer) -> None:
    """Also where another wire prepared the same on it before."""
    async with a_wire(postgres, "wire_between") as (answers, session):
        for turn in range(3):
            answers.send("one", (ADD, (turn, "w")))
            await soon(answers.wire.leave())
            assert await session.number("SELECT count(*) FROM @thing") == turn + 1
        other = Answers(Wire(session))
        other.send("other", (ADD, (9, "w")))
        await soon(other.wire.leave())
        assert [rows for _, rows in answers.told + other.told] == [[1]] * 4


async def test_what_could_not_be_prepared_is_prepared_again(postgres: PostgresServer) -> None:
    """A table that is not there may come."""
    async with a_wire(postgres, "wire_later") as (answers, _):
        insert = ("INSERT INTO @other VALUES (%s)", (1,))
        answers.send("early", insert)
        await soon(answers.wire.leave())
        postgres.sql("CREATE TABLE wire_later.other (n bigint)")
        answers.send("late", insert)
        await soon(answers.wire.leave())
        assert isinstance(answers.told[0][1], psycopg.errors.UndefinedTable)
        assert answers.told[1] == ("late", [0])


async def test_more_than_the_socket_takes(postgres: PostgresServer) -> None:
    """Megabytes to the server and back, several at a time."""
    async with a_wire(postgres, "wire_large") as (answers, session):
        for n in range(6):
            answers.send(str(n), (ADD, (n, MB)), ("SELECT word FROM @thing", ()))
        await soon(answers.wire.leave())
        assert [rows for _, rows in answers.told] == [[1, n + 1] for n in range(6)]
        assert await session.number("SELECT sum(length(word)) FROM @thing") == 6 << 20


@pytest.mark.parametrize("how", ["the server", "we"])
async def test_a_lost_connection_is_told_to_all(postgres: PostgresServer, how: str) -> None:
    """Nobody waits for an answer that cannot come, and nothing can be sent any more."""
    async with a_wire(postgres, f"wire_lost_{how[0]}") as (answers, session):
        answers.send("whole", (ADD, (1, "w")))
        await soon(answers.wire.leave())
        pid = session.con.pgconn.backend_pid
        answers.send("sleeping", ("SELECT pg_sleep(60)", ()))
        answers.send("behind", (ADD, (2, "w")))
        if how == "we":
            answers.wire.abort()
        else:
            postgres.sql(f"SELECT pg_terminate_backend({pid})")
        await soon(answers.wire.leave())
        assert session.lost
        answers.send("late", (ADD, (3, "w")))
        await soon(answers.wire.leave())
        assert [name for name, _ in answers.told] == ["whole", "sleeping", "behind", "late"]
        assert all(isinstance(rows, psycopg.Error) for _, rows in answers.told[1:])
        await asyncio.sleep(0)
    assert postgres.sql(f"SELECT count(*) FROM wire_lost_{how[0]}.thing").strip() == "1"
