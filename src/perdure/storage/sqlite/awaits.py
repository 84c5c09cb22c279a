"""Runs that wait for other runs: woken by a trigger in the transaction that ends one of those [R-13, R-16]."""

from __future__ import annotations

import sqlite3

import msgspec

from perdure.ports.store import IndexState

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

_EXISTING = "INSERT OR IGNORE INTO waiter (waiter, target) SELECT ?, id FROM run WHERE id = ?"
_LIVE = """
    SELECT count(*) FROM waiter w JOIN run r ON r.id = w.target WHERE w.waiter = ? AND r.ended_us IS NULL
"""
_WAITS_BACK = """
    WITH RECURSIVE reached (id) AS (
        SELECT value FROM json_each(?1)
        UNION SELECT w.target FROM reached JOIN run r ON r.id = reached.id AND r.awaiting > 0
              JOIN waiter w ON w.waiter = r.n JOIN run t ON t.id = w.target AND t.ended_us IS NULL
    )
    SELECT 1 FROM reached WHERE id = ?2
"""


def closes_a_circle(con: sqlite3.Connection, run_id: str, awaits: tuple[str, ...]) -> bool:
    """Whether one of these runs waits for `run_id`, through however many others."""
    return con.execute(_WAITS_BACK, (msgspec.json.encode(awaits).decode(), run_id)).fetchone() is not None


def register(cursor: sqlite3.Cursor, locator: int, state: IndexState) -> None:
    """Note what a run waits for; it is due at once if enough of that has ended, or is not there."""
    if not state.awaits:
        return
    cursor.executemany(_EXISTING, [(locator, target) for target in state.awaits])
    live: int = cursor.execute(_LIVE, (locator,)).fetchone()[0]
    left = state.need - (len(state.awaits) - live)
    cursor.execute(
        "UPDATE run SET awaiting = ?1, due_us = CASE WHEN ?1 <= 0 AND status = 'ready' THEN ?2 ELSE due_us END "
        "WHERE n = ?3",
        (left, state.at_us, locator),
    )


def anybody_waits(con: sqlite3.Connection) -> bool:
    """Whether the end of any run may make another due."""
    return con.execute("SELECT 1 FROM waiter LIMIT 1").fetchone() is not None
