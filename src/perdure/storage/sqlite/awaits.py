"""Runs that wait for other runs: woken by a trigger in the transaction that ends one of those [R-13, R-16]."""

from __future__ import annotations

import sqlite3

import msgspec

from perdure.ports.store import TERMINAL, IndexState
from perdure.storage.sqlite.rows import one

SCHEMA = (
    # Which runs a resting run waits for; a row stays until the waiter has looked, so that nobody removes what it is
    # about to read. How many more have to end is in `run.awaiting`.
    """
    CREATE TABLE waiter (
        waiter INTEGER NOT NULL,
        target TEXT NOT NULL,
        PRIMARY KEY (waiter, target)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX waiter_target ON waiter (target)",
    """
    CREATE TRIGGER awaited_ended AFTER UPDATE OF ended_us ON run
    WHEN new.ended_us IS NOT NULL AND old.ended_us IS NULL AND EXISTS (SELECT 1 FROM waiter WHERE target = new.id) BEGIN
        UPDATE run SET awaiting = awaiting - 1,
            due_us = CASE WHEN awaiting <= 1 AND worker IS NULL AND status = 'ready'
                     THEN new.ended_us ELSE due_us END
        WHERE n IN (SELECT waiter FROM waiter WHERE target = new.id) AND awaiting IS NOT NULL;
    END
    """,
    """
    CREATE TRIGGER awaits_no_more AFTER UPDATE OF awaiting ON run
    WHEN old.awaiting IS NOT NULL AND new.awaiting IS NULL BEGIN
        DELETE FROM waiter WHERE waiter = old.n;
    END
    """,
    "CREATE TRIGGER waiter_removed AFTER DELETE ON run WHEN old.awaiting IS NOT NULL BEGIN "
    "DELETE FROM waiter WHERE waiter = old.n; END",
)

_EXISTING = """
    INSERT OR IGNORE INTO waiter (waiter, target) SELECT ?1, ?2
    WHERE EXISTS (SELECT 1 FROM run WHERE id = ?2) OR EXISTS (SELECT 1 FROM stray WHERE id = ?2)
"""
"""A run whose index row is lost is there, and may go on when it is rebuilt."""
_LIVE = """
    SELECT count(*) FROM waiter w
    WHERE w.waiter = ? AND NOT EXISTS (SELECT 1 FROM run r WHERE r.id = w.target AND r.ended_us IS NOT NULL)
"""
_WAITS_BACK = """
    WITH RECURSIVE reached (id) AS (
        SELECT value FROM json_each(?1)
        UNION SELECT w.target
              FROM reached JOIN run r ON r.id = reached.id AND r.awaiting > 0 AND r.status IN ('ready', 'held')
              JOIN waiter w ON w.waiter = r.n
    )
    SELECT 1 FROM reached WHERE id = ?2
"""


def closes_a_circle(con: sqlite3.Connection, run_id: str, awaits: tuple[str, ...]) -> bool:
    """Whether one of these runs waits for `run_id`, through however many others."""
    return con.execute(_WAITS_BACK, (msgspec.json.encode(awaits).decode(), run_id)).fetchone() is not None


def register(cursor: sqlite3.Cursor, locator: int, state: IndexState, *, checked: bool = False) -> None:
    """Note what a run waits for; it is due at once if enough of that has ended, or is not there.

    Args:
        checked: it closes no circle. Otherwise it is due at once if it does: an owner is to look.
    """
    if not state.awaits or state.status in TERMINAL:
        return
    awaits = tuple(dict.fromkeys(state.awaits))
    cursor.executemany(_EXISTING, [(locator, target) for target in awaits])
    live: int = cursor.execute(_LIVE, (locator,)).fetchone()[0]
    left = state.need - (len(awaits) - live)
    due = state.status == "ready" and (
        left <= 0 or (not checked and _is_in_a_circle(cursor.connection, locator, awaits))
    )
    cursor.execute(
        "UPDATE run SET awaiting = ?, due_us = CASE WHEN ? THEN ? ELSE due_us END WHERE n = ?",
        (left, due, state.at_us, locator),
    )


def _is_in_a_circle(con: sqlite3.Connection, locator: int, awaits: tuple[str, ...]) -> bool:
    waiter = one(con, "SELECT id FROM run WHERE n = ?", (locator,))
    return waiter is not None and closes_a_circle(con, waiter[0], awaits)


def anybody_waits(con: sqlite3.Connection) -> bool:
    """Whether the end of any run may make another due."""
    return con.execute("SELECT 1 FROM waiter LIMIT 1").fetchone() is not None
