"""Callers of every driver that may bring its transaction along: one interface for tests to use them by."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qs, urlsplit

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from perdure.ports.joining import CallerConnection


def conninfo(url: str) -> str:
    """What libpq understands of a store's URL."""
    parts = urlsplit(url)
    return parts._replace(query=parts.query.rpartition("&schema=")[0]).geturl()


def schema(url: str) -> str:
    """The schema of a store."""
    return parse_qs(urlsplit(url).query)["schema"][0]


class Caller:
    """A connection in an open transaction of the caller's.

    Attributes:
        connection: what is given to perdure.
    """

    def __init__(
        self,
        connection: CallerConnection,
        execute: Callable[[str], Awaitable[object]],
        commit: Callable[[], Awaitable[object]],
        rollback: Callable[[], Awaitable[object]],
    ) -> None:
        self.connection = connection
        self.execute = execute
        self.commit = commit
        self.rollback = rollback


Driver: TypeAlias = Callable[[str], AbstractAsyncContextManager[Caller]]
"""Connects to the database of a store's URL, and begins a transaction."""


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncGenerator[Caller]:
    async with await psycopg.AsyncConnection.connect(conninfo(url)) as con:
        yield Caller(con, lambda sql: con.execute(sql.encode()), con.commit, con.rollback)


def later(work: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    """What blocks, as something to await."""

    async def call() -> object:
        return work()

    return call


@asynccontextmanager
async def psycopg_sync(url: str) -> AsyncGenerator[Caller]:
    with psycopg.connect(conninfo(url)) as con:
        yield Caller(
            con, lambda sql: later(lambda: con.execute(sql.encode()))(), later(con.commit), later(con.rollback)
        )


async def asyncpg_connect(url: str) -> Any:
    """A connection of asyncpg's, which has no types."""
    import asyncpg  # type: ignore[import-untyped]  # it has none

    host = parse_qs(urlsplit(url).query)["host"][0]
    return await cast("Any", asyncpg).connect(host=host, user="perdure", database="postgres")


@asynccontextmanager
async def asyncpg_(url: str) -> AsyncGenerator[Caller]:
    con = await asyncpg_connect(url)
    transaction = con.transaction()
    await transaction.start()
    try:
        yield Caller(con, con.execute, transaction.commit, transaction.rollback)
    finally:
        await con.close()


def _sqlalchemy(url: str, driver: str) -> str:
    host = parse_qs(urlsplit(url).query)["host"][0]
    return f"postgresql+{driver}://perdure@/postgres?host={host}"


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncGenerator[Caller]:
    engine = create_engine(_sqlalchemy(url, "psycopg"))
    with engine.connect() as con:
        yield Caller(con, lambda sql: later(lambda: con.exec_driver_sql(sql))(), later(con.commit), later(con.rollback))
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncGenerator[Caller]:
    engine = create_engine(_sqlalchemy(url, "psycopg"))
    with Session(engine) as session:

        def execute(sql: str) -> object:
            return session.connection().exec_driver_sql(sql)

        yield Caller(session, lambda sql: later(lambda: execute(sql))(), later(session.commit), later(session.rollback))
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncGenerator[Caller]:
    engine = create_async_engine(_sqlalchemy(url, "psycopg"))
    async with engine.connect() as con:
        yield Caller(con, con.exec_driver_sql, con.commit, con.rollback)
    await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncGenerator[Caller]:
    engine = create_async_engine(_sqlalchemy(url, "asyncpg"))
    async with AsyncSession(engine) as session:

        async def execute(sql: str) -> object:
            return await (await session.connection()).exec_driver_sql(sql)

        yield Caller(session, execute, session.commit, session.rollback)
    await engine.dispose()


DRIVERS: dict[str, Driver] = {
    "psycopg": psycopg_async,
    "psycopg-blocking": psycopg_sync,
    "asyncpg": asyncpg_,
    "sqlalchemy-connection": sqlalchemy_connection,
    "sqlalchemy-session": sqlalchemy_session,
    "sqlalchemy-async-connection": sqlalchemy_async_connection,
    "sqlalchemy-async-session-asyncpg": sqlalchemy_async_session,
}
