"""The fixtures of the pytest plugin, and their types.

Installing perdure is enough to have the fixtures `perdure_evolve` and `perdure_run_virtual`: pytest loads
`perdure_pytest`, which imports nothing of perdure before a test asks for one of them. Where plugins are not loaded by
themselves, `pytest_plugins = ["perdure.testing.pytest_plugin"]` in `conftest.py` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from perdure.core.durations import Duration
from perdure.define.pipeline import AnyPipeline, Pipeline
from perdure.define.step import ErasedStep
from perdure.testing.clock import VirtualSystem
from perdure.testing.evolve import Evolution, Moment
from perdure_pytest import perdure_evolve, perdure_run_virtual

__all__ = ["Evolve", "RunVirtual", "perdure_evolve", "perdure_run_virtual"]

In = TypeVar("In")
NewIn = TypeVar("NewIn")
D = TypeVar("D")
Out = TypeVar("Out")
T = TypeVar("T")
Forward = TypeVar("Forward", bound=ErasedStep | str)
Unwind = TypeVar("Unwind", bound=ErasedStep | str)
Runs = TypeVar("Runs", bound=AnyPipeline | str)


class Evolve(Protocol):
    """The type of `perdure_evolve`; see `perdure.testing.evolve.evolve`."""

    def __call__(
        self,
        old: Pipeline[In, D, object],
        new: Pipeline[NewIn, D, Out],
        *,
        input: In,
        at: ErasedStep | str | None = None,
        moment: Moment = "before",
        deps: D | None = None,
        results: Mapping[Forward, object] | None = None,
        unwinds: Mapping[Unwind, object] | None = None,
        via: Sequence[AnyPipeline] = (),
        held: bool = False,
        canceled: bool = False,
        done: int = 0,
        messages: Mapping[str, object] | None = None,
        children: Mapping[Runs, object] | None = None,
        runs: Mapping[str, object] | None = None,
        seed: int = 0,
    ) -> Evolution[Out]:
        """See `evolve`."""
        ...


class RunVirtual(Protocol):
    """The type of `perdure_run_virtual`; see `perdure.testing.clock.run_virtual`."""

    def __call__(
        self, main: Callable[[VirtualSystem], Coroutine[Any, Any, T]], *, seed: int = 0, limit: Duration = ...
    ) -> T:
        """See `run_virtual`."""
        ...
