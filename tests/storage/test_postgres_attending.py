"""Runs that rest or end are told to whoever waits for them, and to nobody if nobody does [R-2]."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from perdure import Succeeded
from perdure.ports.changes import ANYTHING, Change
from perdure.ports.store import IndexState
from perdure.storage.postgres.attending import AGAIN_S, ANYBODY, LASTS_S, Attendance
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.readers import Readers
from perdure.storage.postgres.telling import read
from perdure.testing.clock import VirtualSystem
from perdure.testing.conformance.lab import ENDED, T0, claimed, put
from tests.postgres import PostgresServer
from tests.runtime.lab import app, line, virtually
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
        first, second, third, rests = [await claimed(engine, f"run-{n}") for n in range(4)]
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
                later = IndexState("ready", T0 + 3_600_000_000, token=1, generation=1)
                await put(engine, rests, rests.next(token=1, index=later))
                (told,) = await _heard(url, con)
                assert read(told, "me") == Change(runs=("run-3",))
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
        postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
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


class Rows(Readers):
    """A server that keeps one row.

    Attributes:
        until_s: when the row ends, by the loop's clock.
        takes_s: how long it takes to answer.
    """

    def __init__(self, system: VirtualSystem) -> None:
        super().__init__(Place.of("postgresql://nowhere/none"))
        self._system = system
        self.until_s = self.takes_s = 0.0

    @property
    def there(self) -> bool:
        """Whether the row says that somebody waits."""
        return asyncio.get_running_loop().time() < self.until_s

    async def read(self, query: Callable[[Any], Awaitable[Any]]) -> Any:
        await self._system.sleep(self.takes_s)
        there, self.until_s = self.there, asyncio.get_running_loop().time() + LASTS_S
        return (there,)


@pytest.mark.parametrize("pause_s", [1, 9.5, 12, 19, 21, 40])
@virtually
async def test_a_row_lasts_while_somebody_waits(system: VirtualSystem, pause_s: float) -> None:
    """Also of who comes back after nobody had waited when it was to be renewed [R-16]."""
    rows = Rows(system)
    attendance = Attendance("me", rows, lambda change: None)
    async with attendance.attending():
        assert rows.there
    await system.sleep(pause_s)
    async with attendance.attending():
        for _ in range(200):
            assert rows.there
            await system.sleep(0.5)
    await system.sleep(LASTS_S + 20)
    assert not rows.there, "nobody waits any more"
    attendance.stop()


@pytest.mark.parametrize("lost", ["by the server", "while it was slow"])
@virtually
async def test_whoever_waits_looks_after_a_row_was_not_there(system: VirtualSystem, lost: str) -> None:
    """Whatever ended meanwhile was told to nobody [R-16]."""
    rows, told = Rows(system), list[Change]()
    attendance = Attendance("me", rows, told.append)
    async with attendance.attending():
        await system.sleep(35)
        assert len(told) == len(AGAIN_S), "as it came"
        if lost == "by the server":
            rows.until_s = 0.0
        else:
            rows.takes_s = LASTS_S
        await system.sleep(LASTS_S + 20)
        assert told[len(AGAIN_S) :] == [ANYTHING] * len(AGAIN_S)
    attendance.stop()


@pytest.mark.parametrize("late_s", [0.01, 0.2, 1.5, 3, 10])
@virtually
async def test_an_end_that_did_not_see_the_row_is_found_soon_after_its_commit(
    system: VirtualSystem, late_s: float
) -> None:
    """Which may wait for a disk, or for another server, while the row waits for neither [R-16]."""
    looked: list[float] = []
    loop = asyncio.get_running_loop()
    attendance = Attendance("me", Rows(system), lambda change: looked.append(loop.time()))
    async with attendance.attending():
        came_s = loop.time()
        await system.sleep(LASTS_S)
        assert min(at_s - came_s for at_s in looked if at_s - came_s >= late_s) < 0.1 + 5 * late_s
    attendance.stop()


@virtually
async def test_a_store_that_is_closed_cancels_nobody_who_comes(system: VirtualSystem) -> None:
    """They read, and learn it there."""
    rows, entered = Rows(system), list[bool]()
    rows.takes_s = 5.0
    attendance = Attendance("me", rows, lambda change: None)

    async def wait() -> None:
        async with attendance.attending():
            entered.append(True)

    waiting = asyncio.create_task(wait())
    await system.sleep(1)
    attendance.stop()
    await waiting
    assert entered == [True]
