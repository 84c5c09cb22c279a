"""Idempotency keys of submissions: a table of their own, because they outlive runs [R-5]."""

from __future__ import annotations

import sqlite3

from perdure.ports.store import SubmissionKey
from perdure.storage.sqlite.rows import one

_COLUMNS = "tenant, pipeline, key, run, input_digest, expires_us"


def in_force(con: sqlite3.Connection, key: SubmissionKey, now_us: int) -> SubmissionKey | None:
    """Who has the key, if it has not expired."""
    known = one(
        con,
        f"SELECT {_COLUMNS} FROM submission_key WHERE tenant = ? AND pipeline = ? AND key = ? AND expires_us > ?",
        (key.tenant, key.pipeline, key.key, now_us),
    )
    return None if known is None else SubmissionKey(*known)


def put(con: sqlite3.Connection, key: SubmissionKey) -> None:
    """Take a key that is free, or has expired."""
    values = (key.tenant, key.pipeline, key.key, key.run_id, key.input_digest, key.expires_us)
    con.execute(f"INSERT OR REPLACE INTO submission_key ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", values)


def claim(con: sqlite3.Connection, key: SubmissionKey, now_us: int) -> SubmissionKey:
    """Take a key unless somebody has it; who has it now."""
    known = in_force(con, key, now_us)
    if known is None:
        put(con, key)
    return known or key


def forget(con: sqlite3.Connection, now_us: int) -> int:
    """Remove what has expired."""
    return con.execute("DELETE FROM submission_key WHERE expires_us <= ?", (now_us,)).rowcount
