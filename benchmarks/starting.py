"""`start`: from the start of a worker process to its first new step, where a million runs wait in PostgreSQL.

`python -m benchmarks.starting URL PIPELINES` is the worker. It serves the pipelines of the waiting runs, too.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from benchmarks.measurement import Measurement, median
from benchmarks.million import Crowd, bound, fill
from benchmarks.pipelines import trivial
from benchmarks.process import ROOT, environment, rss_mb, run
from perdure import App

PIPELINES = 10
REPEATS = 5
AT_MOST_MS = 500.0
"""The bar."""


async def starting(url: str, *, runs: int) -> Measurement:
    """`runs` runs wait; one is due, and nobody is there: a worker starts. Five times, and once before to compile."""
    began = time.perf_counter()
    await fill(url, Crowd(runs, PIPELINES))
    filled_s = time.perf_counter() - began
    pipeline = trivial(1)
    first_ms: list[float] = []
    rss: list[float] = []
    for number in range(-1, REPEATS):
        async with App(pipeline.bind(), store=url).client() as client:
            await client.deploy()
            await client.submit(pipeline, number)
        took_ms, rss_mb = await asyncio.to_thread(_first_step, url)
        if number >= 0:
            first_ms.append(took_ms)
            rss.append(rss_mb)
    return Measurement(
        workload="start",
        store="postgresql",
        runs=runs,
        rss_mb=max(rss),
        extra={
            "first_step_ms": median(first_ms),
            "least_ms": min(first_ms),
            "most_ms": max(first_ms),
            "bar_ms": AT_MOST_MS,
            "fill_s": filled_s,
        },
    )


def _first_step(url: str) -> tuple[float, float]:
    """Start a worker: milliseconds until its first step, and its memory then."""
    started_ns = time.monotonic_ns()
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.starting", url, str(PIPELINES)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        said: list[str] = worker.stdout.readline().split() if worker.stdout is not None else []
        if len(said) != 2:
            raise RuntimeError("the worker ended early")
        worker.communicate()
    return (int(said[0]) - started_ns) / 1e6, float(said[1])


async def _work(url: str, pipelines: int) -> None:
    began: list[int] = []
    stepped = asyncio.Event()

    def on_step(position: int) -> None:
        began.append(time.monotonic_ns())
        stepped.set()

    async with App(*bound(pipelines), trivial(1, on_step).bind(), store=url).engine():
        await stepped.wait()
        print(began[0], rss_mb(), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    run(_work(sys.argv[1], int(sys.argv[2])))
