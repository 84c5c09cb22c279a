"""Connections of callers: what they are of, whether they are in a transaction, and executing statements on them [I-1].

Nothing is imported but psycopg, which the store needs anyway: a connection of another library is known by the module
that its class comes from.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from perdure.errors import InvalidArgument
from perdure.storage.postgres.session import Row, Statements, Values

T = TypeVar("T")

KNOWN = "psycopg 3, asyncpg, or SQLAlchemy over one of them"


async def statements_of(connection: object, schema: str) -> Statements:
    """What executes statements on a caller's connection, in its open transaction.

    Raises:
        InvalidArgument: it is none that is known, or not in a transaction.
    """
    return _statements(await _unwrapped(connection), f'"{schema}".')


async def _unwrapped(connection: Any) -> object:
    """The driver's own connection behind SQLAlchemy's; asked for something first, because that begins its transaction
    with its first statement."""
    names = _names(connection, "sqlalchemy")
    if "AsyncSession" in names or "async_scoped_session" in names:
        connection = await connection.connection()
        names = _names(connection, "sqlalchemy")
    if "AsyncConnection" in names:
        await connection.exec_driver_sql("SELECT 1")
        return cast("object", (await connection.get_raw_connection()).driver_connection)
    if names:
        return await in_thread(lambda: _unwrapped_blocking(connection, names))
    return cast("object", connection)


def _unwrapped_blocking(connection: Any, names: set[str]) -> object:
    if "Session" in names or "scoped_session" in names:
        connection = connection.connection()
    elif "Connection" not in names:
        raise _refused(connection)
    connection.exec_driver_sql("SELECT 1").close()
    return cast("object", connection.connection.driver_connection)


def _names(connection: object, package: str) -> set[str]:
    """Names of a connection's classes that come from a package."""
    kinds = type(connection).__mro__
    return {kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] == package}


def _statements(connection: object, prefix: str) -> Statements:
    if isinstance(connection, psycopg.AsyncConnection):
        _check_psycopg(cast("psycopg.AsyncConnection[Row]", connection))
        return AsyncPsycopg(cast("psycopg.AsyncConnection[Row]", connection), prefix)
    if isinstance(connection, psycopg.Connection):
        _check_psycopg(cast("psycopg.Connection[Row]", connection))
        return BlockingPsycopg(cast("psycopg.Connection[Row]", connection), prefix)
    if hasattr(connection, "is_in_transaction") and _names(connection, "asyncpg"):
        con = cast("_Asyncpg", connection)
        if con.is_closed():
            raise InvalidArgument("the connection is closed")
        if not con.is_in_transaction():
            raise InvalidArgument(
                "the connection is not in a transaction: call this inside `async with connection.transaction():`, or "
                "without `connection=`, which makes it durable at once"
            )
        return Asyncpg(con, prefix)
    raise _refused(connection)


def _refused(connection: object) -> InvalidArgument:
    kind = type(connection)
    return InvalidArgument(f"a connection of {KNOWN} is needed, not {kind.__module__}.{kind.__qualname__}")


def _check_psycopg(connection: psycopg.Connection[Row] | psycopg.AsyncConnection[Row]) -> None:
    """Whether whatever is executed now becomes true with a commit of the caller's.

    Raises:
        InvalidArgument: it would not.
    """
    status = connection.info.transaction_status
    if status == TransactionStatus.INTRANS or (status == TransactionStatus.IDLE and not connection.autocommit):
        return
    problems = {
        TransactionStatus.IDLE: "the connection commits every statement by itself: call this inside "
        "`with connection.transaction():`, or without `connection=`, which makes it durable at once",
        TransactionStatus.INERROR: "the connection's transaction has failed already: roll it back, and begin again",
        TransactionStatus.ACTIVE: "the connection is busy with another statement",
    }
    raise InvalidArgument(problems.get(status, "the connection is closed"))


async def in_thread(work: Callable[[], T]) -> T:
    """Do what blocks in a thread; a caller who is canceled waits nevertheless until its connection is free."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


class _Base(ABC):
    """What all have in common.

    Args:
        prefix: stands for `@` in statements.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.worker = ""  # a caller's, and no engine's

    @abstractmethod
    async def rows(self, sql: str, values: Values = ()) -> list[Row]: ...

    async def one(self, sql: str, values: Values = ()) -> Row | None:
        found = await self.rows(sql, values)
        return found[0] if found else None

    async def number(self, sql: str, values: Values = ()) -> int:
        row = await self.one(sql, values)
        return 0 if row is None or row[0] is None else int(row[0])

    def _text(self, sql: str) -> bytes:
        return sql.replace("@", self._prefix).encode()


class AsyncPsycopg(_Base):
    """On psycopg's `AsyncConnection`."""

    def __init__(self, con: psycopg.AsyncConnection[Row], prefix: str) -> None:
        super().__init__(prefix)
        self._con = con

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        async with self._con.cursor(binary=True, row_factory=tuple_row) as cursor:
            return await (await cursor.execute(self._text(sql), values or None)).fetchall()

    async def run(self, sql: str, values: Values = ()) -> int:
        async with self._con.cursor(binary=True, row_factory=tuple_row) as cursor:
            return (await cursor.execute(self._text(sql), values or None)).rowcount

    async def plain(self, sql: str) -> Row | None:
        await self.run(sql)
        return None


class BlockingPsycopg(_Base):
    """On psycopg's `Connection`, in a thread: whatever it waits for, the loop does not."""

    def __init__(self, con: psycopg.Connection[Row], prefix: str) -> None:
        super().__init__(prefix)
        self._con = con

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        def work() -> list[Row]:
            with self._con.cursor(binary=True, row_factory=tuple_row) as cursor:
                return cursor.execute(self._text(sql), values or None).fetchall()

        return await in_thread(work)

    async def run(self, sql: str, values: Values = ()) -> int:
        def work() -> int:
            with self._con.cursor(binary=True, row_factory=tuple_row) as cursor:
                return cursor.execute(self._text(sql), values or None).rowcount

        return await in_thread(work)

    async def plain(self, sql: str) -> Row | None:
        await self.run(sql)
        return None


class _Asyncpg(Protocol):
    """What is used of asyncpg's `Connection`."""

    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def execute(self, query: str, *values: object) -> Awaitable[str]: ...
    def fetch(self, query: str, *values: object) -> Awaitable[Sequence[Sequence[Any]]]: ...


class Asyncpg(_Base):
    """On asyncpg's `Connection`, or its pool's."""

    def __init__(self, con: _Asyncpg, prefix: str) -> None:
        super().__init__(prefix)
        self._con = con

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        text, ordered = numbered(sql.replace("@", self._prefix), values)
        return [tuple(row) for row in await self._con.fetch(text, *ordered)]

    async def run(self, sql: str, values: Values = ()) -> int:
        text, ordered = numbered(sql.replace("@", self._prefix), values)
        last = (await self._con.execute(text, *ordered)).rpartition(" ")[2]
        return int(last) if last.isdigit() else -1

    async def plain(self, sql: str) -> Row | None:
        await self.run(sql)
        return None


Ordered: TypeAlias = list[object]
_PLACE = re.compile(r"%(?:s|\((\w+)\)s)")


def numbered(sql: str, values: Values) -> tuple[str, Ordered]:
    """A statement with `$1` for its first value, as the server itself wants it, and the values in that order."""
    if isinstance(values, Mapping):
        names = list(dict.fromkeys(_PLACE.findall(sql)))
        text = _PLACE.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
        return text, [values[name] for name in names]
    count = iter(range(1, len(values) + 1))
    return _PLACE.sub(lambda _: f"${next(count)}", sql), list(values)
