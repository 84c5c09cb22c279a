"""Attempts that did not succeed: what is recorded of them, by their step's policy [M-5, M-17]."""

from __future__ import annotations

import msgspec

from perdure.core.facts import (
    Fact,
    Failure,
    OperationFailed,
    OperationRetryScheduled,
    Phase,
    RetryCause,
    RunHeld,
)
from perdure.core.outcomes import Declined, Interrupted, Outcome, Postponed, Raised, Refused, TimedOut
from perdure.core.plan import ENGINE_ACTOR, Setting, emit
from perdure.core.projection import Projection
from perdure.core.reconciler import canceled_failure
from perdure.core.retry import MAX_LOST_IN_A_ROW, after_failure, backoff_us
from perdure.core.topology import Topology


def record_unsuccessful(
    p: Projection, topology: Topology, facts: list[Fact], step: str, phase: Phase, outcome: Outcome, s: Setting
) -> None:
    if phase == "forward" and p.cancel is not None and not settles(topology, step):
        failure = canceled_failure(p, step, p.attempts(phase, step), s.now_us)
        own_word = type(outcome) is Declined
        emit(p, facts, OperationFailed(step, failure, in_doubt=not own_word), s.now_us)
        return
    if type(outcome) is Declined:
        emit(p, facts, OperationFailed(step, outcome.failure, phase), s.now_us)
    elif type(outcome) is Interrupted:
        _emit_retry(p, facts, step, phase, "interrupted", s.now_us, None, s)
    elif type(outcome) is Postponed:
        _emit_retry(p, facts, step, phase, "later", s.now_us + outcome.delay_us, None, s)
    elif type(outcome) is Refused:
        _emit_retry(p, facts, step, phase, "error", s.now_us, outcome.failure, s)
        emit(p, facts, RunHeld(ENGINE_ACTOR, outcome.failure.reason, outcome.failure.message, step), s.now_us)
    elif type(outcome) is TimedOut:
        _retry_or_end(p, facts, step, phase, "timeout", outcome.failure, s, never=False)
    elif type(outcome) is Raised:
        _retry_or_end(p, facts, step, phase, "error", outcome.failure, s, never=outcome.never)


def settles(topology: Topology, step: str) -> bool:
    position = topology.position.get(step)
    return position is not None and topology.steps[position].settle


def record_lost(p: Projection, facts: list[Fact], s: Setting, cause: RetryCause) -> None:
    """An attempt that an older claim reserved was never answered [M-17]."""
    current = p.current
    if current is None or not current.open:
        return
    if cause != "lost":
        _emit_retry(p, facts, current.step, current.phase, cause, s.now_us, None, s)
        return
    failure = Failure(
        current.step,
        "the worker was lost during this attempt",
        current.phase,
        current.attempt,
        s.now_us,
        reason="lost",
    )
    _retry_or_end(p, facts, current.step, current.phase, "lost", failure, s, never=False)


def _retry_or_end(
    p: Projection,
    facts: list[Fact],
    step: str,
    phase: Phase,
    cause: RetryCause,
    failure: Failure,
    s: Setting,
    *,
    never: bool,
) -> None:
    """Apply the step's policy to an error, a time-out or a loss [M-5]."""
    policy = s.policy(step)
    current = p.current
    failures = 1 if current is None else current.failures + 1
    lost = 0 if cause != "lost" else 1 if current is None else current.lost + 1
    verdict = after_failure(policy, phase, failures, never, lost)
    if verdict == "fail":
        reason = failure.reason if never else "attempts-exhausted"
        failure = msgspec.structs.replace(failure, reason=reason)
        emit(p, facts, OperationFailed(step, failure, phase, in_doubt=phase == "forward"), s.now_us)
    elif verdict == "hold":
        reason = "lost-attempts" if lost >= MAX_LOST_IN_A_ROW else "attempts-exhausted"
        _emit_retry(p, facts, step, phase, cause, s.now_us, failure, s)
        emit(p, facts, RunHeld(ENGINE_ACTOR, reason, failure.message, step), s.now_us)
    else:
        due_us = s.now_us if lost == 1 else s.now_us + backoff_us(policy, failures, s.chance)
        _emit_retry(p, facts, step, phase, cause, due_us, failure, s)


def _emit_retry(
    p: Projection,
    facts: list[Fact],
    step: str,
    phase: Phase,
    cause: RetryCause,
    due_us: int,
    failure: Failure | None,
    s: Setting,
) -> None:
    attempt = p.attempts(phase, step)
    emit(p, facts, OperationRetryScheduled(step, attempt, cause, due_us, failure, phase), s.now_us)
