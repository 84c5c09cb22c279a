"""Reads, each inside one snapshot, and the sweeps that write outside the groups, each one transaction."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from perdure.ports.store import (
    TERMINAL,
    Deployment,
    LedgerCount,
    LoadedRun,
    Snapshot,
)
from perdure.storage.ledgers import Counted, merged
from perdure.storage.listing import LISTED, LIVE_STATUS
from perdure.storage.sqlite.listing import listed
from perdure.storage.sqlite.rows import (
    JOURNAL_COLUMNS,
    RUN_COLUMNS,
    number,
    one,
    read_journal,
    read_run,
)
from perdure.storage.sqlite.schema import SCHEMA_VERSION
from perdure.storage.sqlite.slots import WAITING

ROWS = f"SELECT {JOURNAL_COLUMNS} FROM journal WHERE run = ? AND first_seq > ? ORDER BY first_seq"
_RUN = f"SELECT {RUN_COLUMNS} FROM run WHERE id = ?"
_SNAPSHOT = """
    SELECT s.row_seq, s.row_hash, s.version, s.reducer, s.data FROM snapshot s
    JOIN journal j ON j.run = s.run AND j.first_seq = s.row_seq AND j.hash = s.row_hash WHERE s.run = ?
"""

# --- one run


def load(con: sqlite3.Connection, run_id: str) -> LoadedRun | None:
    """Index row, the snapshot if it fits the journal, and the rows after it."""
    found = one(con, _RUN, (run_id,))
    if found is None:
        return None
    row = read_run(found)
    stored = one(con, _SNAPSHOT, (row.locator,))
    snapshot = None if stored is None else Snapshot(*stored)
    after = 0 if snapshot is None else snapshot.row_seq
    return LoadedRun(row, snapshot, read_journal(con.execute(ROWS, (row.locator, after))))


def load_many(con: sqlite3.Connection, run_ids: Sequence[str]) -> list[LoadedRun]:
    """As `load`, of each that is there."""
    found = [load(con, run_id) for run_id in run_ids]
    return [loaded for loaded in found if loaded is not None]


def load_all_rows(con: sqlite3.Connection, run_id: str) -> LoadedRun | None:
    """As `load`, from the first row."""
    found = one(con, _RUN, (run_id,))
    if found is None:
        return None
    row = read_run(found)
    return LoadedRun(row, None, read_journal(con.execute(ROWS, (row.locator, 0))))


# --- sweeps


def owned(con: sqlite3.Connection, worker: str) -> list[str]:
    """A worker's own runs."""
    return [row[0] for row in con.execute("SELECT id FROM run WHERE worker = ? ORDER BY n", (worker,))]


def attention(con: sqlite3.Connection, worker: str) -> list[str]:
    """Owned runs with facts their owner has not answered."""
    sql = "SELECT id FROM run WHERE worker IS NOT NULL AND attention = 1 AND +worker = ? ORDER BY n"
    return [row[0] for row in con.execute(sql, (worker,))]


def generations(con: sqlite3.Connection) -> dict[str, int]:
    """The newest generation of every pipeline."""
    return dict(con.execute("SELECT pipeline, max(generation) FROM deployment GROUP BY pipeline").fetchall())


def take_over(con: sqlite3.Connection, now_us: int) -> int:
    """Every owned run becomes due and unowned."""
    return con.execute(
        "UPDATE run SET status = CASE status WHEN 'running' THEN 'ready' ELSE status END, worker = NULL, due_us = ?, "
        "attention = 0 WHERE worker IS NOT NULL",
        (now_us,),
    ).rowcount


def wake_invalid(con: sqlite3.Connection, generations: Mapping[str, int], build: str | None, now_us: int) -> int:
    """Invalid runs judged by another generation or build become due; without a build, by an older generation."""
    return con.executemany(
        "UPDATE run SET due_us = ?1, attention = 0 WHERE status = 'invalid' AND pipeline = ?2 AND worker IS NULL "
        "AND iif(?4 IS NULL, generation < ?3, generation <> ?3 OR build <> ?4)",
        [(now_us, pipeline, generation, build) for pipeline, generation in generations.items()],
    ).rowcount


def wake_resting(con: sqlite3.Connection, pipeline: str, signature: bytes, now_us: int) -> int:
    """Runs that rest with one ledger become due."""
    return con.execute(
        f"UPDATE run SET due_us = ?1 WHERE {LISTED} AND status = 'ready' AND pipeline = ?2 AND signature = ?3 "
        f"AND ifnull(due_us > ?1, 1) AND NOT ({WAITING})",
        (now_us, pipeline, signature),
    ).rowcount


# --- lists


def ledgers(con: sqlite3.Connection) -> list[LedgerCount]:
    """One pass over the live runs, whatever they have behind them and however many have ended."""
    found: list[Counted] = []
    for pipeline, status in listed(con):
        if status in TERMINAL or status == "corrupt":
            continue
        rest = f"FROM run WHERE {LISTED} AND pipeline = ? AND status = ?"
        groups = con.execute(  # `n` is that of the row with the least time
            f"SELECT signature, count(*), min(submitted_us), n {rest} GROUP BY signature", (pipeline, status)
        ).fetchall()
        for signature, count, at_us, n in groups:
            ledger = one(con, "SELECT CAST(ledger AS BLOB) FROM ledger WHERE signature = ?", (signature,))
            if ledger is not None:
                run_id = one(con, "SELECT id FROM run WHERE n = ?", (n,)) or ("",)
                found.append((pipeline, signature, ledger[0], count, run_id[0], at_us, n))
                continue
            alone = con.execute(f"SELECT id, submitted_us, n {rest} AND signature = ?", (pipeline, status, signature))
            found += [(pipeline, b"", b"", 1, *row) for row in alone]
    owned = con.execute(
        "SELECT pipeline, ifnull(l.signature, x''), CAST(ifnull(ledger, '') AS BLOB), 1, id, submitted_us, n "
        f"FROM run r LEFT JOIN ledger l ON l.signature = r.signature WHERE worker IS NOT NULL AND {LIVE_STATUS}"
    )
    return merged([*found, *owned])


def resting_ledgers(con: sqlite3.Connection, pipeline: str) -> dict[bytes, bytes]:
    """As `ledgers`, of one pipeline, without those that are not known."""
    return {found.signature: found.ledger for found in ledgers(con) if found.pipeline == pipeline and found.signature}


def unused_ledgers(con: sqlite3.Connection) -> list[tuple[bytes]]:
    """Signatures that no run has any more. Looks at every run, so it is for the reader."""
    return con.execute("SELECT signature FROM ledger WHERE signature NOT IN (SELECT signature FROM run)").fetchall()


def forget_ledgers(con: sqlite3.Connection, signatures: Sequence[tuple[bytes]]) -> None:
    """Remove these. A run that came to one of them meanwhile is folded from its facts by who wants to know."""
    con.executemany("DELETE FROM ledger WHERE signature = ?", signatures)


# --- registry


def deployments(con: sqlite3.Connection, pipeline: str | None) -> list[Deployment]:
    """The registry, oldest first."""
    found = con.execute(
        "SELECT pipeline, generation, digest, steps, at_us, actor FROM deployment "
        "WHERE ?1 IS NULL OR pipeline = ?1 ORDER BY rowid",
        (pipeline,),
    )
    return [Deployment(*row) for row in found]


def deploy(con: sqlite3.Connection, new: Deployment) -> bool:
    """Insert unless that generation exists."""
    values = (new.pipeline, new.generation, new.digest, new.steps, new.at_us, new.actor)
    return con.execute("INSERT INTO deployment VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", values).rowcount == 1


# --- space and size


def shrink(con: sqlite3.Connection, pages: int) -> bool:
    """Move at most so many free pages out of the file; is it worth while to go on? Outside any transaction."""
    before = number(con, "PRAGMA freelist_count")
    con.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
    return 0 < number(con, "PRAGMA freelist_count") < before


def empty_log(con: sqlite3.Connection) -> None:
    """Bring the log into the file and cut it to nothing, as far as readers allow. Outside any transaction."""
    con.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def size(path: Path) -> int:
    """Bytes of the file and its log."""
    total = 0
    for name in (path, Path(f"{path}-wal")):
        try:
            total += os.stat(name).st_size
        except FileNotFoundError:
            continue
    return total


# --- for doctor


def info(con: sqlite3.Connection, path: Path) -> dict[str, str | int]:
    """What `doctor` shows."""
    settings = {
        name: str((one(con, f"PRAGMA {name}") or ("?",))[0]) for name in ("journal_mode", "page_size", "auto_vacuum")
    }
    return {
        "kind": "sqlite",
        "location": str(path),
        "sqlite": sqlite3.sqlite_version,
        "schema_version": SCHEMA_VERSION,
        "size_bytes": size(path),
        "free_bytes": number(con, "PRAGMA freelist_count") * number(con, "PRAGMA page_size"),
        "runs": number(con, "SELECT count(*) FROM run"),
        "journal_rows": number(con, "SELECT count(*) FROM journal"),
        "stray_runs": number(con, "SELECT count(*) FROM stray"),
        **settings,
        "synchronous": "FULL",
    }
