"""A network that swallows everything and says nothing, between a worker or a client and the server [R-3, R-8, J-14].

How long a server may be silent is in the URL here, as a second; it is half a minute otherwise.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Literal

import psycopg
import pytest

import perdure.runtime.engine
import perdure.runtime.membership
from perdure import Canceled, ConflictError, Engine, Invocation, StoreUnavailable, Succeeded, step
from perdure.core.facts import SegmentAttemptStarted
from perdure.runtime.membership import MARGIN
from perdure.runtime.system import RealSystem
from perdure.storage.postgres import Place
from tests.faults.black_hole import black_hole
from tests.postgres import PostgresServer
from tests.runtime.lab import Line, app, facts, line
from tests.storage.helpers import Troubles, soon

Inv = Invocation[str, object]
LEASE_S = 1.0
ANSWER_S = 1.0
SILENT = "has not answered for 1 s"


class Outside:
    """What was begun outside, when, and by which engine; long steps wait until somebody says go.

    Attributes:
        begun: steady time, name of the engine, run, step.
    """

    def __init__(self) -> None:
        self.begun: list[tuple[float, str, str, str]] = []
        self.go = asyncio.Event()
        self._news = asyncio.Event()

    def pipeline(self, name: str) -> Line:
        """The same pipeline for each engine, which notes that engine's name."""

        def note(inv: Inv) -> None:
            self.begun.append((RealSystem().steady_s(), name, inv.run_id, inv.step_id))
            self._news.set()

        @step("long/v1")
        async def long(inv: Inv) -> None:
            note(inv)
            if inv.input == "long":
                await self.go.wait()

        @step("last/v1")
        async def last(inv: Inv) -> None:
            note(inv)

        return line(long, last)

    async def until(self, name: str, step_id: str, times: int) -> None:
        """Wait until an engine has begun a step so many times."""
        async with asyncio.timeout(60):
            while sum(each[1] == name and each[3] == step_id for each in self.begun) < times:
                self._news.clear()
                await self._news.wait()


@pytest.mark.long
@pytest.mark.parametrize("end", ["heals", "forgets"])
async def test_a_worker_that_is_cut_off_for_longer_than_its_lease_does_nothing_more(
    postgres: PostgresServer, end: Literal["heals", "forgets"]
) -> None:
    """Another takes its runs over and ends them. What it had sent arrives late, or never: it is refused, and the worker
    goes on as somebody else, on new connections where the old ones are lost."""
    outside, schema = Outside(), f"cut_off_{end}"
    mine, theirs = outside.pipeline("cut off"), outside.pipeline("other")
    async with (
        black_hole(postgres) as hole,
        app(mine).engine(store=hole.url(schema=schema, answer_s=ANSWER_S), lease=LEASE_S) as engine,
    ):
        former, troubles = engine.worker, Troubles(engine.store)
        runs = [await engine.submit(mine, "long") for _ in range(5)]
        await outside.until("cut off", "long/v1", 5)
        async with app(theirs).engine(store=postgres.url(schema=schema), lease=LEASE_S) as other:
            hole.swallow()
            cut_s = RealSystem().steady_s()
            outside.go.set()  # its handlers return, and it has to record that, if its lease holds
            sent = asyncio.create_task(engine.submit(mine, "later", delay=3600))  # whether it holds or not
            theirs_runs = [await other.run(run.id) for run in runs]
            for run in theirs_runs:
                assert isinstance(await run.result(timeout=30), Succeeded)
            before = [await facts(run) for run in theirs_runs]
            for run, found in zip(runs, before, strict=True):
                claims = [fact.worker for fact in found if isinstance(fact, SegmentAttemptStarted)]
                assert claims == [former, other.worker], run.id
            while not any(SILENT in trouble.problem for trouble in troubles.seen):
                await troubles.next()
            hole.heal() if end == "heals" else hole.forget()
        assert (await (await soon(sent)).info()).status == "ready"
        # the other one has left: what comes now is the former one's, under its new name
        late = await soon(engine.submit(mine, "short"))
        assert isinstance(await late.result(timeout=30), Succeeded)
        assert engine.worker != former
        assert [await facts(run) for run in runs] == before
        assert (await engine.verify()).findings == ()
    begun = Counter((name, run_id, step_id) for _, name, run_id, step_id in outside.begun)
    assert set(begun.values()) == {1}
    assert not [each for each in outside.begun if each[1] == "cut off" and each[2] != late.id and each[3] == "last/v1"]
    limit_s = cut_s + LEASE_S * (1 - MARGIN)
    assert not [each for each in outside.begun if each[1] == "cut off" and each[2] != late.id and each[0] > limit_s]


@pytest.mark.long
async def test_an_engine_that_is_cut_off_can_be_left(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its drain time, and a bounded time for each thing that is still to be written: that is the next one's."""
    monkeypatch.setattr(perdure.runtime.engine, "GRACE_S", 0.2)
    monkeypatch.setattr(perdure.runtime.membership, "LEAVE_S", 0.2)
    outside, schema = Outside(), "left"
    mine = outside.pipeline("cut off")
    outside.go.set()
    async with black_hole(postgres) as hole:
        stack = app(mine).engine(store=hole.url(schema=schema, answer_s=ANSWER_S), lease=LEASE_S, drain_timeout=0.1)
        engine: Engine = await stack.__aenter__()
        hole.swallow()
        submitting = asyncio.create_task(engine.submit(mine, "short"))
        await soon(stack.__aexit__(None, None, None))
        with pytest.raises(StoreUnavailable):
            await submitting
        hole.forget()
        async with app(outside.pipeline("next")).engine(store=postgres.url(schema=schema), lease=LEASE_S) as other:
            run = await other.submit(mine, "short")
            assert isinstance(await run.result(timeout=30), Succeeded)


@pytest.mark.long
async def test_a_client_hears_in_time_that_nobody_answers(postgres: PostgresServer) -> None:
    """A submission and a read are given up, and say so; submitted again with its key, the run is there once."""
    outside, schema = Outside(), "unheard"
    mine = outside.pipeline("engine")
    outside.go.set()
    async with (
        black_hole(postgres) as hole,
        app(mine).engine(store=postgres.url(schema=schema), lease=LEASE_S) as engine,
        app(mine).client(store=hole.url(schema=schema, answer_s=ANSWER_S / 2)) as client,
    ):
        known = await client.submit(mine, "short")
        later = await client.submit(mine, "later", delay=3600)
        await client.info(known.id)
        async with locked(postgres, schema, later.id):  # who cancels it waits beside all others
            before = set(postgres.sql("SELECT pid FROM pg_stat_activity").split())
            canceling = asyncio.create_task(client.cancel(later.id))
            await soon(another_waits(postgres, before))
            hole.swallow()
            with pytest.raises(StoreUnavailable, match="it may have been written all the same"):
                await soon(canceling)
        hole.heal()
        with suppress(ConflictError):  # it may have been done
            await soon(client.cancel(later.id))
        assert isinstance(await soon(engine.result(later.id)), Canceled)
        hole.swallow()
        sent = [asyncio.create_task(client.submit(mine, "short", idempotency_key=f"k{n}")) for n in range(3)]
        asked = [asyncio.create_task(client.info(known.id)) for _ in range(9)]
        await asyncio.wait([*sent, *asked], timeout=30)
        assert all(isinstance(task.exception(), StoreUnavailable) for task in asked)
        assert all("it may have been written all the same" in str(task.exception()) for task in sent)
        hole.heal()
        for n in range(3):
            run = await soon(client.submit(mine, "short", idempotency_key=f"k{n}"))
            assert isinstance(await run.result(timeout=30), Succeeded)
        assert sum((await engine.counts()).values()) == 5


@asynccontextmanager
async def locked(server: PostgresServer, schema: str, run_id: str) -> AsyncGenerator[None]:
    """Somebody else's open transaction has a run."""
    async with await psycopg.AsyncConnection.connect(Place.of(server.url()).conninfo) as con:
        await con.execute(f'SELECT 1 FROM "{schema}".run WHERE id = %s FOR UPDATE'.encode(), (run_id,))
        yield


async def another_waits(server: PostgresServer, before: set[str]) -> None:
    """Return when a connection that was not there before waits for a lock: the matter has been put aside by then.

    The one that tried it first waits too briefly to be seen for certain.
    """
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while before.issuperset((await asyncio.to_thread(server.sql, waiting)).split()):
        pass


@pytest.mark.long
async def test_who_waits_for_a_result_hears_of_it_although_its_connection_is_lost(postgres: PostgresServer) -> None:
    """A connection on which one only listens is as silent when it is lost as when nothing happens: it is asked."""
    outside, schema = Outside(), "deaf"
    mine = outside.pipeline("engine")
    async with (
        black_hole(postgres) as hole,
        app(mine).engine(store=postgres.url(schema=schema), lease=LEASE_S) as engine,
        app(mine).client(store=hole.url(schema=schema, answer_s=ANSWER_S)) as client,
    ):
        heard = asyncio.Event()
        client.store.on_change(lambda change: heard.set())
        run = await engine.submit(mine, "long")
        waiting = asyncio.create_task(client.result(run.id))
        await outside.until("engine", "long/v1", 1)
        await soon(heard.wait())  # it listens
        await client.info(run.id)
        hole.forget()
        outside.go.set()
        assert isinstance(await soon(waiting), Succeeded)
