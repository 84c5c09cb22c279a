"""A program of its own, as a user would start it: steps in `__main__`, a process pool inside a step."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ProcessPoolExecutor

from perdure import App, Invocation, Pipeline, Succeeded, step


def heavy(number: int) -> int:
    """Work for another process."""
    return number * number


@step("heavy/v1")
async def square(inv: Invocation[int, object]) -> int:
    with ProcessPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, heavy, inv.input)


def output(inv: Invocation[int, object]) -> int:
    return inv[square]


pipeline: Pipeline[int, object, int] = Pipeline(id="main", input=int, deps=object, steps=(square,), output=output)
app = App(pipeline.bind(), store="memory://")


async def main() -> None:
    async with app.engine() as engine:
        result = await (await engine.submit(pipeline, 7)).result(timeout=60)
        print(result.output if isinstance(result, Succeeded) else result)


if __name__ == "__main__":
    asyncio.run(main())
    sys.exit(0)
