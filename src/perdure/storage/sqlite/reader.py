"""The thread that reads, on a connection of its own: in WAL mode readers and the writer do not wait for each other."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from perdure.errors import PerdureError, StoreUnavailable
from perdure.storage.sqlite.busy import patiently
from perdure.storage.sqlite.connect import explained, leak, open_reader
from perdure.storage.sqlite.mail import Answer, Mailbox

T = TypeVar("T")

MAX_ANSWERS = 64
"""Answers that may wait for each other before they are delivered."""

Request = tuple["asyncio.Future[Any]", Callable[[sqlite3.Connection], Any]]


class Reader:
    """The reader thread; each request sees one snapshot of the database."""

    def __init__(self, path: Path, mail: Mailbox, patience_s: float) -> None:
        self._path = path
        self._patience_s = patience_s
        self._mail = mail
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="perdure-sqlite-reader", daemon=True)
        self._con: sqlite3.Connection | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the thread; the writer has prepared the file."""
        self._thread.start()

    def read(self, query: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run `query` in the thread, inside one read transaction."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._inbox.put((future, query))
        return future

    def stop(self) -> None:
        """End the thread and wait for the query it is in. Requests behind it fail."""
        self._stopping = True
        self._inbox.put(None)
        con = self._con
        if con is not None:
            with contextlib.suppress(sqlite3.Error):
                con.interrupt()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def abandon(self) -> None:
        """In a forked child: never close the connection."""
        leak(self._con)

    # --- the thread

    def _main(self) -> None:
        answers: list[Answer] = []
        while True:
            if answers and (self._inbox.empty() or len(answers) >= MAX_ANSWERS):
                self._mail.send(answers)
                answers = []
            request = self._inbox.get()
            if request is None:
                break
            future, query = request
            if not future.cancelled():
                answers.append(self._answer(future, query))
        while not self._inbox.empty():
            request = self._inbox.get()
            if request is not None:
                answers.append((request[0], None, StoreUnavailable("the store was closed")))
        if answers:
            self._mail.send(answers)
        if self._con is not None:
            self._con.close()
            self._con = None

    def _answer(self, future: asyncio.Future[Any], query: Callable[[sqlite3.Connection], Any]) -> Answer:
        try:
            return future, patiently(lambda: self._snapshot(query), self._patience_s), None
        except PerdureError as error:
            return future, None, error
        except sqlite3.Error as error:
            if self._stopping:
                return future, None, StoreUnavailable("the store was closed")
            return future, None, explained(error, self._path)
        except Exception as error:
            return future, None, error

    def _snapshot(self, query: Callable[[sqlite3.Connection], T]) -> T:
        if self._con is None:
            self._con = open_reader(self._path)
        con = self._con
        con.execute("BEGIN")
        try:
            return query(con)
        finally:
            if con.in_transaction:
                con.execute("COMMIT")
