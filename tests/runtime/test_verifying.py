"""Damage by hands and disks: it is found, hurts one run, and what can be rebuilt from the facts is [J-8, J-11]."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import CorruptJournal, NotFound, Retry, Succeeded, UnwindInvocation, step
from perdure.core.projection import REDUCER_VERSION
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Events, Gate, Inv, Line, World, app, line, virtually


def sql(path: Path, *statements: str) -> list[Any]:
    """Run statements on a store's file behind its back; the rows of the last one."""
    rows: list[Any] = []
    with closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as con:
        for statement in statements:
            rows = con.execute(statement).fetchall()
    return rows


def paused(effects: list[str], **options: Any) -> Line:
    """Three steps; after the first one a run rests for a while, or waits at a gate."""

    async def undo(inv: UnwindInvocation[str, object], state: None) -> None:
        effects.append(f"undo {inv.input}")

    @step("one/v1", unwind=undo)
    async def one(inv: Inv) -> None:
        effects.append(f"one {inv.input}")

    @step("two/v1", retry=Retry(initial=3600, cap=3600))
    async def two(inv: Inv) -> None:
        effects.append(f"two {inv.input}")
        if inv.attempt == 1:
            raise OSError("rest a while")

    @step("three/v1")
    async def three(inv: Inv) -> None:
        effects.append(f"three {inv.input}")

    return line(one, two, three, **options)


async def resting(path: Path, pipeline: Line, *inputs: str) -> list[str]:
    """Runs that have done their first step and rest in the file, which is closed then."""
    async with app(pipeline).engine(store=SqliteStore(path)) as engine:
        runs = [await engine.submit(pipeline, input) for input in inputs]
        for run in runs:
            async for info in run.watch():
                if info.reason:
                    break
        return [run.id for run in runs]


async def go_on(path: Path, pipeline: Line, *run_ids: str) -> None:
    """Let these runs go on, to their success."""
    async with app(pipeline).engine(store=SqliteStore(path)) as engine:
        for run_id in run_ids:
            await engine.retry(run_id, actor="test")
        for run_id in run_ids:
            assert isinstance(await engine.result(run_id, timeout=30), Succeeded)


# --- journal rows that were changed


DAMAGE = {
    "facts changed": "UPDATE journal SET facts = replace(facts, 'one/v1', 'two/v1') WHERE run = 2 AND first_seq > 1",
    "not JSON": "UPDATE journal SET facts = 'oops' WHERE run = 2 AND first_seq > 1",
    "time changed": "UPDATE journal SET at_us = at_us + 1 WHERE run = 2 AND first_seq = 1",
    "row missing": "DELETE FROM journal WHERE run = 2 AND first_seq = 4",
    "hash changed": "UPDATE journal SET hash = zeroblob(32) WHERE run = 2 AND first_seq > 1",
    "row of another run": "UPDATE journal SET (hash, facts) = (SELECT hash, facts FROM journal WHERE run = 1 AND "
    "first_seq = 1) WHERE run = 2 AND first_seq = 1",
    "no facts at all": "DELETE FROM journal WHERE run = 2",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
async def test_a_damaged_journal_is_found_quarantined_and_the_others_go_on(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """J-8, J-11: `verify` names it; the run is not touched any more; one alert, however often the engine starts."""
    path = tmp_path / "store.db"
    effects: list[str] = []
    pipeline = paused(effects)
    first, second, third = await resting(path, pipeline, "a", "b", "c")
    sql(path, damage, "DELETE FROM snapshot", "UPDATE run SET due_us = 1 WHERE n = 2")
    async with app(pipeline).client(store=SqliteStore(path)) as client:
        report = await client.verify()
        assert [finding.run_id for finding in report.findings] == [second]
        assert report.runs == 3
        alone = await client.verify(second)
        assert alone.findings == report.findings
        assert (await client.verify(first)).findings == ()
    caplog.clear()
    for _ in range(3):
        events = Events()
        async with app(pipeline).engine(store=SqliteStore(path), observers=[events]) as engine:
            with pytest.raises(CorruptJournal, match=second) as caught:
                await engine.result(second, timeout=30)
            assert caught.value.run_id == second
            assert (await engine.info(second)).status == "corrupt"
            await engine.idle()
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR and second in r.getMessage()]) == 1
    await go_on(path, pipeline, first, third)
    assert effects.count("two b") == 1
    assert "three b" not in effects
    async with app(pipeline).client(store=SqliteStore(path)) as client:
        calls: list[Any] = [client.cancel, client.retry, client.explain]
        for call in calls:
            with pytest.raises(CorruptJournal):
                await call(second)
        assert [info.run_id for info in await client.list(status="corrupt")] == [second]


async def test_a_row_that_goes_bad_while_the_run_is_owned_quarantines_it(tmp_path: Path) -> None:
    """J-8: found at the next read; the handler's outcome is not written over the damage."""
    path = tmp_path / "store.db"
    gate = Gate()

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()

    pipeline = line(one)
    async with (
        app(pipeline).engine(store=SqliteStore(path)) as engine,
        app(pipeline).client(store=SqliteStore(path)) as client,
    ):
        run = await engine.submit(pipeline, "x")
        other = await engine.submit(pipeline, "y")
        await gate.until(2)
        await client.hold(run.id, actor="me")
        sql(path, "UPDATE journal SET facts = '[]' WHERE run = 1 AND first_seq = 1")
        gate.go.set()
        assert isinstance(await other.result(timeout=30), Succeeded)
        with pytest.raises(CorruptJournal):
            await run.result(timeout=30)
        assert (await client.info(run.id)).status == "corrupt"


async def test_verify_finds_what_an_index_row_says_wrongly(tmp_path: Path) -> None:
    """J-11"""
    path = tmp_path / "store.db"
    pipeline = paused([])
    (run_id,) = await resting(path, pipeline, "a")
    names = [row[1] for row in sql(path, "PRAGMA table_info(run)")]
    [(columns,)] = [[tuple(row) for row in sql(path, f"SELECT {', '.join(names)} FROM run")]]
    lies = {
        "status": "UPDATE run SET status = 'succeeded'",
        "token": "UPDATE run SET token = 9",
        "canceling": "UPDATE run SET canceling = 1",
        "held": "UPDATE run SET status = 'held', due_us = NULL",
        "due": "UPDATE run SET due_us = NULL",
        "due in a hundred thousand years": "UPDATE run SET due_us = 4611686018427387904",
        "no status": "UPDATE run SET status = 'asleep'",
        "version": "UPDATE run SET version = 99",
        "pipeline": "UPDATE run SET pipeline = 'other'",
        "resource": "UPDATE run SET resource = 'other'",
        "input": "UPDATE run SET input_digest = zeroblob(32)",
        "submitted": "UPDATE run SET submitted_us = 1",
        "snapshot": "INSERT INTO snapshot SELECT run, first_seq, hash, 1, 2, x'7b7d' FROM journal WHERE first_seq = 1",
    }
    for what, lie in lies.items():
        sql(path, lie)
        async with app(pipeline).client(store=SqliteStore(path)) as client:
            assert [finding.run_id for finding in (await client.verify()).findings], what
        with closing(sqlite3.connect(path)) as con, con:
            con.execute(f"UPDATE run SET {', '.join(f'{name} = ?' for name in names)}", columns)
            con.execute("DELETE FROM snapshot")
    async with app(pipeline).client(store=SqliteStore(path)) as client:
        assert (await client.verify()).findings == ()
        with pytest.raises(NotFound):
            await client.verify("nobody")
    await go_on(path, pipeline, run_id)


# --- index rows that are gone


async def test_a_lost_index_is_rebuilt_from_the_facts_and_every_run_goes_on(tmp_path: Path) -> None:
    """J-11: all index rows and snapshots are deleted; status, times, slots, holds and cancels come back."""
    path = tmp_path / "store.db"
    effects: list[str] = []
    pipeline = paused(effects)
    slotted = paused(effects, id="slotted", resource=same)
    many = app(pipeline, slotted)
    async with many.engine(store=SqliteStore(path)) as engine:
        ended = await engine.submit(pipeline, "ended")
        await ended.cancel()
        await ended.result(timeout=30)
        resting = await engine.submit(slotted, "resting")
        async for info in resting.watch():
            if info.reason:
                break
        held = await engine.submit(pipeline, "held", delay=7200)
        await held.hold(actor="me", reason="audit")
        delayed = await engine.submit(pipeline, "delayed", delay=7200)
        before = {info.run_id: info for info in await engine.list()}
    sql(path, "DELETE FROM run", "DELETE FROM snapshot")
    async with many.engine(store=SqliteStore(path)) as engine:
        after = {info.run_id: info for info in await engine.list()}
        assert after == before
        assert (await engine.verify()).findings == ()
        again = await engine.submit(slotted, "resting")
        assert (again.id, again.created) == (resting.id, False)  # its slot is its own still
        for run in (resting, held, delayed):
            await engine.retry(run.id, actor="me")
        for run in (held, delayed):
            async for info in engine.watch(run.id):
                if info.reason:
                    break
            await engine.retry(run.id, actor="me")
        for run in (resting, held, delayed):
            assert isinstance(await engine.result(run.id, timeout=30), Succeeded)
        assert effects.count("one resting") == 1


def same(input: str) -> str:
    return "same"


async def test_single_index_rows_that_are_gone_are_rebuilt_at_the_start(tmp_path: Path) -> None:
    """J-11, R-16: a run without an index row has neither owner nor due time, so nobody would look at it."""
    path = tmp_path / "store.db"
    pipeline = paused([])
    first, second, third = await resting(path, pipeline, "a", "b", "c")
    sql(path, "DELETE FROM run WHERE n = 2")
    async with app(pipeline).client(store=SqliteStore(path)) as client:
        assert [finding.run_id for finding in (await client.verify()).findings] == [second]
    await go_on(path, pipeline, first, second, third)


async def test_a_lost_index_beside_a_damaged_journal_is_rebuilt_for_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """J-11, J-8: the engine starts; the damaged run is quarantined where it can still be told what it was."""
    path = tmp_path / "store.db"
    pipeline = paused([])
    first, second, third, fourth = await resting(path, pipeline, "a", "b", "c", "d")
    sql(
        path,
        "UPDATE journal SET facts = '[]' WHERE run = 1 AND first_seq = 1",
        "UPDATE journal SET facts = '[]' WHERE run = 3 AND first_seq > 1",
        "DELETE FROM run",
        "DELETE FROM snapshot",
    )
    async with app(pipeline).engine(store=SqliteStore(path)) as engine:
        listed = {info.run_id: info.status for info in await engine.list()}
        assert listed == {second: "ready", third: "corrupt", fourth: "ready"}
        assert {finding.run_id for finding in (await engine.verify()).findings} == {first, third}
    assert [record for record in caplog.records if first in record.getMessage()]
    await go_on(path, pipeline, second, fourth)


@virtually
async def test_memory_that_lost_its_index_is_rebuilt_alike(system: VirtualSystem) -> None:
    """J-11"""
    effects: list[str] = []
    pipeline = paused(effects)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        runs = [await engine.submit(pipeline, str(n)) for n in range(5)]
        await system.sleep(1)
        before = {info.run_id: info for info in await engine.list()}
    world.data.lose_index()
    async with world.engine(app(pipeline)) as engine:
        assert {info.run_id: info for info in await engine.list()} == before
        for run in runs:
            assert isinstance(await engine.result(run.id), Succeeded)


# --- rows that nobody wrote through us


async def test_a_row_with_an_empty_id_is_never_executed_and_alerted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P-2, J-8: an id is checked at the door of the engine, too, whoever put the row there."""
    path = tmp_path / "store.db"
    effects: list[str] = []
    pipeline = paused(effects)
    (run_id,) = await resting(path, pipeline, "a")
    columns = [row[1] for row in sql(path, "PRAGMA table_info(run)") if row[1] not in ("n", "id")]
    copied = ", ".join(columns)
    changed = copied.replace("slot_held", "0").replace("due_us", "1", 1)
    sql(
        path,
        f"INSERT INTO run (n, id, {copied}) SELECT 77, '', {changed} FROM run WHERE n = 1",
        "INSERT INTO journal SELECT 77, first_seq, count, at_us, append_id, hash, facts FROM journal WHERE run = 1",
    )
    effects.clear()
    caplog.clear()
    for _ in range(5):
        async with app(pipeline).engine(store=SqliteStore(path)) as engine:
            await engine.idle()
    assert effects == []
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    assert sql(path, "SELECT status, due_us FROM run WHERE n = 77") == [("corrupt", None)]
    await go_on(path, pipeline, run_id)


async def test_an_index_row_without_a_journal_is_quarantined_and_not_looked_at_for_ever(tmp_path: Path) -> None:
    """J-8, R-16"""
    path = tmp_path / "store.db"
    pipeline = paused([])
    (run_id,) = await resting(path, pipeline, "a")
    columns = [row[1] for row in sql(path, "PRAGMA table_info(run)") if row[1] not in ("n", "id")]
    copied = ", ".join(columns)
    changed = copied.replace("slot_held", "0").replace("due_us", "1", 1)
    sql(path, f"INSERT INTO run (n, id, {copied}) SELECT 77, 'ghost', {changed} FROM run WHERE n = 1")
    async with app(pipeline).engine(store=SqliteStore(path)) as engine:
        with pytest.raises(CorruptJournal, match="ghost"):
            await engine.result("ghost", timeout=30)
        await engine.idle()
    await go_on(path, pipeline, run_id)


# --- snapshots


@virtually
async def test_a_long_run_is_not_folded_from_its_beginning(system: VirtualSystem) -> None:
    """J-8: of 2,000 steps' facts only those after the newest snapshot are read again."""

    def make(number: int) -> Any:
        @step(f"step-{number}/v1")
        async def one(inv: Inv) -> None:
            if number == 1990:
                await gate()

        return one

    gate = Gate()
    pipeline = line(*(make(number) for number in range(2000)))
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        rows = len([1 for _ in await engine.journal(run.id)]) // 2
        engine.abort()
    gate.go.set()
    async with world.engine(app(pipeline)) as engine:
        await gate.until(2)
        loaded = world.stores[-1].rows_loaded
        assert isinstance(await engine.result(run.id), Succeeded)
    assert rows > 1900
    assert loaded < rows * 0.55


async def test_a_snapshot_that_is_damaged_or_of_another_release_is_not_used(tmp_path: Path) -> None:
    """J-8, J-11: the run is folded from its beginning and goes on."""
    path = tmp_path / "store.db"
    pipeline = paused([])
    damages = [(REDUCER_VERSION, data) for data in ("x'7b'", "x'ff00'", "cast('{}' AS BLOB)", "zeroblob(0)")]
    for reducer, data in [*damages, (REDUCER_VERSION + 1, "cast('{\"another\": 1}' AS BLOB)")]:
        (run_id,) = await resting(path, pipeline, data)
        sql(
            path,
            f"INSERT OR REPLACE INTO snapshot SELECT run, max(first_seq), hash, 1, {reducer}, {data} FROM journal "
            "WHERE run = (SELECT max(n) FROM run)",
        )
        async with app(pipeline).client(store=SqliteStore(path)) as client:
            assert (await client.info(run_id)).reason == "error"
        await go_on(path, pipeline, run_id)


async def test_a_cancel_that_the_owner_has_yet_to_take_note_of_is_no_difference(tmp_path: Path) -> None:
    """J-11, J-6: the facts know it, and the row is flagged until its owner writes it; also when that was killed."""
    started = asyncio.Event()

    @step("long/v1")
    async def long(inv: Inv) -> None:
        started.set()
        await asyncio.Event().wait()

    pipeline = line(long)
    path = tmp_path / "killed.db"
    async with app(pipeline).engine(store=SqliteStore(path)) as engine:
        run = await engine.submit(pipeline, "x")
        await started.wait()
        engine.abort()
    async with app(pipeline).client(store=SqliteStore(path)) as client:
        await client.cancel(run.id)
        assert (await client.verify()).findings == ()
