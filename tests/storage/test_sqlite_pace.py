"""A lone append is committed by the loop where commits are quick, and by the thread in all other cases [J-12, J-14]."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.ports.store import AppendResult, Committed
from perdure.storage.sqlite import SqliteStore, pace, writer
from perdure.storage.sqlite.group import Entry, EntryResult, apply_group
from perdure.storage.sqlite.pace import Pace
from perdure.testing.conformance.lab import claimed, expect_journal
from tests.storage.helpers import soon


class Groups:
    """Sees who writes which groups, and may make the next one fail."""

    def __init__(self) -> None:
        self.by_loop: list[int] = []
        self.by_thread: list[int] = []
        self.fail_next: BaseException | None = None
        self._loop_thread = threading.get_ident()

    def apply(self, con: sqlite3.Connection, entries: Sequence[Entry]) -> list[EntryResult]:
        """In place of `apply_group`."""
        here = threading.get_ident() == self._loop_thread
        (self.by_loop if here else self.by_thread).append(len(entries))
        failure, self.fail_next = self.fail_next, None
        if failure is not None:
            raise failure
        return apply_group(con, entries)

    def forget(self) -> None:
        """Only what comes from now on counts."""
        self.by_loop, self.by_thread = [], []


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """Every lone append is for the loop, however slow this machine is."""
    monkeypatch.setattr(pace, "QUICK_S", 3600.0)
    monkeypatch.setattr(pace, "LONE_IN_A_ROW", 0)
    seen = Groups()
    monkeypatch.setattr(writer, "apply_group", seen.apply)
    return seen


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open(owner="w1")
    return store


async def turns(count: int = 3) -> None:
    """Let the loop go round: enough to commit by itself, too little to hear from a thread but by chance."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_lone_append_is_committed_by_the_loop(groups: Groups, tmp_path: Path) -> None:
    """It is durable when its future resolves: another connection sees it, and so does the next owner."""
    path = tmp_path / "store.db"
    store = await opened(path)
    draft = await claimed(store, "run-1")
    groups.forget()
    append = draft.next(token=1)
    future = store.append(append)
    await turns()
    assert future.done()
    draft.accept(append, future.result())
    assert (groups.by_loop, groups.by_thread) == ([1], [])
    other = sqlite3.connect(path)
    assert other.execute("SELECT count(*) FROM journal").fetchone() == (3,)
    other.close()
    store.abort()
    store = await opened(path)
    await expect_journal(store, draft)
    await store.close()


async def test_appends_that_meet_share_a_commit_of_the_thread(groups: Groups, tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    drafts = [await claimed(store, f"run-{i}") for i in range(3)]
    groups.forget()
    futures = [store.append(draft.next(token=1)) for draft in drafts]
    assert [await soon(future) for future in futures] == [Committed(draft.locator) for draft in drafts]
    assert (groups.by_loop, groups.by_thread) == ([], [3])
    await store.close()


async def test_slow_commits_are_the_threads(groups: Groups, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pace, "QUICK_S", 0.0)
    store = await opened(tmp_path / "store.db")
    for number in range(20):
        await claimed(store, f"run-{number}")
    assert groups.by_loop == []
    await store.close()


async def test_after_a_meeting_the_thread_commits_for_a_while(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pace, "LONE_IN_A_ROW", 2)
    store = await opened(tmp_path / "store.db")
    drafts = [await claimed(store, f"run-{i}") for i in range(2)]
    who: list[str] = []
    for together in (drafts[:1], drafts, drafts[:1], drafts[:1], drafts[:1]):
        groups.forget()
        appends = [draft.next(token=1) for draft in together]
        futures = [store.append(append) for append in appends]
        for draft, append, future in zip(together, appends, futures, strict=True):
            draft.accept(append, await soon(future))
        who.append("loop" if groups.by_loop else "thread")
    assert who == ["loop", "thread", "thread", "thread", "loop"]
    await store.close()


async def test_foreign_lock_never_holds_up_the_loop(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another process writes: the loop hands over and goes on; the append is committed when the lock is free [R-8]."""
    path = tmp_path / "store.db"
    store = await opened(path)
    waiting: list[int] = []

    def pause_s() -> float:
        waiting.append(threading.get_ident())
        return 0.001

    monkeypatch.setattr(writer, "pause_s", pause_s)
    draft = await claimed(store, "run-1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    groups.forget()
    append = draft.next(token=1)
    future = store.append(append)
    await turns()
    assert not future.done()
    assert groups.by_loop == []
    other.execute("ROLLBACK")
    other.close()
    draft.accept(append, await soon(future))
    assert groups.by_thread == [1]
    assert threading.get_ident() not in waiting
    await expect_journal(store, draft)
    await store.close()


async def test_what_fails_on_the_loop_is_done_by_the_thread(groups: Groups, tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    draft = await claimed(store, "run-1")
    groups.forget()
    groups.fail_next = sqlite3.OperationalError("disk I/O error")
    append = draft.next(token=1)
    draft.accept(append, await soon(store.append(append)))
    assert (groups.by_loop, groups.by_thread) == ([1], [1])
    await expect_journal(store, draft)
    await store.close()


async def test_unknown_commit_of_the_loop_is_recognised(groups: Groups, tmp_path: Path) -> None:
    """The commit reached the disk and its answer did not reach us: the thread finds the append id there [J-14]."""
    store = await opened(tmp_path / "store.db")
    draft = await claimed(store, "run-1")
    append = draft.next(token=1)
    draft.accept(append, await soon(store.append(append)))
    again = store.append(append)
    assert await soon(again) == Committed(draft.locator)
    await expect_journal(store, draft)
    await store.close()


def test_interrupt_during_a_commit_loses_nothing(groups: Groups, tmp_path: Path) -> None:
    """Ctrl-C while the loop commits: nothing is half written, and the append is still answered."""
    with asyncio.Runner() as runner:
        store = runner.run(opened(tmp_path / "store.db"))
        draft = runner.run(claimed(store, "run-1"))
        append = draft.next(token=1)
        futures: list[asyncio.Future[AppendResult]] = []

        async def appending() -> None:
            futures.append(store.append(append))
            groups.fail_next = KeyboardInterrupt()
            await futures[0]

        with pytest.raises(KeyboardInterrupt):
            runner.run(appending())

        async def answer() -> object:
            return await futures[0]

        assert runner.run(answer()) == Committed(draft.locator)
        runner.run(store.close())


async def test_log_is_emptied_by_the_thread(groups: Groups, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However long appends come alone: what the loop commits reaches the file itself."""
    monkeypatch.setattr(pace, "CHECKPOINT_EVERY", 4)
    path = tmp_path / "store.db"
    store = await opened(path)
    before = path.stat().st_size
    for number in range(4):
        await claimed(store, f"run-{number}")
    await soon(store.wake_invalid({"payout": 1}, "b", 0))  # behind the checkpoint in the thread
    assert path.stat().st_size > before
    await store.close()


def test_pace_starts_with_the_thread() -> None:
    """Nobody knows yet what a commit costs here."""
    one = Pace()
    assert not any(one.lone() for _ in range(100))


def test_pace_lets_the_loop_commit_after_a_row_of_lone_quick_jobs() -> None:
    one = Pace()
    for _ in range(100):
        one.took(pace.QUICK_S / 2)
    assert [one.lone() for _ in range(pace.LONE_IN_A_ROW + 1)] == [False] * pace.LONE_IN_A_ROW + [True]
    one.met()
    assert not one.lone()


def test_one_slow_commit_ends_it_for_a_while() -> None:
    one = Pace()
    for _ in range(100):
        one.took(pace.QUICK_S / 2)
    for _ in range(pace.LONE_IN_A_ROW):
        one.lone()
    assert one.lone()
    one.took(pace.QUICK_S * 20)
    assert not one.lone()
    for _ in range(50):
        one.took(pace.QUICK_S / 2)
    assert one.lone()
