"""Why each step of the current topology ran, will run, or never will [E-11]."""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

import msgspec

from perdure.core.frontier import view_of
from perdure.core.operations import Operation
from perdure.core.projection import ForwardEntry, Projection
from perdure.core.reconciler import had_effect, reconcile
from perdure.core.topology import StepSpec, Topology
from perdure.core.words import ItemCounts, Shape

StepFate: TypeAlias = Literal[
    "succeeded", "unresolved", "ahead", "skipped", "failed", "canceled", "passed", "retired", "unreached"
]
UnwindFate: TypeAlias = Literal["unwound", "unwinding", "unwind-failed", "will-unwind", "crossed", "not-declared"]


class StepExplanation(msgspec.Struct, frozen=True, gc=False):
    """One step of the current topology, or one that the run knows and the topology does not (`position` None).

    Attributes:
        fate: what became or will become of it going forward.
        unwind: what became or will become of it going backward; None while the run does not unwind, or where there is
            nothing to undo.
        attempts, unwind_attempts: reserved so far; of items and turns those of all, of child runs how many there are.
        why: a sentence.
        shape: what it was when it was started.
    """

    step: str
    position: int | None
    fate: StepFate
    unwind: UnwindFate | None
    attempts: int
    unwind_attempts: int
    in_doubt: bool
    why: str
    shape: Shape = "handler"


class Explanation(msgspec.Struct, frozen=True, gc=False):
    """A run in the current topology.

    Attributes:
        steps: of the topology, in order.
        gone: steps that the run knows and the topology does not have.
        frontier: position of the forward frontier, -1 before the first step [E-4].
        unwind_frontier: position of the unwind frontier; None while nothing is crossed [U-5].
        next: the next operation.
        due_us: not before this time; of a wait for a message or for runs: at the latest then; 0: at once, or no time.
    """

    run_id: str
    steps: tuple[StepExplanation, ...]
    gone: tuple[StepExplanation, ...]
    frontier: int
    unwind_frontier: int | None
    next: Operation
    due_us: int


def explain(p: Projection, topology: Topology) -> Explanation:
    """Explain a run; pure, changes nothing but the projection's view."""
    view = view_of(p, topology)
    steps = tuple(_explain_step(p, topology, spec, i) for i, spec in enumerate(topology.steps))
    known = dict.fromkeys((*p.forward, *p.unwind))
    gone = tuple(_explain_gone(p, step) for step in known if step not in topology.position)
    unwind_frontier = view.unwind_frontier if view.crossed else None
    return Explanation(p.run_id, steps, gone, view.frontier, unwind_frontier, reconcile(p, topology), _due_us(p))


def _due_us(p: Projection) -> int:
    """When something happens by itself; a wait that is open has its own time [B-20]."""
    parked = p.parked()
    return p.due_us if parked is None or p.failure is not None else parked.until_us


def _explain_step(p: Projection, topology: Topology, spec: StepSpec, position: int) -> StepExplanation:
    fate, why = _fate(p, topology, spec, position)
    unwind, unwind_why = _unwind_fate(p, topology, spec, position)
    entry = p.forward.get(spec.id)
    return StepExplanation(
        spec.id,
        position,
        fate,
        unwind,
        p.attempts("forward", spec.id),
        p.attempts("unwind", spec.id),
        entry is not None and entry.in_doubt,
        "; ".join(part for part in (why, unwind_why) if part),
        "handler" if entry is None else entry.shape,
    )


def _explain_gone(p: Projection, step: str) -> StepExplanation:
    fate, why = _entry_fate(p, step)
    entry = p.forward.get(step)
    return StepExplanation(
        step,
        None,
        fate,
        None,
        p.attempts("forward", step),
        p.attempts("unwind", step),
        entry is not None and entry.in_doubt,
        f"{why}; it is no longer in the pipeline",
        "handler" if entry is None else entry.shape,
    )


def _entry_fate(p: Projection, step: str) -> tuple[StepFate, str]:
    entry = p.forward.get(step)
    if entry is None:
        return "passed", "it never ran"
    match entry.status:
        case "succeeded":
            return (
                "succeeded",
                _succeeded(entry),
            )
        case "skipped":
            return (
                "skipped",
                "an operator passed over it" if _was_started(entry) else "its condition was false",
            )
        case "unresolved" if entry.shape != "handler":
            return "unresolved", f"it {_waiting(p, step, entry)}, and pins the run"
        case "unresolved" if p.pin == step and p.current is not None and p.current.later and not p.current.open:
            return "unresolved", f"it was asked ({_times(entry.attempts)}), said later, and pins the run"
        case "unresolved":
            return "unresolved", f"it was started ({_times(entry.attempts)}) and pins the run until it is resolved"
        case "failed":
            canceled = p.failure is not None and p.failure.kind == "canceled"
            counts = f": {counts_words(p.units[step].counts(step))}" if step in p.units and entry.in_doubt else ""
            if canceled:
                return "canceled", f"a cancel resolved it{counts}"
            return "failed", f"it failed for good{counts}"


def counts_words(counts: ItemCounts) -> str:
    """`of 4 items 2 completed, 1 failed, 1 not started`: what became of the items of a step [U-12]."""
    parts = [
        f"{number:,} {word}"
        for number, word in (
            (counts.completed, "completed"),
            (counts.failed, "failed"),
            (counts.in_doubt, "in doubt"),
            (counts.not_started, "not started"),
        )
        if number
    ]
    return f"of {counts.items:,} {'item' if counts.items == 1 else 'items'} {', '.join(parts)}"


def _was_started(entry: ForwardEntry) -> bool:
    return entry.attempts > 0 or entry.in_doubt or entry.shape != "handler"


def _succeeded(entry: ForwardEntry) -> str:
    """What is known of a success; whether an operator or a time-out brought it about is told by the journal."""
    match entry.shape:
        case "sleep":
            return "it slept, and nothing was called"
        case "message":
            return f"its wait for message {entry.awaits[0]!r} is over" if entry.awaits else "its wait is over"
        case "runs":
            return "its wait for runs is over"
        case "each" | "loop":
            word = "turns" if entry.shape == "loop" else "items"
            return f"its {word} are done ({_times(entry.attempts)})"
        case "child" | "children":
            return "its child run is done" if entry.attempts == 1 else f"its {entry.attempts} child runs are done"
        case "handler":
            return f"it succeeded at attempt {entry.attempts}" if entry.attempts else "an operator gave its value"
        case _ as unreachable:
            assert_never(unreachable)


def _waiting(p: Projection, step: str, entry: ForwardEntry) -> str:
    unit = p.units.get(step)
    match entry.shape:
        case "message":
            return f"waits for message {entry.awaits[0]!r}" if entry.awaits else "waits for a message"
        case "runs":
            return f"waits for runs: {', '.join(entry.awaits[:3])}{' ...' if len(entry.awaits) > 3 else ''}"
        case "each" | "loop" if unit is not None:
            failed = f", {len(unit.failed)} failed" if unit.failed else ""
            turns = "turn" if unit.outputs == 1 else "turns"
            word = turns if unit.shape == "loop" else f"of {len(unit.items)} items"
            return f"has {unit.outputs} {word} done{failed}"
        case "child" | "children" if unit is not None:
            failed = f", {len(unit.failed)} failed" if unit.failed else ""
            return f"waits for child runs: {unit.outputs} of {len(unit.items)} succeeded{failed}"
        case "sleep":
            return "sleeps until its time has come"
        case _:
            return "has begun its items"


def _fate(p: Projection, topology: Topology, spec: StepSpec, position: int) -> tuple[StepFate, str]:
    if spec.id in p.forward:
        return _entry_fate(p, spec.id)
    if spec.id in p.passed:
        return "passed", "the run was past this place when the step was not there yet or was retired; it never runs"
    reached = max(view_of(p, topology).frontier, topology.position.get(p.pin, -1) if p.pin is not None else -1)
    if position <= reached:
        return (
            ("retired", "retired and never started: bypassed")
            if spec.retired
            else ("passed", "behind the frontier: it never runs")
        )
    if spec.retired:
        return "retired", "retired and never started: it will be bypassed"
    if p.ended is not None or p.outcome is not None or p.failure is not None:
        return "unreached", "the run ended forward work before it"
    return "ahead", "it will run" + (" if its condition holds" if spec.conditional else "")


def _unwind_fate(p: Projection, topology: Topology, spec: StepSpec, position: int) -> tuple[UnwindFate | None, str]:
    if p.failure is None or spec.id not in p.forward:
        return None, ""
    entry = p.unwind.get(spec.id)
    if entry is not None and entry.status == "succeeded":
        return "unwound", "its effect was undone"
    if entry is not None and entry.status == "failed":
        return "unwind-failed", "undoing it failed for good"
    if not had_effect(p, spec):
        return None, ""
    if not spec.unwind:
        return "not-declared", "it declares no unwind"
    if entry is not None and p.last_unwind == spec.id:
        return "unwinding", f"being undone ({_times(entry.attempts)})"
    if spec.id in p.crossed or position >= view_of(p, topology).unwind_frontier:
        return "crossed", "behind the unwind frontier: it is not undone any more"
    return ("crossed", "not undone") if p.ended is not None else ("will-unwind", "it will be undone")


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
