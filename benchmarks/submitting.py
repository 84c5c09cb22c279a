"""submit_many: how many runs a client makes durable in a second, in calls of some thousands."""

from __future__ import annotations

import time

from benchmarks.measurement import Measurement, median
from benchmarks.pipelines import app_of, trivial
from benchmarks.places import Place
from benchmarks.process import rss_mb

AT_LEAST_PER_S = 20_000
"""The bar, on the SQLite store."""

REPEATS = 5


async def submitting(where: Place, *, runs: int) -> Measurement:
    """`runs` runs in one call, several times; the median counts. Each call checks, encodes, appends, and is durable."""
    await where.prepare()
    pipeline = trivial(5)
    rates: list[float] = []
    cpu_us: list[float] = []
    async with app_of(pipeline, where.url).client() as client:
        await client.submit_many(pipeline, range(1_000))
        for _ in range(REPEATS):
            cpu_s, started = time.process_time(), time.perf_counter()
            found = await client.submit_many(pipeline, range(runs))
            rates.append(runs / (time.perf_counter() - started))
            cpu_us.append((time.process_time() - cpu_s) / runs * 1e6)
            if len(found) != runs:
                raise RuntimeError(f"{len(found)} of {runs} runs were submitted")
    written = where.bytes_written()
    return Measurement(
        workload="submit_many",
        store=where.kind,
        runs=runs,
        runs_per_s=median(rates),
        bytes_per_run=None if written is None else written / (runs * REPEATS + 1_000),
        rss_mb=rss_mb(),
        extra={
            "least_per_s": min(rates),
            "most_per_s": max(rates),
            "bar_per_s": float(AT_LEAST_PER_S),
            "cpu_us_per_run": median(cpu_us),
        },
    )
