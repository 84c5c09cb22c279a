"""Measurements that mean something only beside each other: slices of each in turn, in one process, on one disk.

A shared disk changes its mind within seconds. So what is compared is measured in short slices, one after the other,
and a ratio is the median of the ratios of neighbours, never the ratio of two medians from different minutes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.limits import BareLoop, append_all, prebuilt
from benchmarks.measurement import median
from benchmarks.pipelines import app_of, trivial
from benchmarks.runs import measure_slice
from perdure.runtime.system import RealSystem
from perdure.storage import open_store

STEPS = 5


@dataclass
class Rates:
    """Steps a second, a number for each slice; slices of the same index were neighbours in time."""

    perdure: list[float] = field(default_factory=list[float])
    raw: list[float] = field(default_factory=list[float])
    bare: list[float] = field(default_factory=list[float])
    cpu_us_per_step: list[float] = field(default_factory=list[float])

    def add(self, other: Rates) -> None:
        """Take over the slices of another repetition."""
        self.perdure += other.perdure
        self.raw += other.raw
        self.bare += other.bare
        self.cpu_us_per_step += other.cpu_us_per_step

    def to_raw(self) -> list[float]:
        """perdure by raw, neighbour by neighbour."""
        return [a / b for a, b in zip(self.perdure, self.raw, strict=True)]

    def to_bare(self) -> list[float]:
        """perdure by bare, likewise."""
        return [a / b for a, b in zip(self.perdure, self.bare, strict=True)]


async def w1_beside_limits(folder: Path, *, concurrency: int, runs: int, commits: int, slices: int) -> Rates:
    """W1, raw and bare in turn, `slices` times; each of the three on a file of its own in `folder`.

    Args:
        runs: of W1 and raw in one slice.
        commits: of bare in one slice.
    """
    rates = Rates()
    system = RealSystem()
    pipeline = trivial(STEPS)
    store = open_store(f"sqlite:///{folder}/raw.db")
    bare = BareLoop(folder / "bare.db")
    await store.open(owner=system.worker_id())
    try:
        async with app_of(pipeline, f"sqlite:///{folder}/perdure.db").engine() as engine:
            await measure_slice(engine, pipeline, max(8, runs // 4), concurrency)
            await append_all(
                store, [prebuilt(system, pipeline.topology) for _ in range(max(8, runs // 4))], concurrency
            )
            bare.commits(64)
            for _ in range(slices):
                built = [prebuilt(system, pipeline.topology) for _ in range(runs)]
                measured = await measure_slice(engine, pipeline, runs, concurrency)
                rates.raw.append(runs * STEPS / await append_all(store, built, concurrency))
                bare_s = await asyncio.to_thread(bare.commits, commits)  # the engine minds a loop that stands still
                rates.bare.append(commits / sum(bare_s))
                rates.perdure.append(measured.runs_per_s * STEPS)
                rates.cpu_us_per_step.append(measured.cpu_s / (runs * STEPS) * 1e6)
    finally:
        bare.close()
        await store.close()
    return rates


def shown(values: list[float]) -> str:
    """Median and spread, for a table."""
    if not values:
        return "-"
    low, middle, high = min(values), median(values), max(values)
    if middle >= 100:
        return f"{middle:,.0f} ({low:,.0f}–{high:,.0f})"
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"
