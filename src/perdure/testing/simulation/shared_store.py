"""The store of a worker among others: it loses renewals, notices and answers, and hangs while its process is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TypeVar

from msgspec.structs import replace

from perdure.errors import StoreUnavailable
from perdure.ports.store import (
    ANYTHING,
    Append,
    AppendResult,
    Change,
    IndexState,
    LoadedRun,
    Serving,
    WaitCycle,
    WorkerRow,
)
from perdure.testing.clock import EPOCH_US
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.history import History
from perdure.testing.simulation.store import FaultyStore, pass_on

T = TypeVar("T")


class SharedStore(FaultyStore):
    """See the module.

    Attributes:
        worker: as whom its process works; empty before it has registered, and for a client.
    """

    def __init__(
        self,
        history: History,
        dice: Dice,
        name: str,
        *,
        crash: Callable[[str], None] | None = None,
        meanwhile: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(history, dice, name, crash=crash, meanwhile=meanwhile)
        self.worker = ""
        self._awake = asyncio.Event()
        self._awake.set()
        self._mute_until_us = 0
        self._deaf_until_us = 0
        self._listeners: list[Callable[[Change], None]] = []
        self._missed = False
        self._waits: set[asyncio.Task[None]] = set()

    # --- what happens to it

    def pause(self, for_s: float) -> None:
        """The process stands still: nothing is sent, and no answer is heard, until it goes on."""
        if self._awake.is_set() and self._alive:
            self._history.note(f"{self._name} is paused for {for_s:.1f} s")
            self._awake.clear()
            self._history.crew.hears(self.worker, nothing=True)
            asyncio.get_running_loop().call_later(for_s, self.go_on)

    def go_on(self) -> None:
        """It goes on, and does not know that it stood still."""
        if not self._awake.is_set():
            self._history.note(f"{self._name} goes on")
            self._awake.set()
            self._hear()

    def mute(self, for_s: float) -> None:
        """For so long no renewal reaches the store."""
        self._history.note(f"renewals of {self._name} fail for {for_s:.1f} s")
        self._mute_until_us = self._history.now_us() + round(for_s * 1_000_000)

    def deafen(self, for_s: float) -> None:
        """For so long it is told of no change; after that it knows that it has missed something."""
        self._history.note(f"{self._name} hears of no change for {for_s:.1f} s")
        self._deaf_until_us = self._history.now_us() + round(for_s * 1_000_000)
        self._history.crew.hears(self.worker, nothing=True)
        asyncio.get_running_loop().call_later(for_s, self._hear)

    def soothe(self) -> None:
        """Nothing of all that any more."""
        self._mute_until_us = self._deaf_until_us = 0
        self.go_on()
        self._hear()

    @property
    def _deaf(self) -> bool:
        return not self._awake.is_set() or self._history.now_us() < self._deaf_until_us

    def _hear(self) -> None:
        if self._deaf:
            return
        self._history.crew.hears(self.worker, nothing=False)
        if self._missed:
            self._missed = False
            for listener in self._listeners:
                self._if_alive(listener, ANYTHING)

    def on_change(self, listener: Callable[[Change], None], /) -> None:
        def unless_deaf(change: Change) -> None:
            if self._deaf:
                self._missed = True
            else:
                listener(change)

        self._listeners.append(listener)
        super().on_change(unless_deaf)

    def die(self) -> None:
        super().die()
        for waits in self._waits:
            waits.cancel()

    # --- appends: sent when it goes on, in the name under which they were made

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        if append.token:
            self._history.crew.appends(append, self.worker)
        return self._when_awake(lambda: super(SharedStore, self).append(append))

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool | WaitCycle]:
        return self._when_awake(lambda: super(SharedStore, self).set_index(locator, state, tail_seq))

    def _when_awake(self, send: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        """Send now, or when it goes on; the answer is heard then, too."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        async def hear(done: asyncio.Future[T]) -> None:
            await self._awake.wait()
            if self._alive:
                pass_on(done, answer)

        def heard(done: asyncio.Future[T]) -> None:
            if done.cancelled():
                answer.cancel()
            elif self._awake.is_set():
                pass_on(done, answer)
            else:
                self._later_on(hear(done))

        async def go() -> None:
            await self._awake.wait()
            if self._alive and not self._closed:
                send().add_done_callback(heard)
            else:
                answer.cancel()

        if self._awake.is_set():
            send().add_done_callback(heard)
        else:
            self._later_on(go())
        return answer

    def _later_on(self, work: Coroutine[object, object, None]) -> None:
        waits = asyncio.get_running_loop().create_task(work)
        self._waits.add(waits)
        waits.add_done_callback(self._waits.discard)

    # --- everything else

    async def _read(self) -> None:
        await self._awake.wait()
        await super()._read()

    async def _answered(self, work: Awaitable[T]) -> T:
        """An answer, heard when the process goes on."""
        found = await work
        await self._awake.wait()
        self._check_alive()
        return found

    async def load(self, run_id: str, /) -> LoadedRun | None:
        return await self._answered(super().load(run_id))

    async def pick(self, worker: str, now_us: int, limit: int, turn: int, serving: Serving, /) -> Sequence[str]:
        picked = await self._answered(super().pick(worker, now_us, limit, turn, serving))
        if picked and self._dice.hit("answer to a pick lost"):
            raise StoreUnavailable("simulated: the answer was lost")
        return picked

    async def unpick(self, worker: str, run_ids: Sequence[str], due_us: int, /) -> int:
        await self._read()
        return await super().unpick(worker, run_ids, due_us)

    async def clock_us(self) -> int | None:
        await self._awake.wait()
        return EPOCH_US + self._history.now_us()

    async def register(self, worker: WorkerRow, /) -> None:
        while self._in_flight and worker.id != self.worker:  # after what was sent under the former name
            await asyncio.wait(list(self._in_flight))
        sent_us = self._history.now_us()
        await super().register(worker)
        self._history.crew.beats(worker.id)
        if self.worker not in ("", worker.id):
            self._dice.count("worker goes on under another name")
        self.worker = worker.id
        if self._deaf:
            self._history.crew.hears(worker.id, nothing=True)
        self._history.note(f"{self._name} works as {worker.id}, and serves {worker.serves}")
        if self._dice.hit("answer to a renewal lost"):
            raise StoreUnavailable("simulated: the answer was lost")
        self._history.crew.renewed(worker.id, sent_us)

    async def renew(self, worker: str, now_us: int, /, *, draining: bool = False) -> bool:
        dice, history = self._dice, self._history
        sent_us = history.now_us()
        if dice.hit("renewal slow"):
            await asyncio.sleep(dice.delay_s(10.0))
        if history.now_us() < self._mute_until_us or dice.hit("renewal lost"):
            self._check_alive()
            raise StoreUnavailable("simulated: the renewal is lost")
        done = await super().renew(worker, now_us, draining=draining)
        if done:
            history.crew.beats(worker)
        await self._awake.wait()
        self._check_alive()
        if dice.hit("answer to a renewal lost"):
            raise StoreUnavailable("simulated: the answer was lost")
        if done:
            history.crew.renewed(worker, sent_us)
        return done

    async def bury(self, worker: str, beat: int, /) -> bool:
        done = await super().bury(worker, beat)
        if done:
            self._history.crew.buried(worker, self.worker)
        return done

    async def workers(self) -> Sequence[WorkerRow]:
        found = await self._answered(super().workers())
        if self._dice.hit("counters read slowly"):
            await asyncio.sleep(self._dice.delay_s(2.0))
        return found

    async def take_over(self, now_us: int, /) -> int:
        await self._read()
        history = self._history
        before = {run.run_id: run.state for run in history.runs() if run.state is not None}
        owned = {run_id: state for run_id, state in before.items() if history.crew.alive(state.worker)}
        taken = await self._inner.take_over(now_us)
        for run_id, state in owned.items():
            run = history.run(run_id)
            status = "ready" if state.status == "running" else state.status
            if run is not None and run.state == replace(state, worker="", due_us=now_us, status=status):
                history.blame(run_id, "R-3", f"the run of {state.worker}, which is alive, was taken over")
        return taken
