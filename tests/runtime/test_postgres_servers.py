"""Servers that are restarted, killed, or come back without their last commits, under an engine at work [R-2, R-8, J-2].

One server for all of them, which every test leaves running.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from perdure import Invocation, NotFound, StoreUnavailable, Succeeded, step
from perdure.ports.store import Conflict, Gone, IndexState, Trouble
from perdure.storage import open_store
from perdure.testing.conformance.lab import T0, Draft, claimed, expect_journal, loaded, put, submitted
from tests.postgres import PostgresServer
from tests.runtime.book import DEADLINE_S, Book, reached
from tests.runtime.lab import app, line
from tests.storage.test_postgres_faults import proxied

Inv = Invocation[str, object]
LEASE_S = 3.0
LATER = T0 + 1_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Give a server whose commits survive a crash."""
    own = PostgresServer(fsync=True)
    try:
        own.start()
        yield own
    finally:
        own.remove()


async def test_restarts_and_kills_in_the_middle_of_many_runs(server: PostgresServer) -> None:
    """A restart, a crash and a kill of the server's first process: every run ends, and every step was done once."""
    book = Book(room=12)

    @step("pay/v1")
    async def pay(inv: Inv) -> None:
        await book.write(inv.run_id, "pay")

    @step("ship/v1")
    async def ship(inv: Inv) -> None:
        await book.write(inv.run_id, "ship")

    pipeline = line(pay, ship)
    async with app(pipeline).engine(store=server.url()) as engine:
        troubles: list[Trouble] = []
        engine.store.on_trouble(troubles.append)
        runs = [await engine.submit(pipeline, str(n)) for n in range(24)]
        for mode in ("fast", "immediate", "kill"):
            await book.full()
            if mode == "kill":
                server.kill()
            else:
                await asyncio.to_thread(server.stop, mode)
            book.open(12)  # what is done now is recorded when the server is back
            late = asyncio.create_task(engine.submit(pipeline, f"late {mode}"))
            await asyncio.sleep(0)
            await asyncio.to_thread(server.start)
            runs.append(await asyncio.wait_for(late, DEADLINE_S))
        book.open(1000)
        for run in runs:
            assert isinstance(await run.result(timeout=DEADLINE_S), Succeeded)
        assert book.done == Counter({(run.id, name): 1 for run in runs for name in ("pay", "ship")})
        assert not any(trouble.fatal for trouble in troubles)
        assert (await engine.verify()).findings == ()


async def test_backends_that_are_ended_under_an_engine(server: PostgresServer) -> None:
    """A storm: every connection is ended again and again, listeners and heartbeats, too. Each step is done once, no
    worker is taken for dead, and nothing of the engine has to be started again [R-2, R-3, R-8]."""
    book = Book(room=6)

    @step("pay/v1")
    async def pay(inv: Inv) -> None:
        await book.write(inv.run_id, "pay")

    @step("ship/v1")
    async def ship(inv: Inv) -> None:
        await book.write(inv.run_id, "ship")

    pipeline = line(pay, ship)
    async with app(pipeline).engine(store=server.url(), lease=LEASE_S) as engine:
        worker = engine.worker
        runs = [await engine.submit(pipeline, str(n)) for n in range(24)]
        for _ in range(8):
            await book.full()
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'")
            book.open(6)
            runs.append(await asyncio.wait_for(engine.submit(pipeline, "late"), DEADLINE_S))
        book.open(1000)
        for run in runs:
            assert isinstance(await run.result(timeout=DEADLINE_S), Succeeded)
        assert book.done == Counter({(run.id, name): 1 for run in runs for name in ("pay", "ship")})
        assert engine.worker == worker
        assert (await engine.verify()).findings == ()


async def test_a_server_that_lost_its_last_commits_is_never_appended_above_them(server: PostgresServer) -> None:
    """Its data are those of before, as after a failover: what hangs on a lost row is refused, also where the number of
    a lost run was given to another one [J-2, J-3]."""
    store = open_store(server.url())
    await store.open(owner="w1")
    kept = await claimed(store, "run-kept")
    await asyncio.to_thread(server.stop, "fast")
    server.keep()
    await asyncio.to_thread(server.start)
    before = list(kept.rows)
    await put(store, kept, kept.next(token=1))
    await put(store, kept, kept.next(token=1))
    lost = await submitted(store, "run-lost")
    await asyncio.to_thread(server.stop)
    server.lose()
    await asyncio.to_thread(server.start)

    assert await store.append(kept.next(token=1)) == Conflict()
    assert (await loaded(store, kept)).rows == tuple(before)
    assert await store.append(lost.next()) == Gone()
    assert await store.load("run-lost") is None
    other = await submitted(store, "run-other")
    assert other.locator == lost.locator
    assert await store.append(lost.next()) == Conflict()
    parked = IndexState("held", token=0, tail_hash=lost.rows[-1].hash)
    assert await store.set_index(lost.locator, parked, lost.tail) is False
    await expect_journal(store, other)
    again = Draft("run-lost")
    await put(store, again, again.submit())
    kept.rows = before
    await put(store, kept, kept.next(token=1))
    await expect_journal(store, kept)
    await store.close()


async def test_a_pick_of_which_neither_side_knows(server: PostgresServer) -> None:
    """Its answer was lost, and the server came back without it, and without many a transaction: the runs are due, and
    who looks for them does not ask for ever what became of it [R-1, R-16, J-2]."""
    async with proxied(server) as proxy:
        store = open_store(proxy.url(server.url()))
        await store.open(owner="w1")
        for n in range(3):
            await submitted(store, f"run-{n}")
        await asyncio.to_thread(server.stop, "fast")
        server.keep()
        await asyncio.to_thread(server.start)
        for _ in range(3):
            server.sql("SELECT pg_current_xact_id()")
        proxy.lose, proxy.shuts = b"SKIP LOCKED", True
        with pytest.raises(StoreUnavailable):
            await store.pick("w1", LATER, 3, 0, {"payout": 1})
        assert proxy.lost == 1
        await asyncio.to_thread(server.stop)
        server.lose()
        await asyncio.to_thread(server.start)
        proxy.shut = False
        assert sorted(await store.pick("w1", LATER, 3, 0, {"payout": 1})) == ["run-0", "run-1", "run-2"]
        await store.close()


async def test_runs_whose_last_steps_were_lost_go_on_from_what_is_left(server: PostgresServer) -> None:
    """The engine reads them again: what is recorded is not done again, what was lost is; a run that was lost altogether
    is not known any more, and everybody else's is not hurt [J-2, R-2, R-3]."""
    book = Book(room=1000)
    gates = {"first": asyncio.Event(), "second": asyncio.Event()}
    waiting: Counter[str] = Counter()

    @step("pay/v1")
    async def pay(inv: Inv) -> None:
        await book.write(inv.run_id, "pay")

    @step("wait/v1")
    async def wait(inv: Inv) -> None:
        waiting[inv.input] += 1
        await gates[inv.input].wait()

    @step("ship/v1")
    async def ship(inv: Inv) -> None:
        await book.write(inv.run_id, "ship")

    pipeline = line(pay, wait, ship)
    async with app(pipeline).engine(store=server.url(), lease=LEASE_S) as engine:
        ended = [await engine.submit(pipeline, "first") for _ in range(4)]
        under_way = [await engine.submit(pipeline, "second") for _ in range(4)]
        await reached(waiting, first=4, second=4)
        await asyncio.to_thread(server.stop, "fast")
        server.keep()
        await asyncio.to_thread(server.start)

        gates["first"].set()
        for run in ended:
            await run.result(timeout=DEADLINE_S)
        gone = await engine.submit(pipeline, "second")
        await reached(waiting, second=5)
        await asyncio.to_thread(server.stop)
        server.lose()
        await asyncio.to_thread(server.start)

        gates["second"].set()
        for run in under_way:
            assert isinstance(await run.result(timeout=DEADLINE_S), Succeeded)
        for run in ended:  # their ends were lost: after a while they are taken up again
            async for info in engine.watch(run.id):
                if info.ended:
                    break
            assert isinstance(await engine.result(run.id), Succeeded)
            assert book.done[run.id, "pay"] == 1
            assert book.done[run.id, "ship"] == 2
        for run in under_way:
            assert (book.done[run.id, "pay"], book.done[run.id, "ship"]) == (1, 1)
        with pytest.raises(NotFound):
            await engine.info(gone.id)
        new = await engine.submit(pipeline, "first")
        assert isinstance(await new.result(timeout=DEADLINE_S), Succeeded)
        assert (await engine.verify()).findings == ()
