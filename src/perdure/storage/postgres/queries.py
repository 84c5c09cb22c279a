"""Reads, each one statement and so one moment, and the sweeps that write outside the groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from perdure.ports.store import (
    LedgerCount,
    LoadedRun,
    Snapshot,
)
from perdure.storage.ledgers import merged
from perdure.storage.listing import LIVE, LIVE_STATUS
from perdure.storage.postgres.listing import WAITING
from perdure.storage.postgres.packed import Int8s, Texts
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.rows import (
    JOURNAL_COLUMNS,
    RUN_COLUMNS,
    RUN_WIDTH,
    read_journal,
    read_run,
)
from perdure.storage.postgres.schema import SCHEMA_VERSION
from perdure.storage.postgres.session import Row, Session, Statements
from perdure.storage.postgres.workers import GONE

# --- one run


def loading(source: str, *, snapshot: str, journal: str = "true", more: str = "") -> str:
    """A query of runs with their journals, without its condition and order.

    Args:
        source: where their index rows are, as `r`.
        snapshot: whether a snapshot may stand for the rows up to it, as SQL.
        journal: whether rows of the journal are read at all.
        more: columns before those of the runs.
    """
    return f"""
    SELECT {more and f"{more}, "}{RUN_COLUMNS}, s.row_seq, s.row_hash, s.version, s.reducer, s.data, {JOURNAL_COLUMNS}
    FROM {source}
    LEFT JOIN LATERAL (
        SELECT s.* FROM @snapshot s JOIN @journal f ON f.run = s.run AND f.first_seq = s.row_seq AND f.hash = s.row_hash
        WHERE s.run = r.n
    ) s ON {snapshot}
    LEFT JOIN LATERAL (
        SELECT * FROM @journal j WHERE j.run = r.n AND j.first_seq > coalesce(s.row_seq, 0) AND {journal}
    ) j ON true
    """


_LOAD = f"{loading('@run r', snapshot='%(snapshot)s')} WHERE r.id = {{}} ORDER BY r.n, j.first_seq"
LOAD = _LOAD.format("%(id)s")
LOAD_MANY = _LOAD.format("ANY (%(ids)s)")


async def load(session: Statements, run_id: str, *, snapshot: bool = True) -> LoadedRun | None:
    """Index row, the snapshot if it fits the journal, and the rows after it."""
    found = await session.rows(LOAD, {"id": run_id, "snapshot": snapshot})
    return loaded_run(found) if found else None


async def load_many(session: Session, run_ids: Sequence[str]) -> list[LoadedRun]:
    """As `load`, of each that is there, in the order in which they are asked for."""
    found = await session.rows(LOAD_MANY, {"ids": Texts(run_ids), "snapshot": True})
    runs: dict[str, list[Row]] = {}
    for row in found:
        runs.setdefault(row[1], []).append(row)
    return [loaded_run(runs[run_id]) for run_id in run_ids if run_id in runs]


def loaded_run(found: Sequence[Row], at: int = 0) -> LoadedRun:
    """A run from its rows of `loading`.

    Args:
        at: which column is the first of the run's.
    """
    first, after = found[0], at + RUN_WIDTH
    stored = first[after : after + 5]
    rows = [row[after + 5 :] for row in found]
    return LoadedRun(
        read_run(first[at:after]),
        None if stored[0] is None else Snapshot(*stored),
        read_journal(row for row in rows if row[0] is not None),
    )


# --- sweeps


async def attention(session: Session, worker: str) -> list[str]:
    """A worker's runs with facts that it has not answered."""
    sql = "SELECT id FROM @run WHERE worker = %s AND attention ORDER BY n"
    return [row[0] for row in await session.rows(sql, (worker,))]


IN_ORDER = "n = ANY (ARRAY(SELECT n FROM @run WHERE {0} ORDER BY n FOR NO KEY UPDATE)) AND {0}"
"""Rows of a sweep are locked in the order in which groups lock them."""


async def take_over(session: Session, now_us: int) -> int:
    """Runs whose owner is gone become due and unowned."""
    gone = GONE.replace("r.", "@run.")
    return await session.run(
        "UPDATE @run SET status = CASE status WHEN 'running' THEN 'ready' ELSE status END, worker = NULL, due_us = %s, "
        f"attention = false WHERE {IN_ORDER.format(gone)}",
        (now_us,),
    )


async def has_invalid(session: Session, pipelines: Collection[str]) -> bool:
    """Whether there are invalid runs of any of these; nearly always there are none."""
    sql = "SELECT 1 FROM @run WHERE status = 'invalid' AND pipeline = ANY (%s) LIMIT 1"
    return await session.one(sql, (Texts(pipelines),)) is not None


async def wake_invalid(session: Session, generations: Mapping[str, int], build: str | None, now_us: int) -> int:
    """Invalid runs judged by another generation or build become due; without a build, by an older generation."""
    judged = (
        "status = 'invalid' AND worker IS NULL AND EXISTS ("
        "SELECT 1 FROM unnest(%(names)s, %(generations)s) g (name, here) WHERE name = pipeline "
        "AND CASE WHEN %(build)s::text IS NULL THEN generation < here "
        "ELSE generation <> here OR build <> %(build)s::text END)"
    )
    return await session.run(
        f"UPDATE @run SET due_us = %(now)s, attention = false WHERE {IN_ORDER.format(judged)}",
        {"names": Texts(generations), "generations": Int8s(generations.values()), "build": build, "now": now_us},
    )


async def wake_resting(session: Session, pipeline: str, signature: bytes, now_us: int) -> int:
    """Runs that rest with one ledger become due."""
    resting = (
        f"{LIVE} AND status = 'ready' AND pipeline = %(pipeline)s AND signature = %(signature)s "
        f"AND coalesce(due_us > %(now)s, true) AND NOT ({WAITING})"
    )
    return await session.run(
        f"UPDATE @run SET due_us = %(now)s WHERE {IN_ORDER.format(resting)}",
        {"pipeline": pipeline, "signature": signature, "now": now_us},
    )


# --- lists


_LEDGERS = f"""
    WITH g AS (
        SELECT pipeline, signature, count(*) AS count FROM @run WHERE {LIVE} GROUP BY pipeline, signature)
    SELECT g.pipeline, g.signature, l.ledger, g.count, e.* FROM g JOIN @ledger l ON l.signature = g.signature
    CROSS JOIN LATERAL (
        SELECT id, submitted_us, n FROM @run r WHERE {LIVE} AND r.pipeline = g.pipeline AND r.signature = g.signature
        ORDER BY submitted_us, n LIMIT 1) e
    UNION ALL SELECT g.pipeline, ''::bytea, ''::bytea, 1, e.* FROM g CROSS JOIN LATERAL (
        SELECT id, submitted_us, n FROM @run r WHERE {LIVE} AND r.pipeline = g.pipeline AND r.signature = g.signature
        OFFSET 0) e
    WHERE NOT EXISTS (SELECT 1 FROM @ledger l WHERE l.signature = g.signature)
    UNION ALL SELECT pipeline, coalesce(l.signature, ''), coalesce(l.ledger, ''), 1, id, submitted_us, n
    FROM @run r LEFT JOIN @ledger l ON l.signature = r.signature WHERE worker IS NOT NULL AND {LIVE_STATUS}
"""


async def ledgers(session: Session) -> list[LedgerCount]:
    """One pass over an index of live runs, whatever they have behind them and however many have ended."""
    return merged([(*row,) for row in await session.rows(_LEDGERS)])


_RESTING = f"""
    WITH RECURSIVE s (signature) AS (
        (SELECT signature FROM @run WHERE {LIVE} AND pipeline = %(pipeline)s ORDER BY signature LIMIT 1)
        UNION ALL SELECT n.signature FROM s CROSS JOIN LATERAL (
            SELECT signature FROM @run WHERE {LIVE} AND pipeline = %(pipeline)s AND signature > s.signature
            ORDER BY signature LIMIT 1) n
    )
    SELECT l.signature, l.ledger FROM s JOIN @ledger l ON l.signature = s.signature
"""


async def resting_ledgers(session: Session, pipeline: str) -> dict[bytes, bytes]:
    """See the port: one step into the index for each."""
    return dict(await session.rows(_RESTING, {"pipeline": pipeline}))


async def forget_ledgers(session: Session) -> int:
    """Remove those that no run has. A run that came to one of them meanwhile is folded by who wants to know."""
    return await session.run(
        "DELETE FROM @ledger l WHERE NOT EXISTS (SELECT 1 FROM @run r WHERE r.signature = l.signature)"
    )


# --- for doctor

_SIZE = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
    "JOIN pg_namespace s ON s.oid = c.relnamespace WHERE s.nspname = %s AND relkind = 'r'"
)


async def is_pooled(session: Session) -> bool:
    """Whether the other end is not the server itself: a pooler makes up its own number of the process."""
    return session.con.pgconn.backend_pid != await session.number("SELECT pg_backend_pid()")


async def info(session: Session, place: Place) -> dict[str, str | int]:
    """What `doctor` shows."""
    found = await session.one("SELECT current_setting('server_version'), current_setting('synchronous_commit')")
    return {
        "kind": "postgres",
        "location": place.shown,
        "postgresql": str(found[0]) if found is not None else "?",
        "schema_version": SCHEMA_VERSION,
        "size_bytes": await session.number(_SIZE, (place.schema,)),
        "runs": await session.number("SELECT count(*) FROM @run"),
        "journal_rows": await session.number("SELECT count(*) FROM @journal"),
        "stray_runs": await session.number("SELECT count(*) FROM @stray"),
        "synchronous_commit": str(found[1]) if found is not None else "?",
        "pooler": "transaction" if place.pooler else "unnamed" if await is_pooled(session) else "none",
        "workers": await session.number("SELECT count(*) FROM @worker WHERE NOT dead"),
    }
