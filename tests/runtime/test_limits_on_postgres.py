"""Limits across workers, on a real server [R-11]."""

from __future__ import annotations

import asyncio

from perdure import Limit, Succeeded, step
from perdure.storage import open_store
from tests.runtime.lab import Gate, Inv, app, line


async def test_two_workers_share_a_limit(postgres_url: str) -> None:
    """R-11, R-16: never more than two at once among both, everybody's turn comes, and nothing is left taken."""
    inside = most = 0
    gate = Gate()

    @step("before/v1")
    async def before(inv: Inv) -> None:
        return None

    @step("pay/v1", limits=(Limit("bank", concurrency=2), Limit("all", concurrency=50)))
    async def pay(inv: Inv) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await gate()
        inside -= 1

    pipeline = line(before, pay)
    async with app(pipeline).engine(store=postgres_url) as one, app(pipeline).engine(store=postgres_url) as other:
        runs = [await engine.submit(pipeline, str(number)) for number in range(8) for engine in (one, other)]
        async with asyncio.timeout(30):
            await gate.until(2)
            gate.go.set()
            for run in runs:
                assert isinstance(await run.result(), Succeeded)
        assert most == 2
        assert gate.passes == len(runs)
    reader = open_store(postgres_url)
    await reader.open(owner=None)
    assert [(use.limit, use.held, use.waiting) for use in await reader.limits()] == [("all", 0, 0), ("bank", 0, 0)]
    await reader.close()
