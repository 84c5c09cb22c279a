"""Finding and picking due runs on PostgreSQL: what it costs, many that pick at once, picks in trouble [R-1, R-7]."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, closing
from typing import cast

import pytest

from benchmarks.written import Counters, counted_url
from perdure.ports.store import Candidate, RunFilter, Store, share_served
from perdure.storage.postgres import picking
from perdure.storage.postgres.choosing import (
    CANDIDATES,
    DUE,
    FOUND,
    NEXT_DUE,
    NEXT_DUE_SERVED,
    PATIENCE_MS,
    PROBED,
)
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.queries import LOAD_MANY
from perdure.storage.postgres.session import Session
from perdure.storage.postgres.turns import DUE_SERVED, TAKE, due_served, served
from perdure.testing.conformance.lab import T0, submitted
from tests.postgres import PostgresServer
from tests.storage.helpers import DEADLINE_S, soon
from tests.storage.test_postgres_faults import opened, proxied

LATER = T0 + 1_000
SERVING = {"p0": 1, "p1": 1}


def park(server: PostgresServer, schema: str, runs: int, **columns: str) -> None:
    """Add runs by SQL; `columns`: other values than those of a run that was begun and is due tomorrow, as SQL of n."""
    values = {
        "id": "'run-' || lpad(n::text, 7, '0')",
        "tenant": "'t' || n % 50",
        "pipeline": "'p' || n % 2",
        "resource": "''",
        "slot_once": "false",
        "slot_held": "false",
        "input_digest": "''",
        "submitted_us": str(T0),
        "deadline_us": "0",
        "status": "'ready'",
        "due_us": f"{LATER} + n",
        "token": "n % 3",
        "generation": "n % 2",
        "build": "''",
        "reason": "''",
        "canceling": "false",
        "step": "''",
        "version": "0",
        "tail_hash": "''",
        "signature": "''",
        "priority": "n % 3 - 1",
        **columns,
    }
    first = int(server.sql(f"SELECT coalesce(max(n), 0) + 1 FROM {schema}.run"))
    server.sql(
        f"INSERT INTO {schema}.run ({', '.join(values)}) "
        f"SELECT {', '.join(values.values())} FROM generate_series({first}, {first + runs - 1}) n"
    )


# --- what it costs

VALUES: Mapping[str, str] = {
    "pipelines": "text[] '{p0,p1}'",
    "generations": "bigint[] '{1,1}'",
    "now": f"bigint '{LATER - 1}'",
    "limit": "bigint '20'",
    "lock": "bigint '0'",
    "wide": "bool 'false'",
    "turn": "bigint '3'",
    "begun": "bigint '3'",
    "new": "bigint '1'",
    "names": "text[] '{p0,p1}'",
    "theirs": "bigint[] '{1,1}'",
    "tenant": "text 't1'",
    "generation": "bigint '5'",
    "last_pipeline": "text 'p0'",
    "last_tenant": "text 't1'",
    "want": "bigint '3'",
    "worker": "text 'w1'",
    "ids": "text[] '{run-0000001,run-0000002}'",
    "snapshot": "bool 'true'",
}
QUERIES = {
    "due": DUE,
    "due, served": DUE_SERVED,
    "candidates": CANDIDATES,
    "next due": NEXT_DUE,
    "next due, served": NEXT_DUE_SERVED,
    "take": TAKE,
    "load many": LOAD_MANY,
}


def explained(server: PostgresServer, schema: str, query: str) -> dict[str, object]:
    """The plan of a statement as the store has it, for values that are not known yet, and what running it touched."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", query)))
    text = query.replace("@", f"{schema}.").replace("%%", "%")
    for number, name in enumerate(names, 1):
        text = text.replace(f"%({name})s", f"${number}")
    types = ", ".join(VALUES[name].split(" ")[0] for name in names)
    values = ", ".join(VALUES[name].split(" ", 1)[1] for name in names)
    prepared = f"PREPARE q{f' ({types})' if names else ''} AS {text}"
    executed = f"EXECUTE q{f' ({values})' if names else ''}"
    found = server.sql(
        f"BEGIN; SET LOCAL plan_cache_mode = force_generic_plan; {prepared}; "
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {executed}; ROLLBACK"
    )
    plan: dict[str, object] = json.loads(found)[0]["Plan"]
    return plan


def nodes(plan: dict[str, object]) -> Iterator[dict[str, object]]:
    yield plan
    for part in cast("list[dict[str, object]]", plan.get("Plans", [])):
        yield from nodes(part)


def blocks(plan: dict[str, object]) -> int:
    return int(str(plan["Shared Hit Blocks"])) + int(str(plan["Shared Read Blocks"]))


async def test_no_query_about_due_runs_scans(postgres: PostgresServer) -> None:
    """R-7: with 100 times as many runs waiting, and 5,000 of a newer generation due longer, whoever looks for due runs
    touches hardly more: each query reads ranges of an index, from their heads."""
    async with opened(postgres.url(schema="costs")):
        pass
    park(postgres, "costs", 12, due_us=f"{T0} + n")
    touched: list[dict[str, int]] = []
    plans: dict[str, dict[str, object]] = {}
    for waiting, newer in ((200, 0), (20_000, 5_000)):
        park(postgres, "costs", waiting)
        if newer:
            park(postgres, "costs", newer, due_us=f"{T0} - n", generation="2", token="1")
        postgres.sql("VACUUM ANALYZE costs.run")
        plans = {name: explained(postgres, "costs", query) for name, query in QUERIES.items()}
        touched.append({name: blocks(plan) for name, plan in plans.items()})
    few, many = touched
    grown = {name: (few[name], many[name]) for name in QUERIES if many[name] > 3 * few[name] + 30}
    assert not grown
    for name, plan in plans.items():
        scans = [node["Node Type"] for node in nodes(plan) if node.get("Relation Name") == "run"]
        assert scans, name
        assert {"Seq Scan", "Bitmap Heap Scan"}.isdisjoint(scans), f"{name}: {scans}"


async def test_of_many_that_are_due_only_the_first_are_read(postgres: PostgresServer) -> None:
    """R-7: whatever a planner likes, whoever looks for some of many reads the heads of the lines, not all of them."""
    url = postgres.url(schema="crowded")
    async with opened(f"{counted_url(url)}&options=-c%20enable_indexscan%3Doff") as store:
        park(postgres, "crowded", 2_000, pipeline="'p0'", token="1", priority="0", generation="1")
        postgres.sql("ANALYZE crowded.run")
        assert await store.due(LATER, 8, 0, SERVING) == []
        park(
            postgres,
            "crowded",
            6_000,
            due_us=f"{T0} + n % 900",
            pipeline="'p0'",
            token="1",
            priority="0",
            generation="1",
        )
        assert len(await store.due(LATER, 8, 0, SERVING)) == 8
    with closing(Counters(url)) as server:
        assert sum(server.read_from(index) for index in ("run_due_begun", "run_due_new", "run_due_tenant")) < 2_000


async def test_queries_are_not_compiled(postgres: PostgresServer) -> None:
    """R-7: by its estimates the search for due runs is worth compiling, which would take longer than it does."""
    session = await Session.connect(Place.of(postgres.url()))
    assert await session.one("SELECT current_setting('jit')") == ("off",)
    session.drop()


async def test_tenants_with_nothing_due_do_not_hide_others(postgres: PostgresServer) -> None:
    """R-1: tenants are looked at in turn, some at a time; among 300 that only wait, the one that has a run due gets
    its place, although another has 400 due for longer."""
    async with opened(postgres.url(schema="hidden"), "w1") as store:
        park(postgres, "hidden", 400, tenant="'loud'", pipeline="'p0'", due_us=f"{T0} + n", token="1", priority="9")
        park(postgres, "hidden", 300, tenant="'m' || lpad(n::text, 4, '0')", pipeline="'p0'", token="1")
        park(postgres, "hidden", 1, id="'quiet'", tenant="'quiet'", pipeline="'p0'", due_us=f"{LATER} - 1")
        picked: list[str] = []
        while "quiet" not in picked and len(picked) < 400:
            picked += await store.pick("w1", LATER, 16, len(picked), SERVING)
        assert picked.index("quiet") < 16 * 7


async def test_the_server_works_out_the_same_order(postgres: PostgresServer) -> None:
    """R-1: whose turn it is, is worked out by the server as by `share_served`, whatever is due and who was last."""
    dice = random.Random(7)
    async with opened(postgres.url(schema="turns")):
        pass
    session = await Session.connect(Place.of(postgres.url(schema="turns")))
    mixed = {
        "pipeline": "'p' || n * n % 3",
        "token": "(n * 5 % 7) / 4",
        "priority": "(n * 11 % 5) / 3",
        "generation": "n % 4 / 3 * 2",
    }
    one_line_is_long = {
        "pipeline": "'p' || 1 - n % 20 / 19",
        "token": "1",
        "priority": "CASE n % 20 WHEN 0 THEN n / 20 % 9 ELSE 0 END",
        "generation": "0",
    }
    for size, columns in ((7, mixed), (60, mixed), (400, one_line_is_long), (400, mixed)):
        tenant = "('{x,y,z}'::text[])[1 + n * 7 % 3]"
        park(postgres, "turns", size, due_us=f"{T0} + n * 37 % 23", tenant=tenant, **columns)
        for _ in range(40):
            names = dice.sample(("p0", "p1", "p2", "p9"), dice.randint(1, 4))
            serving = {name: dice.randint(0, 2) for name in names}
            now_us, limit, turn = T0 + dice.randint(-1, 25), dice.randint(1, 70), dice.randint(0, 99)
            last = dice.choice([("", ""), ("p1", "x"), ("p1", "zz"), ("p2", "y"), ("gone", "q")])
            rows = await session.rows(
                f"WITH found AS MATERIALIZED ({FOUND}), probed AS ({PROBED}) SELECT false, begun, pipeline, priority, "
                "due_us, n, id, tenant FROM found UNION ALL "
                "SELECT true, begun, pipeline, priority, due_us, n, id, tenant FROM probed",
                {**served(0, now_us, limit, turn, serving, last), "wide": True},
            )
            there, asked = [
                [
                    Candidate((due_us, n, run_id), pipeline, tenant, priority, begun)
                    for probed, begun, pipeline, priority, due_us, n, run_id, tenant in rows
                    if probed == of_tenants and n is not None
                ]
                for of_tenants in (False, True)
            ]
            tenants = list({run.due: run for run in asked}.values()) if any(row[0] for row in rows) else there
            wanted = share_served(there, tenants, serving, last, limit, turn)
            found = await due_served(session, now_us, limit, turn, serving, last)
            assert found == wanted.run_ids, (columns, now_us, limit, turn, serving, last)
    session.drop()


# --- many at once


async def test_many_pick_at_once_and_none_twice(postgres: PostgresServer) -> None:
    """R-1: whoever is being picked is passed over: nobody waits, and no run goes to two workers."""
    url = postgres.url(schema="crowd")
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(url)) for _ in range(5)]
        park(postgres, "crowd", 300, due_us=f"{T0} + n")

        async def all_of(worker: str, store: Store) -> list[str]:
            mine: list[str] = []
            while found := await store.pick(worker, LATER, 7, len(mine), SERVING):
                mine += found
            return mine

        found = await soon(asyncio.gather(*[all_of(f"w{n}", store) for n, store in enumerate(stores)]))
        everything = [run_id for mine in found for run_id in mine]
        assert sorted(everything) == [f"run-{n:07}" for n in range(1, 301)]
        owners = {row.run.run_id: row.state.worker for row in (await stores[0].list_runs(RunFilter(), limit=400)).rows}
        assert owners == {run_id: f"w{n}" for n, mine in enumerate(found) for run_id in mine}


async def test_nobody_waits_for_a_locked_run(postgres: PostgresServer) -> None:
    """R-1: what a transaction of somebody else holds is passed over at once, and there for the next pick."""
    url = postgres.url(schema="locked")
    async with opened(url) as store:
        for n in range(4):
            await submitted(store, f"run-{n}")
        other = await Session.connect(Place.of(url))
        await other.plain("BEGIN")
        await other.rows("SELECT 1 FROM @run WHERE id < 'run-2' FOR UPDATE")
        assert await soon(store.pick("w1", LATER, 4, 0, {"payout": 1})) == ["run-2", "run-3"]
        await other.plain("ROLLBACK")
        assert await soon(store.pick("w1", LATER, 4, 0, {"payout": 1})) == ["run-0", "run-1"]
        other.drop()


async def test_who_picks_waits_for_another_only_so_long(postgres: PostgresServer) -> None:
    """R-1: one after the other works out whose turn it is, but nobody has to wait for one that does not end."""
    url = postgres.url()
    async with opened(url) as store:
        for n in range(3):
            await submitted(store, f"run-{n}")
        other = await Session.connect(Place.of(url))
        await other.plain("BEGIN")
        await other.rows("SELECT pg_advisory_xact_lock(%s)", (Place.of(url).key("pick"),))
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        assert await soon(store.pick("w1", LATER, 2, 0, {"payout": 1})) == ["run-0", "run-1"]
        assert loop.time() - begun_s > 0.9 * PATIENCE_MS / 1000, "it did not wait"
        await other.plain("ROLLBACK")
        assert await soon(store.pick("w1", LATER, 2, 0, {"payout": 1})) == ["run-2"]
        other.drop()


# --- trouble


@pytest.mark.parametrize("remembered", [picking.REMEMBERED, 1])
async def test_a_pick_whose_answer_is_lost_is_found_out(
    remembered: int, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-1, R-8: a worker knows what it has picked, or has not picked it: no run is left with one that does not know,
    and none is told twice."""
    monkeypatch.setattr(picking, "REMEMBERED", remembered)
    async with proxied(postgres) as proxy, opened(proxy.url(postgres.url())) as store:
        for n in range(6):
            await submitted(store, f"run-{n}")
        assert await store.pick("w1", LATER, 2, 0, {"payout": 1}) == ["run-0", "run-1"]
        assert await store.pick("w1", LATER, 1, 2, {"payout": 1}) == ["run-2"]
        proxy.lose = b"elsewhere"
        picked: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(picked) < 3:  # the server may not have noticed yet that the first attempt is over
                picked += await store.pick("w1", LATER, 3 - len(picked), 3 + len(picked), {"payout": 1, "elsewhere": 1})
        assert proxy.lost == 1
        assert sorted(picked) == ["run-3", "run-4", "run-5"]
        assert {run.row.state.worker for run in await store.load_many(picked)} == {"w1"}


async def test_what_a_canceled_caller_picked_is_given_to_the_next(postgres: PostgresServer) -> None:
    """R-1: a pick goes on when its caller is canceled; who picks next is told of it."""
    async with opened(postgres.url()) as store:
        for n in range(3):
            await submitted(store, f"run-{n}")
        first = asyncio.ensure_future(store.pick("w1", LATER, 3, 0, {"payout": 1}))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        picked: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(picked) < 3:
                picked += await store.pick("w1", LATER, 2, len(picked), {"payout": 1})
        assert first.cancelled()
        assert sorted(picked) == ["run-0", "run-1", "run-2"]
