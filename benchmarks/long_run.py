"""W2: one run of very many steps, and whether its last steps cost more than its first."""

from __future__ import annotations

import time

from benchmarks.measurement import Measurement
from benchmarks.pipelines import app_of, trivial
from benchmarks.places import Place
from benchmarks.process import rss_mb
from perdure import Succeeded

EARLY = 100
"""The early place whose price is the measure for the late one."""


async def w2(where: Place, *, steps: int) -> Measurement:
    """One run of `steps` steps. Processor time is read by the handlers themselves, at every step.

    `cpu_us_at_100` and `cpu_us_at_end` are the processor time of this process for one step, over a window around step
    100 and over one that ends with the last step; `cpu_us_per_step` is the mean over all, snapshots included.
    """
    await where.prepare()
    cpu_s = [0.0] * steps

    def on_step(position: int) -> None:
        cpu_s[position] = time.process_time()

    pipeline = trivial(steps, on_step)
    async with app_of(pipeline, where.url).engine() as engine:
        await (await engine.submit(pipeline, 0)).result()  # warm: files have their size, code is compiled
        cpu_s = [0.0] * steps
        started = time.perf_counter()
        run = await engine.submit(pipeline, 1)
        result = await run.result()
        wall_s = time.perf_counter() - started
        rss = rss_mb()
    if not isinstance(result, Succeeded):
        raise RuntimeError(f"{run} ended with {result}")
    written = where.bytes_written()
    window = min(max(1, steps // 20), 500)
    first = max(0, min(EARLY, steps // 2) - window // 2)
    early, late = _per_step_us(cpu_s, first, first + window), _per_step_us(cpu_s, steps - 1 - window, steps - 1)
    return Measurement(
        workload="W2",
        store=where.kind,
        concurrency=1,
        runs=1,
        steps_per_s=steps / wall_s,
        runs_per_s=1 / wall_s,
        bytes_per_run=None if written is None else written / 2,
        rss_mb=rss,
        extra={
            "steps": steps,
            "cpu_us_per_step": _per_step_us(cpu_s, 0, steps - 1),
            "cpu_us_at_100": early,
            "cpu_us_at_end": late,
            "late_to_early": late / early if early else None,
        },
    )


def _per_step_us(cpu_s: list[float], first: int, last: int) -> float:
    first = max(0, first)
    return (cpu_s[last] - cpu_s[first]) / max(1, last - first) * 1e6
