"""A store in PostgreSQL that is emptied between tests, and removed after the last one."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from perdure.storage.postgres.place import Place
from perdure.storage.postgres.session import Session
from perdure.storage.postgres.spare import Spare
from perdure.storage.postgres.store import PostgresStore


class ThrowAway:
    """See `throwaway`."""

    def __init__(self, place: Place, session: Session, tables: list[str]) -> None:
        self._place = place
        self._session = session
        self._delete = ";".join([f'DELETE FROM @"{table}"' for table in tables])

    def store(self) -> PostgresStore:
        """The store, not yet opened; connections stay open for the next one."""
        return PostgresStore(self._place)

    async def empty(self) -> None:
        """Remove everything in it, in one transaction. Nobody may have it open."""
        await self._session.plain(self._delete)


@asynccontextmanager
async def throwaway(url: str) -> AsyncGenerator[ThrowAway]:
    """Make a store in a new schema of the database that `url` names, and remove it afterwards.

    Raises:
        StoreUnavailable: the server does not answer.
        StoreUnusable: it refuses us, or we may not create a schema.
    """
    given = Place.of(url)
    schema = f"{given.schema[:40]}_{os.urandom(8).hex()}"
    place = replace(given, schema=schema, shown=given.shown.replace(given.schema, schema), spare=Spare())
    session = await Session.connect(replace(place, spare=None))
    try:
        store = PostgresStore(place)
        await store.open(owner=None)
        await store.close()
        yield ThrowAway(place, session, await _tables(session, schema))
    finally:
        if place.spare is not None:
            place.spare.close()
        if not session.lost:
            await session.plain(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
            session.drop()


async def _tables(session: Session, schema: str) -> list[str]:
    """What a new store has nothing in; `run` first, because its triggers write to others."""
    found = await session.rows(
        "SELECT relname::text FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p') "
        "ORDER BY relname <> 'run', relname",
        (schema,),
    )
    return [table for (table,) in found if await session.one(f'SELECT 1 FROM @"{table}" LIMIT 1') is None]
