"""What goes wrong under a running store: nothing acknowledged is lost, and everybody is told [R-8, J-14]."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.errors import InvalidArgument, StoreUnavailable, StoreUnusable
from perdure.ports.store import Append, Committed, IndexState, LoadedRun, RunFilter
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.lab import claimed, expect_journal, put, submitted
from tests.storage.helpers import Troubles, run, soon


async def opened(path: Path, *, patience_s: float = 5.0) -> SqliteStore:
    store = SqliteStore(path, patience_s=patience_s)
    await store.open(owner="w1")
    return store


# --- trouble that passes


async def test_lock_held_for_long_is_told_and_waited_for(tmp_path: Path) -> None:
    """Appends wait while another program holds the lock; reads go on; nothing is refused [R-8]."""
    store = await opened(tmp_path / "store.db", patience_s=0.05)
    troubles = Troubles(store)
    drafts = [await claimed(store, f"run-{i}") for i in range(5)]
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    appends = [draft.next(token=1) for draft in drafts]
    futures = [store.append(append) for append in appends]
    first = await troubles.first()
    assert "another program holds the write lock" in first.problem
    assert (first.retry_in_s, first.fatal) == (0.1, False)
    assert isinstance(await soon(store.load("run-0")), LoadedRun)
    assert not any(future.done() for future in futures)
    assert (await troubles.next()).retry_in_s == 0.2
    other.execute("ROLLBACK")
    other.close()
    for draft, append, future in zip(drafts, appends, futures, strict=True):
        draft.accept(append, await soon(future))
        await expect_journal(store, draft)
    await store.close()


def test_full_disk_is_told_and_waited_for(tmp_path: Path) -> None:
    """What does not fit is kept and committed when there is room; reads go on [R-8]."""
    path = tmp_path / "store.db"
    [told] = run("fill_disk", path)
    assert told.startswith("True True True ")
    assert "disk" in told
    con = sqlite3.connect(path)
    assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    con.close()


async def test_closing_ends_the_waiting(tmp_path: Path) -> None:
    """`close` gives a group in trouble one more chance, then says that it was not written [R-8]."""
    store = await opened(tmp_path / "store.db", patience_s=0.05)
    troubles = Troubles(store)
    draft = await submitted(store, "run-1")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    future = store.append(draft.next())
    await troubles.first()
    await soon(store.close())
    with pytest.raises(StoreUnavailable, match="closed before it could be written"):
        await future
    other.execute("ROLLBACK")
    other.close()
    store = await opened(tmp_path / "store.db")
    await expect_journal(store, draft)
    await store.close()


async def test_aborting_in_trouble_is_prompt(tmp_path: Path) -> None:
    """An abort does not wait for a lock, and gives the ownership back."""
    store = await opened(tmp_path / "store.db")
    draft = await submitted(store, "run-1")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    future = store.append(draft.next())
    await asyncio.sleep(0)
    store.abort()
    with pytest.raises(asyncio.CancelledError):
        await soon(future)
    other.execute("ROLLBACK")
    other.close()
    store = await opened(tmp_path / "store.db")
    await expect_journal(store, draft)
    await store.close()


# --- one bad append


def surrogate(append: Append) -> None:
    append.index = IndexState("held", reason="\ud800")


def enormous(append: Append) -> None:
    append.at_us = 1 << 70


def undecodable(append: Append) -> None:
    append.facts = b"\xff\xfe"


@pytest.mark.parametrize("spoil", [surrogate, enormous, undecodable])
async def test_append_that_cannot_be_stored_hurts_nobody(spoil: Callable[[Append], None], tmp_path: Path) -> None:
    """It is refused alone; those that travelled with it are committed, and the store goes on."""
    store = await opened(tmp_path / "store.db")
    drafts = [await claimed(store, f"run-{i}") for i in range(9)]
    appends = [draft.next(token=1) for draft in drafts]
    spoil(appends[4])
    results = await asyncio.gather(*[store.append(append) for append in appends], return_exceptions=True)
    assert isinstance(results[4], InvalidArgument)
    for number, (draft, append, result) in enumerate(zip(drafts, appends, results, strict=True)):
        if number != 4:
            assert isinstance(result, Committed)
            draft.accept(append, result)
        await expect_journal(store, draft)
    await put(store, drafts[4], drafts[4].next(token=1))
    await store.close()


async def test_mistake_inside_the_writer_is_answered(tmp_path: Path) -> None:
    """Whatever breaks the writing thread is told to everybody who waits, and to the engine; nobody waits for ever."""
    store = await opened(tmp_path / "store.db")
    troubles = Troubles(store)
    draft, other = await claimed(store, "run-1"), await claimed(store, "run-2")
    append = draft.next(token=1)
    append.facts = None  # type: ignore[assignment]  # a type checker would have seen it
    futures = [store.append(append), store.append(other.next(token=1))]
    for future in futures:
        with pytest.raises(StoreUnusable, match="broke"):
            await soon(future)
    assert (await troubles.first()).fatal
    await soon(store.close())
    store = await opened(tmp_path / "store.db")
    await expect_journal(store, draft)
    await store.close()


# --- trouble that does not pass


def deleted(path: Path) -> None:
    path.unlink()


def log_deleted(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replaced(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    os.replace(path.with_name("copy.db"), path)


@pytest.mark.parametrize("take_away", [deleted, log_deleted, moved, replaced])
async def test_file_taken_away_stops_the_store(take_away: Callable[[Path], None], tmp_path: Path) -> None:
    """Nothing is acknowledged into a file that nobody will find again; the engine is told to stop."""
    path = tmp_path / "store.db"
    store = await opened(path)
    troubles = Troubles(store)
    draft = await claimed(store, "run-1")
    take_away(path)
    left = sorted(os.listdir(tmp_path))
    with pytest.raises(StoreUnusable, match="deleted, moved or replaced"):
        await soon(store.append(draft.next(token=1)))
    trouble = await troubles.first()
    assert trouble.fatal
    assert "start again" in trouble.problem
    with pytest.raises(StoreUnusable):
        await store.append(draft.next(token=1))
    await soon(store.close())
    assert sorted(os.listdir(tmp_path)) == left


async def test_file_taken_away_is_noticed_while_idle(tmp_path: Path) -> None:
    """An engine listens for clients, and so learns that there is no file any more without writing to it."""
    path = tmp_path / "store.db"
    store = await opened(path)
    troubles = Troubles(store)
    store.on_change(lambda change: None)
    deleted(path)
    assert (await troubles.first()).fatal
    await store.close()


async def test_moved_file_brought_back_has_everything(tmp_path: Path) -> None:
    """After the stop, the file and its log still hold all that was acknowledged."""
    path = tmp_path / "store.db"
    store = await opened(path)
    draft = await claimed(store, "run-1")
    moved(path)
    with pytest.raises(StoreUnusable):
        await soon(store.append(draft.next(token=1)))
    await store.close()
    path.with_name("elsewhere.db").rename(path)
    store = await opened(path)
    await expect_journal(store, draft)
    await put(store, draft, draft.next(token=1))
    await store.close()


# --- damage


async def test_damaged_pages_hurt_only_what_they_held(tmp_path: Path) -> None:
    """Reading what a damaged page held is a clear error; everything else can be read."""
    path = tmp_path / "store.db"
    store = await opened(path)
    drafts = [await submitted(store, f"run-{i:03}") for i in range(200)]
    await store.close()
    at = path.read_bytes().index(b'"run_id":"run-100"')
    with path.open("r+b") as file:
        file.seek(at // 4096 * 4096)
        file.write(os.urandom(4096))
    store = await opened(path)
    whole, damaged = 0, 0
    for draft in drafts:
        found = await asyncio.gather(expect_journal(store, draft), return_exceptions=True)
        whole += isinstance(found[0], LoadedRun)
        damaged += isinstance(found[0], StoreUnusable) and "damaged" in str(found[0])
    assert whole > 100
    assert whole + damaged == 200
    assert damaged > 0
    await store.close()


async def test_damaged_facts_are_read_as_they_are(tmp_path: Path) -> None:
    """A row that somebody changed is for `verify` to find by its hash; the driver reads it without stumbling [J-11]."""
    path = tmp_path / "store.db"
    store = await opened(path)
    draft, other = await claimed(store, "run-1"), await claimed(store, "run-2")
    with sqlite3.connect(path) as con:
        con.execute("UPDATE journal SET facts = CAST(x'7bff00' AS TEXT) WHERE run = ?", (draft.locator,))
    con.close()
    for read in (store.load, store.load_all_rows):
        run = await read("run-1")
        assert run is not None
        assert [row.facts for row in run.rows] == [b"{\xff\x00"] * 2
    assert len((await store.list_runs(RunFilter())).rows) == 2
    await put(store, other, other.next(token=1))
    await expect_journal(store, other)
    await store.close()
