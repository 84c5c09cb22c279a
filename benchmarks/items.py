"""foreach: how many items of one step an engine makes durable in a second, and what ten times as many items cost."""

from __future__ import annotations

import time

from benchmarks.measurement import Measurement, median
from benchmarks.pipelines import TEXT, State, app_of
from benchmarks.places import Place
from benchmarks.process import rss_mb
from perdure import Engine, ForEach, Invocation, ItemInvocation, Pipeline, Succeeded, nothing

AT_LEAST_PER_S = 8_000
"""The bar, on the SQLite store, at the default concurrency."""

AT_MOST_TIMES = 11.0
"""The bar: what ten times as many items may cost."""

REPEATS = 5


def _numbers(inv: Invocation[int, object]) -> list[int]:
    return list(range(inv.input))


async def _made(inv: ItemInvocation[int, object, int]) -> State:
    return State(inv.index, TEXT)


def itemized() -> Pipeline[int, object, None]:
    """A pipeline of one step, with as many items as its input says, each of which does nothing but return a state."""
    return Pipeline(
        id="itemized",
        input=int,
        deps=object,
        steps=[ForEach("items/v1", items=_numbers, handler=_made)],
        output=nothing,
    )


async def foreach(where: Place, *, items: int) -> Measurement:
    """A run of a tenth of `items` and one of `items` in turn, several times, after one run of each; medians count."""
    await where.prepare()
    pipeline = itemized()
    few = max(1, items // 10)
    rates_few: list[float] = []
    rates: list[float] = []
    cpu_us: list[float] = []
    ratios: list[float] = []
    async with app_of(pipeline, where.url).engine() as engine:
        await _seconds(engine, pipeline, few)
        await _seconds(engine, pipeline, items)
        for _ in range(REPEATS):
            few_s, _ = await _seconds(engine, pipeline, few)
            many_s, cpu_s = await _seconds(engine, pipeline, items)
            rates_few.append(few / few_s)
            rates.append(items / many_s)
            cpu_us.append(cpu_s / items * 1e6)
            ratios.append(many_s / few_s)
    return Measurement(
        workload="foreach",
        store=where.kind,
        runs=1,
        rss_mb=rss_mb(),
        extra={
            "items": float(items),
            "items_per_s": median(rates),
            "items_per_s_of_a_tenth": median(rates_few),
            "times_a_tenth": median(ratios),
            "bar_per_s": float(AT_LEAST_PER_S),
            "bar_times": AT_MOST_TIMES,
            "cpu_us_per_item": median(cpu_us),
        },
    )


async def _seconds(engine: Engine, pipeline: Pipeline[int, object, None], items: int) -> tuple[float, float]:
    """From the submission to the result, on the clock and of the processor."""
    cpu_s, started = time.process_time(), time.perf_counter()
    result = await (await engine.submit(pipeline, items)).result()
    if not isinstance(result, Succeeded):
        raise RuntimeError(f"a run of {items} items ended as {type(result).__name__}")
    return time.perf_counter() - started, time.process_time() - cpu_s
