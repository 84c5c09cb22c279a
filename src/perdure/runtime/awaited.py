"""How the runs ended that a run waits for: read before it is claimed, so that planning stays pure [R-13, R-16]."""

from __future__ import annotations

from perdure.core.facts import EndStatus, RunSucceeded
from perdure.core.plan import RunEnd
from perdure.core.projection import Projection
from perdure.core.unit import CHILD_SHAPES
from perdure.core.units import awaited_children
from perdure.define.await_runs import AwaitRuns
from perdure.define.child import ChildStep
from perdure.errors import CorruptJournal
from perdure.runtime.host import Host
from perdure.runtime.live import NO_ENDS, LiveRun
from perdure.runtime.loading import projected


async def look_at_awaited(host: Host, live: LiveRun) -> None:
    """Learn which of the awaited runs have ended; under a cancel that cascades, ask them to cancel first [B-21].

    Asking again is harmless, so a crash here loses nothing: whoever claims the run next asks again.
    """
    p = live.p
    ids = _awaited(p)
    live.ends = NO_ENDS
    if not ids:
        return
    live.told = p.failure is None and _is_canceled(p, host.system.now_us())
    if live.told and _cascades(live, p):
        for run_id in ids:
            await host.cancel_run(run_id)
    ends: dict[str, RunEnd] = {}
    for run_id in ids:
        end = await _end_of(host, run_id)
        if end is not None:
            ends[run_id] = end
    live.ends = ends


def _awaited(p: Projection) -> tuple[str, ...]:
    entry = p.pinned()
    if entry is None or p.pin is None:
        return ()
    if entry.shape in CHILD_SHAPES:
        return awaited_children(p, p.pin)
    return entry.awaits if entry.shape == "runs" else ()


def _is_canceled(p: Projection, now_us: int) -> bool:
    """A cancel is recorded, or will be by this claim, because the deadline has passed [R-12]."""
    deadline_us = p.submitted.deadline_us if p.submitted is not None else 0
    return p.cancel is not None or 0 < deadline_us <= now_us


def _cascades(live: LiveRun, p: Projection) -> bool:
    definition = live.line.steps.get(p.pin or "")
    return isinstance(definition, (AwaitRuns, ChildStep)) and definition.cascades


async def _end_of(host: Host, run_id: str) -> RunEnd | None:
    """How a run ended; None where it has not, or nobody can say."""
    loaded = await host.load(run_id)
    if loaded is None:
        lost = await host.store.journal_of(run_id) is not None  # only its index row is gone, and can be rebuilt
        return None if lost else RunEnd("missing")
    if loaded.row.ended_us is None:
        return None
    try:
        p = await projected(host.store, loaded)
    except CorruptJournal:
        return None
    return run_end(p)


def run_end(p: Projection) -> RunEnd | None:
    """How a run ended, for those that wait for it."""
    ended = p.ended
    if ended is None or p.outcome is None:
        return None
    if isinstance(ended, RunSucceeded):
        return RunEnd("succeeded", bytes(p.outcome.output))
    status: EndStatus = "canceled" if ended.failure.kind == "canceled" else "failed"
    left = bool(ended.in_doubt or ended.half_unwound or ended.uncompensated or ended.unavailable)
    return RunEnd(status, failure=ended.failure, in_doubt=left)
