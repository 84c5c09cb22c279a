"""Facts from outside the owning worker: which are admitted, which are duplicates, which are refused [J-4 .. J-6, R-17].

Pure: the caller loads the run's projection, asks here, and appends what is admitted at the tail; if somebody appended
first, it loads and asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from perdure.core.facts import (
    NULL,
    Fact,
    Failure,
    MessageReceived,
    OperationResolved,
    OutcomeCommitted,
    Phase,
    Resolution,
    RunAbandoned,
    RunCancelRequested,
    RunHeld,
    RunPrioritized,
    RunReleased,
)
from perdure.core.frontier import view_of
from perdure.core.operations import CancelOp, EvaluateOp, InvalidOp, RunOp, UnitOp, UnwindOp, WaitOp
from perdure.core.projection import Projection, dump, restore
from perdure.core.reconciler import Lists, reconcile
from perdure.core.reducer import fold
from perdure.core.topology import Topology


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """Append this fact, and in the same append those that follow from it."""

    fact: Fact
    more: tuple[Fact, ...] = ()


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """What is asked for is recorded already; success without a write [J-4]."""


class Taken(msgspec.Struct, frozen=True, gc=False):
    """A guard key is taken by other content [J-5]."""

    key: str
    problem: str


class NotPermitted(msgspec.Struct, frozen=True, gc=False):
    """The run's state does not permit it."""

    problem: str


Admission: TypeAlias = Admitted | Duplicate | Taken | NotPermitted

_DUPLICATE = Duplicate()
_FAILED = NotPermitted("it has failed and unwinds, so it waits for no message any more")


class ResolveRequest(msgspec.Struct, frozen=True, gc=False):
    """What an operator says about the next operation [R-17].

    Attributes:
        step: the step it must be of; None: whichever is next.
        state: the encoded value, for `value`.
        message: why, for `fail`.
    """

    how: Resolution
    actor: str
    step: str | None = None
    state: bytes = b"null"
    message: str = ""
    note: str = ""


def _ended(p: Projection) -> Taken | None:
    if p.ended is not None or p.outcome is not None:
        return Taken("terminal", "the run has ended")
    return None


def admit_cancel(p: Projection, fact: RunCancelRequested) -> Admission:
    """The first request wins; later ones are duplicates, whoever sends them [R-12]."""
    return _ended(p) or (Admitted(fact) if p.cancel is None else _DUPLICATE)


def admit_hold(p: Projection, fact: RunHeld) -> Admission:
    """A run that an operator holds is held; a hold by policy is replaced by the operator's."""
    ended = _ended(p)
    if ended is not None:
        return ended
    return _DUPLICATE if p.held is not None and not p.held.step else Admitted(fact)


def admit_release(p: Projection, fact: RunReleased) -> Admission:
    """Only a held run can be released."""
    ended = _ended(p)
    if ended is not None:
        return ended
    return NotPermitted("the run is not held") if p.held is None else Admitted(fact)


def admit_retry(p: Projection, fact: RunReleased) -> Admission:
    """Now, whatever it waits for: ends a hold, cuts a backoff short, asks an invalid run again."""
    return _ended(p) or Admitted(fact)


def admit_priority(p: Projection, fact: RunPrioritized) -> Admission:
    """Whatever the run waits for; the priority that it has already is a duplicate [R-1]."""
    return _ended(p) or (_DUPLICATE if fact.priority == p.priority else Admitted(fact))


def admit_message(p: Projection, received: Callable[[], MessageReceived], key: str = "") -> Admission:
    """A message is kept until an await consumes it; an equal one under its key is a duplicate, also after the end.

    Anything else is refused after the end, and once the run has failed: no await comes any more [B-24].

    Args:
        received: the fact; what it raises is the answer to a message that is not refused already.
        key: of the message.
    """
    refused = _ended(p) or (_FAILED if p.failure is not None else None)
    if refused is not None and not key:
        return refused
    fact = received()
    known = p.message_keys.get(fact.name, {}).get(fact.key) if fact.key else None
    if known is None:
        return refused or Admitted(fact)
    if known == fact.digest:
        return _DUPLICATE
    return Taken(f"message:{fact.name}:{fact.key}", f"key {fact.key!r} was used for another message {fact.name!r}")


def admit_resolve(p: Projection, topology: Topology, request: ResolveRequest, at_us: int) -> Admission:
    """Resolve the next operation of the run in `topology`; a hold does not hide it.

    `p` must be a projection of the caller's own: the hold is lifted in it.
    """
    ended = _ended(p)
    if ended is not None:
        return ended
    p.held = None
    op = reconcile(p, topology)
    if isinstance(op, InvalidOp):
        return NotPermitted(f"the next operation is not known: {op.detail}")
    if isinstance(op, CancelOp):
        return NotPermitted("the run is being canceled")
    if not isinstance(op, (RunOp, EvaluateOp, WaitOp, UnitOp, UnwindOp)):
        return NotPermitted("no operation is left to resolve")
    if request.step is not None and request.step != op.step:
        return NotPermitted(f"the next operation is of step {op.step!r}, not {request.step!r}")
    view = view_of(p, topology)
    forward = not isinstance(op, UnwindOp)
    phase: Phase = "forward" if forward else "unwind"
    failure = None
    if request.how == "fail":
        message = request.message or "an operator resolved the step as failed"
        attempts = p.attempts(phase, op.step)
        failure = Failure(op.step, message, phase, attempts, at_us, kind="user", reason="resolved")
    return Admitted(
        OperationResolved(
            op.step,
            request.how,
            request.actor,
            phase,
            msgspec.Raw(request.state) if request.how == "value" and forward else NULL,
            request.note,
            view.newly_passed(p, op.position) if forward else (),
            () if forward else view.newly_crossed(p, op.position),
            failure,
        )
    )


def admit_abandon(p: Projection, topology: Topology, actor: str, note: str, at_us: int) -> Admission:
    """Give the run up: failed, of kind `abandoned`, no handler called, the lists of U-9 computed in `topology` [D-7].

    Whether the run may be given up is for the caller to say: it knows whether somebody is executing it. `p` must be a
    projection of the caller's own: a hold is lifted in it.
    """
    ended = _ended(p)
    if ended is not None:
        return ended
    p.held = None
    failure = _abandonment(p, topology, note, at_us)
    abandoned = RunAbandoned(actor, failure, note)
    after = restore(dump(p), p.locator, p.row_seq, p.row_hash)
    fold(after, abandoned, at_us)
    end = Lists(after, topology).end(failure, tuple(p.unwind_failures))
    return Admitted(abandoned, (OutcomeCommitted("failure"), end))


def _abandonment(p: Projection, topology: Topology, note: str, at_us: int) -> Failure:
    if p.failure is not None:
        step, message = p.failure.step, f"abandoned while unwinding after: {p.failure.message[:500]}"
    else:
        step = p.pin or str(getattr(reconcile(p, topology), "step", ""))
        message = "an operator abandoned the run"
    attempt = p.attempts("forward", step)
    message = f"{message} ({note[:500]})" if note else message
    return Failure(step, message, "forward", attempt, at_us, "abandoned", "abandoned")
