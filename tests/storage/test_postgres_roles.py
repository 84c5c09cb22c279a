"""Who may do what in PostgreSQL: an owner who makes the tables, a worker who may only use them; and many at once."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import psycopg
import pytest

from perdure import Canceled, Succeeded, connect, step
from perdure.errors import StoreUnusable
from perdure.storage import open_store
from perdure.testing.conformance.lab import submitted
from tests.postgres import PostgresServer
from tests.runtime.lab import Inv, app, line
from tests.storage.helpers import ROOT, soon, start
from tests.storage.helpers import line as said

PAGE = ROOT / "docs" / "reference" / "configuration.md"


def grants() -> list[str]:
    """The two blocks of the page: what an administrator writes, and what the owner writes then."""
    section = PAGE.read_text(encoding="utf-8").partition("### Two roles")[2]
    return re.findall(r"```text\n(.*?)```", section, re.DOTALL)[:2]


@step("one/v1")
async def one(inv: Inv) -> None:
    await inv.memo("a", lambda: 1, type=int)


async def test_the_grants_of_the_page_are_enough_and_not_too_much(postgres: PostgresServer) -> None:
    """Exactly what the page says: the owner makes the tables, the worker does all the rest, and can change no table."""
    by_admin, by_owner = grants()
    postgres.sql(by_admin.replace("DATABASE payouts", "DATABASE postgres"))
    store = open_store(postgres.url(schema="perdure", user="perdure_owner"))
    await soon(store.open(owner=None))
    await store.close()
    postgres.sql(f"SET ROLE perdure_owner; {by_owner}")
    url = postgres.url(schema="perdure", user="perdure_worker")
    pipeline = line(one)
    async with app(pipeline).engine(store=url) as engine:
        runs = [await engine.submit(pipeline, str(n)) for n in range(10)]
        parked = await engine.submit(pipeline, "parked", delay=3600)
        for run in runs:
            assert isinstance(await run.result(timeout=60), Succeeded)
        await parked.cancel()
        assert isinstance(await parked.result(timeout=60), Canceled)
        await engine.hold_pipeline(pipeline.id, actor="ada")
        await engine.release_pipeline(pipeline.id, actor="ada")
    async with connect(url) as client:
        assert (await client.verify()).findings == ()
        await client.gc(older_than=timedelta(0))
    postgres.sql("SET ROLE perdure_owner; CREATE TABLE perdure.of_a_later_release (id int)")
    with psycopg.connect(url.partition("&schema")[0]) as con:
        con.execute("SELECT * FROM perdure.of_a_later_release")
    for forbidden in (
        "DROP TABLE perdure.journal",
        "TRUNCATE perdure.journal",
        "ALTER TABLE perdure.run ADD COLUMN x int",
        "CREATE TABLE perdure.mine (id int)",
        "CREATE SCHEMA mine",
    ):
        with (
            psycopg.connect(url.partition("&schema")[0]) as con,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            con.execute(forbidden.encode())


async def test_who_may_not_look_is_told_what_is_needed(postgres: PostgresServer) -> None:
    """A store that is there, and a role without any right: no try later would help [R-8]."""
    store = open_store(postgres.url(schema="closed"))
    await soon(store.open(owner=None))
    await store.close()
    postgres.sql("CREATE ROLE nobody_here LOGIN")
    store = open_store(postgres.url(schema="closed", user="nobody_here"))
    with pytest.raises(StoreUnusable, match="permission denied for schema closed; this user needs USAGE"):
        await soon(store.open(owner=None))


async def test_ten_boot_at_once_on_an_empty_database(postgres: PostgresServer) -> None:
    """Engines and clients: one makes the tables, all work."""
    url = postgres.url()
    pipeline = line(one)

    async def boots(number: int) -> None:
        if number % 2:
            async with connect(url) as client:
                assert (await client.verify()).findings == ()
            return
        async with app(pipeline).engine(store=url) as engine:
            run = await engine.submit(pipeline, str(number))
            assert isinstance(await run.result(timeout=60), Succeeded)

    await asyncio.gather(*[boots(number) for number in range(10)])


async def test_a_migrator_that_is_killed_blocks_nobody(postgres: PostgresServer) -> None:
    """Killed with half of the tables made: the next one makes all of them."""
    url = postgres.url(schema="halfway")
    process = await asyncio.to_thread(start, "migrate_halfway", url)
    assert await asyncio.to_thread(said, process) == "halfway"
    store = open_store(url)
    opening = asyncio.create_task(store.open(owner=None))
    process.kill()
    await asyncio.to_thread(process.communicate)
    await soon(opening)
    await submitted(store, "run-1")
    await store.close()
