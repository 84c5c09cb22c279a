"""What the runs of one engine share: store, time, limits, and who wants to know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.core.plan import Setting
from perdure.core.projection import Projection
from perdure.define.invocation import Invocation
from perdure.errors import StoreUnavailable, StoreUnusable
from perdure.ports.clock import System
from perdure.ports.observer import Event, EventKind, Observer
from perdure.ports.store import LoadedRun, Store
from perdure.runtime.lease import Lease
from perdure.runtime.limits import Places
from perdure.runtime.line import Line
from perdure.runtime.suspects import Suspects
from perdure.runtime.threads import Threads
from perdure.runtime.waiters import Waiters

if TYPE_CHECKING:
    from perdure.runtime.live import LiveRun

logger = logging.getLogger("perdure")

FIRST_AVOIDANCE_US = 1_000_000
LAST_AVOIDANCE_US = 60_000_000

Next: TypeAlias = Callable[[], Awaitable[object]]
Middleware: TypeAlias = Callable[[Invocation[Any, Any], Next], Awaitable[object]]
"""Wraps every attempt: awaits the second argument for the handler's value, and returns it [R-15]."""


class Options:
    """Limits of one engine; see `App` for their meaning."""

    __slots__ = ("block_limit_s", "build", "capacity", "payload_limit", "threads")

    def __init__(self, *, capacity: int, threads: int, payload_limit: int, block_limit_s: float, build: str) -> None:
        self.capacity = capacity
        self.threads = threads
        self.payload_limit = payload_limit
        self.block_limit_s = block_limit_s
        self.build = build


async def _nobody(_run_id: str) -> None:
    """Nobody is there to cancel a run."""


class Host:
    """Shared by the engine and its live runs; holds no logic of either.

    Attributes:
        draining: no attempt is reserved any more [R-6].
        held: pipelines in which no attempt is reserved, as far as is known here [R-17].
        queued: runs wait for slots; one that ends may make another due.
        awaited: the same of runs that wait for others; crowded: of those that wait for places under limits.
        freed: told that a running operation gave back a place, which may be another run's by now.
        fenced: told that the store refused this worker what was its own: it may have been found dead [R-3].
        worker: this engine's identity, and lease: what hangs on it; both new after it was found dead [R-3].
        newest: the newest generation of each pipeline, as far as is known here [D-4].
        newer: pipelines of which a newer generation has workers that are alive.
        stopped: the store is closed or about to be.
        live: the runs this engine owns or is about to, by id.
        places: those under limits of this worker [R-11].
        context: what handlers see of context variables: those of whoever opened the engine, never a submitter's, which
            a recovered run would not have either.
        cancel_run: asks a run that this one waits for to cancel, too.
        entered: child runs were submitted.
        invalid_since: how often each invalid run was judged in vain, for the backoff of D-2.
    """

    def __init__(
        self,
        store: Store,
        system: System,
        loop: asyncio.AbstractEventLoop,
        worker: str,
        options: Options,
        middleware: Sequence[Middleware],
        observers: Sequence[Observer],
    ) -> None:
        self.store = store
        self.system = system
        self.loop = loop
        self.worker = worker
        self.lease = Lease(system)
        self.options = options
        self.middleware = tuple(middleware)
        self.observers = list(observers)
        self.context = copy_context()
        self.threads = Threads(loop, options.threads)
        self.waiters = Waiters(loop)
        self.places = Places(system.now_us)
        self.lines: dict[str, Line] = {}
        self.newest: dict[str, int] = {}
        self.newer: frozenset[str] = frozenset()
        self.live: dict[str, LiveRun] = {}
        self.draining = False
        self.held: frozenset[str] = frozenset()
        self.queued = False
        self.awaited = self.crowded = False
        self.stopped = False
        self.judged: dict[str, int] = {}
        self._trouble: dict[str, tuple[int, float]] = {}
        self.suspects = Suspects(loop, lambda: self.on_released(self.system.now_us()))
        self.on_released: Callable[[int | None], None] = lambda _due_us: None
        self.on_deadline: Callable[[str], None] = lambda _run_id: None
        self.cancel_run: Callable[[str], Awaitable[None]] = _nobody
        self.entered: Callable[[], None] = lambda: None
        self.freed: Callable[[], None] = lambda: None
        self.fenced: Callable[[], None] = lambda: None

    def adopt(self, live: LiveRun) -> None:
        """This engine owns the run, or is about to; its deadline is watched from now on [R-12]."""
        self.live[live.p.run_id] = live
        if live.submitted.deadline_us:
            self._watch_deadline(live)

    def release(self, live: LiveRun, due_us: int | None) -> None:
        """This engine does not own the run any more; it is due again at `due_us`, if that is not None."""
        if self.live.get(live.p.run_id) is live:
            del self.live[live.p.run_id]
            if live.deadline is not None:
                live.deadline.cancel()
            self.suspects.cleared(live)
            if live.line.limited:
                self.places.leave(live.p.run_id)
            self.on_released(due_us)

    async def load(self, run_id: str) -> LoadedRun | None:
        """Read a run that is owned here; while the store does not answer, wait with backoff [R-8].

        Raises:
            StoreUnavailable: the engine has stopped, and the next owner goes on; or nobody can use the store.
        """
        delay_s = 0.05
        while True:
            try:
                return await self.store.load(run_id)
            except StoreUnusable:
                raise
            except StoreUnavailable as error:
                if self.stopped:
                    raise
                logger.warning("run %s could not be read, trying again in %.2f s: %s", run_id, delay_s, error)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, 5.0)

    # --- runs in trouble: a bug of ours, or a store that does not answer for them

    def avoid(self, run_id: str) -> int:
        """Something unexpected happened to a run: leave it alone for a while, longer each time; until when."""
        times = self._trouble[run_id][0] if run_id in self._trouble else 0
        wait_us = min(FIRST_AVOIDANCE_US << min(times, 20), LAST_AVOIDANCE_US)
        self._trouble[run_id] = times + 1, self.loop.time() + wait_us / 1_000_000
        return self.system.now_us() + wait_us

    def avoided(self) -> set[str]:
        """Runs to be left alone now, whatever becomes of the wall clock; the store may call them due."""
        trouble, now_s = self._trouble, self.loop.time()
        left = {run_id for run_id, (_, until_s) in trouble.items() if until_s > now_s or run_id in self.live}
        return left | self.suspects.waiting

    def rested(self, run_id: str, *, invalid: bool) -> None:
        """A run rests in good order; what is remembered of its troubles is not needed any more."""
        if self._trouble:
            self._trouble.pop(run_id, None)
        if not invalid:
            self.judged.pop(run_id, None)

    def _watch_deadline(self, live: LiveRun) -> None:
        left_s = (live.submitted.deadline_us - self.system.now_us()) / 1_000_000
        live.deadline = self.loop.call_later(min(max(left_s, 0.0), 3600.0), self._deadline, live)

    def _deadline(self, live: LiveRun) -> None:
        if self.live.get(live.p.run_id) is not live:
            return
        if live.submitted.deadline_us > self.system.now_us():
            self._watch_deadline(live)
        else:
            self.on_deadline(live.p.run_id)

    def setting(self, live: LiveRun, now_us: int) -> Setting:
        """What planning is told."""
        may_start = not self.draining and live.line.id not in self.held
        line = live.line
        return Setting(
            now_us,
            may_start,
            self.system.chance(),
            line.policy,
            live,
            live.token,
            live.ends,
            live.cycle,
            live.told,
            live.gate if line.limited else None,
            line.id in self.newer,
        )

    def superseded(self, line: Line) -> bool:
        """Whether a newer generation of a pipeline is known [D-4]."""
        return self.newest.get(line.id, 0) > line.generation

    @property
    def serving(self) -> dict[str, int]:
        """The pipelines of this engine, with the generations that it deploys [D-4]."""
        return {line.id: line.generation for line in self.lines.values()}

    def disown(self) -> int:
        """Give up every run at once, writing nothing: they are others' by now [R-3]. How many there were."""
        self.lease.end()
        self.lease = Lease(self.system, -inf)
        lives = list(self.live.values())
        for live in lives:
            live.stop_handler("fenced")
            self.release(live, None)
        return len(lives)

    def emit(
        self,
        kind: EventKind,
        p: Projection | None = None,
        *,
        step: str = "",
        phase: str = "",
        attempt: int = 0,
        detail: str = "",
        item: int | None = None,
    ) -> None:
        """Tell the observers; what they raise is logged [R-15]. Call only where `observers` is not empty."""
        run_id = p.run_id if p is not None else ""
        pipeline = p.submitted.pipeline if p is not None and p.submitted is not None else ""
        event = Event(kind, self.system.now_us(), run_id, pipeline, step, phase, attempt, detail, item)
        for observer in self.observers:
            try:
                observer(event)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                logger.exception("an observer failed on %s", kind)
