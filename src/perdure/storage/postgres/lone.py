"""Statements about one run: what goes without company, in less of the server's time than from arrays [J-2, J-12].

Nobody has to be told of most of them. Where others do, the statement that writes does it, if it writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.ports.store import TERMINAL, Append, IndexState, NewRun
from perdure.storage.postgres.inserts import APPEND_KINDS, FIRST_KINDS, FITS, LATER_KINDS, NEXT_COLUMNS
from perdure.storage.postgres.packed import Packed
from perdure.storage.postgres.rows import NEW_COLUMNS, STATE, STATE_COLUMNS, new_values, state_values
from perdure.storage.postgres.telling import ALL, NOBODY, WHO_WAITS
from perdure.storage.postgres.wire import Statement, WireValue
from perdure.storage.postgres.workers import ALIVE


def _values(kinds: Sequence[type[Packed]]) -> str:
    return ", ".join(f"%s::{kind.name}" for kind in kinds)


_STEP = f"""
    INSERT INTO @journal ({NEXT_COLUMNS})
    SELECT {NEXT_COLUMNS} FROM (VALUES ({_values(APPEND_KINDS)})) s ({NEXT_COLUMNS}, prev_seq, prev_hash, token)
    WHERE {FITS} AND {ALIVE} ON CONFLICT DO NOTHING RETURNING run
"""
_ASSIGNED = ", ".join(f"{name} = %s::{kind.name}" for name, kind in STATE.items())


def _with_state(told: str) -> str:
    """Who has the run says how it stands. A run that has ended gives its slot back, but where it has that for good."""
    return f"""
        WITH j AS ({_STEP}, at_us)
        UPDATE @run r SET {_ASSIGNED}, attention = false, awaiting = NULL, limited = false,
            ended_us = CASE WHEN %s THEN j.at_us ELSE r.ended_us END,
            slot_held = r.slot_held AND (r.slot_once OR NOT %s)
        FROM j WHERE r.n = j.run RETURNING r.n{told}
    """


def _new_run(told: str) -> str:
    return f"""
        WITH r AS (
            INSERT INTO @run ({NEW_COLUMNS}, {STATE_COLUMNS}) SELECT {_values(FIRST_KINDS)}
            WHERE %s::boolean OR {ALIVE} ON CONFLICT DO NOTHING RETURNING n, id
        ), j AS (INSERT INTO @journal ({NEXT_COLUMNS}) SELECT n, {_values(LATER_KINDS)} FROM r)
        SELECT id, n{told} FROM r
    """


_TOLD = {news: f", {news}" if news else "" for news in (NOBODY, WHO_WAITS, ALL)}
_REST = {news: _with_state(told) for news, told in _TOLD.items()}
_NEW_RUN = {news: _new_run(told) for news, told in _TOLD.items()}


def step(append: Append, worker: str) -> Statement:
    """An append of the worker that has the run; answers with the run's number if it was written."""
    return _STEP, _next(append, worker)


def rest(append: Append, state: IndexState, worker: str, news: str, told: tuple[str, ...]) -> Statement:
    """The same with an index state.

    Args:
        news, told: see `telling.news`.
    """
    ended = state.status in TERMINAL
    values = (*_next(append, worker), *state_values(state), ended, ended, *told)
    return _REST[news], values


def new_run(append: Append, new: NewRun, state: IndexState, worker: str, news: str, told: tuple[str, ...]) -> Statement:
    """A new run that nothing but its slot decides about; answers with its id and number if it was written."""
    row = new_values(new, slot_held=new.slot_key is not None)
    values = (*row, *state_values(state), state.token == 0, worker, worker, *_facts(append), *told)
    return _NEW_RUN[news], values


def _next(append: Append, worker: str) -> tuple[WireValue, ...]:
    before = (append.prev_seq, append.prev_hash, append.token)
    return append.locator, *_facts(append), *before, worker, worker


def _facts(append: Append) -> tuple[WireValue, ...]:
    return append.first_seq, append.count, append.at_us, append.append_id, append.hash, append.facts
