"""What the tables promise to people and to big stores: plain SQL, rebuilding, small rows, plans without full scans."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import step
from perdure.core.facts import RunCancelRequested
from perdure.ports.store import IndexState
from perdure.storage.sqlite import SqliteStore
from perdure.storage.sqlite.schema import SCHEMA, SCHEMA_VERSION
from perdure.storage.sqlite.turns import DUE, LEVELS, NEXT_DUE, due, next_due_us
from perdure.testing.conformance.lab import READY, T0, Draft, claimed, ended, expect_journal, loaded, put, submitted
from tests.runtime.lab import Inv, app, line


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open(owner="w1")
    return store


async def test_facts_are_read_with_plain_sql(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    draft = await claimed(store, "run-1", slot="invoice-7")
    await put(store, draft, draft.next(RunCancelRequested("someone"), index=READY))
    con = sqlite3.connect(tmp_path / "store.db")
    facts = con.execute("SELECT run, seq, fact FROM facts ORDER BY run, seq").fetchall()
    assert facts == [
        ("run-1", 1, "RunSubmitted"),
        ("run-1", 2, "SegmentAttemptStarted"),
        ("run-1", 3, "OperationReserved"),
        ("run-1", 4, "RunCancelRequested"),
    ]
    actor = "SELECT json ->> 'actor', at FROM facts WHERE fact = 'RunCancelRequested'"
    assert con.execute(actor).fetchone() == ("someone", "2023-11-14T22:13:20.000Z")
    runs = con.execute("SELECT id, pipeline, resource, status, worker FROM runs").fetchall()
    assert runs == [("run-1", "payout", "invoice-7", "running", "w1")]
    con.close()
    await store.close()


async def test_tables_are_strict_and_versioned(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    await store.close()
    con = sqlite3.connect(tmp_path / "store.db")
    strict = con.execute("SELECT name, strict FROM pragma_table_list WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    assert {name for name, is_strict in strict if not is_strict} == set()
    assert con.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert con.execute("PRAGMA application_id").fetchone() == (int.from_bytes(b"prdr", "big"),)
    con.close()


async def test_deleted_index_rows_are_found_and_restored(tmp_path: Path) -> None:
    """Rows that a careless hand deleted are known without a search, and can be put back from the journal [J-11]."""
    path = tmp_path / "store.db"
    store = await opened(path)
    live, done = await claimed(store, "run-1", slot="invoice-7"), await ended(store, "run-2")
    before = {draft.run_id: (await loaded(store, draft)).row for draft in (live, done)}
    with sqlite3.connect(path) as con:
        con.execute("DELETE FROM run")
        con.execute("DELETE FROM snapshot")
    con.close()
    assert await store.load("run-1") is None
    assert list(await store.missing_index(10)) == ["run-1", "run-2"]
    assert list(await store.missing_index(1)) == ["run-1"]
    newer = await submitted(store, "run-3")
    assert newer.locator not in {live.locator, done.locator}
    for draft in (live, done):
        found = await store.journal_of(draft.run_id)
        assert found is not None
        assert (found[0], tuple(found[1])) == (draft.locator, tuple(draft.rows))
        row = before[draft.run_id]
        await store.restore_index(found[0], row.run, row.state, row.ended_us, slot_held=draft is live)
        assert (await loaded(store, draft)).row == row
    assert list(await store.missing_index(10)) == []
    await put(store, live, live.next(token=1))
    await expect_journal(store, live)
    await store.close()


async def test_journal_without_an_index_row_can_still_be_appended_to(tmp_path: Path) -> None:
    """Between the loss and the rebuilding an owner goes on: its predecessor is in the journal, which decides [J-2]."""
    path = tmp_path / "store.db"
    store = await opened(path)
    draft = await claimed(store, "run-1")
    with sqlite3.connect(path) as con:
        con.execute("DELETE FROM run")
    con.close()
    await put(store, draft, draft.next(token=1, index=READY))
    found = await store.journal_of("run-1")
    assert found is not None
    assert len(found[1]) == 3
    await store.close()


async def test_half_removed_runs_are_collected(tmp_path: Path) -> None:
    """A number whose journal is gone is not offered for rebuilding [R-9]."""
    path = tmp_path / "store.db"
    store = await opened(path)
    draft = await ended(store, "run-1")
    with sqlite3.connect(path) as con:
        con.execute("DELETE FROM run")
        con.execute("DELETE FROM journal")
    con.close()
    assert list(await store.missing_index(10)) == []
    assert await store.journal_of(draft.run_id) is None
    await store.close()


async def test_removing_gives_the_space_back(tmp_path: Path) -> None:
    """After retention the file is small again, in bounded steps [R-9]."""
    path = tmp_path / "store.db"
    store = await opened(path)
    drafts = [Draft(f"run-{i:04}", input=f'"{"x" * 20_000}"') for i in range(250)]
    appends = [draft.submit(IndexState("succeeded")) for draft in drafts]
    await asyncio.gather(*[store.append(append) for append in appends])
    kept = await submitted(store, "run-kept")
    await store.reclaim()
    full = path.stat().st_size
    assert full > 5_000_000
    removed = 0
    while count := await store.remove_ended(T0 + 1, 64):
        assert count <= 64
        removed += count
    assert removed == 250
    given_back = await store.reclaim()
    assert path.stat().st_size < full / 5
    assert given_back >= full - path.stat().st_size
    await expect_journal(store, kept)
    await store.close()


@step("only/v1")
async def only(inv: Inv) -> None:
    return None


async def test_waiting_runs_are_small(tmp_path: Path, note: Callable[[str], None]) -> None:
    """A run that starts tomorrow costs less than 600 bytes of file, all indexes included."""
    path = tmp_path / "store.db"
    pipeline = line(only, id="trivial-2")
    count = 5_000
    async with app(pipeline).client(store=SqliteStore(path)) as client:
        await client.submit_many(pipeline, [str(number) for number in range(count)], delay=86_400)
        first = (await client.list(limit=1))[0].run_id
    con = sqlite3.connect(path)
    facts, tail = con.execute(
        "SELECT length(facts), length(tail_hash) FROM journal JOIN run ON n = run WHERE id = ?", (first,)
    ).fetchone()
    con.close()
    size = path.stat().st_size / count
    note(f"{size:.0f} bytes of file per waiting run, of which facts {facts}")
    assert tail == 0, "the hash of the only journal row stands there alone"
    assert size < 600


QUERIES = {
    "load": "SELECT * FROM run WHERE id = ?",
    "rows": "SELECT * FROM journal WHERE run = ? AND first_seq > ? ORDER BY first_seq",
    "due, begun": f"{DUE[0]} AND due_us <= ? ORDER BY due_us, n LIMIT ?",
    "due, new": f"{DUE[1]} AND due_us <= ? ORDER BY due_us, n LIMIT ?",
    "next due, begun": NEXT_DUE[0],
    "next due, new": NEXT_DUE[1],
    "priorities, begun": LEVELS[0],
    "priorities, new": LEVELS[1],
    "attention": "SELECT id FROM run WHERE worker IS NOT NULL AND attention = 1 ORDER BY n",
    "take over": "UPDATE run SET status = 'ready' WHERE worker IS NOT NULL",
    "invalid": "UPDATE run SET due_us = 1 WHERE status = 'invalid' AND pipeline = ? AND worker IS NULL",
    "page": "SELECT * FROM run WHERE 1 AND id < ? ORDER BY id DESC LIMIT ?",
    "slot": "SELECT id FROM run WHERE slot_key = ? AND pipeline = ? AND tenant = ? AND slot_held = 1",
}


@pytest.mark.parametrize("name", QUERIES)
async def test_no_query_scans_all_runs(name: str, tmp_path: Path) -> None:
    """The cost of a start, a claim or a page does not grow with the number of runs [R-7]."""
    store = await opened(tmp_path / "store.db")
    await store.close()
    con = sqlite3.connect(tmp_path / "store.db")
    statement = QUERIES[name]
    plan = con.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * statement.count("?")).fetchall()
    con.close()
    steps = [row[3] for row in plan]
    bounded = {"SCAN run USING INDEX sqlite_autoindex_run_1", "SCAN run USING COVERING INDEX run_due_begun"}
    bounded |= {"SCAN run USING COVERING INDEX run_due_new", "SCAN CONSTANT ROW", "SCAN level"}
    partial = {step for step in steps if step.startswith("SCAN run USING") and "run_owned" in step}
    assert not [step for step in steps if step.startswith("SCAN") and step not in bounded | partial], steps
    assert not [step for step in steps if "TEMP B-TREE" in step and name != "attention"], steps


async def test_runs_due_later_cost_nothing(tmp_path: Path) -> None:
    """Looking for due runs takes as many steps of SQLite's machine with 20 parked runs as with 20,000, whatever their
    priorities [R-1, R-7]."""
    con = sqlite3.connect(tmp_path / "store.db")
    for statement in SCHEMA:
        con.execute(statement)
    steps: list[int] = []
    for first, end in ((0, 20), (20, 20_000)):
        con.executemany(
            "INSERT INTO run VALUES (?, ?, '', '', NULL, NULL, 0, 0, NULL, 0, 0, 'ready', ?, NULL, ?, 0, '', '', 0, "
            "'', 0, x'', 0, NULL, x'', ?, NULL, 0, 0, NULL, NULL)",
            ((n + 1, str(n), 5 if n < 8 else 99, n // 4 % 2, n % 4 - 2) for n in range(first, end)),
        )
        steps.append(0)

        def count() -> None:
            steps[-1] += 1

        con.set_progress_handler(count, 1)
        assert due(con, 5, 10, 0) == ["7", "6", "5", "3", "4", "2", "1", "0"]
        assert next_due_us(con) == 5
        con.set_progress_handler(None, 0)
    con.close()
    assert steps[0] * 1.1 > steps[1], steps
