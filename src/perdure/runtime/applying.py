"""Appending what was planned, with the index state that follows from it [J-12]."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from perdure.core.operations import InvalidOp
from perdure.core.plan import Next, Plan, Rest
from perdure.ports.store import Append, AppendResult, Committed, Conflict, IndexState, LimitReached, WaitCycle
from perdure.runtime.appending import seal
from perdure.runtime.events import emit_facts
from perdure.runtime.host import Host
from perdure.runtime.indexing import invalid_state, resting_state, with_deadline
from perdure.runtime.limits import reserve, reserved, rested
from perdure.runtime.live import LiveRun, Lost
from perdure.runtime.loading import snapshot_of, worth_a_snapshot

logger = logging.getLogger("perdure")

INVALID_BACKOFF_US = (60_000_000, 3_600_000_000)
"""An invalid run is asked again after a minute, doubling up to an hour [D-2]."""

_NEVER_BY_BACKOFF = frozenset({"contract-broken", "payload-unserialisable", "state-missing"})
"""A handler that broke its contract is called again for a new generation or build, or an operator, only [D-2]."""


class Again(Exception):  # a signal: somebody appended first
    """Read the run again and plan anew [J-5].

    Args:
        cycle: nobody did: the run would have waited for one that waits for it [R-13].
        full: nobody did: a limit has no place for what was planned [R-11].
    """

    def __init__(self, *, cycle: bool = False, full: LimitReached | None = None) -> None:
        super().__init__()
        self._cycle = cycle
        self._full = full

    def tell(self, live: LiveRun) -> None:
        """What is known now, for the next plan."""
        live.cycle = self._cycle
        live.shut = None if self._full is None else (self._full.limit, self._full.key)


async def apply(
    host: Host, live: LiveRun, plan: Plan, now_us: int, write: Callable[[Append], Awaitable[AppendResult]] | None = None
) -> Next | None:
    """Append what was planned, with the index state that follows.

    Args:
        write: appends; by default to the store.

    Raises:
        Again: somebody appended first.
        Lost: the run is no longer this engine's.
    """
    p = live.p
    write = write or host.store.append
    if plan.rest is None and not plan.facts:
        return plan.next
    if not live.lease.holds:
        await live.lease.wait()
    if plan.rest is None:
        append = seal(p, plan.facts, now_us, host.system.append_id(), p.token)
        if live.line.limited:
            reserve(host, live, plan, append)
        check(await write(append))
        if live.line.limited:
            reserved(host, live, append)
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
        if live.line.limited and not live.token and p.token == 1 and p.ended is None:
            reserve(host, live, plan, append, begins=True)
        check(await write(append))
    else:
        index = rest_state(host, live, plan.rest, now_us)
        written = await host.store.set_index(p.locator, index, p.row_seq)
        if written is not True:
            if written is False:  # somebody appended first, or this worker was found dead
                host.fenced()
            raise Again(cycle=written is not False)
    _released(host, live, plan, index)
    return None


def check(result: AppendResult) -> None:
    """Whether an append of an owner is durable; see `apply`."""
    if type(result) is Committed:
        return
    if isinstance(result, (Conflict, WaitCycle, LimitReached)):
        raise Again(cycle=isinstance(result, WaitCycle), full=result if isinstance(result, LimitReached) else None)
    raise Lost


def rest_state(host: Host, live: LiveRun, rest: Rest, now_us: int) -> IndexState:
    """The index state of a run that rests for `rest`."""
    if not isinstance(rest, InvalidOp):
        return resting_state(live.p, rest, now_us)
    due_us = with_deadline(live.p, judge(host, live.p.run_id, rest))
    return invalid_state(live.p, rest, due_us, live.line.generation, host.options.build, now_us)


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


def _released(host: Host, live: LiveRun, plan: Plan, index: IndexState) -> None:
    """The run rests and that is durable: wake who waits, count it out."""
    p = live.p
    ended = p.ended is not None
    if not ended and worth_a_snapshot(p, live.snapshot_version, released=True):
        _snapshot(host, live)
    if index.awaits:
        host.awaited = True
    host.release(live, index.due_us)
    if live.line.limited:
        rested(host, live, plan)
    host.rested(p.run_id, invalid=isinstance(plan.rest, InvalidOp))
    if host.observers:
        emit_facts(host, p, plan)
    host.waiters.wake(p.run_id, p if ended else None)
