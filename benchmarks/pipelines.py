"""The pipelines that are measured: as many trivial steps as asked for, states of about a hundred bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perdure import AnyStep, App, Invocation, Pipeline, nothing, step

TEXT = "x" * 80


@dataclass(frozen=True)
class State:
    """A state of about a hundred bytes when stored."""

    number: int
    text: str


def trivial(steps: int, on_step: Callable[[int], None] | None = None) -> Pipeline[int, object, None]:
    """A pipeline of `steps` steps that do nothing but return a state.

    Args:
        steps: how many.
        on_step: called by each handler with its position, from 0.
    """
    return Pipeline(
        id=f"trivial-{steps}",
        input=int,
        deps=object,
        steps=[_step(position, on_step) for position in range(steps)],
        output=nothing,
    )


def _step(position: int, on_step: Callable[[int], None] | None) -> AnyStep[int, object]:
    if on_step is None:

        @step(f"step-{position}/v1")
        async def handler(inv: Invocation[int, object]) -> State:
            return State(position, TEXT)

        return handler

    @step(f"step-{position}/v1")
    async def observed(inv: Invocation[int, object]) -> State:
        on_step(position)
        return State(position, TEXT)

    return observed


def app_of(pipeline: Pipeline[int, object, None], url: str) -> App:
    """An app with default settings."""
    return App(pipeline.bind(), store=url)
