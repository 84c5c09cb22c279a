"""A scenario's run on a store: engines that come and go, and a run that rests or goes on as the script wants it.

The run is kept at rest between lines by an operator's hold; a handler asks for it before it returns, so that the hold
is durable with the outcome. Conditions and the output function answer by what the script says next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, NoReturn, assert_never

import msgspec

from perdure.app import App
from perdure.core.facts import Fact, Phase, SegmentAttemptStarted
from perdure.core.future import Candidate
from perdure.core.operations import HeldOp
from perdure.define.invocation import Invocation
from perdure.define.items import ItemInvocation
from perdure.define.pipeline import AnyPipeline, Pipeline
from perdure.define.signals import Fail
from perdure.errors import KeyTaken
from perdure.ports.clock import System
from perdure.ports.store import Store
from perdure.runtime.deploying import deploy_all
from perdure.runtime.engine import Engine
from perdure.runtime.info import RunInfo
from perdure.testing.scenario.author import Author
from perdure.testing.scenario.clock import MovedSystem
from perdure.testing.scenario.model import (
    Attempt,
    End,
    Entry,
    Output,
    Result,
    Scenario,
    ScriptStep,
    Skip,
    Sleep,
    Take,
    Wait,
    Work,
)
from perdure.testing.scenario.report import Difference
from perdure.testing.scenario.scripted import other_ids

NOT_YET = "the script is not there yet"
FAR_US = 1_000_000_000
_ASK_AGAIN_S = 0.005
_QUIET = frozenset({"held", "invalid", "corrupt", "succeeded", "failed", "canceled"})
_GOES_ON = (Attempt, Output, Skip, Sleep, Wait, Take, Work, End)
"""Before such a line the run need not be kept at rest."""


class NotYet(Exception):  # a signal: nothing in the script asks for this
    """A condition or the output function was asked before the script comes to it."""

    def __init__(self) -> None:
        super().__init__(NOT_YET)


class Verdict(msgspec.Struct):
    """Another handler was called, of an item or of another run, and waits for what the script says."""

    run_id: str
    attempt: int
    result: asyncio.Future[str]


class _Arrival(msgspec.Struct):
    """A handler was called and waits for what the script says."""

    phase: Phase
    step: str
    attempt: int
    verdict: asyncio.Future[tuple[Result, str | None, bool]]


class Stage:
    """The engines of one scenario and its run.

    Args:
        open_store: gives a store on the same data each time; every engine gets one of its own.
        system: time and chance, None for the real ones.
    """

    def __init__(self, scenario: Scenario, open_store: Callable[[], Store], system: System | None = None) -> None:
        self._scenario = scenario
        self._open_store = open_store
        self._system = MovedSystem(system)
        self._author = Author(scenario, self)
        self._base = 0
        self._raising = False
        self._arrival: _Arrival | None = None
        self._arrived = asyncio.Event()
        self._items: dict[tuple[str, int], Verdict] = {}
        """Handlers of items that run, by step and index."""
        self._others: dict[str, Verdict] = {}
        """Handlers of other runs that run, by their input."""
        self._other_ids: dict[str, str] = {}
        """The runs that some step waits for."""
        self._taking = ""
        """The step that a line lets take a message."""
        self._stirred = asyncio.Event()
        self._crashed = asyncio.Event()
        self._stack = AsyncExitStack()
        self._steps: tuple[ScriptStep, ...] = ()
        self._pipeline: Pipeline[None, object, None] | None = None
        self._engine: Engine | None = None
        self._lost = ""
        """The worker whose process was lost."""
        self._run_id = ""
        self._held_at: int | None = None
        """Claims of the run when the pipeline was held; None while it is not."""
        self._opened = 0
        """Waits that the script has shown so far."""
        self._opened_us = 0
        """When the last of them began."""

    # --- rest and motion

    @property
    def _client(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("no engine is open")
        return self._engine

    async def _rest(self) -> None:
        """Keep the run from going on by itself."""
        if self._held_at is not None:
            return
        info = await self._client.info(self._run_id)
        if not info.ended:
            await self._client.hold(self._run_id, actor="script")

    async def _go(self) -> None:
        """Let the run go on, unless it does already."""
        if self._arrival is not None or self._held_at is not None:
            return
        info = await self._client.info(self._run_id)
        if info.status == "invalid" and self._scripted_invalid(info):
            return
        if info.status in ("held", "invalid") or await self._is_held(info):
            with suppress(KeyTaken):  # it has ended meanwhile
                await self._client.retry(self._run_id, actor="script")

    async def _is_held(self, info: RunInfo) -> bool:
        """Whether the facts say so: where workers pick runs, one that rests may have an owner that has not seen it."""
        return not info.ended and isinstance((await self._client.explain(self._run_id)).next, HeldOp)

    def _scripted_invalid(self, info: RunInfo) -> bool:
        """The run is invalid because the script said so, and still says so."""
        return NOT_YET not in info.reason and self._raising

    async def _settle(self, *, items: bool = False) -> RunInfo:
        """Wait until a handler was called or the run rests; `items`: handlers of items are handlers."""
        if self._held_at is not None:
            return await self._quiet()
        if items:
            return await self._until(self._items_or_rest)
        watching = self._client.watch(self._run_id)
        arrived = asyncio.ensure_future(self._arrived.wait())
        changed = asyncio.ensure_future(_next(watching))
        try:
            while True:
                done, _ = await asyncio.wait({arrived, changed}, return_when=asyncio.FIRST_COMPLETED)
                if changed in done:
                    info = changed.result()
                    if self._arrival is not None or self._rests(info):
                        return info
                    changed = asyncio.ensure_future(_next(watching))
                else:
                    changed.cancel()
                    with suppress(asyncio.CancelledError):
                        await changed
                    return await self._client.info(self._run_id)
        finally:
            arrived.cancel()
            changed.cancel()

    async def _items_or_rest(self, info: RunInfo) -> bool:
        return bool(self._items) or self._arrival is not None or self._rests(info)

    async def _until(self, true: Callable[[RunInfo], Awaitable[bool]]) -> RunInfo:
        """Wait until something is true. An append of items changes nothing that a watcher hears of: it is asked for."""
        pause_s = _ASK_AGAIN_S
        while True:
            self._stirred.clear()
            info = await self._client.info(self._run_id)
            if await true(info):
                return info
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stirred.wait()
            pause_s = min(2 * pause_s, _ASK_AGAIN_S * 8)  # a store that is slow is not made slower

    async def _quiet(self) -> RunInfo:
        """Wait until the engine has nothing to do now, or a handler was called."""
        arrived, idle = asyncio.ensure_future(self._arrived.wait()), asyncio.ensure_future(self._client.idle())
        await asyncio.wait({arrived, idle}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()
        idle.cancel()
        return await self._client.info(self._run_id)

    def _rests(self, info: RunInfo) -> bool:
        far = info.due_us is not None and info.due_us - self._system.now_us() > FAR_US // 2
        if info.worker or info.attention:  # picked by a worker, also a run that is held, and about to be looked at
            return False
        parked = info.due_us is None and not info.canceling  # who is canceled waits for child runs only
        return info.status in _QUIET or (info.status == "ready" and (far or parked))

    def _goes_on(self, index: int) -> bool:
        """The line after this one lets the run go on."""
        entries = self._scenario.entries
        return index + 1 < len(entries) and isinstance(entries[index + 1], _GOES_ON)

    async def _facts(self) -> list[Fact]:
        return [recorded.fact for recorded in await self._client.journal(self._run_id)]

    async def _claims(self) -> int:
        return sum(isinstance(fact, SegmentAttemptStarted) for fact in await self._facts())

    def _take_arrival(self) -> None:
        self._arrival = None
        self._arrived.clear()

    def _forget_handlers(self) -> None:
        """The process is gone."""
        self._take_arrival()
        self._items.clear()
        self._others.clear()

    async def _difference(self, entry: Entry, expected: str) -> Difference:
        if self._arrival is not None:
            verb = "run" if self._arrival.phase == "forward" else "unwind"
            return Difference(self._scenario, entry, expected, f"{verb} {self._arrival.step} #{self._arrival.attempt}")
        if self._items:
            return Difference(self._scenario, entry, expected, self._works())
        info = await self._client.info(self._run_id)
        reason = f" ({info.reason})" if info.reason else ""
        return Difference(self._scenario, entry, expected, f"a run that is {info.status}{reason}")

    def _works(self) -> str:
        """The items that run, as a line would have them."""
        words = [f"{index}#{verdict.attempt}" for (_, index), verdict in sorted(self._items.items())]
        return " ".join([*(f"work {step}" for step in sorted({step for step, _ in self._items})), *words])

    # --- engines

    async def _start(self) -> None:
        steps = self._author.steps(self._steps)
        self._pipeline = Pipeline(id="scenario", input=None, deps=object, steps=steps, output=self._output_function())
        other = self._author.other.bind()
        app = App(self._pipeline.bind(), other, build="scenario", store="memory://", drain_timeout=0)
        self._stack = AsyncExitStack()
        store = self._open_store()
        if store.shared:
            await self._as_one_of_many(store, self._pipeline)
        self._engine = await self._stack.enter_async_context(app.engine(store=store, system=self._system))

    async def _as_one_of_many(self, store: Store, pipeline: AnyPipeline) -> None:
        """Where workers share a store: a lost process was found dead, and what starts now is deployed [R-3, D-5]."""
        await store.open(owner=None)
        await store.retire(self._lost)
        await deploy_all(store, self._system, {pipeline.id: Candidate(pipeline.topology)}, "script", force=True)
        await store.close()

    async def _stop(self) -> None:
        await self._stack.aclose()
        self._engine = None
        self._forget_handlers()

    def _abort(self) -> None:
        """Lose the process: nothing more is written."""
        self._lost = self._client.worker
        self._client.abort()
        self._engine = None
        self._forget_handlers()

    # --- what an author would have written

    async def handle(self, phase: Phase, step: str, inv: Invocation[None, object]) -> str:
        """See `Script.handle`."""
        verdict: asyncio.Future[tuple[Result, str | None, bool]] = asyncio.get_running_loop().create_future()
        self._arrival = _Arrival(phase, step, inv.attempt, verdict)
        self._arrived.set()
        self._stirred.set()
        result, arm, hold = await verdict
        if hold:
            await self._client.hold(self._run_id, actor="script")
        match result:
            case "ok" | "later":
                return arm or result
            case "error":
                raise RuntimeError("scripted")
            case "fail":
                raise Fail("scripted")
            case "crash":
                self._crashed.set()
                return await _for_ever()
            case _ as unreachable:
                assert_never(unreachable)

    async def handle_item(self, step: str, inv: ItemInvocation[None, object, int]) -> str:
        """See `Script.handle_item`."""
        verdict = self._items[step, inv.index] = _verdict(inv)
        self._stirred.set()
        try:
            return await _done(verdict)
        finally:
            if self._items.get((step, inv.index)) is verdict:
                del self._items[step, inv.index]

    async def handle_other(self, inv: Invocation[str, object]) -> None:
        """See `Script.handle_other`."""
        verdict = self._others[inv.input] = _verdict(inv)
        self._stirred.set()
        try:
            await _done(verdict)
        finally:
            if self._others.get(inv.input) is verdict:
                del self._others[inv.input]

    def others(self, step: ScriptStep) -> list[str]:
        """See `Script.others`."""
        return [self._other_ids[name] for name in other_ids(step)]

    def condition(self, step: str) -> bool:
        """See `Script.condition`."""
        skips, following = self._ahead()
        if step == self._taking:
            return True
        if step in skips:
            return False
        if isinstance(following, (Attempt, Sleep, Wait, Take, Work)):
            return True
        raise NotYet

    def _output_function(self) -> Callable[[Invocation[None, object]], None]:
        def output(inv: Invocation[None, object]) -> None:
            if self._raising:
                raise RuntimeError("scripted")
            _, following = self._ahead()
            if not isinstance(following, Output):
                raise NotYet
            if following.raises:
                raise RuntimeError("scripted")

        return output

    def _ahead(self) -> tuple[set[str], Entry | None]:
        """The steps that the script skips next, and the entry after that."""
        skips: set[str] = set()
        for entry in self._scenario.entries[self._base :]:
            if not isinstance(entry, Skip):
                return skips, entry
            skips.add(entry.step)
        return skips, None


async def _next(watching: AsyncIterator[RunInfo]) -> RunInfo:
    return await anext(watching)


def _verdict(inv: Invocation[Any, object]) -> Verdict:
    return Verdict(inv.run_id, inv.attempt, asyncio.get_running_loop().create_future())


async def _done(verdict: Verdict) -> str:
    result = await verdict.result
    if result == "error":
        raise RuntimeError("scripted")
    if result == "fail":
        raise Fail("scripted")
    return result


async def _for_ever() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise RuntimeError("a lost process went on")
