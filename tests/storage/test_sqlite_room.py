"""Room in the log is made ahead, and nothing can be lost by it [J-14, R-8]."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure.storage.sqlite import SqliteStore, room
from perdure.storage.sqlite.room import STEP_BYTES, LogRoom
from perdure.testing.conformance.lab import claimed, expect_journal
from tests.storage.helpers import soon


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is wanted from the first commit on."""
    monkeypatch.setattr(room, "AFTER_COMMITS", 0)


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open(owner="w1")
    return store


async def through(store: SqliteStore) -> None:
    """Wait until the thread has done everything that it was given."""
    await soon(store.wake_invalid({"nobody": 1}, "build", 0))


async def test_log_is_longer_than_what_is_in_it(tmp_path: Path) -> None:
    """And what is in it is read after a crash, zeros behind it or not."""
    path = tmp_path / "store.db"
    log = tmp_path / "store.db-wal"
    store = await opened(path)
    drafts = [await claimed(store, "run-1")]
    await through(store)
    length = log.stat().st_size
    assert length > STEP_BYTES
    drafts += [await claimed(store, f"run-{i}") for i in range(2, 12)]
    await through(store)
    assert log.stat().st_size == length, "commits go where room was made"
    store.abort()
    store = await opened(path)
    for draft in drafts:
        await expect_journal(store, draft)
    await store.close()
    with closing(sqlite3.connect(path)) as con:
        assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_nobody_writes_while_room_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that committed at that moment would find zeros over its pages."""
    path = tmp_path / "store.db"
    store = await opened(path)
    found: list[str] = []

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                found.append(str(error))
        assert offset == os.fstat(fd).st_size
        return os.pwritev(fd, [data], offset)

    monkeypatch.setattr("os.pwrite", pwrite)
    draft = await claimed(store, "run-1")
    await through(store)
    assert found == ["database is locked"]
    await expect_journal(store, draft)
    await store.close()


async def test_no_room_on_the_disk_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    store = await opened(path)
    tried: list[int] = []

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        tried.append(offset)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.pwrite", pwrite)
    draft = await claimed(store, "run-1")
    for number in range(2, 8):
        await claimed(store, f"run-{number}")
    await through(store)
    assert len(tried) == 1, "it is not tried again at once"
    await expect_journal(store, draft)
    await store.close()


def test_room_outside_a_transaction_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "some.db", isolation_level=None)) as con:
        con.execute("PRAGMA journal_mode = WAL")
        con.execute("CREATE TABLE t (x)")
        before = (tmp_path / "some.db-wal").stat().st_size
        with pytest.raises(ValueError):
            LogRoom(tmp_path / "some.db").make(con)
        assert (tmp_path / "some.db-wal").stat().st_size == before


def test_big_groups_and_an_emptied_log_ask_for_nothing(tmp_path: Path) -> None:
    one = LogRoom(tmp_path / "some.db")
    assert not one.is_short(4096, room.FEW + 1)
    assert one.is_short(4096, 1)
    assert not one.is_short(8192, 1), "it was asked for already"


def test_few_commits_ask_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "AFTER_COMMITS", 16)
    one = LogRoom(tmp_path / "some.db")
    assert [one.is_short(4096 * n, 1) for n in range(1, 18)] == [False] * 16 + [True]


def test_log_that_was_cut_off_is_looked_at_anew(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    one = LogRoom(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as con:
        con.execute("PRAGMA journal_mode = WAL")
        con.execute("CREATE TABLE t (x)")
        con.execute("BEGIN IMMEDIATE")
        assert one.is_short(4096, 1)
        one.make(con)
        con.execute("COMMIT")
        full = Path(f"{path}-wal").stat().st_size
        assert not one.is_short(full, 1)
        assert not one.is_short(0, 1)
        assert one.is_short(4096, 1)
