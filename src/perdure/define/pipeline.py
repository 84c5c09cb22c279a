"""Pipelines as values: an ordered tuple of steps and what stands around it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast, overload

from perdure.codec.json import AnyCodec, Codec, codec_of
from perdure.core.durations import Duration
from perdure.core.facts import PRIORITIES, Failure, SlotMode
from perdure.core.retry import Retry
from perdure.core.topology import Topology
from perdure.define.branch import expanded
from perdure.define.decorator import check_duration
from perdure.define.fake import FakeInvocation, FakeRun, FakeUnwindInvocation
from perdure.define.functions import AnyFunction, check_pure, name_of
from perdure.define.invocation import FailedInvocation, Invocation, UnwindInvocation
from perdure.define.items import ItemInvocation, ItemStep
from perdure.define.limit import Limit, check_limits
from perdure.define.mutexes import check_mutexes
from perdure.define.names import check_id
from perdure.define.output import output_codec
from perdure.define.step import AnyStep, ErasedStep, Given, Optional, always_before
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

In = TypeVar("In")
D_contra = TypeVar("D_contra", contravariant=True)
D = TypeVar("D")
T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")
Out = TypeVar("Out")
Out_co = TypeVar("Out_co", covariant=True)

_FAILED = Failure(step="fake", message="the run failed")


class Pipeline(Generic[In, D_contra, Out_co]):
    """An ordered sequence of steps for inputs of type `In`, with dependencies `D`, ending in an output `Out`.

    A pipeline that cannot work is refused when it is built. Annotate the variable,
    `payout: Pipeline[PayoutInput, Deps, Transfer] = Pipeline(...)`, and type checkers place their messages well.

    Attributes:
        id: names the pipeline in the journal.
        topology: what reconciliation needs to know.
        steps: by id, in order.
        resource: derives a run's resource from its input; None: the caller says, or it is the run id.
        slot: how runs of one resource exclude each other [M-1].
        deadline_s: a run is canceled so many seconds after its submission; None: never [R-12].
        retry: for steps without a policy of their own [M-5].
        timeout_s: bound of one attempt for steps without one of their own [R-18].
        limits: those that bound its runs, in the order in which places are taken [R-11].
        mutexes: names that one run at a time has for a resource, of all pipelines that name them, sorted [R-10].
    """

    def __init__(
        self,
        *,
        id: str,
        input: TypeForm[In],
        deps: TypeForm[D_contra],
        steps: Sequence[AnyStep[In, D_contra]],
        output: Callable[[Invocation[In, D_contra]], Out_co],
        failure_output: Callable[[FailedInvocation[In, D_contra]], object] | None = None,
        resource: Callable[[In], str] | None = None,
        slot: SlotMode = "live",
        deadline: Duration | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        limits: Sequence[Limit[In]] = (),
        mutexes: Sequence[str] = (),
    ) -> None:
        """Builds and checks the pipeline.

        Args:
            id: not empty, at most 512 bytes.
            input: the type of the input.
            deps: the type of what handlers find in `inv.deps`; `object` where they need nothing.
            steps: in order; `retired(step)` retires one; a `Branch` stands for its decision and the steps of its arms.
            output: a pure function of input and states; `nothing` for a pipeline without output [M-13].
            failure_output: a pure function that makes something of a failed run [M-13].
            resource: what a run is about, such as an invoice number.
            slot: `live`: one unfinished run for each resource; `serial`: the same, and submissions queue up [R-5];
                `once`: one run for ever; `none`: no limit.
            deadline: seconds or `timedelta` after submission.
            retry: see attribute.
            timeout: see attribute.
            priority: of its runs, from -9 to 9, unless `submit` says otherwise; the higher comes first [R-1].
            limits: bound how many runs are in flight, or begin per second [R-11].
            mutexes: of the pipelines that name one, one at a time has an unfinished run for a resource; a submission
                while another has it is refused with `MutexConflict` [R-10]. Not with `slot="serial"`.

        Raises:
            DefinitionError: the pipeline could not work; names the step and says why.
        """
        self.id: str = check_id("pipeline", id)
        where = f"pipeline {id!r}"
        self.input_codec: Codec[In] = _input_codec(where, input)
        ordered = _check_steps(where, steps)
        self.steps = MappingProxyType({step.id: step for step in ordered})
        self.topology = Topology(step.spec for step in ordered)
        self.output: Callable[[Invocation[In, D_contra]], Out_co] = output
        self.output_codec: AnyCodec = output_codec(f"{where}: output", output, self.input_codec)
        self.failure_output: Callable[[FailedInvocation[In, D_contra]], object] | None = failure_output
        self.failure_output_codec: AnyCodec = (
            output_codec(f"{where}: failure_output", failure_output, self.input_codec)
            if failure_output is not None
            else codec_of(None)
        )
        if resource is not None:
            check_pure(f"{where}: resource", resource, named=False)
        self.resource: Callable[[In], str] | None = resource
        if slot not in ("live", "serial", "once", "none"):
            raise DefinitionError(f"{where}: slot must be 'live', 'serial', 'once' or 'none', not {slot!r}")
        self.slot: SlotMode = slot
        self.deadline_s = check_duration(where, "deadline", deadline)
        if retry is not None and not isinstance(retry, Retry):  # pyright: ignore[reportUnnecessaryIsInstance]  # see step.py
            raise DefinitionError(f"{where}: retry must be a Retry, not {retry!r}")
        self.retry = retry
        self.timeout_s = check_duration(where, "timeout", timeout)
        if type(priority) is not int or priority not in PRIORITIES:
            first, last = PRIORITIES[0], PRIORITIES[-1]
            raise DefinitionError(f"{where}: priority must be a whole number from {first} to {last}, not {priority!r}")
        self.priority = priority
        self.limits = check_limits(where, limits, ("in_flight", "rate"), "name it in a step's limits")
        self.mutexes = check_mutexes(where, mutexes, slot)

    @overload
    def bind(self: Pipeline[In, object, Out_co], /) -> Bound: ...
    @overload
    def bind(
        self, deps: Callable[[], AbstractAsyncContextManager[D_contra] | AbstractContextManager[D_contra]], /
    ) -> Bound: ...
    def bind(self: AnyPipeline, deps: AnyFunction | None = None, /) -> Bound:
        """This pipeline with what opens its dependencies; hand it to `App`.

        Args:
            deps: a function whose result is entered, `async with` or `with`, when the engine starts, and left when it
                stops. A pipeline with `deps=object` needs none.

        Raises:
            DefinitionError: not such a function.
        """
        return Bound(self, deps)

    def fake(
        self,
        *,
        input: In,
        deps: D_contra,
        states: Sequence[Given[In, D_contra]] = (),
        run_id: str = "fake",
        tx: object = None,
    ) -> Invocation[In, D_contra]:
        """An invocation without an engine: `await send_payout(payout.fake(input=..., deps=..., states=(...)))`.

        Args:
            tx: the connection that `inv.tx` gives; commit or roll it back yourself.

        Raises:
            PayloadError: the input could not be stored.
            DefinitionError: a state of a step of another pipeline was given.
        """
        return FakeInvocation(FakeRun(self, input, deps, states, run_id=run_id, tx=tx), None, 1)

    def fake_item(
        self,
        step: ItemStep[In, D_contra, S, T, R],
        *,
        item: T,
        index: int = 0,
        attempt: int = 1,
        input: In,
        deps: D_contra,
        states: Sequence[Given[In, D_contra]] = (),
        run_id: str = "fake",
    ) -> ItemInvocation[In, D_contra, T]:
        """An invocation for the handler of one item of `step`, or of one turn: `await ship(orders.fake_item(...))`.

        Raises:
            PayloadError: the input or the item could not be stored.
            DefinitionError: the step is not in this pipeline, or has no items; or a state is of another pipeline.
        """
        given: object = step
        own = self.steps.get(step.id)
        if not isinstance(given, ItemStep) or own is None or own.origin is not step.origin:  # pyright: ignore[reportUnnecessaryIsInstance]  # see step.py
            raise DefinitionError(f"fake_item: {step!r} is not a ForEach or Loop of pipeline {self.id!r}")
        run = FakeRun(self, input, deps, states, run_id=run_id)
        return ItemInvocation(run, step, attempt, index, step.item_codec.encode(item))

    def fake_unwind(
        self,
        step: AnyStep[In, D_contra],
        *,
        input: In,
        deps: D_contra,
        states: Sequence[Given[In, D_contra]] = (),
        failure: Failure = _FAILED,
        run_id: str = "fake",
        tx: object = None,
    ) -> UnwindInvocation[In, D_contra]:
        """An invocation for the unwind handler of `step`: `await release(payout.fake_unwind(reserve, ...), hold)`.

        Raises:
            PayloadError: the input could not be stored.
            DefinitionError: a state of a step of another pipeline was given.
        """
        run = FakeRun(self, input, deps, states, run_id=run_id, failure=failure, tx=tx)
        return FakeUnwindInvocation(run, step, 1)

    def __repr__(self) -> str:
        return f"<pipeline {self.id!r}>"


AnyPipeline: TypeAlias = Pipeline[Any, Any, Any]
"""A pipeline whose types nobody asks for."""


class Bound:
    """A pipeline and what opens its dependencies; made by `Pipeline.bind`."""

    __slots__ = ("_deps", "pipeline")

    def __init__(self, pipeline: AnyPipeline, deps: AnyFunction | None) -> None:
        if deps is not None:
            where = f"pipeline {pipeline.id!r}: deps"
            if not callable(deps):
                raise DefinitionError(f"{where}: expected a function that opens them, got {deps!r}"[:300])
            inner = inspect.unwrap(deps)
            if inner is deps and (inspect.isgeneratorfunction(deps) or inspect.isasyncgenfunction(deps)):
                raise DefinitionError(f"{where}: decorate {name_of(deps)} with @contextlib.asynccontextmanager")
            if inspect.iscoroutinefunction(deps):
                raise DefinitionError(
                    f"{where}: {name_of(deps)} must return a context manager; write it as a generator decorated with "
                    f"@contextlib.asynccontextmanager"
                )
        self.pipeline = pipeline
        self._deps = deps

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[object]:
        """Opens the dependencies for as long as the context lasts; None where there are none.

        Raises:
            DefinitionError: what the function returned cannot be entered.
        """
        if self._deps is None:
            yield None
            return
        manager = self._deps()
        if isinstance(manager, AbstractAsyncContextManager):
            async with manager as opened:  # pyright: ignore[reportUnknownVariableType]  # the author's
                yield opened
        elif isinstance(manager, AbstractContextManager):
            with manager as opened:  # pyright: ignore[reportUnknownVariableType]  # the author's
                yield opened
        else:
            raise DefinitionError(
                f"pipeline {self.pipeline.id!r}: deps: {name_of(self._deps)} returned a {type(manager).__name__}, "
                f"which is no context manager; for a plain value return contextlib.nullcontext(value)"
            )


def _input_codec(where: str, input: object) -> AnyCodec:
    try:
        return codec_of(input)
    except DefinitionError as error:
        raise DefinitionError(f"{where}: its input of {error}") from error


def _check_steps(where: str, steps: object) -> tuple[ErasedStep, ...]:
    """The steps, each with a state that can be stored, and needs that can be met [M-14]."""
    if isinstance(steps, AnyStep) or not isinstance(steps, Sequence) or isinstance(steps, str):
        raise DefinitionError(f"{where}: steps must be a tuple of steps, not {steps!r}; a tuple of one ends in a comma")
    earlier: dict[str, ErasedStep] = {}
    entries = list(expanded(cast("Sequence[object]", steps)))
    ids = [getattr(entry, "id", None) for entry in entries]
    for entry in entries:
        step = cast("ErasedStep", entry)
        if not isinstance(entry, AnyStep):
            raise DefinitionError(f"{where}: steps must hold steps, not {_what(entry)}")
        if step.id in earlier:
            raise DefinitionError(f"{where}: step {step.id!r} stands in it twice")
        _check_needs(where, step, earlier, ids)
        step.codec  # noqa: B018  # refuses a state that could not be stored
        earlier[step.id] = step
    if not earlier:
        raise DefinitionError(f"{where} has no steps")
    return tuple(earlier.values())


def _check_needs(where: str, step: ErasedStep, earlier: dict[str, ErasedStep], ids: Sequence[object]) -> None:
    for need in step.needs.values():
        found = earlier.get(need.id)
        prefix = f"{where}: step {step.id!r} needs step {need.id!r}, which"
        if found is None and need.id in ids:
            raise DefinitionError(f"{prefix} comes later")
        if found is None:
            raise DefinitionError(f"{prefix} is not in the pipeline")
        if found.origin is not need.origin:
            raise DefinitionError(f"{prefix} is another step than the one of that id in the pipeline")
        if not always_before(found, step) and found.if_skipped is None and not isinstance(need, Optional):
            raise DefinitionError(
                f"{prefix} is conditional: write needs=(optional(...),) and read it with `inv.get(...)`, or give that "
                f"step an if_skipped"
            )


def _what(value: object) -> str:
    return f"the function {name_of(value)}, which lacks @step(...)" if inspect.isroutine(value) else f"{value!r}"[:200]
