"""Places under limits: taken with the append that needs them, passed on by triggers in the transaction that frees them
[R-11, R-16].

`permit` has who has a place, or a turn of a rate; `queue` who stands in line; `bound` how many places there are and are
taken. A run that is in one of the first two is marked in its row, so that a run that never met a limit costs nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from perdure.core.permits import Permit
from perdure.ports.limits import LimitUse
from perdure.ports.store import IndexState, LimitReached
from perdure.storage.sqlite import entrances
from perdure.storage.sqlite.rows import one

Standing: TypeAlias = tuple[int, int, str, str]
"""Where a run stands in a line: its number, since when, for which limit and key."""

_NEXT = """
    SELECT q.run FROM queue q JOIN run r ON r.n = q.run
    WHERE q.limit_id = {limit} AND q.key = {key} AND r.status = 'ready' AND r.worker IS NULL
      AND r.pipeline NOT IN (SELECT pipeline FROM pipeline_hold WHERE released_us = 0)
    ORDER BY q.n LIMIT 1
"""


def _grant(limit: str, key: str) -> str:
    """The statement that gives one free place to whoever may start and has waited longest. Arguments are SQL."""
    return f"""
        INSERT INTO permit (limit_id, key, run, kind)
        SELECT b.limit_id, b.key, q.run, b.kind FROM bound b JOIN ({_NEXT.format(limit=limit, key=key)}) q
        WHERE b.limit_id = {limit} AND b.key = {key} AND b.held < b.size
    """


SCHEMA = (
    """
    CREATE TABLE bound (
        limit_id TEXT NOT NULL,
        key TEXT NOT NULL,
        kind TEXT NOT NULL,
        size INTEGER NOT NULL,
        held INTEGER NOT NULL DEFAULT 0,
        next_us INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (limit_id, key)
    ) STRICT, WITHOUT ROWID
    """,
    # keep: while a row is written, which places its run does not give back.
    """
    CREATE TABLE permit (
        run INTEGER NOT NULL,
        limit_id TEXT NOT NULL,
        key TEXT NOT NULL,
        kind TEXT NOT NULL,
        keep INTEGER NOT NULL DEFAULT 0,
        turn_us INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (run, limit_id, key)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE queue (
        n INTEGER PRIMARY KEY AUTOINCREMENT,
        limit_id TEXT NOT NULL,
        key TEXT NOT NULL,
        run INTEGER NOT NULL UNIQUE,
        since_us INTEGER NOT NULL
    ) STRICT
    """,
    "CREATE INDEX queue_place ON queue (limit_id, key, n)",
    # Whoever stood in line for it is due, since it has waited.
    """
    CREATE TRIGGER permit_taken AFTER INSERT ON permit BEGIN
        UPDATE bound SET held = held + 1
        WHERE limit_id = new.limit_id AND key = new.key AND new.kind <> 'rate';
        UPDATE run SET limited = 1 WHERE n = new.run AND limited = 0;
        UPDATE run SET due_us = (SELECT since_us FROM queue WHERE run = new.run), reason = ''
        WHERE n = new.run AND worker IS NULL
          AND EXISTS (SELECT 1 FROM queue WHERE run = new.run AND limit_id = new.limit_id AND key = new.key);
        DELETE FROM queue WHERE run = new.run AND limit_id = new.limit_id AND key = new.key;
    END
    """,
    f"""
    CREATE TRIGGER permit_freed AFTER DELETE ON permit WHEN old.kind <> 'rate' BEGIN
        UPDATE bound SET held = held - 1 WHERE limit_id = old.limit_id AND key = old.key;
        {_grant("old.limit_id", "old.key")};
    END
    """,
    "CREATE TRIGGER queued AFTER INSERT ON queue BEGIN UPDATE run SET limited = 1 WHERE n = new.run; END",
    # Every write of a whole row says limited = 0; other writes leave it alone.
    """
    CREATE TRIGGER limited_written AFTER UPDATE OF limited ON run WHEN old.limited = 1 AND new.limited = 0 BEGIN
        DELETE FROM queue WHERE run = new.n;
        DELETE FROM permit WHERE run = new.n AND (new.ended_us IS NOT NULL OR (new.worker IS NULL AND keep = 0
            AND (kind = 'concurrency' OR (kind = 'in_flight' AND new.token = 0))));
        UPDATE run SET limited = 1 WHERE n = new.n AND EXISTS (SELECT 1 FROM permit WHERE run = new.n);
    END
    """,
    """
    CREATE TRIGGER limited_removed AFTER DELETE ON run WHEN old.limited = 1 BEGIN
        DELETE FROM queue WHERE run = old.n;
        DELETE FROM permit WHERE run = old.n;
    END
    """,
)

_BOUND = """
    INSERT INTO bound (limit_id, key, kind, size) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO UPDATE SET kind = excluded.kind, size = excluded.size WHERE size <> excluded.size
"""
_OWN = "SELECT turn_us FROM permit WHERE run = ? AND limit_id = ? AND key = ?"
_INSERT = "INSERT INTO permit (run, limit_id, key, kind, keep, turn_us) VALUES (?, ?, ?, ?, ?, ?)"


def refused(con: sqlite3.Connection, locator: int, permits: Sequence[Permit], now_us: int) -> LimitReached | None:
    """The first of these places that a run cannot have now; None: it can have all of them."""
    for permit in permits:
        if not _is_free(con, locator, permit, now_us):
            return LimitReached(permit.limit, permit.key)
    return None


def _is_free(con: sqlite3.Connection, locator: int, permit: Permit, now_us: int) -> bool:
    own = one(con, _OWN, (locator, permit.limit, permit.key))
    if own is not None:
        return int(own[0]) <= now_us
    bound = one(con, "SELECT held, next_us FROM bound WHERE limit_id = ? AND key = ?", (permit.limit, permit.key))
    if bound is None:
        return True
    return bool(bound[1] <= now_us if permit.kind == "rate" else bound[0] < permit.bound)


def take(cursor: sqlite3.Cursor, locator: int, permits: Sequence[Permit], now_us: int) -> None:
    """The run has these places from now on; of those for an operation, no others. They are free for it."""
    if _has_ended(cursor, locator):
        return
    for permit in permits:
        place = permit.limit, permit.key
        cursor.execute(_BOUND, (*place, permit.kind, permit.bound))
        own = cursor.execute(_OWN, (locator, *place)).fetchone()
        if permit.kind != "rate":
            if own is None:
                cursor.execute(_INSERT, (locator, *place, permit.kind, 0, 0))
        elif own is not None:
            cursor.execute("DELETE FROM permit WHERE run = ? AND limit_id = ? AND key = ?", (locator, *place))
        else:
            cursor.execute(
                "UPDATE bound SET next_us = ? WHERE limit_id = ? AND key = ?", (now_us + permit.bound, *place)
            )
    needed = {(permit.limit, permit.key) for permit in permits}
    held = cursor.execute("SELECT limit_id, key FROM permit WHERE run = ? AND kind = 'concurrency'", (locator,))
    for place in held.fetchall():
        if place not in needed:
            cursor.execute("DELETE FROM permit WHERE run = ? AND limit_id = ? AND key = ?", (locator, *place))


def _has_ended(cursor: sqlite3.Cursor, locator: int) -> bool:
    return cursor.execute("SELECT 1 FROM run WHERE n = ? AND ended_us IS NOT NULL", (locator,)).fetchone() is not None


def keep(cursor: sqlite3.Cursor, locator: int, state: IndexState) -> Standing | None:
    """Before the row of a run is written that rests for want of a place: mark what it keeps; where it stands in a line,
    if it is one for a place that it needs."""
    standing: Standing | None = None
    for permit in _needed(state):
        values = locator, permit.limit, permit.key
        cursor.execute("UPDATE permit SET keep = 1 WHERE run = ? AND limit_id = ? AND key = ?", values)
        found = cursor.execute(
            "SELECT n, since_us, limit_id, key FROM queue WHERE run = ? AND limit_id = ? AND key = ?", values
        ).fetchone()
        standing = standing if found is None else found
    return standing


def keep_no_more(cursor: sqlite3.Cursor, locator: int) -> None:
    """The row was written, or was not after all."""
    cursor.execute("UPDATE permit SET keep = 0 WHERE run = ? AND keep = 1", (locator,))


def _needed(state: IndexState) -> tuple[Permit, ...]:
    return state.permits if state.status == "ready" and not state.worker else ()


_GIVE_UP = "DELETE FROM permit WHERE run = ? AND limit_id = ? AND key = ? AND kind <> 'rate'"


def register(cursor: sqlite3.Cursor, locator: int, state: IndexState, standing: Standing | None = None) -> None:
    """After the row was written: take what is free, up to the first place that is not; stand in line for that.

    Args:
        standing: what `keep` said.
    """
    if not _needed(state) or _has_ended(cursor, locator):
        return
    keep_no_more(cursor, locator)
    due_us = state.at_us
    for number, permit in enumerate(state.permits, start=1):
        place = permit.limit, permit.key
        cursor.execute(_BOUND, (*place, permit.kind, permit.bound))
        own = cursor.execute(_OWN, (locator, *place)).fetchone()
        if permit.kind == "rate":
            due_us = max(due_us, own[0] if own is not None else _turn_us(cursor, locator, permit, state.at_us))
        elif own is None and _is_free(cursor.connection, locator, permit, state.at_us):
            cursor.execute(_INSERT, (locator, *place, permit.kind, 0, 0))
        elif own is None:
            n, since_us = standing[:2] if standing is not None and standing[2:] == place else (None, state.at_us)
            values = n, *place, locator, since_us
            cursor.execute("INSERT INTO queue (n, limit_id, key, run, since_us) VALUES (?, ?, ?, ?, ?)", values)
            after = [(locator, permit.limit, permit.key) for permit in state.permits[number:]]
            cursor.executemany(_GIVE_UP, after)  # so that nobody waits in a circle
            return
    reason = "CASE WHEN ?3 THEN '' ELSE reason END"
    written = due_us, locator, due_us == state.at_us
    cursor.execute(f"UPDATE run SET due_us = min(ifnull(due_us, ?1), ?1), reason = {reason} WHERE n = ?2", written)


def _turn_us(cursor: sqlite3.Cursor, locator: int, permit: Permit, now_us: int) -> int:
    """A turn of a rate, from now on this run's."""
    place = permit.limit, permit.key
    free_us: int = cursor.execute("SELECT next_us FROM bound WHERE limit_id = ? AND key = ?", place).fetchone()[0]
    turn_us = max(now_us, free_us)
    cursor.execute("UPDATE bound SET next_us = ? WHERE limit_id = ? AND key = ?", (turn_us + permit.bound, *place))
    cursor.execute(_INSERT, (locator, *place, "rate", 0, turn_us))
    return turn_us


def enter(cursor: sqlite3.Cursor, locator: int, permits: Sequence[Permit], state: IndexState, now_us: int) -> None:
    """A new run: what it takes, and what it needs if it rests at once."""
    take(cursor, locator, permits, now_us)
    standing = keep(cursor, locator, state)
    cursor.execute("UPDATE run SET limited = 0 WHERE n = ?", (locator,))
    register(cursor, locator, state, standing)


# --- sweeps and reads


def give_back(con: sqlite3.Connection, pipeline: str) -> None:
    """A pipeline is held: what its runs were given that have not started yet goes to others."""
    con.execute(
        "DELETE FROM permit WHERE kind <> 'rate' AND run IN (SELECT n FROM run WHERE pipeline = ? AND limited = 1 "
        "AND worker IS NULL AND (kind = 'concurrency' OR token = 0))",
        (pipeline,),
    )


_GIVE_BACK_STRANDED = """
    DELETE FROM permit WHERE kind <> 'rate' AND run IN (
        SELECT n FROM run WHERE limited = 1 AND worker IS NULL AND status = 'ready' AND due_us <= ?
        AND pipeline IN (SELECT pipeline FROM pipeline_hold WHERE released_us = 0)
        AND (kind = 'concurrency' OR token = 0))
"""


def resize(con: sqlite3.Connection, bounds: Mapping[str, int]) -> None:
    """See the port."""
    con.executemany("UPDATE bound SET size = ? WHERE limit_id = ?", [(size, limit) for limit, size in bounds.items()])


def mend(con: sqlite3.Connection, now_us: int) -> int:
    """See `Store.grant_permits`."""
    entrances.mend(con)
    for table in ("queue", "permit"):
        con.execute(
            f"DELETE FROM {table} WHERE run IN (SELECT t.run FROM {table} t LEFT JOIN run r ON r.n = t.run "
            "WHERE r.n IS NULL OR r.ended_us IS NOT NULL)"
        )
    con.execute(
        "UPDATE bound SET held = (SELECT count(*) FROM permit p "
        "WHERE p.limit_id = bound.limit_id AND p.key = bound.key AND p.kind <> 'rate')"
    )
    in_line = "SELECT count(*) FROM queue"
    waiting: int = con.execute(in_line).fetchone()[0]
    con.execute(_GIVE_BACK_STRANDED, (now_us,))  # whoever waits for one of them gets it at once
    waited_for = con.execute("SELECT DISTINCT limit_id, key FROM queue ORDER BY 1, 2").fetchall()
    for place in waited_for:
        while con.execute(_grant("?1", "?2"), place).rowcount == 1:
            pass
    con.execute(
        "DELETE FROM bound WHERE held = 0 AND next_us <= ? "
        "AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.limit_id = bound.limit_id AND q.key = bound.key) "
        "AND NOT EXISTS (SELECT 1 FROM permit p WHERE p.limit_id = bound.limit_id AND p.key = bound.key)",
        (now_us,),
    )
    left: int = con.execute(in_line).fetchone()[0]
    return waiting - left


_USES = """
    SELECT p.limit_id, p.key, coalesce(b.kind, 'in_flight'),
        coalesce(b.size, e.size), coalesce(b.held, 0),
        max((SELECT count(*) FROM queue q WHERE q.limit_id = b.limit_id AND q.key = b.key)
            + (SELECT count(*) FROM permit t WHERE t.limit_id = b.limit_id AND t.key = b.key AND t.kind = 'rate'),
            ifnull(e.entered - ifnull(b.held, 0), 0)),
        (SELECT since_us FROM queue q WHERE q.limit_id = b.limit_id AND q.key = b.key ORDER BY q.n LIMIT 1), e.queue
    FROM (SELECT limit_id, key FROM bound UNION SELECT limit_id, key FROM entrance WHERE entered > 0) p
    LEFT JOIN bound b ON b.limit_id = p.limit_id AND b.key = p.key
    LEFT JOIN entrance e ON e.limit_id = p.limit_id AND e.key = p.key AND e.entered > 0
    ORDER BY 1, 2
"""


def uses(con: sqlite3.Connection) -> list[LimitUse]:
    """See `Store.limits`."""
    return [LimitUse(*row) for row in con.execute(_USES)]
