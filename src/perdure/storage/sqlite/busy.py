"""What SQLite's error codes ask of us, and waiting for a lock that somebody else holds.

Lock errors never reach a user: they mean "not yet" [R-8]. SQLite's own busy handler waits in steps of up to 100 ms,
in which a busy neighbour takes the lock many times over, so we wait ourselves, briefly and by chance.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar

from perdure.errors import StoreUnavailable

T = TypeVar("T")

PATIENCE_S = 5.0
"""How long a lock that another program holds is ordinary, before it is trouble."""

ErrorKind: TypeAlias = Literal["busy", "passing", "fatal", "data"]

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_SCHEMA,
    }
)
_FATAL = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


def error_kind(error: BaseException) -> ErrorKind:
    """Sort an exception by what to do: wait for a lock, try again later, give up, or look for the one bad append."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        if code in {sqlite3.SQLITE_READONLY_DBMOVED}:
            return "fatal"
        primary = code & 0xFF
        if primary in _BUSY:
            return "busy"
        if primary in _PASSING:
            return "passing"
        if primary in _FATAL:
            return "fatal"
    return "passing" if isinstance(error, (MemoryError, OSError)) else "data"


def patiently(attempt: Callable[[], T], patience_s: float) -> T:
    """Repeat `attempt` while the database is locked.

    Raises:
        StoreUnavailable: still locked after `patience_s`.
    """
    give_up = time.monotonic() + patience_s
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if error_kind(error) != "busy":
                raise
            if time.monotonic() > give_up:
                raise StoreUnavailable(
                    f"the database stayed locked by another program for {patience_s:g} s; "
                    "end that program's transaction and try again"
                ) from error
        time.sleep(pause_s())


def pause_s() -> float:
    """A short wait that two waiters are unlikely to share."""
    return random.uniform(0.0005, 0.005)
