"""One group of appends inside one transaction: who wins, who loses and why.

The insert itself checks that the predecessor is there with the expected hash and that the token is not stale, and the
key (run, first sequence) checks that nobody was first [J-2, J-3]. Appends to known runs go many to a statement, which
gives the interpreter up only once; those that inserted nothing are sent again alone. Only an append that inserts
nothing alone is looked up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from perdure.ports.records import ends_from_outside
from perdure.ports.store import (
    TERMINAL,
    Append,
    AppendResult,
    Committed,
    Conflict,
    Fenced,
    Gone,
    IndexState,
    KeyUsed,
    NewRun,
    SlotTaken,
    Snapshot,
    WaitCycle,
)
from perdure.storage.sqlite import entrances, keys, limits, mutexes
from perdure.storage.sqlite.awaits import closes_a_circle, register
from perdure.storage.sqlite.rows import (
    DIGEST,
    INSERT_LEDGER,
    INSERT_RUN,
    STATE_ASSIGNMENTS,
    SqlValue,
    ledger_values,
    new_run_values,
    number,
    one,
    read_digest,
    state_values,
)
from perdure.storage.sqlite.slots import grant_slot


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
NEW_AT_ONCE = 32
"""New runs in one statement."""


def _insert_first(rows: int) -> str:
    """`INSERT_FIRST` for many runs."""
    return INSERT_FIRST.replace("(?, ?, ?, ?, ?, ?, ?)", ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * rows))


INSERT_FIRST_ROWS = _insert_first(NEW_AT_ONCE)
INSERT_RUNS = INSERT_RUN.replace("(id,", "(n, id,").replace(
    f"({', '.join('?' * 26)})", ", ".join([f"({', '.join('?' * 27)})"] * NEW_AT_ONCE)
)
INSERT_NEXT = """
    INSERT INTO journal (run, first_seq, count, at_us, append_id, hash, facts)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
    WHERE EXISTS (SELECT 1 FROM journal WHERE run = ?1 AND first_seq = ?8 AND hash = ?9)
      AND (?10 = 0 OR ?10 >= ifnull((SELECT token FROM run WHERE n = ?1), 0))
    ON CONFLICT DO NOTHING
"""


def _insert_many(rows: int) -> str:
    """`INSERT_NEXT` for many appends. Column i of the values is its parameter ?i."""
    values = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * rows)
    return f"""
    INSERT INTO journal (run, first_seq, count, at_us, append_id, hash, facts)
    SELECT column1, column2, column3, column4, column5, column6, column7 FROM (VALUES {values}) sent
    WHERE EXISTS (SELECT 1 FROM journal p WHERE p.run = column1 AND p.first_seq = column8 AND p.hash = column9)
      AND (column10 = 0 OR column10 >= ifnull((SELECT token FROM run WHERE n = column1), 0))
    ON CONFLICT DO NOTHING
    """


INSERT_MANY = {rows: _insert_many(rows) for rows in (64, 32, 16, 8, 4)}
"""A prepared statement per size; what is left over goes one by one."""
INSERTED = "SELECT run, append_id FROM journal WHERE rowid > ? AND rowid <= ?"
UPDATE_STATE = f"UPDATE run SET {STATE_ASSIGNMENTS} WHERE n = ?"
UPDATE_END = f"UPDATE run SET {STATE_ASSIGNMENTS}, ended_us = ?, slot_held = slot_held AND slot_once WHERE n = ?"
_AT_TAIL = (
    "n = ? AND ? = ifnull((SELECT max(first_seq) FROM journal WHERE run = n), 0) "
    "AND ? IN (x'', (SELECT hash FROM journal WHERE run = n ORDER BY first_seq DESC LIMIT 1))"
)
UPDATE_IF_AT_TAIL = f"UPDATE run SET {STATE_ASSIGNMENTS} WHERE {_AT_TAIL}"
ID_AT_TAIL = f"SELECT id FROM run WHERE {_AT_TAIL}"
TAKE_BACK = "DELETE FROM journal WHERE run = ? AND first_seq = ?"
OWNED = "SELECT 1 FROM run WHERE n = ? AND worker IS NOT NULL"
FLAG_OWNED = "UPDATE run SET attention = 1 WHERE n = ? AND worker IS NOT NULL"
PUT_SNAPSHOT = """
    INSERT OR REPLACE INTO snapshot (run, row_seq, row_hash, version, reducer, data)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE EXISTS (SELECT 1 FROM journal WHERE run = ?1 AND first_seq = ?2)
"""


def apply_group(con: sqlite3.Connection, entries: Sequence[Entry]) -> list[EntryResult]:
    """Apply entries inside the caller's transaction; results in their order.

    Entries about one run are applied in the order in which they stand; appends to known runs come first.
    Any exception leaves the transaction in an unknown state: the caller rolls back, and nothing was written.
    """
    cursor = con.cursor()
    _put_ledgers(cursor, entries)
    if len(entries) < min(INSERT_MANY):
        return [_apply(cursor, entry) for entry in entries]
    results: list[EntryResult] = [False] * len(entries)
    ordered = {entry.locator for entry in entries if type(entry) is not Append}
    many: list[tuple[int, Append]] = []
    new: list[tuple[int, Append]] = []
    rest: list[tuple[int, Entry]] = []
    for place, entry in enumerate(entries):
        if type(entry) is not Append:
            rest.append((place, entry))
        elif entry.new is not None:
            (new if is_plain(entry, entry.new) else rest).append((place, entry))
        elif entry.locator not in ordered and _is_simple(entry):
            many.append((place, entry))
        else:
            rest.append((place, entry))
    done = 0
    for size, statement in INSERT_MANY.items():
        while len(many) - done >= size:
            _append_many(cursor, statement, many[done : done + size], results)
            done += size
    inserted = 0
    while len(new) - inserted >= NEW_AT_ONCE:
        _append_many_new(cursor, new[inserted : inserted + NEW_AT_ONCE], results)
        inserted += NEW_AT_ONCE
    for place, entry in (*many[done:], *new[inserted:], *rest):
        results[place] = _apply(cursor, entry)
    return results


def is_plain(append: Append, new: NewRun) -> bool:
    """Whether nothing but its slot decides about a new run, so that it may be inserted together with others."""
    state = append.index
    if append.key is not None or new.waits or new.mutexes or new.entrances or state is None:
        return False
    return state.status not in TERMINAL and not state.awaits and append.permits is None and not state.permits


def _is_simple(append: Append) -> bool:
    """Whether an append to a known run may be inserted together with others."""
    state = append.index
    return append.permits is None and (state is None or not (state.awaits or state.permits))


def _put_ledgers(cursor: sqlite3.Cursor, entries: Sequence[Entry]) -> None:
    """Ledgers come before the rows that name them; one that comes with a refused entry stays until `reclaim`."""
    states = (e.index if type(e) is Append else e.state if type(e) is SetIndex else None for e in entries)
    new = ledger_values(states)
    if new:
        cursor.executemany(INSERT_LEDGER, new)


def _append_many(
    cursor: sqlite3.Cursor, statement: str, sent: Sequence[tuple[int, Append]], results: list[EntryResult]
) -> None:
    values: list[SqlValue] = []
    for _, append in sent:
        values += _values(append)
    cursor.execute(statement, values)
    count, last = cursor.rowcount, cursor.lastrowid or 0
    inserted: set[tuple[int, bytes]] | None = None
    if count != len(sent):  # rows are numbered as they are inserted: those of this statement are the newest
        inserted = set(cursor.execute(INSERTED, (last - count, last)) if count else ())
    for place, append in sent:
        if inserted is None or (append.locator, append.append_id) in inserted:
            _append_index(cursor, append)
            results[place] = Committed(append.locator)
        else:
            results[place] = _append(cursor, append)


def _append_many_new(cursor: sqlite3.Cursor, sent: Sequence[tuple[int, Append]], results: list[EntryResult]) -> None:
    """As many new runs as one statement takes, under numbers given here; who was refused is sent again alone."""
    first = number(cursor.connection, "SELECT seq FROM sqlite_sequence WHERE name = 'run'") + 1
    values: list[SqlValue] = []
    for n, (_, append) in enumerate(sent, first):
        if append.new is not None and append.index is not None:
            values.append(n)
            values += new_run_values(append.new, append.index, append.at_us, append.facts)
    cursor.execute(INSERT_RUNS, values)
    inserted: set[int] | None = None
    if cursor.rowcount != len(sent):
        inserted = {row[0] for row in cursor.execute("SELECT n FROM run WHERE n >= ?", (first,))}
    rows: list[SqlValue] = []
    count = 0
    for n, (place, append) in enumerate(sent, first):
        if inserted is None or n in inserted:
            rows += (n, *_values(append)[1:7])
            count += 1
            results[place] = Committed(n)
    if count:
        cursor.execute(INSERT_FIRST_ROWS if inserted is None else _insert_first(count), rows)
    if inserted is not None:
        for n, (place, append) in enumerate(sent, first):
            if n not in inserted:
                results[place] = _apply(cursor, append)


def _values(append: Append) -> tuple[SqlValue, ...]:
    return (
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
    )


def _apply(cursor: sqlite3.Cursor, entry: Entry) -> EntryResult:
    if type(entry) is Append:
        return _append(cursor, entry) if entry.new is None else _append_new(cursor, entry, entry.new)
    if type(entry) is SetIndex:
        return _set_index(cursor, entry)
    if type(entry) is PutSnapshot:
        s = entry.snapshot
        cursor.execute(PUT_SNAPSHOT, (entry.locator, s.row_seq, s.row_hash, s.version, s.reducer, s.data))
        return True
    raise TypeError(f"not an entry of a group: {type(entry).__name__}")


def _set_index(cursor: sqlite3.Cursor, entry: SetIndex) -> bool | WaitCycle:
    tail = (entry.locator, entry.tail_seq, entry.state.tail_hash)
    if entry.state.awaits:
        known = one(cursor.connection, ID_AT_TAIL, tail)
        if known is not None and _closes_a_circle(cursor.connection, known[0], entry.state):
            return WaitCycle()
    standing = limits.keep(cursor, entry.locator, entry.state) if entry.state.permits else None
    cursor.execute(UPDATE_IF_AT_TAIL, (*state_values(entry.state), *tail))
    if cursor.rowcount != 1:
        if entry.state.permits:
            limits.keep_no_more(cursor, entry.locator)
        return False
    register(cursor, entry.locator, entry.state, checked=True)
    if entry.state.permits:
        limits.register(cursor, entry.locator, entry.state, standing)
    return True


def _closes_a_circle(con: sqlite3.Connection, run_id: str, state: IndexState | None) -> bool:
    if state is None or not state.awaits or state.status != "ready":
        return False
    return closes_a_circle(con, run_id, state.awaits)


def _append(cursor: sqlite3.Cursor, append: Append) -> AppendResult:
    cursor.execute(INSERT_NEXT, _values(append))
    if cursor.rowcount != 1:
        return _why_lost(cursor.connection, append)
    if ends_from_outside(append) and one(cursor.connection, OWNED, (append.locator,)) is not None:
        cursor.execute(TAKE_BACK, (append.locator, append.first_seq))
        return Conflict()
    if append.token and _closes_a_circle(cursor.connection, append.run_id, append.index):
        cursor.execute(TAKE_BACK, (append.locator, append.first_seq))
        return WaitCycle()
    if append.permits is not None:
        full = limits.refused(cursor.connection, append.locator, append.permits, append.at_us)
        if full is not None:
            cursor.execute(TAKE_BACK, (append.locator, append.first_seq))
            return full
        limits.take(cursor, append.locator, append.permits, append.at_us)
    _append_index(cursor, append)
    return Committed(append.locator)


def _append_index(cursor: sqlite3.Cursor, append: Append) -> None:
    if append.token == 0:
        _index_from_outside(cursor, append)
    elif append.index is not None:
        _write_state(cursor, append.locator, append.index, append.at_us, checked=True)


def _index_from_outside(cursor: sqlite3.Cursor, append: Append) -> None:
    """Facts from outside: an owner is told, nobody's run gets its new state."""
    cursor.execute(FLAG_OWNED, (append.locator,))
    if cursor.rowcount == 0 and append.index is not None:
        _write_state(cursor, append.locator, append.index, append.at_us, checked=False)


def _write_state(cursor: sqlite3.Cursor, locator: int, state: IndexState, at_us: int, *, checked: bool) -> None:
    if state.status in TERMINAL:
        cursor.execute(UPDATE_END, (*state_values(state), at_us, locator))
    else:
        standing = limits.keep(cursor, locator, state) if state.permits else None
        cursor.execute(UPDATE_STATE, (*state_values(state), locator))
        register(cursor, locator, state, checked=checked)
        if state.permits:
            limits.register(cursor, locator, state, standing)


def _append_new(cursor: sqlite3.Cursor, append: Append, new: NewRun) -> AppendResult:
    if append.index is None:
        raise ValueError(f"run {append.run_id}: a new run needs an index state")
    if append.key is not None:
        taken = keys.in_force(cursor.connection, append.key, append.at_us)
        if taken is not None and taken.run_id != append.run_id:
            return KeyUsed(taken.run_id, taken.input_digest)
    if append.permits or new.mutexes or new.entrances:
        cursor.execute("SAVEPOINT submission")
    cursor.execute(INSERT_RUN, new_run_values(new, append.index, append.at_us, append.facts))
    if cursor.rowcount != 1:
        return _why_not_new(cursor.connection, append, new)
    locator = cursor.lastrowid or 0
    if new.mutexes or new.entrances:
        ended = append.index.status in TERMINAL
        excluded = mutexes.take(cursor, locator, new, ended=ended) or entrances.enter(cursor, locator, new, ended=ended)
        if excluded is not None:
            cursor.execute("ROLLBACK TO submission")
            return excluded
    if append.permits:
        full = limits.refused(cursor.connection, locator, append.permits, append.at_us)
        if full is not None:
            cursor.execute("ROLLBACK TO submission")
            return full
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
    if append.key is not None:
        keys.put(cursor.connection, append.key)
    if new.waits and new.slot_key is not None:
        grant_slot(cursor.connection, new.slot_key, new.pipeline, new.tenant, append.at_us)
    register(cursor, locator, append.index)
    if append.permits or append.index.permits:
        limits.enter(cursor, locator, append.permits or (), append.index, append.at_us)
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
