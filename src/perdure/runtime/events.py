"""What observers are told of an append, once it is durable [R-15]."""

from __future__ import annotations

from perdure.core.facts import (
    BoundaryCompletionAdmitted,
    BoundaryOpened,
    BoundaryResolved,
    Fact,
    ItemFailed,
    ItemOutputRecorded,
    ItemRetryScheduled,
    OperationRetryScheduled,
    OperationWoken,
    RunFailed,
    SegmentAttemptStarted,
)
from perdure.core.operations import EndedOp, InvalidOp
from perdure.core.plan import Parked, Plan
from perdure.core.projection import Projection
from perdure.ports.observer import EventKind
from perdure.runtime.host import Host


def emit_facts(host: Host, p: Projection, plan: Plan) -> None:
    """Tell observers what an append made durable."""
    for fact in plan.facts:
        match fact:
            case SegmentAttemptStarted():
                host.emit("claimed", p)
            case OperationRetryScheduled():
                detail = fact.failure.message if fact.failure is not None else fact.cause
                host.emit("retry-scheduled", p, step=fact.step, phase=fact.phase, attempt=fact.attempt, detail=detail)
            case ItemRetryScheduled():
                detail = fact.failure.message if fact.failure is not None else fact.cause
                _emit_item(host, p, "retry-scheduled", fact, f": {detail}")
            case ItemOutputRecorded():
                _emit_item(host, p, "attempt-succeeded", fact)
            case ItemFailed():
                _emit_item(host, p, "attempt-failed", fact, f": {fact.failure.message}")
            case RunFailed():
                host.emit(
                    "canceled" if fact.failure.kind == "canceled" else "failed",
                    p,
                    step=fact.failure.step,
                    detail=fact.failure.message,
                )
                left = (*fact.half_unwound, *fact.uncompensated, *fact.unavailable)
                if left:
                    host.emit("uncompensated", p, detail=", ".join(left))
            case _:
                if not _emit_wait(host, p, fact):
                    _emit_simple(host, p, fact)
    match plan.rest:
        case Parked():
            host.emit("waiting", p, step=p.pin or "", detail=plan.rest.why)
            host.emit("released", p)
        case InvalidOp(reason, detail):
            host.emit("invalid", p, detail=f"{reason}: {detail}")
        case None | EndedOp():
            pass
        case _:
            host.emit("released", p)


def _emit_item(
    host: Host,
    p: Projection,
    kind: EventKind,
    fact: ItemRetryScheduled | ItemOutputRecorded | ItemFailed,
    said: str = "",
) -> None:
    host.emit(
        kind,
        p,
        step=fact.step,
        phase="forward",
        attempt=fact.attempt,
        detail=f"item {fact.index}{said}",
        item=fact.index,
    )


def _emit_wait(host: Host, p: Projection, fact: Fact) -> bool:
    """Of waits and units, one event for each fact that says something new; whether it was one of those."""
    match fact:
        case OperationWoken(step, by):
            host.emit("woken", p, step=step, detail=f"by {by}")
        case BoundaryOpened(step, shape, items):
            host.emit("unit-opened", p, step=step, detail=f"{shape} of {len(items)}")
        case BoundaryResolved(step):
            host.emit("unit-resolved", p, step=step)
        case BoundaryCompletionAdmitted(step, index, status):
            host.emit("child-ended", p, step=step, detail=f"item {index}: {status}", item=index)
        case _:
            return False
    return True


def _emit_simple(host: Host, p: Projection, fact: object) -> None:
    name = type(fact).__name__
    step: str = getattr(fact, "step", "")
    phase: str = getattr(fact, "phase", "")
    attempt_number: int = getattr(fact, "attempt", 0)
    if name == "OperationSucceeded" and attempt_number:
        host.emit("attempt-succeeded", p, step=step, phase=phase, attempt=attempt_number)
    elif name == "OperationFailed":
        host.emit("attempt-failed", p, step=step, phase=phase)
    elif name == "RunHeld":
        host.emit("held", p, step=step)
    elif name == "RunSucceeded":
        host.emit("succeeded", p)
