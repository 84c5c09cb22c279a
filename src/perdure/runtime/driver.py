"""The life of one owned run: claim or submission, attempt, commit, and round again [J-12]."""

from __future__ import annotations

import logging
from collections.abc import Callable

from perdure.core.commit import Plan, Rest, plan_claim, plan_next, plan_outcome
from perdure.core.facts import OperationRetryScheduled, RetryCause, RunFailed, SegmentAttemptStarted
from perdure.core.operations import EndedOp, InvalidOp, RunOp, UnwindOp
from perdure.core.outcomes import Interrupted, Outcome
from perdure.core.projection import Projection
from perdure.ports.store import AppendResult, Committed, Conflict, IndexState, LoadedRun
from perdure.runtime.appending import seal
from perdure.runtime.executor import attempt
from perdure.runtime.guarding import guarded
from perdure.runtime.host import Host
from perdure.runtime.indexing import invalid_state, resting_state, running_state, with_deadline
from perdure.runtime.live import LiveRun, Lost
from perdure.runtime.loading import projected, snapshot_of, worth_a_snapshot

logger = logging.getLogger("perdure")

INVALID_BACKOFF_US = (60_000_000, 3_600_000_000)
"""An invalid run is asked again after a minute, doubling up to an hour [D-2]."""

_NEVER_BY_BACKOFF = frozenset({"contract-broken", "payload-unserialisable", "state-missing"})
"""A handler that broke its contract is called again for a new generation or build, or an operator, only [D-2]."""


class _Again(Exception):  # a signal: somebody appended first
    """Read the run again and plan anew [J-5]."""


async def drive(host: Host, live: LiveRun, op: RunOp | UnwindOp | None) -> None:
    """Run operations until the run rests or ends. `op` is reserved and durable."""
    while op is not None:
        live.op = op
        outcome: Outcome | InvalidOp | None
        if live.noticed and await _stopped_before_start(live):
            outcome = Interrupted() if live.attempt_is_open() else None
        elif host.draining:  # the reservation was on its way; no attempt starts any more
            outcome = Interrupted()
        else:
            if host.observers:
                host.emit("attempt-started", live.p, step=op.step, phase=_phase(op), attempt=op.attempt)
            outcome = await attempt(host, live, op)
        op = await commit(host, live, op, outcome)


async def _stopped_before_start(live: LiveRun) -> bool:
    """Read facts from outside that came before the handler started; whether they keep it from starting."""
    async with live.lock:
        await live.reload()
    return not live.attempt_is_open() or live.must_stop() or live.p.held is not None


async def commit(
    host: Host, live: LiveRun, op: RunOp | UnwindOp, outcome: Outcome | InvalidOp | None
) -> RunOp | UnwindOp | None:
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
            plan = await _plan(host, live, op, outcome, now_us, fresh)
            return await apply(host, live, plan, now_us)
        except _Again:
            await live.reload()
            fresh = False


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


async def apply(host: Host, live: LiveRun, plan: Plan, now_us: int) -> RunOp | UnwindOp | None:
    """Append what was planned, with the index state that follows.

    Raises:
        _Again: somebody appended first.
        Lost: the run is no longer this engine's.
    """
    p = live.p
    if plan.rest is None:
        append = seal(p, plan.facts, now_us, host.system.append_id(), p.token)
        _check(await host.store.append(append))
        if host.suspects.any:
            host.suspects.cleared(live)
        if worth_a_snapshot(p, live.snapshot_version, released=False):
            _snapshot(host, live)
        if host.observers:
            emit_facts(host, p, plan)
        host.waiters.stepped(p.run_id)
        return plan.next
    if plan.facts:
        append = seal(p, plan.facts, now_us, host.system.append_id(), p.token)
        index = append.index = rest_state(host, live, plan.rest, now_us)
        _check(await host.store.append(append))
    else:
        index = rest_state(host, live, plan.rest, now_us)
        if not await host.store.set_index(p.locator, index, p.row_seq):
            raise _Again
    _released(host, live, plan, index.due_us)
    return None


def _check(result: AppendResult) -> None:
    if type(result) is Committed:
        return
    if isinstance(result, Conflict):
        raise _Again
    raise Lost


def rest_state(host: Host, live: LiveRun, rest: Rest, now_us: int) -> IndexState:
    """The index state of a run that rests for `rest`."""
    if not isinstance(rest, InvalidOp):
        return resting_state(live.p, rest, now_us)
    due_us = with_deadline(live.p, judge(host, live.p.run_id, rest))
    return invalid_state(live.p, rest, due_us, live.line.generation, host.options.build)


def judge(host: Host, run_id: str, op: InvalidOp) -> int | None:
    """Note that a run is invalid, log it once; when to ask again, None for not by itself [D-2, D-3]."""
    times = host.judged.get(run_id, 0)
    host.judged[run_id] = times + 1
    if not times:
        logger.warning("run %s is invalid (%s): %s", run_id, op.reason, op.detail)
    if op.reason in _NEVER_BY_BACKOFF:
        return None
    least, most = INVALID_BACKOFF_US
    return host.system.now_us() + min(most, least << min(times, 20))


def _snapshot(host: Host, live: LiveRun) -> None:
    host.store.put_snapshot(live.p.locator, snapshot_of(live.p))
    live.snapshot_version = live.p.version


def _released(host: Host, live: LiveRun, plan: Plan, due_us: int | None) -> None:
    """The run rests and that is durable: wake who waits, count it out."""
    p = live.p
    ended = p.ended is not None
    if not ended and worth_a_snapshot(p, live.snapshot_version, released=True):
        _snapshot(host, live)
    host.release(live, due_us)
    host.rested(p.run_id, invalid=isinstance(plan.rest, InvalidOp))
    if host.observers:
        emit_facts(host, p, plan)
    host.waiters.wake(p.run_id, p if ended else None)


def _phase(op: RunOp | UnwindOp) -> str:
    return "forward" if type(op) is RunOp else "unwind"


# --- claiming


async def claim(host: Host, live: LiveRun, loaded: LoadedRun) -> RunOp | UnwindOp | None:
    """Reconcile a due run and claim it together with what the claim does; None where it rests at once [D-8]."""
    state = loaded.row.state
    judged = state.status == "invalid" or bool(state.build)  # its owner let go of it in good order
    lost_cause: RetryCause = "interrupted" if judged else "lost"
    due_us = state.due_us
    while True:
        p = live.p
        now_us = host.system.now_us()
        fact = SegmentAttemptStarted(p.token + 1, host.worker, live.line.generation, host.options.build)
        plan = plan_claim(p, live.line.topology, fact, host.setting(live, now_us), lost_cause=lost_cause)
        try:
            if host.observers and due_us is not None and now_us - due_us > 60_000_000:
                host.emit("overdue", p, detail=f"due {(now_us - due_us) // 1_000_000} s ago")
            if plan.rest is not None or not plan.facts:
                return await apply(host, live, plan, now_us)
            append = seal(p, plan.facts, now_us, host.system.append_id(), p.token)
            append.index = running_state(p)
            _check(await host.store.append(append))
            live.token = p.token
            if host.observers:
                emit_facts(host, p, plan)
            return plan.next
        except _Again:
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


# --- events


def emit_facts(host: Host, p: Projection, plan: Plan) -> None:
    """Tell observers what an append made durable."""
    for fact in plan.facts:
        match fact:
            case SegmentAttemptStarted():
                host.emit("claimed", p)
            case OperationRetryScheduled():
                detail = fact.failure.message if fact.failure is not None else fact.cause
                host.emit("retry-scheduled", p, step=fact.step, phase=fact.phase, attempt=fact.attempt, detail=detail)
            case RunFailed():
                host.emit(
                    "canceled" if fact.failure.kind == "canceled" else "failed",
                    p,
                    step=fact.failure.step,
                    detail=fact.failure.message,
                )
                left = (*fact.half_unwound, *fact.uncompensated, *fact.unavailable)
                if left:
                    host.emit("uncompensated", p, detail=", ".join(left))
            case _:
                _emit_simple(host, p, fact)
    match plan.rest:
        case InvalidOp(reason, detail):
            host.emit("invalid", p, detail=f"{reason}: {detail}")
        case None | EndedOp():
            pass
        case _:
            host.emit("released", p)


def _emit_simple(host: Host, p: Projection, fact: object) -> None:
    name = type(fact).__name__
    step: str = getattr(fact, "step", "")
    phase: str = getattr(fact, "phase", "")
    attempt_number: int = getattr(fact, "attempt", 0)
    if name == "OperationSucceeded" and attempt_number:
        host.emit("attempt-succeeded", p, step=step, phase=phase, attempt=attempt_number)
    elif name == "OperationFailed":
        host.emit("attempt-failed", p, step=step, phase=phase)
    elif name == "RunHeld":
        host.emit("held", p, step=step)
    elif name == "RunSucceeded":
        host.emit("succeeded", p)
