"""A small stage for one run: a scripted store, a handler that waits for the test, an engine and a client beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager

from perdure import App, Engine, Invocation, Pipeline, Retry, step
from perdure.errors import StoreUnavailable
from perdure.ports.store import Append, AppendResult, LoadedRun
from perdure.runtime.client import Client
from perdure.storage.memory import MemoryStore
from perdure.storage.memory_data import MemoryData
from perdure.testing.clock import VirtualSystem

PATIENCE = 3_000
"""Turns of the loop at one instant: a loop that runs hot is found."""


class Scripted(MemoryStore):
    """A store that is late or silent when a test says so.

    Attributes:
        silent: so many of the next reads of a run fail.
        before_load: called once before the next read of a run.
        late: how long an append takes to be sent, and its answer to come back, in seconds.
    """

    def __init__(self, data: MemoryData) -> None:
        super().__init__(data)
        self.silent = 0
        self.before_load: Callable[[], Coroutine[object, object, None]] | None = None
        self.late: Callable[[Append], tuple[float, float]] = lambda append: (0.0, 0.0)

    async def load(self, run_id: str, /) -> LoadedRun | None:
        hook, self.before_load = self.before_load, None
        if hook is not None:
            await hook()
        if self.silent:
            self.silent -= 1
            raise StoreUnavailable("not now")
        return await super().load(run_id)

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        sent_s, answered_s = self.late(append)
        if not sent_s and not answered_s:
            return super().append(append)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AppendResult] = loop.create_future()

        def done(result: asyncio.Future[AppendResult]) -> None:
            loop.call_later(answered_s, answer.set_result, result.result())

        loop.call_later(sent_s, lambda: super(Scripted, self).append(append).add_done_callback(done))
        return answer


class Stage:
    """What the handlers of a test wait for and leave behind."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.started = asyncio.Event()
        self.stopped_s: list[float] = []
        self.attempts: list[int] = []


Inv = Invocation[str, Stage]


@step("wait/v1", retry=Retry(initial=1.0, jitter=0.0))
async def wait(inv: Inv) -> str:
    stage = inv.deps
    stage.attempts.append(inv.attempt)
    stage.started.set()
    if inv.input == "flaky" and inv.attempt == 1:
        raise OSError("not yet")
    try:
        await stage.go.wait()
    except asyncio.CancelledError:
        stage.stopped_s.append(asyncio.get_running_loop().time())
        raise
    if inv.input.startswith("memo"):
        await inv.memo("note", lambda: "kept", type=str)
        if inv.input == "memo, then wait":
            await asyncio.get_running_loop().create_future()
    return "done"


@step("last/v1")
async def last(inv: Inv) -> str:
    return inv.input


found: Pipeline[str, Stage, str] = Pipeline(
    id="found",
    input=str,
    deps=Stage,
    steps=(wait, last),
    output=lambda inv: inv[last],
    resource=lambda _: "one",
)
"""Two steps, the first of which waits for the test."""


class Play:
    """An engine on a scripted store, and a client beside it."""

    def __init__(self, system: VirtualSystem) -> None:
        self.system = system
        self.data = MemoryData()
        self.store = Scripted(self.data)
        self.stage = Stage()

    @asynccontextmanager
    async def on(self, what: Pipeline[str, Stage, str] = found) -> AsyncGenerator[tuple[Engine, Client]]:
        """Give the engine, and a client in another process."""

        @asynccontextmanager
        async def deps() -> AsyncGenerator[Stage]:
            yield self.stage

        app = App(what.bind(deps), store="memory://", concurrency=2)
        async with (
            app.engine(store=self.store, system=self.system) as engine,
            app.client(store=MemoryStore(self.data), system=VirtualSystem(self.system.loop, 99)) as client,
        ):
            yield engine, client
            assert (await engine.verify()).findings == ()
