"""Statements that are sent without waiting for the answers to those before them: libpq's pipeline mode.

What is sent together is one transaction. The server does one after the other, so that each sees what those before it
have committed, and works while we prepare the next.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import msgspec
import psycopg
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGresult

from perdure.storage.postgres.packed import KINDS, Packed
from perdure.storage.postgres.session import Session

WireValue: TypeAlias = "str | bytes | int | Packed | None"
Statement: TypeAlias = tuple[str, Sequence[WireValue]]
"""SQL with `%s` for values and `@` for our schema. What is an int must be a bigint there."""
Landed: TypeAlias = "Callable[[list[PGresult] | Exception], None]"
"""Called with the result of each statement; or with why nothing was committed, or perhaps nothing."""

_INT8 = struct.Struct("!q")
_numbers = itertools.count(1)
"""A connection may have come from another store, with what it prepared."""
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Prepared(NamedTuple):
    """A statement in the form in which it travels.

    Attributes:
        values: as they travel.
        said: the same, as they were given.
    """

    sql: str
    values: Sequence[bytes | None]
    said: Sequence[WireValue]


def prepared(statements: Sequence[Statement]) -> list[Prepared]:
    """Statements in the form in which they travel.

    Raises:
        Exception: a value that cannot travel.
    """
    return [Prepared(sql, [_FORMS[type(value)](value) for value in values], values) for sql, values in statements]


class _Flight(msgspec.Struct):
    """One transaction on its way.

    Attributes:
        awaited: of every answer that is to come, the name of the statement that it prepares, or None.
    """

    landed: Landed
    awaited: list[bytes | None]
    results: list[PGresult] = []
    answered: int = 0
    error: Exception | None = None


class Wire:
    """Sends on a connection, and hears the answers.

    While anything is in flight, and until `leave`, nobody else may use the connection. The callbacks are called in the
    order of what was sent, from the event loop.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._con = session.con.pgconn
        self._loop = asyncio.get_running_loop()
        self._flights: deque[_Flight] = deque()
        self._names: dict[str, bytes] = {}
        self._known: set[bytes] = set()
        self._socket = -1
        self._writing = False
        self._all_landed: asyncio.Future[None] | None = None

    @property
    def in_flight(self) -> int:
        """How many transactions are on their way."""
        return len(self._flights)

    def send(self, statements: Sequence[Prepared], landed: Landed) -> None:
        """Send a transaction. An error that keeps it from being sent is told by `landed`, later, like all others."""
        flight = _Flight(landed, [])
        if not self._flights:
            self.session.asked()
        self._flights.append(flight)
        try:
            self._enter()
            for statement in statements:
                self._send_one(flight, *statement)
            self._con.pipeline_sync()
            self._flush()
        except psycopg.Error as error:
            self._loop.call_soon(self._fail, error)

    async def leave(self) -> None:
        """Wait until nothing is in flight; the connection is as any other then."""
        if self._flights:
            self._all_landed = self._loop.create_future()
            await self._all_landed
        self._quit()

    def abort(self) -> None:
        """Let go of what is in flight, and of the connection with it."""
        if self._flights:
            self._fail(psycopg.OperationalError("aborted"))
        else:
            self._quit()

    # --- sending

    def _enter(self) -> None:
        if self._socket < 0:
            self._con.enter_pipeline_mode()
            self._socket = self._con.socket
            self._loop.add_reader(self._socket, self._on_readable)

    def _quit(self) -> None:
        if self._socket >= 0:
            self._loop.remove_reader(self._socket)
            if self._writing:
                self._loop.remove_writer(self._socket)
            self._socket, self._writing = -1, False
            if self._con.status == ConnStatus.OK and not self._flights:
                self._con.exit_pipeline_mode()

    def _send_one(self, flight: _Flight, sql: str, values: Sequence[bytes | None], said: Sequence[WireValue]) -> None:
        name = self._names.get(sql)
        if name is None:
            name = self._names[sql] = b"perdure_%d" % next(_numbers)
        if name not in self._known:
            self._con.send_prepare(name, self._text(sql), [_type(value) for value in said])
            self._known.add(name)
            flight.awaited.append(name)
        self._con.send_query_prepared(name, values, _BINARY[: len(values)], Format.BINARY)
        flight.awaited.append(None)

    def _text(self, sql: str) -> bytes:
        first, *rest = sql.replace("@", self.session.prefix).split("%s")
        return (first + "".join(f"${n}{part}" for n, part in enumerate(rest, 1))).encode()

    def _flush(self) -> None:
        more = bool(self._con.flush())
        if more and not self._writing:
            self._loop.add_writer(self._socket, self._on_writable)
        elif self._writing and not more:
            self._loop.remove_writer(self._socket)
        self._writing = more

    def _on_writable(self) -> None:
        try:
            self._flush()
        except psycopg.Error as error:
            self._fail(error)

    # --- hearing

    def _on_readable(self) -> None:
        con = self._con
        try:
            con.consume_input()
            while self._flights and not con.is_busy():
                result = con.get_result()
                if result is not None:
                    self._hear(result)
                elif con.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection was lost")
        except psycopg.Error as error:
            self._fail(error)

    def _hear(self, result: PGresult) -> None:
        flight = self._flights[0]
        status = result.status
        if status == ExecStatus.PIPELINE_SYNC:
            self._flights.popleft()
            if self._flights:
                self.session.asked()  # whatever is next has the whole time
            self._land(flight)
            return
        prepared = flight.awaited[flight.answered]
        flight.answered += 1
        if status in _GOOD:
            if prepared is None:
                flight.results.append(result)
            return
        if prepared is not None:
            self._known.discard(prepared)
        if flight.error is None:
            flight.error = psycopg.errors.error_from_result(result, encoding="utf-8")

    def _land(self, flight: _Flight) -> None:
        self.session.busy = bool(self._flights)
        flight.landed(flight.results if flight.error is None else flight.error)
        if not self._flights and self._all_landed is not None:
            waiting, self._all_landed = self._all_landed, None
            if not waiting.done():
                waiting.set_result(None)

    def _fail(self, error: psycopg.Error) -> None:
        """The connection is lost: nobody knows what of that which is in flight was committed."""
        why = self.session.cause(error) if isinstance(error, psycopg.OperationalError) else error
        self._quit()
        self._con.finish()
        flights, self._flights = self._flights, deque()
        for flight in flights:
            flight.error = flight.error or why
            self._land(flight)


_BINARY = [Format.BINARY] * 1000
_FORMS: Mapping[type, Callable[[Any], bytes | None]] = {
    int: _INT8.pack,
    str: str.encode,
    bool: lambda value: b"\1" if value else b"\0",
    bytes: lambda value: value,
    NoneType: lambda value: value,
    **dict.fromkeys(KINDS, lambda value: value.data),
}
"""How values travel, by their kind. Any: each function is only called for its own kind."""


def _type(value: WireValue) -> int:
    return value.array if isinstance(value, Packed) else 0  # the server infers it


__all__ = ["Landed", "Prepared", "Statement", "Wire", "WireValue", "prepared"]
