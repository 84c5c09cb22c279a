"""Statements that insert appends and new runs, many at a time, and the values that they take [J-2, J-12].

The insert itself checks that the predecessor is there with the expected hash and that neither token nor worker is
stale; the journal's key checks that nobody was first [J-3, R-3]. Rows come back of what was inserted.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.ports.store import Append
from perdure.storage.postgres.packed import Bools, Byteas, Int8s, Packed, Texts
from perdure.storage.postgres.rows import NEW_COLUMNS, STATE, STATE_COLUMNS, new_values, state_arrays
from perdure.storage.postgres.workers import ALIVE

OWNED = "coalesce(r.worker, '') <> ''"
"""Somebody has a run that is found by its number. Not so that an index of owned runs could serve: a plan that was made
when there were none would look at all of them later."""
NEXT_COLUMNS = "run, first_seq, count, at_us, append_id, hash, facts"
FITS = """
    (SELECT p.hash FROM @journal p WHERE p.run = s.run AND p.first_seq = s.prev_seq) = s.prev_hash
    AND (s.token = 0 OR s.token >= coalesce((SELECT r.token FROM @run r WHERE r.n = s.run), 0))
"""
_NEXT = f"""
    INSERT INTO @journal ({NEXT_COLUMNS})
    SELECT {NEXT_COLUMNS} FROM {{sent}} WHERE {FITS} AND (s.token = 0 OR {ALIVE})
    ORDER BY run ON CONFLICT DO NOTHING RETURNING run
"""
_JOURNAL_KINDS = (Int8s, Int8s, Int8s, Int8s, Byteas, Byteas, Texts)
APPEND_KINDS = (*_JOURNAL_KINDS, Int8s, Byteas, Int8s)
"""Of the values of `APPEND`, but for the last two."""
NEW_KINDS = (Texts, Texts, Texts, Texts, Texts, Bools, Bools, Byteas, Int8s, Int8s, Texts, Texts)
STATE_KINDS = (*APPEND_KINDS, *STATE.values())
"""As `APPEND_KINDS`, for `APPEND_WITH_STATE`."""
FIRST_KINDS = (*NEW_KINDS, *STATE.values())
"""Of a new run's row."""
LATER_KINDS = _JOURNAL_KINDS[1:]
"""Of a row of the journal, but for the number of its run."""
SUBMIT_KINDS = (*FIRST_KINDS, *LATER_KINDS)


def unnest(kinds: Sequence[type[Packed]]) -> str:
    """SQL: rows from arrays."""
    return f"unnest({', '.join(['%s'] * len(kinds))})"


_APPEND_COLUMNS = f"{NEXT_COLUMNS}, prev_seq, prev_hash, token"
APPEND = _NEXT.format(sent=f"{unnest(APPEND_KINDS)} s ({_APPEND_COLUMNS})")
"""Appends that change no index row."""
_ASSIGNED = ", ".join(f"{name} = s.{'owner_token' if name == 'token' else name}" for name in STATE)
_TERMINAL = "s.status IN ('succeeded', 'failed', 'canceled')"
_INSERTED = f"""
    WITH sent AS (
        SELECT * FROM {unnest(STATE_KINDS)} s ({_APPEND_COLUMNS}, {STATE_COLUMNS.replace("token", "owner_token")})
    ), j AS ({_NEXT.format(sent="sent s")})
"""
_UPDATE = f"""
    UPDATE @run r SET {_ASSIGNED}, attention = false, awaiting = NULL, limited = false,
        ended_us = CASE WHEN {_TERMINAL} THEN s.at_us ELSE r.ended_us END,
        slot_held = r.slot_held AND (r.slot_once OR NOT {_TERMINAL})
    FROM (SELECT sent.* FROM sent JOIN j ON j.run = sent.run WHERE sent.status IS NOT NULL ORDER BY sent.run) s
    WHERE r.n = s.run
"""
APPEND_WITH_STATE = f"""
    {_INSERTED}, written AS ({_UPDATE} AND (s.token > 0 OR r.worker IS NULL)), told AS (
        UPDATE @run r SET attention = true FROM sent s JOIN j ON j.run = s.run
        WHERE r.n = s.run AND s.token = 0 AND {OWNED}
    )
    SELECT run FROM j
"""
"""Where some appends change an index row, or call its owner."""
RESTS = f"{_INSERTED} {_UPDATE} RETURNING r.n"
"""Where all are their owners', and all change their index rows."""
SUBMIT = f"""
    WITH sent AS (
        SELECT * FROM {unnest(SUBMIT_KINDS)} WITH ORDINALITY
            s ({NEW_COLUMNS}, {STATE_COLUMNS}, first_seq, count, at_us, append_id, hash, facts, place)
    ), r AS (
        INSERT INTO @run ({NEW_COLUMNS}, {STATE_COLUMNS})
        SELECT {NEW_COLUMNS}, {STATE_COLUMNS} FROM sent WHERE token = 0 OR {ALIVE}
        ORDER BY place ON CONFLICT DO NOTHING RETURNING n, id
    ), j AS (
        INSERT INTO @journal ({NEXT_COLUMNS})
        SELECT r.n, s.first_seq, s.count, s.at_us, s.append_id, s.hash, s.facts FROM r JOIN sent s ON s.id = r.id
    )
    SELECT id, n FROM r
"""
"""New runs with their first appends; the ids and numbers of those that were inserted."""


def append_values(appends: Sequence[Append], worker: str) -> list[Packed | str]:
    """Values of `APPEND`."""
    return [*_next_arrays(appends), worker, worker]


def rest_values(appends: Sequence[Append], worker: str) -> list[Packed | str]:
    """Values of `RESTS`, and of `APPEND_WITH_STATE`."""
    return [*_next_arrays(appends), *state_arrays([append.index for append in appends]), worker, worker]


def steps_statement(appends: Sequence[Append], worker: str) -> tuple[str, list[Packed | str]]:
    """The statement that appends to known runs, each once, and its values."""
    if any(append.index is not None or append.token == 0 for append in appends):
        return APPEND_WITH_STATE, rest_values(appends, worker)
    return APPEND, append_values(appends, worker)


def _next_arrays(appends: Sequence[Append]) -> list[Packed]:
    return [
        Int8s(append.locator for append in appends),
        *_first_arrays(appends),
        Int8s(append.prev_seq for append in appends),
        Byteas(append.prev_hash for append in appends),
        Int8s(append.token for append in appends),
    ]


def _first_arrays(appends: Sequence[Append]) -> list[Packed]:
    return [
        Int8s(append.first_seq for append in appends),
        Int8s(append.count for append in appends),
        Int8s(append.at_us for append in appends),
        Byteas(append.append_id for append in appends),
        Byteas(append.hash for append in appends),
        Texts(append.facts for append in appends),
    ]


def new_run_values(appends: Sequence[Append], worker: str) -> list[Packed | str]:
    """Values of `SUBMIT`; see `is_plain`."""
    runs = [append.new for append in appends if append.new is not None]
    columns = zip(*[new_values(new, slot_held=new.slot_key is not None) for new in runs], strict=True)
    new = [kind(column) for kind, column in zip(NEW_KINDS, columns, strict=True)]
    states = state_arrays([append.index for append in appends])
    return [*new, *states, *_first_arrays(appends), worker, worker]
