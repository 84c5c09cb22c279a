"""`@poll(...)`: a step whose handler may say `Later` instead of returning its state [B-15].

A decorator of its own, so that ordinary steps never yield `Later`. Overloads as in `decorator`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Never, TypeVar, overload

from perdure.core.durations import Duration
from perdure.core.retry import Retry
from perdure.define.decorator import Options, Returned, check_options
from perdure.define.functions import AnyFunction, check_handler
from perdure.define.invocation import Invocation, UnwindInvocation
from perdure.define.later import Later
from perdure.define.limit import Limit
from perdure.define.step import AnyStep, AsyncPoll, ErasedStep, Need, OnCancel, SyncPoll
from perdure.errors import DefinitionError

In = TypeVar("In")
D = TypeVar("D")
S = TypeVar("S")


class _PollOptions(Options):
    __slots__ = ()

    def make(self, handler: AnyFunction) -> ErasedStep:
        where = f"step {self._checked['id']!r}"
        if isinstance(handler, AnyStep):
            raise DefinitionError(f"{where}: the handler is a step already")
        is_async = check_handler(where, handler, 1)
        kind: type[AsyncPoll[Any, Any, Any] | SyncPoll[Any, Any, Any]] = AsyncPoll if is_async else SyncPoll
        return kind(handler=handler, is_async=is_async, polls=True, **self._checked)


class PlainPoll(_PollOptions):
    """Nothing given fixes a type: the handler decides everything."""

    __slots__ = ()

    @overload
    def __call__(
        self, handler: Callable[[Invocation[In, D]], Coroutine[Any, Any, S | Later]], /
    ) -> AsyncPoll[In, D, S]: ...
    @overload
    def __call__(self, handler: Callable[[Invocation[In, D]], S | Later], /) -> SyncPoll[In, D, S]: ...
    def __call__(self, handler: Callable[..., object], /) -> ErasedStep:
        return self.make(handler)


class WhenPoll(_PollOptions, Generic[In, D]):
    """A condition fixes input and dependencies."""

    __slots__ = ()

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]  # meant, see decorator
        self: WhenPoll[In, D], handler: Callable[[Invocation[In, D]], Coroutine[Any, Any, S | Later]], /
    ) -> AsyncPoll[In, D, S]: ...
    @overload
    def __call__(self: WhenPoll[In, D], handler: Callable[[Invocation[In, D]], S | Later], /) -> SyncPoll[In, D, S]: ...
    def __call__(self, handler: Callable[..., object], /) -> ErasedStep:
        return self.make(handler)


class StatefulPoll(_PollOptions, Generic[In, D, S]):
    """An unwind handler or a substitute fixes the state, too."""

    __slots__ = ()

    @overload
    def __call__(
        self: StatefulPoll[In, D, S], handler: Callable[[Invocation[In, D]], Coroutine[Any, Any, S | Later]], /
    ) -> AsyncPoll[In, D, S]: ...
    @overload
    def __call__(
        self: StatefulPoll[In, D, S], handler: Callable[[Invocation[In, D]], S | Later], /
    ) -> SyncPoll[In, D, S]: ...
    def __call__(self, handler: Callable[..., object], /) -> ErasedStep:
        return self.make(handler)


@overload
def poll(
    id: str,
    *,
    timeout: Duration | None = ...,
    retry: Retry | None = ...,
    needs: Sequence[Need] = ...,
    on_cancel: OnCancel = ...,
    limits: Sequence[Limit[Never]] = ...,
) -> PlainPoll: ...
@overload
def poll(
    id: str,
    *,
    when: Callable[[Invocation[In, D]], bool],
    timeout: Duration | None = ...,
    retry: Retry | None = ...,
    needs: Sequence[Need] = ...,
    on_cancel: OnCancel = ...,
    limits: Sequence[Limit[Never]] = ...,
) -> WhenPoll[In, D]: ...
@overload
def poll(
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
) -> StatefulPoll[In, D, S]: ...
@overload
def poll(
    id: str,
    *,
    if_skipped: Callable[[Invocation[In, D]], S],
    when: Callable[[Invocation[In, D]], bool] | None = ...,
    timeout: Duration | None = ...,
    retry: Retry | None = ...,
    needs: Sequence[Need] = ...,
    on_cancel: OnCancel = ...,
    limits: Sequence[Limit[Never]] = ...,
) -> StatefulPoll[In, D, S]: ...
def poll(
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
    """Makes a step of the function below it that is asked again and again until it knows [B-15].

    The handler returns the step's state, or `Later(delay)`, and is annotated `-> T | Later`. `Later` is no error: the
    next attempt starts after `delay`, without backoff, and counts towards no bound. Meanwhile the run holds no worker.

    Args:
        id: as of a step.
        unwind: as of a step; called with the state once there is one.
        unwind_in_doubt: as of a step.
        if_skipped: as of a step.
        when: as of a step; asked once, not at every attempt.
        timeout: bound of one attempt, not of the waiting; that is the run's deadline.
        retry: how attempts that raise are retried; `Later` plays no part in it.
        needs: as of a step.
        on_cancel: as of a step; `settle`: a cancel waits until the poll has a state.
        limits: as of a step; each attempt is one operation.

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
        return StatefulPoll[object, object, object](checked)
    return PlainPoll(checked) if when is None else WhenPoll[object, object](checked)
