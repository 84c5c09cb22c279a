"""Folding facts into a projection: total over legal histories, loud about all others [J-8].

The only module that changes a projection. A fact that cannot follow what is before it raises `CorruptJournal`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from perdure.core import unit_reducer
from perdure.core.facts import (
    BoundaryCompletionAdmitted,
    BoundaryDispatchCompleted,
    BoundaryInteractionCreated,
    BoundaryInteractionDispatched,
    BoundaryOpened,
    BoundaryResolved,
    ContinuationSegmentCreated,
    Fact,
    ItemFailed,
    ItemOutputRecorded,
    ItemReserved,
    ItemRetryScheduled,
    MessageReceived,
    OperationFailed,
    OperationParked,
    OperationProgress,
    OperationReserved,
    OperationResolved,
    OperationRetryScheduled,
    OperationSkipped,
    OperationSucceeded,
    OperationWoken,
    OutcomeCommitted,
    RunAbandoned,
    RunCancelRequested,
    RunFailed,
    RunHeld,
    RunPrioritized,
    RunReleased,
    RunSubmitted,
    RunSucceeded,
    SegmentAttemptStarted,
    SegmentCompleted,
    SegmentSuspended,
)
from perdure.core.folding import (
    check_startable,
    corrupt,
    end_operation,
    fail_forward,
    forward_progress,
    mark_forward,
    mark_unwind,
)
from perdure.core.projection import Current, ForwardEntry, Message, Projection, UnwindEntry, memo_key
from perdure.core.unit_reducer import check_item_open, release_items

F = TypeVar("F")


def fold(p: Projection, fact: Fact, at_us: int) -> None:
    """Fold one fact, the next in sequence, recorded at `at_us`, into `p` in place.

    Raises:
        CorruptJournal: the fact cannot follow; `p` must be dropped.
    """
    p.version += 1
    if p.submitted is None and type(fact) is not RunSubmitted:
        corrupt(p, fact, "the first fact submits the run")
    if p.ended is not None:
        corrupt(p, fact, "nothing follows a terminal fact")
    if p.outcome is not None and not isinstance(fact, (RunSucceeded, RunFailed)):
        corrupt(p, fact, "the outcome is committed")
    _FOLDS[type(fact)](p, fact, at_us)


def fold_all(p: Projection, facts: Sequence[Fact], at_us: int) -> None:
    """Fold the facts of one append in order."""
    for fact in facts:
        fold(p, fact, at_us)


# --- run


def _submitted(p: Projection, fact: RunSubmitted, at_us: int) -> None:
    if p.version != 1:
        corrupt(p, fact, "only the first fact submits a run")
    if fact.run_id != p.run_id:
        corrupt(p, fact, f"belongs to run {fact.run_id}")
    p.submitted = fact
    p.submitted_us = at_us
    p.due_us = fact.start_at_us
    p.priority = fact.priority


def _cancel_requested(p: Projection, fact: RunCancelRequested, _at_us: int) -> None:
    if p.cancel is not None:
        corrupt(p, fact, "the run is being canceled already")
    p.cancel = fact


def _held(p: Projection, fact: RunHeld, _at_us: int) -> None:
    p.held = fact


def _released(p: Projection, fact: RunReleased, _at_us: int) -> None:
    p.held = None
    if p.current is None and p.pin is None and not fact.retry:
        return
    entry = p.pinned()
    sleeps = entry is not None and entry.shape == "sleep"
    p.due_us = entry.until_us if entry is not None and sleeps else 0  # a backoff is cut short, a sleep is not [B-20]
    if p.current is not None:
        p.current.failures = 0
        p.current.lost = 0
    if p.units:
        release_items(p)


def _abandoned(p: Projection, fact: RunAbandoned, _at_us: int) -> None:
    """Whatever is unresolved ends by an operator's word [D-7, U-9]."""
    if p.pin is not None:
        entry = p.forward[p.pin]
        entry.status = "failed"
        entry.in_doubt = entry.attempts > 0
        p.pin = None
    if p.current is not None:
        p.current.open = False
    p.held = None
    p.due_us = 0
    p.suspended = False
    p.failure = fact.failure


def _prioritized(p: Projection, fact: RunPrioritized, _at_us: int) -> None:
    p.priority = fact.priority


def _message(p: Projection, fact: MessageReceived, _at_us: int) -> None:
    if fact.key:
        keys = p.message_keys.setdefault(fact.name, {})
        if fact.key in keys:
            corrupt(p, fact, f"key {fact.key!r} is taken")
        keys[fact.key] = fact.digest
    p.messages.setdefault(fact.name, []).append(Message(bytes(fact.payload), fact.key))


def _outcome(p: Projection, fact: OutcomeCommitted, _at_us: int) -> None:
    if fact.outcome == "success" and (p.pin is not None or p.failure is not None):
        corrupt(p, fact, "a step is unresolved or has failed")
    if fact.outcome == "failure" and p.failure is None:
        corrupt(p, fact, "nothing has failed")
    p.outcome = fact


def _ended(p: Projection, fact: RunSucceeded | RunFailed, at_us: int) -> None:
    outcome = p.outcome
    if outcome is None or (outcome.outcome == "success") is not (type(fact) is RunSucceeded):
        corrupt(p, fact, "does not match the committed outcome")
    p.ended = fact
    p.ended_us = at_us
    p.held = None
    p.due_us = 0


# --- segment


def _claimed(p: Projection, fact: SegmentAttemptStarted, _at_us: int) -> None:
    if fact.token <= p.token:
        corrupt(p, fact, f"token {fact.token} does not rise above {p.token}")
    p.token = fact.token
    p.worker = fact.worker
    p.generation = max(p.generation, fact.generation)
    p.build = fact.build


def _segment_suspended(p: Projection, fact: SegmentSuspended, _at_us: int) -> None:
    entry = p.pinned()
    if p.suspended or entry is None or p.pin != fact.step or entry.shape == "handler":
        corrupt(p, fact, f"{fact.step!r} does not wait, or does so already")
    p.suspended = True


def _segment_continued(p: Projection, fact: ContinuationSegmentCreated, _at_us: int) -> None:
    if not p.suspended:
        corrupt(p, fact, "the last segment goes on")
    p.suspended = False


def _segment_completed(p: Projection, fact: SegmentCompleted, _at_us: int) -> None:
    if p.pin is not None:
        corrupt(p, fact, f"step {p.pin!r} is unresolved")
    if p.suspended:
        corrupt(p, fact, "the segment has ended")


# --- operation


def _reserved(p: Projection, fact: OperationReserved, _at_us: int) -> None:
    if p.token == 0:
        corrupt(p, fact, "no worker has claimed the run")
    step = fact.step
    if fact.attempt != p.attempts(fact.phase, step) + 1:
        corrupt(p, fact, f"attempt {fact.attempt} does not follow {p.attempts(fact.phase, step)}")
    current = p.current
    if current is not None and current.open:
        corrupt(p, fact, f"attempt {current.attempt} of {current.step!r} is still open")
    if fact.phase == "forward":
        _reserve_forward(p, fact)
    else:
        _reserve_unwind(p, fact)
    if current is None or current.step != step or current.phase != fact.phase:
        p.current = Current(step, fact.phase, fact.attempt, open=True)
    else:
        current.attempt = fact.attempt
        current.open = True
    p.due_us = 0


def _reserve_forward(p: Projection, fact: OperationReserved) -> None:
    if p.failure is not None or (p.pin is not None and p.pin != fact.step):
        corrupt(p, fact, "another operation is unresolved or the run is unwinding")
    entry = p.forward.get(fact.step)
    if entry is None:
        p.forward[fact.step] = ForwardEntry("unresolved", fact.attempt)
    elif entry.status == "unresolved" and entry.shape == "handler":
        entry.attempts = fact.attempt
    else:
        what = entry.status if entry.status != "unresolved" else f"unresolved as {entry.shape}"
        corrupt(p, fact, f"the step is {what} already")
    p.pin = fact.step
    mark_forward(p, fact.step, fact.passed)


def _reserve_unwind(p: Projection, fact: OperationReserved) -> None:
    if p.failure is None:
        corrupt(p, fact, "nothing has failed")
    entry = p.unwind.get(fact.step)
    if entry is None:
        p.unwind[fact.step] = UnwindEntry("unresolved", fact.attempt)
    elif entry.status == "unresolved":
        entry.attempts = fact.attempt
    else:
        corrupt(p, fact, f"its unwind is {entry.status} already")
    mark_unwind(p, fact.step, fact.crossed)


def _progress(p: Projection, fact: OperationProgress, _at_us: int) -> None:
    current = p.current
    if fact.item is not None:
        check_item_open(p, fact, fact.step, fact.item)
    elif current is None or not current.open or current.step != fact.step or current.phase != fact.phase:
        corrupt(p, fact, "its operation has no open attempt")
    values = p.memos.setdefault(memo_key(fact.phase, fact.step, fact.item), {})
    if fact.name in values:
        corrupt(p, fact, f"memo {fact.name!r} is taken")
    values[fact.name] = bytes(fact.value)


def _close_attempt(p: Projection, fact: OperationSucceeded | OperationRetryScheduled) -> Current:
    current = p.current
    if (
        current is None
        or not current.open
        or current.step != fact.step
        or current.attempt != fact.attempt
        or current.phase != fact.phase
    ):
        corrupt(p, fact, f"attempt {fact.attempt} of {fact.step!r} is not open")
    current.open = False
    return current


def _succeeded(p: Projection, fact: OperationSucceeded, _at_us: int) -> None:
    if fact.attempt:
        _close_attempt(p, fact)
    elif fact.phase != "forward" or p.pin != fact.step or p.parked() is None:
        corrupt(p, fact, f"{fact.step!r} does not wait")
    if fact.phase == "forward":
        forward_progress(p, p.forward[fact.step], fact.step, bytes(fact.state))
    else:
        p.unwind[fact.step].status = "succeeded"
    end_operation(p, fact.step)


def _retry_scheduled(p: Projection, fact: OperationRetryScheduled, _at_us: int) -> None:
    current = _close_attempt(p, fact)
    current.last_failure = fact.failure
    current.later = fact.cause == "later"
    p.due_us = fact.due_us
    if fact.cause == "lost":
        current.lost += 1
        current.failures += 1
    elif fact.cause == "error" or fact.cause == "timeout":
        current.lost = 0
        current.failures += 1
    elif fact.cause == "later":  # the handler answered: its worker lives, and nothing failed [M-17]
        current.lost = 0


def _failed(p: Projection, fact: OperationFailed, _at_us: int) -> None:
    step = fact.step
    if fact.phase == "unwind":
        current = p.current
        if current is None or not current.open or current.step != step or current.phase != "unwind":
            corrupt(p, fact, "its unwind has no open attempt")
        p.unwind[step].status = "failed"
        p.unwind_failures.append(fact.failure)
    else:
        fail_forward(p, fact, in_doubt=fact.in_doubt)
        mark_forward(p, step, fact.passed)
    if p.current is not None:
        p.current.open = False
    end_operation(p, step)


def _skipped(p: Projection, fact: OperationSkipped, _at_us: int) -> None:
    if p.failure is not None or p.pin is not None or fact.step in p.forward:
        corrupt(p, fact, "the step was started, or another operation is unresolved")
    entry = p.forward[fact.step] = ForwardEntry("skipped")
    forward_progress(p, entry, fact.step, None)
    mark_forward(p, fact.step, fact.passed)
    p.due_us = 0


def _parked(p: Projection, fact: OperationParked, _at_us: int) -> None:
    check_startable(p, fact, fact.step)
    if fact.shape == "message" and len(fact.awaits) != 1:
        corrupt(p, fact, "it waits for one message")
    entry = ForwardEntry("unresolved", shape=fact.shape, until_us=fact.due_us, awaits=fact.awaits, need=fact.need)
    p.forward[fact.step] = entry
    p.pin = fact.step
    p.due_us = fact.due_us if fact.shape == "sleep" else 0  # another wait may end before its time
    mark_forward(p, fact.step, fact.passed)


def _woken(p: Projection, fact: OperationWoken, _at_us: int) -> None:
    entry = p.parked()
    if entry is None or p.pin != fact.step:
        corrupt(p, fact, f"{fact.step!r} does not wait")
    if fact.by != "message":
        return
    unread = p.messages.get(entry.awaits[0]) if entry.shape == "message" else None
    if not unread or unread[0].key != fact.key:
        corrupt(p, fact, "it is not the first unread message of that name")
    del unread[0]


def _resolved(p: Projection, fact: OperationResolved, _at_us: int) -> None:
    if fact.phase == "forward":
        _resolve_forward(p, fact)
    else:
        _resolve_unwind(p, fact)
    if p.current is not None:  # fenced, even if it is of an unwind that was dropped since [U-7]
        p.current.open = False
    end_operation(p, fact.step)


def _resolve_forward(p: Projection, fact: OperationResolved) -> None:
    step = fact.step
    attempts = p.attempts("forward", step)
    unit = p.units.get(step)
    if fact.how == "fail":
        fail_forward(p, fact, in_doubt=attempts > 0)
        if unit is not None:
            unit.open.clear()  # fenced
    else:
        p.units.pop(step, None)
        if p.failure is not None or (p.pin is not None and p.pin != step):
            corrupt(p, fact, "another operation is unresolved or the run is unwinding")
        entry = p.forward.get(step)
        if entry is None:
            entry = p.forward[step] = ForwardEntry("unresolved")
        elif entry.status != "unresolved":
            corrupt(p, fact, f"the step is {entry.status} already")
        entry.in_doubt = fact.how == "skip" and attempts > 0
        forward_progress(p, entry, step, bytes(fact.state) if fact.how == "value" else None)
    mark_forward(p, step, fact.passed)


def _resolve_unwind(p: Projection, fact: OperationResolved) -> None:
    if p.failure is None:
        corrupt(p, fact, "nothing has failed")
    entry = p.unwind.get(fact.step)
    if entry is None:
        entry = p.unwind[fact.step] = UnwindEntry("unresolved")
    elif entry.status != "unresolved":
        corrupt(p, fact, f"its unwind is {entry.status} already")
    entry.status = "succeeded" if fact.how == "value" else "failed"
    if fact.how == "fail" and fact.failure is not None:
        p.unwind_failures.append(fact.failure)
    mark_unwind(p, fact.step, fact.crossed)


_FOLDS: dict[type, Callable[[Projection, Fact, int], None]] = {}


def _register(kind: type[F], function: Callable[[Projection, F, int], None]) -> None:
    _FOLDS[kind] = function  # type: ignore[assignment] # keyed by the very type the function takes


_register(RunSubmitted, _submitted)
_register(RunCancelRequested, _cancel_requested)
_register(RunHeld, _held)
_register(RunReleased, _released)
_register(RunAbandoned, _abandoned)
_register(RunPrioritized, _prioritized)
_register(OutcomeCommitted, _outcome)
_register(RunSucceeded, _ended)
_register(RunFailed, _ended)
_register(SegmentAttemptStarted, _claimed)
_register(SegmentCompleted, _segment_completed)
_register(OperationReserved, _reserved)
_register(OperationProgress, _progress)
_register(OperationSucceeded, _succeeded)
_register(OperationRetryScheduled, _retry_scheduled)
_register(OperationFailed, _failed)
_register(OperationSkipped, _skipped)
_register(OperationParked, _parked)
_register(OperationWoken, _woken)
_register(MessageReceived, _message)
_register(SegmentSuspended, _segment_suspended)
_register(ContinuationSegmentCreated, _segment_continued)
_register(BoundaryOpened, unit_reducer.opened)
_register(BoundaryInteractionCreated, unit_reducer.created)
_register(BoundaryInteractionDispatched, unit_reducer.dispatched)
_register(BoundaryDispatchCompleted, unit_reducer.dispatch_completed)
_register(BoundaryCompletionAdmitted, unit_reducer.completed)
_register(ItemReserved, unit_reducer.reserved)
_register(ItemRetryScheduled, unit_reducer.retry_scheduled)
_register(ItemOutputRecorded, unit_reducer.output_recorded)
_register(ItemFailed, unit_reducer.failed)
_register(BoundaryResolved, unit_reducer.resolved)
_register(OperationResolved, _resolved)
