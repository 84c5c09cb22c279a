"""What `doctor` asks of a server and of the role that a URL names, before anything is read from the tables."""

from __future__ import annotations

import asyncio
import os

import msgspec
import psycopg

from perdure.errors import StoreUnavailable
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.queries import is_pooled
from perdure.storage.postgres.session import Session, explained

HEARS_S = 2.0
"""How long a notification to oneself may take."""

_SERVER = """
    SELECT current_user::text, current_setting('server_version_num')::int, current_setting('autovacuum')::bool
        AND current_setting('track_counts')::bool, current_setting('fsync')::bool,
        current_setting('full_page_writes')::bool, current_setting('jit')::bool
"""
_SCHEMA = """
    SELECT has_database_privilege(current_database(), 'CREATE'), current_database()::text, s.oid,
        has_schema_privilege(s.oid, 'USAGE')
    FROM (SELECT 1) o LEFT JOIN pg_namespace s ON s.nspname = %s
"""
_MISSING = """
    SELECT p || ' on ' || string_agg(c.relname, ', ' ORDER BY c.relname)
    FROM pg_class c CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY u (p, i)
    WHERE c.relnamespace = %s AND c.relkind IN ('r', 'p') AND NOT has_table_privilege(c.oid, p)
    GROUP BY p, i ORDER BY i
"""
_CALLS = """
    SELECT count(*) FROM pg_proc WHERE pronamespace = %s AND NOT has_function_privilege(oid, 'EXECUTE')
"""
_UNVACUUMED = """
    SELECT relname::text FROM pg_class WHERE relnamespace = %s AND relkind = 'r'
    AND array_to_string(reloptions, ',') ~ 'autovacuum_enabled=(false|off|0|no)' ORDER BY 1
"""


class Survey(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        role: who we are there.
        schema: the store's.
        database: it is in.
        version: the server's, without its minor number.
        there: the schema is there.
        may_create: a schema, in the database.
        missing: rights that the role lacks in the schema, in words of SQL.
        autovacuum: tables are vacuumed by the server.
        unvacuumed: tables for which that was turned off.
        durable: what is committed survives a crash of the machine: `fsync` and `full_page_writes` are on.
        jit: queries are compiled on connections like ours.
        pooled: something stands between.
        hears: notifications arrive; None where nobody listens for any, since the URL names a pooler.
    """

    role: str
    schema: str
    database: str
    version: int
    there: bool
    may_create: bool
    missing: tuple[str, ...]
    autovacuum: bool
    unvacuumed: tuple[str, ...]
    durable: bool
    jit: bool
    pooled: bool
    hears: bool | None


async def survey(place: Place) -> Survey:
    """Look at a server and a role; nothing is written.

    Raises:
        StoreUnavailable: it cannot be reached.
        StoreUnusable: it is none that a store can be on, whatever the rights.
    """
    session = await Session.connect(place)
    try:
        return await _survey(session, place)
    except psycopg.Error as error:
        raise StoreUnavailable(explained(error, place)) from error
    finally:
        session.drop()


async def _survey(session: Session, place: Place) -> Survey:
    role, version, autovacuum, fsync, whole_pages, jit = (await session.rows(_SERVER))[0]
    may_create, database, schema, usage = (await session.rows(_SCHEMA, (place.schema,)))[0]
    missing: list[str] = [] if schema is None or usage else [f"USAGE on schema {place.schema}"]
    unvacuumed: list[str] = []
    if schema is not None:
        missing += [row[0] for row in await session.rows(_MISSING, (schema,))]
        calls = await session.number(_CALLS, (schema,))
        missing += [f"EXECUTE on {calls} functions"] * bool(calls)
        unvacuumed = [row[0] for row in await session.rows(_UNVACUUMED, (schema,))]
    return Survey(
        role,
        place.schema,
        database,
        version // 10_000,
        schema is not None,
        may_create,
        tuple(missing),
        autovacuum,
        tuple(unvacuumed),
        fsync and whole_pages,
        jit,
        place.pooler or await is_pooled(session),
        None if place.pooler else await _hears(session, place),
    )


async def _hears(session: Session, place: Place) -> bool:
    """Whether a notification arrives that another connection sends, as workers send theirs."""
    probe = f"probe {os.urandom(8).hex()}"  # which listeners of engines pass over
    await session.run(f'LISTEN "{place.channel}"')
    other = await Session.connect(place)
    try:
        await other.run("SELECT pg_notify(%s, %s)", (place.channel, probe))
        async with asyncio.timeout(HEARS_S):
            async for notification in session.con.notifies():
                if notification.payload == probe:
                    return True
    except TimeoutError:
        return False
    finally:
        other.drop()
    return False
