"""What the engine's tests work with: virtual worlds, stores that watch or misbehave, and short names.

A store here is always a real one, that watches, waits or fails at a named call, and does the rest as ever.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from perdure import App, Client, Engine, Invocation, Pipeline, Retry, Run, nothing
from perdure.core.facts import Fact
from perdure.define.step import AnyStep
from perdure.ports.observer import Event, EventKind, Observer
from perdure.ports.store import (
    Append,
    AppendResult,
    IndexState,
    LoadedRun,
    ScheduleState,
    Serving,
    WaitCycle,
)
from perdure.runtime.info import RunInfo
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.clock import EPOCH_US, VirtualSystem, run_virtual

P = ParamSpec("P")
T = TypeVar("T")

Inv: TypeAlias = Invocation[str, object]
"""What every handler of these tests is given: an input that is a text, and no dependencies."""

Line: TypeAlias = Pipeline[str, object, None]

PROMPT = Retry(initial=0, cap=0, jitter=0)
"""Retries at once."""

SECOND_US = 1_000_000


def virtually(test: Callable[Concatenate[VirtualSystem, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test whose first argument is a `VirtualSystem`, run in virtual time; the others are pytest's to give."""

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(lambda system: test(system, *args, **kwargs), limit=timedelta(days=60))

    signature = inspect.signature(test)
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    given = list(signature.parameters.values())[1:]
    vars(run)["__signature__"] = signature.replace(parameters=given)  # pytest reads it
    run.__dict__.update(test.__dict__)
    return run


def line(*steps: AnyStep[str, object], id: str = "line", **options: Any) -> Line:
    """A pipeline without output, of steps that take a text."""
    pipeline: Line = Pipeline(id=id, input=str, deps=object, steps=steps, output=nothing, **options)
    return pipeline


def app(*pipelines: Line, build: str = "test", retry: Retry = PROMPT, **options: Any) -> App:
    """An app of pipelines without dependencies."""
    return App(*(pipeline.bind() for pipeline in pipelines), store="memory://", build=build, retry=retry, **options)


class Watched(MemoryStore):
    """Holds the engine to the contract of the store port, and counts.

    Attributes:
        calls: how often each of the calls that matter was made.
        rows_loaded: journal rows that were read.
        broken: what the engine did that the port forbids.
    """

    def __init__(self, data: MemoryData) -> None:
        super().__init__(data)
        self.calls: Counter[str] = Counter()
        self.rows_loaded = 0
        self.broken: list[str] = []
        self._in_flight: Counter[str] = Counter()

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        self.calls["append"] += 1
        if append.token and self._in_flight[append.run_id]:
            self.broken.append(f"two appends of run {append.run_id} at once")
        future = super().append(append)
        if append.token:
            self._in_flight[append.run_id] += 1
            future.add_done_callback(lambda _: self._in_flight.subtract([append.run_id]))
        return future

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool | WaitCycle]:
        self.calls["set_index"] += 1
        return super().set_index(locator, state, tail_seq)

    async def load(self, run_id: str, /) -> LoadedRun | None:
        self.calls["load"] += 1
        loaded = await super().load(run_id)
        self.rows_loaded += 0 if loaded is None else len(loaded.rows)
        return loaded

    async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
        self.calls["due"] += 1
        return await super().due(now_us, limit, turn, serving)

    async def next_due_us(self, serving: Serving | None = None, /) -> int | None:
        self.calls["next_due_us"] += 1
        return await super().next_due_us(serving)


class Failing(Watched):
    """Raises what was planned at the named calls, before the call reaches the store."""

    def __init__(self, data: MemoryData) -> None:
        super().__init__(data)
        self._plans: dict[str, list[BaseException | None]] = {}
        self._always: dict[str, tuple[Callable[[Any], bool], BaseException]] = {}

    def plan(self, call: str, *errors: BaseException) -> None:
        """The next calls of this name raise these, one each."""
        self._plans.setdefault(call, []).extend(errors)

    def fail_nth(self, call: str, nth: int, error: BaseException) -> None:
        """Of the calls from now on the so-manieth raises this."""
        self._plans[call] = [*[None] * (nth - 1), error]

    def fail_if(self, call: str, chosen: Callable[[Any], bool], error: BaseException) -> None:
        """Every call of this name whose first argument is chosen raises this."""
        self._always[call] = chosen, error

    def _maybe(self, call: str, argument: object = None) -> None:
        planned = self._plans.get(call)
        error = planned.pop(0) if planned else None
        if error is None and call in self._always and self._always[call][0](argument):
            error = self._always[call][1]
        if error is not None:
            raise error

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        self._maybe("append", append)
        return super().append(append)

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool | WaitCycle]:
        self._maybe("set_index", locator)
        return super().set_index(locator, state, tail_seq)

    async def load(self, run_id: str, /) -> LoadedRun | None:
        self._maybe("load", run_id)
        return await super().load(run_id)

    async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
        self._maybe("due")
        return await super().due(now_us, limit, turn, serving)

    async def next_due_us(self, serving: Serving | None = None, /) -> int | None:
        self._maybe("next_due_us")
        return await super().next_due_us(serving)

    async def attention(self, worker: str, /) -> Sequence[str]:
        self._maybe("attention")
        return await super().attention(worker)

    async def schedules(self) -> Sequence[ScheduleState]:
        self._maybe("schedules")
        return await super().schedules()

    async def put_schedule(self, new: ScheduleState, known: ScheduleState | None, /) -> bool:
        self._maybe("put_schedule", new)
        return await super().put_schedule(new, known)


class Gated(Watched):
    """Calls of a name wait while their gate is shut; `arrived` tells that one came."""

    def __init__(self, data: MemoryData) -> None:
        super().__init__(data)
        self._gates: dict[str, asyncio.Event] = {}
        self.arrived: dict[str, asyncio.Event] = {}

    def shut(self, call: str) -> None:
        """From now on calls of this name wait."""
        self._gates[call] = asyncio.Event()
        self.arrived[call] = asyncio.Event()

    def open_gate(self, call: str) -> None:
        """Let all of them go, and those to come."""
        self._gates.pop(call).set()

    async def _pass(self, call: str) -> None:
        gate = self._gates.get(call)
        if gate is not None:
            self.arrived[call].set()
            await gate.wait()

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        if "append" not in self._gates:
            return super().append(append)
        return self._later("append", lambda: Watched.append(self, append))

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool | WaitCycle]:
        if "set_index" not in self._gates:
            return super().set_index(locator, state, tail_seq)
        return self._later("set_index", lambda: Watched.set_index(self, locator, state, tail_seq))

    def _later(self, name: str, call: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        async def waiting() -> T:
            await self._pass(name)
            return await call()

        return asyncio.ensure_future(waiting())

    async def load(self, run_id: str, /) -> LoadedRun | None:
        await self._pass("load")
        return await super().load(run_id)

    async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
        await self._pass("due")
        return await super().due(now_us, limit, turn, serving)

    async def next_due_us(self, serving: Serving | None = None, /) -> int | None:
        found = await super().next_due_us(serving)
        await self._pass("next_due_us")
        return found


class Events(list[Event]):
    """An observer that remembers, and can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def __call__(self, event: Event, /) -> None:
        self.append(event)
        self._news.set()

    def kinds(self) -> list[EventKind]:
        """What happened, in order."""
        return [event.kind for event in self]

    async def until(self, kind: EventKind, times: int = 1) -> Event:
        """Wait for the event of this kind, the so-manieth."""
        while len(found := [event for event in self if event.kind == kind]) < times:
            self._news.clear()
            await self._news.wait()
        return found[times - 1]


class World:
    """Memory that outlives engines, as a file does; each engine gets a store of its own on it.

    Attributes:
        stores: of all engines and clients so far, each held to the port's contract.
    """

    def __init__(self, system: VirtualSystem) -> None:
        self.system = system
        self.data = MemoryData()
        self.stores: list[Watched] = []

    def now_us(self) -> int:
        """Microseconds of virtual time."""
        return self.system.now_us() - EPOCH_US

    @asynccontextmanager
    async def engine(
        self,
        app: App,
        *,
        around: type[Watched] = Watched,
        observers: Sequence[Observer] = (),
        **options: Any,
    ) -> AsyncGenerator[Engine]:
        """An engine of `app` on this memory."""
        store = around(self.data)
        self.stores.append(store)
        async with app.engine(store=store, system=self.system, observers=observers, **options) as engine:
            yield engine
        assert not store.broken, store.broken

    def client(self, app: App) -> AbstractAsyncContextManager[Client]:
        """A client of `app` beside the engine."""
        return app.client(store=MemoryStore(self.data), system=self.system)


async def facts(run: Run[Any]) -> list[Fact]:
    """The run's journal."""
    return [recorded.fact for recorded in await run.journal()]


async def names(run: Run[Any]) -> list[str]:
    """Names of the facts in the run's journal."""
    return [type(fact).__name__ for fact in await facts(run)]


async def until(run: Run[Any], *statuses: str) -> RunInfo:
    """Wait until the run has one of these statuses."""
    async for info in run.watch():
        if info.status in statuses:
            return info
    raise AssertionError(f"the run ended without being {statuses}")


class Gate:
    """A place in a handler: it says that it was reached, and waits until it may go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.passes = 0

    async def __call__(self) -> None:
        self.passes += 1
        self.reached.set()
        await self.go.wait()

    async def until(self, passes: int) -> None:
        """Wait until it was reached so often."""
        while self.passes < passes:
            self.reached.clear()
            await self.reached.wait()
