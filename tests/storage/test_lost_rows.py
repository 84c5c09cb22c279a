"""Index rows that are lost are read and put back many at a time, on every store that has any [J-11]."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest

from perdure.ports.store import IndexState, Restored, SlotTaken, Store
from perdure.storage import open_store
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.lab import (
    READY,
    T0,
    Draft,
    claimed,
    ended,
    expect_type,
    loaded,
    put,
    submitted,
)
from tests.postgres import PostgresServer
from tests.storage.test_retention import long_run

Lose: TypeAlias = Callable[[], object]
"""Delete every index row, as a careless hand might."""


def on_memory() -> tuple[Store, Lose]:
    data = MemoryData()
    return MemoryStore(data), data.lose_index


def on_sqlite(path: Path) -> tuple[Store, Lose]:
    def lose() -> None:
        with closing(sqlite3.connect(path)) as con, con:
            con.execute("DELETE FROM run")

    return SqliteStore(path), lose


def on_postgres(server: PostgresServer, schema: str) -> tuple[Store, Lose]:
    return open_store(server.url(schema=schema)), lambda: str(server.sql(f"DELETE FROM {schema}.run"))


@asynccontextmanager
async def opened(kind: str, folder: Path, server: PostgresServer) -> AsyncGenerator[tuple[Store, Lose]]:
    """An open store, and how its index rows get lost."""
    if kind == "memory":
        store, lose = on_memory()
    elif kind == "sqlite":
        store, lose = on_sqlite(folder / "store.db")
    else:
        store, lose = on_postgres(server, f"lost_{next(_numbers)}")
    await store.open(owner="w1")
    try:
        yield store, lose
    finally:
        await store.close()


_numbers = itertools.count(1)
KINDS = pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
TABLES = pytest.mark.parametrize("kind", ["sqlite", "postgres"])


async def crowd(store: Store) -> list[Draft]:
    """Runs of every kind that rows differ in."""
    holder = await submitted(store, "run-1", slot="invoice-7")
    running, over = await claimed(store, "run-2"), await ended(store, "run-3")
    labelled = Draft("run-4", annotations={"team": "red"})
    await put(store, labelled, labelled.submit(IndexState("held", reason="audit")))
    waiter = Draft("run-5")
    awaiting = IndexState("ready", awaits=("run-1", "run-3"), need=2, at_us=T0 + 5)
    await put(store, waiter, waiter.submit(awaiting))
    return [holder, running, over, labelled, waiter]


async def rows_of(store: Store, drafts: list[Draft]) -> list[Restored]:
    """What is to be put back, as it is now."""
    rows: list[Restored] = []
    for draft in drafts:
        row = (await loaded(store, draft)).row
        state = row.state
        if draft.run_id == "run-5":
            state = IndexState("ready", awaits=("run-1", "run-3"), need=2, at_us=T0 + 5)
        rows.append(Restored(row.locator, draft.new, state, row.ended_us, draft.new.slot_key is not None, draft.tail))
    return rows


@KINDS
async def test_lost_rows_are_read_and_put_back_by_the_page(kind: str, tmp_path: Path, postgres: PostgresServer) -> None:
    """J-11: with whose they were, in the order of their numbers; every row is what it was."""
    async with opened(kind, tmp_path, postgres) as (store, lose):
        drafts = await crowd(store)
        rows, before = await rows_of(store, drafts), [(await loaded(store, draft)).row for draft in drafts]
        assert list(await store.lost_runs(10)) == []
        lose()
        first = await store.lost_runs(2)
        others = await store.lost_runs(10, first[-1].locator)
        found = [*first, *others]
        assert [len(first), len(others)] == [2, 3]
        assert [run.locator for run in found] == [draft.locator for draft in drafts]
        assert [(run.run_id, tuple(run.rows)) for run in found] == [(d.run_id, tuple(d.rows)) for d in drafts]
        assert [run.worker for run in found] == ["", "w1", "", "", ""]
        assert list(await store.lost_runs(10, found[-1].locator)) == []
        assert await store.restore_lost(rows) == 5
        assert [(await loaded(store, draft)).row for draft in drafts] == before
        assert list(await store.missing_index(10)) == []
        assert list(await store.lost_runs(10)) == []
        assert await store.restore_lost([]) == 0
        again = await store.append(Draft("run-9", slot="invoice-7").submit())
        assert expect_type(again, SlotTaken, "its slot").run_id == "run-1"
        holder, running = drafts[:2]
        await put(store, running, running.next(token=1))
        ending = IndexState("succeeded", token=1)
        await put(store, holder, holder.claim())
        await put(store, holder, holder.next(token=1, index=ending, at_us=T0 + 70))
        assert (await loaded(store, drafts[4])).row.state.due_us == T0 + 70  # both that it waits for have ended


@KINDS
async def test_whoever_was_faster_is_left_alone(kind: str, tmp_path: Path, postgres: PostgresServer) -> None:
    """J-11, J-2, R-5: a row that is there, a journal that went on, a slot that another run has by now."""
    async with opened(kind, tmp_path, postgres) as (store, lose):
        drafts = await crowd(store)
        holder, running, over, *_ = drafts
        rows = await rows_of(store, drafts)
        old = [Restored(row.locator, row.new, READY, None, False, row.tail_seq) for row in rows]
        assert await store.restore_lost(old) == 0  # all are there
        assert (await loaded(store, running)).row.state == rows[1].state
        assert (await loaded(store, over)).row.ended_us == T0 + 10
        lose()
        await put(store, running, running.next(token=1))
        taker = await submitted(store, "run-6", slot="invoice-7")
        assert await store.restore_lost(rows) == 4
        assert list(await store.missing_index(10)) == ["run-2"]
        refused = await store.append(Draft("run-9", slot="invoice-7").submit())
        assert expect_type(refused, SlotTaken, "the slot").run_id == taker.run_id
        assert (await loaded(store, holder)).row.state == rows[0].state
        (gone_on,) = await rows_of_lost(store, running)
        assert await store.restore_lost([gone_on]) == 1
        assert await store.restore_lost([gone_on]) == 0


async def rows_of_lost(store: Store, draft: Draft) -> list[Restored]:
    """The same for a run that has no row, from its journal as it is now."""
    (lost,) = await store.lost_runs(5)
    return [Restored(lost.locator, draft.new, READY, None, False, lost.rows[-1].first_seq)]


@TABLES
async def test_a_page_of_long_journals_is_short(kind: str, tmp_path: Path, postgres: PostgresServer) -> None:
    """J-11: whatever the limit in runs, memory holds some thousands of rows, or one run."""
    async with opened(kind, tmp_path, postgres) as (store, lose):
        for number in range(3):
            await long_run(store, f"run-{number}", 2_600)
        lose()
        page = await store.lost_runs(10)
        assert [len(run.rows) for run in page] == [2_600, 2_600]
        assert [run.run_id for run in await store.lost_runs(10, page[-1].locator)] == ["run-2"]


async def test_an_append_in_flight_is_waited_for(tmp_path: Path, postgres: PostgresServer) -> None:
    """J-2: the row of a run that somebody owns is not put back beside an append that is not committed yet."""
    async with opened("postgres", tmp_path, postgres) as (store, lose):
        (running,) = [await claimed(store, "run-2")]
        rows = await rows_of(store, [running])
        lose()
        schema = f"lost_{next(_numbers) - 1}"
        async with await psycopg.AsyncConnection.connect(postgres.url().partition("&schema")[0]) as other:
            row = f"SELECT run, 99, 1, at_us, append_id || 'x', hash, facts FROM {schema}.journal LIMIT 1"
            await other.execute(f"INSERT INTO {schema}.journal {row}".encode())
            restoring = asyncio.ensure_future(store.restore_lost(rows))
            while not restoring.done() and not await asyncio.to_thread(_somebody_waits, postgres):
                pass
            assert not restoring.done()
            await other.commit()
            assert await asyncio.wait_for(restoring, 20) == 0  # its tail has moved


def _somebody_waits(server: PostgresServer) -> bool:
    return server.sql("SELECT count(*) FROM pg_locks WHERE NOT granted").strip() != "0"
