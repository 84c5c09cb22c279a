"""Journals in one SQLite file: WAL, synchronous FULL, one owner, any number of clients [R-2]."""

from perdure.storage.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
