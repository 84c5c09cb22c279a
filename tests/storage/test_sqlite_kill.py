"""`kill -9`, again and again: whatever was acknowledged is there afterwards, whole and chained [J-1, J-14]."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from perdure.core.chain import chain_hash
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.lab import submitted
from tests.storage.helpers import kill, line, start

ROUNDS = 6
LINES_BEFORE_THE_KILL = 300


async def test_nothing_acknowledged_is_lost(tmp_path: Path, note: Callable[[str], None]) -> None:
    path = tmp_path / "store.db"
    acknowledged: set[tuple[str, int, str]] = set()
    for number in range(ROUNDS):
        process = start("write_for_ever", path, f"w{number}")
        told = [line(process) for _ in range(LINES_BEFORE_THE_KILL + 37 * number)]
        for words in map(str.split, [*told, *kill(process)]):
            acknowledged.add((words[0], int(words[1]), words[2]))
    stored = read(path)
    assert acknowledged <= stored
    note(f"{ROUNDS} kills, {len(acknowledged)} appends acknowledged, 0 lost, {len(stored - acknowledged)} unheard")
    store = SqliteStore(path)
    await store.open(owner="last")
    await submitted(store, "run-after")
    await store.close()


def read(path: Path) -> set[tuple[str, int, str]]:
    """Run, sequence and append id of all rows, read without any code of the store; checks the chains."""
    con = sqlite3.connect(path)
    rows: set[tuple[str, int, str]] = set()
    previous: dict[str, bytes] = {}
    query = (
        "SELECT id, first_seq, count, at_us, append_id, hash, facts FROM journal JOIN run ON run = n "
        "ORDER BY run, first_seq"
    )
    for run_id, first_seq, count, at_us, append_id, digest, facts in con.execute(query):
        assert digest == chain_hash(previous.get(run_id, b""), first_seq, count, at_us, append_id, facts.encode())
        previous[run_id] = digest
        rows.add((run_id, first_seq, append_id.hex()))
    assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    con.close()
    return rows
