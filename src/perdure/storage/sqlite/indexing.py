"""Index rows that are lost, or wrong, computed anew from the facts by whoever knows how [J-11]."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from perdure.ports.store import IndexState, JournalRow, LostRun, NewRun, Restored
from perdure.storage import labels
from perdure.storage.sqlite import awaits, limits, mutexes
from perdure.storage.sqlite.queries import ROWS
from perdure.storage.sqlite.rows import (
    INSERT_LEDGER,
    STATE_ASSIGNMENTS,
    ledger_values,
    one,
    read_journal,
    run_values,
    state_values,
)

T = TypeVar("T")

MAX_ROWS = 5_000
"""Journal rows after which no further run is read in one go."""


def lost_runs(con: sqlite3.Connection, limit: int, after: int) -> list[LostRun]:
    """See the port."""
    found = con.execute(
        "SELECT run, id, worker FROM stray WHERE run > ? "
        "AND EXISTS (SELECT 1 FROM journal WHERE journal.run = stray.run) "
        "AND NOT EXISTS (SELECT 1 FROM run WHERE n = stray.run) ORDER BY run LIMIT ?",
        (after, limit),
    ).fetchall()
    runs: list[LostRun] = []
    size = 0
    for n, run_id, worker in found:
        if size >= MAX_ROWS:
            break
        rows = read_journal(con.execute(ROWS, (n, 0)))
        size += len(rows)
        runs.append(LostRun(n, run_id, worker, rows))
    return runs


_MAY_COME = """
    SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM run WHERE n = ?1 OR id = ?2)
    AND (SELECT max(first_seq) FROM journal WHERE run = ?1) = ?3
"""


def restore_lost(con: sqlite3.Connection, rows: Sequence[Restored]) -> int:
    """See the port: one by one, in the order of their numbers, in one transaction."""
    count = 0
    for row in sorted(rows, key=lambda row: row.locator):
        if one(con, _MAY_COME, (row.locator, row.new.run_id, row.tail_seq)) is not None:
            restore_index(con, row.locator, row.new, row.state, row.ended_us, row.slot_held)
            count += 1
    return count


def missing_index(con: sqlite3.Connection, limit: int) -> list[str]:
    """Runs whose index row was deleted; those without a journal are no runs any more."""
    found = con.execute(
        "SELECT id FROM stray WHERE EXISTS (SELECT 1 FROM journal WHERE journal.run = stray.run) "
        "AND NOT EXISTS (SELECT 1 FROM run WHERE n = stray.run) ORDER BY run LIMIT ?",
        (limit,),
    )
    return [row[0] for row in found]


def journal_of(con: sqlite3.Connection, run_id: str) -> tuple[int, Sequence[JournalRow]] | None:
    """Number and rows of a run, with or without an index row."""
    found = one(con, "SELECT n FROM run WHERE id = ?1 UNION ALL SELECT run FROM stray WHERE id = ?1", (run_id,))
    if found is None:
        return None
    rows = read_journal(con.execute(ROWS, (found[0], 0)))
    return (found[0], rows) if rows else None


def restore_index(
    con: sqlite3.Connection, n: int, new: NewRun, state: IndexState, ended_us: int | None, slot_held: bool
) -> None:
    """Put an index row back, or replace it. A slot that another run holds by now stays with that run."""
    held = slot_held and new.slot_key is not None
    if held:
        other = "SELECT 1 FROM run WHERE slot_key = ? AND pipeline = ? AND tenant = ? AND slot_held = 1 AND n <> ?"
        held = one(con, other, (new.slot_key, new.pipeline, new.tenant, n)) is None
    con.execute(
        "INSERT INTO run (n, id, tenant, pipeline, resource, slot_key, slot_once, slot_held, input_digest, "
        "submitted_us, deadline_us, status, token, generation, build, reason, canceling, step, version, tail_hash, "
        "signature, waits, annotations) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', 0, 0, '', '', 0, '', 0, x'', x'', ?, ?) "
        "ON CONFLICT (n) DO UPDATE SET "
        "id = excluded.id, tenant = excluded.tenant, pipeline = excluded.pipeline, resource = excluded.resource, "
        "slot_key = excluded.slot_key, slot_once = excluded.slot_once, slot_held = excluded.slot_held, "
        "input_digest = excluded.input_digest, submitted_us = excluded.submitted_us, "
        "deadline_us = excluded.deadline_us, waits = excluded.waits, annotations = excluded.annotations",
        (
            n,
            *run_values(new, slot_held=held, digest=new.input_digest),
            new.waits or None,
            labels.stored(new.annotations),
        ),
    )
    standing = limits.keep(con.cursor(), n, state)
    con.execute(f"UPDATE run SET {STATE_ASSIGNMENTS}, ended_us = ? WHERE n = ?", (*state_values(state), ended_us, n))
    awaits.register(con.cursor(), n, state)
    limits.register(con.cursor(), n, state, standing)
    mutexes.restore(con, n, new, ended_us)
    con.executemany(INSERT_LEDGER, ledger_values((state,)))
    con.execute("DELETE FROM stray WHERE run = ?", (n,))


class LostRows(ABC):
    """What a `SqliteStore` does about rows that are lost, or wrong."""

    @abstractmethod
    def _read(self, query: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]: ...

    @abstractmethod
    def _write(self, run: Callable[[sqlite3.Connection], T], *, transaction: bool = True) -> asyncio.Future[T]: ...

    async def missing_index(self, limit: int, /) -> Sequence[str]:
        return await self._read(lambda con: missing_index(con, limit))

    async def lost_runs(self, limit: int, after: int = 0, /) -> Sequence[LostRun]:
        return await self._read(lambda con: lost_runs(con, limit, after))

    async def restore_lost(self, rows: Sequence[Restored], /) -> int:
        return await self._write(lambda con: restore_lost(con, rows)) if rows else 0

    async def journal_of(self, run_id: str, /) -> tuple[int, Sequence[JournalRow]] | None:
        return await self._read(lambda con: journal_of(con, run_id))

    async def restore_index(
        self, locator: int, new: NewRun, state: IndexState, ended_us: int | None, /, *, slot_held: bool
    ) -> None:
        await self._write(lambda con: restore_index(con, locator, new, state, ended_us, slot_held))
