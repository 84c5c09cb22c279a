"""Room in the log for the next commits, made ahead.

A commit that makes the log file longer has the new length to sync besides its pages, which doubles what it costs. So
the file is made longer by a megabyte at a time, with zeros, which SQLite takes for the end of the log. Once the log has
been emptied and begins anew, it is as long as it needs to be.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

STEP_BYTES = 1 << 20
AFTER_COMMITS = 16
"""Who commits a few times and leaves has nothing to gain."""
AFTER_FAILURE = 1000
"""Commits to wait for after there was no room to be made."""
FEW = 4
"""Groups of more appends sync seldom: to write their room first would cost more than it saves."""


class LogRoom:
    """Knows whether the log grew since room was made, and makes room. Used by whoever has the writer's turn."""

    __slots__ = ("_asked", "_known_bytes", "_log", "_wait")

    def __init__(self, path: Path) -> None:
        self._log = f"{path}-wal"
        self._known_bytes = 0
        self._wait = AFTER_COMMITS
        self._asked = False

    def is_short(self, log_bytes: int, appends: int) -> bool:
        """Ask after a commit of so many appends that found the log so long; True, once: it is time to call `make`."""
        if log_bytes == self._known_bytes or self._asked or appends > FEW:
            return False
        if log_bytes < self._known_bytes:  # it was emptied and cut off
            self._known_bytes = log_bytes
            return False
        self._wait -= 1
        self._asked = self._wait < 0
        return self._asked

    def make(self, con: sqlite3.Connection) -> None:
        """Make the log longer. Inside a write transaction that has not written yet: nobody else may write meanwhile.

        Where that fails nothing is lost: the next commits make the log longer by themselves, as far as they can.
        """
        self._asked = False
        if not con.in_transaction:
            raise ValueError("room in the log is made inside a transaction")
        try:
            # SQLite holds no locks on the log: unlike the database it may be opened and closed beside it.
            fd = os.open(self._log, os.O_RDWR)
            try:
                end = os.fstat(fd).st_size
                self._known_bytes = end + os.pwrite(fd, bytes(STEP_BYTES), end)
            finally:
                os.close(fd)
        except OSError:
            self._wait = AFTER_FAILURE
