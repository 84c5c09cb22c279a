"""Submitting child runs: under ids that follow from the parent's journal, so that none is submitted twice [B-21]."""

from __future__ import annotations

import asyncio

from msgspec import Raw

from perdure.core.commit import plan_dispatched
from perdure.core.facts import Failure, Parent, RunSubmitted
from perdure.core.ids import child_id
from perdure.core.operations import UnitOp
from perdure.core.plan import Next
from perdure.core.projection import Projection
from perdure.core.reducer import fold
from perdure.define.child import ChildStep
from perdure.define.pipeline import AnyPipeline
from perdure.ports.limits import NoRoom
from perdure.ports.store import Append, AppendResult, Committed, MutexTaken, SlotTaken
from perdure.runtime.appending import seal
from perdure.runtime.applying import Again, apply
from perdure.runtime.arguments import check_name
from perdure.runtime.entering import Submission, entrances_of
from perdure.runtime.host import Host
from perdure.runtime.indexing import new_run, submitted_state
from perdure.runtime.live import LiveRun
from perdure.runtime.refusing import queue_full


async def submit_children(host: Host, live: LiveRun, op: UnitOp) -> Next | None:
    """Submit the child runs of one wave, and record that; the next operation, None where the run rests."""
    refused = await _submit(host, live, op)
    host.entered()
    while True:
        now_us = host.system.now_us()
        plan = plan_dispatched(live.p, live.line.topology, op, refused, host.setting(live, now_us))
        try:
            return await apply(host, live, plan, now_us)
        except Again as again:
            again.tell(live)
            await live.reload()


async def _submit(host: Host, live: LiveRun, op: UnitOp) -> dict[int, Failure]:
    """Those that could not be submitted, and why."""
    definition, unit = live.line.steps[op.step], live.p.units[op.step]
    refused: dict[int, Failure] = {}
    if not isinstance(definition, ChildStep):
        return refused
    sent: list[tuple[int, Submission, asyncio.Future[AppendResult]]] = []
    for index, _ in op.start:
        parent = Parent(live.run_id, op.step, index)
        run_id = child_id(unit.opened_us, live.run_id, op.step, index)
        try:
            line = host.lines.get(unit.pipeline)  # as it was when the unit opened, whatever the step names now [B-20]
            child = definition.child if line is None else line.pipeline
            one = _submission(host, live, child, run_id, unit.items[index], parent)
        except Exception as error:  # what the child's author wrote, or an input that it no longer reads
            refused[index] = _refusal(host, op.step, f"it cannot be submitted: {type(error).__name__}: {error}")
            continue
        sent.append((index, one, host.store.append(_first_append(host, one))))
    for index, one, future in sent:
        problem = await _settled(host, one, await future)
        if problem:
            refused[index] = _refusal(host, op.step, problem)
    return refused


def _submission(
    host: Host, live: LiveRun, pipeline: AnyPipeline, run_id: str, data: bytes, parent: Parent
) -> Submission:
    codec = pipeline.input_codec
    resource = run_id if pipeline.resource is None else pipeline.resource(codec.decode(data))
    now_us = host.system.now_us()
    submitted = RunSubmitted(
        run_id,
        pipeline.id,
        Raw(data),
        codec.digest_of(data).hex(),
        check_name("resource", resource),
        live.tenant,
        pipeline.slot,
        0,
        0 if pipeline.deadline_s is None else now_us + int(pipeline.deadline_s * 1_000_000),
        f"run {parent.run_id}",
        priority=live.p.priority,
        parent=parent,
        mutexes=pipeline.mutexes,
    )
    return Submission(submitted, entrances_of(pipeline, submitted))


def _first_append(host: Host, one: Submission) -> Append:
    submitted = one.submitted
    now_us = host.system.now_us()
    p = Projection(submitted.run_id)
    fold(p, submitted, now_us)
    append = seal(p, [submitted], now_us, host.system.append_id(), 0)
    append.new = new_run(submitted, now_us, one.entrances)
    append.index = submitted_state(p, now_us)
    return append


async def _settled(host: Host, one: Submission, result: AppendResult) -> str:
    """What keeps a child from being submitted; empty where it is, now or since an earlier try."""
    while not isinstance(result, Committed):
        submitted = one.submitted
        if await host.load(submitted.run_id) is not None:
            return ""
        if isinstance(result, MutexTaken):
            return f"run {result.run_id} of pipeline {result.pipeline!r} has mutex {result.name!r} for its resource"
        if isinstance(result, NoRoom):
            return str(queue_full(submitted, result, one.entrances))
        if not isinstance(result, SlotTaken) or submitted.waits:
            return f"its run id {submitted.run_id} is taken"
        if submitted.slot == "once":
            return f"run {result.run_id} has its slot for ever"
        if submitted.mutexes:
            return f"run {result.run_id} has its slot, and a run with mutexes does not wait"
        one = one.waiting("queue")
        result = await host.store.append(_first_append(host, one))
    return ""


def _refusal(host: Host, step: str, problem: str) -> Failure:
    return Failure(step, problem[:2000], at_us=host.system.now_us(), reason="child-refused")
