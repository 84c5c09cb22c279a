"""Calling a handler for a reserved attempt, and turning whatever happens into an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, cast

from perdure.core.facts import Failure, Phase
from perdure.core.operations import InvalidOp, InvalidReason, RunOp, UnwindOp
from perdure.core.outcomes import Declined, Interrupted, Outcome, Postponed, Raised, Refused, Returned, TimedOut
from perdure.define.failure import failure_of
from perdure.define.functions import AnyFunction
from perdure.define.invocation import AnyInvocation, Invocation, UnwindInvocation
from perdure.define.later import Later
from perdure.define.signals import Fail
from perdure.define.step import AnyStep
from perdure.errors import PayloadError
from perdure.runtime.context import current_invocation
from perdure.runtime.host import Host, Middleware, Next
from perdure.runtime.line import Line
from perdure.runtime.live import Interrupt, LiveRun, broken

Ended: TypeAlias = Outcome | InvalidOp | None
"""An outcome to record; or the run is invalid and nothing is recorded; or None: somebody else ended the attempt."""


async def attempt(host: Host, live: LiveRun, op: RunOp | UnwindOp) -> Ended:
    """Run one reserved attempt to its end. Never raises what a handler raises.

    Raises:
        asyncio.CancelledError: the engine was aborted; nothing is recorded.
    """
    definition = live.line.steps[op.step]
    if type(op) is RunOp:
        phase: Phase = "forward"
        inv: Invocation[Any, Any] = Invocation(live, definition, op.attempt)
    else:
        phase = "unwind"
        inv = UnwindInvocation(live, definition, op.attempt)
    if _was_aborted(live):
        raise asyncio.CancelledError
    live.interrupt = None
    live.started_us = host.system.now_us()
    live.stuck = False
    timeout_s = live.line.timeouts_s.get(op.step)
    value: object = None
    error: BaseException | None = None
    try:
        handler, is_async, arguments = _handler(live, definition, op, inv)
    except PayloadError as problem:
        return InvalidOp("payload-unreadable", f"the state of step {op.step!r}: {problem}")
    current_invocation.set(inv)
    if timeout_s is not None:
        live.allow(timeout_s)
    live.in_handler, live.inv = True, inv
    try:
        if is_async and not host.middleware:
            value = await handler(*arguments)
        else:
            value = await call(host, handler, is_async, arguments, inv, timeout_s, live.allow)
    except BaseException as raised:  # whatever a handler raises is the end of its attempt
        if isinstance(raised, GeneratorExit) and not _is_running(live):
            raise  # not the handler's: the loop is gone and this coroutine is being closed
        error = raised
    finally:
        live.in_handler, live.inv = False, None
        current_invocation.set(None)
        if live.timer is not None:
            live.allow(None)
    if live.task is not None and live.task.cancelling():
        await _absorb_cancellations(live.task)
    if _was_aborted(live):
        raise asyncio.CancelledError
    return _ended(host, live, definition, op, phase, inv, value, error)


def _ended(
    host: Host,
    live: LiveRun,
    definition: AnyStep[Any, Any],
    op: RunOp | UnwindOp,
    phase: Phase,
    inv: Invocation[Any, Any],
    value: object,
    error: BaseException | None,
) -> Ended:
    interrupt = live.interrupt
    if error is None and inv.broken is None and interrupt != "fenced":
        return _returned(host, definition, op, phase, value)
    return verdict(live.line, interrupt, inv, phase, op.attempt, error, host.system.now_us())


Allow: TypeAlias = Callable[[float | None], None]
"""From now on an attempt may take so many seconds; None: any time [R-18]."""


async def call(
    host: Host,
    handler: AnyFunction,
    is_async: bool,
    arguments: tuple[object, ...],
    inv: AnyInvocation,
    timeout_s: float | None,
    allow: Allow,
) -> object:
    """What a handler returns, called inside all middleware, on the loop or in a thread."""
    if host.middleware:
        return await _wrapped(host, handler, is_async, arguments, inv, timeout_s, allow)
    if is_async:
        return await cast("Coroutine[object, object, object]", handler(*arguments))
    return await _in_thread(host, handler, arguments, timeout_s, allow)


def _in_thread(
    host: Host, handler: Any, arguments: tuple[object, ...], timeout_s: float | None, allow: Allow
) -> asyncio.Future[object]:
    """Call a `def` handler; its time begins when it has a thread [R-18]."""
    if timeout_s is None:
        return host.threads.run(lambda: handler(*arguments))
    return host.threads.run(lambda: handler(*arguments), lambda waits: allow(None if waits else timeout_s))


def _is_running(live: LiveRun) -> bool:
    """Whether the run's task is what the loop executes now."""
    try:
        return live.task is not None and asyncio.current_task() is live.task
    except RuntimeError:
        return False


def _was_aborted(live: LiveRun) -> bool:
    return live.interrupt == "abort"


async def _absorb_cancellations(task: asyncio.Task[None]) -> None:
    """A task cancelled while its handler ran was cancelled for the handler's sake; the run itself goes on.

    The engine does so, and so may code of the handler's; a cancellation not thrown yet would hit our next await.
    """
    while task.cancelling():
        task.uncancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def _wrapped(
    host: Host,
    handler: Any,
    is_async: bool,
    arguments: tuple[object, ...],
    inv: Invocation[Any, Any],
    timeout_s: float | None,
    allow: Allow,
) -> object:
    """The handler inside all middleware, the first of the app's list outermost [R-15]."""

    async def innermost() -> object:
        if is_async:
            return await handler(*arguments)
        return await _in_thread(host, handler, arguments, timeout_s, allow)

    following: Next = innermost
    for wrapper in reversed(host.middleware):
        following = _around(wrapper, inv, following)
    return await following()


def _around(wrapper: Middleware, inv: Invocation[Any, Any], following: Next) -> Next:
    return lambda: wrapper(inv, following)


def _handler(
    live: LiveRun, definition: AnyStep[Any, Any], op: RunOp | UnwindOp, inv: Invocation[Any, Any]
) -> tuple[Any, bool, tuple[object, ...]]:
    """The function to call for an operation, whether it is `async def`, and its arguments."""
    if type(op) is RunOp:
        return definition.handler, definition.is_async, (inv,)
    if type(op) is UnwindOp and op.in_doubt:
        return definition.unwind_in_doubt, definition.unwind_in_doubt_is_async, (inv,)
    state = definition.codec.decode(live.p.state(op.step) or b"null")
    return definition.unwind, definition.unwind_is_async, (inv, state)


def verdict(
    line: Line,
    interrupt: Interrupt | None,
    inv: AnyInvocation,
    phase: Phase,
    attempt: int,
    error: BaseException | None,
    at_us: int,
) -> Ended:
    """How an attempt ended that did not simply return."""
    if interrupt == "fenced":
        return None
    if inv.broken is not None:
        problem = broken(inv.broken)
        return InvalidOp(problem.reason, problem.detail)
    step = inv.step_id
    if isinstance(error, Fail):
        return Declined(failure_of(error, step=step, phase=phase, attempt=attempt, at_us=at_us))
    if interrupt == "shutdown" or error is None:
        return Interrupted()
    if interrupt == "timeout":
        message = f"the attempt took longer than {line.timeouts_s.get(step)} s"
        return TimedOut(Failure(step, message, phase, attempt, at_us, reason="attempt-timeout"))
    never = line.policy(step).is_never(error)
    return Raised(failure_of(error, step=step, phase=phase, attempt=attempt, at_us=at_us), never)


def _returned(host: Host, definition: AnyStep[Any, Any], op: RunOp | UnwindOp, phase: Phase, value: object) -> Ended:
    if type(value) is Later:
        return _later(definition, phase, value)
    if phase == "unwind":
        return Returned(b"null")
    try:
        state = definition.codec.encode(value)
    except PayloadError as error:
        reason: InvalidReason = "contract-broken" if value is None else "payload-unserialisable"
        return InvalidOp(reason, f"the state that step {op.step!r} returned cannot be stored: {error}")
    limit = host.options.payload_limit
    if len(state) > limit:
        message = (
            f"step {op.step!r} returned a state of {len(state):,} bytes, the limit is {limit:,}; store it elsewhere "
            "and return a reference, or raise the limit, and resolve or retry"
        )
        return Refused(Failure(op.step, message, phase, op.attempt, host.system.now_us(), reason="payload-too-large"))
    return Returned(state)


def _later(definition: AnyStep[Any, Any], phase: Phase, value: Later) -> Ended:
    """Nothing yet; only the forward handler of a poll may say so [B-15]."""
    if phase == "forward" and definition.polls:
        return Postponed(value.delay_us)
    what = "the unwind handler of step" if phase == "unwind" else "step"
    return InvalidOp("contract-broken", f"{what} {definition.id!r} returned {value!r}; only a @poll may")
