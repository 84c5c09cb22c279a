"""Invocations without an engine, so that a handler is tested as the function it is [I-6]."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Never, TypeVar, cast

from perdure.codec.json import Encoded
from perdure.core.facts import Failure, Phase
from perdure.core.unit import Unit
from perdure.define.functions import AnyFunction
from perdure.define.invocation import Invocation, UnwindInvocation
from perdure.define.step import ErasedStep, Given
from perdure.define.views import PipelineView
from perdure.errors import DefinitionError, InvalidArgument

In_co = TypeVar("In_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)


def _checked(states: object) -> tuple[Given[Never, Never], ...]:
    given = tuple(cast("Iterable[object]", states)) if isinstance(states, Iterable) else (states,)
    for each in given:
        if not isinstance(each, Given):
            raise DefinitionError(f"states= takes a sequence of what `step.given(state)` returns, not {each!r}"[:300])
    return cast("tuple[Given[Never, Never], ...]", given)


class FakeRun:
    """A run in memory: what was given is committed, memos are kept."""

    def __init__(
        self,
        pipeline: PipelineView,
        input: object,
        deps: object,
        states: Iterable[Given[Never, Never]],
        *,
        run_id: str = "fake",
        failure: Failure | None = None,
        tx: object = None,
    ) -> None:
        self.pipeline = pipeline
        self.run_id = run_id
        self.tenant = "default"
        self.resource = run_id
        self.deps = deps
        self.tx = tx
        self.canceled = False
        self.failure = failure
        self.unwind_failures: tuple[Failure, ...] = ()
        self.memos: dict[tuple[str, Phase, str, int | None], Encoded] = {}
        self.units: dict[str, Unit] = {}
        self._input = pipeline.input_codec.encode(input)
        self._states: dict[str, Encoded] = {}
        for given in _checked(states):
            own = pipeline.steps.get(given.step.id)
            if own is None or own.origin is not given.step.origin:
                raise DefinitionError(f"{given.step!r} is not in pipeline {pipeline.id!r}; its state cannot be given")
            self._states[given.step.id] = given.encoded

    def input_bytes(self) -> Encoded:
        return self._input

    def state_bytes(self, step_id: str, /) -> Encoded | None:
        return self._states.get(step_id)

    def memo_bytes(self, step_id: str, phase: Phase, name: str, item: int | None = None, /) -> Encoded | None:
        return self.memos.get((step_id, phase, name, item))

    async def memo(self, step_id: str, phase: Phase, name: str, value: bytes, item: int | None = None, /) -> None:
        self.memos[step_id, phase, name, item] = value

    async def transaction(self, inv: object, /) -> object:
        if self.tx is None:
            raise InvalidArgument("none was given; say `fake(..., tx=connection)`")
        return self.tx

    def unit_of(self, step_id: str, /) -> Unit | None:
        return self.units.get(step_id)


class FakeInvocation(Invocation[In_co, D_co]):
    """What `Pipeline.fake` returns. A step called with it runs its handler, as the next attempt of that step."""

    __slots__ = ()

    def of_step_called(self, step: ErasedStep, /) -> AnyFunction:
        own = self._source.pipeline.steps.get(step.id)
        if own is None or own.origin is not step.origin:
            raise DefinitionError(f"{step!r} is not in pipeline {self.pipeline_id!r}")
        inner: FakeInvocation[Any, Any] = FakeInvocation(self._source, step, self.attempt)
        return lambda: step.handler(inner)

    def _check_need(self, step: Any, required: bool) -> None:
        if self._step is not None:
            super()._check_need(step, required)


class FakeUnwindInvocation(UnwindInvocation[In_co, D_co]):
    """What `Pipeline.fake_unwind` returns; hand it to an unwind handler."""

    __slots__ = ()
