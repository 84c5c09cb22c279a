"""Absurd on PostgreSQL: one worker process with one connection, polling every 10 ms.

`python -m benchmarks.peer_absurd URL STEPS`; the schema comes with the package `absurdctl`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import TypeVar, cast

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.children import Part, serve
from benchmarks.pipelines import TEXT
from benchmarks.runs import Slice

F = TypeVar("F")
POLL_S = 0.01


def typed(decorator: object) -> Callable[[F], F]:
    """A decorator of a package that has no types as long as it is not installed."""
    return cast("Callable[[F], F]", decorator)


async def serve_absurd(url: str, steps: int) -> None:
    """Spawn tasks, and wait until all of them are completed; a slice waits for all, not for each."""
    with psycopg.connect(url, autocommit=True) as con:
        con.execute(BUNDLED_SCHEMA_SQL)
    client, worker = AsyncAbsurd(url), AsyncAbsurd(url)
    await client.create_queue()

    @typed(worker.register_task(name="trivial"))
    async def trivial(params: dict[str, int], context: object) -> None:
        for number in range(params["steps"]):

            async def state(number: int = number) -> dict[str, object]:
                return {"number": number, "text": TEXT}

            await context.step(f"step-{number}", state)  # type: ignore[attr-defined]  # see `typed`

    looking = await psycopg.AsyncConnection.connect(url, autocommit=True)

    async def completed() -> int:
        found = await looking.execute("SELECT count(*) FROM absurd.t_default WHERE state = 'completed'")
        row = await found.fetchone()
        return 0 if row is None else int(row[0])

    async def measure(runs: int, concurrency: int) -> Part:
        measured = Slice()
        cpu_s, began, before = time.process_time(), time.perf_counter(), await completed()
        for _ in range(runs):
            await client.spawn("trivial", {"steps": steps}, queue="default")
        working = asyncio.create_task(worker.start_worker(concurrency=concurrency, poll_interval=POLL_S))
        while await completed() < before + runs:  # noqa: ASYNC110  # another program's end has no event
            await asyncio.sleep(POLL_S)
        measured.wall_s, measured.cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        worker.stop_worker()
        await working
        return Part.of(measured, runs)

    await serve(measure)


if __name__ == "__main__":
    asyncio.run(serve_absurd(sys.argv[1], int(sys.argv[2])))
    os._exit(0)
