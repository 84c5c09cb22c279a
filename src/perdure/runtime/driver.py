"""The life of one owned run: claim or submission, attempt, commit, and round again [J-12]."""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.commit import plan_claim, plan_next, plan_outcome
from perdure.core.facts import Phase, RetryCause, SegmentAttemptStarted
from perdure.core.operations import InvalidOp, RunOp, UnitOp, UnwindOp
from perdure.core.outcomes import Interrupted, Outcome, Raised, Returned
from perdure.core.plan import Next, Plan
from perdure.core.unit import CHILD_SHAPES
from perdure.define.failure import failure_of
from perdure.ports.joining import OwnTransaction, TransactionEnded, TransactionLost
from perdure.ports.store import LoadedRun
from perdure.runtime.appending import seal
from perdure.runtime.applying import Again, apply, check
from perdure.runtime.awaited import look_at_awaited
from perdure.runtime.children import submit_children
from perdure.runtime.events import emit_facts
from perdure.runtime.executor import attempt
from perdure.runtime.guarding import guarded
from perdure.runtime.host import Host
from perdure.runtime.indexing import running_state
from perdure.runtime.items import run_items
from perdure.runtime.limits import reserve, reserved
from perdure.runtime.live import LiveRun, Lost
from perdure.runtime.loading import projected


async def drive(host: Host, live: LiveRun, op: Next | None) -> None:
    """Run operations until the run rests or ends. `op` is reserved and durable."""
    while op is not None:
        live.op = op
        if isinstance(op, UnitOp):
            begin = submit_children if op.shape in CHILD_SHAPES else run_items
            op = await begin(host, live, op)
            continue
        outcome: Outcome | InvalidOp | None
        if live.noticed and await _stopped_before_start(live):
            outcome = Interrupted() if live.attempt_is_open() else None
        elif host.draining:  # the reservation was on its way; no attempt starts any more
            outcome = Interrupted()
        else:
            if not live.lease.holds:
                await live.lease.wait()
            if host.observers:
                host.emit("attempt-started", live.p, step=op.step, phase=_phase(op), attempt=op.attempt)
            outcome = await attempt(host, live, op)
        op = await commit(host, live, op, outcome)


async def _stopped_before_start(live: LiveRun) -> bool:
    """Read facts from outside that came before the handler started; whether they keep it from starting."""
    async with live.lock:
        await live.reload()
    return not live.attempt_is_open() or live.must_stop() or live.p.held is not None


async def commit(host: Host, live: LiveRun, op: RunOp | UnwindOp, outcome: Outcome | InvalidOp | None) -> Next | None:
    """Record how an attempt ended; re-planned, without limit, on whatever was appended from outside [J-6].

    Returns:
        The next operation, reserved; None where the run rests.
    """
    if live.busy:
        await live.calm()
    fresh = True
    while True:
        now_us = host.system.now_us()
        try:
            if live.tx is not None:
                return await _commit_with_effect(host, live, live.tx, op, outcome, now_us)
            plan = await _plan(host, live, op, outcome, now_us, fresh)
            return await apply(host, live, plan, now_us)
        except Again as again:
            again.tell(live)
        except EffectLost as lost:
            outcome = lost.outcome
        await live.reload()
        fresh = False


class EffectLost(Exception):  # a signal
    """What the handler wrote in its transaction is not committed, so the attempt has not succeeded.

    Args:
        outcome: how it has ended instead.
    """

    def __init__(self, outcome: Outcome | InvalidOp | None) -> None:
        super().__init__()
        self.outcome = outcome


async def _commit_with_effect(
    host: Host,
    live: LiveRun,
    tx: OwnTransaction,
    op: RunOp | UnwindOp,
    outcome: Outcome | InvalidOp | None,
    now_us: int,
) -> Next | None:
    """Record a success together with what its handler wrote; whatever else the attempt came to undoes that [I-1].

    Raises:
        Again: somebody appended first; the transaction is still open.
        EffectLost: it is not.
    """
    if not isinstance(outcome, Returned) or not live.attempt_is_open():
        live.tx = None
        await tx.rollback()
        raise EffectLost(outcome)
    plan = plan_outcome(live.p, live.line.topology, op, outcome, host.setting(live, now_us))
    try:
        rest = await apply(host, live, plan, now_us, tx.commit)
    except TransactionEnded as ended:
        problem: Outcome | InvalidOp = InvalidOp("contract-broken", f"step {op.step!r}: {ended}")
    except TransactionLost as lost:
        error = lost.__cause__ or lost
        failure = failure_of(lost, step=op.step, phase=_phase(op), attempt=op.attempt, at_us=now_us)
        problem = Raised(failure, live.line.policy(op.step).is_never(error))
    else:
        live.tx = None
        return rest
    live.tx = None
    await tx.rollback()
    raise EffectLost(problem)


async def _plan(
    host: Host, live: LiveRun, op: RunOp | UnwindOp, outcome: Outcome | InvalidOp | None, now_us: int, fresh: bool
) -> Plan:
    topology = live.line.topology
    setting = host.setting(live, now_us)
    if outcome is None and fresh:
        await live.reload()
    if outcome is None and live.attempt_is_open():  # stopped for nothing: how it would have ended is not known
        outcome = Interrupted()
    if outcome is None or not live.attempt_is_open():
        if host.observers:
            host.emit("late", live.p, step=op.step, phase=_phase(op), attempt=op.attempt)
        return plan_next(live.p, topology, setting)
    if isinstance(outcome, InvalidOp):
        if live.must_stop():  # whatever a canceled handler does but succeed, it is canceled
            return plan_next(live.p, topology, setting)
        return Plan([], None, outcome)
    return plan_outcome(live.p, topology, op, outcome, setting)


def _phase(op: RunOp | UnwindOp) -> Phase:
    return "forward" if type(op) is RunOp else "unwind"


# --- claiming


async def claim(host: Host, live: LiveRun, loaded: LoadedRun) -> Next | None:
    """Reconcile a due run and claim it together with what the claim does; None where it rests at once [D-8]."""
    state = loaded.row.state
    judged = state.status == "invalid" or bool(state.build)  # its owner let go of it in good order
    lost_cause: RetryCause = "interrupted" if judged else "lost"
    due_us = live.p.due_us if state.due_us is None else state.due_us
    while True:
        p = live.p
        await look_at_awaited(host, live)
        now_us = host.system.now_us()
        fact = SegmentAttemptStarted(p.token + 1, host.worker, live.line.generation, host.options.build)
        plan = plan_claim(p, live.line.topology, fact, host.setting(live, now_us), lost_cause=lost_cause)
        try:
            if host.observers and due_us and now_us - due_us > 60_000_000:
                host.emit("overdue", p, detail=f"due {(now_us - due_us) // 1_000_000} s ago")
            if plan.rest is not None or not plan.facts:
                return await apply(host, live, plan, now_us)
            if not live.lease.holds:
                await live.lease.wait()
            append = seal(p, plan.facts, now_us, host.system.append_id(), p.token)
            append.index = running_state(p)
            if live.line.limited:
                reserve(host, live, plan, append, begins=p.token == 1, claims=True)
            check(await host.store.append(append))
            if live.line.limited:
                reserved(host, live, append)
            live.token = p.token
            if host.observers:
                emit_facts(host, p, plan)
            return plan.next
        except Again as refused:
            refused.tell(live)
            again = await host.load(p.run_id)
            if again is None or again.row.state.token != loaded.row.state.token:
                raise Lost from None
            live.p = await projected(host.store, again)


async def claim_and_drive(host: Host, live: LiveRun, loaded: LoadedRun, claimed: Callable[[], None]) -> None:
    """The task of a run that was due; `claimed` is called as soon as the store no longer calls it due."""
    await guarded(host, live, lambda: _claim_and_drive(host, live, loaded, claimed))


async def _claim_and_drive(host: Host, live: LiveRun, loaded: LoadedRun, claimed: Callable[[], None]) -> None:
    try:
        op = await claim(host, live, loaded)
    finally:
        claimed()
    await drive(host, live, op)
