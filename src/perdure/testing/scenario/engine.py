"""Scenarios against the engine on a store: by submit, handlers and the public client alone.

The run is kept at rest between lines by an operator's hold; a handler asks for it before it returns, so that the hold
is durable with the outcome. Conditions and the output function answer by what the script says next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Literal, assert_never, cast

import msgspec

from perdure.app import App
from perdure.core.facts import OperationSkipped, RunFailed, RunSucceeded
from perdure.core.retry import Retry
from perdure.core.topology import StepSpec
from perdure.define.decorator import step as define_step
from perdure.define.invocation import Invocation
from perdure.define.pipeline import Pipeline
from perdure.define.result import Succeeded
from perdure.define.signals import Fail
from perdure.define.step import AnyStep, retired
from perdure.errors import NotAllowed, PerdureError
from perdure.ports.clock import System
from perdure.ports.store import Store
from perdure.runtime.engine import Engine
from perdure.runtime.info import RunInfo
from perdure.testing.scenario.model import (
    Attempt,
    Cancel,
    Deploy,
    End,
    Entry,
    Invalid,
    Output,
    Resolve,
    Restart,
    Result,
    Scenario,
    Skip,
)
from perdure.testing.scenario.report import Difference, describe_end

_RETRY = Retry(initial=0, cap=0, jitter=0)
_PATIENCE_S = 20.0
_NOT_YET = "the script is not there yet"
_FAR_US = 1_000_000_000
_QUIET = frozenset({"held", "invalid", "corrupt", "succeeded", "failed", "canceled"})


class NotYet(Exception):  # a signal: nothing in the script asks for this
    """A condition or the output function was asked before the script comes to it."""

    def __init__(self) -> None:
        super().__init__(_NOT_YET)


class _Arrival(msgspec.Struct):
    """A handler was called and waits for what the script says."""

    phase: Literal["forward", "unwind"]
    step: str
    attempt: int
    verdict: asyncio.Future[tuple[Result, bool]]


class EngineDriver:
    """Drives one scenario on a store; raises `Difference` at the first line that is not what the engine chooses.

    Args:
        open_store: gives a store on the same data each time; every engine gets one of its own.
        system: time and chance, None for the real ones.
    """

    def __init__(self, scenario: Scenario, open_store: Callable[[], Store], system: System | None = None) -> None:
        self._scenario = scenario
        self._open_store = open_store
        self._system = system
        self._base = 0
        self._raising = False
        self._arrival: _Arrival | None = None
        self._arrived = asyncio.Event()
        self._crashed = asyncio.Event()
        self._stack = AsyncExitStack()
        self._steps: tuple[StepSpec, ...] = ()
        self._pipeline: Pipeline[None, object, None] | None = None
        self._engine: Engine | None = None
        self._run_id = ""

    async def run(self) -> None:
        """Every line in turn."""
        try:
            for index, entry in enumerate(self._scenario.entries):
                self._base = index
                try:
                    async with asyncio.timeout(_PATIENCE_S):
                        await self._line(index, entry)
                except TimeoutError:
                    raise Difference(self._scenario, entry, entry.text, "nothing, for ever") from None
                except NotAllowed as error:
                    raise Difference(self._scenario, entry, entry.text, str(error)) from None
        finally:
            if self._engine is not None:
                self._engine.abort()
            with suppress(PerdureError):
                await self._stack.aclose()

    async def _line(self, index: int, entry: Entry) -> None:
        match entry:
            case Deploy():
                self._raising = False
                self._steps = entry.steps
                await self._reopen(index)
            case Restart():
                await self._reopen(index)
            case Attempt():
                await self._attempt(index, entry)
            case Output():
                await self._output(entry)
            case Cancel():
                await self._rest()
                await self._client.cancel(self._run_id, actor="script")
                await self._settle()
            case Invalid():
                await self._invalid(entry)
            case Skip():
                await self._skip(entry)
            case Resolve():
                await self._resolve(entry)
            case End():
                await self._end(entry)
            case _ as unreachable:
                assert_never(unreachable)

    # --- lines

    async def _reopen(self, index: int) -> None:
        """A deployment or a restart: the engine ends, the store is opened anew, and a new engine starts."""
        if self._run_id:
            await self._rest()
        await self._stop()
        self._base = index + 1
        await self._start()
        if not self._run_id:
            pipeline = self._pipeline
            if pipeline is None:
                raise RuntimeError("a scenario begins with a deploy")
            run = await self._client.submit(pipeline, None, delay=_FAR_US / 1_000_000)
            self._run_id = run.id
            await self._rest()
        await self._settle()

    async def _attempt(self, index: int, entry: Attempt) -> None:
        await self._go()
        await self._settle()
        arrival = self._arrival
        verb = "run" if entry.phase == "forward" else "unwind"
        if arrival is None:
            raise await self._difference(entry, f"{verb} {entry.step}")
        chosen = f"{'run' if arrival.phase == 'forward' else 'unwind'} {arrival.step} #{arrival.attempt}"
        number = entry.attempt if entry.attempt is not None else arrival.attempt
        if chosen != f"{verb} {entry.step} #{number}":
            raise Difference(self._scenario, entry, f"{verb} {entry.step} #{number}", chosen)
        self._base = index + 1
        self._take_arrival()
        entries = self._scenario.entries
        following = entries[index + 1] if index + 1 < len(entries) else None
        hold = not isinstance(following, (Attempt, Output, Skip, End))
        arrival.verdict.set_result((entry.result, hold))
        if entry.result == "crash":
            await self._crashed.wait()
            self._crashed.clear()
            self._abort()
            await self._start()
        if hold:
            await self._settle()

    async def _output(self, entry: Output) -> None:
        self._raising = entry.raises
        await self._go()
        info = await self._settle()
        expected = "invalid" if entry.raises else "succeeded"
        if info.status != expected or (entry.raises and "output-raised" not in info.reason):
            raise await self._difference(entry, f"the output function, and then a run that is {expected}")

    async def _invalid(self, entry: Invalid) -> None:
        await self._go()
        info = await self._settle()
        if info.status != "invalid" or _NOT_YET in info.reason:
            raise await self._difference(entry, "an invalid run")

    async def _skip(self, entry: Skip) -> None:
        await self._go()
        await self._settle()
        facts = [recorded.fact for recorded in await self._client.journal(self._run_id)]
        if not any(isinstance(fact, OperationSkipped) and fact.step == entry.step for fact in facts):
            raise await self._difference(entry, f"{entry.step} skipped")

    async def _resolve(self, entry: Resolve) -> None:
        await self._rest()
        match entry.how:
            case "value":
                await self._client.resolve(self._run_id, entry.step, value=None, actor="script")
            case "skip":
                await self._client.resolve(self._run_id, entry.step, skip=True, actor="script")
            case "fail":
                await self._client.resolve(self._run_id, entry.step, fail="scripted", actor="script")
            case _ as unreachable:
                assert_never(unreachable)
        await self._settle()

    async def _end(self, entry: End) -> None:
        await self._go()
        info = await self._settle()
        if not info.ended:
            raise await self._difference(entry, entry.text)
        result = await self._client.result(self._run_id)
        if isinstance(result, Succeeded):
            chosen = describe_end(RunSucceeded(result.in_doubt))
        else:
            chosen = describe_end(
                RunFailed(
                    result.failure,
                    result.unwind_failures,
                    result.in_doubt,
                    result.half_unwound,
                    result.uncompensated,
                    result.unavailable,
                )
            )
        if chosen != entry.text:
            raise Difference(self._scenario, entry, entry.text, chosen)

    # --- rest and motion

    @property
    def _client(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("no engine is open")
        return self._engine

    async def _rest(self) -> None:
        """Keep the run from going on by itself."""
        info = await self._client.info(self._run_id)
        if not info.ended:
            await self._client.hold(self._run_id, actor="script")

    async def _go(self) -> None:
        """Let the run go on, unless it does already."""
        if self._arrival is not None:
            return
        info = await self._client.info(self._run_id)
        if info.status in ("held", "invalid") and not (info.status == "invalid" and self._scripted_invalid(info)):
            await self._client.retry(self._run_id, actor="script")

    def _scripted_invalid(self, info: RunInfo) -> bool:
        """The run is invalid because the script said so, and still says so."""
        return _NOT_YET not in info.reason and self._raising

    async def _settle(self) -> RunInfo:
        """Wait until a handler was called or the run rests."""
        watching = self._client.watch(self._run_id)
        arrived = asyncio.ensure_future(self._arrived.wait())
        try:
            while True:
                changed = asyncio.ensure_future(_next(watching))
                done, _ = await asyncio.wait({arrived, changed}, return_when=asyncio.FIRST_COMPLETED)
                if changed in done:
                    info = changed.result()
                    if self._arrival is not None or _rests(info):
                        return info
                else:
                    changed.cancel()
                    with suppress(asyncio.CancelledError):
                        await changed
                    return await self._client.info(self._run_id)
        finally:
            arrived.cancel()

    def _take_arrival(self) -> None:
        self._arrival = None
        self._arrived.clear()

    async def _difference(self, entry: Entry, expected: str) -> Difference:
        if self._arrival is not None:
            verb = "run" if self._arrival.phase == "forward" else "unwind"
            return Difference(self._scenario, entry, expected, f"{verb} {self._arrival.step} #{self._arrival.attempt}")
        info = await self._client.info(self._run_id)
        reason = f" ({info.reason})" if info.reason else ""
        return Difference(self._scenario, entry, expected, f"a run that is {info.status}{reason}")

    # --- engines

    async def _start(self) -> None:
        steps = tuple(self._step(spec) for spec in self._steps)
        self._pipeline = Pipeline(id="scenario", input=None, deps=object, steps=steps, output=self._output_function())
        app = App(self._pipeline.bind(), build="scenario", store="memory://")
        self._stack = AsyncExitStack()
        self._engine = await self._stack.enter_async_context(app.engine(store=self._open_store(), system=self._system))

    async def _stop(self) -> None:
        await self._stack.aclose()
        self._engine = None
        self._take_arrival()

    def _abort(self) -> None:
        """Lose the process: nothing more is written."""
        self._client.abort()
        self._engine = None
        self._take_arrival()

    # --- what an author would have written

    def _step(self, spec: StepSpec) -> AnyStep[None, object]:
        async def handler(inv: Invocation[None, object]) -> None:
            await self._handle("forward", spec.id, inv)

        async def unwind(inv: Invocation[None, object], state: None) -> None:
            await self._handle("unwind", spec.id, inv)

        async def unwind_in_doubt(inv: Invocation[None, object]) -> None:
            await self._handle("unwind", spec.id, inv)

        def when(inv: Invocation[None, object]) -> bool:
            return self._condition(spec.id)

        options: dict[str, Any] = {"when": when, "retry": _RETRY}
        if spec.unwind:
            options["unwind"] = unwind
        if spec.in_doubt:
            options["unwind_in_doubt"] = unwind_in_doubt
        define = cast("Callable[[object], AnyStep[None, object]]", define_step(spec.id, **options))
        defined = define(handler)
        return retired(defined) if spec.retired else defined

    async def _handle(self, phase: Literal["forward", "unwind"], step: str, inv: Invocation[None, object]) -> None:
        verdict: asyncio.Future[tuple[Result, bool]] = asyncio.get_running_loop().create_future()
        self._arrival = _Arrival(phase, step, inv.attempt, verdict)
        self._arrived.set()
        result, hold = await verdict
        if hold:
            await self._client.hold(self._run_id, actor="script")
        match result:
            case "ok":
                return
            case "error":
                raise RuntimeError("scripted")
            case "fail":
                raise Fail("scripted")
            case "crash":
                self._crashed.set()
                await asyncio.get_running_loop().create_future()
            case _ as unreachable:
                assert_never(unreachable)

    def _condition(self, step: str) -> bool:
        skips, following = self._ahead()
        if step in skips:
            return False
        if isinstance(following, Attempt):
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


def _rests(info: RunInfo) -> bool:
    far = info.due_us is not None and info.due_us - info.submitted_us > _FAR_US // 2
    return info.status in _QUIET or (info.status == "ready" and far)
