"""`@step(...)`: from a function and its options to a `Step`.

One overload per source of type information: the handler alone, a condition, or an unwind handler or substitute that
fixes the state's type. Each returned decorator has two overloads, coroutine first: a union of both in one signature
lets mypy infer `Never`. The second also matches a coroutine, so both checkers are told that the overlap is meant
(mypy in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Never, TypeAlias, TypeVar, cast, overload

from perdure.core.durations import Duration, duration_us
from perdure.core.retry import Retry
from perdure.define.functions import AnyFunction, check_handler, check_pure
from perdure.define.invocation import Invocation, UnwindInvocation
from perdure.define.limit import Limit, check_limits
from perdure.define.names import check_id
from perdure.define.step import AnyStep, AsyncStep, ErasedStep, Need, OnCancel, Optional, SyncStep
from perdure.errors import DefinitionError

In = TypeVar("In")
D = TypeVar("D")
S = TypeVar("S")

Returned: TypeAlias = Awaitable[None] | None
"""What an unwind handler returns, `async def` or `def`."""


Checked: TypeAlias = dict[str, Any]
"""The options of a step by the names of `AnyStep`'s parameters."""


class Options:
    """Everything a decorator was given, checked; makes a step of a handler."""

    __slots__ = ("_checked",)

    def __init__(self, checked: Checked) -> None:
        self._checked = checked

    def make(self, handler: AnyFunction) -> ErasedStep:
        where = f"step {self._checked['id']!r}"
        if isinstance(handler, AnyStep):
            raise DefinitionError(f"{where}: the handler is a step already")
        is_async = check_handler(where, handler, 1)
        kind: type[AsyncStep[Any, Any, Any] | SyncStep[Any, Any, Any]] = AsyncStep if is_async else SyncStep
        return kind(handler=handler, is_async=is_async, **self._checked)


class Plain(Options):
    """Nothing given fixes a type: the handler decides everything."""

    __slots__ = ()

    @overload
    def __call__(self, handler: Callable[[Invocation[In, D]], Coroutine[Any, Any, S]], /) -> AsyncStep[In, D, S]: ...
    @overload
    def __call__(self, handler: Callable[[Invocation[In, D]], S], /) -> SyncStep[In, D, S]: ...
    def __call__(self, handler: Callable[..., object], /) -> ErasedStep:
        return self.make(handler)


class When(Options, Generic[In, D]):
    """A condition fixes input and dependencies."""

    __slots__ = ()

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]  # meant, see above
        self: When[In, D], handler: Callable[[Invocation[In, D]], Coroutine[Any, Any, S]], /
    ) -> AsyncStep[In, D, S]: ...
    @overload
    def __call__(self: When[In, D], handler: Callable[[Invocation[In, D]], S], /) -> SyncStep[In, D, S]: ...
    def __call__(self, handler: Callable[..., object], /) -> ErasedStep:
        return self.make(handler)


class Stateful(Options, Generic[In, D, S]):
    """An unwind handler or a substitute fixes the state, too."""

    __slots__ = ()

    @overload
    def __call__(
        self: Stateful[In, D, S], handler: Callable[[Invocation[In, D]], Coroutine[Any, Any, S]], /
    ) -> AsyncStep[In, D, S]: ...
    @overload
    def __call__(self: Stateful[In, D, S], handler: Callable[[Invocation[In, D]], S], /) -> SyncStep[In, D, S]: ...
    def __call__(self, handler: Callable[..., object], /) -> ErasedStep:
        return self.make(handler)


@overload
def step(
    id: str,
    *,
    timeout: Duration | None = ...,
    retry: Retry | None = ...,
    needs: Sequence[Need] = ...,
    on_cancel: OnCancel = ...,
    limits: Sequence[Limit[Never]] = ...,
) -> Plain: ...
@overload
def step(
    id: str,
    *,
    when: Callable[[Invocation[In, D]], bool],
    timeout: Duration | None = ...,
    retry: Retry | None = ...,
    needs: Sequence[Need] = ...,
    on_cancel: OnCancel = ...,
    limits: Sequence[Limit[Never]] = ...,
) -> When[In, D]: ...
@overload
def step(
    id: str,
    *,
    unwind: Callable[[UnwindInvocation[In, D], S], Returned],
    unwind_in_doubt: Callable[[UnwindInvocation[In, D]], Returned] | None = ...,
    if_skipped: Callable[[Invocation[In, D]], S] | None = ...,
    when: Callable[[Invocation[In, D]], bool] | None = ...,
    timeout: Duration | None = ...,
    retry: Retry | None = ...,
    needs: Sequence[Need] = ...,
    on_cancel: OnCancel = ...,
    limits: Sequence[Limit[Never]] = ...,
) -> Stateful[In, D, S]: ...
@overload
def step(
    id: str,
    *,
    if_skipped: Callable[[Invocation[In, D]], S],
    when: Callable[[Invocation[In, D]], bool] | None = ...,
    timeout: Duration | None = ...,
    retry: Retry | None = ...,
    needs: Sequence[Need] = ...,
    on_cancel: OnCancel = ...,
    limits: Sequence[Limit[Never]] = ...,
) -> Stateful[In, D, S]: ...
def step(
    id: str,
    *,
    unwind: AnyFunction | None = None,
    unwind_in_doubt: AnyFunction | None = None,
    if_skipped: AnyFunction | None = None,
    when: AnyFunction | None = None,
    timeout: Duration | None = None,
    retry: Retry | None = None,
    needs: Sequence[Need] = (),
    on_cancel: OnCancel = "cancel",
    limits: Sequence[Limit[Never]] = (),
) -> Options:
    """Makes a step of the function below it.

    The handler is `async def`, or `def` to run in a thread. It takes an `Invocation` and returns the step's state,
    whose type is its return annotation. It runs at least once, with the same `inv.idempotency_key` each time [M-3].

    Args:
        id: names what the step means, such as `reserve-funds/v1`; an incompatible change takes a new id.
        unwind: takes the effect back when the run fails later; called with an `UnwindInvocation` and the state [U-2].
        unwind_in_doubt: takes back an effect that is not known to have happened; called with an `UnwindInvocation`
            alone [U-12].
        if_skipped: a pure function that makes the state for runs that were past this step, or skipped it [M-14].
        when: a pure condition over input and needs; false: the step is skipped, for good [E-12].
        timeout: bound of one attempt, seconds or `timedelta`; the attempt is then retried [R-18].
        retry: how unresolved attempts are retried; by default as the pipeline says [M-5].
        needs: the steps whose state is read, `optional(step)` where it may be absent [M-14].
        on_cancel: `settle`: a cancel waits until this step has resolved itself [R-12].
        limits: bound how many attempts of it execute at once, or start per second, in both phases [R-11].

    Raises:
        DefinitionError: the step could not work; says why.
    """
    checked = check_options(
        id,
        unwind=unwind,
        unwind_in_doubt=unwind_in_doubt,
        if_skipped=if_skipped,
        when=when,
        timeout=timeout,
        retry=retry,
        needs=needs,
        on_cancel=on_cancel,
        limits=limits,
    )
    if unwind is not None or if_skipped is not None:
        return Stateful[object, object, object](checked)
    return Plain(checked) if when is None else When[object, object](checked)


def check_options(
    id: str,
    *,
    unwind: AnyFunction | None = None,
    unwind_in_doubt: AnyFunction | None = None,
    if_skipped: AnyFunction | None = None,
    when: AnyFunction | None = None,
    timeout: object = None,
    retry: object = None,
    needs: object = (),
    on_cancel: object = "cancel",
    limits: object = (),
) -> Checked:
    """The arguments of a step, checked; everything but the handler.

    Raises:
        DefinitionError: the step could not work; says why.
    """
    where = f"step {check_id('step', id)!r}"
    checked: Checked = {"id": id, "unwind": unwind, "unwind_in_doubt": unwind_in_doubt}
    if unwind is not None:
        checked["unwind_is_async"] = check_handler(f"{where}: unwind", unwind, 2)
    if unwind_in_doubt is not None:
        if unwind is None:
            raise DefinitionError(f"{where}: unwind_in_doubt needs unwind; what is in doubt may also be certain")
        checked["unwind_in_doubt_is_async"] = check_handler(f"{where}: unwind_in_doubt", unwind_in_doubt, 1)
    if if_skipped is not None:
        check_pure(f"{where}: if_skipped", if_skipped, named=True)
    if when is not None:
        check_pure(f"{where}: when", when, named=True)
    if retry is not None and not isinstance(retry, Retry):
        raise DefinitionError(f"{where}: retry must be a Retry, not {retry!r}")
    if on_cancel not in ("cancel", "settle"):
        raise DefinitionError(f"{where}: on_cancel must be 'cancel' or 'settle', not {on_cancel!r}")
    checked |= {
        "if_skipped": if_skipped,
        "when": when,
        "retry": retry,
        "timeout_s": check_duration(where, "timeout", timeout),
        "needs": _check_needs(where, id, needs),
        "on_cancel": on_cancel,
        "limits": check_limits(where, limits, ("concurrency", "rate"), "name it in a pipeline's limits"),
    }
    return checked


def check_duration(where: str, name: str, value: object) -> float | None:
    """Seconds of a duration that is called `name`; None: none given.

    Raises:
        DefinitionError: it is not a positive, finite duration.
    """
    if value is None:
        return None
    try:
        us = duration_us(value)
    except ValueError as error:
        raise DefinitionError(f"{where}: {name} {error}") from None
    if us == 0:
        raise DefinitionError(f"{where}: {name} must not be zero")
    return us / 1_000_000


def _check_needs(where: str, id: str, needs: object) -> tuple[Need, ...]:
    if isinstance(needs, Need) or not isinstance(needs, Sequence) or isinstance(needs, str):
        raise DefinitionError(f"{where}: needs must be a tuple of steps, not {needs!r}; a tuple of one ends in a comma")
    found: dict[str, Need] = {}
    for need in cast("Sequence[object]", needs):
        if not isinstance(need, (AnyStep, Optional)):
            raise DefinitionError(f"{where}: needs must hold steps, not {need!r}")
        if need.id == id:
            raise DefinitionError(f"{where} cannot need itself")
        if need.id in found:
            raise DefinitionError(f"{where} needs step {need.id!r} twice")
        found[need.id] = need
    return tuple(found.values())
