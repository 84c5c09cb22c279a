"""The commit planner: outcome and projection in, facts and the next operation out; no I/O [J-12, J-15].

Every append of an owner is planned here. Planning folds what it plans into the owner's projection, so a refused append
drops the projection, which is then read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from perdure.core.facts import (
    Fact,
    Failure,
    OperationFailed,
    OperationParked,
    OperationReserved,
    OperationRetryScheduled,
    OperationSkipped,
    OperationSucceeded,
    OutcomeCommitted,
    Phase,
    RetryCause,
    RunCancelRequested,
    RunFailed,
    RunHeld,
    RunSubmitted,
    RunSucceeded,
    SegmentAttemptStarted,
    SegmentCompleted,
)
from perdure.core.frontier import view_of
from perdure.core.operations import (
    CancelOp,
    CompleteOp,
    EndedOp,
    EvaluateOp,
    FailOp,
    HeldOp,
    InvalidOp,
    InvalidReason,
    RunOp,
    SleepOp,
    UnwindOp,
)
from perdure.core.outcomes import Declined, Interrupted, Outcome, Postponed, Raised, Refused, Returned, TimedOut
from perdure.core.projection import Projection
from perdure.core.reconciler import Lists, canceled_failure, in_doubt, reconcile
from perdure.core.reducer import fold
from perdure.core.retry import MAX_LOST_IN_A_ROW, Retry, after_failure, backoff_us
from perdure.core.topology import Topology
from perdure.errors import PerdureError

ENGINE_ACTOR = "perdure"
"""The actor of facts that the engine itself decides on [M-16]."""


class Unplannable(PerdureError):
    """A condition or an output function raised, or a payload does not decode: the run is invalid [D-1, E-12, M-13]."""

    def __init__(self, reason: InvalidReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: InvalidReason = reason
        self.detail = detail


class NotOwner(PerdureError):
    """The newest claim in the projection is another worker's: the planner plans nothing, drop the run [J-7]."""


class Evaluator(Protocol):
    """The author's pure functions of one run, called while planning. All raise `Unplannable` and nothing else."""

    def condition(self, step: str, /) -> bool:
        """Whether the step's condition holds."""
        ...

    def sleep_us(self, step: str, /) -> int:
        """How long a sleep that opens now takes [B-20]."""
        ...

    def output(self) -> bytes:
        """The encoded output."""
        ...

    def failure_output(self, ended: RunFailed, /) -> bytes:
        """The encoded failure output."""
        ...


class Setting(msgspec.Struct, frozen=True, gc=False):
    """What planning is told of the world.

    Attributes:
        now_us: time of the append.
        may_start: False while draining: no attempt is reserved [R-6].
        chance: a number in [0, 1) for the jitter of a backoff.
        policy: the retry policy in force for a step.
        token: fencing token of the planning owner; 0 before its claim [J-7].
    """

    now_us: int
    may_start: bool
    chance: float
    policy: Callable[[str], Retry]
    evaluator: Evaluator
    token: int = 0


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Nothing before `due_us`: a delayed start or a backoff [R-4]."""

    due_us: int


class Closed(msgspec.Struct, frozen=True, gc=False):
    """There is work, but this worker starts no more."""


Rest: TypeAlias = Waiting | Closed | HeldOp | InvalidOp | EndedOp


class Plan(msgspec.Struct, gc=False):
    """What to append, and then: run `next`, or rest for the reason in `rest`. Exactly one of the two is set."""

    facts: list[Fact]
    next: RunOp | UnwindOp | None
    rest: Rest | None


_CLOSED = Closed()


def plan_submission(
    p: Projection, topology: Topology, submitted: RunSubmitted, claim: SegmentAttemptStarted, s: Setting
) -> Plan:
    """Submit, claim and reserve in one append, for an engine with a free place [J-12]."""
    facts: list[Fact] = []
    _emit(p, facts, submitted, s.now_us)
    _emit(p, facts, claim, s.now_us)
    return _advance(p, topology, facts, s)


def plan_claim(
    p: Projection, topology: Topology, claim: SegmentAttemptStarted, s: Setting, *, lost_cause: RetryCause = "lost"
) -> Plan:
    """Claim a run together with what the claim does; no facts where it would do nothing [D-8].

    Args:
        lost_cause: what became of an attempt that an older claim left open: `lost`, or `interrupted` where the run
            was judged invalid after its handler broke its contract [D-2, M-17].
    """
    facts: list[Fact] = []
    expired = _deadline_passed(p, s.now_us)
    lost = p.current is not None and p.current.open
    if not expired:
        rest = _at_rest(p, topology, s, lost=lost)
        if rest is not None:
            return Plan(facts, None, rest)
    before = (p.version, p.token, p.worker, p.generation, p.build)
    _emit(p, facts, claim, s.now_us)
    if lost:
        _record_lost(p, facts, s, lost_cause)
    plan = _advance(p, topology, facts, s)
    if len(facts) == 1:  # a condition or an output raised: the claim would do nothing, so it is taken back
        p.version, p.token, p.worker, p.generation, p.build = before
        facts.clear()
    return plan


def _at_rest(p: Projection, topology: Topology, s: Setting, *, lost: bool) -> Rest | None:
    """Why a claim would do nothing now; None if it would do something."""
    op = reconcile(p, topology)
    if isinstance(op, (HeldOp, InvalidOp, EndedOp)):
        return op
    if isinstance(op, (CancelOp, FailOp)):
        return None
    if not s.may_start and not isinstance(op, CompleteOp):
        return _CLOSED
    return Waiting(p.due_us) if p.due_us > s.now_us and not lost else None


def plan_outcome(p: Projection, topology: Topology, op: RunOp | UnwindOp, outcome: Outcome, s: Setting) -> Plan:
    """Record how the owner's open attempt of `op` ended, and go on as far as one append can [J-12]."""
    _check_owner(p, s)
    facts: list[Fact] = []
    phase: Phase = "forward" if type(op) is RunOp else "unwind"
    if type(outcome) is Returned:
        _emit(p, facts, OperationSucceeded(op.step, op.attempt, msgspec.Raw(outcome.state), phase), s.now_us)
    else:
        _record_unsuccessful(p, topology, facts, op.step, phase, outcome, s)
    return _advance(p, topology, facts, s)


def plan_next(p: Projection, topology: Topology, s: Setting) -> Plan:
    """Go on without an outcome: the open attempt was resolved from outside [R-17], or the plan was refused."""
    _check_owner(p, s)
    return _advance(p, topology, [], s)


def _check_owner(p: Projection, s: Setting) -> None:
    if s.token and p.token != s.token:
        raise NotOwner(f"run {p.run_id}: token {s.token} was overtaken by {p.token} of worker {p.worker}")


def _emit(p: Projection, facts: list[Fact], fact: Fact, at_us: int) -> None:
    facts.append(fact)
    fold(p, fact, at_us)


def _advance(p: Projection, topology: Topology, facts: list[Fact], s: Setting) -> Plan:
    """Everything that needs no handler, then the reservation of the next attempt or the reason to rest."""
    now_us = s.now_us
    if _deadline_passed(p, now_us):
        _emit(p, facts, RunCancelRequested(ENGINE_ACTOR, "deadline"), now_us)
    while True:
        op = reconcile(p, topology)
        if isinstance(op, (HeldOp, InvalidOp, EndedOp)):
            return Plan(facts, None, op)
        if type(op) is CancelOp:
            passed = view_of(p, topology).newly_passed(p, op.position)
            failure = canceled_failure(p, op.step, p.attempts("forward", op.step), now_us)
            _emit(p, facts, OperationFailed(op.step, failure, in_doubt=op.in_doubt, passed=passed), now_us)
        elif type(op) is FailOp:
            return _finish_failure(p, topology, facts, s)
        elif p.due_us > now_us:
            return Plan(facts, None, Waiting(p.due_us))
        elif type(op) is CompleteOp:
            return _finish_success(p, facts, s)
        elif not s.may_start:
            return Plan(facts, None, _CLOSED)
        elif type(op) is RunOp or type(op) is UnwindOp:
            return _reserve(p, topology, facts, op, now_us)
        elif type(op) is SleepOp:
            _sleep(p, topology, facts, op, s)
        elif type(op) is EvaluateOp:
            plan = _evaluate(p, topology, facts, op, s)
            if plan is not None:
                return plan


def _reserve(p: Projection, topology: Topology, facts: list[Fact], op: RunOp | UnwindOp, now_us: int) -> Plan:
    view = view_of(p, topology)
    if type(op) is RunOp:
        fact = OperationReserved(op.step, op.attempt, "forward", view.newly_passed(p, op.position))
    else:
        fact = OperationReserved(op.step, op.attempt, "unwind", (), view.newly_crossed(p, op.position))
    _emit(p, facts, fact, now_us)
    return Plan(facts, op, None)


def _evaluate(p: Projection, topology: Topology, facts: list[Fact], op: EvaluateOp, s: Setting) -> Plan | None:
    """Ask a condition: reserve the step, or skip it and return None to go on; a condition that raises: invalid."""
    try:
        holds = s.evaluator.condition(op.step)
    except Unplannable as problem:
        return Plan(facts, None, InvalidOp(problem.reason, problem.detail))
    if holds and topology.steps[op.position].sleeps:
        _sleep(p, topology, facts, SleepOp(op.step, op.position, open=False), s)
        return None
    if holds:
        return _reserve(p, topology, facts, RunOp(op.step, op.position, 1, started=False), s.now_us)
    passed = view_of(p, topology).newly_passed(p, op.position)
    _emit(p, facts, OperationSkipped(op.step, passed), s.now_us)
    return None


def _sleep(p: Projection, topology: Topology, facts: list[Fact], op: SleepOp, s: Setting) -> None:
    """Open a sleep, or end one whose time has come; nothing is called, so no attempt is reserved [B-15, B-20]."""
    if op.open:
        _emit(p, facts, OperationSucceeded(op.step, 0), s.now_us)
    else:
        passed = view_of(p, topology).newly_passed(p, op.position)
        _emit(p, facts, OperationParked(op.step, s.now_us + s.evaluator.sleep_us(op.step), passed), s.now_us)


def _finish_success(p: Projection, facts: list[Fact], s: Setting) -> Plan:
    """Output, outcome and end in one append, with the last success [E-10, J-12, J-16]."""
    try:
        output = s.evaluator.output()
    except Unplannable as problem:
        return Plan(facts, None, InvalidOp(problem.reason, problem.detail))
    _emit(p, facts, SegmentCompleted(), s.now_us)
    _emit(p, facts, OutcomeCommitted("success", msgspec.Raw(output)), s.now_us)
    _emit(p, facts, RunSucceeded(in_doubt(p)), s.now_us)
    return Plan(facts, None, EndedOp())


def _finish_failure(p: Projection, topology: Topology, facts: list[Fact], s: Setting) -> Plan:
    failure = p.failure
    if failure is None:  # reconcile answers FailOp only after a failure
        return Plan(facts, None, EndedOp())
    lists = Lists(p, topology)
    ended = RunFailed(
        failure, tuple(p.unwind_failures), lists.in_doubt, lists.half_unwound, lists.uncompensated, lists.unavailable
    )
    try:
        output = s.evaluator.failure_output(ended)
    except Unplannable as problem:
        return Plan(facts, None, InvalidOp(problem.reason, problem.detail))
    _emit(p, facts, SegmentCompleted(), s.now_us)
    _emit(p, facts, OutcomeCommitted("failure", msgspec.Raw(output)), s.now_us)
    _emit(p, facts, ended, s.now_us)
    return Plan(facts, None, EndedOp())


# --- attempts that did not succeed


def _record_unsuccessful(
    p: Projection, topology: Topology, facts: list[Fact], step: str, phase: Phase, outcome: Outcome, s: Setting
) -> None:
    if phase == "forward" and p.cancel is not None and not _settles(topology, step):
        failure = canceled_failure(p, step, p.attempts(phase, step), s.now_us)
        own_word = type(outcome) is Declined
        _emit(p, facts, OperationFailed(step, failure, in_doubt=not own_word), s.now_us)
        return
    if type(outcome) is Declined:
        _emit(p, facts, OperationFailed(step, outcome.failure, phase), s.now_us)
    elif type(outcome) is Interrupted:
        _emit_retry(p, facts, step, phase, "interrupted", s.now_us, None, s)
    elif type(outcome) is Postponed:
        _emit_retry(p, facts, step, phase, "later", s.now_us + outcome.delay_us, None, s)
    elif type(outcome) is Refused:
        _emit_retry(p, facts, step, phase, "error", s.now_us, outcome.failure, s)
        _emit(p, facts, RunHeld(ENGINE_ACTOR, outcome.failure.reason, outcome.failure.message, step), s.now_us)
    elif type(outcome) is TimedOut:
        _retry_or_end(p, facts, step, phase, "timeout", outcome.failure, s, never=False)
    elif type(outcome) is Raised:
        _retry_or_end(p, facts, step, phase, "error", outcome.failure, s, never=outcome.never)


def _settles(topology: Topology, step: str) -> bool:
    position = topology.position.get(step)
    return position is not None and topology.steps[position].settle


def _record_lost(p: Projection, facts: list[Fact], s: Setting, cause: RetryCause) -> None:
    """An attempt that an older claim reserved was never answered [M-17]."""
    current = p.current
    if current is None:
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
        _emit(p, facts, OperationFailed(step, failure, phase, in_doubt=phase == "forward"), s.now_us)
    elif verdict == "hold":
        reason = "lost-attempts" if lost >= MAX_LOST_IN_A_ROW else "attempts-exhausted"
        _emit_retry(p, facts, step, phase, cause, s.now_us, failure, s)
        _emit(p, facts, RunHeld(ENGINE_ACTOR, reason, failure.message, step), s.now_us)
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
    _emit(p, facts, OperationRetryScheduled(step, attempt, cause, due_us, failure, phase), s.now_us)


def _deadline_passed(p: Projection, now_us: int) -> bool:
    """The run's deadline asks for a cancel that is not recorded yet [R-12]."""
    submitted = p.submitted
    return (
        submitted is not None
        and 0 < submitted.deadline_us <= now_us
        and p.cancel is None
        and p.failure is None
        and p.outcome is None
    )
