"""The commit planner: outcome and projection in, facts and the next operation out; no I/O [J-12, J-15].

Every append of an owner is planned here. Planning folds what it plans into the owner's projection, so a refused append
drops the projection, which is then read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.core.attempts import record_lost, record_unsuccessful
from perdure.core.facts import (
    ContinuationSegmentCreated,
    Fact,
    Failure,
    OperationFailed,
    OperationReserved,
    OperationSkipped,
    OperationSucceeded,
    OutcomeCommitted,
    Phase,
    RetryCause,
    RunCancelRequested,
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
    RunOp,
    UnitOp,
    UnwindOp,
    WaitOp,
)
from perdure.core.outcomes import ItemOutcome, Outcome, Returned
from perdure.core.plan import (
    ENGINE_ACTOR,
    RUN,
    Closed,
    NotOwner,
    Plan,
    Rest,
    Setting,
    Unplannable,
    Waiting,
    emit,
)
from perdure.core.projection import Projection
from perdure.core.reconciler import Lists, canceled_failure, in_doubt, reconcile, started
from perdure.core.topology import Topology
from perdure.core.units import (
    has_open_attempt,
    record_dispatched,
    record_items,
    record_lost_items,
    reserve_items,
    resolve_items,
    unit,
    unit_idle,
)
from perdure.core.waits import suspended, wait, wait_idle

_CLOSED = Closed()
_CLAIMING = (SegmentAttemptStarted, ContinuationSegmentCreated)


def plan_submission(
    p: Projection, topology: Topology, submitted: RunSubmitted, claim: SegmentAttemptStarted, s: Setting
) -> Plan:
    """Submit, claim and reserve in one append, for an engine with a free place [J-12]."""
    facts: list[Fact] = []
    emit(p, facts, submitted, s.now_us)
    shut = _shut(RUN, facts, s) if s.gate is not None else None
    if shut is not None:
        return shut
    emit(p, facts, claim, s.now_us)
    return _advance(p, topology, facts, s)


def plan_claim(
    p: Projection, topology: Topology, claim: SegmentAttemptStarted, s: Setting, *, lost_cause: RetryCause = "lost"
) -> Plan:
    """Claim a run together with what the claim does; no facts where it would do nothing [D-8].

    A lost attempt of an operation that the current deployment cannot continue stays open, for its policy may be gone
    with its step: the first claim that can go on records the loss, and holds to the bound [M-5, E-3].

    Args:
        lost_cause: what became of an attempt that an older claim left open: `lost`, or `interrupted` where the run
            was judged invalid after its handler broke its contract [D-2, M-17].
    """
    facts: list[Fact] = []
    expired = _deadline_passed(p, s.now_us)
    lost = has_open_attempt(p) and not isinstance(reconcile(p, topology), InvalidOp)
    if not expired:
        rest = _at_rest(p, topology, s, lost=lost)
        if rest is not None:
            return Plan(facts, None, rest)
    before = (p.version, p.token, p.worker, p.generation, p.build, p.suspended)
    emit(p, facts, claim, s.now_us)
    if lost:
        record_lost(p, facts, s, lost_cause)
        record_lost_items(p, facts, s, lost_cause)
    plan = _advance(p, topology, facts, s)
    if plan.next is None and all(isinstance(fact, _CLAIMING) for fact in facts):  # a condition raised: taken back
        p.version, p.token, p.worker, p.generation, p.build, p.suspended = before
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
    if p.due_us > s.now_us and not lost:
        return Waiting(p.due_us)
    if not p.token and s.gate is not None and (shut := _shut(RUN, [], s)) is not None:
        return shut.rest
    if lost or not isinstance(op, (WaitOp, UnitOp)) or not op.open:
        return None
    return wait_idle(p, op, s) if isinstance(op, WaitOp) else unit_idle(p, topology, op, s)


def plan_outcome(p: Projection, topology: Topology, op: RunOp | UnwindOp, outcome: Outcome, s: Setting) -> Plan:
    """Record how the owner's open attempt of `op` ended, and go on as far as one append can [J-12]."""
    s = _owning(p, s)
    facts: list[Fact] = []
    phase: Phase = "forward" if type(op) is RunOp else "unwind"
    if type(outcome) is Returned:
        emit(p, facts, OperationSucceeded(op.step, op.attempt, msgspec.Raw(outcome.state), phase), s.now_us)
    else:
        record_unsuccessful(p, topology, facts, op.step, phase, outcome, s)
    return _advance(p, topology, facts, s)


def plan_next(p: Projection, topology: Topology, s: Setting) -> Plan:
    """Go on without an outcome: the open attempt was resolved from outside [R-17], or the plan was refused."""
    return _advance(p, topology, [], _owning(p, s))


def plan_items(
    p: Projection,
    topology: Topology,
    op: UnitOp,
    outcomes: Sequence[ItemOutcome],
    s: Setting,
    *,
    running: bool,
    invalid: InvalidOp | None = None,
) -> Plan:
    """Record how attempts of items ended, and reserve those that start now, in one append [J-12, B-10].

    As the success of any handler, that of the last item counts whatever a cancel, a hold or a shutdown says [R-12].

    Args:
        running: handlers of other items are still running here.
        invalid: a handler broke its contract: no other is started, and when none is running the run rests with that.
    """
    s = _owning(p, s)
    facts: list[Fact] = []
    if p.pin != op.step or p.units.get(op.step) is None:  # an operator resolved it
        return Plan([], msgspec.structs.replace(op, start=()), None) if running else _advance(p, topology, facts, s)
    record_items(p, topology, facts, op.step, outcomes, s)
    starts = reserve_items(p, topology, facts, op, s) if invalid is None else ()
    if not running:
        resolve_items(p, facts, op.step, s)
    if running or starts:
        return Plan(facts, UnitOp(op.step, op.position, op.shape, True, starts), None)
    return _advance(p, topology, facts, s) if invalid is None else Plan(facts, None, invalid)


def plan_dispatched(p: Projection, topology: Topology, op: UnitOp, refused: Mapping[int, Failure], s: Setting) -> Plan:
    """Record that the child runs of `op` are submitted, or why not, and go on [B-1, B-21].

    What was read of their ends is older than that, and forgotten: those that were missing then are there now.
    """
    s = msgspec.structs.replace(_owning(p, s), ends={})
    facts: list[Fact] = []
    if p.pin == op.step and op.step in p.units:
        record_dispatched(p, facts, op, refused, s)
    return _advance(p, topology, facts, s)


def _owning(p: Projection, s: Setting) -> Setting:
    """The setting of a run that is owned already [D-4].

    Raises:
        NotOwner: it is another worker's [J-7].
    """
    if s.token and p.token != s.token:
        raise NotOwner(f"run {p.run_id}: token {s.token} was overtaken by {p.token} of worker {p.worker}")
    return msgspec.structs.replace(s, may_start=False) if s.hands_over else s


def _advance(p: Projection, topology: Topology, facts: list[Fact], s: Setting) -> Plan:
    """Everything that needs no handler, then the reservation of the next attempt or the reason to rest."""
    now_us = s.now_us
    if _deadline_passed(p, now_us):
        emit(p, facts, RunCancelRequested(ENGINE_ACTOR, "deadline"), now_us)
    plan: Plan | None = None
    while True:
        op = reconcile(p, topology)
        if isinstance(op, (HeldOp, InvalidOp, EndedOp)):
            return Plan(facts, None, op)
        if p.suspended and not (isinstance(op, (WaitOp, UnitOp)) and op.open):
            emit(p, facts, ContinuationSegmentCreated(), now_us)
        if type(op) is CancelOp:
            passed = view_of(p, topology).newly_passed(p, op.position)
            failure = canceled_failure(p, op.step, p.attempts("forward", op.step), now_us)
            emit(p, facts, OperationFailed(op.step, failure, in_doubt=op.in_doubt, passed=passed), now_us)
        elif type(op) is FailOp:
            return _finish_failure(p, topology, facts, s)
        elif p.due_us > now_us:
            return suspended(p, facts, Waiting(p.due_us), s)
        elif type(op) is CompleteOp:
            return _finish_success(p, facts, s)
        elif not s.may_start:
            return Plan(facts, None, _CLOSED)
        elif type(op) is RunOp or type(op) is UnwindOp:
            shut = _shut(op.step, facts, s) if s.gate is not None else None
            return _reserve(p, topology, facts, op, now_us) if shut is None else shut
        elif type(op) is EvaluateOp:
            plan = _evaluate(p, topology, facts, op, s)
        elif type(op) is WaitOp or type(op) is UnitOp:
            plan = _carry_on(p, topology, facts, op, s)
        if plan is not None:
            return plan


def _carry_on(p: Projection, topology: Topology, facts: list[Fact], op: WaitOp | UnitOp, s: Setting) -> Plan | None:
    """Open a wait or a unit, or go on with it; None where it was opened or resolved, and planning goes on."""
    if s.gate is not None and (shut := _shut(op.step, facts, s)) is not None:
        return shut
    try:
        return wait(p, topology, facts, op, s) if isinstance(op, WaitOp) else unit(p, topology, facts, op, s)
    except Unplannable as problem:
        return Plan(facts, None, InvalidOp(problem.reason, problem.detail))


def _reserve(p: Projection, topology: Topology, facts: list[Fact], op: RunOp | UnwindOp, now_us: int) -> Plan:
    view = view_of(p, topology)
    if type(op) is RunOp:
        fact = OperationReserved(op.step, op.attempt, "forward", view.newly_passed(p, op.position))
    else:
        fact = OperationReserved(op.step, op.attempt, "unwind", (), view.newly_crossed(p, op.position))
    emit(p, facts, fact, now_us)
    return Plan(facts, op, None)


def _evaluate(p: Projection, topology: Topology, facts: list[Fact], op: EvaluateOp, s: Setting) -> Plan | None:
    """Ask a condition: reserve the step, or skip it and return None to go on; a condition that raises: invalid."""
    try:
        holds = s.evaluator.condition(op.step)
    except Unplannable as problem:
        return Plan(facts, None, InvalidOp(problem.reason, problem.detail))
    if holds:
        first = started(topology.steps[op.position], op.position)
        if isinstance(first, RunOp):
            shut = _shut(op.step, facts, s) if s.gate is not None else None
            return _reserve(p, topology, facts, first, s.now_us) if shut is None else shut
        return _carry_on(p, topology, facts, first, s)
    passed = view_of(p, topology).newly_passed(p, op.position)
    emit(p, facts, OperationSkipped(op.step, passed), s.now_us)
    return None


def _shut(step: str, facts: list[Fact], s: Setting) -> Plan | None:
    """The run rests here, for a limit has no place for what comes next; None: nothing is known to be in its way [R-11].

    What was planned so far is appended without it: a success that is durable is not lost for want of a place.
    """
    try:
        limited = None if s.gate is None else s.gate(step)
    except Unplannable as problem:
        return Plan(facts, None, InvalidOp(problem.reason, problem.detail))
    return None if limited is None else Plan(facts, None, limited)


def _finish_success(p: Projection, facts: list[Fact], s: Setting) -> Plan:
    """Output, outcome and end in one append, with the last success [E-10, J-12, J-16]."""
    try:
        output = s.evaluator.output()
    except Unplannable as problem:
        return Plan(facts, None, InvalidOp(problem.reason, problem.detail))
    emit(p, facts, SegmentCompleted(), s.now_us)
    emit(p, facts, OutcomeCommitted("success", msgspec.Raw(output)), s.now_us)
    emit(p, facts, RunSucceeded(in_doubt(p)), s.now_us)
    return Plan(facts, None, EndedOp())


def _finish_failure(p: Projection, topology: Topology, facts: list[Fact], s: Setting) -> Plan:
    failure = p.failure
    if failure is None:  # reconcile answers FailOp only after a failure
        return Plan(facts, None, EndedOp())
    ended = Lists(p, topology).end(failure, tuple(p.unwind_failures))
    try:
        output = s.evaluator.failure_output(ended)
    except Unplannable as problem:
        return Plan(facts, None, InvalidOp(problem.reason, problem.detail))
    emit(p, facts, SegmentCompleted(), s.now_us)
    emit(p, facts, OutcomeCommitted("failure", msgspec.Raw(output)), s.now_us)
    emit(p, facts, ended, s.now_us)
    return Plan(facts, None, EndedOp())


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
