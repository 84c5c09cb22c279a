"""How `evolve` tells its story: one engine after the other on one memory store, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any, cast

import msgspec

from perdure.app import App, connect
from perdure.core.explain import explain
from perdure.core.facts import Fact, OperationSucceeded
from perdure.core.operations import EvaluateOp, Operation, RunOp, UnitOp, UnwindOp, WaitOp
from perdure.core.projection import ForwardEntry, Projection
from perdure.core.reconciler import reconcile
from perdure.core.topology import Topology
from perdure.core.unit import CHILD_SHAPES
from perdure.core.units import awaited_children
from perdure.define.fake import FakeRun
from perdure.define.invocation import PureInvocation
from perdure.define.pipeline import AnyPipeline
from perdure.define.step import Given
from perdure.errors import InvalidArgument, InvalidRun, NotFound, PayloadError
from perdure.runtime.client import Client
from perdure.runtime.engine import Engine
from perdure.runtime.info import RunInfo
from perdure.runtime.loading import project
from perdure.runtime.registry import topologies
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.calls import ACTOR, INSIDE, PATIENCE, Calls, Request
from perdure.testing.clock import VirtualSystem, run_virtual
from perdure.testing.evolve import Evolution, Version
from perdure.testing.standins import Others, Script

_DELAY_S = 86_400.0
_PAUSE_US = 60_000_000


def tell(request: Request, seed: int) -> Evolution[object]:
    """The whole story, in virtual time."""
    request.check()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_virtual(lambda system: _Story(request, system).tell(), seed=seed)
    raise InvalidArgument("evolve() runs an event loop of its own: call it from a plain `def` test")


class _Story(Calls):
    def __init__(self, request: Request, system: VirtualSystem) -> None:
        super().__init__(request, system)
        self.data = MemoryData()
        versions = (request.old, *request.via, request.new)
        self.others = Others(versions, request.deps, request.children, request.runs)
        self.messages = Script(request.messages)

    async def tell(self) -> Evolution[Any]:
        """Old, in between, new; then what became of it."""
        await self._old()
        for pipeline in self.r.via:
            await self._run_on("via", pipeline)
        if self.r.held or self.r.canceled:
            await self._from_outside()
        before = await self.projection()
        async with connect(self._store(), system=self.system) as client:
            known = topologies(await client.deployments(self.r.new.id))
        switch = explain(before, self.r.new.topology.after(known))
        await self._run_on("new", self.r.new)
        return await self._evolution(switch)

    def _store(self) -> MemoryStore:
        return MemoryStore(self.data)

    def _app(self, pipeline: AnyPipeline, version: str) -> App:
        deps = self.r.deps
        bound = pipeline.bind(lambda: nullcontext(deps))
        return App(
            bound, *self.others.bound(), store="memory://", build=version, middleware=(self.around,), block_limit=3600
        )

    # --- the old version

    async def _old(self) -> None:
        r, app = self.r, self._app(self.r.old, "old")
        async with app.client(store=self._store(), system=self.system) as client:
            run = await client.submit(cast("Any", r.old), r.input, delay=_DELAY_S)
            self.run_id = run.id
        self.stepping = r.moment != "ended"
        async with app.engine(store=self._store(), system=self.system) as engine:
            self.engine = engine
            await self._others_begin(engine)
            if r.moment == "delayed":
                return
            if self.stepping:
                await engine.hold(self.run_id, actor=ACTOR)
                await self._step_up_to(engine)
            else:
                await engine.retry(self.run_id, actor=ACTOR)
                info = await self._rest(engine)
                if not info.ended:
                    raise InvalidArgument(f"the run never ends under the old pipeline; it is {_standing(info)}")
        self.engine = None
        if await self._is_held_by_us():
            async with connect(self._store(), system=self.system) as client:
                await client.release(self.run_id, actor=ACTOR)

    async def _step_up_to(self, engine: Engine) -> None:
        """One step after the other until the run stands where it is wanted."""
        r = self.r
        while True:
            p = await self.projection()
            info = await engine.info(self.run_id)
            if (r.moment not in INSIDE and self._reached(p)) or await self._has_come(engine, p):
                return
            if info.ended or info.status in ("invalid", "corrupt"):
                raise InvalidArgument(f"the run never comes to {r.moment!r} of step {r.at!r}; it is {_standing(info)}")
            await engine.retry(self.run_id, actor=ACTOR)
            if await self._came_inside(engine):
                if r.moment in ("running", "unwinding"):
                    engine.abort()
                elif self.drained is not None:
                    await self.drained
                return

    async def _came_inside(self, engine: Engine) -> bool:
        """Wait until nothing is left to do for now, or until a handler says that this is the moment to stop."""
        idle = asyncio.ensure_future(engine.idle())
        inside = asyncio.ensure_future(self.inside.wait())
        await asyncio.wait({idle, inside}, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (idle, inside):
            waiting.cancel()
        await asyncio.gather(idle, inside, return_exceptions=True)
        return self.inside.is_set()

    def _reached(self, p: Projection) -> bool:
        r, at = self.r, self.r.at or ""
        if r.moment == "after":
            entry = p.forward.get(at)
            return entry is not None and entry.status != "unresolved"
        if r.moment == "after-unwind":
            undone = p.unwind.get(at)
            return undone is not None and undone.status != "unresolved"
        if r.moment == "waiting":
            return p.pin == at and p.suspended
        op = self._next(p)
        if r.moment == "before-unwind":
            return isinstance(op, UnwindOp) and op.step == at and at not in p.unwind
        if isinstance(op, RunOp):
            return op.step == at and not op.started
        if isinstance(op, (WaitOp, UnitOp)):
            return op.step == at and not op.open
        return isinstance(op, EvaluateOp) and self._leads_to(p, op.position, at)

    def _next(self, p: Projection) -> Operation:
        """What is next, were it not for our hold."""
        held, p.held = p.held, None
        op = reconcile(p, self.r.old.topology)
        p.held = held
        return op

    def _leads_to(self, p: Projection, position: int, at: str) -> bool:
        """Every step from this conditional one up to `at` will be skipped: they are asked in one append."""
        topology = self.r.old.topology
        for spec in topology.steps[position:]:
            if spec.id == at:
                return True
            bypassed = spec.retired or spec.id in p.passed
            if not bypassed and (not spec.conditional or self._holds(p, spec.id)):
                return False
        return False

    def _holds(self, p: Projection, step: str) -> bool:
        steps = self.r.old.steps
        states = [(s, entry.state) for s, entry in p.forward.items() if entry.state is not None and s in steps]
        given = [Given(steps[s], state) for s, state in states]
        run = FakeRun(self.r.old, self.r.input, self.r.deps, given, run_id=self.run_id)
        inv: PureInvocation[Any, Any] = PureInvocation(run, steps[step])
        when = steps[step].when
        try:
            return when is None or bool(when(inv))
        except Exception:  # the engine will meet the same, and says what comes of it
            return True

    # --- every version

    async def _run_on(self, version: Version, pipeline: AnyPipeline) -> None:
        """Deploy a version and let the run get on as far as it does."""
        self.version, self.left, self.stepping, self.drained = version, PATIENCE, False, None
        self.inside.clear()
        await self._others_go_on()
        async with self._app(pipeline, version).engine(store=self._store(), system=self.system) as engine:
            self.engine = engine
            info = await self._rest(engine)
            if info.status == "held" and version == "new" and self.r.held:
                await engine.release(self.run_id, actor=ACTOR)
                await self._rest(engine)
        self.engine = None

    async def _rest(self, engine: Engine) -> RunInfo:
        """Wait until the run has ended, is invalid or held, or was tried in vain too often."""
        while True:
            gave_up = await self._came_inside(engine)
            if gave_up and self.drained is not None:
                await self.drained
            info = await engine.info(self.run_id)
            if gave_up or info.status not in ("ready", "running"):
                return info
            p = await self.projection()
            if await self._send(engine, p):
                continue
            if info.due_us is None and not await self._others_are_due(p):
                return info
            due_us = info.due_us or self.system.now_us() + _PAUSE_US
            await self.system.sleep(max(due_us - self.system.now_us(), 0) / 1_000_000)

    # --- what the run waits for

    async def _others_begin(self, engine: Engine) -> None:
        """Runs that this one waits for are there, and stand still until they are let go."""
        if self.stepping:
            for pipeline in self.others.pipelines:
                await engine.hold_pipeline(pipeline, actor=ACTOR)
        await self.others.submit(engine.store, self.system)

    async def _others_go_on(self) -> None:
        async with connect(self._store(), system=self.system) as client:
            for hold in await client.pipeline_holds():
                if hold.actor == ACTOR:
                    await client.release_pipeline(hold.pipeline, actor=ACTOR)

    async def _others_are_due(self, p: Projection) -> bool:
        """Whether runs that this one waits for have something to do yet, so that time may bring their end."""
        ids = awaited_children(p, p.pin) if p.pin in p.units else ()
        entry = p.parked()
        for run_id in (*ids, *(entry.awaits if entry is not None and entry.shape == "runs" else ())):
            async with connect(self._store(), system=self.system) as client:
                self._impatient()
                if self.left and (await client.info(run_id)).status == "ready":
                    return True
        return False

    async def _send(self, engine: Engine, p: Projection) -> bool:
        """Send the message that the run waits for, if somebody does."""
        entry = p.parked()
        if entry is None or entry.shape != "message" or p.messages.get(entry.awaits[0]):
            return False
        name = entry.awaits[0]
        if not self.messages.has(name):
            return False
        value = self.messages.take(name)
        try:
            await engine.send(self.run_id, name, value, actor=ACTOR)
        except PayloadError:  # no step of this version says what it is: the sender has plain JSON
            await engine.send(self.run_id, name, msgspec.to_builtins(value), actor=ACTOR)
        return True

    async def _has_come(self, engine: Engine, p: Projection) -> bool:
        """Bring what an open step waits for while the run is held; whether it then stands where it is wanted."""
        step, entry = p.pin, p.pinned()
        if step is None or entry is None or entry.shape == "handler":
            return False
        unit = p.unit()
        if unit is None and not p.suspended:
            return False
        if p.suspended and p.held is None:
            await engine.hold(self.run_id, actor=ACTOR)
        if not await self._bring(engine, p, entry):
            raise InvalidArgument(f"the run never comes to {self.r.moment!r} of step {self.r.at!r}; it {_lacks(entry)}")
        unit = p.unit()
        if unit is not None and unit.shape in CHILD_SHAPES and unit.sent < len(unit.items):
            return False
        if unit is not None and unit.shape not in CHILD_SHAPES and not unit.complete:
            return False
        at, position = self.r.at or "", self.r.old.topology.position[step]
        if self.r.moment == "after":
            return step == at
        return self.r.moment == "before" and self._leads_to(p, position + 1, at)

    async def _bring(self, engine: Engine, p: Projection, entry: ForwardEntry) -> bool:
        match entry.shape:
            case "message":
                sent = await self._send(engine, p) or bool(p.messages.get(entry.awaits[0]))
            case "sleep":
                sent = False
            case "runs" | "child" | "children":
                await self._others_go_on()
                await engine.idle()
                for pipeline in self.others.pipelines:
                    await engine.hold_pipeline(pipeline, actor=ACTOR)
                sent = True
            case _:
                sent = True
        if not sent and entry.until_us:
            await self.system.sleep(max(entry.until_us - self.system.now_us(), 0) / 1_000_000)
        return sent or entry.until_us > 0

    # --- from outside, and afterwards

    async def _from_outside(self) -> None:
        async with connect(self._store(), system=self.system) as client:
            if self.r.held:
                await client.hold(self.run_id, actor=ACTOR)
            if self.r.canceled:
                await client.cancel(self.run_id, actor=ACTOR)

    async def _is_held_by_us(self) -> bool:
        held = (await self.projection()).held
        return held is not None and held.actor == ACTOR

    async def projection(self) -> Projection:
        """See base."""
        async with connect(self._store(), system=self.system) as client:
            loaded = await client.store.load(self.run_id)
        if loaded is None:
            raise NotFound(f"run {self.run_id} is gone")
        return project(loaded)

    async def _evolution(self, switch: Any) -> Evolution[Any]:
        app = self._app(self.r.new, "new")
        async with app.client(store=self._store(), system=self.system) as client:
            info = await client.info(self.run_id)
            facts = tuple(recorded.fact for recorded in await client.journal(self.run_id))
            known = topologies(await client.deployments(self.r.new.id))
            result, reason = await self._result(client, info)
        p = await self.projection()
        end = explain(p, self.r.new.topology.after(known))
        status = "invalid" if info.ended and result is None else info.status
        return Evolution(
            run_id=self.run_id,
            calls=tuple(self.calls),
            status=status,
            reason=reason,
            result=result,
            passed=_ordered(p.passed, self.r.new.topology),
            skipped=tuple(step for step, entry in p.forward.items() if entry.status == "skipped"),
            bypassed=tuple(s.step for s in end.steps if s.fate == "retired"),
            unwound=_undone(facts),
            switch=switch,
            end=end,
            facts=facts,
        )

    async def _result(self, client: Client, info: RunInfo) -> tuple[Any, str]:
        if not info.ended:
            return None, info.reason
        try:
            return await client.result(self.run_id), info.reason
        except InvalidRun as error:  # its output is not what the new pipeline returns [P-3]
            return None, f"{error.reason}: {error.detail}"


def _undone(facts: tuple[Fact, ...]) -> tuple[str, ...]:
    return tuple(f.step for f in facts if isinstance(f, OperationSucceeded) and f.phase == "unwind")


def _ordered(steps: set[str], topology: Topology) -> tuple[str, ...]:
    return tuple(sorted(steps, key=lambda step: (topology.position.get(step, len(topology)), step)))


def _lacks(entry: ForwardEntry) -> str:
    return f"waits for message {entry.awaits[0]!r}, which `messages` does not have" if entry.awaits else "waits"


def _standing(info: RunInfo) -> str:
    return f"{info.status} ({info.reason})" if info.reason else info.status
