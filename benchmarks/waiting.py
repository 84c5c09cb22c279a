"""W4: very many runs that wait: what they cost on disk and in memory, and how fast a killed worker is back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

from benchmarks.measurement import Measurement
from benchmarks.pipelines import app_of, trivial
from benchmarks.places import Place
from benchmarks.process import ROOT, environment, rss_mb, run
from perdure import Engine

SUBMITTERS = 256
A_DAY = timedelta(days=1)
PIPELINE_STEPS = 2
IDLE_S = 2.0
"""How long the worker is watched while it has nothing but waiting runs."""


class Worker:
    """A worker process; tells what happens in it as JSON, a line each."""

    def __init__(self, role: str, url: str, runs: int = 0) -> None:
        self.started_ns = time.monotonic_ns()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.waiting", role, url, str(runs)],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    def said(self) -> dict[str, float]:
        """The next thing it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended early with {self._process.wait()}")
        told: dict[str, float] = json.loads(line)
        return told

    def kill(self) -> None:
        """As a power cut would, as far as a process can tell."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


async def w4(where: Place, *, runs: int) -> Measurement:
    """`runs` runs that start tomorrow; then `kill -9`, a new worker, and the time to its first step.

    The clock starts with the start of the new process, so interpreter and imports count. Two runs are awaited: one
    that became due while no worker was there, and one that is submitted to the new worker.
    """
    if where.kind == "memory":
        raise RuntimeError("W4 needs a store that outlives its worker")
    await where.prepare()
    first = Worker("fill", where.url, runs)
    try:
        filled = first.said()
    finally:
        first.kill()
    async with app_of(trivial(PIPELINE_STEPS), where.url).client() as client:
        await client.submit(trivial(PIPELINE_STEPS), -1)  # due at once, and nobody is there
    written = where.bytes_written()
    second = Worker("resume", where.url)
    try:
        resumed = [second.said() for _ in range(3)]
    finally:
        second.kill()
    at_ns = {name: value for told in resumed for name, value in told.items()}
    due_ms = (at_ns["due_ns"] - second.started_ns) / 1e6
    submitted_ms = (at_ns["submitted_ns"] - second.started_ns) / 1e6
    return Measurement(
        workload="W4",
        store=where.kind,
        concurrency=SUBMITTERS,
        runs=runs,
        runs_per_s=runs / filled["wall_s"],
        bytes_per_run=None if written is None else written / (runs + 1),
        rss_mb=max(filled["rss_mb"], at_ns["rss_mb"]),
        extra={
            "rss_empty_mb": filled["rss_empty_mb"],
            "rss_filled_mb": filled["rss_mb"],
            "rss_resumed_mb": at_ns["rss_mb"],
            "idle_cpu_percent": filled["idle_cpu_percent"],
            "restart_to_due_step_ms": due_ms,
            "restart_to_submitted_step_ms": submitted_ms,
        },
    )


# --- in the worker process


def _say(**what: float) -> None:
    print(json.dumps(what), flush=True)


async def _fill(url: str, runs: int) -> None:
    pipeline = trivial(PIPELINE_STEPS)
    async with app_of(pipeline, url).engine() as engine:
        empty = rss_mb()
        started = time.perf_counter()
        numbers = iter(range(runs))

        async def submitter() -> None:
            for number in numbers:
                await engine.submit(pipeline, number, delay=A_DAY)

        await asyncio.gather(*(submitter() for _ in range(SUBMITTERS)))
        wall_s = time.perf_counter() - started
        cpu_s = time.process_time()
        await asyncio.sleep(IDLE_S)
        idle = (time.process_time() - cpu_s) / IDLE_S * 100
        _say(wall_s=wall_s, rss_mb=rss_mb(), rss_empty_mb=empty, idle_cpu_percent=idle)
        await _forever(engine)


async def _resume(url: str) -> None:
    started_ns: list[int] = []
    stepped = asyncio.Event()

    def on_step(position: int) -> None:
        if position == 0:
            started_ns.append(time.monotonic_ns())
            stepped.set()

    pipeline = trivial(PIPELINE_STEPS, on_step)
    async with app_of(pipeline, url).engine() as engine:
        await stepped.wait()
        _say(due_ns=started_ns[0])
        await (await engine.submit(pipeline, -2)).result()
        _say(submitted_ns=started_ns[1])
        _say(rss_mb=rss_mb())
        await _forever(engine)


async def _forever(engine: Engine) -> None:
    await engine.failed()


def main() -> None:
    """`python -m benchmarks.waiting fill|resume URL RUNS`, started by `w4`."""
    role, url, runs = sys.argv[1:4]
    os.setpgid(0, 0)  # Ctrl-C at the terminal is for the parent, which kills this process
    run(_fill(url, int(runs)) if role == "fill" else _resume(url))


if __name__ == "__main__":
    main()
