"""What comes next: the pure combination of a run's ledger with the pipeline as deployed now.

Forward [E-1..E-12] and backward [U-1..U-12] by one function, amortised O(1) per call on an unchanged topology.
"""

from __future__ import annotations

from typing import assert_never

from perdure.core.facts import Failure, ItemCounts, RunFailed, Shape
from perdure.core.frontier import View, view_of
from perdure.core.operations import (
    CancelOp,
    CompleteOp,
    EndedOp,
    EvaluateOp,
    FailOp,
    HeldOp,
    InvalidOp,
    Operation,
    RunOp,
    UnitOp,
    UnwindOp,
    WaitOp,
)
from perdure.core.projection import Projection
from perdure.core.topology import StepSpec, Topology
from perdure.core.unit import CHILD_SHAPES

_COMPLETE = CompleteOp()
_FAIL = FailOp()
_ENDED = EndedOp()


def reconcile(p: Projection, topology: Topology) -> Operation:
    """The next operation of the run. Time plays no part: `Projection.due_us` says when, this says what."""
    view = view_of(p, topology)
    if p.ended is not None or p.outcome is not None:
        return _ENDED
    if p.failure is not None:
        return _unwind(p, view)
    if p.pin is not None:
        return _pinned(p, topology, p.pin)
    return _forward(p, view)


def _pinned(p: Projection, topology: Topology, pin: str) -> Operation:
    """An unresolved forward operation is next wherever it stands, retired or not [E-2, E-3]."""
    position = topology.position.get(pin)
    if position is None:
        return InvalidOp(
            "step-missing", f"step {pin!r} is unresolved but not in the pipeline; restore it, or retire it"
        )
    spec, entry = topology.steps[position], p.forward[pin]
    if p.cancel is not None and not spec.settle and not waits_for_children(p, spec):
        return CancelOp(pin, position, in_doubt=entry.attempts > 0)
    if p.held is not None and (p.cancel is None or spec.settle):
        return HeldOp(p.held.reason)
    if spec.shape != entry.shape:
        was, now = _SHAPES[entry.shape], _SHAPES[spec.shape]
        return InvalidOp("shape-changed", f"step {pin!r} is unresolved as {was} and now is {now}; give it another id")
    if spec.shape == "handler":
        return RunOp(pin, position, entry.attempts + 1, started=True)
    return _opened(spec, position, open=True)


_SHAPES: dict[Shape, str] = {
    "handler": "a handler",
    "sleep": "a sleep",
    "message": "a wait for a message",
    "runs": "a wait for runs",
    "each": "a step of items",
    "loop": "a loop",
    "child": "a child run",
    "children": "a step of child runs",
}


def waits_for_children(p: Projection, spec: StepSpec) -> bool:
    """A cancel of the run waits until the child runs of this step have ended, which were told [B-21]."""
    entry = p.forward.get(spec.id)
    started = entry is not None and entry.status == "unresolved" and entry.shape == spec.shape and entry.attempts > 0
    return started and spec.shape in CHILD_SHAPES and not spec.leaves


def _opened(spec: StepSpec, position: int, *, open: bool) -> WaitOp | UnitOp:
    match spec.shape:
        case "sleep" | "message" | "runs":
            return WaitOp(spec.id, position, spec.shape, open)
        case "each" | "loop" | "child" | "children":
            return UnitOp(spec.id, position, spec.shape, open)
        case "handler":
            raise ValueError(f"step {spec.id!r} has a handler")
        case _ as unreachable:
            assert_never(unreachable)


def started(spec: StepSpec, position: int) -> RunOp | WaitOp | UnitOp:
    """The first operation of a step whose condition holds, or that has none."""
    if spec.shape == "handler":
        return RunOp(spec.id, position, 1, started=False)
    return _opened(spec, position, open=False)


def _forward(p: Projection, view: View) -> Operation:
    """The first step after the frontier that is neither retired nor passed [E-4..E-9]."""
    if p.forward and not view.progressed:
        return InvalidOp("no-safe-frontier", "none of the steps this run finished or skipped is in the pipeline")
    steps = view.topology.steps
    for position in range(view.frontier + 1, len(steps)):
        spec = steps[position]
        if not spec.retired and spec.id not in p.passed:
            return _select(p, spec, position)
    return _COMPLETE if p.held is None else HeldOp(p.held.reason)


def _select(p: Projection, spec: StepSpec, position: int) -> Operation:
    if p.cancel is not None:  # before the condition is asked [E-12, R-12]
        return CancelOp(spec.id, position, in_doubt=False)
    if p.held is not None:
        return HeldOp(p.held.reason)
    if spec.conditional:
        return EvaluateOp(spec.id, position)
    if spec.shape == "handler":
        return RunOp(spec.id, position, 1, started=False)
    return _opened(spec, position, open=False)


def _unwind(p: Projection, view: View) -> Operation:
    """Backwards from the unwind frontier; only the very last unwind pins [U-2..U-7]. A cancel plays no part [U-11]."""
    topology = view.topology
    pinned = _unwind_pin(p, topology)
    if pinned is not None:
        return pinned if p.held is None else HeldOp(p.held.reason)
    if p.successes and not view.succeeded:
        return InvalidOp("no-safe-unwind-frontier", "none of the steps this run finished is in the pipeline")
    if p.crossed and not view.crossed:
        return InvalidOp("no-safe-unwind-frontier", "none of the steps this run has unwound past is in the pipeline")
    if p.held is not None:
        return HeldOp(p.held.reason)
    for position in range(view.unwind_frontier - 1, -1, -1):
        spec = topology.steps[position]
        if spec.unwind and had_effect(p, spec):
            return _unwind_op(p, spec, position)
    return _FAIL


def _unwind_pin(p: Projection, topology: Topology) -> UnwindOp | None:
    last = p.last_unwind
    if last is None or p.unwind[last].status != "unresolved":
        return None
    position = topology.position.get(last)
    if position is None:
        return None
    spec = topology.steps[position]
    return _unwind_op(p, spec, position) if spec.unwind and had_effect(p, spec) else None


def _unwind_op(p: Projection, spec: StepSpec, position: int) -> UnwindOp:
    return UnwindOp(
        spec.id, position, p.attempts("unwind", spec.id) + 1, in_doubt=p.forward[spec.id].status != "succeeded"
    )


def had_effect(p: Projection, spec: StepSpec) -> bool:
    """The step succeeded, or it is in doubt and says that it can unwind in doubt [U-2 (1), U-12]."""
    entry = p.forward.get(spec.id)
    if entry is None:
        return False
    return entry.status == "succeeded" or (entry.in_doubt and spec.in_doubt)


class Lists:
    """What a run's end names besides its failure, each sorted by id [U-9]."""

    __slots__ = ("half_unwound", "in_doubt", "item_counts", "unavailable", "uncompensated")

    def __init__(self, p: Projection, topology: Topology) -> None:
        self.in_doubt = in_doubt(p)
        self.half_unwound = tuple(sorted(s for s, e in p.unwind.items() if e.status == "unresolved"))
        self.uncompensated = tuple(
            sorted(s.id for s in topology.steps if s.unwind and had_effect(p, s) and not _unwound(p, s.id))
        )
        self.unavailable = tuple(sorted(s for s in p.forward if unavailable(p, topology, s)))
        self.item_counts = item_counts(p)

    def end(self, failure: Failure, unwind_failures: tuple[Failure, ...]) -> RunFailed:
        """The terminal fact that names them."""
        return RunFailed(
            failure,
            unwind_failures,
            self.in_doubt,
            self.half_unwound,
            self.uncompensated,
            self.unavailable,
            self.item_counts,
        )


def item_counts(p: Projection) -> tuple[ItemCounts, ...]:
    """Of each step of items, turns or child runs that began one and did not succeed, sorted by id [U-12]."""
    return tuple(unit.counts(step) for step, unit in sorted(p.units.items()) if p.forward[step].in_doubt)


def in_doubt(p: Projection) -> tuple[str, ...]:
    """Forward operations that were started and ended by another's word than the handler's [U-9]."""
    return tuple(sorted(s for s, e in p.forward.items() if e.in_doubt))


def _unwound(p: Projection, step: str) -> bool:
    entry = p.unwind.get(step)
    return entry is not None and entry.status == "succeeded"


def unavailable(p: Projection, topology: Topology, step: str) -> bool:
    """It had its effect, and could be unwound in some generation, but not in this one."""
    position = topology.position.get(step)
    if _unwound(p, step) or (position is not None and topology.steps[position].unwind):
        return False
    entry = p.forward[step]
    if entry.status == "succeeded":
        return step in topology.ever_unwind
    return entry.in_doubt and step in topology.ever_in_doubt


def canceled_failure(p: Projection, step: str, attempt: int, at_us: int) -> Failure:
    """The failure of a step that a cancel resolved [M-11, R-12]."""
    reason = "canceled" if p.cancel is None else p.cancel.reason
    message = "the run's deadline passed" if reason == "deadline" else "the run was canceled"
    return Failure(step, message, attempt=attempt, at_us=at_us, kind="canceled", reason=reason)
