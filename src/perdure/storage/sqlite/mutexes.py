"""Mutexes: which run has which, for which resource; freed by a trigger with the end of the run [R-10]."""

from __future__ import annotations

import sqlite3

from perdure.ports.records import MutexTaken, NewRun

SCHEMA = (
    """
    CREATE TABLE mutex (
        tenant TEXT NOT NULL,
        resource TEXT NOT NULL,
        name TEXT NOT NULL,
        run INTEGER NOT NULL,
        PRIMARY KEY (tenant, resource, name)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX mutex_run ON mutex (run)",
    "CREATE TRIGGER mutex_freed AFTER UPDATE OF ended_us ON run WHEN old.exclusive AND new.ended_us IS NOT NULL BEGIN "
    "DELETE FROM mutex WHERE run = old.n; END",
    "CREATE TRIGGER mutex_removed AFTER DELETE ON run WHEN old.exclusive BEGIN "
    "DELETE FROM mutex WHERE run = old.n; END",
)
_TAKE = "INSERT INTO mutex (tenant, resource, name, run) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_HOLDER = """
    SELECT m.name, r.id, r.pipeline FROM mutex m JOIN run r ON r.n = m.run
    WHERE m.tenant = ? AND m.resource = ? AND m.name = ?
"""


def take(cursor: sqlite3.Cursor, locator: int, new: NewRun, *, ended: bool = False) -> MutexTaken | None:
    """Those that a new run needs; the first that another has: then the caller undoes it all.

    Args:
        ended: it keeps none, but must have been able to take them.
    """
    for name in new.mutexes:
        cursor.execute(_TAKE, (new.tenant, new.resource, name, locator))
        if cursor.rowcount != 1:
            return MutexTaken(*cursor.execute(_HOLDER, (new.tenant, new.resource, name)).fetchone())
    if ended:
        cursor.execute("DELETE FROM mutex WHERE run = ?", (locator,))
    elif new.mutexes:
        cursor.execute("UPDATE run SET exclusive = 1 WHERE n = ?", (locator,))
    return None


def restore(con: sqlite3.Connection, locator: int, new: NewRun, ended_us: int | None) -> None:
    """Those of a row that was put back; what another has by now stays with that."""
    con.execute("DELETE FROM mutex WHERE run = ?", (locator,))
    if ended_us is None and new.mutexes:
        con.executemany(_TAKE, [(new.tenant, new.resource, name, locator) for name in new.mutexes])
        con.execute("UPDATE run SET exclusive = 1 WHERE n = ?", (locator,))
