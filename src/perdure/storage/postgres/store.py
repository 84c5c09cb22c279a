"""The PostgreSQL store: one writing task, a few reading connections; any number of engines and clients."""

from __future__ import annotations

import asyncio
import math
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import TypeVar

import psycopg

from perdure.errors import PerdureError, StoreUnavailable, StoreUnusable
from perdure.ports.joining import CallerConnection
from perdure.ports.limits import LimitUse
from perdure.ports.notes import Notebook
from perdure.ports.store import (
    ANYTHING,
    Append,
    AppendResult,
    Change,
    Deployment,
    EndedRun,
    IndexState,
    JournalRow,
    LedgerCount,
    ListPlace,
    LoadedRun,
    NewRun,
    PipelineHold,
    RunCounts,
    RunFilter,
    RunPage,
    RunTail,
    ScheduleState,
    Serving,
    Snapshot,
    SubmissionKey,
    Trouble,
    WaitCycle,
    WaitingRuns,
    WorkerRow,
)
from perdure.storage.postgres import (
    awaits,
    keys,
    limits,
    listing,
    queries,
    retention,
    slots,
    small,
    turns,
    workers,
)
from perdure.storage.postgres.attending import Attendance
from perdure.storage.postgres.entries import PutSnapshot, SetIndex
from perdure.storage.postgres.indexing import LostRows
from perdure.storage.postgres.jobs import Job, Work
from perdure.storage.postgres.joined import JoinedTransaction, join
from perdure.storage.postgres.listen import Listener
from perdure.storage.postgres.notes import PostgresNotebook
from perdure.storage.postgres.picking import Picker
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.readers import Readers
from perdure.storage.postgres.rows import INSERT_LEDGERS, ledger_values
from perdure.storage.postgres.schema import prepare
from perdure.storage.postgres.session import Session, error_kind, explained
from perdure.storage.postgres.transactions import HandlerTransaction, Transactions
from perdure.storage.postgres.writer import Writer

T = TypeVar("T")


class PostgresStore(LostRows):
    """A `Store` in a schema of a database.

    An engine opens it as owner; clients, in this or other processes, open it beside. Whoever comes first creates the
    tables.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refusal: PerdureError | None = StoreUnavailable(f"the store {place.shown} is not open")
        self._ident = self._name = self._worker = ""
        self._engine = False
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self._transactions: Transactions | None = None
        self._listener: Listener | None = None
        self._attendance: Attendance | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closed: asyncio.Task[None] | None = None
        self._picker = Picker(place.key("pick"))
        self._change: list[Callable[[Change], None]] = []
        self._trouble: list[Callable[[Trouble], None]] = []

    # --- life

    @property
    def shared(self) -> bool:
        return True

    async def open(self, *, owner: str | None) -> None:
        self._ident, self._worker = os.urandom(8).hex(), ""
        session = await Session.connect(self.place)
        readers = Readers(self.place)
        attendance = Attendance(self._ident, readers, self._tell_change)
        listener = Listener(self.place, self._ident, readers, self._tell_change, attendance.forgotten)
        self._engine = owner is not None
        try:
            if self._engine:  # it connects, and so does who sends its probe, while the tables are looked at
                self._name, _ = await asyncio.gather(prepare(session, self.place), listener.start())
            else:
                self._name = await prepare(session, self.place)
        except BaseException as error:
            session.drop()
            listener.stop()
            readers.abort()
            await listener.ended()
            if isinstance(error, psycopg.Error):
                kind = StoreUnusable if error_kind(error) == "fatal" else StoreUnavailable
                raise kind(explained(error, self.place)) from error
            raise
        self._loop = asyncio.get_running_loop()
        patience_s = math.inf if self._engine else self.place.answer_s
        self._writer = Writer(self.place, session, self._name, self._ident, self._tell_trouble, patience_s)
        self._readers, self._listener, self._attendance = readers, listener, attendance
        self._transactions = Transactions(self.place, self._name, self._ident, readers, self._tell_trouble)
        self._closed = self._starting = self._refusal = None
        _open_stores.add(self)
        if self._change and not self._engine:
            self._listen()

    async def close(self) -> None:
        if self._writer is not None and self._loop is not None:
            self._refusal = StoreUnavailable(f"the store {self.place.shown} is closed")
            self._closed = self._loop.create_task(self._close(self._writer))
            self._writer = None
        if self._closed is not None:
            await asyncio.shield(self._closed)

    async def _close(self, writer: Writer) -> None:
        self._stop()
        if self._readers is not None:
            self._readers.hasten()
        await writer.close()
        if self._readers is not None:
            await self._readers.close()
        if self._listener is not None:
            await self._listener.ended()
        self._let_go()

    def abort(self) -> None:
        if self._writer is None:
            return
        self._refusal = StoreUnavailable(f"the store {self.place.shown} was aborted")
        self._writer.abort()
        self._stop()
        if self._readers is not None:
            self._readers.abort()
        self._let_go()

    def _stop(self) -> None:
        if self._transactions is not None:
            self._transactions.abort()
        if self._listener is not None:
            self._listener.stop()
        if self._attendance is not None:
            self._attendance.stop()

    def _let_go(self) -> None:
        _open_stores.discard(self)
        if self._starting is not None:
            self._starting.cancel()
        self._writer = self._readers = self._listener = self._attendance = self._transactions = None

    def forked(self) -> None:
        """In a forked child: nothing of this store may be used or closed there."""
        self._refusal = StoreUnavailable(
            f"the store {self.place.shown} was opened before this process was forked; open it again in the child"
        )
        _leaked.append((self._writer, self._readers, self._listener, self._transactions, self._closed))
        self._writer = self._readers = self._listener = self._transactions = self._closed = None

    # --- the group

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        future: asyncio.Future[AppendResult] = self._live_loop().create_future()
        self._enqueue((future, append, self._worker))
        return future

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool | WaitCycle]:
        future: asyncio.Future[bool | WaitCycle] = self._live_loop().create_future()
        self._enqueue((future, SetIndex(locator, state, tail_seq), self._worker))
        return future

    def put_snapshot(self, locator: int, snapshot: Snapshot, /) -> None:
        self._live_loop()
        self._enqueue((None, PutSnapshot(locator, snapshot), self._worker))

    def _enqueue(self, job: Job) -> None:
        if self._writer is not None:
            self._writer.put(job)

    def _live_loop(self) -> asyncio.AbstractEventLoop:
        if self._refusal is not None:
            raise self._refusal
        if self._writer is None or self._loop is None:
            raise StoreUnavailable(f"the store {self.place.shown} is not open")
        if self._writer.fatal is not None:
            raise self._writer.fatal
        return self._loop

    def _opened(self, part: T | None) -> T:
        self._live_loop()
        if part is None:
            raise StoreUnavailable(f"the store {self.place.shown} is not open")
        return part

    def _write(self, run: Callable[[Session], Awaitable[T]], *, long: bool = False) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._live_loop().create_future()
        self._enqueue((future, Work(run, long), self._worker))
        return future

    def _read(self, query: Callable[[Session], Awaitable[T]]) -> Awaitable[T]:
        return self._opened(self._readers).read(query)

    # --- transactions of others

    async def join(self, connection: CallerConnection, /) -> JoinedTransaction:
        self._live_loop()
        return await join(connection, self.place, self._name, self._keep_ledger)

    async def begin(self) -> HandlerTransaction:
        return await self._opened(self._transactions).begin()

    async def _keep_ledger(self, state: IndexState) -> None:
        await self._read(lambda s: s.run(INSERT_LEDGERS, ledger_values((state,)) or ()))

    # --- listeners

    def on_change(self, listener: Callable[[Change], None], /) -> None:
        self._change.append(listener)
        self._listen()

    def _listen(self) -> None:
        """A client listens only if somebody wants to hear, and tells once what may have been missed by then."""
        if self._loop is not None and not self._engine and self._listener is not None and not self._starting:
            starting = self._loop.create_task(self._listener.start())
            starting.add_done_callback(lambda task: None if task.cancelled() else self._tell_change(ANYTHING))
            self._starting = starting

    def attending(self) -> AbstractAsyncContextManager[None]:
        self._live_loop()
        return nullcontext() if self._attendance is None or self.place.pooler else self._attendance.attending()

    def on_trouble(self, listener: Callable[[Trouble], None], /) -> None:
        self._trouble.append(listener)

    def _tell_change(self, change: Change) -> None:
        if self._refusal is None:
            for listener in self._change:
                listener(change)

    def _tell_trouble(self, trouble: Trouble) -> None:
        for listener in self._trouble:
            listener(trouble)

    # --- reads

    async def load(self, run_id: str, /) -> LoadedRun | None:
        return await self._read(lambda s: queries.load(s, run_id))

    async def load_all_rows(self, run_id: str, /) -> LoadedRun | None:
        return await self._read(lambda s: queries.load(s, run_id, snapshot=False))

    async def load_many(self, run_ids: Sequence[str], /) -> Sequence[LoadedRun]:
        if not run_ids:
            return []
        read = self._picker.read_along(run_ids)
        return await self._read(lambda s: queries.load_many(s, run_ids)) if read is None else read

    async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
        if serving is None:
            return await self._read(lambda s: turns.due(s, now_us, limit, turn))
        return await self._read(partial(self._picker.due, now_us, limit, turn, serving))

    async def next_due_us(self, serving: Serving | None = None, /) -> int | None:
        return await self._read(lambda s: turns.next_due_us(s, serving))

    async def pick(self, worker: str, now_us: int, limit: int, turn: int, serving: Serving, /) -> Sequence[str]:
        return await self._picker.pick(self._opened(self._readers), worker, now_us, limit, turn, serving)

    async def unpick(self, worker: str, run_ids: Sequence[str], due_us: int, /) -> int:
        return await self._write(lambda s: turns.unpick(s, worker, run_ids, due_us))

    async def owned(self, worker: str, /) -> Sequence[str]:
        return await self._read(lambda s: workers.owned(s, worker))

    async def attention(self, worker: str, /) -> Sequence[str]:
        return await self._read(lambda s: queries.attention(s, worker))

    async def list_runs(
        self, where: RunFilter, /, *, after: ListPlace | None = None, oldest_first: bool = False, limit: int = 50
    ) -> RunPage:
        return await self._read(lambda s: listing.list_runs(s, where, after, oldest_first, limit))

    async def count_runs(self, where: RunFilter, /, *, cap: int | None = None) -> RunCounts:
        return await self._read(lambda s: listing.count_runs(s, where, cap))

    async def ids_from(self, prefix: str, limit: int, /) -> Sequence[str]:
        return await self._read(lambda s: listing.ids_from(s, prefix, limit))

    async def deployments(self, pipeline: str | None = None, /) -> Sequence[Deployment]:
        return await self._read(lambda s: small.deployments(s, pipeline))

    async def pipeline_holds(self, *, history: bool = False) -> Sequence[PipelineHold]:
        return await self._read(lambda s: small.holds(s, history))

    async def schedules(self) -> Sequence[ScheduleState]:
        return await self._read(small.schedules)

    async def ledgers(self) -> Sequence[LedgerCount]:
        return await self._read(queries.ledgers)

    async def resting_ledgers(self, pipeline: str, /) -> dict[bytes, bytes]:
        return await self._read(lambda s: queries.resting_ledgers(s, pipeline))

    async def limits(self) -> Sequence[LimitUse]:
        return await self._read(limits.uses)

    @property
    def notes(self) -> Notebook:
        return PostgresNotebook(self._read, self._write, self.place)

    async def anybody_waits(self) -> bool:
        return await self._read(awaits.anybody_waits)

    async def waiting_runs(self) -> WaitingRuns:
        return await self._read(slots.waiting_runs)

    async def count_ended(self, before_us: int, /) -> int:
        return await self._read(lambda s: retention.count_ended(s, before_us))

    async def info(self) -> dict[str, str | int]:
        return await self._read(lambda s: queries.info(s, self.place))

    # --- workers

    async def clock_us(self) -> int | None:
        return await self._read(workers.clock_us)

    async def register(self, worker: WorkerRow, /) -> None:
        await self._read(lambda s: workers.register(s, worker))
        self._worker = worker.id  # of what is queued from now on
        if self._transactions is not None:
            self._transactions.worker = worker.id

    async def renew(self, worker: str, now_us: int, /, *, draining: bool = False) -> bool:
        return await self._read(lambda s: workers.renew(s, worker, now_us, draining))

    async def bury(self, worker: str, beat: int, /) -> bool:
        return await self._read(lambda s: workers.bury(s, worker, beat))

    async def retire(self, worker: str, /) -> None:
        await self._read(lambda s: workers.retire(s, worker))

    async def workers(self) -> Sequence[WorkerRow]:
        return await self._read(workers.workers)

    async def generations(self) -> dict[str, int]:
        return await self._read(workers.generations)

    # --- sweeps

    async def take_over(self, now_us: int, /) -> int:
        if not await self._read(workers.has_orphans):
            return 0
        return await self._write(lambda s: queries.take_over(s, now_us), long=True)

    async def wake_invalid(self, generations: Mapping[str, int], build: str | None, now_us: int, /) -> int:
        if not await self._read(lambda s: queries.has_invalid(s, generations)):
            return 0
        return await self._write(lambda s: queries.wake_invalid(s, generations, build, now_us), long=True)

    async def wake_resting(self, pipeline: str, signature: bytes, now_us: int, /) -> int:
        return await self._write(lambda s: queries.wake_resting(s, pipeline, signature, now_us), long=True)

    async def deploy(self, deployment: Deployment, /) -> bool:
        return await self._write(lambda s: small.deploy(s, deployment))

    async def hold_pipeline(self, hold: PipelineHold, /) -> bool:
        return await self._write(lambda s: small.hold(s, self.place, hold))

    async def release_pipeline(self, pipeline: str, actor: str, note: str, at_us: int, /) -> bool:
        return await self._write(lambda s: small.release(s, self.place, pipeline, actor, note, at_us))

    async def put_schedule(self, new: ScheduleState, known: ScheduleState | None, /) -> bool:
        return await self._write(lambda s: small.put_schedule(s, new, known))

    async def grant_slots(self, now_us: int, /) -> int:
        return await self._write(lambda s: slots.grant_slots(s, now_us), long=True)

    async def resize_limits(self, bounds: Mapping[str, int], /) -> None:
        await self._write(lambda s: limits.resize(s, self.place, bounds), long=True)

    async def grant_permits(self, now_us: int, /) -> int:
        return await self._write(lambda s: limits.mend(s, self.place, now_us), long=True)

    async def claim_key(self, key: SubmissionKey, now_us: int, /) -> SubmissionKey:
        return await self._write(lambda s: keys.claim(s, key, now_us))

    async def forget_keys(self, now_us: int, /) -> int:
        return await self._write(lambda s: keys.forget(s, now_us), long=True)

    async def remove_ended(self, before_us: int, limit: int, /) -> int:
        return await self._write(lambda s: retention.remove_ended(s, before_us, limit), long=True)

    async def ended_runs(self, before_us: int, limit: int, /, *, after: EndedRun | None = None) -> Sequence[EndedRun]:
        return await self._read(lambda s: retention.ended_runs(s, before_us, limit, after))

    async def remove_runs(self, runs: Sequence[RunTail], /) -> int:
        return await self._write(lambda s: retention.remove_runs(s, runs), long=True)

    async def insert_ended(self, new: NewRun, state: IndexState, ended_us: int, rows: Sequence[JournalRow], /) -> bool:
        return await self._write(lambda s: retention.insert(s, new, state, ended_us, rows))

    async def reclaim(self) -> int:
        """The server's own vacuum gives space back to tables, not to the disk: 0 bytes."""
        await self._write(queries.forget_ledgers, long=True)
        return 0


_open_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
_leaked: list[object] = []
"""Connections of a parent process: closing them here would say goodbye to the server in the parent's name."""


def _after_fork() -> None:
    for store in list(_open_stores):
        store.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
