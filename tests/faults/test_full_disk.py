"""A PostgreSQL server whose disk is full, under an engine at work [R-8, J-14].

Where tables have no room left a statement is refused, and the server lives. Where the log has none, it crashes, and
does not come back before there is room. Both are on small disks of their own, on one server.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest

from perdure import Engine, Invocation, Run, StoreUnavailable, Succeeded, step
from perdure.storage import open_store
from tests.faults.small_disk import SmallDisk, small_disk
from tests.postgres import NOBODY, PostgresServer
from tests.runtime.book import DEADLINE_S
from tests.runtime.lab import Line, app, line
from tests.storage.helpers import Troubles, soon

Inv = Invocation[str, object]
RUNS = 8


class Full:
    """A server with its tables and its log on small disks."""

    def __init__(self, tables: SmallDisk, log: SmallDisk) -> None:
        self.tables = tables
        self.log = log
        segments = ("-X", str(log.path / "wal"), "--wal-segsize=1")
        self.server = PostgresServer(settings={"min_wal_size": "2MB"}, initdb=segments)

    def start(self) -> None:
        """Start it, with a role whose tables lie on the small disk."""
        self.server.start()
        place = self.tables.path / "place"
        place.mkdir()
        if os.getuid() == 0:
            os.chown(place, NOBODY, NOBODY)
        self.server.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
        self.server.sql("CREATE ROLE tight LOGIN SUPERUSER")
        self.server.sql("ALTER ROLE tight SET default_tablespace = small")

    def url(self, schema: str) -> str:
        """A store on the small disk."""
        return self.server.url(schema=schema, user="tight")

    def back(self) -> None:
        """Return when it works again: a server that found no room for its log has given up, and is started anew."""
        while True:
            if not self.server.running:
                self.server.start()
            try:
                self.server.sql("SELECT 1")
            except RuntimeError:
                continue
            return


@pytest.fixture(scope="module")
def full() -> Iterator[Full]:
    """Give a server whose disks are small, and not full yet."""
    with small_disk(32) as tables, small_disk(32) as log:
        own = Full(tables, log)
        try:
            own.start()
            yield own
        finally:
            own.server.remove()


class Work:
    """Runs whose first steps have begun, and are to be recorded together.

    Args:
        size: of each step's output, in bytes.

    Attributes:
        done: how often each step of each run was done.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.done: Counter[tuple[str, str]] = Counter()
        self.go = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.pipeline: Line = self._pipeline()

    def _pipeline(self) -> Line:
        @step("pay/v1")
        async def pay(inv: Inv) -> str:
            self.done[inv.run_id, "pay"] += 1
            self.begun.release()
            await self.go.wait()
            return os.urandom(self._size // 2).hex()

        @step("ship/v1")
        async def ship(inv: Inv) -> str:
            self.done[inv.run_id, "ship"] += 1
            return os.urandom(self._size // 2).hex()

        return line(pay, ship)


@asynccontextmanager
async def at_work(url: str, work: Work) -> AsyncGenerator[tuple[Engine, Troubles, list[Run[None]]]]:
    """An engine with runs in their first step, and what is true in the end."""
    async with app(work.pipeline).engine(store=url, lease=2.0) as engine:
        troubles = Troubles(engine.store)
        runs = [await engine.submit(work.pipeline, str(n)) for n in range(RUNS)]
        for _ in runs:
            await soon(work.begun.acquire())
        yield engine, troubles, runs
        for run in runs:
            assert isinstance(await run.result(timeout=DEADLINE_S), Succeeded)
        assert work.done == Counter({(run.id, name): 1 for run in runs for name in ("pay", "ship")})
        assert not any(trouble.fatal for trouble in troubles.seen)
        assert (await engine.verify()).findings == ()


@pytest.mark.long
async def test_tables_without_room(full: Full) -> None:
    """It is said which file has no room, runs wait, reads go on, and a client is told in time."""
    work = Work(100_000)
    async with at_work(full.url("tables"), work) as (engine, troubles, runs):
        full.tables.fill()
        work.go.set()
        trouble = await troubles.first()
        assert "is full: could not extend file" in trouble.problem
        assert "free some space" in trouble.problem
        assert [(await engine.info(run.id)).ended for run in runs] == [False] * RUNS
        async with app(work.pipeline).client(store=f"{full.url('tables')}&answer_timeout=1") as client:
            with pytest.raises(StoreUnavailable, match=r"given up after 1 s.* is full"):
                await soon(client.submit(work.pipeline, "x" * 100_000))
        with pytest.raises(StoreUnavailable, match="is full"):
            await soon(open_store(full.url("more_tables")).open(owner="w1"))
        full.tables.free()


@pytest.mark.long
async def test_a_log_without_room(full: Full) -> None:
    """The server crashes in the middle of a commit; what it acknowledged is there when it is started again."""
    work = Work(400_000)
    async with at_work(full.url("log"), work) as (_, troubles, _):
        full.log.fill()
        work.go.set()
        while not any("cannot be reached" in trouble.problem for trouble in troubles.seen):
            await troubles.next()
        assert 'PANIC:  could not write to file "pg_wal' in (full.server.folder / "log").read_text()
        full.log.free()
        await asyncio.to_thread(full.back)
