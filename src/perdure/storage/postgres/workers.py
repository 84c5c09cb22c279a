"""Who works on a store: rows that their workers renew, and that others mark dead [R-3].

All of it goes through reading connections, statement by statement: a renewal must not wait behind a group that waits
for a lock, and none of it notifies anybody.
"""

from __future__ import annotations

import msgspec

from perdure.ports.store import WorkerRow
from perdure.storage.postgres.session import Session

DEAD_KEPT = 20
"""So many rows of dead workers are kept, for people to see."""

ALIVE = "(%s = '' OR EXISTS (SELECT 1 FROM @worker WHERE id = %s AND NOT dead))"
"""Nobody has found this engine dead; a client, which has no name, is not asked [R-3]."""
GONE = "r.worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @worker w WHERE w.id = r.worker AND NOT w.dead)"
"""Which rows of `run` have an owner that is dead or not registered."""


async def clock_us(session: Session) -> int:
    """The server's clock."""
    return await session.number("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")


async def register(session: Session, worker: WorkerRow) -> None:
    """Insert a worker's row, and remove what is old."""
    serves = msgspec.json.encode(worker.serves).decode()
    schedules = list(worker.schedules)
    await session.run(
        "WITH old AS (DELETE FROM @worker WHERE id IN "
        "(SELECT id FROM @worker WHERE dead ORDER BY since_us DESC, id OFFSET %s)) "
        "INSERT INTO @worker (id, host, process, since_us, serves, build, schedules, seen_us, lease_us) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE "
        "SET serves = excluded.serves, build = excluded.build, schedules = excluded.schedules",
        (
            DEAD_KEPT,
            worker.id,
            worker.host,
            worker.process,
            worker.since_us,
            serves,
            worker.build,
            schedules,
            worker.seen_us,
            worker.lease_us,
        ),
    )


async def renew(session: Session, worker: str, now_us: int, draining: bool) -> bool:
    """Count a beat, unless the worker is dead."""
    return bool(
        await session.run(
            "UPDATE @worker SET beat = beat + 1, seen_us = %s, draining = %s WHERE id = %s AND NOT dead",
            (now_us, draining, worker),
        )
    )


async def bury(session: Session, worker: str, beat: int) -> bool:
    """Mark a worker dead, if nothing was heard of it meanwhile."""
    return bool(
        await session.run(
            "UPDATE @worker SET dead = true WHERE id = %s AND beat = %s AND NOT dead",
            (worker, beat),
        )
    )


async def retire(session: Session, worker: str) -> None:
    """Remove a worker's row."""
    await session.run("DELETE FROM @worker WHERE id = %s", (worker,))


async def workers(session: Session) -> list[WorkerRow]:
    """All rows, with the runs that are theirs."""
    found = await session.rows(
        "SELECT id, host, process, since_us, serves, build, schedules, beat, seen_us, dead, draining, "
        "(SELECT count(*) FROM @run WHERE worker = w.id), lease_us FROM @worker w ORDER BY since_us, id"
    )
    return [
        WorkerRow(
            id,
            host,
            process,
            since_us,
            msgspec.json.decode(serves, type=dict[str, int]),
            build,
            tuple(schedules),
            *rest,
        )
        for id, host, process, since_us, serves, build, schedules, *rest in found
    ]


async def has_orphans(session: Session) -> bool:
    """Whether any run's owner is gone."""
    return await session.one(f"SELECT 1 FROM @run r WHERE {GONE} LIMIT 1") is not None


async def owned(session: Session, worker: str) -> list[str]:
    """A worker's own runs."""
    return [row[0] for row in await session.rows("SELECT id FROM @run WHERE worker = %s ORDER BY n", (worker,))]


async def generations(session: Session) -> dict[str, int]:
    """The newest generation of every pipeline."""
    found = await session.rows("SELECT pipeline, max(generation) FROM @deployment GROUP BY pipeline")
    return dict(found)
