"""An engine and its clients on PostgreSQL: the same runs, the same ends, nothing left behind [I-7, R-2, R-6]."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from perdure import Canceled, Invocation, Succeeded, connect, step
from tests.runtime.lab import app, line

Inv = Invocation[str, object]


@step("one/v1")
async def one(inv: Inv) -> None:
    await inv.memo("a", lambda: 1, type=int)


@step("two/v1")
def two(inv: Inv) -> None:
    if inv.attempt == 1:
        raise OSError("down")


async def test_engine_and_client_meet_and_leave_no_task(postgres_url: str) -> None:
    """Work of every kind, submitted by both; the client hears of the ends [R-2, R-6]."""
    pipeline = line(one, two)
    tasks = asyncio.all_tasks()
    async with app(pipeline).engine(store=postgres_url) as engine, app(pipeline).client(store=postgres_url) as client:
        runs = [await engine.submit(pipeline, str(n), deadline=timedelta(hours=1)) for n in range(20)]
        runs += [await client.submit(pipeline, str(n)) for n in range(20, 40)]
        parked = await client.submit(pipeline, "parked", delay=3600)
        for run in runs:
            assert isinstance(await run.result(timeout=60), Succeeded)
        await parked.cancel()
        assert isinstance(await parked.result(timeout=60), Canceled)
    assert asyncio.all_tasks() == tasks
    async with connect(postgres_url) as reader:
        assert len(await reader.list(limit=100)) == 41
        assert (await reader.verify()).findings == ()


async def test_the_next_engine_goes_on_with_what_the_last_one_left(postgres_url: str) -> None:
    """Stopped in the middle of a step; the run is taken over and ends [R-2]."""
    begun, open_now = asyncio.Event(), asyncio.Event()

    @step("waits/v1")
    async def waits(inv: Inv) -> None:
        begun.set()
        await open_now.wait()

    pipeline = line(one, waits, two)
    async with app(pipeline).engine(store=postgres_url) as engine:
        run = await engine.submit(pipeline, "x")
        await asyncio.wait_for(begun.wait(), 30)
        await engine.drain(0)
    open_now.set()
    async with app(pipeline).engine(store=postgres_url) as engine:
        assert isinstance(await engine.result(run.id, timeout=60), Succeeded)
