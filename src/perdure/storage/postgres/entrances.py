"""Room under limits that bound their queues: who was submitted under them and has not ended [R-11].

`entered` has a row for each such run and limit, which a trigger removes with the end of the run: it leaves one in
`departed`, so that nobody who ends a run waits for anybody who submits. `entrance` has how many came in, but for those
departed, and how large the limit was then. Whoever comes in has the lock of the place, and takes off the departed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from perdure.ports.limits import NoRoom
from perdure.ports.records import Committed, NewRun
from perdure.storage.postgres.packed import Int8s
from perdure.storage.postgres.session import Statements

TABLES = (
    """
    CREATE TABLE @entrance (
        limit_id text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        size bigint NOT NULL,
        queue bigint NOT NULL,
        entered bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (limit_id, key)
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE @entered (
        run bigint NOT NULL,
        limit_id text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        PRIMARY KEY (run, limit_id, key)
    )
    """,
    "CREATE INDEX entered_place ON @entered (limit_id, key)",
    """
    CREATE TABLE @departed (
        n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        limit_id text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL
    )
    """,
    "CREATE INDEX departed_place ON @departed (limit_id, key)",
)
FUNCTIONS = (
    """
    CREATE FUNCTION @depart() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN
        WITH gone AS (DELETE FROM @entered WHERE run = OLD.n RETURNING limit_id, key)
        INSERT INTO @departed (limit_id, key) SELECT limit_id, key FROM gone;
        RETURN NULL;
    END $body$
    """,
    "CREATE TRIGGER depart_ended AFTER UPDATE OF ended_us ON @run FOR EACH ROW "
    "WHEN (OLD.exclusive AND NEW.ended_us IS NOT NULL) EXECUTE FUNCTION @depart()",
    "CREATE TRIGGER depart_removed AFTER DELETE ON @run FOR EACH ROW WHEN (OLD.exclusive) EXECUTE FUNCTION @depart()",
    # Each run with one limit after the other. Of a run that finds no room, the first limit that has none: it is inside
    # of no other.
    """
    CREATE FUNCTION @come_in(who bigint[], l text[], k text[], sz bigint[], q bigint[])
    RETURNS TABLE (o_run bigint, o_limit text, o_key text) LANGUAGE plpgsql AS $body$
    DECLARE refused bigint := 0; gone bigint;
    BEGIN
        FOR x IN 1 .. coalesce(array_length(who, 1), 0) LOOP
            CONTINUE WHEN who[x] = refused;
            DELETE FROM @departed d WHERE d.limit_id = l[x] AND d.key = k[x];
            GET DIAGNOSTICS gone = ROW_COUNT;
            INSERT INTO @entrance AS e (limit_id, key, size, queue, entered) VALUES (l[x], k[x], sz[x], q[x], 0)
            ON CONFLICT (limit_id, key) DO UPDATE SET size = sz[x], queue = q[x], entered = e.entered - gone
            WHERE gone > 0 OR e.size <> sz[x] OR e.queue <> q[x];
            UPDATE @entrance e SET entered = e.entered + 1
            WHERE e.limit_id = l[x] AND e.key = k[x] AND e.entered < sz[x] + q[x];
            IF NOT FOUND THEN
                WITH out AS (DELETE FROM @entered i WHERE i.run = who[x] RETURNING i.limit_id, i.key)
                UPDATE @entrance e SET entered = e.entered - 1 FROM out WHERE e.limit_id = out.limit_id
                AND e.key = out.key;
                refused := who[x]; o_run := who[x]; o_limit := l[x]; o_key := k[x];
                RETURN NEXT;
                CONTINUE;
            END IF;
            INSERT INTO @entered (run, limit_id, key) VALUES (who[x], l[x], k[x]);
            UPDATE @run SET exclusive = true WHERE n = who[x] AND NOT exclusive;
        END LOOP;
    END $body$
    """,
)
_NUMBERS = "%s::text[]::bigint[]"
_COME_IN = f"SELECT * FROM @come_in({_NUMBERS}, %s::text[], %s::text[], {_NUMBERS}, {_NUMBERS})"
"""With lists of text, which every driver of a caller's sends alike."""

_EMPTY = "SELECT limit_id, key FROM @entrance e WHERE NOT EXISTS (SELECT 1 FROM @entered i WHERE {at})".format(
    at="i.limit_id = e.limit_id AND i.key = e.key"
)


def keys(runs: Iterable[NewRun]) -> set[bytes]:
    """What nobody else may come in by, until the transaction ends."""
    return {_key(entrance.limit, entrance.key) for new in runs for entrance in new.entrances}


def _key(limit: str, key: str) -> bytes:
    return hashlib.sha256("\0".join(("perdure entrance", limit, key)).encode()).digest()[:8]


async def come_in(session: Statements, runs: Sequence[tuple[int, NewRun]]) -> dict[int, NoRoom]:
    """New runs that have just been inserted; those without room, by their numbers: the caller undoes them. It has the
    locks of `keys`."""
    found = list(chain.from_iterable([(locator, one) for one in new.entrances] for locator, new in runs))
    values = (
        [str(locator) for locator, _ in found],
        [one.limit for _, one in found],
        [one.key for _, one in found],
        [str(one.bound) for _, one in found],
        [str(one.queue) for _, one in found],
    )
    return {run: NoRoom(limit, key) for run, limit, key in await session.rows(_COME_IN, values)}


async def let_in(
    session: Statements, inserted: Mapping[str, int], runs: Sequence[NewRun]
) -> dict[str, Committed | NoRoom]:
    """What becomes of those runs that were inserted, by id, with their numbers; whoever has no room is not there after
    all."""
    bounded = [(inserted[new.run_id], new) for new in runs if new.entrances and new.run_id in inserted]
    refused = await come_in(session, bounded) if bounded else {}
    if refused:
        for table, column in (("run", "n"), ("journal", "run"), ("stray", "run")):
            await session.run(f"DELETE FROM @{table} WHERE {column} = ANY (%s)", (Int8s(refused),))
    return {run_id: refused.get(number) or Committed(number) for run_id, number in inserted.items()}


async def leave(session: Statements, locator: int) -> None:
    """A run that ends as it is submitted."""
    await session.run(
        "WITH gone AS (DELETE FROM @entered WHERE run = %s RETURNING limit_id, key) "
        "INSERT INTO @departed (limit_id, key) SELECT limit_id, key FROM gone",
        (locator,),
    )


async def mend(session: Statements) -> None:
    """Part of `Store.grant_permits`: whoever is not there any more, or has ended, takes no room; places where nobody is
    inside are forgotten, unless somebody is just coming in."""
    await session.run(
        "WITH gone AS (DELETE FROM @entered WHERE run IN (SELECT e.run FROM @entered e LEFT JOIN @run r ON r.n = e.run "
        "WHERE r.n IS NULL OR r.ended_us IS NOT NULL) RETURNING limit_id, key) "
        "INSERT INTO @departed (limit_id, key) SELECT limit_id, key FROM gone"
    )
    for limit, key in await session.rows(_EMPTY):
        number = int.from_bytes(_key(limit, key), "big", signed=True)
        if await session.one("SELECT pg_try_advisory_xact_lock(%s)", (number,)) != (True,):
            continue
        place = (limit, key)
        if await session.one("SELECT 1 FROM @entered WHERE limit_id = %s AND key = %s LIMIT 1", place) is None:
            await session.run("DELETE FROM @departed WHERE limit_id = %s AND key = %s", place)
            await session.run("DELETE FROM @entrance WHERE limit_id = %s AND key = %s", place)
