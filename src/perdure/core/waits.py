"""Steps that wait: for a time, a message, or other runs [B-15, B-24, R-13]. Nothing is called, no worker is held."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.core.facts import (
    ContinuationSegmentCreated,
    Fact,
    Failure,
    OperationFailed,
    OperationParked,
    OperationSucceeded,
    OperationWoken,
    SegmentSuspended,
)
from perdure.core.frontier import view_of
from perdure.core.operations import WaitOp
from perdure.core.plan import Parked, Plan, Rest, RunEnd, Setting, Waiting, emit
from perdure.core.projection import ForwardEntry, Projection
from perdure.core.topology import Topology
from perdure.core.words import EndStatus


class AwaitedRun(msgspec.Struct, frozen=True, gc=False):
    """One of the runs that a step waited for.

    Attributes:
        run_id: the run.
        status: how it ended; `live`: it had not when the wait was over.
        output: what it made, as plain JSON values; None where it made nothing.
        failure: why it failed; None if it did not.
    """

    run_id: str
    status: EndStatus | Literal["live"]
    output: object = None
    failure: Failure | None = None


def wait(p: Projection, topology: Topology, facts: list[Fact], op: WaitOp, s: Setting) -> Plan | None:
    """Open a wait, or end it where what it waits for has come; None then: planning goes on.

    Raises:
        Unplannable: what the author wrote does not say what to wait for, or cannot read the message.
    """
    if not op.open:
        _open(p, topology, facts, op, s)
        return None
    entry = p.forward[op.step]
    if op.shape == "sleep":
        resume(p, facts, s)
        emit(p, facts, OperationSucceeded(op.step, 0), s.now_us)
    elif op.shape == "message" and p.messages.get(entry.awaits[0]):
        message = p.messages[entry.awaits[0]][0]
        state = s.evaluator.message_state(op.step, message.payload)
        _wake(p, facts, OperationWoken(op.step, "message", message.key), state, s)
    elif op.shape == "runs" and _ended(entry, s) >= entry.need:
        _wake(p, facts, OperationWoken(op.step, "runs"), _runs(entry, s), s)
    elif 0 < entry.until_us <= s.now_us:
        _time_out(p, facts, op, entry, s)
    elif s.cycle and op.shape == "runs":
        _fail(p, facts, op.step, "await-cycle", "the runs it waits for wait for this run", s)
    else:
        return suspended(p, facts, parked(entry), s)
    return None


def wait_idle(p: Projection, op: WaitOp, s: Setting) -> Rest | None:
    """Why a worker that claims a run with an open wait would do nothing; None if it would do something."""
    entry = p.forward[op.step]
    if op.shape == "sleep" or 0 < entry.until_us <= s.now_us:
        return None
    if op.shape == "message":
        return None if p.messages.get(entry.awaits[0]) else parked(entry)
    return None if s.cycle or _ended(entry, s) >= entry.need else parked(entry)


def suspended(p: Projection, facts: list[Fact], rest: Waiting | Parked, s: Setting) -> Plan:
    """The run rests; if it does so at a step that waits, its segment ends here [J-16]."""
    entry = p.pinned()
    if entry is not None and p.pin is not None and not p.suspended and _waits(entry, rest):
        emit(p, facts, SegmentSuspended(p.pin), s.now_us)
    return Plan(facts, None, rest)


def _waits(entry: ForwardEntry, rest: Waiting | Parked) -> bool:
    return type(rest) is Parked or entry.shape == "sleep"


def resume(p: Projection, facts: list[Fact], s: Setting) -> None:
    """What the last segment waited for is resolved: the next one begins [J-16]."""
    if p.suspended:
        emit(p, facts, ContinuationSegmentCreated(), s.now_us)


def _open(p: Projection, topology: Topology, facts: list[Fact], op: WaitOp, s: Setting) -> None:
    opening = s.evaluator.opening(op.step)
    due_us = s.now_us + opening.lasts_us if opening.lasts_us else 0
    passed = view_of(p, topology).newly_passed(p, op.position)
    fact = OperationParked(op.step, due_us, op.shape, opening.awaits, opening.need, passed)
    emit(p, facts, fact, s.now_us)


def parked(entry: ForwardEntry) -> Parked:
    """What an open wait for a message or for runs waits for."""
    if entry.shape == "message":
        return Parked(entry.until_us, why=f"waits for message {entry.awaits[0]!r}")
    runs = "a run" if len(entry.awaits) == 1 else f"{entry.need} of {len(entry.awaits)} runs"
    return Parked(entry.until_us, entry.awaits, entry.need, f"waits for {runs}")


def _ended(entry: ForwardEntry, s: Setting) -> int:
    return sum(run_id in s.ends for run_id in entry.awaits)


def _runs(entry: ForwardEntry, s: Setting) -> bytes:
    """The state: every run that was waited for, in the order they were named."""
    return msgspec.json.encode([_awaited(run_id, s.ends.get(run_id)) for run_id in entry.awaits])


def _awaited(run_id: str, end: RunEnd | None) -> AwaitedRun:
    if end is None:
        return AwaitedRun(run_id, "live")
    return AwaitedRun(run_id, end.status, msgspec.Raw(end.output), end.failure)


def _wake(p: Projection, facts: list[Fact], fact: OperationWoken, state: bytes, s: Setting) -> None:
    resume(p, facts, s)
    emit(p, facts, fact, s.now_us)
    emit(p, facts, OperationSucceeded(fact.step, 0, msgspec.Raw(state)), s.now_us)


def _time_out(p: Projection, facts: list[Fact], op: WaitOp, entry: ForwardEntry, s: Setting) -> None:
    """It has waited too long: a declared value, or failure [B-8]."""
    state = _runs(entry, s) if op.shape == "runs" else None
    substitute = s.evaluator.timeout_state(op.step)
    if substitute is None:
        _fail(p, facts, op.step, "await-timeout", f"it {parked(entry).why}, and that took too long", s)
    else:
        _wake(p, facts, OperationWoken(op.step, "time"), substitute if state is None else state, s)


def _fail(p: Projection, facts: list[Fact], step: str, reason: str, message: str, s: Setting) -> None:
    resume(p, facts, s)
    emit(p, facts, OperationFailed(step, Failure(step, message, at_us=s.now_us, reason=reason)), s.now_us)
