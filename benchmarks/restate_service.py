"""The service that Restate calls: trivial steps, as many as asked for. Served by hypercorn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import restate

from benchmarks.pipelines import TEXT

F = TypeVar("F")


def typed(decorator: object) -> Callable[[F], F]:
    """A decorator of a package that has no types as long as it is not installed."""
    return cast("Callable[[F], F]", decorator)


service = restate.Service("bench")


async def state() -> dict[str, object]:
    """The state of our trivial steps."""
    return {"number": 1, "text": TEXT}


@typed(service.handler())
async def trivial(context: restate.Context, steps: int) -> int:
    """A run."""
    for number in range(steps):
        await context.run_typed(f"step-{number}", state)
    return steps


app = restate.app([service])
