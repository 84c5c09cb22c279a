"""The tables of a SQLite store, and opening a file so that only one of ours is ever used.

A run is an integer inside the file; its id stands once, in `run`. Numbers are never given twice (AUTOINCREMENT), so a
number that an old append still carries can only mean the run it was given to [J-2]. Columns that would repeat another
are NULL: a waiting run costs about as much as its facts.
"""

from __future__ import annotations

import sqlite3

from perdure.errors import StoreUnusable
from perdure.storage import listing
from perdure.storage.sqlite import awaits, entrances, limits, mutexes
from perdure.storage.sqlite.busy import patiently
from perdure.storage.sqlite.listing import IN_INDEX, NAMED
from perdure.storage.sqlite.slots import WAITING, grant

APPLICATION_ID = 0x70726472  # "prdr"
SCHEMA_VERSION = 1
OLDEST_SQLITE = (3, 37, 0)  # STRICT tables

_ANNOTATE = """
    INSERT INTO annotation (key, value, submitted_us, run)
    SELECT key, value, new.submitted_us, new.n FROM json_each(ifnull(new.annotations, '{}'))
"""

SCHEMA = (
    # One row per append [J-1]. Appended in file order: a group touches few pages however many runs it is about.
    """
    CREATE TABLE journal (
        run INTEGER NOT NULL,
        first_seq INTEGER NOT NULL,
        count INTEGER NOT NULL,
        at_us INTEGER NOT NULL,
        append_id BLOB NOT NULL,
        hash BLOB NOT NULL,
        facts TEXT NOT NULL
    ) STRICT
    """,
    "CREATE UNIQUE INDEX journal_key ON journal (run, first_seq)",
    # Index rows. resource NULL: the slot key or else the run's id.
    # input_digest NULL: the first fact tells it. worker NULL: nobody. waits NULL: it never waits for its slot.
    # awaiting NULL: it waits for no other run. annotations NULL: it has none. limited: it has a place under a limit,
    # or waits for one. exclusive: it has mutexes, or room under a limit, or had.
    f"""
    CREATE TABLE run (
        n INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        pipeline TEXT NOT NULL,
        resource TEXT,
        slot_key TEXT,
        slot_once INTEGER NOT NULL,
        slot_held INTEGER NOT NULL,
        input_digest BLOB,
        submitted_us INTEGER NOT NULL,
        deadline_us INTEGER NOT NULL,
        status TEXT NOT NULL,
        due_us INTEGER,
        worker TEXT,
        token INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        build TEXT NOT NULL,
        reason TEXT NOT NULL,
        canceling INTEGER NOT NULL,
        step TEXT NOT NULL,
        version INTEGER NOT NULL,
        tail_hash BLOB NOT NULL,
        attention INTEGER NOT NULL DEFAULT 0,
        ended_us INTEGER,
        signature BLOB NOT NULL,
        priority INTEGER NOT NULL DEFAULT 0,
        waits TEXT,
        limited INTEGER NOT NULL DEFAULT 0,
        exclusive INTEGER NOT NULL DEFAULT 0,
        awaiting INTEGER,
        annotations TEXT,
        waits_for TEXT GENERATED ALWAYS AS ({listing.waits_for(WAITING)}) VIRTUAL
    ) STRICT
    """,
    "CREATE UNIQUE INDEX run_slot ON run (slot_key, pipeline, tenant) WHERE slot_held = 1",
    # By priority: within one, whoever is due is a range of its own, before those that are due later.
    "CREATE INDEX run_due_begun ON run (priority, due_us) WHERE due_us IS NOT NULL AND token > 0",
    "CREATE INDEX run_due_new ON run (priority, due_us) WHERE due_us IS NOT NULL AND token = 0",
    "CREATE INDEX run_owned ON run (attention) WHERE worker IS NOT NULL",
    "CREATE INDEX run_invalid ON run (pipeline) WHERE status = 'invalid'",
    # For lists, see `storage.listing`; the number of a run is the last column of each. Claims write to none of them.
    f"CREATE INDEX run_listed ON run (pipeline, status, submitted_us) WHERE {listing.LISTED}",
    f"CREATE INDEX run_tenant ON run (tenant, pipeline, status, submitted_us) "
    f"WHERE tenant <> 'default' AND {listing.LISTED}",
    f"CREATE INDEX run_resource ON run ({NAMED}, submitted_us) WHERE {IN_INDEX}",
    f"CREATE INDEX run_stands ON run (waits_for, step, submitted_us) WHERE {listing.STANDS}",
    "CREATE INDEX run_ended ON run (ended_us) WHERE ended_us IS NOT NULL",
    # Who waits for a slot, and passing it on: with the end of the run that had it, whoever writes that.
    f"CREATE INDEX run_waiting ON run (slot_key, pipeline, tenant, n) WHERE {WAITING}",
    f"""
    CREATE TRIGGER slot_freed AFTER UPDATE OF slot_held ON run
    WHEN old.slot_held = 1 AND new.slot_held = 0 AND new.ended_us IS NOT NULL BEGIN
        {grant("old.slot_key", "old.pipeline", "old.tenant", "new.ended_us")};
    END
    """,
    f"""
    CREATE TRIGGER slot_removed AFTER DELETE ON run WHEN old.slot_held = 1 AND old.ended_us IS NOT NULL BEGIN
        {grant("old.slot_key", "old.pipeline", "old.tenant", "old.ended_us")};
    END
    """,
    *awaits.SCHEMA,
    # Places under limits.
    *limits.SCHEMA,
    *mutexes.SCHEMA,
    *entrances.SCHEMA,
    # Annotations, each a row in the order of a list; kept by triggers, so that a run without any costs nothing.
    """
    CREATE TABLE annotation (
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        submitted_us INTEGER NOT NULL,
        run INTEGER NOT NULL,
        PRIMARY KEY (key, value, submitted_us, run)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX annotation_run ON annotation (run)",
    f"CREATE TRIGGER annotated AFTER INSERT ON run WHEN new.annotations IS NOT NULL BEGIN {_ANNOTATE}; END",
    f"""
    CREATE TRIGGER annotated_anew AFTER UPDATE OF annotations, submitted_us ON run
    WHEN old.annotations IS NOT NULL OR new.annotations IS NOT NULL BEGIN
        DELETE FROM annotation WHERE run = old.n;
        {_ANNOTATE};
    END
    """,
    "CREATE TRIGGER annotated_no_more AFTER DELETE ON run WHEN old.annotations IS NOT NULL BEGIN "
    "DELETE FROM annotation WHERE run = old.n; END",
    # What callers said twice: which run a key stands for, beyond the run's life.
    """
    CREATE TABLE submission_key (
        tenant TEXT NOT NULL,
        pipeline TEXT NOT NULL,
        key TEXT NOT NULL,
        run TEXT NOT NULL,
        input_digest BLOB NOT NULL,
        expires_us INTEGER NOT NULL,
        PRIMARY KEY (tenant, pipeline, key)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX submission_key_expires ON submission_key (expires_us)",
    # Runs whose index row was removed while their journal stayed: what retention left half done, or what is to be
    # rebuilt. Kept by a trigger so that looking for them never means looking at all runs.
    "CREATE TABLE stray (run INTEGER PRIMARY KEY, id TEXT NOT NULL, worker TEXT NOT NULL) STRICT",
    "CREATE INDEX stray_id ON stray (id)",
    "CREATE TRIGGER run_lost AFTER DELETE ON run BEGIN "
    "INSERT OR REPLACE INTO stray VALUES (old.n, old.id, coalesce(old.worker, '')); END",
    # What resting runs have behind them, each once, however many runs share it [D-6].
    "CREATE TABLE ledger (signature BLOB PRIMARY KEY, ledger TEXT NOT NULL) STRICT",
    """
    CREATE TABLE snapshot (
        run INTEGER PRIMARY KEY,
        row_seq INTEGER NOT NULL,
        row_hash BLOB NOT NULL,
        version INTEGER NOT NULL,
        reducer INTEGER NOT NULL,
        data BLOB NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE deployment (
        pipeline TEXT NOT NULL,
        generation INTEGER NOT NULL,
        digest TEXT NOT NULL,
        steps BLOB NOT NULL,
        at_us INTEGER NOT NULL,
        actor TEXT NOT NULL,
        UNIQUE (pipeline, generation)
    ) STRICT
    """,
    """
    CREATE TABLE pipeline_hold (
        pipeline TEXT NOT NULL,
        actor TEXT NOT NULL,
        note TEXT NOT NULL,
        at_us INTEGER NOT NULL,
        released_us INTEGER NOT NULL DEFAULT 0,
        released_by TEXT NOT NULL DEFAULT '',
        release_note TEXT NOT NULL DEFAULT ''
    ) STRICT
    """,
    "CREATE UNIQUE INDEX pipeline_held ON pipeline_hold (pipeline) WHERE released_us = 0",
    # How far schedules have got, each a row.
    """
    CREATE TABLE schedule (
        id TEXT PRIMARY KEY,
        pipeline TEXT NOT NULL,
        timetable TEXT NOT NULL,
        considered_us INTEGER NOT NULL,
        tick_us INTEGER NOT NULL,
        run_id TEXT NOT NULL,
        paused_us INTEGER NOT NULL,
        actor TEXT NOT NULL,
        note TEXT NOT NULL,
        removed_us INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    # For people with a SQL prompt.
    """
    CREATE VIEW facts AS
    SELECT r.id AS run, j.first_seq + f.key AS seq, strftime('%Y-%m-%dT%H:%M:%fZ', j.at_us / 1e6, 'unixepoch') AS at,
           json_extract(f.value, '$.fact') AS fact, f.value AS json, j.run AS n
    FROM journal j JOIN json_each(j.facts) f LEFT JOIN run r ON r.n = j.run
    """,
    """
    CREATE VIEW runs AS
    SELECT id, pipeline, tenant, coalesce(resource, slot_key, id) AS resource, status, reason, step,
           strftime('%Y-%m-%dT%H:%M:%fZ', submitted_us / 1e6, 'unixepoch') AS submitted,
           strftime('%Y-%m-%dT%H:%M:%fZ', due_us / 1e6, 'unixepoch') AS due,
           strftime('%Y-%m-%dT%H:%M:%fZ', ended_us / 1e6, 'unixepoch') AS ended,
           worker, token, generation, canceling, priority, n
    FROM run
    """,
)


def prepare(con: sqlite3.Connection, path: str, patience_s: float) -> None:
    """Make a fresh connection ours: refuse what is not, create what is missing, set what does not last.

    Safe for any number of processes at once on an empty or missing file: one creates the schema, the others find it.

    Args:
        patience_s: how long to wait for the lock of another program.

    Raises:
        StoreUnavailable: it stayed locked.
        StoreUnusable: not a database, truncated, of another program, or newer than this release.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreUnusable(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
    if _is_new(patiently(lambda: _signature(con), patience_s), path):
        # In a file that has tables already this would be a write.
        patiently(lambda: con.execute("PRAGMA auto_vacuum = INCREMENTAL"), patience_s)
        patiently(lambda: con.execute("PRAGMA journal_mode = WAL"), patience_s)
        patiently(lambda: _create(con), patience_s)
        _is_new(_signature(con), path)  # whoever created it: ours, and of this release?
    mode = patiently(lambda: con.execute("PRAGMA journal_mode = WAL").fetchone()[0], patience_s)
    if mode != "wal":
        raise StoreUnusable(f"{path} cannot use a write-ahead log (journal mode {mode}) on this file system")
    con.execute("PRAGMA synchronous = FULL")
    con.execute("PRAGMA fullfsync = ON")
    con.execute("PRAGMA checkpoint_fullfsync = ON")


def _is_new(signature: tuple[int, int, int], path: str) -> bool:
    """Is the file empty? Otherwise make sure that it is ours."""
    application, version, objects = signature
    if application == 0 and version == 0 and objects == 0:
        return True
    if application != APPLICATION_ID:
        raise StoreUnusable(f"{path} is a database of another program; nothing was changed in it")
    if version > SCHEMA_VERSION:
        raise StoreUnusable(
            f"{path} has schema version {version}, this release reads up to {SCHEMA_VERSION}; use a newer release"
        )
    return False


def _signature(con: sqlite3.Connection) -> tuple[int, int, int]:
    """Application id, schema version and number of tables, seen at one moment: somebody may be creating them."""
    con.execute("BEGIN")
    try:
        return (
            con.execute("PRAGMA application_id").fetchone()[0],
            con.execute("PRAGMA user_version").fetchone()[0],
            con.execute("SELECT count(*) FROM sqlite_master").fetchone()[0],
        )
    finally:
        if con.in_transaction:
            con.execute("COMMIT")


def _create(con: sqlite3.Connection) -> None:
    con.execute("BEGIN IMMEDIATE")
    try:
        if con.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in SCHEMA:
                con.execute(statement)
            con.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            con.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        con.execute("COMMIT")
    except BaseException:
        if con.in_transaction:
            con.execute("ROLLBACK")
        raise
