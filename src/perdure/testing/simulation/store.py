"""A store that fails as stores fail: late, twice, not at all, or just before and after its process dies.

It wraps a `MemoryStore` and keeps the contract of the port: what it answers is true, and an append is in flight until
it is answered [J-14]. Only the process may die at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from perdure.core.journal import NewerJournal
from perdure.errors import CorruptJournal, StoreUnavailable
from perdure.ports.joining import CallerConnection, Journal, OwnTransaction
from perdure.ports.store import (
    Append,
    AppendResult,
    Change,
    Committed,
    Deployment,
    EndedRun,
    IndexState,
    JournalRow,
    LedgerCount,
    LoadedRun,
    NewRun,
    PipelineHold,
    RunTail,
    ScheduleState,
    Serving,
    Snapshot,
    Store,
    SubmissionKey,
    Trouble,
    WaitCycle,
    WaitingRuns,
    WorkerRow,
)
from perdure.runtime.loading import project, snapshot_of
from perdure.storage.memory import MemoryStore
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.history import History
from perdure.testing.simulation.lists import FaultyLists

T = TypeVar("T")


class FaultyStore(FaultyLists):
    """See the module.

    Args:
        crash: ends the process; None for one that never dies by itself.
        meanwhile: called with a run id while an append of that run is in flight.
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
        self._history = history
        self._dice = dice
        self._name = name
        self._crash = crash
        self._meanwhile = meanwhile
        self._inner = MemoryStore(history)
        self._alive = True
        self._closed = False
        self._in_flight: dict[asyncio.Future[AppendResult] | asyncio.Future[bool | WaitCycle], None] = {}
        self._trouble: list[Callable[[Trouble], None]] = []

    # --- life

    async def open(self, *, owner: str | None) -> None:
        await self._inner.open(owner=owner)

    async def close(self) -> None:
        while self._in_flight and self._alive:
            await asyncio.wait(list(self._in_flight))
        self._closed = True
        await self._inner.close()

    def abort(self) -> None:
        self.die()

    def die(self) -> None:
        """The process is dead: nothing more is sent, and nobody hears an answer."""
        self._alive = False
        self._inner.abort()
        for future in list(self._in_flight):
            future.cancel()

    def _die_because(self, why: str) -> None:
        if self._alive and self._crash is not None:
            self._crash(why)

    # --- appends

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        self._check_alive()
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        if self._closed:
            raise StoreUnavailable("the store is closed")
        self._track(answer, append.run_id)
        dice, loop = self._dice, asyncio.get_running_loop()
        caller = asyncio.current_task()
        if caller in self._history.calls and dice.hit("caller canceled while its append is in flight"):
            loop.call_soon(caller.cancel)
        if self._meanwhile is not None and append.new is None and dice.hit("cancel while an append is in flight"):
            self._meanwhile(append.run_id)
        if self._crash is not None and dice.hit("crash before an append"):
            self._die_because("before an append")
            return answer
        if dice.hit("append delayed"):
            loop.call_later(dice.delay_s(0.05), self._send, append, answer)
        elif dice.hit("append lost, sent again"):
            self._tell_trouble()
            loop.call_later(dice.delay_s(0.5), self._send, append, answer)
        else:
            self._send(append, answer)
        return answer

    async def join(self, connection: CallerConnection, /) -> Journal:
        return await self._inner.join(connection)

    async def begin(self) -> OwnTransaction:
        return await self._inner.begin()

    def _send(self, append: Append, answer: asyncio.Future[AppendResult]) -> None:
        if not self._alive:
            return
        dice, loop = self._dice, asyncio.get_running_loop()
        sent = self._inner.append(append)
        if self._crash is not None and dice.hit("crash after an append, before it is acknowledged"):
            sent.add_done_callback(lambda _: self._die_because("after an append"))
        elif dice.hit("append applied, acknowledgement lost, sent again"):
            sent.add_done_callback(lambda _: self._tell_trouble())
            loop.call_later(dice.delay_s(0.5), self._send_again, append, answer)
        elif dice.hit("append sent twice"):
            sent.add_done_callback(lambda _: self._send_again(append, answer))
        elif dice.hit("acknowledgement delayed"):
            sent.add_done_callback(lambda done: self._later(dice.delay_s(0.05), answer, done))
        else:
            sent.add_done_callback(lambda done: pass_on(done, answer))
        sent.add_done_callback(lambda done: self._perhaps_echo(append, done))

    def _perhaps_echo(self, append: Append, done: asyncio.Future[AppendResult]) -> None:
        written = not done.cancelled() and isinstance(done.result(), Committed)
        if written and self._dice.hit("old append sent again later"):
            asyncio.get_running_loop().call_later(self._dice.delay_s(20.0), self._echo, append)

    def _later(self, delay_s: float, answer: asyncio.Future[T], done: asyncio.Future[T]) -> None:
        asyncio.get_running_loop().call_later(delay_s, pass_on, done, answer)

    def _send_again(self, append: Append, answer: asyncio.Future[AppendResult]) -> None:
        """The identical append once more: it is found as one's own, and written once [J-14]."""
        if self._alive:
            self._inner.append(append).add_done_callback(lambda done: pass_on(done, answer))

    def _echo(self, append: Append) -> None:
        """An old append arrives once more, long after it was answered: nothing is written."""
        if self._alive and append.run_id not in self._history.removed:
            seq = self._history.judges[append.run_id].seq
            found = self._history.append(append)
            if self._history.judges[append.run_id].seq != seq or not isinstance(found, Committed):
                self._history.blame(append.run_id, "J-14", f"an append sent again was answered {found}")

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool | WaitCycle]:
        self._check_alive()
        dice, loop = self._dice, asyncio.get_running_loop()
        answer: asyncio.Future[bool | WaitCycle] = loop.create_future()
        if self._closed:
            raise StoreUnavailable("the store is closed")
        self._track(answer, "")
        if self._crash is not None and dice.hit("crash before an append"):
            self._die_because("before an index change")
            return answer

        def send() -> None:
            if not self._alive:
                return
            sent = self._inner.set_index(locator, state, tail_seq)
            if self._crash is not None and dice.hit("crash after an append, before it is acknowledged"):
                sent.add_done_callback(lambda _: self._die_because("after an index change"))
            else:
                sent.add_done_callback(lambda done: pass_on(done, answer))

        if dice.hit("append delayed"):
            loop.call_later(dice.delay_s(0.05), send)
        else:
            send()
        return answer

    def put_snapshot(self, locator: int, snapshot: Snapshot, /) -> None:
        self._check_alive()
        self._inner.put_snapshot(locator, snapshot)

    def _track(self, answer: asyncio.Future[AppendResult] | asyncio.Future[bool | WaitCycle], run_id: str) -> None:
        """Who waits for an append may be canceled; the append itself never is [J-14]."""
        self._in_flight[answer] = None

        def landed(future: asyncio.Future[AppendResult] | asyncio.Future[bool | WaitCycle]) -> None:
            self._in_flight.pop(future, None)
            if future.cancelled() and self._alive:
                self._history.blame(run_id, "J-14", "an append in flight was canceled with its caller")

        answer.add_done_callback(landed)

    def _tell_trouble(self) -> None:
        if self._alive:
            for listener in self._trouble:
                listener(Trouble("simulated: the connection was lost", 0.1, fatal=False))

    def _check_alive(self) -> None:
        if not self._alive:
            raise StoreUnavailable("the process is dead")

    @property
    def shared(self) -> bool:
        return self._inner.shared

    # --- reads

    async def _read(self) -> None:
        """Before every read: it may take time, fail, or outlive its process."""
        self._check_alive()
        dice = self._dice
        if dice.hit("read delayed"):
            await asyncio.sleep(dice.delay_s(0.05))
            self._check_alive()
        if dice.hit("read failed"):
            raise StoreUnavailable("simulated: the store does not answer")

    async def load(self, run_id: str, /) -> LoadedRun | None:
        await self._read()
        loaded = await self._inner.load(run_id)
        if loaded is not None:
            if loaded.snapshot is not None:
                self._dice.count("snapshot used")
            if self._dice.hit("snapshot written early"):
                try:
                    self._inner.put_snapshot(loaded.row.locator, snapshot_of(project(loaded)))
                except (CorruptJournal, NewerJournal) as error:
                    self._history.blame(run_id, "J-8", str(error))
        return loaded

    async def load_all_rows(self, run_id: str, /) -> LoadedRun | None:
        await self._read()
        return await self._inner.load_all_rows(run_id)

    async def load_many(self, run_ids: Sequence[str], /) -> Sequence[LoadedRun]:
        found = [await self.load(run_id) for run_id in run_ids]
        return [loaded for loaded in found if loaded is not None]

    async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
        await self._read()
        return await self._inner.due(now_us, limit, turn, serving)

    async def next_due_us(self, serving: Serving | None = None, /) -> int | None:
        await self._read()
        return await self._inner.next_due_us(serving)

    async def pick(self, worker: str, now_us: int, limit: int, turn: int, serving: Serving, /) -> Sequence[str]:
        await self._read()
        return await self._inner.pick(worker, now_us, limit, turn, serving)

    async def unpick(self, worker: str, run_ids: Sequence[str], due_us: int, /) -> int:
        self._check_alive()
        return await self._inner.unpick(worker, run_ids, due_us)

    async def owned(self, worker: str, /) -> Sequence[str]:
        await self._read()
        return await self._inner.owned(worker)

    async def attention(self, worker: str, /) -> Sequence[str]:
        await self._read()
        return await self._inner.attention(worker)

    def on_change(self, listener: Callable[[Change], None], /) -> None:
        """Notices come, some of them late; never later than 100 ms [R-2]."""

        def later(change: Change) -> None:
            if self._dice.hit("change notice delayed"):
                delay_s = min(self._dice.delay_s(0.03), 0.1)
                asyncio.get_running_loop().call_later(delay_s, self._if_alive, listener, change)
            else:
                self._if_alive(listener, change)

        self._inner.on_change(later)

    def _if_alive(self, listener: Callable[[Change], None], change: Change) -> None:
        if self._alive:
            listener(change)

    def attending(self) -> AbstractAsyncContextManager[None]:
        return self._inner.attending()

    def on_trouble(self, listener: Callable[[Trouble], None], /) -> None:
        self._trouble.append(listener)

    async def ledgers(self) -> Sequence[LedgerCount]:
        await self._read()
        return await self._inner.ledgers()

    async def resting_ledgers(self, pipeline: str, /) -> Mapping[bytes, bytes]:
        await self._read()
        return await self._inner.resting_ledgers(pipeline)

    async def deployments(self, pipeline: str | None = None, /) -> Sequence[Deployment]:
        await self._read()
        return await self._inner.deployments(pipeline)

    async def pipeline_holds(self, *, history: bool = False) -> Sequence[PipelineHold]:
        await self._read()
        return await self._inner.pipeline_holds(history=history)

    async def schedules(self) -> Sequence[ScheduleState]:
        await self._read()
        return await self._inner.schedules()

    async def put_schedule(self, new: ScheduleState, known: ScheduleState | None, /) -> bool:
        await self._read()
        return await self._inner.put_schedule(new, known)

    async def grant_slots(self, now_us: int, /) -> int:
        await self._read()
        return await self._inner.grant_slots(now_us)

    async def anybody_waits(self) -> bool:
        await self._read()
        return await self._inner.anybody_waits()

    async def waiting_runs(self) -> WaitingRuns:
        await self._read()
        return await self._inner.waiting_runs()

    async def claim_key(self, key: SubmissionKey, now_us: int, /) -> SubmissionKey:
        await self._read()
        return await self._inner.claim_key(key, now_us)

    async def forget_keys(self, now_us: int, /) -> int:
        await self._read()
        return await self._inner.forget_keys(now_us)

    async def count_ended(self, before_us: int, /) -> int:
        await self._read()
        return await self._inner.count_ended(before_us)

    async def info(self) -> dict[str, str | int]:
        return await self._inner.info()

    # --- rare writes

    async def take_over(self, now_us: int, /) -> int:
        await self._read()
        return await self._inner.take_over(now_us)

    async def clock_us(self) -> int | None:
        return await self._inner.clock_us()

    async def register(self, worker: WorkerRow, /) -> None:
        await self._read()
        await self._inner.register(worker)

    async def renew(self, worker: str, now_us: int, /, *, draining: bool = False) -> bool:
        await self._read()
        return await self._inner.renew(worker, now_us, draining=draining)

    async def bury(self, worker: str, beat: int, /) -> bool:
        await self._read()
        return await self._inner.bury(worker, beat)

    async def retire(self, worker: str, /) -> None:
        await self._read()
        await self._inner.retire(worker)

    async def workers(self) -> Sequence[WorkerRow]:
        await self._read()
        return await self._inner.workers()

    async def generations(self) -> dict[str, int]:
        await self._read()
        return await self._inner.generations()

    async def wake_invalid(self, generations: Mapping[str, int], build: str | None, now_us: int, /) -> int:
        await self._read()
        return await self._inner.wake_invalid(generations, build, now_us)

    async def wake_resting(self, pipeline: str, signature: bytes, now_us: int, /) -> int:
        await self._read()
        return await self._inner.wake_resting(pipeline, signature, now_us)

    async def deploy(self, deployment: Deployment, /) -> bool:
        await self._read()
        return await self._inner.deploy(deployment)

    async def hold_pipeline(self, hold: PipelineHold, /) -> bool:
        await self._read()
        return await self._inner.hold_pipeline(hold)

    async def release_pipeline(self, pipeline: str, actor: str, note: str, at_us: int, /) -> bool:
        await self._read()
        return await self._inner.release_pipeline(pipeline, actor, note, at_us)

    async def remove_ended(self, before_us: int, limit: int, /) -> int:
        await self._read()
        return await self._inner.remove_ended(before_us, limit)

    async def ended_runs(self, before_us: int, limit: int, /, *, after: EndedRun | None = None) -> Sequence[EndedRun]:
        await self._read()
        return await self._inner.ended_runs(before_us, limit, after=after)

    async def remove_runs(self, runs: Sequence[RunTail], /) -> int:
        await self._read()
        return await self._inner.remove_runs(runs)

    async def insert_ended(self, new: NewRun, state: IndexState, ended_us: int, rows: Sequence[JournalRow], /) -> bool:
        await self._read()
        return await self._inner.insert_ended(new, state, ended_us, rows)

    async def reclaim(self) -> int:
        return await self._inner.reclaim()


def pass_on(done: asyncio.Future[T], answer: asyncio.Future[T]) -> None:
    """Give an answer to whoever still waits for it."""
    if not answer.done() and not done.cancelled():
        answer.set_result(done.result())


def as_store(store: FaultyStore) -> Store:
    """The same, for the type checker: it keeps the port's contract."""
    return store
