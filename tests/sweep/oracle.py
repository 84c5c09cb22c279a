"""The rules of forward and unwind reconciliation, written a second time.

This is the oracle of the sweep: slow, simple and independent. It imports nothing of perdure. A run is a `World`, the
list of what happened, each event with the topology that was current then. `read` tells what the ledger knows after that
list, `decide` says what the run must do next under a topology, `apply` adds one legal event and refuses any other.

Rule ids in brackets are those of `docs/rules.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, assert_never

from tests.sweep.vocabulary import (
    FORWARD_ENDS,
    RESOLUTIONS,
    UNWIND_ENDS,
    CancelAt,
    Decision,
    EndCanceled,
    EndFailure,
    EndSuccess,
    Event,
    GoOn,
    Happened,
    Invalid,
    Lists,
    Output,
    Run,
    Shape,
    Step,
    Topology,
    Unwind,
    What,
    World,
)

# What is known ----------------------------------------------------------------------------------------------------

Forward: TypeAlias = Literal["unresolved", "succeeded", "skipped", "failed"]
Unwound: TypeAlias = Literal["unresolved", "succeeded", "failed"]


@dataclass(slots=True)
class Known:
    """What a history says. A step without an entry in `forward` was never started, skipped or resolved."""

    forward: dict[str, Forward] = field(default_factory=dict[str, Forward])
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    shapes: dict[str, Shape] = field(default_factory=dict[str, Shape])
    in_doubt: set[str] = field(default_factory=set[str])
    passed: set[str] = field(default_factory=set[str])
    unwind: dict[str, Unwound] = field(default_factory=dict[str, Unwound])
    unwind_attempts: dict[str, int] = field(default_factory=dict[str, int])
    crossed: set[str] = field(default_factory=set[str])
    last_unwind: str | None = None
    failed_at: str | None = None
    canceled: bool = False
    cancel_requested: bool = False
    running: str | None = None
    output: Literal["not called", "raised", "returned"] = "not called"
    ever_unwind: set[str] = field(default_factory=set[str])
    ever_in_doubt: set[str] = field(default_factory=set[str])

    def copy(self) -> Known:
        return Known(
            dict(self.forward),
            dict(self.attempts),
            dict(self.shapes),
            set(self.in_doubt),
            set(self.passed),
            dict(self.unwind),
            dict(self.unwind_attempts),
            set(self.crossed),
            self.last_unwind,
            self.failed_at,
            self.canceled,
            self.cancel_requested,
            self.running,
            self.output,
            set(self.ever_unwind),
            set(self.ever_in_doubt),
        )


def read(world: World) -> Known:
    """What the whole history says, from its beginning."""
    known = Known()
    for happened in world:
        learn(known, happened)
    return known


def learn(known: Known, happened: Happened) -> None:
    """Add one event to what is known."""
    what, step, topology = happened.event.what, happened.event.step, happened.topology
    declare(known, topology)
    if what is What.DEPLOYED:
        if known.output == "raised":
            known.output = "not called"
    elif what is What.CANCEL_REQUESTED:
        known.cancel_requested = True
    elif what is What.OUTPUT_RETURNED:
        known.output = "returned"
    elif what is What.OUTPUT_RAISED:
        known.output = "raised"
    elif what in FORWARD_ENDS:
        known.running = None
        _learn_forward_end(known, what, step)
    elif what in UNWIND_ENDS:
        known.running = None
        _learn_unwind_end(known, what, step)
    elif what is What.UNWIND_RESERVED or known.failed_at is not None:
        _learn_unwind(known, what, step, topology)
    else:
        _learn_forward(known, what, step, topology)


def declare(known: Known, topology: Topology) -> None:
    """This topology is one of the deployed generations [U-9]."""
    known.ever_unwind.update(s.id for s in topology if s.unwind)
    known.ever_in_doubt.update(s.id for s in topology if s.in_doubt)


def _learn_forward(known: Known, what: What, step: str, topology: Topology) -> None:
    """A forward reservation, opening, skip or resolution: it passes what stands before it and has no entry [E-7]."""
    if what is What.BEGUN:  # within a step that has passed all this when it opened
        known.attempts[step] = known.attempts.get(step, 0) + 1
        known.running = step
        return
    place = position(topology)[step]
    known.passed.update(s.id for s in topology[:place] if s.id not in known.forward)
    if what is What.RESERVED:
        known.forward[step] = "unresolved"
        known.attempts[step] = known.attempts.get(step, 0) + 1
        known.running = step
        return
    known.running = None
    if what is What.OPENED:
        known.forward[step] = "unresolved"
        known.shapes[step] = topology[place].shape
        return
    started = step in known.attempts
    if what is What.RESOLVED_VALUE:
        known.forward[step] = "succeeded"
    elif what is What.SKIPPED:
        known.forward[step] = "skipped"
    elif what is What.RESOLVED_SKIP:
        known.forward[step] = "skipped"
        _doubt(known, step, started)
    elif what is What.RESOLVED_FAIL:
        _fail(known, step, canceled=False)
        _doubt(known, step, started)
    elif what is What.CANCEL_ACTED:
        _fail(known, step, canceled=True)
        _doubt(known, step, started)
    else:
        raise AssertionError(what)


def _learn_forward_end(known: Known, what: What, step: str) -> None:
    """The end of a forward attempt. It records nothing as passed."""
    if what is What.RETURNED:
        known.forward[step] = "succeeded"
    elif what is What.FAILED:
        _fail(known, step, canceled=known.cancel_requested)  # canceled, but not in doubt [R-12, M-9]
        _doubt(known, step, known.shapes.get(step) == "unit")  # an item's own word is not that of the step [U-12]
    elif what is What.GAVE_UP:
        _fail(known, step, canceled=known.cancel_requested)
        _doubt(known, step, step in known.attempts)  # what waited did nothing [B-15]


def _learn_unwind(known: Known, what: What, step: str, topology: Topology) -> None:
    """An unwind reservation or resolution: it crosses its own step and all after it [U-4]."""
    known.crossed.update(s.id for s in topology[position(topology)[step] :])
    known.last_unwind = step
    if what is What.UNWIND_RESERVED:
        known.unwind[step] = "unresolved"
        known.unwind_attempts[step] = known.unwind_attempts.get(step, 0) + 1
        known.running = step
        return
    known.running = None
    known.unwind[step] = "succeeded" if what is What.RESOLVED_VALUE else "failed"  # given up [U-8]


def _learn_unwind_end(known: Known, what: What, step: str) -> None:
    if what is What.UNWIND_RETURNED:
        known.unwind[step] = "succeeded"
    elif what is What.UNWIND_FAILED:
        known.unwind[step] = "failed"


def _fail(known: Known, step: str, *, canceled: bool) -> None:
    known.forward[step] = "failed"
    known.failed_at = step
    known.canceled = canceled


def _doubt(known: Known, step: str, started: bool) -> None:
    """In doubt is what was started and did not end by the handler's own word [U-9]."""
    if started:
        known.in_doubt.add(step)


def position(topology: Topology) -> dict[str, int]:
    return {s.id: i for i, s in enumerate(topology)}


# The rules --------------------------------------------------------------------------------------------------------


def decide(world: World, topology: Topology) -> Decision:
    """What the run must do next if `topology` is current now [E-1]."""
    known = read(world)
    declare(known, topology)
    return decide_known(known, topology)


def decide_known(known: Known, topology: Topology) -> Decision:
    """The same from what is known. `known` must have `topology` among the ever declared."""
    if known.failed_at is None:
        return _forward(known, topology)
    return _unwind(known, topology, known.failed_at)


def _forward(known: Known, topology: Topology) -> Decision:
    if known.output == "returned":
        return EndSuccess(tuple(sorted(known.in_doubt)))  # the outcome is committed [E-10]
    place = position(topology)
    for step, state in known.forward.items():
        if state == "unresolved":
            if step not in place:
                return Invalid("unresolved step missing")  # E-3
            return _pinned(known, topology[place[step]])  # E-2, E-9
    settled = [step for step, state in known.forward.items() if state in ("succeeded", "skipped")]
    present = [place[step] for step in settled if step in place]
    if settled and not present:
        return Invalid("no safe frontier")  # E-5
    frontier = max(present, default=-1)  # E-4
    for candidate in topology[frontier + 1 :]:  # E-6
        if not candidate.retired and candidate.id not in known.passed:
            return _select(known, candidate.id)
    if known.output == "raised":
        return Invalid("output raised")  # M-13
    return Output(tuple(sorted(known.in_doubt)))


def _select(known: Known, step: str) -> Decision:
    """The next forward operation, unless a cancel takes it [R-12]."""
    if known.cancel_requested:
        return CancelAt(step)
    return Run(step, known.attempts.get(step, 0) + 1)


def _pinned(known: Known, step: Step) -> Decision:
    """An unresolved step goes on as what it was opened as; a cancel asks for less [D-1, R-12]."""
    shape = known.shapes.get(step.id, "handler")
    if known.cancel_requested or shape == step.shape == "handler":
        return _select(known, step.id)
    return GoOn(step.id) if shape == step.shape else Invalid("another shape")


def _unwind(known: Known, topology: Topology, failed_at: str) -> Decision:
    steps = {s.id: s for s in topology}
    place = position(topology)
    last = known.last_unwind
    if last is not None and known.unwind[last] == "unresolved" and last in steps and _can_unwind(known, steps[last]):
        return _call_unwind(known, last)  # U-7
    successes = [step for step, state in known.forward.items() if state == "succeeded"]
    if successes and not any(step in place for step in successes):
        return Invalid("no safe unwind frontier")  # U-6
    if known.crossed and not any(step in place for step in known.crossed):
        return Invalid("no safe unwind frontier")  # U-6
    frontier = min((place[step] for step in known.crossed if step in place), default=len(topology))  # U-5
    for candidate in reversed(topology[:frontier]):  # U-3
        if _can_unwind(known, candidate) and known.unwind.get(candidate.id) not in ("succeeded", "failed"):
            return _call_unwind(known, candidate.id)
    lists = _lists(known, topology)
    return EndCanceled(failed_at, lists) if known.canceled else EndFailure(failed_at, lists)  # U-9


def _can_unwind(known: Known, step: Step) -> bool:
    """U-2 (1) to (3), of a step in the current topology."""
    return step.unwind and _had_effect(known, step)


def _had_effect(known: Known, step: Step) -> bool:
    """U-2 (1) and U-12."""
    return known.forward.get(step.id) == "succeeded" or (step.in_doubt and step.id in known.in_doubt)


def _call_unwind(known: Known, step: str) -> Unwind:
    return Unwind(step, known.unwind_attempts.get(step, 0) + 1, step in known.in_doubt)


def _lists(known: Known, topology: Topology) -> Lists:
    now = {s.id: s for s in topology}
    half, uncompensated, unavailable = list[str](), list[str](), list[str]()
    for step in sorted(known.forward):
        if known.unwind.get(step) == "unresolved":
            half.append(step)
        if known.unwind.get(step) == "succeeded":
            continue
        if step in now and now[step].unwind:
            if _had_effect(known, now[step]):
                uncompensated.append(step)
        elif known.forward[step] == "succeeded":
            if step in known.ever_unwind:
                unavailable.append(step)
        elif step in known.in_doubt and step in known.ever_in_doubt:
            unavailable.append(step)
    return Lists(tuple(sorted(known.in_doubt)), tuple(half), tuple(uncompensated), tuple(unavailable))


# What may happen --------------------------------------------------------------------------------------------------


class NotLegal(Exception):
    """This event cannot happen in this world under this topology."""


def apply(world: World, topology: Topology, event: Event) -> World:
    """The world after `event`. Raises `NotLegal` for an event that cannot happen here."""
    known = read(world)
    declare(known, topology)
    if not is_legal(known, topology, event):
        raise NotLegal(f"{event} while the run must {decide_known(known, topology)}")
    return (*world, Happened(event, topology))


def is_legal(known: Known, topology: Topology, event: Event) -> bool:
    """Whether `event` can happen now. The decision binds whoever acts; an attempt ends only if it is running."""
    if known.output == "returned":
        return False
    what, step = event.what, event.step
    if what in (What.DEPLOYED, What.CANCEL_REQUESTED):
        return True
    if what in FORWARD_ENDS and known.forward.get(step) == "unresolved" and step in known.shapes:
        return _may_end(known, topology, event)
    if what in FORWARD_ENDS:
        return known.running == step and known.failed_at is None
    if what in UNWIND_ENDS:
        return known.running == step and known.failed_at is not None
    decision = decide_known(known, topology)
    if what in RESOLUTIONS:  # a running attempt is fenced
        return isinstance(decision, Run | GoOn | Unwind) and decision.step == step
    if known.running is not None:
        return False
    match decision:
        case Run():
            started = What.RESERVED if _shape(topology, step) == "handler" else What.OPENED
            return decision.step == step and (what is started or (what is What.SKIPPED and decision.attempt == 1))
        case GoOn():
            return what is What.BEGUN and decision.step == step and known.shapes[step] == "unit"
        case Unwind():
            return what is What.UNWIND_RESERVED and decision.step == step
        case CancelAt():
            return what is What.CANCEL_ACTED and decision.step == step
        case Output():
            return what in (What.OUTPUT_RETURNED, What.OUTPUT_RAISED)
        case EndSuccess() | EndFailure() | EndCanceled() | Invalid():
            return False
        case _:
            assert_never(decision)


def _may_end(known: Known, topology: Topology, event: Event) -> bool:
    """How a wait ends, or a unit; where its item failed, the unit does once it is there as what it was opened as."""
    what, step = event.what, event.step
    if known.shapes[step] == "wait":
        return what in (What.RETURNED, What.GAVE_UP) and decide_known(known, topology) == GoOn(step)
    if known.running != step or known.failed_at is not None:
        return False
    return what in (What.RETURNED, What.LOST) or (what is not What.RAISED and _shape(topology, step) == "unit")


def _shape(topology: Topology, step: str) -> Shape:
    place = position(topology).get(step)
    return "handler" if place is None else topology[place].shape
