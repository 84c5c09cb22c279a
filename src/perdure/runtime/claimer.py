"""Finding due runs and giving them places: woken by events, never scanning what is not due [R-7, R-16]."""

from __future__ import annotations

import asyncio
import logging

from perdure.core.journal import NewerJournal
from perdure.core.operations import InvalidOp
from perdure.core.projection import Projection
from perdure.errors import CorruptJournal, StoreUnavailable
from perdure.ports.store import LoadedRun, Serving
from perdure.runtime.applying import judge
from perdure.runtime.driver import claim_and_drive
from perdure.runtime.guarding import quarantine
from perdure.runtime.host import Host
from perdure.runtime.indexing import invalid_state, may_start_waiting
from perdure.runtime.live import LiveRun
from perdure.runtime.loading import projected

logger = logging.getLogger("perdure")

SWEEP_S = 60.0
"""However quiet it is, due runs are looked for this often: a clock that was set, a wake-up that was lost [R-16]."""

LATE_US = 2_000_000
"""Workers of a newer generation have so much of a start at runs that are due [D-4]."""

POLL_S = 1.0
"""So often where other workers may leave something behind, and a notice may be lost [R-7]."""

PAGE = 256

LEFT_ALONE_US = 5_000_000
"""So long a run that was picked and cannot be begun now is left to others."""

AVOIDING_S = 0.1
"""How often due runs are looked for while some of them are left alone because of trouble with them."""


class Claimer:
    """Owns the engine's claim loop.

    Attributes:
        claiming: runs that were due and whose claim is not durable yet; each has a place.
        backlog: due runs may be left that found no place.
        quiet: set whenever nothing is owned or being claimed.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._kicked = asyncio.Event()
        self._next_due_us: int | None = None
        self._must_ask = True
        self._passed_over = False
        self._awaiting_claims = False
        self._reading = 0
        self._turn = 0
        self._picking = False
        self._picks = 0
        self._wanted: dict[str, None] = {}
        self._shared = host.store.shared
        self._task: asyncio.Task[None] | None = None
        self.claiming: dict[str, asyncio.Task[None]] = {}
        self.backlog = False
        self.quiet = asyncio.Event()

    def start(self) -> None:
        """Begin to claim."""
        self._task = self._host.loop.create_task(self._forever(), name="perdure-claimer")

    def cancel(self) -> None:
        """Claim no more, at once; runs being read are dropped unclaimed."""
        for task in (self._task, *self.claiming.values()):
            if task is not None:
                task.cancel()

    async def stop(self, timeout_s: float) -> None:
        """Claim no more; runs that are being read are let go, within `timeout_s`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        reading = [task for run_id, task in self.claiming.items() if run_id not in self._host.live]
        if reading:
            await asyncio.wait(reading, timeout=timeout_s)

    def pick_under_way(self) -> int | None:
        """A number that no other pick has, of the one under way: its runs are this engine's, which does not know them
        yet."""
        return self._picks if self._picking else None

    def known(self) -> set[str]:
        """Runs that this engine has, or is about to have."""
        return self._host.live.keys() | self.claiming.keys()

    @property
    def busy(self) -> bool:
        """Whether runs are being claimed, or about to be: those that are being picked are nowhere else by then."""
        return self._picking or bool(self.claiming)

    @property
    def free(self) -> int:
        """Places that nobody has."""
        host = self._host
        return host.options.capacity - len(host.live) - self._reading

    def claim_next(self, run_id: str) -> None:
        """A run has got what it waited for in this process: claim it as soon as there is a place [R-11]."""
        self._wanted[run_id] = None
        self._kicked.set()

    def due_at(self, due_us: int | None) -> None:
        """A run is due at `due_us`: look no later than then."""
        if self._told(due_us):
            self._kicked.set()

    def _told(self, due_us: int | None) -> bool:
        """Note a due time; whether it is the earliest known."""
        if due_us is None or (self._next_due_us is not None and due_us > self._next_due_us):
            return False
        self._next_due_us = due_us
        return True

    def place_freed(self, due_us: int | None) -> None:
        """A place became free, and its run is due again at `due_us`."""
        host = self._host
        self.due_at(0 if host.queued or host.awaited or host.crowded else due_us)
        if self.backlog or self._passed_over or self._wanted:
            self._kicked.set()
        self._maybe_quiet()

    def _maybe_quiet(self) -> None:
        if not self._host.live and not self.busy:
            self.quiet.set()

    async def _forever(self) -> None:
        """Claim what is due while there are places; sleep until something is due or somebody wakes us."""
        delay_s = 0.1
        while True:
            self._kicked.clear()
            try:
                wait_s = await self._claim_due()
                delay_s = 0.1
            except Exception as error:  # the loop that finds work must outlive any trouble
                expected = isinstance(error, StoreUnavailable)
                what = "looking for due runs failed, trying again in %.1f s: %s"
                logger.warning(what, delay_s, error, exc_info=None if expected else error)
                wait_s, delay_s = delay_s, min(delay_s * 2, 5.0)
            self._maybe_quiet()
            try:
                async with asyncio.timeout(wait_s):
                    await self._kicked.wait()
            except TimeoutError:
                self._must_ask = True  # the store, whatever was said

    async def _claim_due(self) -> float:
        """Start tasks for due runs; returns how long nothing is to be done, in seconds."""
        host = self._host
        self._take_wanted()
        if self._must_ask:
            self._next_due_us = None
            found_us = await (self._next_due() if self._shared else host.store.next_due_us())
            self._must_ask = False
            self._told(found_us)  # may be older than what was told while it was asked
        now_us, free = host.system.now_us(), self.free
        sweep_s = POLL_S if self._shared else SWEEP_S
        if self._next_due_us is None:
            return sweep_s
        if self._next_due_us > now_us:
            return min((self._next_due_us - now_us) / 1_000_000, sweep_s)
        if free <= 0:
            self.backlog = True
            return SWEEP_S
        if not self._shared:
            return await self._take(now_us, min(free, PAGE))
        self._picking = True
        try:
            return await self._pick(now_us, min(free, PAGE))
        finally:
            self._picking = False
            self._picks += 1

    async def _pick(self, now_us: int, limit: int) -> float:
        """Pick up to `limit` of the runs due now: nobody else gets them, and they are read all at once [R-3]."""
        host = self._host
        if not host.lease.holds:
            return POLL_S
        self._next_due_us, self._must_ask = None, True  # what becomes due from here on may be told late
        worker = host.worker
        picked: list[str] = []
        for serving, late_us in self._serving():
            picked += await host.store.pick(worker, now_us - late_us, limit - len(picked), self._turn, serving)
        self._turn += len(picked)
        avoided = host.avoided()
        left = [run_id for run_id in picked if run_id in avoided]
        if left:
            await self._give_back(worker, left, now_us + LEFT_ALONE_US)
        new = [run_id for run_id in picked if run_id not in avoided]
        for run_id, loaded in zip(new, await self._load_many(worker, new), strict=True):
            self.claiming[run_id] = host.loop.create_task(self._claim(run_id, loaded))
            self._reading += 1
        if len(picked) == limit:
            self.backlog, self._next_due_us, self._must_ask = True, now_us, False
            self._awaiting_claims = self.free <= 0
            return SWEEP_S if self._awaiting_claims else 0.0
        self.backlog = False
        return 0.0  # to ask when the next one is due

    def _serving(self) -> list[tuple[Serving, int]]:
        """What is picked at once, and what only later: a newer generation has workers, too [D-4]."""
        serving, newer = self._host.serving, self._host.newer
        if not newer:
            return [(serving, 0)]
        return [
            ({name: generation for name, generation in serving.items() if name not in newer}, 0),
            ({name: generation for name, generation in serving.items() if name in newer}, LATE_US),
        ]

    async def _next_due(self) -> int | None:
        found = [(await self._host.store.next_due_us(serving), late_us) for serving, late_us in self._serving()]
        return min((due_us + late_us for due_us, late_us in found if due_us is not None), default=None)

    async def _load_many(self, worker: str, picked: list[str]) -> list[LoadedRun | None]:
        try:
            found = {loaded.row.run.run_id: loaded for loaded in await self._host.store.load_many(picked)}
        except BaseException:
            await self._give_back(worker, picked, self._host.system.now_us())
            raise
        return [found.get(run_id) for run_id in picked]

    async def _give_back(self, worker: str, picked: list[str], due_us: int) -> None:
        """Runs that were picked and are not claimed are due again; where that fails, the heart finds them."""
        try:
            await self._host.store.unpick(worker, picked, due_us)
        except StoreUnavailable as error:
            logger.warning("%d runs could not be given back, which is tried again: %s", len(picked), error)

    def _take_wanted(self) -> None:
        """Claim runs that got a place under a limit; one that is being claimed, or owned, sees for itself."""
        while self._wanted and self.free > 0:
            run_id = next(iter(self._wanted))
            del self._wanted[run_id]
            if run_id not in self._host.live and run_id not in self.claiming:
                self._begin(run_id)

    def _begin(self, run_id: str) -> None:
        self.claiming[run_id] = self._host.loop.create_task(self._claim(run_id))
        self._reading += 1

    async def _take(self, now_us: int, limit: int) -> float:
        """Claim up to `limit` of the runs due now."""
        host = self._host
        avoid = host.avoided()
        self._next_due_us, self._must_ask = None, True  # what becomes due from here on may be told late
        asked = limit + len(self.claiming) + len(avoid)
        turn = self._turn - len(self.claiming)  # their places are found again, and passed over below
        due = await host.store.due(now_us, asked, turn)
        if len(due) == asked and any(run_id in host.live for run_id in due):  # being released: they may hide others
            due = await host.store.due(now_us, asked + len(host.live), turn)
        limit = min(limit, max(self.free, 0))  # places may have been taken meanwhile
        new = [run_id for run_id in due if not (run_id in host.live or run_id in self.claiming or run_id in avoid)]
        self._passed_over = any(run_id in host.live for run_id in due)
        for run_id in new[:limit]:
            self._begin(run_id)
            self._turn += 1
        self.backlog = len(new) >= limit
        if self.backlog:
            self._next_due_us, self._must_ask = now_us, False
            self._awaiting_claims = not self.free
            return SWEEP_S if self._awaiting_claims else 0.0
        self._awaiting_claims = bool(self.claiming)
        if self.claiming:
            return SWEEP_S
        if avoid:
            return AVOIDING_S  # the store calls due what is left alone for a while
        return SWEEP_S if due else 0.0  # all of them ours, their release in flight: looked for when one is let go

    def _claimed(self, run_id: str) -> None:
        """A claim is durable, or was given up: what is due may be asked for again without finding the run."""
        self.claiming.pop(run_id, None)
        if self._awaiting_claims and (self.backlog or not self.claiming):
            self._awaiting_claims = False
            self._kicked.set()

    async def _claim(self, run_id: str, picked: LoadedRun | None = None) -> None:
        """The task of a due run: read, reconcile, claim, drive.

        Args:
            picked: where it was picked, it is read already.
        """
        host = self._host
        loaded = picked
        live: LiveRun | None = None
        until_us: int | None = None
        try:
            if loaded is None:
                loaded = await host.store.load(run_id)
            live = await self._prepare(loaded, "" if picked is None else host.worker) if loaded is not None else None
        except StoreUnavailable as error:
            until_us = host.avoid(run_id)
            logger.warning("run %s could not be read: %s", run_id, error)
        except Exception:
            until_us = host.avoid(run_id)
            logger.exception("run %s could not be prepared: a bug in the engine; it is tried again", run_id)
        finally:
            self._reading -= 1
            if live is not None:
                live.task = self.claiming.get(run_id)
                host.adopt(live)
            else:
                self._claimed(run_id)
        if live is None or loaded is None:
            host.places.forget(run_id)
            if until_us is not None and picked is not None:
                await self._give_back(picked.row.state.worker, [run_id], until_us)
            self.place_freed(None)
            return
        await claim_and_drive(host, live, loaded, lambda: self._claimed(run_id))

    async def _prepare(self, loaded: LoadedRun, owner: str) -> LiveRun | None:
        """The run folded, with its line; None where nobody can run it.

        Args:
            owner: this worker, of a run that was picked.
        """
        host, state = self._host, loaded.row.state
        run_id, now_us = loaded.row.run.run_id, host.system.now_us()
        if state.worker != owner or (not owner and state.due_us is None):
            return None
        if loaded.row.waiting and not may_start_waiting(loaded.row, now_us):
            if owner:
                await self._give_back(owner, [run_id], now_us)
            await host.store.grant_slots(now_us)
            return None
        try:
            p = await projected(host.store, loaded)
        except (CorruptJournal, NewerJournal) as error:
            await quarantine(host, run_id, error)
            return None
        line = host.lines.get(loaded.row.run.pipeline)
        if line is None or p.submitted is None:
            await self._judge_unregistered(p, loaded)
            return None
        live = LiveRun(host, line, p, p.submitted)
        live.snapshot_version = loaded.snapshot.version if loaded.snapshot is not None else 0
        if host.suspects.admits(live):
            return live
        if owner:
            await self._give_back(owner, [run_id], now_us + LEFT_ALONE_US)
        return None

    async def _judge_unregistered(self, p: Projection, loaded: LoadedRun) -> None:
        """No app here knows the pipeline: invalid, until one does [D-1]."""
        host = self._host
        op = InvalidOp("pipeline-missing", f"pipeline {loaded.row.run.pipeline!r} is not bound in this app")
        due_us = judge(host, p.run_id, op)
        now_us = host.system.now_us()
        state = invalid_state(
            p, op, due_us, p.generation, "", now_us
        )  # whatever build knows the pipeline: it judges anew
        await host.store.set_index(p.locator, state, p.row_seq)
        self.due_at(due_us)
        host.waiters.wake(p.run_id)
        if host.observers:
            host.emit("invalid", p, detail=f"{op.reason}: {op.detail}")
