"""Mutexes: which run has which, for which resource; freed by a trigger with the end of the run [R-10]."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from perdure.ports.limits import NoRoom
from perdure.ports.records import MutexTaken, NewRun
from perdure.storage.postgres import entrances
from perdure.storage.postgres.session import Statements

TABLES = (
    """
    CREATE TABLE @mutex (
        tenant text COLLATE "C" NOT NULL,
        resource text COLLATE "C" NOT NULL,
        name text COLLATE "C" NOT NULL,
        run bigint NOT NULL,
        PRIMARY KEY (tenant, resource, name)
    )
    """,
    "CREATE INDEX mutex_run ON @mutex (run)",
)
FUNCTIONS = (
    """
    CREATE FUNCTION @mutex_freed() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN
        DELETE FROM @mutex WHERE run = OLD.n;
        RETURN NULL;
    END $body$
    """,
    "CREATE TRIGGER mutex_freed AFTER UPDATE OF ended_us ON @run FOR EACH ROW "
    "WHEN (OLD.exclusive AND NEW.ended_us IS NOT NULL) EXECUTE FUNCTION @mutex_freed()",
    "CREATE TRIGGER mutex_removed AFTER DELETE ON @run FOR EACH ROW "
    "WHEN (OLD.exclusive) EXECUTE FUNCTION @mutex_freed()",
)
_TAKE = """
    INSERT INTO @mutex (tenant, resource, name, run) SELECT %s, %s, name, %s FROM unnest(%s::text[]) s (name)
    ON CONFLICT DO NOTHING
"""
_HOLDER = """
    SELECT m.name, r.id, r.pipeline FROM @mutex m JOIN @run r ON r.n = m.run
    WHERE m.tenant = %s AND m.resource = %s AND m.name = ANY (%s::text[]) AND m.run <> %s ORDER BY m.name LIMIT 1
"""


class MutexMoved(Exception):
    """A mutex was given back between the insert that met its holder and the look at it."""


async def lock(session: Statements, runs: Iterable[NewRun | None]) -> None:
    """Keep others from taking the same, or coming in where these do, until the transaction ends: in one order, so that
    no two wait for each other, whatever their groups have in common."""
    found = [new for new in runs if new is not None]
    keys = entrances.keys(found) | {
        hashlib.sha256("\0".join(("perdure mutex", new.tenant, new.resource, name)).encode()).digest()[:8]
        for new in found
        for name in new.mutexes
    }
    if keys:
        numbers = sorted(int.from_bytes(key, "big", signed=True) for key in keys)
        await session.run("SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) s (key)", (numbers,))


async def take(session: Statements, locator: int, new: NewRun, *, ended: bool) -> MutexTaken | NoRoom | None:
    """Those that a new run needs, and room; the first that another has, or without any: then the caller undoes it all.

    Args:
        ended: it keeps none, but must have been able to take them.

    Raises:
        MutexMoved: ask again, after undoing it all.
    """
    excluded = await _take_mutexes(session, locator, new, ended=ended) if new.mutexes else None
    if excluded is not None or not new.entrances:
        return excluded
    refused = await entrances.come_in(session, [(locator, new)])
    if ended:
        await entrances.leave(session, locator)
    return refused.get(locator)


async def _take_mutexes(session: Statements, locator: int, new: NewRun, *, ended: bool) -> MutexTaken | None:
    names = list(new.mutexes)
    if await session.run(_TAKE, (new.tenant, new.resource, locator, names)) != len(new.mutexes):
        holder = await session.one(_HOLDER, (new.tenant, new.resource, names, locator))
        if holder is None:
            raise MutexMoved
        return MutexTaken(*holder)
    if ended:
        await session.run("DELETE FROM @mutex WHERE run = %s", (locator,))
    else:
        await session.run("UPDATE @run SET exclusive = true WHERE n = %s", (locator,))
    return None


async def restore(session: Statements, locator: int, new: NewRun, ended_us: int | None) -> None:
    """Those of a row that was put back; what another has by now stays with that."""
    await session.run("DELETE FROM @mutex WHERE run = %s", (locator,))
    if ended_us is None and new.mutexes:
        await lock(session, (new,))
        await session.run(_TAKE, (new.tenant, new.resource, locator, list(new.mutexes)))
        await session.run("UPDATE @run SET exclusive = true WHERE n = %s", (locator,))
