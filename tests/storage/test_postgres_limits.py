"""Places under limits in PostgreSQL: who waits for whom; who frees a place sees who stands in line [R-11, R-16].

In conformance everybody comes one after the other; here one is in the middle of it, in a transaction that is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import psycopg
from psycopg import sql

from perdure.core.permits import Permit
from perdure.ports.store import AppendResult, Committed, IndexState, Store
from perdure.storage import open_store
from perdure.storage.postgres import Place
from perdure.testing.conformance.lab import claimed, loaded, put
from perdure.testing.conformance.limits import AT, holder, taking, used, waiting
from tests.postgres import PostgresServer
from tests.storage.helpers import soon

WIDE = Permit("wide", "", "concurrency", 99)
OTHER = Permit("other", "", "concurrency", 99)
ONE = Permit("one", "k", "concurrency", 1)
BEFORE_US = "(extract(epoch FROM clock_timestamp() - waitstart) * 1000000)::bigint"


class Somebody:
    """A process that is in the middle of a transaction."""

    def __init__(self, con: psycopg.AsyncConnection[tuple[object, ...]], schema: str, server: PostgresServer) -> None:
        self.con = con
        self.schema = schema
        self._server = server

    async def has(self, *permits: Permit) -> None:
        """Takes places, or stands in line for some."""
        names = [permit.limit for permit in permits], [permit.key for permit in permits]
        number = Place.of(self._server.url(schema=self.schema)).key("limits")
        lock = sql.SQL("SELECT {}.lock_places(%s, %s, %s, %s)").format(sql.Identifier(self.schema))
        await self.con.execute(lock, (number, [], *names))

    async def ends(self, run_id: str) -> None:
        """Ends a run."""
        end = sql.SQL(
            "UPDATE {}.run SET status = 'succeeded', worker = NULL, limited = false, ended_us = 1 WHERE id = %s"
        ).format(sql.Identifier(self.schema))
        await self.con.execute(end, (run_id,))

    async def keeps_waiting(self, ms: int) -> None:
        """Wait until somebody has been waiting for a lock for so long; who does only waits for a second."""
        found = f"SELECT FROM pg_locks WHERE NOT granted AND {BEFORE_US} > {ms * 1000}"
        await soon(
            self.con.execute(
                f"DO $$ BEGIN WHILE NOT EXISTS ({found}) LOOP PERFORM pg_sleep(0.005); END LOOP; END $$".encode()
            )
        )

    async def until(self, query: str, answer: asyncio.Future[AppendResult] | None = None) -> None:
        """Ask until there is something, or an append has been answered."""
        while not self._server.sql(query) and (answer is None or not answer.done()):  # noqa: ASYNC110 - no event there
            await asyncio.sleep(0)


@asynccontextmanager
async def world(server: PostgresServer, schema: str) -> AsyncGenerator[tuple[Store, Somebody]]:
    url = server.url(schema=schema)
    store = open_store(url)
    await soon(store.open(owner="w1"))
    con = await psycopg.AsyncConnection.connect(Place.of(url).conninfo)
    try:
        yield store, Somebody(con, schema, server)
    finally:
        await con.close()
        await soon(store.close())


async def test_who_takes_a_place_waits_for_nobody_who_takes_another(postgres: PostgresServer) -> None:
    """R-11: a limit costs those who meet at it, and nobody else."""
    async with world(postgres, "unrelated") as (store, somebody):
        first, second = await claimed(store, "run-1"), await claimed(store, "run-2")
        await somebody.has(WIDE)
        await soon(put(store, first, taking(first.next(token=1), OTHER)))
        wanted = taking(second.next(token=1), WIDE)
        answer = store.append(wanted)
        await somebody.keeps_waiting(0)
        assert not answer.done()
        await somebody.con.commit()
        second.accept(wanted, await soon(answer))
        assert await used(store) == {"wide": (1, 0), "other": (1, 0)}


async def test_a_group_that_waits_for_a_place_is_not_taken_apart(postgres: PostgresServer) -> None:
    """R-11, J-12: others have the lock of a place for a group each; with groups of one nobody would get anywhere."""
    async with world(postgres, "together") as (store, somebody):
        drafts = [await claimed(store, f"run-{number}") for number in range(12)]
        await somebody.has(WIDE)
        appends = [taking(draft.next(token=1), WIDE) for draft in drafts]
        answers = [store.append(append) for append in appends]
        await somebody.keeps_waiting(150)
        await somebody.con.commit()
        await soon(asyncio.gather(*answers))
        assert await used(store) == {"wide": (12, 0)}
    written = "SELECT count(DISTINCT xmin::text) FROM together.journal WHERE first_seq > 2"
    assert int(postgres.sql(written)) == 1


async def test_nor_is_one_that_comes_to_wait_for_other_runs(postgres: PostgresServer) -> None:
    """R-13, J-12: among those who do only one at a time gets in, for a group as well."""
    async with world(postgres, "awaiting") as (store, somebody):
        drafts = [await claimed(store, f"run-{number}") for number in range(12)]
        target = await claimed(store, "run-target")
        number = Place.of(postgres.url(schema="awaiting")).key("awaits")
        await somebody.con.execute("SELECT pg_advisory_xact_lock(%s::bigint)", (number,))
        waits = IndexState("ready", token=1, awaits=(target.run_id,), need=1, at_us=AT)
        answers = [store.append(draft.next(token=1, index=waits)) for draft in drafts]
        await somebody.keeps_waiting(150)
        await somebody.con.commit()
        assert {type(answer) for answer in await soon(asyncio.gather(*answers))} == {Committed}
    written = "SELECT count(DISTINCT xmin::text) FROM awaiting.journal WHERE first_seq > 2"
    assert int(postgres.sql(written)) == 1


async def test_who_stands_in_line_and_who_frees_the_place_see_each_other(postgres: PostgresServer) -> None:
    """R-16: at the same moment; whoever frees it need not know of limits, nor wait for anybody who takes one."""
    async with world(postgres, "meeting") as (store, somebody):
        await holder(store, "run-1", ONE)
        draft = await claimed(store, "run-2")
        await somebody.ends("run-1")
        stands = draft.next(token=1, index=waiting(ONE))
        answer = store.append(stands)
        await somebody.until("SELECT 1 FROM pg_locks WHERE NOT granted", answer)
        await somebody.con.commit()
        draft.accept(stands, await soon(answer))
        assert (await loaded(store, draft)).row.state.due_us == AT
        assert await used(store) == {"one": (1, 0)}
