"""What is noted of runs beside their rows: read for `verify`, and written anew [J-11]."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from perdure.ports.notes import Astray, Notes
from perdure.ports.records import NewRun
from perdure.storage.notes import ASTRAY, FORGET
from perdure.storage.sqlite import limits, mutexes
from perdure.storage.sqlite.rows import one

T = TypeVar("T")


class Run(Protocol):
    """Runs something on a connection of the store's."""

    def __call__(self, do: Callable[[sqlite3.Connection], T], /) -> Awaitable[T]: ...


_FREE_SLOT = "UPDATE run SET slot_held = 0 WHERE n = ? AND slot_held = 1 AND ended_us IS NOT NULL AND slot_once = 0"
"""And a trigger passes it on."""
_TAKE_SLOT = """
    UPDATE run SET slot_held = 1 WHERE n = ? AND slot_held = 0 AND ended_us IS NULL AND waits IS NULL
    AND slot_key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run o WHERE o.slot_key = run.slot_key
        AND o.pipeline = run.pipeline AND o.tenant = run.tenant AND o.slot_held = 1)
"""


class SqliteNotebook:
    """A `Notebook`.

    Args:
        read, write: run something on the connection of the reader, or in a transaction of the writer.
    """

    def __init__(self, read: Run, write: Run) -> None:
        self._read = read
        self._write = write

    async def of(self, run_id: str, /) -> Notes | None:
        return await self._read(lambda con: _notes(con, run_id))

    async def astray(self, limit: int, /) -> Sequence[Astray]:
        return await self._read(lambda con: _astray(con, limit))

    async def note_anew(self, locator: int, new: NewRun, /) -> None:
        await self._write(lambda con: _note_anew(con, locator, new))

    async def forget_astray(self) -> None:
        await self._write(_forget)


def _sql(text: str) -> str:
    return text.replace("@", "").replace("?", "?1")


def _notes(con: sqlite3.Connection, run_id: str) -> Notes | None:
    row = one(con, "SELECT n, slot_held FROM run WHERE id = ?", (run_id,))
    if row is None:
        return None
    return Notes(
        bool(row[1]),
        frozenset(con.execute("SELECT tenant, resource, name FROM mutex WHERE run = ?", (row[0],)).fetchall()),
        frozenset([target for (target,) in con.execute("SELECT target FROM waiter WHERE waiter = ?", (row[0],))]),
        frozenset(
            con.execute(
                "SELECT limit_id, key FROM permit WHERE run = ?1 AND kind <> 'rate' "
                "UNION SELECT limit_id, key FROM entered WHERE run = ?1",
                (row[0],),
            ).fetchall()
        ),
        one(con, "SELECT 1 FROM queue WHERE run = ?", (row[0],)) is not None,
    )


def _astray(con: sqlite3.Connection, limit: int) -> list[Astray]:
    return [Astray(kind, name) for kind, query in ASTRAY.items() for (name,) in con.execute(_sql(query), (limit,))]


def _note_anew(con: sqlite3.Connection, locator: int, new: NewRun) -> None:
    row = one(con, "SELECT ended_us FROM run WHERE n = ?", (locator,))
    if row is not None:
        mutexes.restore(con, locator, new, row[0])
        con.execute(_FREE_SLOT, (locator,))
        con.execute(_TAKE_SLOT, (locator,))


def _forget(con: sqlite3.Connection) -> None:
    for statement in FORGET:
        con.execute(_sql(statement))
    limits.mend(con, 0)
