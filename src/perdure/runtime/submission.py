"""A submission that carries the claim and the first reservation, for an engine with a free place [J-12]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from perdure.core.commit import plan_submission
from perdure.core.facts import SegmentAttemptStarted
from perdure.core.plan import Next
from perdure.core.projection import Projection
from perdure.errors import PerdureError, StoreUnavailable
from perdure.ports.store import AppendResult, Committed, LimitReached
from perdure.runtime.appending import SlotFreed, seal
from perdure.runtime.applying import Again, rest_state
from perdure.runtime.driver import drive
from perdure.runtime.entering import Submission
from perdure.runtime.events import emit_facts
from perdure.runtime.guarding import guarded
from perdure.runtime.host import Host
from perdure.runtime.indexing import new_run, running_state
from perdure.runtime.limits import reserve, reserved, rested
from perdure.runtime.line import Line
from perdure.runtime.live import LiveRun

Answered: TypeAlias = Callable[[Submission, AppendResult], Awaitable[tuple[str, bool]]]
"""Gives the run that a refused submission joins, or that waits for its slot, and whether it is new; or raises."""


async def submit_and_drive(host: Host, line: Line, one: Submission, answered: Answered) -> tuple[str, bool]:
    """Submit a run and go on executing it in a task of the engine's; cancelling the caller stops neither [J-14].

    Returns:
        The id of the run, and whether it is new, once that is durable.
    """
    accepted: asyncio.Future[tuple[str, bool]] = host.loop.create_future()
    live = LiveRun(host, line, Projection(one.submitted.run_id), one.submitted)
    host.adopt(live)
    work = guarded(host, live, lambda: _work(host, live, one, accepted, answered))
    live.task = host.loop.create_task(work, context=host.context.copy())
    return await accepted


async def _work(
    host: Host, live: LiveRun, one: Submission, accepted: asyncio.Future[tuple[str, bool]], answered: Answered
) -> None:
    try:
        op, answer = await _submit(host, live, one, answered)
    except BaseException as error:
        if not accepted.done():
            told = error if isinstance(error, Exception) else StoreUnavailable("the engine stopped")
            accepted.set_exception(told)
        if isinstance(error, (PerdureError, SlotFreed)):  # the caller's to hear, or to submit again
            return
        raise
    if not accepted.done():
        accepted.set_result(answer)
    await drive(host, live, op)


async def _submit(
    host: Host, live: LiveRun, one: Submission, answered: Answered
) -> tuple[Next | None, tuple[str, bool]]:
    line, submitted = live.line, live.submitted
    p = live.p = Projection(submitted.run_id)
    now_us = host.system.now_us()
    claim = SegmentAttemptStarted(1, host.worker, line.generation, host.options.build)
    plan = plan_submission(p, line.topology, submitted, claim, host.setting(live, now_us))
    append = seal(p, plan.facts, now_us, host.system.append_id(), 0)
    append.new = new_run(submitted, now_us, one.entrances)
    append.index = running_state(p) if plan.rest is None else rest_state(host, live, plan.rest, now_us)
    if live.line.limited and p.token and p.ended is None:
        reserve(host, live, plan, append, begins=True)
    result = await host.store.append(append)
    if isinstance(result, LimitReached):
        Again(full=result).tell(live)
        return await _submit(host, live, one, answered)
    if not isinstance(result, Committed):
        host.judged.pop(p.run_id, None)
        host.release(live, None)
        return None, await answered(one, result)
    p.locator = result.locator
    live.token = p.token
    if live.line.limited:
        reserved(host, live, append)
    if host.observers:
        host.emit("submitted", p)
        emit_facts(host, p, plan)
    if plan.rest is not None:
        host.awaited |= bool(append.index.awaits)
        host.release(live, append.index.due_us)
        if live.line.limited:
            rested(host, live, plan)
        host.waiters.wake(p.run_id, p if p.ended is not None else None)
    return plan.next, (submitted.run_id, True)
