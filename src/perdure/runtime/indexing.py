"""How a run's index row follows from its facts, and from the judgement of the worker that let go of it."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from perdure.core.facts import RunSubmitted, RunSucceeded
from perdure.core.operations import EndedOp, HeldOp, InvalidOp
from perdure.core.permits import Entrance, Limited
from perdure.core.plan import Closed, Parked, Rest, Waiting
from perdure.core.projection import Projection
from perdure.core.signature import sign
from perdure.core.units import resting
from perdure.ports.store import IndexState, NewRun, RunRow, RunStatus


def new_run(submitted: RunSubmitted, submitted_us: int, entrances: tuple[Entrance, ...] = ()) -> NewRun:
    """The index columns of a run that never change. A run about itself alone excludes nobody.

    Args:
        entrances: limits that have to have room for it, where it is submitted [R-11].
    """
    alone = submitted.resource == submitted.run_id
    slot_key = None if submitted.slot == "none" or alone else submitted.resource
    return NewRun(
        submitted.run_id,
        submitted.tenant,
        submitted.pipeline,
        submitted.resource,
        slot_key,
        submitted.slot == "once",
        bytes.fromhex(submitted.input_digest),
        submitted_us,
        submitted.deadline_us,
        submitted.waits,
        tuple(sorted(submitted.annotations.items())) if submitted.annotations else (),
        () if alone else submitted.mutexes,
        entrances,
    )


def ended_status(p: Projection) -> RunStatus:
    """`succeeded`, `failed` or `canceled` of a run that ended [M-11]."""
    if isinstance(p.ended, RunSucceeded):
        return "succeeded"
    return "canceled" if p.ended is not None and p.ended.failure.kind == "canceled" else "failed"


def running_state(p: Projection) -> IndexState:
    """The row of a run that a worker owns."""
    return IndexState(
        "running",
        None,
        p.worker,
        p.token,
        p.generation,
        canceling=p.cancel is not None,
        step=standing_at(p),
        priority=p.priority,
    )


def resting_state(p: Projection, rest: Rest, now_us: int) -> IndexState:
    """The row of a run that nobody owns, for any rest but an invalid run."""
    match rest:
        case Waiting(due_us):
            return _state(p, "ready", with_deadline(p, due_us), _backoff_reason(p))
        case Parked():
            return _parked(p, rest, now_us)
        case Limited(permit, due_us, needs):
            state = _state(p, "ready", with_deadline(p, due_us or None), f"waits for {permit.words}")
            return replace(state, permits=needs, at_us=now_us) if needs else state
        case Closed():
            return _state(p, "ready", now_us, "")
        case HeldOp(reason):
            return _keeping(p, _state(p, "held", with_deadline(p, None), reason), now_us)
        case EndedOp():
            failure = p.ended.failure if p.ended is not None and not isinstance(p.ended, RunSucceeded) else None
            return _state(p, ended_status(p), None, "" if failure is None else failure.reason)
        case InvalidOp():
            return invalid_state(p, rest, None, p.generation, p.build, now_us)
        case _ as unreachable:
            assert_never(unreachable)


def invalid_state(
    p: Projection, op: InvalidOp, due_us: int | None, generation: int, build: str, now_us: int
) -> IndexState:
    """The row of an invalid run: why, and under which generation and build it was judged [D-2]."""
    state = _state(p, "invalid", due_us, f"{op.reason}: {op.detail}", generation=generation, build=build)
    return _keeping(p, state, now_us)


def corrupt_state(token: int, problem: str) -> IndexState:
    """The row of a run whose journal contradicts itself: quarantined, nobody touches it [J-8]."""
    return IndexState("corrupt", None, token=token, reason=problem)


def facts_state(p: Projection, now_us: int) -> IndexState:
    """The row of a run that nobody owns, from its facts alone: after facts from outside, and for rebuilding [J-11]."""
    if p.ended is not None:
        return resting_state(p, EndedOp(), now_us)
    if p.held is not None and (p.cancel is None or p.failure is not None):
        return resting_state(p, HeldOp(p.held.reason), now_us)
    rest = None if p.cancel is not None and p.failure is None else resting(p)
    if rest is not None:
        return resting_state(p, rest, now_us)
    due_us = now_us if p.cancel is not None and p.failure is None else max(p.due_us, 0) or p.submitted_us
    return _state(p, "ready", with_deadline(p, due_us), _backoff_reason(p))


def _parked(p: Projection, rest: Parked, now_us: int) -> IndexState:
    """The row of a run that waits for others, or for a message; the store wakes it when enough of them have ended."""
    state = _state(p, "ready", with_deadline(p, rest.due_us or None), rest.why)
    return replace(state, awaits=rest.awaits, need=rest.need, at_us=now_us) if rest.awaits else state


def _keeping(p: Projection, state: IndexState, now_us: int) -> IndexState:
    """What a held or invalid run waits for stays until it can look [R-9]."""
    rest = resting(p)
    awaits = rest.awaits if isinstance(rest, Parked) else ()
    return replace(state, awaits=awaits, need=len(awaits), at_us=now_us) if awaits else state


WAITS = "waits for its slot"


def waiting_state(p: Projection) -> IndexState:
    """The row of a new run whose slot another one has: the store makes it due when it gets the slot [R-5]."""
    return _state(p, "ready", with_deadline(p, None), WAITS)


def submitted_state(p: Projection, now_us: int) -> IndexState:
    """The row of a new run. The journal row that comes with it is the only one: its hash need not be kept twice."""
    waits = p.submitted is not None and p.submitted.waits
    return replace(waiting_state(p) if waits else facts_state(p, now_us), tail_hash=b"")


def may_start_waiting(row: RunRow, now_us: int) -> bool:
    """Whether a run that waits for its slot has something to do without it: to be canceled."""
    return row.state.canceling or 0 < row.run.deadline_us <= now_us


def _state(
    p: Projection,
    status: RunStatus,
    due_us: int | None,
    reason: str,
    *,
    generation: int | None = None,
    build: str = "",
) -> IndexState:
    signature, ledger = sign(p)
    return IndexState(
        status,
        due_us,
        "",
        p.token,
        p.generation if generation is None else generation,
        build,
        reason,
        p.cancel is not None,
        standing_at(p),
        p.version,
        p.row_hash,
        signature,
        ledger,
        p.priority,
    )


def with_deadline(p: Projection, due_us: int | None) -> int | None:
    """The deadline wakes a run that would otherwise wait longer [R-12]."""
    deadline_us = p.submitted.deadline_us if p.submitted is not None else 0
    if not deadline_us or p.cancel is not None or p.failure is not None:
        return due_us
    return deadline_us if due_us is None else min(due_us, deadline_us)


def _backoff_reason(p: Projection) -> str:
    current = p.current
    entry = p.pinned()
    if entry is not None and entry.shape == "sleep":
        return "sleeping"
    unit = p.unit()
    if unit is not None and unit.waiting and p.failure is None:  # items back off, and none of them runs
        failure = unit.entries[min(unit.waiting)].last_failure
        return "" if failure is None else failure.reason
    if current is None or not p.due_us:
        return ""
    if current.last_failure is not None:
        return current.last_failure.reason
    return "polling" if current.later else ""


def standing_at(p: Projection) -> str:
    """The step a run stands at, for people."""
    if p.ended is not None:
        return p.failure.step if p.failure is not None else ""
    if p.failure is not None:
        return p.last_unwind or p.failure.step
    return p.pin or ""
