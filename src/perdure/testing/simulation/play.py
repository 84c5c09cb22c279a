"""One simulation: a world, processes that come and go, callers, and what a seed lets happen to them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from perdure.errors import KeyTaken, NotAllowed, PerdureError, StoreUnavailable
from perdure.ports.store import Serving
from perdure.runtime.client import Client
from perdure.testing.clock import VirtualLoop
from perdure.testing.simulation import kin
from perdure.testing.simulation.asking import Asking
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.history import History
from perdure.testing.simulation.judge import Judge
from perdure.testing.simulation.process import CONCURRENCY, Clock, Process, new_process
from perdure.testing.simulation.store import FaultyStore
from perdure.testing.simulation.world import World

TURNS = 40
"""Things that happen before everything is left to come to rest."""

PUNCTUAL_US = 20_000_000
"""How long a due run may wait for an engine with a free place, whose reads fail and which leaves troublesome runs alone
for a while. Shorter than the time after which the engine looks for what nobody told it."""


class Play(Asking):
    """See the module; `run` plays one seed to its end."""

    SHARED = False

    def __init__(
        self,
        seed: int,
        loop: VirtualLoop,
        turns: int = TURNS,
        crash_at: int | None = None,
        *,
        limited: bool = False,
    ) -> None:
        self.seed = seed
        dice = Dice(seed, crash_at, shared=self.SHARED)
        super().__init__(dice, History(dice, lambda: loop.now_us, shared=self.SHARED, gates=seed if limited else None))
        self.history.on_violation = self._stop
        self.world = World(self.dice, self.history)
        self.history.world = self.world
        self._loop = loop
        self._turns = turns
        self._count = 0
        self._process: Process | None = None
        self._client_store = FaultyStore(self.history, self.dice, "client")
        self._main: asyncio.Task[None] | None = None
        self._unsettled_until_us = 0

    def _stop(self) -> None:
        """A rule is broken: what follows proves nothing."""
        if self._main is not None:
            self._main.cancel()
            self._main = None

    # --- the whole

    async def run(self) -> None:
        """Play it; what was broken is in `history.violations`."""
        self._main = asyncio.current_task()
        inspector = self._loop.create_task(self._inspect(), name="inspector")
        if self.dice.maybe(0.4):
            self.world.poison = (self._resource(), self.dice.choice(self._evolutions[0].now.steps[:2]).id)
        try:
            await self._client_store.open(owner=None)
            await self._start()
            for _ in range(self._turns):
                await self._turn()
            await self._come_to_rest()
            await self._heal()
        except asyncio.CancelledError:
            if not self.history.violations:
                raise
        finally:
            self._main = None
            inspector.cancel()
            await self._close()

    async def _close(self) -> None:
        for task in list(self.callers.tasks):
            task.cancel()
        if self._process is not None:
            self._process.crash("at the end")
            await self._process.gone()
        if self.callers.tasks:
            await asyncio.wait(list(self.callers.tasks))
        self._client_store.die()

    # --- processes

    async def _start(self) -> None:
        """Start the next process with the designs of now; a start that fails is tried again."""
        while self._process is None:
            process = self._new_process()
            if await process.up():
                self._process = process
                return
            process.crash("because it could not start")
            await process.gone()
            await asyncio.sleep(self.dice.delay_s(1.0))

    def _new_process(self) -> Process:
        self._count += 1
        designs = [evolution.now for evolution in self._evolutions]
        process = new_process(
            self._count, self.seed, self.world, self.dice, designs, self._loop, meanwhile=self.cancel_now
        )
        self._pipelines.update(process.pipelines)
        self._client = self._new_client()
        return process

    def _new_client(self) -> Client | None:
        """The client beside the engine, which knows what was deployed last."""
        return Client(self._client_store, Clock(self._loop, self.seed, -self._count), self._pipelines)

    async def _living(self) -> Process:
        """The process that serves now; a new one if the last has died."""
        process = self._process
        if process is not None and process.alive:
            return process
        if process is not None:
            await process.gone()
            self._process = None
            await asyncio.sleep(self.dice.delay_s(2.0))
        await self._start()
        return await self._living()

    def _asked(self) -> Process | None:
        return self._process

    # --- turns

    async def _turn(self) -> None:
        """One thing happens, and some time passes."""
        action = self.dice.action()
        self.history.note(f"-- {action}")
        match action:
            case "hold pipeline" | "release pipeline":
                self._hold_pipeline(action)
            case _ if action.startswith("submit"):
                await self._submit(action)
            case "cancel" | "hold" | "release" | "retry" | "resolve" | "abandon" | "send" | "wait for a result":
                self._operate(action)
            case "time passes":
                await asyncio.sleep(self.dice.delay_s(60.0))
            case "old runs collected":
                self._call(action, self._collect)
            case _:
                await self._happen(action)
        if self.dice.maybe(0.3):  # a supervisor starts it again, sooner or later
            await self._living()
        if self.dice.maybe(0.3):
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(self.dice.delay_s(0.5))

    async def _happen(self, action: str) -> None:
        """Something happens to a process."""
        process = await self._living()
        match action:
            case "crash":
                process.crash("of nothing")
                if self.dice.maybe(0.5):
                    await self._living()
            case "drain":
                await self._replace(process)
            case "crash while starting":
                await self._replace(process, start=False)
                starting = self._new_process()
                for _ in range(self.dice.number(0, 12)):
                    await asyncio.sleep(0)
                starting.crash("while starting")
                await starting.gone()
                await self._start()
            case "redeploy":
                evolution = self.dice.choice(self._evolutions)
                self.dice.count(f"redeploy: {evolution.mutate(self.dice, *self._stands(evolution.now.id))}")
                self.history.doors.redeploy()
                await self._replace(process)
            case "second owner":
                second = self._new_process()
                if await second.up() and process.alive:
                    self.history.blame("", "R-2", "a second engine owns the data")
                if second.refused:
                    self.dice.count("second owner refused")
                second.crash("because it is the second")
                await second.gone()
            case "index lost":
                await self._lose_index(process)
            case _:
                self._unsettled_until_us = self._loop.now_us + 70_000_000
                jump_us = round(self.dice.delay_s(1800.0) * 1_000_000)
                process.clock.skew_us += jump_us if action == "clock jumps ahead" else -jump_us

    def _stands(self, pipeline: str) -> tuple[list[str], list[str]]:
        """Steps that the runs of a pipeline stand at or have just done, and those being unwound."""
        found: list[str] = []
        unwinding: list[str] = []
        for judge in self.history.judges.values():
            if judge.ended is None and judge.submitted is not None and judge.submitted.pipeline == pipeline:
                found += [judge.pin] if judge.pin is not None else []
                found += judge.forward if len(judge.forward) <= 2 else []
                last = judge.last_unwind
                unwinding += [last] if last is not None and judge.unwind[last].status == "unresolved" else []
        return found + unwinding, unwinding

    async def _lose_index(self, process: Process) -> None:
        """All index rows and snapshots are gone while nobody looks; the next engine rebuilds them [J-11]."""
        await self._replace(process, start=False)
        for task in list(self.callers.tasks):
            task.cancel()
        while self.callers.tasks:
            await asyncio.wait(list(self.callers.tasks))
        self.history.lose_index()
        quiet, self.dice.quiet = self.dice.quiet, True
        await self._start()
        self.dice.quiet = quiet

    async def _replace(self, process: Process, *, start: bool = True) -> None:
        if self.dice.maybe(0.7):
            await process.drain()
        else:
            process.crash("to be replaced")
        await process.gone()
        self._process = None
        if start:
            await self._start()

    # --- the end

    async def _come_to_rest(self) -> None:
        """No more faults: every run ends, or waits for something that has a name [R-16]."""
        self.history.note("-- come to rest")
        self.dice.quiet = True
        self.world.healed.set()
        await self._wait_for_rest()
        for run_id, judge in self.history.judges.items():
            if judge.ended is None:
                self._check_waits(run_id)
                self.history.check_superseded(run_id)
                if self._stuck(judge):
                    kin.check_at_rest(judge)
                    if kin.reaches(self.history, run_id, kin.targets(judge), self._stuck):
                        self.history.blame(run_id, "R-13", "it waits in a circle, and nobody has noticed")

    def _stuck(self, judge: Judge) -> bool:
        """Whether a run goes on only when all those that it waits for have ended."""
        run = self.history.run(judge.run_id)
        ready = run is not None and run.state is not None and run.state.status == "ready"
        return ready and kin.waits(judge) and kin.needs_all(judge) and not self.history.held_lately(judge.run_id, 0)

    async def _wait_for_rest(self) -> None:
        for _ in range(600):
            clock = (await self._living()).clock  # a death that was dealt before may still come
            if clock.skew_us:
                clock.skew_us = 0
                self._unsettled_until_us = self._loop.now_us + 70_000_000
            await asyncio.sleep(30.0)
            if not self.callers.tasks and all(self._rests(run) for run in self.history.judges):
                return

    async def _inspect(self) -> None:
        """Look again and again whether what is due is taken where a place is free: no sweep is needed to find it."""
        free_since_us = 0
        while True:
            await asyncio.sleep(2.5)
            self._check_doors()
            process, now_us = self._process, self._loop.now_us
            engine = process.engine if process is not None else None
            settled = engine is not None and now_us >= self._unsettled_until_us
            if process is None or engine is None or not settled or process.draining or engine.running >= CONCURRENCY:
                free_since_us = now_us
            elif now_us - free_since_us > PUNCTUAL_US and process.up_since_us <= free_since_us:
                self._check_punctual(process.clock.now_us() - PUNCTUAL_US)

    def _check_doors(self) -> None:
        self.history.doors.inspect()

    def _check_punctual(self, since_us: int, serves: Serving | None = None) -> None:
        for run_id, judge in self.history.judges.items():
            run = self.history.run(run_id)
            if run is None or run.state is None or run.new is None:
                continue
            due_us = run.state.due_us
            if (
                judge.ended is None
                and due_us is not None
                and due_us < since_us
                and not self.history.held_lately(run_id, PUNCTUAL_US)
                and judge.told_us < self._loop.now_us - PUNCTUAL_US
                and (serves is None or run.state.generation <= serves.get(run.new.pipeline, -1))
            ):
                self.history.blame(run_id, "R-16", "due for long, a place is free, and nobody takes it")

    def _rests(self, run_id: str) -> bool:
        if self.history.judges[run_id].ended is not None:
            return True
        run = self.history.run(run_id)
        if run is None or run.state is None:
            return False
        asks = self.history.judges[run_id].waits_for_message() or kin.waits(self.history.judges[run_id])
        waits = run.waiting or asks or self.history.held_lately(run_id, 0)  # for its slot, a message, or its pipeline
        waits = waits or self.history.doors.waits(run_id)
        return run.state.status in ("held", "invalid") or (waits and not run.state.worker)

    def _check_waits(self, run_id: str) -> None:
        run = self.history.run(run_id)
        if run is None or run.state is None:
            self.history.blame(run_id, "R-16", "the run has no index row")
        elif not self._rests(run_id):
            self.history.blame(run_id, "R-16", f"the run neither ended nor waits: {run.state}")

    async def _heal(self) -> None:
        """Restore every step, mend every function, release every hold: now every run ends [E-3, D-2, R-17]."""
        self.history.note("-- heal")
        for evolution in self._evolutions:
            evolution.heal()
        for pipeline in sorted(self.history.pipelines_held):
            if self._client is not None:
                await self._client.release_pipeline(pipeline, actor="the end")
        await self._replace_all()
        rounds = 12 + 4 * len(self.history.judges) if self.history.doors.now.runs else 12
        for _ in range(
            rounds
        ):  # what was lost under a hold may hold once more, and whoever waits for a slot or a place
            # in flight comes after
            await self._release_all()
            await self._wait_for_rest()
            await self._give_up_split()
            if all(judge.ended is not None for judge in self.history.judges.values()):
                break
        engine = (await self._living()).engine
        for run_id, judge in self.history.judges.items():
            run = self.history.run(run_id)
            if judge.ended is None:
                self.history.blame(run_id, "R-16", f"nothing keeps the run, and it has not ended: {run and run.state}")
        self.history.doors.check_end()
        self.callers.check_acknowledged()
        if engine is not None:
            await self._verify(engine)

    async def _replace_all(self) -> None:
        """Whoever serves leaves in good order, and the designs of now are served."""
        process = await self._living()
        await process.drain()
        self._process = None
        await self._start()

    async def _release_all(self) -> None:
        """Nobody is held, and whoever waits for a message gets one."""
        engine = (await self._living()).engine
        for run_id, judge in list(self.history.judges.items()):
            if judge.ended is None and judge.held is not None and engine is not None:
                await engine.release(run_id, actor="the end")
            entry = judge.waiting()
            if judge.ended is None and entry is not None and engine is not None:
                with suppress(KeyTaken, NotAllowed):  # it ended or began to unwind at this moment
                    await engine.send(run_id, entry.message, "the end", actor="the end")

    async def _give_up_split(self) -> None:
        """A step that sleeps in one run and was called in another cannot be both: one is given up [D-1, D-7]."""
        engine = (await self._living()).engine
        for run_id, judge in list(self.history.judges.items()):
            split = self._invalid(run_id).startswith("shape-changed")
            if split and judge.ended is None and engine is not None:
                await engine.abandon(run_id, actor="the end")

    async def _verify(self, client: Client) -> None:
        """Everything recomputed from the facts agrees, also after the index is lost [J-11]."""
        await self._report(client)
        self.history.lose_index()
        await client.verify(repair=True)
        await self._report(client)

    async def _report(self, client: Client) -> None:
        report = await client.verify()
        for finding in report.findings:
            self.history.blame(finding.run_id, "J-11", f"verify: {finding.problem}")
        try:
            for run_id in self.history.judges:
                if run_id not in self.history.removed:
                    self.callers.check_result(run_id, await client.result(run_id, timeout=1.0))
        except (PerdureError, TimeoutError) as error:
            if not isinstance(error, StoreUnavailable):
                self.history.blame("", "D-3", f"the result of an ended run: {error!r}")
