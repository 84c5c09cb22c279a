"""Steps as values: what `steps=`, `needs=` and `inv[...]` hold.

`Step` is invariant in its state and contravariant in input and dependencies: a step written against a Protocol fits
every pipeline that offers as much.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeAlias, TypeVar, cast

from perdure.codec.json import AnyCodec, Encoded, codec_of
from perdure.core.facts import Shape
from perdure.core.plan import Opening, Terms
from perdure.core.retry import Retry
from perdure.core.topology import StepSpec
from perdure.define.functions import AnyFunction, name_of, return_type
from perdure.define.later import Later, state_type
from perdure.define.limit import AnyLimit
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    from perdure.define.invocation import Invocation, PureInvocation

In = TypeVar("In")
D = TypeVar("D")
S = TypeVar("S")
In_contra = TypeVar("In_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)
StepT = TypeVar("StepT", bound="AnyStep[Never, Never]")

OnCancel: TypeAlias = Literal["cancel", "settle"]
PLAIN_TERMS = Terms()


class Need:
    """What `needs=` holds: a step, or `optional(step)` [M-14].

    Attributes:
        id: the step's id.
        origin: the same object for a step and its retired or optional forms; another for every other step.
    """

    __slots__ = ("id", "origin")

    id: str
    origin: object


class Optional(Need):
    """A need that may be absent; read it with `inv.get(step)`."""

    __slots__ = ("step",)

    def __init__(self, step: ErasedStep) -> None:
        self.step = step
        self.id = step.id
        self.origin = step.origin


class AnyStep(Need, Generic[In_contra, D_contra]):
    """What `steps=` holds: a step of any state. Values are immutable and belong to no pipeline.

    Attributes:
        handler: the forward handler, called with an `Invocation`.
        is_async: it is `async def`; otherwise it runs in a thread.
        unwind: called with an `UnwindInvocation` and the state; None: the step does not unwind.
        unwind_in_doubt: called with an `UnwindInvocation` alone [U-12].
        timeout_s: bound of one attempt in seconds; None: the pipeline's [R-18].
        retry: the policy; None: the pipeline's [M-5].
        needs: the steps whose state the handler reads, by id.
        if_skipped: makes a state for runs that have none [M-14].
        when: the condition [E-12]; of a step in an arm of a branch: that the arm was chosen, and its own.
        own_when: the condition that the author gave to this very step.
        arm: the arms around the step, outermost first, by id of the branch and name of the member.
        polls: the handler may return `Later` instead of a state [B-15].
        shape: a handler, a wait, or a unit of items or child runs [B-2, B-15].
        limits: those that bound its attempts, in the order in which places are taken [R-11].
        leaves: a cancel does not wait for its child runs [B-21].
        terms: how a wait or a unit is carried on.
        retired: see `retired` [E-9].
        doc: the handler's docstring.
        spec: what reconciliation needs to know.
    """

    __slots__ = (
        "_codec",
        "arm",
        "doc",
        "handler",
        "if_skipped",
        "is_async",
        "leaves",
        "limits",
        "needs",
        "on_cancel",
        "own_when",
        "polls",
        "retired",
        "retry",
        "shape",
        "spec",
        "terms",
        "timeout_s",
        "unwind",
        "unwind_in_doubt",
        "unwind_in_doubt_is_async",
        "unwind_is_async",
        "when",
    )

    def __init__(
        self,
        id: str,
        handler: AnyFunction,
        is_async: bool,
        *,
        unwind: AnyFunction | None = None,
        unwind_is_async: bool = False,
        unwind_in_doubt: AnyFunction | None = None,
        unwind_in_doubt_is_async: bool = False,
        timeout_s: float | None = None,
        retry: Retry | None = None,
        needs: tuple[Need, ...] = (),
        if_skipped: AnyFunction | None = None,
        when: AnyFunction | None = None,
        on_cancel: OnCancel = "cancel",
        polls: bool = False,
        shape: Shape = "handler",
        leaves: bool = False,
        terms: Terms = PLAIN_TERMS,
        limits: tuple[AnyLimit, ...] = (),
    ) -> None:
        self.id = id
        self.origin = object()
        self.handler = handler
        self.is_async = is_async
        self.unwind = unwind
        self.unwind_is_async = unwind_is_async
        self.unwind_in_doubt = unwind_in_doubt
        self.unwind_in_doubt_is_async = unwind_in_doubt_is_async
        self.timeout_s = timeout_s
        self.retry = retry
        self.needs: dict[str, Need] = {need.id: need for need in needs}
        self.if_skipped = if_skipped
        self.when = self.own_when = when
        self.arm: tuple[tuple[str, str], ...] = ()
        self.on_cancel: OnCancel = on_cancel
        self.polls = polls
        self.shape: Shape = shape
        self.leaves = leaves
        self.terms = terms
        self.limits = limits
        self.retired = False
        self.doc = inspect.getdoc(handler) or ""
        self.spec = _spec(self)
        self._codec: AnyCodec | None = None

    @property
    def codec(self) -> AnyCodec:
        """The codec of the state, from the handler's return annotation.

        Raises:
            DefinitionError: there is no annotation, or its type cannot be a payload.
        """
        if self._codec is None:
            self._codec = self._find_codec()
        return self._codec

    def _find_codec(self) -> AnyCodec:
        where = f"step {self.id!r}"
        found = return_type(where, self.handler)
        if found is inspect.Signature.empty:
            raise DefinitionError(
                f"{where}: {name_of(self.handler)} has no return annotation, which says how its state is stored; "
                f"write `-> None` if it has none"
            )
        found = state_type(where, found, polls=self.polls)
        try:
            return codec_of(found)
        except DefinitionError as error:
            raise DefinitionError(f"{where}: its state of {error}") from error

    def opening(self, inv: PureInvocation[In_contra, D_contra], /) -> Opening:
        """What a wait or a unit is about that opens now; the author's functions are called [B-20].

        Raises:
            BrokenContract: they made nothing of use.
        """
        raise TypeError(f"{self!r} has a handler; nothing opens")

    def timeout_state(self) -> bytes | None:
        """The encoded state of a wait that has lasted too long; None: it fails [B-8]."""
        return None

    def __repr__(self) -> str:
        return f"<{'retired ' if self.retired else ''}step {self.id!r}>"


ErasedStep: TypeAlias = AnyStep[Never, Never]
"""A step whose types nobody asks for; every step is one."""


class Step(AnyStep[In_contra, D_contra], Generic[In_contra, D_contra, S]):
    """A step whose state is an `S`: `inv[step]` is that state."""

    __slots__ = ()

    def given(self, state: S) -> Given[In_contra, D_contra]:
        """This state, committed, for `Pipeline.fake`.

        Raises:
            PayloadError: the state is not one that could be stored.
        """
        return Given(self, self.codec.encode(state))


class AsyncStep(Step[In_contra, D_contra, S]):
    """A step with an `async def` handler. Call it only with a fake invocation, to run the handler alone."""

    __slots__ = ()

    def __call__(self, inv: Invocation[In_contra, D_contra], /) -> Coroutine[Any, Any, S]:
        return cast("Coroutine[Any, Any, S]", inv.of_step_called(self)())


class SyncStep(Step[In_contra, D_contra, S]):
    """A step with a `def` handler. Call it only with a fake invocation, to run the handler alone."""

    __slots__ = ()

    def __call__(self, inv: Invocation[In_contra, D_contra], /) -> S:
        return cast(S, inv.of_step_called(self)())


class AsyncPoll(Step[In_contra, D_contra, S]):
    """A poll with an `async def` handler. Call it only with a fake invocation, to run the handler alone."""

    __slots__ = ()

    def __call__(self, inv: Invocation[In_contra, D_contra], /) -> Coroutine[Any, Any, S | Later]:
        return cast("Coroutine[Any, Any, S | Later]", inv.of_step_called(self)())


class SyncPoll(Step[In_contra, D_contra, S]):
    """A poll with a `def` handler. Call it only with a fake invocation, to run the handler alone."""

    __slots__ = ()

    def __call__(self, inv: Invocation[In_contra, D_contra], /) -> S | Later:
        return cast("S | Later", inv.of_step_called(self)())


class Given(Generic[In_contra, D_contra]):
    """A step and its committed state; made by `Step.given`."""

    __slots__ = ("encoded", "step")

    def __init__(self, step: AnyStep[In_contra, D_contra], encoded: Encoded) -> None:
        self.step = step
        self.encoded = encoded


def optional(step: ErasedStep) -> Need:
    """A need that may be absent, because the step is conditional or newer than the run [M-14].

    Raises:
        DefinitionError: not a step.
    """
    if not isinstance(step, AnyStep):  # pyright: ignore[reportUnnecessaryIsInstance]  # not everybody has a type checker
        raise DefinitionError(f"optional(...) takes a step, not {step!r}")
    return Optional(step)


def retired(step: StepT) -> StepT:
    """The step, retired: never started any more, but finished by the runs that started it [E-9].

    Put it where the step stood in `steps=`. `perdure drain` says when it can be removed.
    """
    if not isinstance(step, AnyStep):  # pyright: ignore[reportUnnecessaryIsInstance]  # not everybody has a type checker
        raise DefinitionError(f"retired(...) takes a step, not {step!r}")
    other = copy.copy(step)
    other.retired = True
    other.spec = _spec(other)
    return other


def in_arm(step: StepT, branch: ErasedStep, arm: tuple[tuple[str, str], ...], condition: AnyFunction) -> StepT:
    """The step as it stands in an arm of `branch`: it may read the decision, and `condition` does."""
    other = copy.copy(step)
    other.arm = arm
    other.when = condition
    other.needs = {branch.id: Optional(branch), **step.needs}
    other.spec = _spec(other)
    return other


def always_before(step: ErasedStep, reader: ErasedStep) -> bool:
    """Whether `step` has its state wherever conditions let `reader` run: it has none but those of arms around both."""
    if any(branch == step.id for branch, _ in reader.arm):
        return True
    return step.own_when is None and step.arm == reader.arm[: len(step.arm)]


def _spec(step: ErasedStep) -> StepSpec:
    return StepSpec(
        id=step.id,
        unwind=step.unwind is not None,
        in_doubt=step.unwind_in_doubt is not None,
        retired=step.retired,
        conditional=step.when is not None,
        settle=step.on_cancel == "settle",
        shape=step.shape,
        leaves=step.leaves,
    )
