"""W5 on PostgreSQL: from `submit` to the first line of the first handler, in one process and from another one.

`python -m benchmarks.across URL` is the process that only works; it tells of each handler when it began.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec

from benchmarks.children import Part, serve
from benchmarks.pipelines import TEXT, State, app_of
from benchmarks.process import run
from benchmarks.runs import Slice
from perdure import App, Invocation, Pipeline, nothing, step

QUIET_S = 0.02
"""How long nothing happens before each run."""


class Latencies(msgspec.Struct):
    """Milliseconds from the call of `submit` to the handler, and to the result."""

    handler_ms: list[float]
    result_ms: list[float]


def stamped(began: list[int]) -> Pipeline[int, object, None]:
    """One step; its handler notes when it began, on a clock that all processes of the machine share."""

    @step("stamp/v1")
    async def stamp(inv: Invocation[int, object]) -> State:
        began.append(time.monotonic_ns())
        return State(0, TEXT)

    return Pipeline(id="stamped", input=int, deps=object, steps=[stamp], output=nothing)


async def same_process(url: str, runs: int) -> Latencies:
    """Submitted to the engine that runs them."""
    found = Latencies([], [])
    began: list[int] = []
    pipeline = stamped(began)
    async with app_of(pipeline, url).engine() as engine:
        for number in range(-3, runs):
            await asyncio.sleep(QUIET_S)
            started = time.monotonic_ns()
            await (await engine.submit(pipeline, number)).result()
            if number >= 0:
                found.result_ms.append((time.monotonic_ns() - started) / 1e6)
                found.handler_ms.append((began[-1] - started) / 1e6)
    return found


async def _submit(url: str, measured: Slice, runs: int) -> None:
    pipeline = stamped([])
    async with App(pipeline.bind(), store=url).client() as client:
        for _ in range(runs):
            await asyncio.sleep(QUIET_S)
            started = time.monotonic_ns()
            await (await client.submit(pipeline, started)).result()
            measured.latencies_ms.append((time.monotonic_ns() - started) / 1e6)


async def from_client(url: str, runs: int) -> Slice:
    """Submitted by a process that does not run them, until their results are there; a worker is idle elsewhere."""
    measured = Slice()
    await _submit(url, Slice(), 3)
    await _submit(url, measured, runs)
    return measured


async def _work(url: str) -> None:
    """Answers with the latencies of the runs that were begun since it was asked last."""
    latencies_ms: list[float] = []

    @step("stamp/v1")
    async def stamp(inv: Invocation[int, object]) -> State:
        latencies_ms.append((time.monotonic_ns() - inv.input) / 1e6)
        return State(0, TEXT)

    pipeline = Pipeline(id="stamped", input=int, deps=object, steps=[stamp], output=nothing)
    async with app_of(pipeline, url).engine():

        async def measure(runs: int, concurrency: int) -> Part:
            last = Slice(1.0, 0.0, latencies_ms[-runs:])
            return Part.of(last, runs)

        await serve(measure)


if __name__ == "__main__":
    run(_work(sys.argv[1]))
