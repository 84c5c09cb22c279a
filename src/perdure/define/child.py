"""`Child` and `ForEachRun`: steps whose work is runs of another pipeline [B-21]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Never, TypeAlias, TypeVar, cast, overload

from perdure.codec.json import AnyCodec, codec_of
from perdure.core.plan import Opening, Terms
from perdure.define.decorator import Returned, check_options
from perdure.define.foreach import check_number
from perdure.define.functions import AnyFunction, check_pure
from perdure.define.invocation import Invocation, PureInvocation, UnwindInvocation
from perdure.define.items import MOST_ITEMS, Settled
from perdure.define.pipeline import AnyPipeline, Pipeline
from perdure.define.signals import UnusableOpening
from perdure.define.sleep import nothing_called
from perdure.define.step import D_contra, In_contra, Need, OnCancel, S, Step
from perdure.errors import DefinitionError, PayloadError

In = TypeVar("In")
D = TypeVar("D")
ChildIn = TypeVar("ChildIn")
Out = TypeVar("Out")

OnParentCancel: TypeAlias = Literal["cancel", "settle", "leave"]
"""What a cancel of the parent means to its child runs: cancel them, too, and go on when they have ended; wait until
they end by themselves; or leave them alone, and go on at once [B-21]."""


class ChildStep(Step[In_contra, D_contra, S]):
    """What `Child` and `ForEachRun` have in common.

    Attributes:
        child: the pipeline whose runs they are.
        cascades: a cancel of the parent cancels them.
    """

    __slots__ = ("_inputs", "cascades", "child", "collect", "limit")

    child: AnyPipeline

    def _begin(
        self, pipeline: object, inputs: AnyFunction, collect: bool, limit: int, on_cancel: OnParentCancel
    ) -> None:
        if not isinstance(pipeline, Pipeline):
            raise DefinitionError(f"step {self.id!r}: pipeline must be a Pipeline, not {pipeline!r}"[:300])
        self.child = pipeline
        self._inputs = inputs
        self.collect = collect
        self.limit = limit
        self.cascades = on_cancel == "cancel"
        self.doc = ""

    def _made(self) -> Any:
        made: Any = self.child.output_codec.type
        return Settled[made] if self.collect else made

    def _find_codec(self) -> AnyCodec:
        return codec_of(self._made())

    def _opening(self, inv: PureInvocation[In_contra, D_contra], inputs: Sequence[object]) -> Opening:
        where = f"the inputs of the child runs of step {self.id!r}"
        if len(inputs) > self.limit:
            problem = f"{where} are {len(inputs):,}; its limit is {self.limit:,}, which `limit=` raises"
            raise inv.unusable(UnusableOpening(problem))
        encode, done = self.child.input_codec.encode, list[bytes]()
        try:
            for each in inputs:
                done.append(encode(each))
        except PayloadError as error:
            problem = f"{where} cannot be stored: $[{len(done)}]{error.path.removeprefix('$')}: {error.problem}"
            raise inv.unusable(UnusableOpening(problem)) from error
        return Opening(items=tuple(done), pipeline=self.child.id)

    def __repr__(self) -> str:
        return f"<{'retired ' if self.retired else ''}child {self.id!r} of pipeline {self.child.id!r}>"


class Child(ChildStep[In_contra, D_contra, S]):
    """A step that is a run of another pipeline; its output is the state.

    The child is submitted once, whatever crashes, and follows the deployments of its own pipeline. Meanwhile the parent
    holds no worker and no place. A child that failed fails the step, with reason `child-failed` and its failure as the
    `cause`; with `collect=True` it does not, and the state is a `Settled`. A child that succeeded is not unwound by
    itself if the parent fails later: `unwind` does what is needed.

    If the slot of the child is busy, it waits for its turn [R-5].

    Args:
        id: as of a step.
        pipeline: whose run it is; bind it in the same app.
        input: a pure function that makes its input, called once.
        collect: see above.
        on_cancel: see `OnParentCancel`.
        unwind: as of a step; called with the output of the child.
        unwind_in_doubt: as of a step; for a child that was submitted and did not succeed.
        when: as of a step.
        needs: what `input` and `when` read.

    Raises:
        DefinitionError: it could not work; says why.
    """

    __slots__ = ()

    @overload
    def __init__(
        self: Child[In, D, Out],
        id: str,
        *,
        pipeline: Pipeline[ChildIn, Never, Out],
        input: Callable[[Invocation[In, D]], ChildIn],
        collect: Literal[False] = ...,
        on_cancel: OnParentCancel = ...,
        unwind: Callable[[UnwindInvocation[In, D], Out], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In, D]], Returned] | None = ...,
        when: Callable[[Invocation[In, D]], bool] | None = ...,
        needs: Sequence[Need] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Child[In, D, Settled[Out]],
        id: str,
        *,
        pipeline: Pipeline[ChildIn, Never, Out],
        input: Callable[[Invocation[In, D]], ChildIn],
        collect: Literal[True],
        on_cancel: OnParentCancel = ...,
        unwind: Callable[[UnwindInvocation[In, D], Settled[Out]], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In, D]], Returned] | None = ...,
        when: Callable[[Invocation[In, D]], bool] | None = ...,
        needs: Sequence[Need] = ...,
    ) -> None: ...
    def __init__(
        self,
        id: str,
        *,
        pipeline: AnyPipeline,
        input: AnyFunction,
        collect: bool = False,
        on_cancel: OnParentCancel = "cancel",
        unwind: AnyFunction | None = None,
        unwind_in_doubt: AnyFunction | None = None,
        when: AnyFunction | None = None,
        needs: Sequence[Need] = (),
    ) -> None:
        checked = _check(id, unwind, unwind_in_doubt, when, needs, on_cancel)
        check_pure(f"step {id!r}: input", input, named=False)
        super().__init__(
            handler=nothing_called,
            is_async=False,
            shape="child",
            leaves=on_cancel == "leave",
            terms=Terms(collect=collect),
            **checked,
        )
        self._begin(pipeline, input, collect, 1, on_cancel)

    def opening(self, inv: PureInvocation[In_contra, D_contra], /) -> Opening:
        """See base."""
        return self._opening(inv, [self._inputs(inv)])


class ForEachRun(ChildStep[In_contra, D_contra, S]):
    """A step that is a run of another pipeline for each of many inputs; the list of their outputs is the state.

    As `Child`, for each. When one has failed no other is submitted, and the step fails once all that run have ended;
    with `collect=True` the state is a list of `Settled`.

    Args:
        id: as of a step.
        pipeline: whose runs they are; bind it in the same app.
        inputs: a pure function that makes the list of inputs, called once.
        collect: see above.
        concurrency: how many of them are submitted and not ended at a time; None: all.
        limit: how many there may be; more make the run invalid.
        on_cancel: see `OnParentCancel`.
        unwind: as of a step; called with the list.
        unwind_in_doubt: as of a step.
        when: as of a step.
        needs: what `inputs` and `when` read.

    Raises:
        DefinitionError: it could not work; says why.
    """

    __slots__ = ()

    @overload
    def __init__(
        self: ForEachRun[In, D, list[Out]],
        id: str,
        *,
        pipeline: Pipeline[ChildIn, Never, Out],
        inputs: Callable[[Invocation[In, D]], Sequence[ChildIn]],
        collect: Literal[False] = ...,
        concurrency: int | None = ...,
        limit: int = ...,
        on_cancel: OnParentCancel = ...,
        unwind: Callable[[UnwindInvocation[In, D], list[Out]], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In, D]], Returned] | None = ...,
        when: Callable[[Invocation[In, D]], bool] | None = ...,
        needs: Sequence[Need] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: ForEachRun[In, D, list[Settled[Out]]],
        id: str,
        *,
        pipeline: Pipeline[ChildIn, Never, Out],
        inputs: Callable[[Invocation[In, D]], Sequence[ChildIn]],
        collect: Literal[True],
        concurrency: int | None = ...,
        limit: int = ...,
        on_cancel: OnParentCancel = ...,
        unwind: Callable[[UnwindInvocation[In, D], list[Settled[Out]]], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In, D]], Returned] | None = ...,
        when: Callable[[Invocation[In, D]], bool] | None = ...,
        needs: Sequence[Need] = ...,
    ) -> None: ...
    def __init__(
        self,
        id: str,
        *,
        pipeline: AnyPipeline,
        inputs: AnyFunction,
        collect: bool = False,
        concurrency: int | None = None,
        limit: int = MOST_ITEMS,
        on_cancel: OnParentCancel = "cancel",
        unwind: AnyFunction | None = None,
        unwind_in_doubt: AnyFunction | None = None,
        when: AnyFunction | None = None,
        needs: Sequence[Need] = (),
    ) -> None:
        checked = _check(id, unwind, unwind_in_doubt, when, needs, on_cancel)
        where = f"step {id!r}"
        check_pure(f"{where}: inputs", inputs, named=False)
        check_number(where, "limit", limit, 1)
        bound = 0 if concurrency is None else check_number(where, "concurrency", concurrency, 1)
        super().__init__(
            handler=nothing_called,
            is_async=False,
            shape="children",
            leaves=on_cancel == "leave",
            terms=Terms(bound=bound, collect=collect),
            **checked,
        )
        self._begin(pipeline, inputs, collect, limit, on_cancel)

    def _find_codec(self) -> AnyCodec:
        made: Any = self._made()
        return codec_of(list[made])

    def opening(self, inv: PureInvocation[In_contra, D_contra], /) -> Opening:
        """See base."""
        inputs: object = self._inputs(inv)
        if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Sequence):
            problem = f"the inputs of step {self.id!r} must be a list or a tuple, not {type(inputs).__name__}"
            raise inv.unusable(UnusableOpening(problem))
        return self._opening(inv, cast("Sequence[object]", inputs))


def _check(
    id: str,
    unwind: AnyFunction | None,
    unwind_in_doubt: AnyFunction | None,
    when: AnyFunction | None,
    needs: Sequence[Need],
    on_cancel: object,
) -> dict[str, Any]:
    if on_cancel not in ("cancel", "settle", "leave"):
        raise DefinitionError(f"step {id!r}: on_cancel must be 'cancel', 'settle' or 'leave', not {on_cancel!r}")
    word: OnCancel = "settle" if on_cancel == "settle" else "cancel"
    return check_options(id, unwind=unwind, unwind_in_doubt=unwind_in_doubt, when=when, needs=needs, on_cancel=word)
