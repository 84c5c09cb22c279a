"""W5: how long a one-step run takes when nothing else is going on, next to one bare commit."""

from __future__ import annotations

import asyncio
import time

from benchmarks.limits import BareLoop
from benchmarks.measurement import Measurement, percentile
from benchmarks.pipelines import app_of, trivial
from benchmarks.places import Place
from benchmarks.process import rss_mb

QUIET_S = 0.02
"""How long nothing happens before each measured run."""


async def w5(where: Place, *, runs: int) -> Measurement:
    """From `submit` to `result` of a run of one step on an idle engine, each run beside a bare commit on the same disk.

    The bare commit also comes after a quiet while, so that both meet the same cold caches and clocks.
    """
    await where.prepare()
    pipeline = trivial(1)
    latencies_s: list[float] = []
    bare_s: list[float] = []
    bare = None if where.path is None else BareLoop(where.path.with_name(f"{where.path.name}-bare"))
    try:
        async with app_of(pipeline, where.url).engine() as engine:
            for number in range(runs):
                if bare is not None:
                    await asyncio.sleep(QUIET_S)
                    bare_s.append(bare.commit())
                await asyncio.sleep(QUIET_S)
                started = time.perf_counter()
                await (await engine.submit(pipeline, number)).result()
                latencies_s.append(time.perf_counter() - started)
            rss = rss_mb()
    finally:
        if bare is not None:
            bare.close()
    p50_ms, bare_p50_ms = percentile(latencies_s, 0.5) * 1e3, percentile(bare_s, 0.5) * 1e3
    return Measurement(
        workload="W5",
        store=where.kind,
        concurrency=1,
        runs=runs,
        p50_ms=p50_ms,
        p99_ms=percentile(latencies_s, 0.99) * 1e3,
        rss_mb=rss,
        extra={
            "steps": 1,
            "bare_p50_ms": bare_p50_ms if bare_s else None,
            "bare_p99_ms": percentile(bare_s, 0.99) * 1e3 if bare_s else None,
            "above_bare_ms": p50_ms - bare_p50_ms if bare_s else None,
        },
    )
