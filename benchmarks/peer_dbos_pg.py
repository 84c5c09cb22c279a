"""DBOS Transact on PostgreSQL, with its own defaults: `python -m benchmarks.peer_dbos_pg URL STEPS`."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from dbos import DBOS

from benchmarks.children import Part, serve
from benchmarks.peer_dbos import trivial_workflow
from benchmarks.runs import Slice


async def serve_dbos(url: str, steps: int) -> None:
    """Start workflows and wait for their results."""
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()

    async def measure(runs: int, concurrency: int) -> Part:
        measured = Slice()
        numbers = iter(range(runs))

        async def caller() -> None:
            for _ in numbers:
                started = time.perf_counter()
                handle = await DBOS.start_workflow_async(trivial_workflow, steps)
                await handle.get_result()
                measured.latencies_ms.append((time.perf_counter() - started) * 1e3)

        cpu_s, began = time.process_time(), time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(concurrency)))
        measured.wall_s, measured.cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        return Part.of(measured, runs)

    await serve(measure)


if __name__ == "__main__":
    asyncio.run(serve_dbos(sys.argv[1], int(sys.argv[2])))
    os._exit(0)  # its threads would go on for a while
