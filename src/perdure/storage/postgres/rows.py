"""Rows as PostgreSQL holds them, and as the port speaks of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perdure.ports.store import IndexState, JournalRow, NewRun, RunRow
from perdure.storage import labels
from perdure.storage.postgres.packed import Bools, Byteas, Int8s, Packed, Texts
from perdure.storage.postgres.session import Row

STATE: Mapping[str, type[Texts | Int8s | Bools | Byteas]] = {
    "status": Texts,
    "due_us": Int8s,
    "worker": Texts,
    "token": Int8s,
    "generation": Int8s,
    "build": Texts,
    "reason": Texts,
    "canceling": Bools,
    "step": Texts,
    "version": Int8s,
    "tail_hash": Byteas,
    "signature": Byteas,
    "priority": Int8s,
}
"""Columns of `run` that change, always written together, and how many of each travel."""
STATE_COLUMNS = ", ".join(STATE)
STATE_VALUES = ", ".join(["%s"] * len(STATE))
STATE_ASSIGNMENTS = (
    f"{', '.join(f'{name} = %s' for name in STATE)}, attention = false, awaiting = NULL, limited = false"
)

NEW_COLUMNS = (
    "id, tenant, pipeline, resource, slot_key, slot_once, slot_held, input_digest, submitted_us, deadline_us, waits, "
    "annotations"
)
NEW_VALUES = ", ".join(["%s"] * 12)
RUN_COLUMNS = (
    "r.n, r.id, r.tenant, r.pipeline, r.resource, r.slot_key, r.slot_once, r.input_digest, r.submitted_us, "
    "r.deadline_us, r.waits, r.annotations, r.slot_held, r.ended_us, r.attention, r.awaiting, "
    f"{', '.join(f'r.{name}' for name in STATE)}"
)
RUN_WIDTH = 16 + len(STATE)
JOURNAL_COLUMNS = "j.first_seq, j.count, j.at_us, j.append_id, j.hash, j.facts"


def state_values(state: IndexState) -> tuple[str | bytes | int | bool | None, ...]:
    """Values of `STATE`'s columns."""
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


def state_arrays(states: Sequence[IndexState | None]) -> list[Packed]:
    """As `state_values`, for `unnest`; all NULL where there is no state."""
    nothing = (None,) * len(STATE)
    columns = zip(*[nothing if state is None else state_values(state) for state in states], strict=True)
    return [kind(column) for kind, column in zip(STATE.values(), columns, strict=True)]


def new_values(new: NewRun, *, slot_held: bool) -> tuple[str | bytes | int | bool | None, ...]:
    """Values of `NEW_COLUMNS`."""
    return (
        new.run_id,
        new.tenant,
        new.pipeline,
        new.resource,
        new.slot_key,
        new.slot_once,
        slot_held,
        new.input_digest,
        new.submitted_us,
        new.deadline_us,
        new.waits,
        labels.stored(new.annotations),
    )


def ledger_values(states: Iterable[IndexState | None]) -> list[Packed] | None:
    """Values of `INSERT_LEDGERS` for the ledgers that come with these states, each once; None if there are none."""
    found = sorted({state.signature: state.ledger for state in states if state is not None and state.ledger}.items())
    return [Byteas(key for key, _ in found), Byteas(ledger for _, ledger in found)] if found else None


INSERT_LEDGERS = """
    INSERT INTO @ledger (signature, ledger) SELECT * FROM unnest(%s, %s) ON CONFLICT DO NOTHING
"""


def read_run(row: Row) -> RunRow:
    """A row of `RUN_COLUMNS`."""
    n, id_, tenant, pipeline, resource, slot_key, once, digest, submitted, deadline, waits, told, *rest = row
    held, ended, attention, awaiting, *state = rest
    status, due, worker, token, generation, build, reason, canceling, step, version, tail, signature, priority = state
    return RunRow(
        n,
        NewRun(
            id_,
            tenant,
            pipeline,
            resource,
            slot_key,
            once,
            digest,
            submitted,
            deadline,
            waits,
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
            canceling,
            step,
            version,
            tail,
            signature,
            priority=priority,
        ),
        ended,
        attention,
        waits != "" and not held and ended is None,
        awaiting,
    )


def read_journal(rows: Iterable[Row]) -> tuple[JournalRow, ...]:
    """Rows of `JOURNAL_COLUMNS`."""
    return tuple(
        [
            JournalRow(first_seq, count, at_us, append_id, digest, facts.encode())
            for first_seq, count, at_us, append_id, digest, facts in rows
        ]
    )
