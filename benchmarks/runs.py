"""W1: many short runs, a given number of them at a time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from benchmarks.commits import commits_per_run
from benchmarks.measurement import Measurement, percentile
from benchmarks.pipelines import app_of, trivial
from benchmarks.places import Place
from benchmarks.process import rss_mb
from perdure import Engine, Pipeline, Succeeded

WARM_UP = 64


@dataclass
class Slice:
    """A stretch of measured runs."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list[float])

    @property
    def runs_per_s(self) -> float:
        """Runs that ended, by wall clock."""
        return len(self.latencies_ms) / self.wall_s


async def measure_slice(engine: Engine, pipeline: Pipeline[int, object, None], runs: int, concurrency: int) -> Slice:
    """Submit runs and wait for their results, `concurrency` at a time."""
    measured = Slice()
    numbers = iter(range(runs))

    async def caller() -> None:
        for number in numbers:
            started = time.perf_counter()
            run = await engine.submit(pipeline, number)
            result = await run.result()
            measured.latencies_ms.append((time.perf_counter() - started) * 1e3)
            if not isinstance(result, Succeeded):
                raise RuntimeError(f"{run} ended with {result}")

    cpu_s, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    measured.wall_s = time.perf_counter() - started
    measured.cpu_s = time.process_time() - cpu_s
    return measured


async def w1(where: Place, *, runs: int, steps: int, concurrency: int) -> Measurement:
    """`runs` runs of `steps` trivial steps, `concurrency` at a time, from submission to result."""
    await where.prepare()
    pipeline = trivial(steps)
    async with app_of(pipeline, where.url).engine() as engine:
        warm = await measure_slice(engine, pipeline, min(WARM_UP, runs), concurrency)
        measured = await measure_slice(engine, pipeline, runs, concurrency)
        rss = rss_mb()
    written = where.bytes_written()
    commits = await commits_per_run(where, steps=steps, concurrency=concurrency)
    return Measurement(
        workload="W1",
        store=where.kind,
        concurrency=concurrency,
        runs=runs,
        steps_per_s=measured.runs_per_s * steps,
        runs_per_s=measured.runs_per_s,
        p50_ms=percentile(measured.latencies_ms, 0.5),
        p99_ms=percentile(measured.latencies_ms, 0.99),
        commits_per_run=commits,
        bytes_per_run=None if written is None else written / (runs + len(warm.latencies_ms)),
        rss_mb=rss,
        extra={"steps": steps, "cpu_us_per_step": measured.cpu_s / (runs * steps) * 1e6},
    )
