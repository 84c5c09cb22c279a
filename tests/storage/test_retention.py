"""What only stores with tables can do wrong when runs go and come back [R-9, J-11]."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from perdure.ports.store import JournalRow, Store
from perdure.storage import open_store
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.lab import ENDED, T0, Draft, ended, expect_journal
from perdure.testing.conformance.retention import tail
from tests.postgres import PostgresServer


async def long_run(store: Store, run_id: str, rows: int) -> None:
    """An ended run of so many journal rows."""
    draft = Draft(run_id)
    for number in range(rows):
        sent = draft.next(at_us=T0) if number else draft.submit()
        draft.rows.append(JournalRow(sent.first_seq, 1, T0, sent.append_id, sent.hash, sent.facts))
    assert await store.insert_ended(draft.new, ENDED, T0 + int(run_id[-1]), draft.rows)


async def test_a_transaction_of_postgresql_removes_a_bounded_number_of_rows(postgres: PostgresServer) -> None:
    """R-9: about a thousand, or one run, whatever the limit in runs; the oldest first."""
    store = open_store(postgres.url())
    await store.open(owner="w1")
    for number, rows in enumerate((400, 400, 400, 1_500, 1_500, 1)):
        await long_run(store, f"run-{number}", rows)
    removed = [await store.remove_ended(T0 + 99, 10) for _ in range(5)]
    assert removed == [3, 1, 1, 1, 0]
    assert (await store.info())["journal_rows"] == 0
    assert (await store.info())["stray_runs"] == 0
    await store.close()


async def test_nothing_is_put_over_a_journal_without_an_index_row(tmp_path: Path, postgres: PostgresServer) -> None:
    """R-9, J-11: a journal that is there is the truth, to be rebuilt; without one nothing is in the way."""
    sqlite, url = SqliteStore(tmp_path / "store.db"), postgres.url(schema="astray")
    for store in (sqlite, open_store(url)):
        await store.open(owner="w1")
        lost, gone = await ended(store, "run-lost"), await ended(store, "run-gone")
        statements = ("DELETE FROM {}run", f"DELETE FROM {{}}journal WHERE run = {gone.locator}")
        if store is sqlite:
            with sqlite3.connect(tmp_path / "store.db") as con:
                for statement in statements:
                    con.execute(statement.format(""))
            con.close()
        else:
            postgres.sql("; ".join(statement.format("astray.") for statement in statements))
        assert not await store.insert_ended(lost.new, ENDED, T0 + 10, lost.rows)
        assert list(await store.missing_index(9)) == ["run-lost"]
        assert await store.insert_ended(gone.new, ENDED, T0 + 10, gone.rows)
        await expect_journal(store, gone)
        assert await store.remove_runs([tail(lost)]) == 0
        await store.close()
