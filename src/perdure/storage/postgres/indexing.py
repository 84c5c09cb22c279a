"""Index rows that are lost, or wrong, computed anew from the facts by whoever knows how [J-11].

A query looks runs up one by one, by key: however many are lost, and whatever the server believes about the size of
tables, a page of them costs what it returns.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from perdure.ports.store import IndexState, JournalRow, LostRun, NewRun, Restored
from perdure.storage.postgres import awaits, limits, mutexes
from perdure.storage.postgres.inserts import NEW_KINDS
from perdure.storage.postgres.packed import Int8s
from perdure.storage.postgres.rows import (
    INSERT_LEDGERS,
    JOURNAL_COLUMNS,
    NEW_COLUMNS,
    NEW_VALUES,
    STATE_ASSIGNMENTS,
    STATE_COLUMNS,
    STATE_VALUES,
    ledger_values,
    new_values,
    read_journal,
    state_arrays,
    state_values,
)
from perdure.storage.postgres.session import Row, Session

T = TypeVar("T")

MAX_ROWS = 5_000
"""Journal rows that are read at a time, if there are not more in the first of the runs alone."""

_LOST = f"""
    WITH page AS (
        SELECT s.run, s.id, s.worker, (SELECT count(*) FROM @journal j WHERE j.run = s.run) AS size FROM @stray s
        WHERE s.run > %(after)s AND (SELECT 1 FROM @run r WHERE r.n = s.run) IS NULL
        AND (SELECT 1 FROM @journal j WHERE j.run = s.run LIMIT 1) IS NOT NULL ORDER BY s.run LIMIT %(limit)s
    ), few AS (
        SELECT run, id, worker FROM (SELECT *, sum(size) OVER (ORDER BY run) - size AS before FROM page) sized
        WHERE before < {MAX_ROWS} ORDER BY run OFFSET 0
    )
    SELECT f.run, f.id, f.worker, {JOURNAL_COLUMNS} FROM few f
    CROSS JOIN LATERAL (SELECT * FROM @journal WHERE run = f.run ORDER BY first_seq OFFSET 0) j
"""


async def lost_runs(session: Session, limit: int, after: int) -> list[LostRun]:
    """See the port."""
    runs: dict[int, list[Row]] = {}
    for row in await session.rows(_LOST, {"after": after, "limit": limit}):
        runs.setdefault(row[0], []).append(row)
    return [LostRun(n, rows[0][1], rows[0][2], read_journal(row[3:] for row in rows)) for n, rows in runs.items()]


_AT_TAIL = "(SELECT max(first_seq) FROM @journal j WHERE j.run = {n}) = {seq}"
_PUT_BACK = f"""
    WITH sent AS (
        SELECT * FROM unnest(%s, {NEW_VALUES}, {STATE_VALUES}, %s, %s)
        s (n, {NEW_COLUMNS}, {STATE_COLUMNS}, ended_us, tail_seq)
    ), back AS (
        INSERT INTO @run (n, {NEW_COLUMNS}, {STATE_COLUMNS}, ended_us)
        SELECT n, {NEW_COLUMNS}, {STATE_COLUMNS}, ended_us FROM sent s
        WHERE {_AT_TAIL.format(n="s.n", seq="s.tail_seq")} ORDER BY n ON CONFLICT DO NOTHING RETURNING n
    ), known AS (
        DELETE FROM @stray WHERE run = ANY (ARRAY(SELECT n FROM back))
    )
    SELECT n FROM back
"""
_MAY_COME = (
    f"SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM @run WHERE n = %s OR id = %s) AND {_AT_TAIL.format(n='%s', seq='%s')}"
)


async def restore_lost(session: Session, rows: Sequence[Restored]) -> int:
    """See the port: what nothing else depends on together, the rest one by one, in the order of their numbers.

    Nobody appends meanwhile to a run that has an owner: its row could not tell.
    """
    if any(row.state.worker for row in rows):
        await session.run("LOCK TABLE @journal IN SHARE ROW EXCLUSIVE MODE")
    back: set[int] = set()
    plain = [row for row in rows if not (row.state.awaits or row.state.permits or row.new.mutexes)]
    if plain:
        ledgers = ledger_values(row.state for row in plain)
        if ledgers is not None:
            await session.run(INSERT_LEDGERS, ledgers)
        new = [new_values(row.new, slot_held=row.slot_held and row.new.slot_key is not None) for row in plain]
        values = [
            Int8s(row.locator for row in plain),
            *[kind(column) for kind, column in zip(NEW_KINDS, zip(*new, strict=True), strict=True)],
            *state_arrays([row.state for row in plain]),
            Int8s(row.ended_us for row in plain),
            Int8s(row.tail_seq for row in plain),
        ]
        back = {row[0] for row in await session.rows(_PUT_BACK, values)}
    count = len(back)
    for row in sorted(rows, key=lambda row: row.locator):
        place = (row.locator, row.new.run_id, row.locator, row.tail_seq)
        if row.locator not in back and await session.one(_MAY_COME, place) is not None:
            await restore_index(session, row.locator, row.new, row.state, row.ended_us, row.slot_held)
            count += 1
    return count


async def missing_index(session: Session, limit: int) -> list[str]:
    """Runs whose index row was deleted; those without a journal are no runs any more."""
    found = await session.rows(
        "SELECT id FROM @stray s WHERE EXISTS (SELECT 1 FROM @journal j WHERE j.run = s.run) "
        "AND NOT EXISTS (SELECT 1 FROM @run WHERE n = s.run) ORDER BY s.run LIMIT %s",
        (limit,),
    )
    return [row[0] for row in found]


async def journal_of(session: Session, run_id: str) -> tuple[int, Sequence[JournalRow]] | None:
    """Number and rows of a run, with or without an index row."""
    found = await session.rows(
        f"""
        SELECT j.run, {JOURNAL_COLUMNS} FROM @journal j
        WHERE j.run = (SELECT n FROM @run WHERE id = %(id)s
                       UNION ALL SELECT run FROM @stray WHERE id = %(id)s LIMIT 1)
        ORDER BY j.first_seq
        """,
        {"id": run_id},
    )
    return (found[0][0], read_journal(row[1:] for row in found)) if found else None


_RESTORE = f"""
    INSERT INTO @run (n, {NEW_COLUMNS}, status, token, generation, build, reason, canceling, step, version, tail_hash,
                      signature)
    VALUES (%s, {NEW_VALUES}, '', 0, 0, '', '', false, '', 0, '', '')
    ON CONFLICT (n) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in NEW_COLUMNS.split(", "))}
"""


async def restore_index(
    session: Session, n: int, new: NewRun, state: IndexState, ended_us: int | None, slot_held: bool
) -> None:
    """Put an index row back, or replace it. A slot that another run holds by now stays with that run."""
    if state.awaits:  # none of them may end unseen meanwhile
        lock = "SELECT 1 FROM @run WHERE n = %s OR id = ANY (%s) ORDER BY n FOR NO KEY UPDATE"
        await session.rows(lock, (n, list(state.awaits)))
    held = slot_held and new.slot_key is not None
    if held:
        other = "SELECT 1 FROM @run WHERE slot_key = %s AND pipeline = %s AND tenant = %s AND slot_held AND n <> %s"
        held = await session.one(other, (new.slot_key, new.pipeline, new.tenant, n)) is None
    await session.run(_RESTORE, (n, *new_values(new, slot_held=held)))
    await limits.keep(session, n, state)
    await session.run(
        f"UPDATE @run SET {STATE_ASSIGNMENTS}, ended_us = %s WHERE n = %s", (*state_values(state), ended_us, n)
    )
    await awaits.register(session, n, state)
    await limits.stand_in_line(session, n, state)
    await mutexes.restore(session, n, new, ended_us)
    kept = ledger_values((state,))
    if kept is not None:
        await session.run(INSERT_LEDGERS, kept)
    await session.run("DELETE FROM @stray WHERE run = %s", (n,))


class LostRows(ABC):
    """What a `PostgresStore` does about rows that are lost, or wrong."""

    @abstractmethod
    def _read(self, query: Callable[[Session], Awaitable[T]]) -> Awaitable[T]: ...

    @abstractmethod
    def _write(self, run: Callable[[Session], Awaitable[T]], *, long: bool = False) -> asyncio.Future[T]: ...

    async def missing_index(self, limit: int, /) -> Sequence[str]:
        return await self._read(lambda s: missing_index(s, limit))

    async def lost_runs(self, limit: int, after: int = 0, /) -> Sequence[LostRun]:
        return await self._read(lambda s: lost_runs(s, limit, after))

    async def restore_lost(self, rows: Sequence[Restored], /) -> int:
        return await self._write(lambda s: restore_lost(s, rows), long=True) if rows else 0

    async def journal_of(self, run_id: str, /) -> tuple[int, Sequence[JournalRow]] | None:
        return await self._read(lambda s: journal_of(s, run_id))

    async def restore_index(
        self, locator: int, new: NewRun, state: IndexState, ended_us: int | None, /, *, slot_held: bool
    ) -> None:
        await self._write(lambda s: restore_index(s, locator, new, state, ended_us, slot_held))
