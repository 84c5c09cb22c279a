"""One group of appends inside one transaction: who wins, who loses and why.

The clean path is one statement per append: the insert itself checks that the predecessor is there with the expected
hash and that the token is not stale, and the key (run, first sequence) checks that nobody was first [J-2, J-3]. Only an
append that inserted nothing is looked up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from perdure.ports.store import (
    TERMINAL,
    Append,
    AppendResult,
    Committed,
    Conflict,
    Fenced,
    Gone,
    IndexState,
    NewRun,
    SlotTaken,
    Snapshot,
)
from perdure.storage.sqlite.rows import (
    DIGEST,
    INSERT_RUN,
    STATE_ASSIGNMENTS,
    new_run_values,
    number,
    one,
    read_digest,
    state_values,
)


class SetIndex(msgspec.Struct, frozen=True, gc=False):
    """`Store.set_index`, queued."""

    locator: int
    state: IndexState
    tail_seq: int


class PutSnapshot(msgspec.Struct, frozen=True, gc=False):
    """`Store.put_snapshot`, queued."""

    locator: int
    snapshot: Snapshot


Entry: TypeAlias = Append | SetIndex | PutSnapshot
"""What travels in a group."""

EntryResult: TypeAlias = AppendResult | bool

INSERT_FIRST = """
    INSERT INTO journal (run, first_seq, count, at_us, append_id, hash, facts) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
INSERT_NEXT = """
    INSERT INTO journal (run, first_seq, count, at_us, append_id, hash, facts)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
    WHERE EXISTS (SELECT 1 FROM journal WHERE run = ?1 AND first_seq = ?8 AND hash = ?9)
      AND (?10 = 0 OR ?10 >= ifnull((SELECT token FROM run WHERE n = ?1), 0))
    ON CONFLICT DO NOTHING
"""
UPDATE_STATE = f"UPDATE run SET {STATE_ASSIGNMENTS} WHERE n = ?"
UPDATE_END = f"UPDATE run SET {STATE_ASSIGNMENTS}, ended_us = ?, slot_held = slot_held AND slot_once WHERE n = ?"
UPDATE_IF_AT_TAIL = (
    f"UPDATE run SET {STATE_ASSIGNMENTS} WHERE n = ? AND ? = (SELECT max(first_seq) FROM journal WHERE run = n)"
)
FLAG_OWNED = "UPDATE run SET attention = 1 WHERE n = ? AND worker IS NOT NULL"
PUT_SNAPSHOT = """
    INSERT OR REPLACE INTO snapshot (run, row_seq, row_hash, version, reducer, data)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE EXISTS (SELECT 1 FROM journal WHERE run = ?1 AND first_seq = ?2)
"""


def apply_group(con: sqlite3.Connection, entries: Sequence[Entry]) -> list[EntryResult]:
    """Apply entries in order inside the caller's transaction; results in the same order.

    Any exception leaves the transaction in an unknown state: the caller rolls back, and nothing was written.
    """
    cursor = con.cursor()
    return [_apply(cursor, entry) for entry in entries]


def _apply(cursor: sqlite3.Cursor, entry: Entry) -> EntryResult:
    if type(entry) is Append:
        return _append(cursor, entry) if entry.new is None else _append_new(cursor, entry, entry.new)
    if type(entry) is SetIndex:
        cursor.execute(UPDATE_IF_AT_TAIL, (*state_values(entry.state), entry.locator, entry.tail_seq))
        return cursor.rowcount == 1
    if type(entry) is PutSnapshot:
        s = entry.snapshot
        cursor.execute(PUT_SNAPSHOT, (entry.locator, s.row_seq, s.row_hash, s.version, s.reducer, s.data))
        return True
    raise TypeError(f"not an entry of a group: {type(entry).__name__}")


def _append(cursor: sqlite3.Cursor, append: Append) -> AppendResult:
    cursor.execute(
        INSERT_NEXT,
        (
            append.locator,
            append.first_seq,
            append.count,
            append.at_us,
            append.append_id,
            append.hash,
            append.facts.decode(),
            append.prev_seq,
            append.prev_hash,
            append.token,
        ),
    )
    if cursor.rowcount != 1:
        return _why_lost(cursor.connection, append)
    if append.token == 0:
        _index_from_outside(cursor, append)
    elif append.index is not None:
        _write_state(cursor, append.locator, append.index, append.at_us)
    return Committed(append.locator)


def _index_from_outside(cursor: sqlite3.Cursor, append: Append) -> None:
    """Facts from outside: an owner is told, nobody's run gets its new state."""
    cursor.execute(FLAG_OWNED, (append.locator,))
    if cursor.rowcount == 0 and append.index is not None:
        _write_state(cursor, append.locator, append.index, append.at_us)


def _write_state(cursor: sqlite3.Cursor, locator: int, state: IndexState, at_us: int) -> None:
    if state.status in TERMINAL:
        cursor.execute(UPDATE_END, (*state_values(state), at_us, locator))
    else:
        cursor.execute(UPDATE_STATE, (*state_values(state), locator))


def _append_new(cursor: sqlite3.Cursor, append: Append, new: NewRun) -> AppendResult:
    if append.index is None:
        raise ValueError(f"run {append.run_id}: a new run needs an index state")
    cursor.execute(INSERT_RUN, new_run_values(new, append.index, append.at_us, append.facts))
    if cursor.rowcount != 1:
        return _why_not_new(cursor.connection, append, new)
    locator = cursor.lastrowid or 0
    cursor.execute(
        INSERT_FIRST,
        (
            locator,
            append.first_seq,
            append.count,
            append.at_us,
            append.append_id,
            append.hash,
            append.facts.decode(),
        ),
    )
    if append.index.status in TERMINAL:  # it had to win its slot nevertheless
        cursor.execute("UPDATE run SET slot_held = slot_once WHERE n = ? AND slot_held", (locator,))
    return Committed(locator)


def _why_lost(con: sqlite3.Connection, append: Append) -> AppendResult:
    """In the order of J-3, after one's own: an append sent twice has been committed, whatever came later [J-14]."""
    taken = one(
        con, "SELECT append_id FROM journal WHERE run = ? AND first_seq = ?", (append.locator, append.first_seq)
    )
    if taken is not None and taken[0] == append.append_id:
        return Committed(append.locator)
    if taken is None and one(con, "SELECT 1 FROM journal WHERE run = ? LIMIT 1", (append.locator,)) is None:
        return Gone()
    token = number(con, "SELECT token FROM run WHERE n = ?", (append.locator,))
    return Fenced(token) if 0 < append.token < token else Conflict()


def _why_not_new(con: sqlite3.Connection, append: Append, new: NewRun) -> AppendResult:
    known = one(
        con,
        "SELECT n, append_id FROM run LEFT JOIN journal ON run = n AND first_seq = 1 WHERE id = ?",
        (append.run_id,),
    )
    if known is not None:
        return Committed(known[0]) if known[1] == append.append_id else Conflict()
    holder = one(
        con,
        f"SELECT id, {DIGEST} FROM run WHERE slot_key = ? AND pipeline = ? AND tenant = ? AND slot_held = 1",
        (new.slot_key, new.pipeline, new.tenant),
    )
    return Conflict() if holder is None else SlotTaken(holder[0], read_digest(holder[1]))
