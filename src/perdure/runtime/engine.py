"""The engine: owns a store, claims what is due, runs it, and stops without losing anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from perdure.core.commit import plan_submission
from perdure.core.facts import RunSubmitted, SegmentAttemptStarted
from perdure.core.journal import NewerJournal
from perdure.core.operations import InvalidOp, RunOp, UnwindOp
from perdure.core.projection import Projection
from perdure.core.retry import Retry
from perdure.define.pipeline import AnyPipeline
from perdure.errors import CorruptJournal, PayloadError, PerdureError, StoreUnavailable
from perdure.ports.clock import System
from perdure.ports.observer import Observer
from perdure.ports.store import Committed, LoadedRun, RunFilter, Store, Trouble
from perdure.runtime.appending import seal
from perdure.runtime.client import Client
from perdure.runtime.driver import INVALID_BACKOFF_US, claim_and_drive, drive, emit_facts, guarded, quarantine
from perdure.runtime.host import Host, Middleware, Options
from perdure.runtime.indexing import invalid_state, new_run, resting_state, running_state
from perdure.runtime.line import Line
from perdure.runtime.live import LiveRun
from perdure.runtime.loading import project
from perdure.runtime.registry import deploy
from perdure.runtime.verifying import rebuild
from perdure.runtime.watchdog import Watchdog

logger = logging.getLogger("perdure")

SWEEP_S = 60.0
"""However quiet it is, due runs are looked for this often: a clock that was set, a wake-up that was lost [R-16]."""


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
    ) -> None:
        super().__init__(store, system, pipelines)
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._host = Host(store, system, loop, worker, options, middleware, observers)
        self._waiters = self._host.waiters
        self._host.on_released = self._on_released
        self._retry = retry
        self._timeout_s = timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._kicked = asyncio.Event()
        self._next_due_us: int | None = 0
        self._backlog = False
        self._claimer: asyncio.Task[None] | None = None
        self._watchdog = Watchdog(loop, options.block_limit_s, self._on_blocked)
        self._fatal: asyncio.Future[StoreUnavailable] = loop.create_future()
        self._quiet = asyncio.Event()
        self._errands: set[asyncio.Task[None]] = set()
        self._stopped = False
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
        await rebuild_if_lost(self._store, now_us)
        for pipeline in self._pipelines.values():
            topology, generation = await deploy(self._store, self._system, pipeline.id, pipeline.topology, host.worker)
            line = Line(pipeline, topology, generation, deps.get(pipeline.id), self._retry, self._timeout_s)
            host.lines[pipeline.id] = line
            await self._store.wake_invalid(pipeline.id, generation, host.options.build, now_us)
        taken = await self._store.take_over(now_us)
        if taken:
            logger.info("%d runs of a former owner are due", taken)
        self._watchdog.start()
        self._claimer = self._loop.create_task(self._claim_forever(), name="perdure-claimer")

    async def drain(self, timeout_s: float | None = None) -> None:
        """Start nothing more, let running attempts end within the drain time, then interrupt them [R-6].

        Args:
            timeout_s: instead of the app's drain time; 0 interrupts at once.
        """
        host = self._host
        host.draining = True
        if self._claimer is not None:
            self._claimer.cancel()
            with suppress(asyncio.CancelledError):
                await self._claimer
            self._claimer = None
        tasks = self._tasks()
        if not tasks:
            return
        limit_s = self._drain_timeout_s if timeout_s is None else timeout_s
        await asyncio.wait(tasks, timeout=limit_s)
        for live in list(host.live.values()):
            live.stop_handler("shutdown")
        while tasks := self._tasks():
            await asyncio.wait(tasks, timeout=1.0)
            for live in list(host.live.values()):
                live.stop_handler("shutdown")
            if self._fatal.done():
                return

    async def stop(self) -> None:
        """Drain and close the store. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        await self.drain()
        self._watchdog.stop()
        self._host.threads.close()
        self._host.waiters.wake_all()
        await self._store.close()

    def abort(self) -> None:
        """Drop everything at once, writing nothing, as a killed process would; for tests and for a second signal."""
        self._stopped = True
        self._host.draining = True
        if self._claimer is not None:
            self._claimer.cancel()
        for live in list(self._host.live.values()):
            live.interrupt = "abort"
            if live.task is not None:
                live.task.cancel()
        self._host.live.clear()
        self._watchdog.stop()
        self._host.threads.close()
        self._store.abort()

    async def failed(self) -> StoreUnavailable:
        """Wait until the store is gone for good; returns the error. Leave the engine then."""
        return await asyncio.shield(self._fatal)

    async def idle(self) -> None:
        """Wait until no run is owned here or due; runs that wait for a later time are not waited for."""
        while True:
            self._quiet.clear()
            if not self._host.live and not self._backlog:
                due = await self._store.due(self._system.now_us(), 1)
                if not due and not self._host.live:
                    return
                self._kicked.set()
            await self._quiet.wait()

    async def settled(self) -> None:
        """Wait until no run is owned here, due, or backing off: nothing more will happen without somebody outside."""
        while True:
            await self.idle()
            next_us = await self._store.next_due_us()
            if next_us is None and not self._host.live:
                return
            self._quiet.clear()
            await self._quiet.wait()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        """A short task of the engine's own; kept until it is done."""
        task = self._loop.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {live.task for live in self._host.live.values() if live.task is not None and not live.task.done()}

    # --- submit

    def _check_size(self, data: bytes) -> None:
        limit = self._host.options.payload_limit
        if len(data) > limit:
            raise PayloadError("$", f"the input has {len(data):,} bytes, the limit is {limit:,}")

    async def _enter(self, pipeline: AnyPipeline, submitted: RunSubmitted) -> tuple[str, bool]:
        """With a free place the submission carries claim and first reservation in one append [J-12]."""
        host = self._host
        line = host.lines.get(pipeline.id)
        now_us = self._system.now_us()
        free = len(host.live) < host.options.capacity and not self._backlog
        if line is None or not free or host.draining or submitted.start_at_us > now_us:
            run_id, created = await super()._enter(pipeline, submitted)
            self._due_at(max(submitted.start_at_us, now_us) if created else None)
            return run_id, created
        accepted: asyncio.Future[tuple[str, bool]] = self._loop.create_future()
        live = LiveRun(host, line, Projection(submitted.run_id), submitted)
        host.live[submitted.run_id] = live
        work = self._submit_and_drive(live, submitted, now_us, accepted)
        live.task = self._loop.create_task(guarded(host, live, work))
        if submitted.deadline_us:
            self._watch_deadline(live)
        return await accepted

    async def _submit_and_drive(
        self, live: LiveRun, submitted: RunSubmitted, now_us: int, accepted: asyncio.Future[tuple[str, bool]]
    ) -> None:
        try:
            op, run_id = await self._submit_and_claim(live, submitted, now_us)
        except BaseException as error:
            if not accepted.done():
                accepted.set_exception(
                    error if isinstance(error, Exception) else StoreUnavailable("the engine stopped")
                )
            if isinstance(error, PerdureError):
                return
            raise
        if not accepted.done():
            accepted.set_result((run_id, run_id == submitted.run_id))
        await drive(self._host, live, op)

    async def _submit_and_claim(
        self, live: LiveRun, submitted: RunSubmitted, now_us: int
    ) -> tuple[RunOp | UnwindOp | None, str]:
        host, line, p = self._host, live.line, live.p
        claim = SegmentAttemptStarted(1, host.worker, line.generation, host.options.build)
        plan = plan_submission(p, line.topology, submitted, claim, host.setting(live, now_us))
        append = seal(p, plan.facts, now_us, self._system.append_id(), 0)
        append.new = new_run(submitted, now_us)
        if plan.rest is None:
            append.index = running_state(p)
        elif isinstance(plan.rest, InvalidOp):
            append.index = invalid_state(
                p, plan.rest, now_us + INVALID_BACKOFF_US[0], line.generation, host.options.build
            )
            logger.warning("run %s is invalid (%s): %s", p.run_id, plan.rest.reason, plan.rest.detail)
        else:
            append.index = resting_state(p, plan.rest, now_us)
        result = await self._store.append(append)
        if not isinstance(result, Committed):
            self._release(live, None)
            return None, self._joined(submitted, result)
        p.locator = result.locator
        if host.observers:
            host.emit("submitted", p)
            emit_facts(host, p, plan)
        if plan.rest is not None:
            self._release(live, getattr(plan.rest, "due_us", None))
            host.waiters.wake(p.run_id, p if p.ended is not None else None)
        return plan.next, submitted.run_id

    def _release(self, live: LiveRun, due_us: int | None) -> None:
        if self._host.live.pop(live.p.run_id, None) is not None:
            self._on_released(due_us)

    # --- claim

    async def _claim_forever(self) -> None:
        """Claim what is due while there are places; sleep until something is due or somebody wakes us."""
        delay_s = 0.1
        while True:
            self._kicked.clear()
            try:
                wait_s = await self._claim_due()
                delay_s = 0.1
            except StoreUnavailable as error:
                logger.warning("looking for due runs failed, trying again in %.1f s: %s", delay_s, error)
                wait_s, delay_s = delay_s, min(delay_s * 2, 5.0)
            except Exception:
                logger.exception("looking for due runs failed; trying again in %.1f s", delay_s)
                wait_s, delay_s = delay_s, min(delay_s * 2, 5.0)
            self._quiet.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._kicked.wait()

    async def _claim_due(self) -> float:
        """Start tasks for due runs; returns how long nothing is to be done, in seconds."""
        host = self._host
        free = host.options.capacity - len(host.live)
        now_us = self._system.now_us()
        if free <= 0:
            self._backlog = self._next_due_us is not None and self._next_due_us <= now_us
            return SWEEP_S
        if self._next_due_us is not None and self._next_due_us > now_us:
            return min((self._next_due_us - now_us) / 1_000_000, SWEEP_S)
        limit = min(free, 256)
        due = await self._store.due(now_us, limit)
        started = 0
        for run_id in due:
            if run_id not in host.live:
                self._start(run_id)
                started += 1
        self._backlog = len(due) >= limit
        if self._backlog:
            self._next_due_us = now_us
            return 0.0 if started else 0.01
        self._next_due_us = await self._store.next_due_us()
        if self._next_due_us is None:
            return SWEEP_S
        if self._next_due_us <= now_us:  # those being started now, not claimed yet
            return 0.005
        return min((self._next_due_us - now_us) / 1_000_000, SWEEP_S)

    def _start(self, run_id: str) -> None:
        """Give a due run a place and a task."""
        placeholder = Placeholder(self._host, run_id)
        self._host.live[run_id] = placeholder
        placeholder.task = self._loop.create_task(self._load_and_drive(placeholder))

    async def _load_and_drive(self, placeholder: Placeholder) -> None:
        host, run_id = self._host, placeholder.p.run_id
        loaded: LoadedRun | None = None
        try:
            loaded = await self._store.load(run_id)
            live = await self._prepare(loaded, placeholder) if loaded is not None else None
        except StoreUnavailable:
            live = None
        except asyncio.CancelledError:
            host.live.pop(run_id, None)
            raise
        if live is None or loaded is None:
            self._release(placeholder, 0)
            return
        live.task = placeholder.task
        host.live[run_id] = live
        if live.submitted.deadline_us:
            self._watch_deadline(live)
        await claim_and_drive(host, live, loaded)

    async def _prepare(self, loaded: LoadedRun, placeholder: LiveRun) -> LiveRun | None:
        """The run folded, with its line; None where nobody can run it."""
        state = loaded.row.state
        if state.worker or state.due_us is None:
            return None
        try:
            p = project(loaded)
        except (CorruptJournal, NewerJournal) as error:
            placeholder.p.token = state.token
            await quarantine(self._host, placeholder.p, error)
            self._waiters.wake(loaded.row.run.run_id)
            return None
        line = self._host.lines.get(loaded.row.run.pipeline)
        if line is None or p.submitted is None:
            await self._judge_unregistered(p, loaded)
            return None
        live = LiveRun(self._host, line, p, p.submitted)
        live.snapshot_version = loaded.snapshot.version if loaded.snapshot is not None else 0
        return live

    async def _judge_unregistered(self, p: Projection, loaded: LoadedRun) -> None:
        pipeline = loaded.row.run.pipeline
        op = InvalidOp("pipeline-missing", f"pipeline {pipeline!r} is not bound in this app")
        host = self._host
        times = host.judged.get(p.run_id, 0)
        host.judged[p.run_id] = times + 1
        if not times:
            logger.warning("run %s is invalid (%s): %s", p.run_id, op.reason, op.detail)
        least, most = INVALID_BACKOFF_US
        due_us = self._system.now_us() + min(most, least << min(times, 20))
        await self._store.set_index(
            p.locator, invalid_state(p, op, due_us, p.generation, host.options.build), p.row_seq
        )
        self._waiters.wake(p.run_id)
        if host.observers:
            host.emit("invalid", p, detail=f"{op.reason}: {op.detail}")

    # --- being told

    def _is_live(self, run_id: str) -> bool:
        return run_id in self._host.live

    def _notify(self, run_id: str) -> None:
        live = self._host.live.get(run_id)
        if live is not None:
            live.notice()
        self._due_at(self._system.now_us())
        self._waiters.wake(run_id)

    def _due_at(self, due_us: int | None) -> None:
        """A run is due at `due_us`: look no later than then."""
        if due_us is None:
            return
        if self._next_due_us is None or due_us < self._next_due_us:
            self._next_due_us = due_us
            self._kicked.set()

    def _on_released(self, due_us: int | None) -> None:
        """A place became free, and its run is due again at `due_us`."""
        self._due_at(due_us)
        if self._backlog:
            self._kicked.set()
        if not self._host.live:
            self._quiet.set()

    def _on_change(self) -> None:
        """Another process committed: look for due runs and for facts about ours."""
        self._next_due_us = 0
        self._kicked.set()
        self._waiters.wake_all()
        if self._host.live:
            self._spawn(self._look_for_attention())

    async def _look_for_attention(self) -> None:
        with suppress(PerdureError):
            for run_id in await self._store.attention():
                live = self._host.live.get(run_id)
                if live is not None:
                    live.notice()

    def _watch_deadline(self, live: LiveRun) -> None:
        """Cancel the run when its deadline comes while it is owned here [R-12]."""
        delay_s = max(0.0, (live.submitted.deadline_us - self._system.now_us()) / 1_000_000)
        self._loop.call_later(min(delay_s, 86_400.0), self._deadline, live)

    def _deadline(self, live: LiveRun) -> None:
        if self._host.live.get(live.p.run_id) is not live:
            return
        if live.submitted.deadline_us > self._system.now_us():
            self._watch_deadline(live)
            return
        self._spawn(self._cancel_late(live.p.run_id))

    async def _cancel_late(self, run_id: str) -> None:
        with suppress(PerdureError):
            await self.cancel(run_id, reason="deadline", actor="perdure")

    def _on_trouble(self, trouble: Trouble) -> None:
        if self._host.observers:
            self._host.emit("store-trouble", detail=trouble.problem)
        if trouble.fatal:
            logger.error("the store is gone for good: %s", trouble.problem)
            if not self._fatal.done():
                self._fatal.set_result(StoreUnavailable(trouble.problem))
        else:
            logger.warning("the store does not commit, trying again in %.1f s: %s", trouble.retry_in_s, trouble.problem)

    def _on_blocked(self, task: asyncio.Task[Any] | None, stack: str) -> None:
        """Name the handler that blocks the loop; called in the watchdog's thread."""
        for live in list(self._host.live.values()):
            if live.task is task and live.op is not None:
                logger.warning(
                    "step %r of run %s has blocked the event loop for more than %.1f s; write it as `def` to run it in a "
                    "thread, or await\n%s",
                    live.op.step,
                    live.p.run_id,
                    self._host.options.block_limit_s,
                    stack,
                )
                if self._host.observers:
                    self._loop.call_soon_threadsafe(self._emit_blocked, live)
                return
        logger.warning(
            "something has blocked the event loop for more than %.1f s\n%s", self._host.options.block_limit_s, stack
        )

    def _emit_blocked(self, live: LiveRun) -> None:
        op = live.op
        self._host.emit("blocked", live.p, step=op.step if op is not None else "")


class Placeholder(LiveRun):
    """Holds the place of a due run while it is being read."""

    def __init__(self, host: Host, run_id: str) -> None:
        self.host = host
        self.p = Projection(run_id)
        self.op = None
        self.task = None
        self.in_handler = False
        self.interrupt = None
        self.noticed = False
        self.snapshot_version = 0
        self.started_us = 0
        self._lock = None


async def rebuild_if_lost(store: Store, now_us: int) -> None:
    """Rebuild the index where all of it is gone; a part that is missing is for `verify` to find [J-11]."""
    if await store.list_runs(RunFilter(), limit=1):
        return
    rebuilt = await rebuild(store, now_us)
    if rebuilt:
        logger.warning("the index was gone; %d rows were rebuilt from the facts", rebuilt)
