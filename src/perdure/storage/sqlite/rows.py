"""Rows as SQLite holds them, and as the port speaks of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from perdure.ports.store import TERMINAL, IndexState, JournalRow, NewRun, RunRow
from perdure.storage import labels

SqlValue: TypeAlias = str | bytes | int | None
Row: TypeAlias = tuple[Any, ...]
"""What a cursor yields; the columns are those of the statement beside it."""

DIGEST = """
    coalesce(input_digest, (SELECT CASE WHEN json_valid(facts) THEN json_extract(facts, '$[0].input_digest') END
                            FROM journal WHERE run = n AND first_seq = 1))
"""
"""The input digest of a row of `run`: its column or, where that is NULL, the text of the first fact."""

RUN_COLUMNS = (
    f"n, id, tenant, pipeline, resource, slot_key, slot_once, {DIGEST}, submitted_us, deadline_us, "
    "status, due_us, worker, token, generation, build, reason, canceling, step, version, tail_hash, "
    "signature, priority, ended_us, attention, waits, slot_held, awaiting, annotations"
)
JOURNAL_COLUMNS = "first_seq, count, at_us, append_id, hash, CAST(facts AS BLOB)"
"""The facts as bytes: a damaged text is for `verify` to find, not for the driver to stumble over."""

STATE_ASSIGNMENTS = (
    "status = ?, due_us = ?, worker = ?, token = ?, generation = ?, build = ?, reason = ?, canceling = ?, step = ?, "
    "version = ?, tail_hash = ?, signature = ?, priority = ?, attention = 0, awaiting = NULL, limited = 0"
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
        state.signature,
        state.priority,
    )


INSERT_RUN = """
    INSERT INTO run (id, tenant, pipeline, resource, slot_key, slot_once, slot_held, input_digest, submitted_us,
                     deadline_us, ended_us, status, due_us, worker, token, generation, build, reason, canceling, step,
                     version, tail_hash, signature, priority, waits, annotations)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING
"""


INSERT_LEDGER = "INSERT INTO ledger (signature, ledger) VALUES (?, ?) ON CONFLICT DO NOTHING"


def ledger_values(states: Iterable[IndexState | None]) -> list[tuple[bytes, str]]:
    """Values of `INSERT_LEDGER` for the ledgers that come with these states, each once."""
    found = {state.signature: state.ledger for state in states if state is not None and state.ledger}
    return [(signature, ledger.decode()) for signature, ledger in found.items()]


SMALL_FACTS = 1024
"""Bytes up to which reading the digest from the facts costs next to nothing."""


def new_run_values(new: NewRun, state: IndexState, at_us: int, facts: bytes) -> tuple[SqlValue, ...]:
    """Values of `INSERT_RUN`."""
    ended_us = at_us if state.status in TERMINAL else None
    told = (
        len(facts) <= SMALL_FACTS
        and facts.startswith(b'[{"fact":"RunSubmitted",')
        and b'"input_digest":"%b"' % new.input_digest.hex().encode() in facts
    )
    held = new.slot_key is not None and not new.waits
    return row_values(new, state, ended_us, slot_held=held, digest=None if told else new.input_digest)


def row_values(
    new: NewRun, state: IndexState, ended_us: int | None, *, slot_held: bool, digest: bytes | None
) -> tuple[SqlValue, ...]:
    """As `new_run_values`, for a row whose end and slot are known."""
    columns = run_values(new, slot_held=slot_held, digest=digest)
    return (*columns, ended_us, *state_values(state), new.waits or None, labels.stored(new.annotations))


def run_values(new: NewRun, *, slot_held: bool, digest: bytes | None) -> tuple[SqlValue, ...]:
    """Values of the columns that never change, in the order of the statements that write them.

    Args:
        digest: None where the facts tell the input digest.
    """
    return (
        new.run_id,
        new.tenant,
        new.pipeline,
        None if new.resource == _usual_resource(new.run_id, new.slot_key) else new.resource,
        new.slot_key,
        new.slot_once,
        slot_held,
        digest,
        new.submitted_us,
        new.deadline_us,
    )


def _usual_resource(run_id: str, slot_key: str | None) -> str:
    return run_id if slot_key is None else slot_key


def read_run(row: Row) -> RunRow:
    """A row of `RUN_COLUMNS`."""
    (n, id_, tenant, pipeline, resource, slot_key, once, digest, submitted, deadline, *rest) = row
    (status, due, worker, token, generation, build, reason, canceling, step, version, tail_hash, *rest) = rest
    (signature, priority, ended, attention, waits, slot_held, awaiting, told) = rest
    return RunRow(
        n,
        NewRun(
            id_,
            tenant,
            pipeline,
            _usual_resource(id_, slot_key) if resource is None else resource,
            slot_key,
            bool(once),
            read_digest(digest),
            submitted,
            deadline,
            waits or "",
            labels.read(told),
        ),
        IndexState(
            status,
            due,
            worker or "",
            token,
            generation,
            build,
            reason,
            bool(canceling),
            step,
            version,
            tail_hash,
            signature,
            priority=priority,
        ),
        ended,
        bool(attention),
        waits is not None and not slot_held and ended is None,
        awaiting,
    )


def read_digest(value: bytes | str | None) -> bytes:
    """A value of `DIGEST`; empty where the facts are damaged, which `verify` finds by their hash."""
    if isinstance(value, bytes):
        return value
    try:
        return bytes.fromhex(value or "")
    except ValueError:
        return b""


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
