"""Rows as SQLite holds them, and as the port speaks of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from perdure.ports.store import TERMINAL, IndexState, JournalRow, NewRun, RunRow

SqlValue: TypeAlias = str | bytes | int | None
Row: TypeAlias = tuple[Any, ...]
"""What a cursor yields; the columns are those of the statement beside it."""

RUN_COLUMNS = (
    "n, id, tenant, pipeline, resource, slot_key, slot_once, input_digest, submitted_us, deadline_us, "
    "status, due_us, worker, token, generation, build, reason, canceling, step, version, tail_hash, ended_us, attention"
)
JOURNAL_COLUMNS = "first_seq, count, at_us, append_id, hash, CAST(facts AS BLOB)"
"""The facts as bytes: a damaged text is for `verify` to find, not for the driver to stumble over."""

STATE_ASSIGNMENTS = (
    "status = ?, due_us = ?, worker = ?, token = ?, generation = ?, build = ?, reason = ?, canceling = ?, step = ?, "
    "version = ?, tail_hash = ?, attention = 0"
)


def state_values(state: IndexState) -> tuple[SqlValue, ...]:
    """Values of `STATE_ASSIGNMENTS`."""
    return (
        state.status,
        state.due_us,
        state.worker or None,
        state.token,
        state.generation,
        state.build,
        state.reason,
        state.canceling,
        state.step,
        state.version,
        state.tail_hash,
    )


INSERT_RUN = """
    INSERT INTO run (id, tenant, pipeline, resource, slot_key, slot_once, slot_held, input_digest, submitted_us,
                     deadline_us, ended_us, status, due_us, worker, token, generation, build, reason, canceling, step,
                     version, tail_hash)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING
"""


def new_run_values(new: NewRun, state: IndexState, at_us: int) -> tuple[SqlValue, ...]:
    """Values of `INSERT_RUN`."""
    ended = state.status in TERMINAL
    held = new.slot_key is not None and (new.slot_once or not ended)
    return (*run_values(new, slot_held=held), at_us if ended else None, *state_values(state))


def run_values(new: NewRun, *, slot_held: bool) -> tuple[SqlValue, ...]:
    """Values of the columns that never change, in the order of the statements that write them."""
    return (
        new.run_id,
        new.tenant,
        new.pipeline,
        None if new.resource == new.run_id else new.resource,
        new.slot_key,
        new.slot_once,
        slot_held,
        new.input_digest,
        new.submitted_us,
        new.deadline_us,
    )


def read_run(row: Row) -> RunRow:
    """A row of `RUN_COLUMNS`."""
    (n, id_, tenant, pipeline, resource, slot_key, once, digest, submitted, deadline, *rest) = row
    (status, due, worker, token, generation, build, reason, canceling, step, version, tail_hash, ended, attention) = (
        rest
    )
    return RunRow(
        n,
        NewRun(
            id_,
            tenant,
            pipeline,
            id_ if resource is None else resource,
            slot_key,
            bool(once),
            digest,
            submitted,
            deadline,
        ),
        IndexState(
            status, due, worker or "", token, generation, build, reason, bool(canceling), step, version, tail_hash
        ),
        ended,
        bool(attention),
    )


def read_journal(rows: Iterable[Row]) -> tuple[JournalRow, ...]:
    """Rows of `JOURNAL_COLUMNS`."""
    return tuple([JournalRow(*row) for row in rows])


def one(con: sqlite3.Connection, statement: str, values: Sequence[SqlValue] = ()) -> Row | None:
    """The first row of a query, or None."""
    row: Row | None = con.execute(statement, values).fetchone()
    return row


def number(con: sqlite3.Connection, statement: str, values: Sequence[SqlValue] = ()) -> int:
    """The single number a query yields."""
    row = one(con, statement, values)
    return 0 if row is None or row[0] is None else int(row[0])
