"""W2: one run of very many steps, and whether its last steps cost more than its first."""

from __future__ import annotations

import time

from benchmarks.limits import BareLoop
from benchmarks.measurement import Measurement
from benchmarks.pipelines import app_of, trivial
from benchmarks.places import Place
from benchmarks.process import rss_mb
from perdure import Succeeded

BARE_COMMITS = 300
EARLY = 100
"""The early place whose price is the measure for the late one."""


async def w2(where: Place, *, steps: int) -> Measurement:
    """One run of `steps` steps. Processor time is read by the handlers themselves, at every step.

    `cpu_us_at_100` and `cpu_us_at_end` are the processor time of this process for one step, over a window around step
    100 and over one that ends with the last step, without the twentieth of the steps that took most and least (other
    programs disturb single steps, a cost that grows with the history shows in all); `cpu_us_per_step` is the mean over
    all, snapshots included.
    `bare_per_s` are bare commits on the same disk, just before and just after.
    """
    await where.prepare()
    bare_s = _bare_s(where)
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
    bare_s += _bare_s(where)
    written = where.bytes_written()
    window = min(max(1, steps // 20), 500)
    first = max(0, min(EARLY, steps // 2) - window // 2)
    early, late = _usual_us(cpu_s, first, first + window), _usual_us(cpu_s, steps - 1 - window, steps - 1)
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
            "bare_per_s": len(bare_s) / sum(bare_s) if bare_s else None,
        },
    )


def _usual_us(cpu_s: list[float], first: int, last: int) -> float:
    costs = sorted(after - before for before, after in zip(cpu_s[first:last], cpu_s[first + 1 : last + 1], strict=True))
    cut = len(costs) // 20
    kept = costs[cut : len(costs) - cut]
    return sum(kept) / max(1, len(kept)) * 1e6


def _per_step_us(cpu_s: list[float], first: int, last: int) -> float:
    first = max(0, first)
    return (cpu_s[last] - cpu_s[first]) / max(1, last - first) * 1e6


def _bare_s(where: Place) -> list[float]:
    if where.path is None:
        return []
    loop = BareLoop(where.path.with_name(f"{where.path.name}-bare"))
    try:
        return loop.commits(BARE_COMMITS)
    finally:
        loop.close()
