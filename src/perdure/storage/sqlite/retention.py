"""Which runs may go, which go, and putting one back [R-9]."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from perdure.ports.store import EndedRun, IndexState, JournalRow, NewRun, RunTail
from perdure.storage.sqlite.rows import INSERT_RUN, number, one, row_values

_REMOVABLE = "slot_held = 0 AND NOT EXISTS (SELECT 1 FROM waiter WHERE target = run.id)"


def count_ended(con: sqlite3.Connection, before_us: int) -> int:
    """How many `remove_ended` would remove."""
    return number(con, f"SELECT count(*) FROM run WHERE ended_us < ? AND {_REMOVABLE}", (before_us,))


def ended_runs(con: sqlite3.Connection, before_us: int, limit: int, after_n: int) -> list[int]:
    """Numbers of runs that `remove` may remove, those above `after_n` first, so that batches do not scan what stays."""
    statement = f"SELECT n FROM run WHERE n {{}} ? AND ended_us < ? AND {_REMOVABLE} ORDER BY n LIMIT ?"
    found = [row[0] for row in con.execute(statement.format(">"), (after_n, before_us, limit))]
    if after_n and len(found) < limit:
        found += [row[0] for row in con.execute(statement.format("<="), (after_n, before_us, limit - len(found)))]
    return found


def remove(con: sqlite3.Connection, numbers: Sequence[int], before_us: int) -> int:
    """Remove those of the runs that have ended before; how many there were.

    Index row first; the trigger notes the number as stray until its journal is gone too.
    """
    removed = 0
    for n in numbers:
        if con.execute(f"DELETE FROM run WHERE n = ? AND ended_us < ? AND {_REMOVABLE}", (n, before_us)).rowcount:
            _remove_rest(con, n)
            removed += 1
    return removed


def _remove_rest(con: sqlite3.Connection, n: int) -> None:
    con.execute("DELETE FROM journal WHERE run = ?", (n,))
    con.execute("DELETE FROM snapshot WHERE run = ?", (n,))
    con.execute("DELETE FROM stray WHERE run = ?", (n,))


def page(con: sqlite3.Connection, before_us: int, limit: int, after: EndedRun | None) -> list[EndedRun]:
    """See `Store.ended_runs`; in the order of their numbers."""
    found = con.execute(
        f"SELECT ended_us, n, id FROM run WHERE n > ? AND ended_us < ? AND {_REMOVABLE} ORDER BY n LIMIT ?",
        (0 if after is None else after.locator, before_us, limit),
    )
    return [EndedRun(*row) for row in found]


_AS_READ = (
    "EXISTS (SELECT 1 FROM journal WHERE run = n AND first_seq = ? AND hash = ?) "
    "AND NOT EXISTS (SELECT 1 FROM journal WHERE run = n AND first_seq > ?)"
)


def remove_runs(con: sqlite3.Connection, tails: Sequence[RunTail]) -> int:
    """See `Store.remove_runs`."""
    removed = 0
    for tail in tails:
        delete = f"DELETE FROM run WHERE n = ? AND ended_us IS NOT NULL AND {_REMOVABLE} AND {_AS_READ}"
        if con.execute(delete, (tail.locator, tail.seq, tail.hash, tail.seq)).rowcount:
            _remove_rest(con, tail.locator)
            removed += 1
    return removed


_STRAY = "SELECT 1 FROM stray WHERE id = ? AND EXISTS (SELECT 1 FROM journal WHERE journal.run = stray.run)"


def insert(con: sqlite3.Connection, new: NewRun, state: IndexState, ended_us: int, rows: Sequence[JournalRow]) -> bool:
    """See `Store.insert_ended`."""
    if one(con, _STRAY, (new.run_id,)) is not None:
        return False
    values = row_values(new, replace(state, due_us=None), ended_us, slot_held=False, digest=new.input_digest)
    cursor = con.execute(INSERT_RUN, values)
    if not cursor.rowcount:
        return False
    n = cursor.lastrowid
    con.executemany(
        "INSERT INTO journal (run, first_seq, count, at_us, append_id, hash, facts) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(n, row.first_seq, row.count, row.at_us, row.append_id, row.hash, row.facts.decode()) for row in rows],
    )
    return True
