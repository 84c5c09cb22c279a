"""One worker among others, as a process: `python -m tests.faults.worker URL EFFECTS SKEW_S LEASE_S`.

Its clock is off by so many seconds. Every effect is one line in the file: when it began (on the steady clock that all
processes of a machine share), the worker that began it, the run, the step; and the step is told on its output. Long
ones end when something is written to its input, and it leaves when that is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from perdure import App, Engine, Invocation, Pipeline, Retry, step
from perdure.runtime.system import RealSystem

Inv = Invocation[str, object]

LEASE_S = 1.0

STARTED: list[Engine] = []
GO = asyncio.Event()


class Skewed(RealSystem):
    """A machine whose clock is wrong."""

    def __init__(self, skew_s: float) -> None:
        super().__init__()
        self._skew_us = round(skew_s * 1_000_000)

    def now_us(self) -> int:
        """See `System.now_us`."""
        return super().now_us() + self._skew_us


def effect(inv: Inv) -> None:
    """Something that cannot be taken back begins now."""
    words = RealSystem().steady_s(), STARTED[0].worker, inv.run_id, inv.step_id
    file = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)
    print(inv.step_id, flush=True)


@step("flaky/v1", retry=Retry(initial=0.2, jitter=0.0))
async def flaky(inv: Inv) -> None:
    effect(inv)
    if inv.input == "flaky" and inv.attempt == 1:
        raise OSError("not yet")


@step("long/v1")
async def long(inv: Inv) -> None:
    effect(inv)
    if inv.input == "long":
        await GO.wait()


@step("last/v1")
async def last(inv: Inv) -> None:
    effect(inv)


work = Pipeline[str, object, None](
    id="work", input=str, deps=object, steps=(flaky, long, last), output=lambda inv: None, slot="none"
)


async def main(url: str, skew_s: float, lease_s: float) -> None:
    app = App(work.bind(), store=url, lease=lease_s)
    async with app.engine(system=Skewed(skew_s)) as engine:
        STARTED.append(engine)
        print("up", engine.worker, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            GO.set()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    asyncio.run(main(sys.argv[1], float(sys.argv[3]), float(sys.argv[4])))
