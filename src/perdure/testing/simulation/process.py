"""One process of a simulation: an engine with its store, clock and code, from start to drain or death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from perdure.app import App
from perdure.define.pipeline import AnyPipeline
from perdure.errors import StoreInUse, StoreUnavailable
from perdure.runtime.engine import Engine
from perdure.testing.clock import VirtualLoop, VirtualSystem
from perdure.testing.simulation.building import build_all
from perdure.testing.simulation.calls import Tasks
from perdure.testing.simulation.designs import Design
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.gates import Gates
from perdure.testing.simulation.shared_store import SharedStore
from perdure.testing.simulation.store import FaultyStore
from perdure.testing.simulation.world import PAYLOAD_LIMIT, Seat, World

CONCURRENCY = 3


class Clock(VirtualSystem):
    """A process's clock and chance; the worker's id is readable in a trace."""

    def __init__(self, loop: VirtualLoop, seed: int, process: int) -> None:
        super().__init__(loop, seed * 1_000 + process)
        self._process = process
        self._lives = 0

    def worker_id(self) -> str:
        self._lives += 1
        return f"p{self._process}" if self._lives == 1 else f"p{self._process}.{self._lives}"


class Process:
    """See the module.

    Attributes:
        alive: until it died or has left.
        draining: it was told to leave.
        broken: its code has a broken output function or condition.
        engine: while it serves.
        pipelines: as it has them.
        calls: those that were made inside it, and end with it.
        up_since_us: when it began to serve.
        refused: somebody else owned the data.
    """

    def __init__(
        self, number: int, world: World, designs: list[Design], clock: Clock, store: FaultyStore, gates: Gates
    ) -> None:
        self.number = number
        self.clock = clock
        self.store = store
        self.alive = True
        self.draining = False
        self.broken = any(design.broken_output or design.broken_condition for design in designs)
        self._sleeps_us = {
            (design.id, one.id): round(one.sleep_s * 1_000_000) for design in designs for one in design.steps
        }
        self._patience_us = {
            (design.id, one.id): round(one.patience_s * 1_000_000) for design in designs for one in design.steps
        }
        self.engine: Engine | None = None
        self.calls: Tasks = {}
        self.refused = False
        self.up_since_us = 0
        history = self._history = world.history
        self._leave = asyncio.Event()
        self._settled = asyncio.Event()
        self._seat = Seat(world, number, self.crash, world.history.now_us, self.worker)
        bound = build_all(designs, self._seat, gates)
        self.pipelines: dict[str, AnyPipeline] = {one.pipeline.id: one.pipeline for one in bound}
        self._app = App(
            *bound,
            store="memory://",
            concurrency=CONCURRENCY,
            payload_limit=PAYLOAD_LIMIT,
            drain_timeout=2.0,
            block_limit=3600.0,
            build=f"b{number}",
        )
        history.processes[f"p{number}"] = self
        self.task = asyncio.get_running_loop().create_task(self._live(), name=f"process {number}")

    async def _live(self) -> None:
        try:
            async with self._app.engine(store=self.store, system=self.clock) as engine:
                self.engine = engine
                self.up_since_us = self._history.now_us()
                self._history.note(f"p{self.number} is up")
                self._settled.set()
                await self._leave.wait()
        except StoreInUse:
            self.refused = True
        except StoreUnavailable as error:
            self._history.note(f"p{self.number} gives up: {error}")
        except asyncio.CancelledError:
            if self.alive:
                raise
        finally:
            self.alive = self._seat.alive = False
            self.engine = None
            self._settled.set()
            self._history.note(f"p{self.number} is gone")

    def worker(self) -> str:
        """As whom it works; never empty."""
        shared = self.store.worker if isinstance(self.store, SharedStore) else ""
        return shared or f"p{self.number}"

    def sleep_us(self, pipeline: str, step: str) -> int:
        """How long a sleep takes in its code."""
        return self._sleeps_us.get((pipeline, step), 0)

    def patience_us(self, pipeline: str, step: str) -> int:
        """How long a wait for a message may take in its code; 0: for ever."""
        return self._patience_us.get((pipeline, step), 0)

    async def up(self) -> bool:
        """Wait until it serves, or has given up."""
        await self._settled.wait()
        return self.engine is not None and self.alive

    async def drain(self) -> None:
        """Tell it to stop, and wait until it has [R-6]."""
        self.draining = True
        self._history.note(f"p{self.number} drains")
        self._leave.set()
        await asyncio.wait([self.task])
        self._end_calls()

    def crash(self, why: str) -> None:
        """It is dead at once: nothing of it happens any more, and nothing it knew is told to anybody."""
        if not self.alive:
            return
        self._history.note(f"p{self.number} dies {why}")
        self.alive = self._seat.alive = False
        self._seat.died_us = self._history.now_us()
        self.store.die()
        if self.engine is not None:
            self.engine.abort()
            self.engine = None
        self.task.cancel()
        self._end_calls()

    def _end_calls(self) -> None:
        for call in list(self.calls):
            call.cancel()

    async def gone(self) -> None:
        """Wait until nothing of it is left."""
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self.task])


def new_process(
    number: int,
    seed: int,
    world: World,
    dice: Dice,
    designs: list[Design],
    loop: VirtualLoop,
    meanwhile: Callable[[str], None],
    ago: int = 0,
) -> Process:
    """A process on its way up; for `meanwhile` see `FaultyStore`.

    Args:
        ago: how many deployments ago the gates were that it has.
    """
    history = world.history
    made: list[Process] = []

    def crash(why: str) -> None:
        made[0].crash(why)

    kind = SharedStore if history.shared else FaultyStore
    store = kind(history, dice, f"p{number}", crash=crash, meanwhile=meanwhile)
    clock = Clock(loop, seed, number)
    if history.shared:
        clock.skew_us = round(dice.choice((0, 0, -3600, 3600, 300, -0.5)) * 1_000_000)
    deployed = history.doors.deployed
    process = Process(number, world, designs, clock, store, deployed[max(-len(deployed), -1 - ago)])
    made.append(process)
    return process
