"""A simulation of several workers on one store: leases, pauses, deaths, rolling deployments [R-2, R-3, D-4]."""

from __future__ import annotations

import asyncio

from perdure.core.future import Candidate
from perdure.errors import StoreUnavailable
from perdure.ports.clock import System
from perdure.runtime.client import Client
from perdure.runtime.deploying import deploy_all
from perdure.runtime.storetime import store_time
from perdure.testing.clock import EPOCH_US, VirtualLoop
from perdure.testing.simulation.play import PUNCTUAL_US, TURNS, Play
from perdure.testing.simulation.process import CONCURRENCY, Clock, Process, new_process
from perdure.testing.simulation.shared_store import SharedStore

MOST = 4
"""Processes at once."""

HOUR_US = 3_600_000_000


class Crowd(Play):
    """See the module."""

    SHARED = True

    def __init__(
        self,
        seed: int,
        loop: VirtualLoop,
        turns: int = TURNS,
        crash_at: int | None = None,
        *,
        limited: bool = False,
    ) -> None:
        super().__init__(seed, loop, turns, crash_at, limited=limited)
        self._client_store = SharedStore(self.history, self.dice, "client")
        self._crowd: list[Process] = []
        self._time: System | None = None
        self._free_since_us: dict[int, int] = {}
        self._wanted = self.dice.number(1, MOST)

    # --- processes

    async def _start(self) -> None:
        """Start workers with the designs of now, until as many live as are wanted."""
        if self._time is None:
            clock = Clock(self._loop, self.seed, -1)
            clock.skew_us = self.dice.choice((0, HOUR_US, -HOUR_US))
            self._time = await store_time(clock, self._client_store)
        self._crowd = [process for process in self._crowd if process.alive]
        while len(self._crowd) < self._wanted:
            await self._start_one()

    async def _start_one(self, ago: int = 0) -> None:
        """Start a worker, perhaps with older code; a start that fails is tried again."""
        while True:
            process = self._new_process(ago)
            if await process.up():
                self._crowd.append(process)
                return
            process.crash("because it could not start")
            await process.gone()
            await asyncio.sleep(self.dice.delay_s(1.0))

    def _new_process(self, ago: int = 0) -> Process:
        self._count += 1
        designs = [evolution.designs[max(-len(evolution.designs), -1 - ago)] for evolution in self._evolutions]
        process = new_process(
            self._count, self.seed, self.world, self.dice, designs, self._loop, meanwhile=self.cancel_now, ago=ago
        )
        if not ago:
            self._pipelines.update(process.pipelines)
            self._client = self._new_client()
        return process

    def _new_client(self) -> Client | None:
        return None if self._time is None else Client(self._client_store, self._time, self._pipelines)

    def _asked(self) -> Process | None:
        alive = [process for process in self._crowd if process.alive and process.engine is not None]
        return self.dice.choice(alive) if alive else None

    async def _living(self) -> Process:
        while True:
            process = self._asked()
            if process is not None:
                return process
            await self._start()

    async def _close(self) -> None:
        await super()._close()
        for process in self._crowd:
            process.crash("at the end")
            await process.gone()

    async def _leaves(self, process: Process) -> None:
        """It drains, or dies."""
        if self.dice.maybe(0.7):
            await process.drain()
        else:
            process.crash("to be replaced")
        await process.gone()

    # --- turns

    async def _happen(self, action: str) -> None:
        process = await self._living()
        store = _store(process)
        match action:
            case "crash":
                process.crash("of nothing")
            case "drain":
                await self._leaves(process)
                await self._start_one(ago=self.dice.choice((0, 0, 1, 2)))
            case "redeploy":
                evolution = self.dice.choice(self._evolutions)
                self.dice.count(f"redeploy: {evolution.mutate(self.dice, *self._stands(evolution.now.id))}")
                self.history.doors.redeploy()
                await self._leaves(process)
                await self._start_one()
            case "code deployed by hand":
                await self._deploy()
            case "worker joins":
                self._wanted = self.dice.number(1, MOST)
                await self._start()
            case "worker paused":
                store.pause(self.dice.delay_s(15.0))
            case "renewals fail":
                store.mute(self.dice.delay_s(20.0))
            case "all renewals fail":
                for one in self._crowd:
                    _store(one).mute(self.dice.delay_s(20.0))
            case "notices lost":
                store.deafen(self.dice.delay_s(8.0))
            case "row of a worker deleted":
                self.history.delete_worker(process.worker())
            case _:
                raise AssertionError(action)

    async def _deploy(self) -> bool:
        """Make the designs of now current by hand, as a rollback needs it; False where the store did not answer."""
        candidates = {name: Candidate(pipeline.topology) for name, pipeline in self._pipelines.items()}
        if self._time is None or not candidates:
            return False
        try:
            await deploy_all(self._client_store, self._time, candidates, "operator", force=True)
        except StoreUnavailable:
            return False
        return True

    # --- the end

    async def _replace_all(self) -> None:
        """Everybody leaves; then there are new workers with the designs of now, which are current."""
        for process in self._crowd:
            await process.drain()
        self._crowd = []
        await self._start()
        await self._deploy()

    async def _come_to_rest(self) -> None:
        self.dice.quiet = True
        for process in self._crowd:
            _store(process).soothe()
        await self._start()
        await self._start_one()
        await self._deploy()
        await super()._come_to_rest()

    async def _wait_for_rest(self) -> None:
        for _ in range(720):
            await self._living()
            await asyncio.sleep(5.0)
            if not self.callers.tasks and all(self._rests(run) for run in self.history.judges):
                return

    async def _inspect(self) -> None:
        while True:
            await asyncio.sleep(2.5)
            self.history.crew.check_owners()
            self._check_doors()
            now_us, free = self._loop.now_us, dict[int, int]()
            for process in self._crowd:
                engine = process.engine
                if process.alive and engine is not None and not process.draining and engine.running < CONCURRENCY:
                    free[process.number] = self._free_since_us.get(process.number, now_us)
            self._free_since_us = free
            for process in self._crowd:
                since_us = free.get(process.number, now_us)
                idle = now_us - since_us > PUNCTUAL_US and self.history.crew.holds_for(process.worker(), PUNCTUAL_US)
                if idle:
                    self._check_punctual(EPOCH_US + now_us - PUNCTUAL_US, self.history.workers[process.worker()].serves)


def _store(process: Process) -> SharedStore:
    if not isinstance(process.store, SharedStore):
        raise TypeError("a worker among others has a shared store")
    return process.store
