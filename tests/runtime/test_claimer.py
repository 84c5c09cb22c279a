"""Finding due runs: exactly when they are due, never more than there are places, never by looking at all [R-1, R-7]."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from perdure import Retry, StoreUnavailable, Succeeded, step
from perdure.core.facts import OperationReserved
from perdure.ports.store import Append
from perdure.runtime.run import Run
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import SECOND_US, Failing, Gate, Gated, Inv, Line, World, app, line, until, virtually


async def starts_us(run: Run[None]) -> list[int]:
    return [f.at_us - EPOCH_US for f in await run.journal() if isinstance(f.fact, OperationReserved)]


def flaky(first_backoff_s: float) -> Line:
    """A pipeline whose first attempt fails."""

    @step("flaky/v1", retry=Retry(initial=first_backoff_s, cap=first_backoff_s, jitter=0))
    async def flaky(inv: Inv) -> None:
        if inv.attempt == 1:
            raise OSError("down")

    return line(flaky, id="flaky")


@step("plain/v1")
async def plain(inv: Inv) -> None:
    pass


@virtually
async def test_a_run_that_rests_while_the_store_is_asked_is_not_forgotten(system: VirtualSystem) -> None:
    """R-16: what the store answered is older than what was just told."""
    steady, shaky = line(plain), flaky(1.0)
    world = World(system)
    async with world.engine(app(steady, shaky), around=Gated) as engine:
        store = world.stores[0]
        assert isinstance(store, Gated)
        await system.sleep(1)
        store.shut("next_due_us")
        await engine.submit(steady, "x", delay=50)
        await store.arrived["next_due_us"].wait()
        run = await engine.submit(shaky, "x")
        await until(run, "ready")
        store.open_gate("next_due_us")
        assert isinstance(await run.result(), Succeeded)
        assert await starts_us(run) == [SECOND_US, 2 * SECOND_US]


@virtually
async def test_what_was_just_told_does_not_hide_what_the_store_knows(system: VirtualSystem) -> None:
    """R-16"""
    steady, shaky = line(plain), flaky(30.0)
    world = World(system)
    async with world.engine(app(steady, shaky), around=Gated) as engine:
        store = world.stores[0]
        assert isinstance(store, Gated)
        early = await engine.submit(steady, "x", delay=5)
        store.shut("due")
        await engine.submit(steady, "y", delay=1000)
        await store.arrived["due"].wait()
        late = await engine.submit(shaky, "x")
        await until(late, "ready")
        store.open_gate("due")
        assert isinstance(await early.result(), Succeeded)
        assert isinstance(await late.result(), Succeeded)
        assert await starts_us(early) == [5 * SECOND_US]
        assert await starts_us(late) == [0, 30 * SECOND_US]


@virtually
async def test_never_more_runs_than_places(system: VirtualSystem) -> None:
    """R-1: also when places are taken while due runs are being looked for."""
    gate, most, inside = Gate(), 0, 0

    @step("count/v1")
    async def count(inv: Inv) -> None:
        nonlocal most, inside
        inside += 1
        most = max(most, inside)
        await gate()
        inside -= 1

    pipeline = line(count)
    world = World(system)
    async with world.engine(app(pipeline), concurrency=3, around=Gated) as engine:
        store = world.stores[0]
        assert isinstance(store, Gated)
        runs = [await engine.submit(pipeline, "x", delay=1) for _ in range(5)]
        store.shut("due")
        await store.arrived["due"].wait()
        runs += [await engine.submit(pipeline, "x") for _ in range(2)]
        store.open_gate("due")
        await gate.until(3)
        await system.sleep(10)
        assert engine.running == 3
        gate.go.set()
        for run in runs:
            assert isinstance(await run.result(), Succeeded)
        assert most == 3


@virtually
async def test_a_place_is_free_as_soon_as_its_run_rests(system: VirtualSystem) -> None:
    """R-4, R-1: with one place, a run that backs off, is held, is invalid or is canceled keeps none."""

    @step("rest/v1", retry=Retry(initial=1000, cap=1000))
    async def rest(inv: Inv) -> str:
        if inv.input == "error":
            raise OSError("down")
        if inv.input == "forever":
            await asyncio.get_running_loop().create_future()
        return inv.input

    pipeline = line(rest)
    async with World(system).engine(app(pipeline), concurrency=1) as engine:
        failed = await engine.submit(pipeline, "error")
        await until(failed, "ready")
        forever = await engine.submit(pipeline, "forever")
        waiting = [await engine.submit(pipeline, str(n)) for n in range(5)]
        await waiting[0].cancel()  # while it has no place
        await waiting[1].hold()
        await forever.cancel()
        for run in waiting[2:]:
            assert isinstance(await run.result(), Succeeded)
        assert (await waiting[0].info()).status == "canceled"
        assert (await waiting[1].info()).status == "held"
        assert engine.running == 0


@virtually
async def test_longest_due_first_and_nobody_starves(system: VirtualSystem) -> None:
    """R-7: new submissions do not overtake runs that were due before, for lack of a place."""
    order: list[str] = []
    gate = Gate()

    @step("note/v1")
    async def note(inv: Inv) -> None:
        order.append(inv.input)
        await gate()

    pipeline = line(note)
    world = World(system)
    async with world.client(app(pipeline)) as client:
        for n in range(20):
            await client.submit(pipeline, f"early {n:02}", delay=n / 1000)
    await system.sleep(1)
    async with world.engine(app(pipeline), concurrency=2) as engine:
        await gate.until(2)
        for n in range(5):
            await engine.submit(pipeline, f"late {n}")
        gate.go.set()
        await engine.idle()
        assert order[:20] == [f"early {n:02}" for n in range(20)]
        assert sorted(order[20:]) == [f"late {n}" for n in range(5)]


@virtually
async def test_a_run_that_cannot_be_read_neither_spins_nor_delays_others(system: VirtualSystem) -> None:
    """R-8, R-16"""
    pipeline = line(plain)
    world = World(system)
    async with world.engine(app(pipeline), around=Failing) as engine, world.client(app(pipeline)) as client:
        store = world.stores[0]
        assert isinstance(store, Failing)
        sick = await engine.submit(pipeline, "sick", delay=1)
        others = [await engine.submit(pipeline, "x", delay=delay) for delay in (1, 2.5, 20, 200)]
        store.fail_if("load", lambda run_id: run_id == sick.id, StoreUnavailable("a bad block"))
        for run, second in zip(others, (1, 2.5, 20, 200), strict=True):
            assert isinstance(await (await client.run(run.id)).result(), Succeeded)
            [start_us] = await starts_us(run)
            assert second * SECOND_US <= start_us <= (second + 0.1) * SECOND_US
        assert store.calls["due"] < 200 * 11
        store.fail_if("load", lambda _: False, StoreUnavailable(""))
        assert isinstance(await sick.result(timeout=120), Succeeded)


@virtually
async def test_a_claim_that_fails_again_and_again_is_tried_with_growing_distance(system: VirtualSystem) -> None:
    """R-8, R-16: nothing of the run was written, so the store calls it due all the time."""
    pipeline = line(plain)
    world = World(system)
    claims: list[int] = []

    def a_claim(append: Append) -> bool:
        if b"SegmentAttemptStarted" in append.facts and b"RunSubmitted" not in append.facts:
            claims.append(world.now_us())
            return len(claims) <= 5
        return False

    async with world.engine(app(pipeline), around=Failing) as engine:
        store = world.stores[0]
        assert isinstance(store, Failing)
        store.fail_if("append", a_claim, RuntimeError("a bug"))
        run = await engine.submit(pipeline, "x", delay=1)
        assert isinstance(await run.result(), Succeeded)
        waits = [after - before for before, after in itertools.pairwise(claims)]
        assert waits == sorted(waits)
        assert waits[0] >= SECOND_US // 2


@virtually
async def test_a_run_whose_index_row_contradicts_its_facts_is_no_reason_to_spin(system: VirtualSystem) -> None:
    """R-16, J-11: damage to the fencing token, say; the claim is refused, and the run goes on once it is mended."""
    pipeline = line(plain)
    world = World(system)
    async with world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x")
        loaded = await client.store.load(run.id)
        assert loaded is not None
        row = loaded.row
        assert await client.store.set_index(row.locator, msgspec.structs.replace(row.state, token=7), 1)
    async with world.engine(app(pipeline)) as engine:
        await system.sleep(600)
        assert world.stores[-1].calls["load"] < 30
        assert engine.running == 0
        assert await engine.store.set_index(row.locator, row.state, 1)
        assert isinstance(await engine.result(run.id, timeout=300), Succeeded)


@virtually
async def test_a_clock_that_was_set_forward_is_noticed(system: VirtualSystem) -> None:
    """R-3, R-16: times decide when; however quiet it is, the engine looks once a minute."""
    pipeline = line(plain)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", delay=86_400)
        system.skew_us = 86_400 * SECOND_US
        assert isinstance(await run.result(timeout=61), Succeeded)


@virtually
async def test_a_clock_that_was_set_back_delays_and_loses_nothing(system: VirtualSystem) -> None:
    """R-3"""
    pipeline = line(plain)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", delay=10)
        system.skew_us = -100 * SECOND_US
        with pytest.raises(TimeoutError):
            await run.result(timeout=100)
        assert isinstance(await run.result(timeout=61), Succeeded)


@virtually
async def test_ten_thousand_waiting_runs_cost_a_start_nothing(system: VirtualSystem) -> None:
    """R-7: only what is due is read, and asking for it does not depend on how many wait."""
    pipeline = line(plain)
    world = World(system)
    async with world.client(app(pipeline)) as client:
        waiting = [client.submit(pipeline, "x", delay=86_400 + n) for n in range(10_000)]
        await asyncio.gather(*waiting)
        due = [await client.submit(pipeline, "x", delay=n) for n in range(3)]
    await system.sleep(3)
    async with world.engine(app(pipeline)) as engine:
        for run in due:
            assert isinstance(await engine.result(run.id), Succeeded)
        await engine.idle()
        calls = world.stores[0].calls
        assert calls["load"] <= 3 + 3  # each due one by the claim, and by its waiter
        assert calls["due"] <= 5
        assert calls["next_due_us"] <= 5
        assert calls["append"] == 3 * 2
        assert calls["set_index"] == 0
