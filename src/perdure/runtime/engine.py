"""The engine: owns a store, claims what is due, runs it, and stops without losing anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from perdure.core.facts import RunSubmitted
from perdure.core.operations import EndedOp
from perdure.core.plan import ENGINE_ACTOR, Plan
from perdure.core.projection import Projection
from perdure.core.retry import Retry
from perdure.define.pipeline import AnyPipeline
from perdure.define.schedule import AnySchedule
from perdure.errors import ConflictError, NotFound, StoreUnavailable
from perdure.ports.clock import System
from perdure.ports.observer import Observer
from perdure.ports.store import AppendResult, Change, Fenced, IndexState, Store, Trouble
from perdure.runtime.claimer import Claimer
from perdure.runtime.client import Client
from perdure.runtime.entering import Submission
from perdure.runtime.events import emit_facts
from perdure.runtime.host import Host, Middleware, Options
from perdure.runtime.limits import bounds_of
from perdure.runtime.loading import projected
from perdure.runtime.membership import DEFAULT_LEASE_S, Membership
from perdure.runtime.misfits import wake_misfits
from perdure.runtime.noticing import Noticer
from perdure.runtime.operations import AbandonRun, RunOperation
from perdure.runtime.rebuilding import Mender
from perdure.runtime.refusing import OnBusy
from perdure.runtime.schedules import Scheduler, tick_key
from perdure.runtime.serving import serve
from perdure.runtime.stuck import report_blocked, report_stuck
from perdure.runtime.submission import submit_and_drive
from perdure.runtime.watchdog import Watchdog

logger = logging.getLogger("perdure")

PATROL_S = 60.0
"""How often attempts that run for very long are looked for."""

MEND_S = 1.0
"""How long the submitter of a run that replaces others may take to cancel them, before the engine does."""

GRACE_S = 5.0
"""How long interrupted handlers may take to clean up before the engine stops without them."""


class Engine(Client):
    """A client that also executes. Made by `App.engine`; entered and left with it.

    It claims due runs while it has free places, bounded by `concurrency`, and never scans the others [R-7].
    """

    def __init__(
        self,
        store: Store,
        system: System,
        pipelines: Mapping[str, AnyPipeline],
        *,
        worker: str,
        options: Options,
        retry: Retry | None,
        timeout_s: float | None,
        middleware: Sequence[Middleware],
        observers: Sequence[Observer],
        drain_timeout_s: float,
        schedules: Sequence[AnySchedule] = (),
        lease_s: float = DEFAULT_LEASE_S,
    ) -> None:
        super().__init__(store, system, pipelines, payload_limit=options.payload_limit)
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._host = Host(store, system, loop, worker, options, middleware, observers)
        self._waiters = self._host.waiters
        self._claimer = Claimer(self._host)
        self._mender = Mender(self._host, self._claimer, self._mend_waiting)
        self._scheduler = Scheduler(self._host, schedules, self._submit_tick)
        self._host.on_released = self._claimer.place_freed
        self._host.places.granted = self._claimer.claim_next
        self._host.on_deadline = self._on_deadline
        self._host.cancel_run = self._cancel_awaited
        self._host.entered = self._entered_many
        self._host.freed = self._entered_many
        self._membership: Membership | None = None
        if store.shared:
            self._membership = Membership(
                self._host,
                lease_s,
                [s.id for s in schedules],
                known=self._claimer.known,
                picking=self._claimer.pick_under_way,
                due=lambda: self._claimer.due_at(0),
            )
        self._retry = retry
        self._timeout_s = timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._watchdog = Watchdog(loop, options.block_limit_s, self._on_blocked)
        self._fatal: asyncio.Future[StoreUnavailable] = loop.create_future()
        self._errands: set[asyncio.Task[None]] = set()
        self._noticer = Noticer(self._notice, self._spawn, lambda: self._host.stopped)
        self._patrol: asyncio.TimerHandle | None = None
        self._mending: asyncio.TimerHandle | None = None
        self._stopped = self._drained = False
        store.on_trouble(self._on_trouble)

    @property
    def worker(self) -> str:
        """This engine's identity, random per start [R-3]."""
        return self._host.worker

    @property
    def running(self) -> int:
        """Number of runs that this engine owns now."""
        return len(self._host.live)

    # --- life

    async def start(self, deps: Mapping[str, object]) -> None:
        """Deploy the pipelines, take over what a former owner left, and begin to claim. The store is open and owned.

        Args:
            deps: opened dependencies by pipeline id.
        """
        host, now_us = self._host, self._system.now_us()
        all_there = await self._mender.begin()
        await serve(host, self._pipelines, deps, self._retry, self._timeout_s)
        if self._membership is not None:
            await self._membership.join()
        await self._on_holds()
        taken = await self._store.take_over(now_us)
        if taken:
            logger.info("%d runs of owners that are gone are due", taken)
        self._watchdog.start()
        await self._mend_waiting()
        host.awaited = await self._store.anybody_waits()
        await self._open_limits()
        await self._scheduler.start()  # before the claimer: a start that fails here leaves nothing running
        self._claimer.start()
        self._spawn(self._insist("runs that cannot go on could not be looked for", self._wake_misfits))
        if not all_there:
            self._look_for_lost_rows()
        self._patrol = self._loop.call_later(PATROL_S, self._report_stuck)

    async def _open_limits(self) -> None:
        """Limits are as large as they are declared here from now on [R-11]."""
        if bounds := bounds_of(self._host.lines.values()):
            await self._store.resize_limits(bounds)
            await self._mend_limits()

    async def _mend_limits(self) -> None:
        """Free places go to whoever waits for them [R-16]."""
        if any(line.limited for line in self._host.lines.values()):
            if await self._store.grant_permits(self._system.now_us()):
                self._claimer.due_at(0)
            uses = await self._store.limits()
            self._host.crowded |= any(use.waiting for use in uses)

    async def _wake_misfits(self) -> None:
        """Runs that wait where a newer generation than their own cannot go on say so now [D-3]; also where whoever
        deployed that came no further [R-16]."""
        if self._membership is not None:
            return await self._membership.look_for_misfits()
        for line in self._host.lines.values():
            now_us = self._system.now_us()
            if line.generation > 1 and await wake_misfits(self._store, line.id, line.topology, now_us):
                self._claimer.due_at(0)

    async def drain(self, timeout_s: float | None = None) -> None:
        """Start nothing more, let running attempts end within the drain time, then interrupt them [R-6].

        Args:
            timeout_s: instead of the app's drain time; 0 interrupts at once.
        """
        host = self._host
        host.draining = True
        await self._scheduler.stop()
        await self._claimer.stop(GRACE_S)
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=self._drain_timeout_s if timeout_s is None else timeout_s)
        for live in list(host.live.values()):
            live.stop_handler("shutdown")
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=GRACE_S)
        self._drained = True

    async def stop(self) -> None:
        """Drain and close the store. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        try:
            if not self._drained:
                await self.drain()
        except asyncio.CancelledError:  # whoever stops us is in a hurry
            self.abort()
            raise
        self._end_watch()
        self._host.threads.close()
        self._host.stopped = True
        self._host.waiters.wake_all()
        if self._membership is not None:
            await self._membership.leave()
        await self._store.close()
        if tasks := self._tasks() | self._errands:
            for errand in self._errands:
                errand.cancel()
            await asyncio.wait(tasks, timeout=GRACE_S)

    def abort(self) -> None:
        """Drop everything at once, writing nothing, as a killed process would; for tests and for a second signal."""
        self._stopped = True
        self._host.draining = self._host.stopped = True
        self._claimer.cancel()
        self._scheduler.cancel()
        if self._membership is not None:
            self._membership.cancel()
        for live in list(self._host.live.values()):
            live.interrupt = "abort"
            if live.task is not None:
                live.task.cancel()
        self._host.live.clear()
        self._end_watch()
        self._host.threads.close()
        self._store.abort()
        self._host.waiters.wake_all()
        for errand in self._errands:
            errand.cancel()

    async def failed(self) -> StoreUnavailable:
        """Wait until the store is gone for good; returns the error. Leave the engine then."""
        return await asyncio.shield(self._fatal)

    async def idle(self) -> None:
        """Wait until no run is owned here or due; runs that wait for a later time are not waited for."""
        claimer = self._claimer
        while True:
            await self._scheduler.caught_up()
            claimer.quiet.clear()
            if self._errands:
                await asyncio.wait(set(self._errands))
                continue
            if not self._host.live and not claimer.busy:
                serving = self._host.serving if self._store.shared else None
                due = await self._store.due(self._system.now_us(), 1, 0, serving)
                if not due and not self._host.live and not claimer.busy:
                    return
                claimer.due_at(0)
            await claimer.quiet.wait()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        """A short task of the engine's own; kept until it is done."""
        task = self._loop.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {live.task for live in self._host.live.values() if live.task is not None and not live.task.done()}

    # --- submit

    async def _enter(self, pipeline: AnyPipeline, one: Submission, on_busy: OnBusy) -> tuple[str, bool]:
        """With a free place the submission carries claim and first reservation in one append [J-12]."""
        host, claimer = self._host, self._claimer
        line = host.lines.get(pipeline.id)
        waits = one.submitted.start_at_us > self._system.now_us() or pipeline.id in host.held
        waits = waits or pipeline.id in host.newer or not host.lease.holds
        if line is None or waits or host.draining or claimer.backlog or claimer.free <= 0:
            return await super()._enter(pipeline, one, on_busy)

        async def answered(refused: Submission, result: AppendResult) -> tuple[str, bool]:
            if isinstance(result, Fenced):  # this worker was found dead, and has not heard of it: it is anybody's
                host.fenced()
                return await self._enter_by(refused, on_busy, None)
            return await self._answered(refused, result, on_busy, None)

        return await submit_and_drive(host, line, one, answered)

    async def _submit_tick(self, schedule: AnySchedule, tick_us: int, window: timedelta) -> tuple[str, bool]:
        """A schedule's tick is its key: whoever submits it again gets the same run [R-14]."""
        run = await self.submit(
            schedule.pipeline,
            schedule.input_at(tick_us),
            resource=schedule.resource_at(tick_us),
            tenant=schedule.tenant,
            deadline=schedule.deadline,
            annotations=schedule.annotations_at(tick_us),
            actor=f"schedule {schedule.id}",
            on_busy=schedule.on_busy,
            idempotency_key=tick_key(schedule.id, tick_us),
            key_window=window,
            priority=schedule.priority,
        )
        return run.id, run.created

    def _entered(self, submitted: RunSubmitted) -> None:
        self._claimer.due_at(submitted.start_at_us)
        if self._host.observers:
            p = Projection(submitted.run_id)
            p.submitted = submitted
            self._host.emit("submitted", p)

    def _entered_many(self) -> None:
        self._claimer.due_at(0)

    def _on_waiting(self) -> None:
        """Runs wait for slots: whoever ends may pass one on; whoever is to make place is told so, if its replacer's
        submitter was not there to do it [R-16]."""
        self._host.queued = True
        self._claimer.due_at(0)
        if self._mending is None:
            self._mending = self._loop.call_later(MEND_S, self._mend_soon)

    def _mend_soon(self) -> None:
        self._mending = None
        if not self._host.draining:
            self._spawn(self._insist("runs that wait for their slots could not be looked after", self._mend_waiting))

    def _look_for_lost_rows(self) -> None:
        if not self._host.draining:
            self._spawn(self._insist("lost index rows could not be put back", self._mender.look))

    async def _mend_waiting(self) -> None:
        """Free slots go to whoever waits; whoever is to be replaced is canceled [R-5, R-16]."""
        waiting = await self._store.waiting_runs()
        self._host.queued = bool(waiting.count)
        if waiting.count and await self._store.grant_slots(self._system.now_us()):
            self._claimer.due_at(0)
        if waiting.superseded:
            await self._make_place(ENGINE_ACTOR)
        await self._mend_limits()

    async def apply(self, run_id: str, operation: RunOperation, *, dry_run: bool = False) -> bool:
        """See `Client.apply`. Observers are told of a run that was given up in this process [R-15]."""
        written = await super().apply(run_id, operation, dry_run=dry_run)
        if written and not dry_run and isinstance(operation, AbandonRun) and self._host.observers:
            p = await projected(self._store, await self._load(run_id))
            if p.ended is not None:
                emit_facts(self._host, p, Plan([p.ended], None, EndedOp()))
        return written

    # --- being told

    def _is_live(self, run_id: str) -> bool:
        return run_id in self._host.live

    async def _on_holds(self) -> None:
        """Take note of the pipelines that are held now [R-17]."""
        host = self._host
        held = frozenset(hold.pipeline for hold in await self._store.pipeline_holds())
        if held != host.held:
            host.held = held
            self._claimer.due_at(0)

    def _is_judging(self, state: IndexState) -> bool:
        return state.due_us is not None and state.due_us <= self._system.now_us() and not self._host.draining

    def _notify(self, run_id: str) -> None:
        live = self._host.live.get(run_id)
        if live is not None:
            live.notice()
        else:
            self._claimer.due_at(0)
        self._waiters.wake(run_id)

    def _on_change(self, change: Change) -> None:
        """Another process committed: look for due runs and for facts about ours, as far as there may be any."""
        super()._on_change(change)
        self._host.crowded |= any(line.limited for line in self._host.lines.values())  # somebody else's may wait
        if change.due or change.anything:
            self._claimer.due_at(0)
        if change.outside or change.anything:
            self._noticer.tell(change)

    async def _notice(self, change: Change) -> None:
        await self._insist("facts from outside could not be looked for", partial(self._notice_outside, change))

    async def _notice_outside(self, change: Change) -> None:
        """Tell owned runs of facts from other processes."""
        if change.anything:
            await self._on_holds()
            if (await self._store.waiting_runs()).count:
                self._on_waiting()
        for run_id in await self._store.attention(self._host.worker):
            live = self._host.live.get(run_id)
            if live is not None:
                live.notice()

    async def _cancel_awaited(self, run_id: str) -> None:
        """A run that waits for this one is being canceled, and takes it along [B-21, R-13]."""
        with suppress(ConflictError, NotFound):
            await self.cancel(run_id, reason="parent-canceled", actor=ENGINE_ACTOR)

    def _on_deadline(self, run_id: str) -> None:
        """The deadline of a run that is owned here has come."""

        async def cancel() -> None:
            with suppress(ConflictError, NotFound):
                await self.cancel(run_id, reason="deadline", actor=ENGINE_ACTOR)

        self._spawn(self._insist(f"run {run_id} could not be canceled at its deadline", cancel))

    async def _insist(self, problem: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that must not be forgotten; while the store does not answer, wait with backoff [R-8, R-16]."""
        delay_s = 0.1
        while not self._host.stopped:
            try:
                return await work()
            except Exception as error:
                if self._host.stopped:
                    return None  # it was under way as the store was closed
                logger.warning("%s, trying again in %.1f s: %r", problem, delay_s, error)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, 5.0)

    def _on_trouble(self, trouble: Trouble) -> None:
        if self._host.observers:
            self._host.emit("store-trouble", detail=trouble.problem)
        if trouble.fatal:
            logger.error("the store is gone for good: %s", trouble.problem)
            if not self._fatal.done():
                self._fatal.set_result(StoreUnavailable(trouble.problem))
        else:
            logger.warning("the store does not commit, trying again in %.1f s: %s", trouble.retry_in_s, trouble.problem)

    def _end_watch(self) -> None:
        self._watchdog.stop()
        for timer in (self._patrol, self._mending):
            if timer is not None:
                timer.cancel()

    def _report_stuck(self) -> None:
        """Name attempts that have been running for very long, and look after runs that wait."""
        self._mend_soon()
        self._look_for_lost_rows()
        report_stuck(self._host)
        self._patrol = self._loop.call_later(PATROL_S, self._report_stuck)

    def _on_blocked(self, task: asyncio.Task[Any] | None, stack: str) -> None:
        """The loop does not run; called in the watchdog's thread."""
        report_blocked(self._host, task, stack)
