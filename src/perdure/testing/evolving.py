"""How `evolve` tells its story: one engine after the other on one memory store, in virtual time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

from perdure.app import App, connect
from perdure.core.explain import explain
from perdure.core.facts import Fact, OperationSucceeded, Phase
from perdure.core.operations import EvaluateOp, Operation, RunOp, UnitOp, UnwindOp, WaitOp
from perdure.core.projection import Projection
from perdure.core.reconciler import reconcile
from perdure.core.topology import Topology
from perdure.define.fake import FakeRun
from perdure.define.invocation import Invocation, PureInvocation
from perdure.define.later import Later
from perdure.define.pipeline import AnyPipeline
from perdure.define.step import Given
from perdure.errors import InvalidArgument, InvalidRun, NotFound
from perdure.runtime.client import Client
from perdure.runtime.engine import Engine
from perdure.runtime.info import RunInfo
from perdure.runtime.loading import project
from perdure.runtime.registry import topologies
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.clock import VirtualSystem, run_virtual
from perdure.testing.evolve import Call, Each, Evolution, Moment, Version

PATIENCE = 20
"""So many attempts under one version, and the run is left as it is."""

_DELAY_S = 86_400.0
_ACTOR = "evolve"
_UNWINDING: frozenset[Moment] = frozenset({"before-unwind", "unwinding", "retrying-unwind", "after-unwind"})
_INSIDE: frozenset[Moment] = frozenset({"running", "retrying", "unwinding", "retrying-unwind"})
_WHOLE: frozenset[Moment] = frozenset({"delayed", "ended"})


class AttemptFailed(Exception):
    """The attempt that a test wants to see fail and be tried again."""


@dataclass(frozen=True)
class Request:
    """What `evolve` was asked; see there."""

    old: AnyPipeline
    via: tuple[AnyPipeline, ...]
    new: AnyPipeline
    input: object
    deps: object
    at: str | None
    moment: Moment
    script: Mapping[Phase, Mapping[str, object]]
    held: bool
    canceled: bool

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            InvalidArgument: see `evolve`.
        """
        ids = {pipeline.id for pipeline in (self.old, *self.via, self.new)}
        if len(ids) > 1:
            raise InvalidArgument(f"versions of one pipeline have one id, not {', '.join(sorted(ids))}")
        if self.moment in _WHOLE and self.at is not None:
            raise InvalidArgument(f"the moment {self.moment!r} is of the whole run; leave out `at`")
        if self.moment not in _WHOLE and self.at not in self.old.steps:
            raise InvalidArgument(
                f"the moment {self.moment!r} needs `at=`, a step of the old pipeline, not {self.at!r}"
            )
        known = {step for pipeline in (self.old, *self.via, self.new) for step in pipeline.steps}
        for phase, scripted in self.script.items():
            for step in scripted.keys() - known:
                raise InvalidArgument(f"a {phase} result is given for {step!r}, which is in none of the pipelines")


def tell(request: Request, seed: int) -> Evolution[object]:
    """The whole story, in virtual time."""
    request.check()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_virtual(lambda system: _Story(request, system).tell(), seed=seed)
    raise InvalidArgument("evolve() runs an event loop of its own: call it from a plain `def` test")


class _Story:
    def __init__(self, request: Request, system: VirtualSystem) -> None:
        self.r = request
        self.system = system
        self.data = MemoryData()
        self.calls: list[Call] = []
        self.version: Version = "old"
        self.run_id = ""
        self.engine: Engine | None = None
        self.left = PATIENCE
        self.stepping = False
        self.inside = asyncio.Event()
        self.drained: asyncio.Task[None] | None = None

    async def tell(self) -> Evolution[Any]:
        """Old, in between, new; then what became of it."""
        await self._old()
        for pipeline in self.r.via:
            await self._run_on("via", pipeline)
        if self.r.held or self.r.canceled:
            await self._from_outside()
        before = await self._projection()
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
        return App(bound, store="memory://", build=version, middleware=(self._around,), block_limit=3600)

    # --- the old version

    async def _old(self) -> None:
        r, app = self.r, self._app(self.r.old, "old")
        async with app.client(store=self._store(), system=self.system) as client:
            run = await client.submit(cast("Any", r.old), r.input, delay=_DELAY_S)
            self.run_id = run.id
        self.stepping = r.moment != "ended"
        async with app.engine(store=self._store(), system=self.system) as engine:
            self.engine = engine
            if r.moment == "delayed":
                return
            if self.stepping:
                await engine.hold(self.run_id, actor=_ACTOR)
                await self._step_up_to(engine)
            else:
                await engine.retry(self.run_id, actor=_ACTOR)
                info = await self._rest(engine)
                if not info.ended:
                    raise InvalidArgument(f"the run never ends under the old pipeline; it is {_standing(info)}")
        self.engine = None
        if await self._is_held_by_us():
            async with connect(self._store(), system=self.system) as client:
                await client.release(self.run_id, actor=_ACTOR)

    async def _step_up_to(self, engine: Engine) -> None:
        """One step after the other until the run stands where it is wanted."""
        r = self.r
        while True:
            p = await self._projection()
            info = await engine.info(self.run_id)
            if r.moment not in _INSIDE and self._reached(p):
                return
            if info.ended or info.status in ("invalid", "corrupt"):
                raise InvalidArgument(f"the run never comes to {r.moment!r} of step {r.at!r}; it is {_standing(info)}")
            await engine.retry(self.run_id, actor=_ACTOR)
            parked = p.parked()
            if parked is not None and parked.shape == "sleep":  # nothing but time wakes it
                await self.system.sleep(max(p.due_us - self.system.now_us(), 0) / 1_000_000)
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
        async with self._app(pipeline, version).engine(store=self._store(), system=self.system) as engine:
            self.engine = engine
            info = await self._rest(engine)
            if info.status == "held" and version == "new" and self.r.held:
                await engine.release(self.run_id, actor=_ACTOR)
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
            due_us = info.due_us or 0
            await self.system.sleep(max(due_us - self.system.now_us(), 0) / 1_000_000)

    async def _around(self, inv: Invocation[Any, Any], call: Callable[[], Awaitable[object]]) -> object:
        """Around every attempt: what the script says, and what is remembered of it."""
        r, step, phase = self.r, inv.step_id, inv.phase
        wanted: Phase = "unwind" if r.moment in _UNWINDING else "forward"
        inside = self.stepping and r.moment in _INSIDE and step == r.at and phase == wanted
        index = len(self.calls)
        self.calls.append(Call(self.version, phase, step, inv.attempt, "lost"))
        self.left -= 1
        if not self.left:
            await self._drain()
            self.inside.set()
        try:
            if inside and r.moment in ("retrying", "retrying-unwind"):
                value = await self._failing(phase, step)
            else:
                value = await self._outcome(phase, step, call)
        except BaseException as error:
            self._note(index, type(error).__name__)
            if inside and r.moment in ("running", "unwinding"):
                await self._lost(index)
            await self._hold_between(inside)
            raise
        self._note(index, "returned")
        if inside and r.moment in ("running", "unwinding"):
            await self._lost(index)
        await self._hold_between(inside)
        return value

    def _note(self, index: int, outcome: str) -> None:
        call = self.calls[index]
        self.calls[index] = Call(call.version, call.phase, call.step, call.attempt, outcome)

    async def _outcome(self, phase: Phase, step: str, call: Callable[[], Awaitable[object]]) -> object:
        if step not in self.r.script[phase]:
            return await call()
        result: object = self.r.script[phase][step]
        if isinstance(result, Each):
            number = sum(1 for c in self.calls if c.phase == phase and c.step == step)
            result = result.results[min(number, len(result.results)) - 1]
        if isinstance(result, BaseException):
            raise result
        if inspect.isclass(result) and issubclass(result, BaseException):
            raise result
        return result

    async def _failing(self, phase: Phase, step: str) -> object:
        """End this attempt with an error that is tried again, or with `Later`, when nothing is started any more."""
        await self._drain()
        self.inside.set()
        if step in self.r.script[phase]:
            value = await self._outcome(phase, step, _no_handler)
            if type(value) is Later:
                return value
        raise AttemptFailed(f"an attempt of {step} that fails")

    async def _drain(self) -> None:
        if self.engine is not None:
            self.drained = asyncio.ensure_future(self.engine.drain())
            await asyncio.sleep(0)

    async def _lost(self, index: int) -> None:
        """The process ends here, before anything is recorded."""
        self._note(index, "lost")
        self.inside.set()
        await asyncio.get_running_loop().create_future()

    async def _hold_between(self, inside: bool) -> None:
        if self.stepping and not inside and self.engine is not None:
            await self.engine.hold(self.run_id, actor=_ACTOR)

    # --- from outside, and afterwards

    async def _from_outside(self) -> None:
        async with connect(self._store(), system=self.system) as client:
            if self.r.held:
                await client.hold(self.run_id, actor=_ACTOR)
            if self.r.canceled:
                await client.cancel(self.run_id, actor=_ACTOR)

    async def _is_held_by_us(self) -> bool:
        held = (await self._projection()).held
        return held is not None and held.actor == _ACTOR

    async def _projection(self) -> Projection:
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
        p = await self._projection()
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


async def _no_handler() -> object:
    return None


def _undone(facts: tuple[Fact, ...]) -> tuple[str, ...]:
    return tuple(f.step for f in facts if isinstance(f, OperationSucceeded) and f.phase == "unwind")


def _ordered(steps: set[str], topology: Topology) -> tuple[str, ...]:
    return tuple(sorted(steps, key=lambda step: (topology.position.get(step, len(topology)), step)))


def _standing(info: RunInfo) -> str:
    return f"{info.status} ({info.reason})" if info.reason else info.status
