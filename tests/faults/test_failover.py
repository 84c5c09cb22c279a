"""A standby that is promoted under an engine whose URL names both servers [R-2, R-3, R-8, J-2]."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from perdure import Engine, Invocation, NotFound, Retry, Succeeded, step
from perdure.errors import StoreUnavailable, StoreUnusable
from perdure.storage.postgres import Place
from perdure.storage.postgres.session import Session
from tests.faults.standby import Standby, both
from tests.postgres import PostgresServer
from tests.runtime.book import DEADLINE_S, Book, reached
from tests.runtime.lab import app, line
from tests.storage.helpers import Troubles

Inv = Invocation[str, object]
LEASE_S = 1.5


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PostgresServer, Standby]]:
    """Give a primary and its standby; the last test promotes that."""
    primary = PostgresServer()
    standby = Standby(primary)
    try:
        primary.start()
        standby.start()
        yield primary, standby
    finally:
        primary.remove()
        standby.remove()


@pytest.mark.long
async def test_a_standby_alone_is_no_store(pair: tuple[PostgresServer, Standby]) -> None:
    """Of several hosts the one that takes writes is found, also where the URL does not ask for it, and whatever comes
    first; a standby that the URL insists on is refused, with what is to be done."""
    primary, standby = pair
    place = Place.of(both(standby, primary, schema="asked"))
    for _ in range(2):
        session = await Session.connect(place)
        assert session.con.info.host == str(primary.folder)
        session.drop()
    with pytest.raises(StoreUnusable, match="has to have target_session_attrs=read-write, or none"):
        await Session.connect(Place.of(both(standby, primary, schema="asked", options="&target_session_attrs=any")))
    with pytest.raises(StoreUnusable, match="has to name the primary"):
        await Session.connect(Place.of(standby.url()))
    await asyncio.to_thread(primary.stop)
    with pytest.raises(StoreUnavailable, match="is a failover under way"):
        await Session.connect(place)
    await asyncio.to_thread(primary.start)


@pytest.mark.long
async def test_an_engine_goes_over_to_the_standby_and_stays_there(pair: tuple[PostgresServer, Standby]) -> None:
    """The standby has not got the last commits: ends that are lost come again, a run that is lost altogether is not
    known, nobody else's step is repeated. Later the new primary is down while the old one has come back: it is not
    taken for the store."""
    primary, standby = pair
    book = Book(room=1000)
    gates = {"first": asyncio.Event(), "second": asyncio.Event(), "third": asyncio.Event()}
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
    async with app(pipeline).engine(store=both(primary, standby, schema="moved"), lease=LEASE_S) as engine:
        troubles = Troubles(engine.store)
        ended = [await engine.submit(pipeline, "first") for _ in range(4)]
        under_way = [await engine.submit(pipeline, "second") for _ in range(4)]
        await reached(waiting, first=4, second=4)
        await asyncio.to_thread(standby.caught_up)
        await asyncio.to_thread(standby.cut_off)

        gates["first"].set()
        for run in ended:
            await run.result(timeout=DEADLINE_S)
        gone = await engine.submit(pipeline, "second")
        await reached(waiting, second=5)
        await asyncio.to_thread(primary.stop)
        gates["second"].set()
        await told(troubles, "no host takes writes now; is a failover under way?")
        await asyncio.to_thread(standby.promote)

        for run in under_way:
            assert isinstance(await run.result(timeout=DEADLINE_S), Succeeded)
        for run in ended:  # their ends were lost: after a while they are taken up again
            async for info in engine.watch(run.id):
                if info.ended:
                    break
            assert isinstance(await engine.result(run.id), Succeeded)
            assert (book.done[run.id, "pay"], book.done[run.id, "ship"]) == (1, 2)
        for run in under_way:
            assert (book.done[run.id, "pay"], book.done[run.id, "ship"]) == (1, 1)
        with pytest.raises(NotFound):
            await engine.info(gone.id)

        await asyncio.to_thread(primary.start)
        await (await engine.submit(pipeline, "first")).result(timeout=DEADLINE_S)
        assert primary.sql("SELECT pg_current_wal_lsn() IS NOT NULL, count(*) FROM moved.run").strip() == "t|9"
        late = await engine.submit(pipeline, "third")
        await reached(waiting, third=1)
        await asyncio.to_thread(standby.stop)
        gates["third"].set()
        await told(troubles, "on timeline 1, but the store was on timeline 2 already")
        await asyncio.to_thread(standby.start)
        assert isinstance(await late.result(timeout=DEADLINE_S), Succeeded)
        assert (await engine.verify()).findings == ()
        assert primary.sql("SELECT count(*) FROM moved.run").strip() == "9"


async def told(troubles: Troubles, words: str) -> None:
    """Wait until a trouble that passes is told with these words."""
    while not any(words in trouble.problem for trouble in troubles.seen):
        await troubles.next()
    assert not any(trouble.fatal for trouble in troubles.seen)


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
async def test_one_failover_after_another(seed: int) -> None:
    """Two workers, and servers that take turns, with a tail that is lost each time: every run that is still known ends,
    no step is done more often than it was lost, and all that is there is in order."""
    dice, rounds = random.Random(seed), 6
    done: Counter[tuple[str, str]] = Counter()
    servers = [Standby(None), Standby(None)]

    @step("pay/v1")
    async def pay(inv: Inv) -> None:
        done[inv.run_id, "pay"] += 1
        await asyncio.sleep(0)

    @step("rest/v1")
    async def rest(inv: Inv) -> None:
        done[inv.run_id, "rest"] += 1
        if inv.attempt == 1 and int(inv.input) % 3 == 0:
            raise OSError("not yet")

    @step("ship/v1")
    async def ship(inv: Inv) -> None:
        done[inv.run_id, "ship"] += 1

    pipeline = line(pay, rest, ship, retry=Retry(initial=0.05))
    runs: list[str] = []

    async def submits(engine: Engine, count: int) -> None:
        for _ in range(count):
            runs.append((await engine.submit(pipeline, str(dice.randrange(100)))).id)

    try:
        servers[0].start()
        servers[1].follow(servers[0])
        url = both(servers[0], servers[1], schema="turns")
        async with (
            app(pipeline).engine(store=url, lease=LEASE_S) as first,
            app(pipeline).engine(store=url, lease=LEASE_S) as second,
        ):
            for turn in range(rounds):
                primary, standby = servers[turn % 2], servers[1 - turn % 2]
                await submits(dice.choice([first, second]), 40)
                await asyncio.to_thread(standby.cut_off)
                work = [asyncio.create_task(submits(engine, dice.randrange(80))) for engine in (first, second)]
                for _ in range(dice.randrange(2000)):
                    await asyncio.sleep(0)
                await asyncio.to_thread(primary.stop)
                await asyncio.to_thread(standby.promote)
                await asyncio.wait_for(asyncio.gather(*work), DEADLINE_S)
                await asyncio.to_thread(primary.follow, standby)
            known = 0
            for run_id in runs:
                with suppress(NotFound):
                    async for info in first.watch(run_id):
                        if info.ended:
                            break
                    assert isinstance(await first.result(run_id, timeout=DEADLINE_S), Succeeded)
                    known += 1
            for report in ((await first.verify()), (await second.verify())):
                assert report.findings == ()
        assert known > rounds * 40 / 2
        assert max(done.values()) <= rounds + 2
    finally:
        for server in servers:
            server.remove()
