"""Folding facts into a projection: total over legal histories, loud about all others [J-8].

The only module that changes a projection. A fact that cannot follow what is before it raises `CorruptJournal`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from perdure.core.facts import (
    Fact,
    OperationFailed,
    OperationParked,
    OperationProgress,
    OperationReserved,
    OperationResolved,
    OperationRetryScheduled,
    OperationSkipped,
    OperationSucceeded,
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
)
from perdure.core.projection import Current, ForwardEntry, Projection, UnwindEntry, memo_key
from perdure.errors import CorruptJournal

F = TypeVar("F")


def fold(p: Projection, fact: Fact, at_us: int) -> None:
    """Fold one fact, the next in sequence, recorded at `at_us`, into `p` in place.

    Raises:
        CorruptJournal: the fact cannot follow; `p` must be dropped.
    """
    p.version += 1
    if p.submitted is None and type(fact) is not RunSubmitted:
        _corrupt(p, fact, "the first fact submits the run")
    if p.ended is not None:
        _corrupt(p, fact, "nothing follows a terminal fact")
    if p.outcome is not None and not isinstance(fact, (RunSucceeded, RunFailed)):
        _corrupt(p, fact, "the outcome is committed")
    _FOLDS[type(fact)](p, fact, at_us)


def fold_all(p: Projection, facts: Sequence[Fact], at_us: int) -> None:
    """Fold the facts of one append in order."""
    for fact in facts:
        fold(p, fact, at_us)


def _corrupt(p: Projection, fact: Fact, problem: str) -> NoReturn:
    raise CorruptJournal(p.run_id, p.version, f"{type(fact).__name__}: {problem}")


# --- run


def _submitted(p: Projection, fact: RunSubmitted, at_us: int) -> None:
    if p.version != 1:
        _corrupt(p, fact, "only the first fact submits a run")
    if fact.run_id != p.run_id:
        _corrupt(p, fact, f"belongs to run {fact.run_id}")
    p.submitted = fact
    p.submitted_us = at_us
    p.due_us = fact.start_at_us
    p.priority = fact.priority


def _cancel_requested(p: Projection, fact: RunCancelRequested, _at_us: int) -> None:
    if p.cancel is not None:
        _corrupt(p, fact, "the run is being canceled already")
    p.cancel = fact


def _held(p: Projection, fact: RunHeld, _at_us: int) -> None:
    p.held = fact


def _released(p: Projection, fact: RunReleased, _at_us: int) -> None:
    p.held = None
    if p.current is None and not fact.retry:
        return
    sleep = p.sleeping()
    p.due_us = 0 if sleep is None else sleep.until_us  # a backoff is cut short, a sleep is not [B-20]
    if p.current is not None:
        p.current.failures = 0
        p.current.lost = 0


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
    p.failure = fact.failure


def _prioritized(p: Projection, fact: RunPrioritized, _at_us: int) -> None:
    p.priority = fact.priority


def _outcome(p: Projection, fact: OutcomeCommitted, _at_us: int) -> None:
    if fact.outcome == "success" and (p.pin is not None or p.failure is not None):
        _corrupt(p, fact, "a step is unresolved or has failed")
    if fact.outcome == "failure" and p.failure is None:
        _corrupt(p, fact, "nothing has failed")
    p.outcome = fact


def _ended(p: Projection, fact: RunSucceeded | RunFailed, at_us: int) -> None:
    outcome = p.outcome
    if outcome is None or (outcome.outcome == "success") is not (type(fact) is RunSucceeded):
        _corrupt(p, fact, "does not match the committed outcome")
    p.ended = fact
    p.ended_us = at_us
    p.held = None
    p.due_us = 0


# --- segment


def _claimed(p: Projection, fact: SegmentAttemptStarted, _at_us: int) -> None:
    if fact.token <= p.token:
        _corrupt(p, fact, f"token {fact.token} does not rise above {p.token}")
    p.token = fact.token
    p.worker = fact.worker
    p.generation = max(p.generation, fact.generation)
    p.build = fact.build


def _segment_completed(p: Projection, fact: SegmentCompleted, _at_us: int) -> None:
    if p.pin is not None:
        _corrupt(p, fact, f"step {p.pin!r} is unresolved")


# --- operation


def _reserved(p: Projection, fact: OperationReserved, _at_us: int) -> None:
    if p.token == 0:
        _corrupt(p, fact, "no worker has claimed the run")
    step = fact.step
    if fact.attempt != p.attempts(fact.phase, step) + 1:
        _corrupt(p, fact, f"attempt {fact.attempt} does not follow {p.attempts(fact.phase, step)}")
    current = p.current
    if current is not None and current.open:
        _corrupt(p, fact, f"attempt {current.attempt} of {current.step!r} is still open")
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
        _corrupt(p, fact, "another operation is unresolved or the run is unwinding")
    entry = p.forward.get(fact.step)
    if entry is None:
        p.forward[fact.step] = ForwardEntry("unresolved", fact.attempt)
    elif entry.status == "unresolved":
        entry.attempts = fact.attempt
    else:
        _corrupt(p, fact, f"the step is {entry.status} already")
    p.pin = fact.step
    _mark_forward(p, fact.step, fact.passed)


def _reserve_unwind(p: Projection, fact: OperationReserved) -> None:
    if p.failure is None:
        _corrupt(p, fact, "nothing has failed")
    entry = p.unwind.get(fact.step)
    if entry is None:
        p.unwind[fact.step] = UnwindEntry("unresolved", fact.attempt)
    elif entry.status == "unresolved":
        entry.attempts = fact.attempt
    else:
        _corrupt(p, fact, f"its unwind is {entry.status} already")
    _mark_unwind(p, fact.step, fact.crossed)


def _mark_forward(p: Projection, step: str, passed: tuple[str, ...]) -> None:
    if passed:
        p.passed.update(passed)
    if p.view is not None:
        p.view.on_forward_mark(step)


def _mark_unwind(p: Projection, step: str, crossed: tuple[str, ...]) -> None:
    p.last_unwind = step
    p.crossed.update(crossed)
    if p.view is not None:
        p.view.on_crossed(crossed)
        p.view.on_unwind_mark(step)


def _progress(p: Projection, fact: OperationProgress, _at_us: int) -> None:
    current = p.current
    if current is None or not current.open or current.step != fact.step or current.phase != fact.phase:
        _corrupt(p, fact, "its operation has no open attempt")
    values = p.memos.setdefault(memo_key(fact.phase, fact.step), {})
    if fact.name in values:
        _corrupt(p, fact, f"memo {fact.name!r} is taken")
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
        _corrupt(p, fact, f"attempt {fact.attempt} of {fact.step!r} is not open")
    current.open = False
    return current


def _succeeded(p: Projection, fact: OperationSucceeded, _at_us: int) -> None:
    if fact.attempt:
        _close_attempt(p, fact)
    elif fact.phase != "forward" or p.pin != fact.step or p.sleeping() is None:
        _corrupt(p, fact, f"{fact.step!r} does not sleep")
    if fact.phase == "forward":
        _forward_progress(p, p.forward[fact.step], fact.step, bytes(fact.state))
    else:
        p.unwind[fact.step].status = "succeeded"
    _end_operation(p, fact.step)


def _forward_progress(p: Projection, entry: ForwardEntry, step: str, state: bytes | None) -> None:
    """The step counts for the frontier from now on: as succeeded with a state, as skipped without one."""
    succeeded = state is not None
    entry.status = "succeeded" if succeeded else "skipped"
    entry.state = state
    p.pin = None
    p.successes += succeeded
    if p.view is not None:
        p.view.on_progress(step, succeeded=succeeded)


def _end_operation(p: Projection, step: str) -> None:
    p.due_us = 0
    if p.held is not None and p.held.step == step:
        p.held = None


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
            _corrupt(p, fact, "its unwind has no open attempt")
        p.unwind[step].status = "failed"
        p.unwind_failures.append(fact.failure)
    else:
        _fail_forward(p, fact, in_doubt=fact.in_doubt)
        _mark_forward(p, step, fact.passed)
    if p.current is not None:
        p.current.open = False
    _end_operation(p, step)


def _fail_forward(p: Projection, fact: OperationFailed | OperationResolved, *, in_doubt: bool) -> None:
    step = fact.step
    if fact.failure is None:
        _corrupt(p, fact, "a failure is missing")
    if p.failure is not None or (p.pin is not None and p.pin != step):
        _corrupt(p, fact, "another operation is unresolved or the run is unwinding")
    entry = p.forward.get(step)
    if entry is None:
        entry = p.forward[step] = ForwardEntry("failed")
    elif entry.status != "unresolved":
        _corrupt(p, fact, f"the step is {entry.status} already")
    entry.status = "failed"
    entry.in_doubt = in_doubt
    p.pin = None
    p.failure = fact.failure


def _skipped(p: Projection, fact: OperationSkipped, _at_us: int) -> None:
    if p.failure is not None or p.pin is not None or fact.step in p.forward:
        _corrupt(p, fact, "the step was started, or another operation is unresolved")
    entry = p.forward[fact.step] = ForwardEntry("skipped")
    _forward_progress(p, entry, fact.step, None)
    _mark_forward(p, fact.step, fact.passed)
    p.due_us = 0


def _parked(p: Projection, fact: OperationParked, _at_us: int) -> None:
    if p.token == 0:
        _corrupt(p, fact, "no worker has claimed the run")
    if p.failure is not None or p.pin is not None or fact.step in p.forward:
        _corrupt(p, fact, "the step was started, or another operation is unresolved")
    p.forward[fact.step] = ForwardEntry("unresolved", until_us=fact.due_us)
    p.pin = fact.step
    p.due_us = fact.due_us
    _mark_forward(p, fact.step, fact.passed)


def _resolved(p: Projection, fact: OperationResolved, _at_us: int) -> None:
    if fact.phase == "forward":
        _resolve_forward(p, fact)
    else:
        _resolve_unwind(p, fact)
    if p.current is not None:  # fenced, even if it is of an unwind that was dropped since [U-7]
        p.current.open = False
    _end_operation(p, fact.step)


def _resolve_forward(p: Projection, fact: OperationResolved) -> None:
    step = fact.step
    attempts = p.attempts("forward", step)
    if fact.how == "fail":
        _fail_forward(p, fact, in_doubt=attempts > 0)
    else:
        if p.failure is not None or (p.pin is not None and p.pin != step):
            _corrupt(p, fact, "another operation is unresolved or the run is unwinding")
        entry = p.forward.get(step)
        if entry is None:
            entry = p.forward[step] = ForwardEntry("unresolved")
        elif entry.status != "unresolved":
            _corrupt(p, fact, f"the step is {entry.status} already")
        entry.in_doubt = fact.how == "skip" and attempts > 0
        _forward_progress(p, entry, step, bytes(fact.state) if fact.how == "value" else None)
    _mark_forward(p, step, fact.passed)


def _resolve_unwind(p: Projection, fact: OperationResolved) -> None:
    if p.failure is None:
        _corrupt(p, fact, "nothing has failed")
    entry = p.unwind.get(fact.step)
    if entry is None:
        entry = p.unwind[fact.step] = UnwindEntry("unresolved")
    elif entry.status != "unresolved":
        _corrupt(p, fact, f"its unwind is {entry.status} already")
    entry.status = "succeeded" if fact.how == "value" else "failed"
    if fact.how == "fail" and fact.failure is not None:
        p.unwind_failures.append(fact.failure)
    _mark_unwind(p, fact.step, fact.crossed)


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
_register(OperationResolved, _resolved)
