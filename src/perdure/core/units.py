"""Carrying on units: items one by one or many at once, turns, child runs [B-2, B-10, B-15, B-21 .. B-23]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec
from msgspec.structs import replace

from perdure.core.facts import (
    BoundaryCompletionAdmitted,
    BoundaryDispatchCompleted,
    BoundaryInteractionCreated,
    BoundaryInteractionDispatched,
    BoundaryOpened,
    BoundaryResolved,
    Fact,
    Failure,
    ItemFailed,
    ItemOutputRecorded,
    ItemReserved,
    ItemRetryScheduled,
    OperationFailed,
    RetryCause,
    RunHeld,
)
from perdure.core.frontier import view_of
from perdure.core.ids import child_id
from perdure.core.operations import UnitOp
from perdure.core.outcomes import (
    Declined,
    Interrupted,
    ItemOutcome,
    Postponed,
    Raised,
    Refused,
    Returned,
    TimedOut,
)
from perdure.core.plan import ENGINE_ACTOR, Parked, Plan, Rest, RunEnd, Setting, Terms, Waiting, emit
from perdure.core.projection import Projection
from perdure.core.reconciler import canceled_failure
from perdure.core.retry import MAX_LOST_IN_A_ROW, after_failure, backoff_us
from perdure.core.topology import Topology
from perdure.core.unit import CHILD_SHAPES, Item, Unit
from perdure.core.waits import parked, resume, suspended

WAVE = 512
"""Child runs that are submitted before the run's journal hears of it."""


def unit(p: Projection, topology: Topology, facts: list[Fact], op: UnitOp, s: Setting) -> Plan | None:
    """Open a unit, or go on with one in which nothing runs; None where it was opened or resolved: planning goes on.

    Raises:
        Unplannable: what the author wrote does not say what the items are.
    """
    if not op.open:
        _open(p, topology, facts, op, s)
        return None
    if op.shape in CHILD_SHAPES:
        return _children(p, topology, facts, op, s)
    return _items(p, topology, facts, op, s)


def unit_idle(p: Projection, topology: Topology, op: UnitOp, s: Setting) -> Rest | None:
    """Why a worker that claims a run with an open unit would do nothing; None if it would do something."""
    found, terms = p.units[op.step], s.evaluator.terms(op.step)
    if op.shape not in CHILD_SHAPES:
        wake_us = found.wake_us()
        busy = found.complete or (found.failed and not terms.collect) or wake_us is None or wake_us <= s.now_us
        return None if busy else Waiting(wake_us or 0)
    goes_on = _goes_on(p, topology, op.step, found, terms)
    if s.cycle or not found.open or any(_end_of(p, op.step, found, i, s, goes_on=goes_on) for i in found.open):
        return None
    if goes_on and (found.sent < found.next or _room(found, terms)):
        return None
    return _parked(p, op.step, found)


def _open(p: Projection, topology: Topology, facts: list[Fact], op: UnitOp, s: Setting) -> None:
    opening = s.evaluator.opening(op.step)
    items = tuple(msgspec.Raw(item) for item in opening.items)
    passed = view_of(p, topology).newly_passed(p, op.position)
    emit(p, facts, BoundaryOpened(op.step, op.shape, items, opening.pipeline, passed), s.now_us)


def _fail(p: Projection, facts: list[Fact], step: str, failure: Failure, s: Setting) -> None:
    """A unit in which something was begun and that did not succeed is in doubt [U-12]."""
    resume(p, facts, s)
    in_doubt = p.attempts("forward", step) > 0
    emit(p, facts, OperationFailed(step, replace(failure, at_us=s.now_us), in_doubt=in_doubt), s.now_us)


def _stopping(p: Projection, topology: Topology, step: str) -> bool:
    """A cancel ends the unit; not where the step settles first [R-12]."""
    position = topology.position.get(step)
    return p.cancel is not None and (position is None or not topology.steps[position].settle)


def _goes_on(p: Projection, topology: Topology, step: str, found: Unit, terms: Terms) -> bool:
    """More items or child runs may be started."""
    return not _stopping(p, topology, step) and (not found.failed or terms.collect)


# --- items


def has_open_attempt(p: Projection) -> bool:
    """An attempt, of an operation or of an item, is reserved, and nothing is recorded of its end."""
    if p.current is not None and p.current.open:
        return True
    found = p.unit() if p.units else None
    return found is not None and found.shape not in CHILD_SHAPES and bool(found.open)


def _items(p: Projection, topology: Topology, facts: list[Fact], op: UnitOp, s: Setting) -> Plan | None:
    found, terms = p.units[op.step], s.evaluator.terms(op.step)
    failure = None if terms.collect else found.first_failure()
    if resolve_items(p, facts, op.step, s):
        return None
    if failure is not None:
        _fail(p, facts, op.step, failure[1], s)
    elif found.shape == "loop" and 0 < terms.most <= found.turns:
        note = f"the loop took {found.turns} turns and is not done; release the run for as many again"
        emit(p, facts, RunHeld(ENGINE_ACTOR, "max-turns", note, op.step), s.now_us)
    else:
        starts = reserve_items(p, topology, facts, op, s)
        if starts:
            return Plan(facts, replace(op, open=True, start=starts), None)
        return Plan(facts, None, Waiting(found.wake_us() or s.now_us))
    return None


def resolve_items(p: Projection, facts: list[Fact], step: str, s: Setting) -> bool:
    """The step succeeds, if every item has its output, or a failure that is collected [B-10, B-22]."""
    found, terms = p.units[step], s.evaluator.terms(step)
    if not found.complete or (found.failed and not terms.collect):
        return False
    emit(p, facts, BoundaryResolved(step, collect=terms.collect), s.now_us)
    return True


def reserve_items(
    p: Projection, topology: Topology, facts: list[Fact], op: UnitOp, s: Setting
) -> tuple[tuple[int, int], ...]:
    """Reserve as many items as may run now, those that were tried before first; by index, with their attempts."""
    found = p.units[op.step]
    starts: list[tuple[int, int]] = []
    for index in list(found.startable(s.now_us, _room_for_items(p, topology, op.step, s))):
        entry = found.entry(index)
        attempt = 1 if entry is None else entry.attempts + 1
        emit(p, facts, ItemReserved(op.step, index, attempt), s.now_us)
        starts.append((index, attempt))
    return tuple(starts)


def items_due_us(p: Projection, topology: Topology, step: str, s: Setting) -> int | None:
    """When an item of a unit may be started while others run; 0: now; None: not before one of those ends [B-10]."""
    return p.units[step].wake_us() if _room_for_items(p, topology, step, s) > 0 else None


def _room_for_items(p: Projection, topology: Topology, step: str, s: Setting) -> int:
    """How many items may be started beside those that run."""
    found, terms = p.units[step], s.evaluator.terms(step)
    if not s.may_start or p.held is not None or not _goes_on(p, topology, step, found, terms):
        return 0
    if found.shape == "loop" and 0 < terms.most <= found.turns:
        return 0
    return (terms.bound or len(found.items)) - len(found.open)


def record_items(
    p: Projection, topology: Topology, facts: list[Fact], step: str, outcomes: Sequence[ItemOutcome], s: Setting
) -> None:
    """Record how attempts of items ended; those that somebody else ended are left out [R-17].

    Under a cancel an attempt that neither returned nor failed by its own word is only put back: the step ends [R-12].
    """
    found, stopping = p.units[step], _stopping(p, topology, step)
    for ended in outcomes:
        entry = found.entry(ended.index)
        if entry is None or ended.index not in found.open or entry.attempts != ended.attempt:
            continue
        if stopping and not isinstance(ended.outcome, (Returned, Declined)):
            ended = replace(ended, outcome=Interrupted())
        _record(p, facts, step, ended, entry, s)


def _record(p: Projection, facts: list[Fact], step: str, ended: ItemOutcome, entry: Item, s: Setting) -> None:
    index, attempt, outcome = ended.index, ended.attempt, ended.outcome
    match outcome:
        case Returned(state):
            fact = ItemOutputRecorded(step, index, attempt, msgspec.Raw(state), ended.more)
            emit(p, facts, fact, s.now_us)
        case Declined(failure):
            emit(p, facts, ItemFailed(step, index, attempt, replace(failure, item=index)), s.now_us)
        case Interrupted():
            emit(p, facts, ItemRetryScheduled(step, index, attempt, "interrupted", s.now_us), s.now_us)
        case Postponed(delay_us):
            emit(p, facts, ItemRetryScheduled(step, index, attempt, "later", s.now_us + delay_us), s.now_us)
        case Refused(failure):
            fact_ = ItemRetryScheduled(step, index, attempt, "error", s.now_us, replace(failure, item=index))
            emit(p, facts, fact_, s.now_us)
            _hold(p, facts, step, failure.reason, failure.message, s)
        case TimedOut(failure):
            _retry_or_end(p, facts, step, index, entry, "timeout", failure, s)
        case Raised(failure, never):
            _retry_or_end(p, facts, step, index, entry, "error", failure, s, never=never)
        case _ as unreachable:
            assert_never(unreachable)


def _hold(p: Projection, facts: list[Fact], step: str, reason: str, note: str, s: Setting) -> None:
    if p.held is None:
        emit(p, facts, RunHeld(ENGINE_ACTOR, reason, note, step), s.now_us)


def _retry_or_end(
    p: Projection,
    facts: list[Fact],
    step: str,
    index: int,
    entry: Item,
    cause: RetryCause,
    failure: Failure,
    s: Setting,
    *,
    never: bool = False,
) -> None:
    """Apply the step's policy to one of its items [M-5]."""
    policy = s.policy(step)
    failures = entry.failures + 1
    lost = entry.lost + 1 if cause == "lost" else 0
    failure = replace(failure, item=index)
    verdict = after_failure(policy, "forward", failures, never, lost)
    if verdict == "fail":
        failure = replace(failure, reason=failure.reason if never else "attempts-exhausted")
        emit(p, facts, ItemFailed(step, index, entry.attempts, failure, in_doubt=True), s.now_us)
        return
    due_us = s.now_us if verdict == "hold" or lost == 1 else s.now_us + backoff_us(policy, failures, s.chance)
    emit(p, facts, ItemRetryScheduled(step, index, entry.attempts, cause, due_us, failure), s.now_us)
    if verdict == "hold":
        reason = "lost-attempts" if lost >= MAX_LOST_IN_A_ROW else "attempts-exhausted"
        _hold(p, facts, step, reason, failure.message, s)


def record_lost_items(p: Projection, facts: list[Fact], s: Setting, cause: RetryCause) -> None:
    """Attempts of items that an older claim reserved were never answered [M-17]."""
    found, step = p.unit(), p.pin
    if found is None or step is None or found.shape in CHILD_SHAPES:
        return
    for index in sorted(found.open):
        entry = found.entries[index]
        if cause != "lost":
            emit(p, facts, ItemRetryScheduled(step, index, entry.attempts, cause, s.now_us), s.now_us)
            continue
        message = "the worker was lost during this attempt"
        failure = Failure(step, message, "forward", entry.attempts, s.now_us, reason="lost")
        _retry_or_end(p, facts, step, index, entry, "lost", failure, s)


# --- child runs


def _children(p: Projection, topology: Topology, facts: list[Fact], op: UnitOp, s: Setting) -> Plan | None:
    """Take note of those that ended, submit those that may start, then wait, or end the step [B-21]."""
    step, found, terms = op.step, p.units[op.step], s.evaluator.terms(op.step)
    _admit(p, topology, facts, step, found, s)
    if _goes_on(p, topology, step, found, terms):
        if found.sent == found.next and _room(found, terms):
            created = BoundaryInteractionCreated(step, found.next, _room(found, terms))
            emit(p, facts, created, s.now_us)
        if found.sent < found.next:
            children = tuple((index, 1) for index in range(found.sent, found.next))
            return Plan(facts, replace(op, open=True, start=children), None)
    if found.open and s.cycle:
        message = "a run that it waits for waits for this run"
        _fail(p, facts, step, Failure(step, message, reason="await-cycle"), s)
        return None
    if found.open and _stopping(p, topology, step) and not s.told:  # whoever claims the run next tells them first
        return Plan(facts, None, Waiting(s.now_us))
    if found.open:
        return suspended(p, facts, _parked(p, step, found), s)
    failure = None if terms.collect else found.first_failure()
    if found.complete and failure is None:
        resume(p, facts, s)
        emit(p, facts, BoundaryResolved(step, collect=terms.collect), s.now_us)
    elif failure is None or _stopping(p, topology, step):
        _fail(p, facts, step, canceled_failure(p, step, 0, s.now_us), s)
    else:
        _fail(p, facts, step, failure[1], s)
    return None


def _room(found: Unit, terms: Terms) -> int:
    bound = terms.bound or len(found.items)
    return max(0, min(WAVE, bound - len(found.open), len(found.items) - found.next))


def _admit(p: Projection, topology: Topology, facts: list[Fact], step: str, found: Unit, s: Setting) -> None:
    terms = s.evaluator.terms(step)
    for index in sorted(found.open):
        end = _end_of(p, step, found, index, s, goes_on=_goes_on(p, topology, step, found, terms))
        if end is None:
            continue
        failure = None if end.status == "succeeded" else child_failure(step, index, end)
        output = msgspec.Raw(end.output)
        fact = BoundaryCompletionAdmitted(step, index, end.status, output, failure, end.in_doubt)
        emit(p, facts, fact, s.now_us)


def _end_of(p: Projection, step: str, found: Unit, index: int, s: Setting, *, goes_on: bool) -> RunEnd | None:
    """How a child ended; None where it has not, or is yet to be submitted as the unit goes on."""
    end = s.ends.get(child_id(found.opened_us, p.run_id, step, index))
    if end is not None and end.status == "missing" and index >= found.sent and goes_on:
        return None
    return end


def child_failure(step: str, index: int, end: RunEnd) -> Failure:
    """The failure of a step whose child run did not succeed [B-21]."""
    cause = end.failure
    said = f": {cause.message}"[:2000] if cause is not None else ""
    message = f"its child run is {end.status}{said}"
    by_user = cause is not None and cause.kind == "user"  # nobody canceled this run [M-11]
    reason = "child-refused" if end.status == "refused" else "child-failed"
    return Failure(step, message, kind="user" if by_user else "system", reason=reason, item=index, cause=cause)


def record_dispatched(p: Projection, facts: list[Fact], op: UnitOp, refused: Mapping[int, Failure], s: Setting) -> None:
    """The child runs of a wave are submitted, but for those that were refused [B-1]."""
    found = p.units[op.step]
    count = len(op.start)
    if not count or op.start[0][0] != found.sent or found.sent + count > found.next:
        return
    emit(p, facts, BoundaryInteractionDispatched(op.step, found.sent, count), s.now_us)
    if found.sent == len(found.items):
        emit(p, facts, BoundaryDispatchCompleted(op.step), s.now_us)
    for index, why in refused.items():
        failure = child_failure(op.step, index, RunEnd("refused", failure=why))
        fact = BoundaryCompletionAdmitted(op.step, index, "refused", failure=failure)
        emit(p, facts, fact, s.now_us)


def awaited_children(p: Projection, step: str) -> tuple[str, ...]:
    """The ids of the child runs that have not ended, as far as the parent knows."""
    found = p.units[step]
    return tuple(child_id(found.opened_us, p.run_id, step, index) for index in sorted(found.open))


def resting(p: Projection) -> Rest | None:
    """What a run that nobody owns waits for, from its facts alone; None: nothing, or time alone (`due_us`) [R-16]."""
    entry, step = p.pinned(), p.pin
    if entry is None or step is None or entry.shape == "handler" or entry.shape == "sleep":
        return None
    if entry.shape == "message" or entry.shape == "runs":
        return None if entry.shape == "message" and p.messages.get(entry.awaits[0]) else parked(entry)
    found = p.units[step]
    if found.shape in CHILD_SHAPES:
        return _parked(p, step, found) if found.open and found.sent == found.next else None
    wake_us = found.wake_us()
    return Waiting(wake_us) if wake_us and not found.open else None


def _parked(p: Projection, step: str, found: Unit) -> Parked:
    """Woken when all have ended; where others are to be submitted, when half of them have."""
    ids = awaited_children(p, step)
    need = len(ids) if found.next == len(found.items) else max(1, len(ids) // 2)
    why = "waits for its child run" if found.shape == "child" else f"waits for {len(ids)} child runs"
    return Parked(0, ids, need, why)
