"""A program to be looked at from outside: runs of a few steps, with a mark in a file before each handler's work.

`python -m tests.benchmarks.traced_runs STORE-FILE MARKS-FILE RUNS STEPS`
"""

from __future__ import annotations

import asyncio
import os
import sys

from benchmarks.pipelines import app_of, trivial


async def main(store: str, marks: str, runs: int, steps: int) -> None:
    """One run after the other."""
    fd = os.open(marks, os.O_WRONLY | os.O_CREAT)

    def mark(text: str) -> None:
        os.write(fd, f"{text}\n".encode())

    pipeline = trivial(steps, lambda position: mark(f"handler {position}"))
    async with app_of(pipeline, f"sqlite:///{store}").engine() as engine:
        mark("begin")
        for number in range(runs):
            run = await engine.submit(pipeline, number)
            await run.result()
            mark("end")
    os.close(fd)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
