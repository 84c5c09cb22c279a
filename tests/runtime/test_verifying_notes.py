"""Slots, mutexes, waits and places that a hand deleted or added: found, named with what mends it, and mended [J-11]."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import AwaitRuns, Engine, Limit, MutexConflict, Pipeline, step
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.drivers import schema
from tests.postgres import PostgresServer
from tests.runtime.kinship import Texts, words
from tests.runtime.lab import Gate, Inv, World, app, line, virtually
from tests.runtime.test_verifying import sql

Sql = Callable[[str], object]
HOUR = 3600.0


def same(input: str) -> str:
    """The resource is the input."""
    return input


def pipelines(gate: Gate) -> dict[str, Any]:
    """One with a mutex and slots, another with the same mutex, one that waits for a run, and one with a limit."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        return None

    @step("pay/v1", limits=(Limit("bank", concurrency=1),))
    async def pay(inv: Inv) -> None:
        await gate()

    wait: Any = AwaitRuns("wait/v1", runs=words)

    def how_many(inv: Inv) -> int:
        return len(inv[wait])

    waiter: Texts = Pipeline(id="waiter", input=str, deps=object, steps=[wait], output=how_many)
    return {
        "payout": line(one, id="payout", resource=same, mutexes=("account",)),
        "close": line(one, id="close", resource=same, mutexes=("account",)),
        "limited": line(pay, id="limited"),
        "waiter": waiter,
    }


NUMBER = "(SELECT n FROM run WHERE id = '{%s}')"
LIVE, ENDED, WAITER, LINE = (NUMBER % name for name in ("live", "ended", "waiter", "line"))
DAMAGES: dict[str, tuple[str, str, str]] = {
    "mutex lost": ("live", "DELETE FROM mutex", "lost the mutex 'account' of 'a': .*--repair"),
    "mutex added": (
        "live",
        f"INSERT INTO mutex (tenant, resource, name, run) VALUES ('acme', 'z', 'account', {LIVE})",
        "has the mutex 'account' of 'z' of tenant 'acme' that is none of its own",
    ),
    "mutex of an ended run": (
        "ended",
        f"INSERT INTO mutex (tenant, resource, name, run) VALUES ('default', 'z', 'account', {ENDED})",
        "none of its own",
    ),
    "mutex of nobody": (
        "",
        "INSERT INTO mutex (tenant, resource, name, run) VALUES ('default', 'z', 'account', 999)",
        "mutex account of z of tenant default belongs to a run that is not there; .*--repair",
    ),
    "slot lost": ("live", f"UPDATE run SET slot_held = FALSE WHERE n = {LIVE}", "lost its slot: .*--repair"),
    "slot kept": ("ended", f"UPDATE run SET slot_held = TRUE WHERE n = {ENDED}", "ended and still has its slot"),
    "wait lost": ("waiter", "DELETE FROM waiter", "waits for run {live}, whose end would not wake it; `perdure hold"),
    "wait added": (
        "live",
        f"INSERT INTO waiter (waiter, target) VALUES ({LIVE}, '{{ended}}')",
        "noted to wait for other runs and does not: .*--repair",
    ),
    "wait of nobody": (
        "",
        "INSERT INTO waiter (waiter, target) VALUES (999, '{live}')",
        "run {live} is waited for by a run that is not there",
    ),
    "place of an ended run": (
        "ended",
        f"INSERT INTO permit (run, limit_id, key, kind) VALUES ({ENDED}, 'bank', '', 'concurrency')",
        "ended and still has a place under limit 'bank'; .*--repair",
    ),
    "place of nobody": (
        "",
        "INSERT INTO permit (run, limit_id, key, kind) VALUES (999, 'bank', 'k', 'concurrency')",
        "a place under limit bank k belongs to a run that is not there",
    ),
    "place in line of nobody": (
        "",
        "INSERT INTO queue (limit_id, key, run, since_us) VALUES ('bank', 'k', 999, 1)",
        "in line for limit bank k stands a run that is not there",
    ),
    "room of nobody": (
        "",
        "INSERT INTO entered (run, limit_id, key) VALUES (999, 'bank', 'k')",
        "room in the queue of limit bank k belongs to a run that is not there",
    ),
    "miscounted": ("", "UPDATE bound SET held = held + 1", "limit bank are counted as taken as are not"),
    "line lost": ("line", "DELETE FROM queue", "waits for limit 'bank', and does not stand in line; `perdure retry"),
}
"""Whose finding it is, the damage, and what is said of it."""


async def _ids(engine: Engine, lines: dict[str, Any], gate: Gate) -> dict[str, str]:
    """Runs of all kinds, by what they are."""
    ended = await engine.submit(lines["payout"], "b", delay=HOUR)
    await ended.cancel()
    await ended.result(timeout=30)
    live = await engine.submit(lines["payout"], "a", delay=HOUR)
    waiter = await engine.submit(lines["waiter"], live.id)
    first = await engine.submit(lines["limited"], "1")
    await gate.until(1)
    second = await engine.submit(lines["limited"], "2")
    for run, waits in ((waiter, "waits for"), (second, "waits for limit")):
        async for info in run.watch():
            if info.reason.startswith(waits):
                break
    return {"live": live.id, "ended": ended.id, "waiter": waiter.id, "first": first.id, "line": second.id}


async def _mended(engine: Engine, name: str, ids: dict[str, str]) -> None:
    """Do what the finding says."""
    if name == "wait lost":
        await engine.hold(ids["waiter"])
        await engine.release(ids["waiter"])
    elif name == "line lost":
        await engine.retry(ids["line"])
    else:
        await engine.verify(repair=True)


async def _damages_are_found_and_mended(engine: Engine, lines: dict[str, Any], gate: Gate, execute: Sql) -> None:
    ids = await _ids(engine, lines, gate)
    try:
        await _damages(engine, ids, execute)
        with pytest.raises(MutexConflict, match=ids["live"]):
            await engine.submit(lines["close"], "a")
    finally:
        gate.go.set()
    for name in ("first", "line"):
        await engine.result(ids[name], timeout=30)


async def _damages(engine: Engine, ids: dict[str, str], execute: Sql) -> None:
    assert (await engine.verify()).findings == ()
    for name, (whose, damage, said) in DAMAGES.items():
        execute(damage.format(**ids))
        found = (await engine.verify()).findings
        assert [finding.run_id for finding in found if finding.run_id == ids.get(whose, "")], name
        assert any(re.search(said.format(**ids), finding.problem) for finding in found), (name, found)
        await _mended(engine, name, ids)
        assert (await engine.verify()).findings == (), name


async def test_in_sqlite(tmp_path: Path) -> None:
    """J-11, R-10, R-11, R-16, M-1."""
    path, gate = tmp_path / "store.db", Gate()
    lines = pipelines(gate)
    async with app(*lines.values()).engine(store=SqliteStore(path)) as engine:
        await _damages_are_found_and_mended(engine, lines, gate, lambda text: sql(path, text))


async def test_in_postgresql(postgres: PostgresServer) -> None:
    """J-11, R-10, R-11, R-16, M-1."""
    url, gate = postgres.url(), Gate()
    lines = pipelines(gate)
    async with app(*lines.values()).engine(store=url) as engine:
        prefix = f"SET search_path = {schema(url)}; "
        await _damages_are_found_and_mended(engine, lines, gate, lambda text: postgres.sql(prefix + text))


@virtually
async def test_in_memory_nothing_is_wrong(system: VirtualSystem) -> None:
    """J-11: what no hand can reach is right, and `verify` of every kind of run says so."""
    gate = Gate()
    lines = pipelines(gate)
    async with World(system).engine(app(*lines.values())) as engine:
        await _ids(engine, lines, gate)
        report = await engine.verify(repair=True)
        gate.go.set()
        assert report.findings == ()
