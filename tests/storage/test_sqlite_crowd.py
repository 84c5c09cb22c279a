"""Several processes on one file: no lock error ever reaches anybody."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.core.chain import chain_hash
from perdure.ports.store import RunFilter
from perdure.storage.sqlite import SqliteStore
from tests.storage.helpers import DEADLINE_S, start

pytestmark = pytest.mark.long


async def test_ten_processes_create_the_store_at_once(tmp_path: Path) -> None:
    """One creates the schema, the others find it; none fails, none sees half of it."""
    path = tmp_path / "store.db"
    processes = [start("try_open", path, "") for _ in range(10)]
    outputs = [process.communicate(timeout=DEADLINE_S * 2)[0].strip() for process in processes]
    assert outputs == ["ok"] * 10
    store = SqliteStore(path)
    await store.open(owner="w1")
    assert len((await store.list_runs(RunFilter())).rows) == 10
    await store.close()


async def test_eight_processes_write_beside_each_other(tmp_path: Path, note: Callable[[str], None]) -> None:
    """Every append is committed, none waits for long, nobody hears of a lock."""
    path = tmp_path / "store.db"
    processes = [start("write_some", path, f"p{number}", 4, 60) for number in range(8)]
    outputs = [process.communicate(timeout=DEADLINE_S * 3)[0].strip() for process in processes]
    assert [output.split()[:2] for output in outputs] == [["troubles", "0"]] * 8
    note(f"slowest append beside seven other processes: {max(float(output.split()[3]) for output in outputs)} s")
    check_chains(path, runs=32, rows=60)


def check_chains(path: Path, runs: int, rows: int) -> None:
    """Every run is whole and chained, read without any code of the store."""
    con = sqlite3.connect(path)
    found: dict[int, list[tuple[int, int, int, bytes, bytes, str]]] = {}
    query = "SELECT run, first_seq, count, at_us, append_id, hash, facts FROM journal ORDER BY run, first_seq"
    for number, *row in con.execute(query):
        found.setdefault(number, []).append((row[0], row[1], row[2], row[3], row[4], row[5]))
    con.close()
    assert len(found) == runs
    for journal in found.values():
        assert len(journal) == rows
        previous, expected = b"", 1
        for first_seq, count, at_us, append_id, digest, facts in journal:
            assert first_seq == expected
            assert digest == chain_hash(previous, first_seq, count, at_us, append_id, facts.encode())
            previous, expected = digest, first_seq + count
