"""Room under limits that bound their queues: who was submitted under them and has not ended [R-11].

`entered` has a row for each such run and limit, and a trigger removes it with the end of the run; `entrance` has how
many there are, and how large the limit was when a run came in last.
"""

from __future__ import annotations

import sqlite3

from perdure.ports.limits import NoRoom
from perdure.ports.records import NewRun

SCHEMA = (
    """
    CREATE TABLE entrance (
        limit_id TEXT NOT NULL,
        key TEXT NOT NULL,
        size INTEGER NOT NULL,
        queue INTEGER NOT NULL,
        entered INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (limit_id, key)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE entered (
        run INTEGER NOT NULL,
        limit_id TEXT NOT NULL,
        key TEXT NOT NULL,
        PRIMARY KEY (run, limit_id, key)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE TRIGGER entered_one AFTER INSERT ON entered BEGIN "
    "UPDATE entrance SET entered = entered + 1 WHERE limit_id = new.limit_id AND key = new.key; END",
    "CREATE TRIGGER left_one AFTER DELETE ON entered BEGIN "
    "UPDATE entrance SET entered = entered - 1 WHERE limit_id = old.limit_id AND key = old.key; END",
    "CREATE TRIGGER left_ended AFTER UPDATE OF ended_us ON run WHEN old.exclusive AND new.ended_us IS NOT NULL BEGIN "
    "DELETE FROM entered WHERE run = old.n; END",
    "CREATE TRIGGER left_removed AFTER DELETE ON run WHEN old.exclusive BEGIN "
    "DELETE FROM entered WHERE run = old.n; END",
)
_SIZE = """
    INSERT INTO entrance (limit_id, key, size, queue) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO UPDATE SET size = excluded.size, queue = excluded.queue
    WHERE size <> excluded.size OR queue <> excluded.queue
"""
_ENTER = """
    INSERT INTO entered (run, limit_id, key)
    SELECT ?1, limit_id, key FROM entrance WHERE limit_id = ?2 AND key = ?3 AND entered < ?4
"""


def enter(cursor: sqlite3.Cursor, locator: int, new: NewRun, *, ended: bool) -> NoRoom | None:
    """A new run comes in; the first limit that has no room for it: then the caller undoes it all.

    Args:
        ended: it leaves at once, but there must have been room.
    """
    for entrance in new.entrances:
        place = entrance.limit, entrance.key
        cursor.execute(_SIZE, (*place, entrance.bound, entrance.queue))
        cursor.execute(_ENTER, (locator, *place, entrance.room))
        if cursor.rowcount != 1:
            return NoRoom(*place)
    if ended:
        cursor.execute("DELETE FROM entered WHERE run = ?", (locator,))
    elif new.entrances:
        cursor.execute("UPDATE run SET exclusive = 1 WHERE n = ?", (locator,))
    return None


def mend(con: sqlite3.Connection) -> None:
    """Part of `Store.grant_permits`: whoever is not there any more, or has ended, takes no room."""
    con.execute(
        "DELETE FROM entered WHERE run IN (SELECT e.run FROM entered e LEFT JOIN run r ON r.n = e.run "
        "WHERE r.n IS NULL OR r.ended_us IS NOT NULL)"
    )
    con.execute(
        "UPDATE entrance SET entered = c.n FROM (SELECT o.limit_id, o.key, count(e.run) AS n FROM entrance o "
        "LEFT JOIN entered e ON e.limit_id = o.limit_id AND e.key = o.key GROUP BY 1, 2) c "
        "WHERE c.limit_id = entrance.limit_id AND c.key = entrance.key AND c.n <> entrance.entered"
    )
    con.execute("DELETE FROM entrance WHERE entered = 0")
