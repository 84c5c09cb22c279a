"""W1 on DBOS Transact over SQLite, with DBOS's own defaults; a process of its own, started by `compare`.

`python -m benchmarks.peer_dbos PATH RUNS STEPS CONCURRENCY` prints one measurement as JSON. Needs `make bench-env`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import TypeVar, cast

from dbos import DBOS

from benchmarks.measurement import Measurement, percentile
from benchmarks.pipelines import TEXT
from benchmarks.process import rss_mb

F = TypeVar("F", bound=Callable[..., object])


def typed(decorator: object) -> Callable[[F], F]:
    """A decorator of DBOS, which has no types as long as it is not installed."""
    return cast("Callable[[F], F]", decorator)


@typed(DBOS.step())
async def trivial_step(number: int) -> dict[str, object]:
    """The state of our trivial steps."""
    return {"number": number, "text": TEXT}


@typed(DBOS.workflow())
async def trivial_workflow(steps: int) -> None:
    """As many trivial steps as asked for."""
    for number in range(steps):
        await trivial_step(number)


async def measure(path: str, runs: int, steps: int, concurrency: int) -> Measurement:
    """Start workflows and wait for their results, `concurrency` at a time."""
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
    DBOS.launch()
    latencies_ms: list[float] = []

    async def caller(count: list[int]) -> None:
        while count:
            count.pop()
            started = time.perf_counter()
            handle = await DBOS.start_workflow_async(trivial_workflow, steps)
            await handle.get_result()
            latencies_ms.append((time.perf_counter() - started) * 1e3)

    warm_up = [0] * min(8, runs)
    await asyncio.gather(*(caller(warm_up) for _ in range(min(concurrency, 8))))
    latencies_ms.clear()
    empty_bytes = _size(path)
    waiting = [0] * runs
    cpu_s, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller(waiting) for _ in range(concurrency)))
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    return Measurement(
        workload="DBOS W1",
        store="sqlite",
        concurrency=concurrency,
        runs=runs,
        steps_per_s=runs * steps / wall_s,
        runs_per_s=runs / wall_s,
        p50_ms=percentile(latencies_ms, 0.5),
        p99_ms=percentile(latencies_ms, 0.99),
        bytes_per_run=(_size(path) - empty_bytes) / runs,
        rss_mb=rss_mb(),
        extra={"steps": steps, "cpu_us_per_step": cpu_s / (runs * steps) * 1e6},
    )


def _size(path: str) -> int:
    return os.path.getsize(path)


def main() -> None:
    """See the module."""
    path, runs, steps, concurrency = sys.argv[1], *(int(text) for text in sys.argv[2:5])
    print(asyncio.run(measure(path, runs, steps, concurrency)).json(), flush=True)
    os._exit(0)  # its threads would go on for a while


if __name__ == "__main__":
    main()
