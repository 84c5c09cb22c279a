"""The one thread that writes: group commit, and what happens when a commit fails.

Whatever is queued when the thread becomes free is one transaction; a lone append goes at once, and where commits are
quick the loop commits it without the thread. Results go back in one call per group. A group that cannot be committed is
kept and tried again until it is, unless the file is lost: nothing that was acknowledged is ever missing, and nothing is
acknowledged before it is durable [J-14, R-8].
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from perdure.errors import InvalidArgument, PerdureError, StoreUnavailable, StoreUnusable
from perdure.ports.store import Append, Trouble
from perdure.storage.sqlite.busy import error_kind, patiently, pause_s
from perdure.storage.sqlite.connect import explained, leak, open_writer
from perdure.storage.sqlite.group import Entry, apply_group
from perdure.storage.sqlite.mail import Answer, Mailbox
from perdure.storage.sqlite.pace import Pace
from perdure.storage.sqlite.place import Identity
from perdure.storage.sqlite.room import LogRoom

T = TypeVar("T")

MAX_GROUP = 1024
MAX_GROUP_BYTES = 4 << 20
POLL_S = 0.04
"""How often other processes' commits are looked for, while anybody listens."""
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0


class Work(msgspec.Struct, gc=False):
    """Something that is not part of a group: it has a transaction of its own, or none."""

    run: Callable[[sqlite3.Connection], object]
    transaction: bool = True


Job: TypeAlias = tuple["asyncio.Future[Any] | None", "Entry | Work"]


class Aborted(Exception):
    """The store was told to stop as if killed."""


class Writer:
    """The writer thread. Methods are for the loop; those below `_main` run in the thread.

    The connection belongs to whoever holds `_turn`: the thread while it serves, the loop while it commits a lone job.
    """

    def __init__(
        self,
        path: Path,
        mail: Mailbox,
        on_trouble: Callable[[Trouble], None],
        on_change: Callable[[], None],
        patience_s: float,
    ) -> None:
        self.fatal: StoreUnusable | None = None
        self._path = path
        self._patience_s = patience_s
        self._mail = mail
        self._on_trouble = on_trouble
        self._on_change = on_change
        self._inbox: queue.SimpleQueue[Sequence[Job] | None] = queue.SimpleQueue()
        self._watching = False
        self._closing = False
        self._aborted = False
        self._hurry = threading.Event()
        self._turn = threading.Lock()
        self._pace = Pace()
        self._room = LogRoom(path)
        self._log_bytes = 0
        self._thread = threading.Thread(target=self._main, name="perdure-sqlite-writer", daemon=True)
        self._con: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        self._seen_version = 0
        self._looked_at = 0.0
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()

    def start(self) -> asyncio.Future[None]:
        """Open the file; the future tells how it went."""
        self._thread.start()
        return self._opened

    def put(self, jobs: Sequence[Job]) -> None:
        """Commit a lone job at once, or hand jobs over to the thread."""
        if len(jobs) > 1:
            self._pace.met()
        elif jobs and self._committed_here(*jobs[0]):
            return
        self._inbox.put(jobs)

    def _committed_here(self, future: asyncio.Future[Any] | None, entry: Entry | Work) -> bool:
        """Commit on the loop what comes alone, if that is quick; False: nothing was written, the thread is to do it.

        Never waits: not for the thread, not for a lock of another process. Whatever goes wrong, the thread meets the
        same and knows what to do about it; it may find there what was committed here after all [J-14].
        """
        if isinstance(entry, Work) or not self._inbox.empty() or not self._turn.acquire(blocking=False):
            self._pace.met()
            return False
        try:
            if not self._pace.lone() or self._closing or self._aborted or self.fatal is not None:
                return False
            results = self._transaction(lambda con: apply_group(con, [entry]), begin=_begin_now)
        except Exception:
            return False
        except BaseException:  # Ctrl-C: the job is not to be lost with it
            self._inbox.put([(future, entry)])
            raise
        finally:
            self._turn.release()
        if future is not None and not future.done():
            future.set_result(results[0])
        if self._room.is_short(self._log_bytes, 1):
            self._inbox.put([(None, Work(self._room.make))])
        if self._pace.checkpoint_is_due():
            self._inbox.put([(None, Work(_checkpoint, transaction=False))])
        return True

    def watch(self) -> None:
        """From now on look for commits of others."""
        self._watching = True
        self._inbox.put(())

    def close(self) -> asyncio.Future[None]:
        """Finish what was put so far; a group in trouble gets one more chance."""
        self._closing = True
        self._hurry.set()
        self._inbox.put(None)
        return self._closed

    def abort(self) -> None:
        """Stop before the next commit and wait for the thread, which takes no longer than that commit."""
        self._aborted = True
        self._hurry.set()
        self._inbox.put(None)
        con = self._con
        if con is not None:
            with contextlib.suppress(sqlite3.Error):
                con.interrupt()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def abandon(self) -> None:
        """In a forked child: the thread is not here, and the connection must not be closed."""
        leak(self._con)

    # --- the thread

    def _main(self) -> None:
        try:
            self._con = open_writer(self._path, self._patience_s)
            self._identity = Identity(self._path)
            self._seen_version = self._data_version()
        except BaseException as error:
            known = error if isinstance(error, PerdureError) else StoreUnavailable(f"{self._path}: {error}")
            self._mail.send([(self._opened, None, known)])
            return
        self._mail.send([(self._opened, None, None)])
        try:
            for jobs in self._incoming():
                try:
                    self._serve(jobs)
                except Exception as error:  # a bug of ours must not look like a store that never answers
                    broken = self._give_up(StoreUnusable(f"the writer of {self._path} broke: {error!r}"))
                    self._mail.send(_refusals(jobs, broken))
        finally:
            self._let_go()
            self._mail.send([(self._closed, None, None)])

    def _serve(self, jobs: Sequence[Job]) -> None:
        for part in _parts(jobs):
            with self._turn:
                answers = self._answers(part)
            self._mail.send(answers)  # after the turn, so that the loop finds it free when it hears of this
            if not isinstance(part[0][1], Work) and self._room.is_short(self._log_bytes, len(part)):
                self._inbox.put([(None, Work(self._room.make))])
        if self._watching and time.monotonic() - self._looked_at > POLL_S:
            self._look()

    def _answers(self, part: Sequence[Job]) -> list[Answer]:
        if self._aborted or self.fatal is not None:
            return _refusals(part, self.fatal)
        future, entry = part[0]
        return [self._work(future, entry)] if isinstance(entry, Work) else self._commit(part)

    def _incoming(self) -> Iterator[list[Job]]:
        """Everything there is, whenever there is something; ends when the store is closed or aborted."""
        inbox = self._inbox
        stop = False
        while not stop:
            try:
                first = inbox.get(timeout=POLL_S) if self._watching else inbox.get()
            except queue.Empty:
                self._look()
                continue
            jobs: list[Job] = list(first or ())
            stop = first is None
            while len(jobs) < MAX_GROUP and not inbox.empty():
                more = inbox.get()
                jobs += more or ()
                stop = stop or more is None
            if jobs:
                yield jobs
        self._mail.send(_refusals([job for chunk in _drain(inbox) for job in chunk or ()], None))

    def _commit(self, jobs: Sequence[Job]) -> list[Answer]:
        entries: list[Entry] = [entry for _, entry in jobs]  # type: ignore[misc]  # _parts keeps works apart
        try:
            results = self._insist(lambda: self._transaction(lambda con: apply_group(con, entries)))
        except InvalidArgument as error:
            if len(jobs) == 1:
                return _refusals(jobs, error)
            # one of them cannot be stored at all: find out which, without hurting the others
            return [answer for job in jobs for answer in self._commit([job])]
        except PerdureError as error:
            return _refusals(jobs, error)
        except Aborted:
            return _refusals(jobs, None)
        return [(job[0], result, None) for job, result in zip(jobs, results, strict=True)]

    def _work(self, future: asyncio.Future[Any] | None, work: Work) -> Answer:
        def attempt() -> object:
            return (
                self._transaction(work.run)
                if work.transaction
                else patiently(lambda: work.run(self._live()), self._patience_s)
            )

        try:
            return future, self._insist(attempt), None
        except PerdureError as error:
            return future, None, error
        except Aborted:
            return future, None, _closed()

    def _transaction(
        self, work: Callable[[sqlite3.Connection], T], begin: Callable[[sqlite3.Connection], None] | None = None
    ) -> T:
        con = self._live()
        started_s = time.monotonic()
        (begin or self._begin)(con)
        try:
            result = work(con)
            if self._aborted:
                raise Aborted
            if self._identity is not None:
                self._log_bytes = self._identity.check()
            con.execute("COMMIT")
            self._pace.took(time.monotonic() - started_s)
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if con.in_transaction:
                    con.execute("ROLLBACK")
            raise
        return result

    def _begin(self, con: sqlite3.Connection) -> None:
        give_up = time.monotonic() + self._patience_s
        while True:
            try:
                con.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error_kind(error) != "busy" or time.monotonic() > give_up:
                    raise
            if self._aborted:
                raise Aborted
            time.sleep(pause_s())

    def _insist(self, attempt: Callable[[], T]) -> T:
        """Repeat until it succeeds, telling of trouble.

        Raises:
            InvalidArgument: the data cannot be stored.
            StoreUnusable: the file is lost.
            StoreUnavailable: the store was closed while in trouble.
        """
        delay_s = FIRST_RETRY_S
        while True:
            last_chance = self._closing
            try:
                return attempt()
            except StoreUnusable as error:
                raise self._give_up(error) from error
            except Exception as error:
                if self._aborted:
                    raise Aborted from error
                kind = error_kind(error)
                if kind == "data":
                    raise InvalidArgument(f"this cannot be stored: {error}") from error
                if kind == "fatal":
                    problem = explained(error, self._path) if isinstance(error, sqlite3.Error) else error
                    raise self._give_up(StoreUnusable(str(problem))) from error
                if last_chance:
                    raise StoreUnavailable(f"closed before it could be written: {error}") from error
                self._tell(Trouble(_problem(error, self._path), delay_s, fatal=False))
            self._hurry.wait(delay_s)
            delay_s = min(LAST_RETRY_S, delay_s * 2)

    def _give_up(self, error: StoreUnusable) -> StoreUnusable:
        if self.fatal is None:
            self.fatal = error
            self._tell(Trouble(str(error), 0.0, fatal=True))
        return error

    def _tell(self, trouble: Trouble) -> None:
        self._mail.call(lambda: self._on_trouble(trouble))

    def _look(self) -> None:
        """Did anybody else commit? Own commits do not change the version that this connection sees."""
        self._looked_at = time.monotonic()
        if self.fatal is not None:
            return
        try:
            with self._turn:
                version = self._data_version()
                if self._identity is not None:
                    self._identity.check()
        except StoreUnusable as error:
            self._give_up(error)
        except sqlite3.Error:
            return  # the next commit will meet the same trouble and say so
        else:
            if version != self._seen_version:
                self._seen_version = version
                self._mail.call(self._on_change)

    def _data_version(self) -> int:
        version: int = self._live().execute("PRAGMA data_version").fetchone()[0]
        return version

    def _live(self) -> sqlite3.Connection:
        if self._con is None:
            raise StoreUnavailable("the store is closed")
        return self._con

    def _let_go(self) -> None:
        con, self._con = self._con, None
        if con is None:
            return
        if self.fatal is not None:
            leak(con)  # the path may mean another file by now
            return
        with contextlib.suppress(sqlite3.Error):
            con.close()  # the last connection to the file brings the log into it


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the store was closed")


def _refusals(jobs: Sequence[Job], error: PerdureError | None) -> list[Answer]:
    return [(future, None, error or _closed()) for future, _ in jobs]


def _begin_now(con: sqlite3.Connection) -> None:
    con.execute("BEGIN IMMEDIATE")


def _checkpoint(con: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):  # if it is more than a busy reader, the next commit tells
        con.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _drain(inbox: queue.SimpleQueue[Sequence[Job] | None]) -> Iterator[Sequence[Job] | None]:
    while not inbox.empty():
        yield inbox.get()


def _parts(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Groups of bounded size; works alone; order kept."""
    part: list[Job] = []
    size = 0
    for job in jobs:
        entry = job[1]
        alone = isinstance(entry, Work)
        if part and (alone or len(part) >= MAX_GROUP or size >= MAX_GROUP_BYTES):
            yield part
            part, size = [], 0
        if alone:
            yield [job]
            continue
        part.append(job)
        if type(entry) is Append:
            size += len(entry.facts)
    if part:
        yield part


def _problem(error: BaseException, path: Path) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return f"the disk of {path} is full; free some space, nothing is lost"
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return f"another program holds the write lock of {path}"
    if code == sqlite3.SQLITE_READONLY:
        return f"{path} has become read-only"
    return f"{path}: {error}"
