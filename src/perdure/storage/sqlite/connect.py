"""Opening connections, and letting go of them without touching the file."""

from __future__ import annotations

import ctypes
import sqlite3
from pathlib import Path

from perdure.errors import StoreUnavailable, StoreUnusable
from perdure.storage.sqlite.busy import error_kind
from perdure.storage.sqlite.schema import prepare


def open_writer(path: Path, patience_s: float) -> sqlite3.Connection:
    """Open the file for writing, creating it and its tables where missing. Threads take turns with the connection.

    Raises:
        StoreUnusable: not a store of ours, damaged or read-only.
        StoreUnavailable: locked for long, or the disk does not answer.
    """
    con = _connect(path, one_thread=False)
    try:
        try:
            prepare(con, str(path), patience_s)
            con.execute("SELECT 1 FROM run LIMIT 1").fetchone()  # the log exists from here on
        except sqlite3.Error as error:
            raise explained(error, path) from error
    except BaseException:
        con.close()
        raise
    con.execute("PRAGMA cache_size = -16000")
    con.execute("PRAGMA wal_autocheckpoint = 4000")  # pages: 16 MB of log are read again after a kill, at most
    con.execute("PRAGMA journal_size_limit = 67108864")
    con.execute("PRAGMA temp_store = MEMORY")
    con.execute("PRAGMA secure_delete = OFF")
    return con


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a second connection to a file that `open_writer` has prepared."""
    con = _connect(path)
    con.execute("PRAGMA query_only = ON")
    con.execute("PRAGMA cache_size = -8000")
    return con


def _connect(path: Path, *, one_thread: bool = True) -> sqlite3.Connection:
    try:
        return sqlite3.connect(
            path, timeout=0, isolation_level=None, cached_statements=64, check_same_thread=one_thread
        )
    except sqlite3.Error as error:
        raise explained(error, path) from error


def explained(error: sqlite3.Error, path: Path) -> StoreUnavailable:
    """The error of ours that says who acts next."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return StoreUnusable(
            f"{path} is not a SQLite database (or its beginning is damaged); nothing was changed in it"
        )
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT}:
        return StoreUnusable(f"{path} is damaged or truncated ({error}); restore it from a backup")
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
        return StoreUnusable(f"{path} cannot be opened for writing ({error})")
    if error_kind(error) == "data":
        return StoreUnusable(f"{path} does not look like a store of this release ({error})")
    return StoreUnavailable(f"{path}: {error}")


def leak(con: sqlite3.Connection | None) -> None:
    """Never close this connection.

    Closing may checkpoint and delete the log beside the path: wrong in a forked child, and wrong when the path means
    another file by now. The operating system closes it with the process.
    """
    if con is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(con))
