"""Index rows of runs that wait for others: told right from wrong, and rebuilt, so that nobody waits for ever [R-16]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import AwaitMessage, AwaitRuns, Canceled, Pipeline, Succeeded
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.kinship import Inv, Texts, app, many, never, one, waiting_parent, words, work
from tests.runtime.lab import Gate, World, virtually
from tests.runtime.test_verifying import sql


def family() -> tuple[Texts, Texts, Texts, Texts, Texts]:
    """A child pipeline, two of parents, one that waits for runs, and one that waits for a message."""
    child = work()
    wait: Any = AwaitRuns("wait/v1", runs=words)
    message: Any = AwaitMessage("said/v1", name="word", type=str)

    def statuses(inv: Inv) -> list[str]:
        return [each.status for each in inv[wait]]

    waiter: Texts = Pipeline(id="waiter", input=str, deps=object, steps=[wait], output=statuses)
    listener: Texts = Pipeline(id="listener", input=str, deps=object, steps=[message], output=lambda inv: inv[message])
    several = many(child, concurrency=2)
    return child, one(child, id="single"), several, waiter, listener


async def parked(path: Path, pipelines: tuple[Texts, ...]) -> dict[str, str]:
    """One run of each that waits, in the file; by pipeline."""
    child, single, several, waiter, listener = pipelines
    async with app(*pipelines).engine(store=SqliteStore(path)) as engine:
        await engine.hold_pipeline(child.id)
        ids = {line.id: (await waiting_parent(engine, line, "a b c")).id for line in (single, several)}
        ids["waiter"] = (await waiting_parent(engine, waiter, ids["single"])).id
        ids["listener"] = (await waiting_parent(engine, listener)).id
        assert (await engine.verify()).findings == ()
    return ids


async def go_on(path: Path, pipelines: tuple[Texts, ...], ids: dict[str, str]) -> None:
    """All of them succeed."""
    async with app(*pipelines).engine(store=SqliteStore(path)) as engine:
        await engine.release_pipeline("work")
        await (await engine.run(ids["listener"])).send("word", "hello")
        outputs: dict[str, object] = {}
        for name, run_id in ids.items():
            result = await engine.result(run_id, timeout=30)
            assert isinstance(result, Succeeded), (name, result)
            outputs[name] = result.output
        assert outputs == {"single": "A B C", "outer": ["A", "B", "C"], "waiter": ["succeeded"], "listener": "hello"}
        assert (await engine.verify()).findings == ()


WRONG = {
    "not registered": "UPDATE run SET awaiting = NULL WHERE id = '{run}'",
    "a time of its own": "UPDATE run SET due_us = 9000000000000000 WHERE id = '{run}'",
    "held": "UPDATE run SET status = 'held' WHERE id = '{run}'",
    "token": "UPDATE run SET token = 7 WHERE id = '{run}'",
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("which", ["waiter", "single", "outer"])
async def test_a_wrong_row_of_a_parked_run_is_found(tmp_path: Path, wrong: str, which: str) -> None:
    """R-16, J-11."""
    path, pipelines = tmp_path / "store.db", family()
    ids = await parked(path, pipelines)
    sql(path, WRONG[wrong].format(run=ids[which]))
    async with app(*pipelines).client(store=SqliteStore(path)) as client:
        report = await client.verify()
        assert {finding.run_id for finding in report.findings} == {ids[which]}
        if wrong == "not registered":
            await client.hold(ids[which])
            await client.release(ids[which])
            assert (await client.verify()).findings == ()


async def test_a_run_whose_wake_up_got_lost_is_found(tmp_path: Path) -> None:
    """R-16: all it waits for has ended, and the store does not know."""
    path, pipelines = tmp_path / "store.db", family()
    ids = await parked(path, pipelines)
    sql(path, "DROP TRIGGER awaited_ended")
    async with app(*pipelines).client(store=SqliteStore(path)) as client:
        await client.abandon(ids["single"], force=True, note="gone")
        report = await client.verify()
        assert [finding.run_id for finding in report.findings] == [ids["waiter"]]


@pytest.mark.parametrize("lost", ["all", "parents", "others"])
async def test_rebuilding_lost_rows_registers_what_they_wait_for(tmp_path: Path, lost: str) -> None:
    """R-16, J-11: whichever rows were lost, nobody waits for ever, and nothing is taken for missing."""
    path, pipelines = tmp_path / "store.db", family()
    ids = await parked(path, pipelines)
    condition = {"all": "1", "parents": "pipeline <> 'work'", "others": "pipeline = 'work'"}[lost]
    sql(path, f"DELETE FROM run WHERE {condition}")
    async with app(*pipelines).client(store=SqliteStore(path)) as client:
        report = await client.verify(repair=True)
        assert report.repaired == len(report.findings) > 0
        assert (await client.verify()).findings == ()
    await go_on(path, pipelines, ids)


async def test_a_parent_does_not_take_a_child_without_a_row_for_missing(tmp_path: Path) -> None:
    """R-16: the row is lost under a running engine, and rebuilt later."""
    path, pipelines = tmp_path / "store.db", family()
    ids = await parked(path, pipelines)
    async with app(*pipelines).engine(store=SqliteStore(path)) as engine:
        sql(path, "DELETE FROM run WHERE pipeline = 'work'")
        run = await engine.run(ids["single"])
        await run.hold()
        await run.release()
        await engine.idle()
        assert (await run.info()).reason == "waits for its child run"
        assert (await engine.verify(repair=True)).repaired > 0
    await go_on(path, pipelines, ids)


@virtually
async def test_in_memory_too(system: VirtualSystem) -> None:
    """R-16, J-11: every row is lost; the engine rebuilds them as it starts."""
    world, gate = World(system), Gate()

    async def body(inv: Inv) -> str:
        await gate()
        return inv.input

    child = work(body)
    parent, stuck = many(child), one(work(never, id="never"), id="stuck")
    application = app(parent, child, stuck, work(never, id="never"))
    async with world.engine(application) as engine:
        runs = [await waiting_parent(engine, line, "a b") for line in (parent, stuck)]
    world.data.lose_index()
    gate.go.set()
    async with world.engine(application) as engine:
        result = await (await engine.run(runs[0].id)).result(timeout=3_600)
        assert isinstance(result, Succeeded)
        await engine.cancel(runs[1].id)
        assert isinstance(await (await engine.run(runs[1].id)).result(timeout=3_600), Canceled)
        assert (await engine.verify()).findings == ()
