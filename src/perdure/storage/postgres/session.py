"""One connection to the server, and what its errors ask of us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from perdure.errors import StoreUnavailable, StoreUnusable
from perdure.storage.postgres.hosts import TIMELINE, Hosts
from perdure.storage.postgres.packed import Packed, register
from perdure.storage.postgres.place import Place

Row: TypeAlias = tuple[Any, ...]
"""What a query yields; the columns are those of the statement beside it."""
Value: TypeAlias = "str | bytes | int | bool | Sequence[str] | Sequence[bytes] | Sequence[int] | Packed | None"
Values: TypeAlias = "Sequence[Value] | Mapping[str, Value]"

ErrorKind: TypeAlias = Literal["again", "passing", "fatal", "data"]

MAX_READERS = 4
"""Connections that a store reads with, at most."""
CONNECT_S = 10
"""How long a server may take to answer at all."""

LONG = 20
"""Sweeps and changes of tables may take so many times as long as anything else until they are answered."""
CLOSING_S = 10.0
"""How long a server may be silent while a store is being closed."""

OLDEST = 15
"""The oldest release of PostgreSQL that the tests are run against."""

_LIVELINESS = {
    "application_name": "perdure",
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# A pooler passes none of these on.
_ALIVE = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
_OURS = (
    "-c plan_cache_mode=force_generic_plan -c jit=off -c enable_seqscan=off "
    "-c search_path=pg_catalog -c idle_in_transaction_session_timeout=10s -c idle_session_timeout=0"
)
"""Of a role's own settings these are not taken: its search path could put other functions before the server's, a
process that is paused in a transaction must not hold others up for longer than this, and one that has nothing to write
is not gone."""

_AGAIN = frozenset({"40001", "40P01", "23505"})
"""Serialization failure, deadlock, and a unique key that two groups took at once: the same again meets neither."""
_FATAL = frozenset({"42P01", "3F000", "42703", "42883", "42501"})
"""Tables, columns or functions that are gone, or rights to them."""
_DATA = ("22", "23", "54")
_TRANSACTION_TIMEOUT = "25P04"
"""Since PostgreSQL 17, and with a name of its own only in newer drivers."""


def error_kind(error: BaseException) -> ErrorKind:
    """Sort an exception by what to do: the same again, try later, give up, or look for the one bad append.

    Whatever is not known is passing: the outcome of a commit that failed is unknown, and it is sent again [J-14].
    """
    if isinstance(error, UnicodeError):
        return "data"
    if isinstance(error, psycopg.Error):
        state = error.sqlstate
        if state is None:
            return "data" if isinstance(error, psycopg.DataError) else "passing"
        if state in _AGAIN:
            return "again"
        if state in _FATAL:
            return "fatal"
        if state[:2] in _DATA:
            return "data"
    return "passing"


class Silent(StoreUnavailable):
    """The server has not answered for too long, and the connection was given up."""


class TooManyConnections(StoreUnavailable):
    """The server, the database or the role admits no more connections just now."""


class Statements(Protocol):
    """What executes statements; `@` in them stands for our schema.

    Attributes:
        worker: in whose name an engine writes; empty for a client.
    """

    worker: str

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        """All rows of a query."""
        ...

    async def one(self, sql: str, values: Values = ()) -> Row | None:
        """The first row of a query."""
        ...

    async def number(self, sql: str, values: Values = ()) -> int:
        """The single number that a query yields."""
        ...

    async def run(self, sql: str, values: Values = ()) -> int:
        """Execute; how many rows were written."""
        ...

    async def plain(self, sql: str) -> Row | None:
        """The first row, if any, of a statement without values."""
        ...


class Session:
    """A connection of ours. One coroutine at a time.

    Attributes:
        busy: somebody waits for an answer on it.
        listening: somebody waits for notifications on it, and may be canceled at any time.
        worker: in whose name what is being written was queued; empty for a client.
        prefix: what `@` stands for.
    """

    def __init__(self, con: psycopg.AsyncConnection[Row], place: Place) -> None:
        self.con = con
        self.busy = False
        self.listening = False
        self.waits_s = 0.0
        self.long = False
        self._loop = asyncio.get_running_loop()
        self._shown = place.shown
        self._answer_s = place.answer_s
        self._asked_s = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._silent = False
        self._spare = place.spare
        self._given = False
        self.worker = ""
        self.prefix = f'"{place.schema}".'
        self._texts: dict[str, bytes] = {}

    @classmethod
    async def connect(cls, place: Place, *, for_handlers: bool = False) -> Session:
        """Connect, and make sure that what is committed stays and may be written at all.

        Args:
            for_handlers: statements are not ours: planned and prepared as psycopg and the server do by default.

        Raises:
            StoreUnavailable: the server does not answer.
            StoreUnusable: it refuses us, or is no place for a store.
        """
        if for_handlers:  # and nobody else afterwards
            place = msgspec.structs.replace(place, spare=None)
        if place.spare is not None and (kept := await place.spare.take()) is not None:
            return cls(kept, place)
        try:
            given = conninfo_to_dict(place.conninfo)
            wanted = given if place.hosts is None else place.hosts.settings(given)
            settings: dict[str, Any] = {**_LIVELINESS, **wanted, "client_encoding": "UTF8"}
            if not place.pooler:
                ours = _ALIVE if for_handlers else f"{_ALIVE} {_OURS}"
                settings["options"] = f"{ours} {given.get('options') or ''}"
            con = await psycopg.AsyncConnection.connect(
                make_conninfo("", **settings),
                autocommit=True,
                prepare_threshold=None if place.pooler else 5 if for_handlers else 1,
            )
        except (psycopg.Error, OSError, UnicodeError) as error:
            raise _why_no_connection(error, place) from error
        register(con.adapters)
        session = cls(con, place)
        try:
            await session._check(place)
            if place.hosts is not None:
                await session._check_timeline(place, place.hosts)
        except BaseException as error:
            session.drop()
            if isinstance(error, psycopg.Error):
                raise StoreUnavailable(explained(error, place)) from error
            raise
        return session

    async def _check(self, place: Place) -> None:
        found = await self.one(
            "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, "
            "current_setting('synchronous_commit'), getdatabaseencoding(), "
            "current_setting('server_version_num')::int"
        )
        if found is None:
            raise StoreUnavailable(f"{place.shown}: no answer")
        replica, read_only, synchronous, encoding, version = found
        if replica or read_only:
            hint = "name the primary" if place.hosts is None else "have target_session_attrs=read-write, or none"
            raise StoreUnusable(
                f"{place.shown} is a read-only replica, or read-only by a setting; the URL has to {hint}"
            )
        if synchronous == "off":
            raise StoreUnusable(
                f"{place.shown} has synchronous_commit = off, which loses committed facts; set it to on for this role"
            )
        if encoding != "UTF8":
            raise StoreUnusable(f"{place.shown} has the encoding {encoding}; a database in UTF8 is needed")
        if version // 10000 < OLDEST:
            raise StoreUnusable(f"{place.shown} is PostgreSQL {version // 10000}; {OLDEST} or newer is needed")

    async def _check_timeline(self, place: Place, hosts: Hosts) -> None:
        """A primary that a failover left behind may come back, and take writes that nobody else sees."""
        try:
            timeline = await self.number(TIMELINE)
        except psycopg.Error:  # some services do not tell
            timeline = hosts.timeline
        if timeline < hosts.timeline:
            raise StoreUnavailable(
                f"{place.shown}: the server at {self.con.info.host} is on timeline {timeline}, but the store was on "
                f"timeline {hosts.timeline} already: a failover left this primary behind, and it has come back; stop "
                "it, or make it a standby of the new one"
            )
        hosts.took(self.con.info.host, self.con.info.port, timeline)

    # --- statements; @ stands for our schema

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        """All rows of a query."""
        cursor = await self._execute(sql, values)
        return await cursor.fetchall()

    async def one(self, sql: str, values: Values = ()) -> Row | None:
        """The first row of a query."""
        cursor = await self._execute(sql, values)
        return await cursor.fetchone()

    async def number(self, sql: str, values: Values = ()) -> int:
        """The single number that a query yields."""
        row = await self.one(sql, values)
        return 0 if row is None or row[0] is None else int(row[0])

    async def run(self, sql: str, values: Values = ()) -> int:
        """Execute; how many rows were written."""
        return (await self._execute(sql, values)).rowcount

    async def plain(self, sql: str) -> Row | None:
        """The first row, if any, of a statement without values: nothing of it stays behind, no plan and no snapshot."""
        text = sql.replace("@", self.prefix).encode()
        self.asked()
        try:
            cursor = await self.con.execute(text, prepare=False)
            return await cursor.fetchone() if cursor.description is not None else None
        except psycopg.OperationalError as error:
            if self._silent:
                raise self.cause(error) from error
            raise
        finally:
            self.busy = False

    async def _execute(self, sql: str, values: Values) -> psycopg.AsyncCursor[Row]:
        text = self._texts.get(sql)
        if text is None:
            text = self._texts[sql] = sql.replace("@", self.prefix).encode()
        self.asked()
        try:
            cursor = self.con.cursor(binary=True)
            return await cursor.execute(text, values or None)
        except psycopg.OperationalError as error:
            if self._silent:
                raise self.cause(error) from error
            raise
        finally:
            self.busy = False

    # --- silence

    def asked(self) -> None:
        """A statement goes out; one timer looks after all that follow one another."""
        self.busy = True
        self._asked_s = self._loop.time()
        if self._look is None:
            self._look = self._loop.call_at(self._asked_s + self._answer_s, self._look_for_answer)

    def _look_for_answer(self) -> None:
        self._look = None
        if not self.busy or self.listening:
            return
        until_s = self._asked_s + self.waits_s + self._answer_s * (LONG if self.long else 1)
        if self._loop.time() < until_s:
            self._look = self._loop.call_at(until_s, self._look_for_answer)
            return
        self._silent = True
        self.drop()

    def hasten(self, answer_s: float) -> None:
        """Somebody waits for the end: whatever is asked now has to be answered within so long."""
        self.long = False
        self._answer_s = min(self._answer_s, answer_s)
        if self._look is not None:
            self._look.cancel()
            self._asked_s = self._loop.time()
            self._look = self._loop.call_at(self._asked_s + self._answer_s, self._look_for_answer)

    def cause(self, error: psycopg.OperationalError) -> Exception:
        """What is behind an error: perhaps we have given the connection up ourselves, for nobody answered."""
        if not self._silent:
            return error
        answer_s = self._answer_s * (LONG if self.long else 1)
        return Silent(
            f"{self._shown} has not answered for {answer_s:g} s: it is overloaded, or something between swallows what "
            "is sent"
        )

    # --- its end

    @property
    def lost(self) -> bool:
        """It is of no use any more."""
        return self._given or self.con.closed or self.con.broken

    async def rolled_back(self) -> bool:
        """Leave the transaction; whether the connection can be used again."""
        if self.lost:
            return False
        with contextlib.suppress(Exception):
            await self.plain("ROLLBACK")
        return self._is_idle()

    def _is_idle(self) -> bool:
        return not self.lost and self.con.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def end(self, task: asyncio.Task[None]) -> None:
        """Let go of the connection, and end the task that works with it.

        A task that waits for an answer is not canceled: psycopg would ask the server to cancel the query, and wait.
        """
        if self.listening and self._spare is not None:
            task.cancel()
            return  # it lets go of the connection itself
        if not self.busy:
            task.cancel()
        self.drop()

    def drop(self) -> None:
        """Let go of the connection at once. Whoever waits for an answer on it meets an error soon."""
        if self._given or self.con.closed:
            return
        if self._look is not None and not self.busy:
            self._look.cancel()
        if self._spare is not None and not self.busy and self._spare.give(self.con):
            self._given = True
            return
        if not self.busy:
            self.con.pgconn.finish()
            return
        self._spare = None
        # Somebody listens on the descriptor: it may not be closed behind their back, and given to another by then.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.con.pgconn.socket)) as other:
            other.shutdown(socket.SHUT_RDWR)


def explained(error: BaseException, place: Place) -> str:
    """What went wrong, for people."""
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return f"{place.shown} has become read-only: a replica, or a setting"
    if isinstance(error, psycopg.errors.DiskFull):
        return f"the disk of {place.shown} is full: {_plain(error)}; free some space, nothing is lost"
    if isinstance(error, psycopg.errors.QueryCanceled):
        return f"{place.shown}: {_plain(error)}; is statement_timeout set for this role, or did somebody cancel it?"
    if isinstance(error, psycopg.Error) and error.sqlstate == _TRANSACTION_TIMEOUT:
        return f"{place.shown}: {_plain(error)}; is transaction_timeout set for this role?"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        needed = "USAGE on the schema and SELECT, INSERT, UPDATE and DELETE on its tables"
        return f"{place.shown}: {error.diag.message_primary or _plain(error)}; this user needs {needed}"
    return f"{place.shown}: {_plain(error)}"


def _plain(error: BaseException) -> str:
    return " ".join(str(error).split())


_REFUSALS = (
    ("password", "the user or the password in the URL is wrong"),
    ("authentication", "the server does not let this user in"),
    ("no pg_hba.conf entry", "the server does not let this user in from here: see its pg_hba.conf"),
    ("does not exist", "the user or the database in the URL is not there"),
    ("unsupported startup parameter", "a pooler stands between: add ?pooler=transaction to the URL"),
    ("invalid connection option", "an option of the URL is not known"),
    ("invalid URI query parameter", "an option of the URL is not known"),
    ("invalid URI", "the URL cannot be read"),
)


_FULL = ("too many connections", "too many clients", "connection slots are reserved", "no more connections allowed")


def _why_no_connection(error: Exception, place: Place) -> StoreUnavailable:
    # libpq gives no code for what happens while it connects, only the server's words
    said = str(error).partition("All failures were:\n")[2].splitlines() or [
        str(error)
    ]  # a line for each of several hosts
    failures = [
        " ".join(each.removeprefix("- ").split()).replace(place.conninfo, "the URL")  # a password may be in that
        for each in said
    ]
    text = "; ".join(failures)
    for words, hint in _REFUSALS:
        if all(words in each and "No such file" not in each for each in failures):
            return StoreUnusable(f"{place.shown}: {hint} ({text})")
    if any(words in text for words in _FULL):
        return TooManyConnections(
            f"{place.shown} admits no more connections; a process needs one to write, one to listen, and one to "
            f"{MAX_READERS} to read ({text})"
        )
    if "session is read-only" in text:
        return StoreUnavailable(f"{place.shown}: no host takes writes now; is a failover under way? ({text})")
    return StoreUnavailable(f"{place.shown} cannot be reached: {text}")
