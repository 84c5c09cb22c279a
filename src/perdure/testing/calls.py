"""What happens in and around the attempts of a run under test: what its script says, and what is remembered of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from perdure.core.facts import Phase
from perdure.core.projection import Projection
from perdure.define.invocation import Invocation
from perdure.define.items import ItemInvocation
from perdure.define.later import Later
from perdure.define.pipeline import AnyPipeline
from perdure.errors import InvalidArgument
from perdure.runtime.engine import Engine
from perdure.testing.clock import VirtualSystem
from perdure.testing.evolve import Call, Each, Moment, Version
from perdure.testing.standins import children_of, come_true

PATIENCE = 20
"""So many attempts under one version, and the run is left as it is."""

ACTOR = "evolve"
UNWINDING: frozenset[Moment] = frozenset({"before-unwind", "unwinding", "retrying-unwind", "after-unwind"})
INSIDE: frozenset[Moment] = frozenset({"running", "retrying", "unwinding", "retrying-unwind"})
WHOLE: frozenset[Moment] = frozenset({"delayed", "ended"})


CALLED: frozenset[str] = frozenset({"handler", "each", "loop"})


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
    done: int = 0
    messages: Mapping[str, object] = field(default_factory=dict[str, object])
    children: Mapping[str, object] = field(default_factory=dict[str, object])
    runs: Mapping[str, object] = field(default_factory=dict[str, object])

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            InvalidArgument: see `evolve`.
        """
        ids = {pipeline.id for pipeline in (self.old, *self.via, self.new)}
        if len(ids) > 1:
            raise InvalidArgument(f"versions of one pipeline have one id, not {', '.join(sorted(ids))}")
        if self.moment in WHOLE and self.at is not None:
            raise InvalidArgument(f"the moment {self.moment!r} is of the whole run; leave out `at`")
        if self.moment not in WHOLE and self.at not in self.old.steps:
            raise InvalidArgument(
                f"the moment {self.moment!r} needs `at=`, a step of the old pipeline, not {self.at!r}"
            )
        known = {step for pipeline in (self.old, *self.via, self.new) for step in pipeline.steps}
        for phase, scripted in self.script.items():
            for step in scripted.keys() - known:
                raise InvalidArgument(f"a {phase} result is given for {step!r}, which is in none of the pipelines")
        self._check_shapes()
        children = children_of((self.old, *self.via, self.new))
        for child in self.children.keys() - children.keys():
            raise InvalidArgument(f"an end is given for runs of {child!r}, of which there are no child runs")

    def _check_shapes(self) -> None:
        if self.at is None:
            return
        shape = self.old.steps[self.at].spec.shape
        if self.moment == "waiting" and shape in CALLED:
            raise InvalidArgument(f"step {self.at!r} calls a handler; a run inside it is `running` or `retrying`")
        if self.moment in ("running", "retrying") and shape not in CALLED:
            raise InvalidArgument(f"step {self.at!r} calls no handler; a run inside it is `waiting`")
        if self.done and (self.moment not in ("running", "retrying") or shape not in ("each", "loop")):
            raise InvalidArgument("`done` counts items or turns of a step that is `running` or `retrying`")


class Calls:
    """The middleware of a story."""

    def __init__(self, request: Request, system: VirtualSystem) -> None:
        self.r = request
        self.system = system
        self.calls: list[Call] = []
        self.version: Version = "old"
        self.run_id = ""
        self.engine: Engine | None = None
        self.left = PATIENCE
        self.stepping = False
        self.lost = 0
        self.inside = asyncio.Event()
        self.drained: asyncio.Task[None] | None = None

    async def projection(self) -> Projection:
        """The run as it is now."""
        raise NotImplementedError

    async def around(self, inv: Invocation[object, object], call: Callable[[], Awaitable[object]]) -> object:
        """Around every attempt: what the script says, and what is remembered of it."""
        r, step, phase = self.r, inv.step_id, inv.phase
        wanted: Phase = "unwind" if r.moment in UNWINDING else "forward"
        item = inv.index if isinstance(inv, ItemInvocation) else None
        if inv.run_id != self.run_id:
            self._impatient()
            return await call()
        within = self.stepping and r.moment in INSIDE and step == r.at and phase == wanted
        inside = within and (item is None or item >= r.done)
        if inside and item is not None:
            await self._until_done(step, item)
        index = len(self.calls)
        self.calls.append(Call(self.version, phase, step, inv.attempt, "lost", item))
        if item is None or inv.attempt > 1:
            self._impatient()
        if self.left == 0:
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
            await self._hold_between(within)
            raise
        self._note(index, "returned")
        if inside and r.moment in ("running", "unwinding"):
            await self._lost(index)
        await self._hold_between(within)
        return value

    def _impatient(self) -> None:
        self.left = max(self.left - 1, 0)

    async def _until_done(self, step: str, item: int) -> None:
        """So many items are recorded; those that are not to be done wait for that, and go on in their order."""
        while True:
            await self.system.sleep(0.001 * (item + 1))
            unit = (await self.projection()).units.get(step)
            if unit is None or unit.outputs + len(unit.failed) >= min(self.r.done, len(unit.items)):
                return

    def _note(self, index: int, outcome: str) -> None:
        call = self.calls[index]
        self.calls[index] = replace(call, outcome=outcome)

    async def _outcome(self, phase: Phase, step: str, call: Callable[[], Awaitable[object]]) -> object:
        if step not in self.r.script[phase]:
            return await call()
        result: object = self.r.script[phase][step]
        if isinstance(result, Each):
            number = sum(1 for c in self.calls if c.phase == phase and c.step == step)
            result = result.results[min(number, len(result.results)) - 1]
        return come_true(result)

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
        if self.engine is not None and self.drained is None:
            self.drained = asyncio.ensure_future(self.engine.drain())
            await asyncio.sleep(0)

    async def _lost(self, index: int) -> None:
        """The process ends here, before anything is recorded."""
        self._note(index, "lost")
        self.lost += 1
        unit = (await self.projection()).unit()
        if unit is None or self.lost >= len(unit.open):  # all that were in flight are
            self.inside.set()
        await asyncio.get_running_loop().create_future()

    async def _hold_between(self, within: bool) -> None:
        if self.stepping and not within and self.engine is not None:
            await self.engine.hold(self.run_id, actor=ACTOR)


async def _no_handler() -> object:
    return None
