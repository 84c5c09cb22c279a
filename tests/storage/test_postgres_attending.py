"""Runs that rest or end are told to whoever waits for them, and to nobody if nobody does [R-2]."""

from __future__ import annotations

import asyncio
import secrets

import psycopg

from perdure import Succeeded
from perdure.storage.postgres.attending import ANYBODY
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.telling import read
from perdure.testing.conformance.lab import ENDED, T0, claimed, put
from tests.postgres import PostgresServer
from tests.runtime.lab import app, line
from tests.storage.helpers import DEADLINE_S, soon
from tests.storage.test_postgres import opened
from tests.storage.test_sqlite_tables import only


async def _heard(url: str, con: psycopg.AsyncConnection[tuple[object, ...]]) -> list[str]:
    """What was told by now."""
    mark = f"mark {secrets.token_hex(4)}"
    await con.execute("SELECT pg_notify(%s, %s)", (Place.of(url).channel, mark))
    heard: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        async for notification in con.notifies():
            if notification.payload == mark:
                break
            heard.append(notification.payload)
    return heard


async def _row(postgres: PostgresServer, schema: str) -> None:
    """Wait until somebody's row is there."""
    async with asyncio.timeout(DEADLINE_S):
        count = f"SELECT count(*) FROM {schema}.attendant WHERE until > now()"
        while (await asyncio.to_thread(postgres.sql, count)).strip() != "1":
            pass


async def test_an_end_is_told_while_somebody_waits(postgres: PostgresServer) -> None:
    url = postgres.url()
    async with opened(url, "w1") as engine, opened(url) as client:
        first, second, third = [await claimed(engine, f"run-{n}") for n in range(3)]
        async with await psycopg.AsyncConnection[tuple[object, ...]].connect(
            Place.of(url).conninfo, autocommit=True
        ) as con:
            await con.execute(f'LISTEN "{Place.of(url).channel}"'.encode())
            await put(engine, first, first.next(token=1, index=ENDED, at_us=T0 + 50))
            assert await _heard(url, con) == []
            async with client.attending(), client.attending():
                await put(engine, second, second.next(token=1, index=ENDED, at_us=T0 + 50))
                (told,) = await _heard(url, con)
                change = read(told, "me")
                assert change is not None
                assert change.runs == ("run-1",)
                postgres.sql(f"UPDATE {Place.of(url).schema}.attendant SET until = now()")
                await put(engine, third, third.next(token=1, index=ENDED, at_us=T0 + 50))
                assert await _heard(url, con) == [], "whose process is gone"


async def test_who_waits_is_known_again_after_the_server_forgot(postgres: PostgresServer) -> None:
    """A crash empties the table, as it is one of those that nothing is written about in the log."""
    schema = f"s{secrets.token_hex(4)}"
    url = postgres.url(schema=schema)
    pipeline = line(only)
    async with app(pipeline).client(store=url) as client:
        run = await client.submit(pipeline, "x", delay=60)
        waiting = asyncio.create_task(run.result())
        await _row(postgres, schema)
        postgres.sql(f"TRUNCATE {schema}.attendant")
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        await _row(postgres, schema)
        waiting.cancel()


async def test_who_may_not_write_looks_instead(postgres: PostgresServer) -> None:
    """It learns of the end somewhat later."""
    schema, role = (f"{name}{secrets.token_hex(4)}" for name in "sr")
    url = postgres.url(schema=schema)
    pipeline = line(only)
    async with app(pipeline).engine(store=url) as engine:
        run = await engine.submit(pipeline, "x", delay=0.5)
        postgres.sql(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
        postgres.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
        async with app(pipeline).client(store=postgres.url(schema=schema, user=role)) as client:
            assert isinstance(await soon(client.result(run.id)), Succeeded)
        assert postgres.sql(f"SELECT {ANYBODY.replace('@', schema + '.')}").strip() == "f"
