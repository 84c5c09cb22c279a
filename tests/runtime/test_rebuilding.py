"""Index rows that are lost come back while an engine works, many at a time [J-11, R-16]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure import Succeeded, step
from perdure.ports.store import LostRun, Restored
from perdure.runtime import rebuilding
from perdure.runtime.rebuilding import rebuild
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, Watched, World, app, line, until, virtually
from tests.runtime.test_verifying import sql
from tests.runtime.test_workers import Shared, gated, owners


async def nothing(inv: Inv) -> None:
    """A step that does nothing."""


class Paging(Watched):
    """Notes the pages."""

    def __init__(self, data: MemoryData) -> None:
        super().__init__(data)
        self.pages: list[int] = []
        self.looks = 0

    async def lost_runs(self, limit: int, after: int = 0, /) -> Sequence[LostRun]:
        self.looks += 1
        return await super().lost_runs(limit, after)

    async def restore_lost(self, rows: Sequence[Restored], /) -> int:
        self.pages.append(len(rows))
        return await super().restore_lost(rows)


def lost_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about rows that are gone."""
    return [record.getMessage() for record in caplog.records if "index row" in record.getMessage()]


@virtually
async def test_rows_that_are_lost_under_a_working_engine_come_back(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """J-11, R-16: within a minute or so, and every run goes on as before; a look where nothing is lost is one query."""
    world, pipeline = World(system), line(step("one/v1")(nothing))
    async with world.engine(app(pipeline), around=Paging) as engine:
        store = world.stores[0]
        assert isinstance(store, Paging)
        runs = [await engine.submit(pipeline, str(number), delay=600) for number in range(600)]
        before = {info.run_id: info for info in await engine.list(limit=1_000)}
        await system.sleep(130)
        assert (store.looks, store.pages) == (3, [])
        world.data.lose_index()
        assert await engine.list() == []
        await system.sleep(61)
        assert {info.run_id: info for info in await engine.list(limit=1_000)} == before
        assert sum(store.pages) == 600
        assert len(store.pages) == 3
        assert lost_messages(caplog) == ["600 index rows were gone; they were rebuilt from the facts meanwhile"]
        world.data.lose_index()  # and again
        await system.sleep(61)
        assert {info.run_id: info for info in await engine.list(limit=1_000)} == before
        for run in runs:
            assert isinstance(await run.result(), Succeeded)


@virtually
async def test_what_a_start_cannot_put_back_in_a_second_comes_back_while_it_works(
    system: VirtualSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """J-11: the worker works before a million rows are there again."""
    world, pipeline = World(system), line(step("one/v1")(nothing))
    async with world.engine(app(pipeline)) as engine:
        runs = [await engine.submit(pipeline, str(number), delay=10) for number in range(7)]
    world.data.lose_index()
    monkeypatch.setattr(rebuilding, "BATCH", 2)
    monkeypatch.setattr(rebuilding, "FIRST_S", 0.0)
    async with world.engine(app(pipeline)) as engine:
        assert len(await MemoryStore.missing_index(world.stores[-1], 9)) == 5
        for run in runs:
            assert isinstance(await engine.result(run.id), Succeeded)
    assert [message.partition(" ")[0] for message in lost_messages(caplog)] == ["2", "5"]


@virtually
async def test_a_run_whose_row_is_lost_while_it_runs_stays_its_owners(system: VirtualSystem) -> None:
    """R-3, J-11: nobody begins it beside its owner, who goes on and ends it."""
    world, gate, done = Shared(system), Gate(), list[str]()
    pipeline = gated(gate, done)
    async with world.engine(app(pipeline)) as owner, world.engine(app(pipeline)) as other:
        run = await owner.submit(pipeline, "x")
        await gate.reached.wait()
        world.data.lose_index()
        await system.sleep(125)
        info = await run.info()
        assert (info.status, owner.running, other.running) == ("running", 1, 0)
        gate.go.set()
        assert isinstance(await run.result(), Succeeded)
        assert (gate.passes, done) == (1, [run.id])
        journal = [recorded.fact for recorded in await run.journal()]
        assert owners(journal) == [owner.worker]
        assert (await owner.verify()).findings == ()


@virtually
async def test_a_run_whose_owner_dies_before_its_row_is_back_goes_on_elsewhere(system: VirtualSystem) -> None:
    """R-16, R-3: it is put back as nobody's, and due."""
    world, gate = Shared(system), Gate()
    pipeline = gated(gate)
    async with world.engine(app(pipeline)) as other:
        async with world.engine(app(pipeline)) as owner:
            run = await owner.submit(pipeline, "x")
            await gate.reached.wait()
            world.data.lose_index()
            owner.abort()
        gate.go.set()
        await system.sleep(125)
        assert isinstance(await other.result(run.id), Succeeded)


@pytest.mark.parametrize("shared", [False, True])
@virtually
async def test_a_run_that_was_let_go_while_it_had_no_row_is_not_left_with_its_owner(
    system: VirtualSystem, shared: bool
) -> None:
    """R-16: the row says that it is the engine's, and the engine does not have it any more: it is due."""
    world, gate = Shared(system) if shared else World(system), Gate()
    pipeline = gated(gate)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.reached.wait()
        await run.cancel()
        await until(run, "canceled")
        other = await engine.submit(pipeline, "y", delay=3_000)
        found = world.data.run(other.id)
        assert found is not None
        world.data.lose_index()
        found.lost_by = engine.worker
        await system.sleep(130)
        gate.go.set()
        assert isinstance(await other.result(), Succeeded)
        assert (await engine.info(run.id)).status == "canceled"


@virtually
async def test_what_cannot_come_back_is_told_of_once(system: VirtualSystem, caplog: pytest.LogCaptureFixture) -> None:
    """J-8: a journal whose first fact is damaged says nothing about its run, however often one looks."""
    world, pipeline = World(system), line(step("one/v1")(nothing))
    async with world.engine(app(pipeline)) as engine:
        runs = [await engine.submit(pipeline, str(number), delay=600) for number in range(3)]
        damaged = world.data.run(runs[1].id)
        assert damaged is not None
        damaged.rows[0] = damaged.at[1] = type(damaged.rows[0])(1, 1, 0, b"x" * 16, b"x" * 32, b"[]")
        world.data.lose_index()
        await system.sleep(200)
        assert len([message for message in lost_messages(caplog) if runs[1].id in message]) == 1
        assert {info.run_id for info in await engine.list()} == {runs[0].id, runs[2].id}
        assert await rebuild(world.stores[0], system.now_us()) == 0


async def test_a_client_gives_an_engine_alone_nothing_that_it_may_have_let_go(tmp_path: Path) -> None:
    """J-11, R-16: what `verify` repairs beside it is nobody's, and goes on."""
    path, pipeline = tmp_path / "store.db", line(step("one/v1")(nothing))
    async with app(pipeline).engine(store=SqliteStore(path)) as engine:
        run = await engine.submit(pipeline, "x", delay=7_200)
        sql(path, "DELETE FROM run", f"UPDATE stray SET worker = '{engine.worker}'")
        async with app(pipeline).client(store=SqliteStore(path)) as client:
            assert (await client.verify(repair=True)).repaired == 1
            assert (await client.verify()).findings == ()
            await client.retry(run.id, actor="me")
        assert isinstance(await run.result(timeout=30), Succeeded)
