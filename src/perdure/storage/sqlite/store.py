"""The SQLite store: one file, one writing thread, one reading thread, one owner, any number of clients."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

from perdure.errors import InvalidArgument, PerdureError, StoreUnavailable
from perdure.ports.joining import CallerConnection, Journal, OwnTransaction
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
    Tenancy,
    Trouble,
    WaitCycle,
    WaitingRuns,
    WorkerRow,
)
from perdure.storage.sqlite import awaits, holds, keys, limits, listing, queries, retention, schedules, slots, turns
from perdure.storage.sqlite.alone import Alone
from perdure.storage.sqlite.busy import PATIENCE_S
from perdure.storage.sqlite.group import PutSnapshot, SetIndex
from perdure.storage.sqlite.indexing import LostRows
from perdure.storage.sqlite.mail import Mailbox
from perdure.storage.sqlite.notes import SqliteNotebook
from perdure.storage.sqlite.owner import Ownership, holder_of
from perdure.storage.sqlite.place import check_place
from perdure.storage.sqlite.reader import Reader
from perdure.storage.sqlite.writer import Job, Work, Writer

T = TypeVar("T")

SHRINK_PAGES = 2_000
"""Free pages given back at a time: about 8 MB, some ten milliseconds."""


class SqliteStore(LostRows):
    """A `Store` in one file.

    An engine opens it as owner; clients, in this or other processes, open it beside. A client that finds no file
    creates the store, as an engine would.

    Args:
        path: the file; relative to the working directory at the time of `open`.
        network: trust the locks and syncs of a network file system.
        patience_s: how long a lock that another program holds is ordinary: afterwards `open` and reads give up with
            `StoreUnavailable`, and appends tell `on_trouble` and go on trying.
        mountinfo: for tests: what `/proc/self/mountinfo` says.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        network: bool = False,
        patience_s: float = PATIENCE_S,
        mountinfo: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._network = network
        self._patience_s = patience_s
        self._mountinfo = mountinfo
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refusal: PerdureError | None = StoreUnavailable(f"the store {path} is not open")
        self._last_tenant: Tenancy = ("", "")
        self._ownership: Ownership | None = None
        self._mail: Mailbox | None = None
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._closed: asyncio.Future[None] | None = None
        self._pending: list[Job] = []
        self._kicked = False
        self._change: list[Callable[[Change], None]] = []
        self._trouble: list[Callable[[Trouble], None]] = []
        self._removed_up_to = 0
        self._alone = Alone()

    # --- life

    @property
    def shared(self) -> bool:
        return False

    async def open(self, *, owner: str | None) -> None:
        path = self._check()
        ownership = None if owner is None else Ownership.take(path, owner)
        loop = asyncio.get_running_loop()
        mail = Mailbox(loop)
        writer = Writer(path, mail, self._tell_trouble, self._tell_change, self._patience_s)
        try:
            await writer.start()
        except BaseException:
            writer.abort()
            if ownership is not None:
                ownership.release()
            raise
        self.path = path
        self._loop, self._mail, self._writer, self._ownership = loop, mail, writer, ownership
        self._reader = Reader(path, mail, self._patience_s)
        self._reader.start()
        self._closed = None
        self._refusal = None
        _open_stores.add(self)
        if self._change:
            writer.watch()

    def _check(self) -> Path:
        path = Path(os.path.realpath(self.path))  # a symbolic link is no second store
        check_place(path, allow_network=self._network, mountinfo=self._mountinfo)
        return path

    async def close(self) -> None:
        writer, reader = self._writer, self._reader
        if writer is not None and reader is not None:
            self._kick()
            self._refusal = StoreUnavailable(f"the store {self.path} is closed")
            self._writer = self._reader = None
            reader.stop()
            self._closed = writer.close()
            self._closed.add_done_callback(lambda _: self._let_go())
        if self._closed is not None:
            await asyncio.shield(self._closed)

    def abort(self) -> None:
        writer, reader, mail = self._writer, self._reader, self._mail
        if writer is None or reader is None or mail is None:
            return
        self._refusal = StoreUnavailable(f"the store {self.path} was aborted")
        self._writer = self._reader = None
        mail.shut()
        for future, _ in self._pending:
            if future is not None:
                future.cancel()
        self._pending = []
        writer.abort()
        reader.stop()
        self._let_go()

    def _let_go(self) -> None:
        _open_stores.discard(self)
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    def forked(self) -> None:
        """In a forked child: nothing of this store may be used or closed there."""
        self._refusal = StoreUnavailable(
            f"the store {self.path} was opened before this process was forked; open it again in the child"
        )
        for thread in (self._writer, self._reader):
            if thread is not None:
                thread.abandon()
        if self._ownership is not None:
            self._ownership.forget()
        self._writer = self._reader = self._ownership = self._closed = None

    # --- the group

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        loop = self._live_loop()
        future: asyncio.Future[AppendResult] = loop.create_future()
        self._enqueue(loop, (future, append))
        return future

    async def join(self, connection: CallerConnection, /) -> Journal:
        raise InvalidArgument("a store in a SQLite file joins no transaction of a caller's; one in PostgreSQL does")

    async def begin(self) -> OwnTransaction:
        raise InvalidArgument("a store in a SQLite file has no transactions for handlers; one in PostgreSQL has")

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool | WaitCycle]:
        loop = self._live_loop()
        future: asyncio.Future[bool | WaitCycle] = loop.create_future()
        self._enqueue(loop, (future, SetIndex(locator, state, tail_seq)))
        return future

    def put_snapshot(self, locator: int, snapshot: Snapshot, /) -> None:
        self._enqueue(self._live_loop(), (None, PutSnapshot(locator, snapshot)))

    def _enqueue(self, loop: asyncio.AbstractEventLoop, job: Job) -> None:
        self._pending.append(job)
        if not self._kicked:
            self._kicked = True
            loop.call_soon(self._kick)

    def _kick(self) -> None:
        """All appends of one turn of the loop travel together."""
        self._kicked = False
        jobs, self._pending = self._pending, []
        if self._writer is not None and jobs:
            self._writer.put(jobs)

    def _live_loop(self) -> asyncio.AbstractEventLoop:
        if self._refusal is not None:
            raise self._refusal
        if self._writer is None or self._loop is None:
            raise StoreUnavailable(f"the store {self.path} is not open")
        if self._writer.fatal is not None:
            raise self._writer.fatal
        return self._loop

    def _write(self, run: Callable[[sqlite3.Connection], T], *, transaction: bool = True) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._live_loop().create_future()
        self._kick()
        if self._writer is not None:
            self._writer.put([(future, Work(run, transaction))])
        return future

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        self._live_loop()
        if self._reader is None:
            raise StoreUnavailable(f"the store {self.path} is not open")
        return self._reader.read(query)

    # --- listeners

    def on_change(self, listener: Callable[[Change], None], /) -> None:
        self._change.append(listener)
        if self._writer is not None:
            self._writer.watch()

    def attending(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def on_trouble(self, listener: Callable[[Trouble], None], /) -> None:
        self._trouble.append(listener)

    def _tell_change(self) -> None:
        for listener in self._change:
            listener(ANYTHING)

    def _tell_trouble(self, trouble: Trouble) -> None:
        for listener in self._trouble:
            listener(trouble)

    # --- reads

    async def load(self, run_id: str, /) -> LoadedRun | None:
        return await self._read(lambda con: queries.load(con, run_id))

    async def load_all_rows(self, run_id: str, /) -> LoadedRun | None:
        return await self._read(lambda con: queries.load_all_rows(con, run_id))

    async def load_many(self, run_ids: Sequence[str], /) -> Sequence[LoadedRun]:
        return await self._read(lambda con: queries.load_many(con, run_ids))

    async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
        if serving is None:
            return await self._read(lambda con: turns.due(con, now_us, limit, turn))
        last = self._last_tenant
        return (await self._read(lambda con: turns.due_served(con, now_us, limit, turn, serving, last))).run_ids

    async def next_due_us(self, serving: Serving | None = None, /) -> int | None:
        if serving is None:
            return await self._read(turns.next_due_us)
        return await self._read(lambda con: turns.next_due_served_us(con, serving))

    async def pick(self, worker: str, now_us: int, limit: int, turn: int, serving: Serving, /) -> Sequence[str]:
        last = self._last_tenant
        shared = await self._write(lambda con: turns.pick(con, worker, now_us, limit, turn, serving, last))
        self._last_tenant = shared.last(self._last_tenant)
        return shared.run_ids

    async def unpick(self, worker: str, run_ids: Sequence[str], due_us: int, /) -> int:
        return await self._write(lambda con: turns.unpick(con, worker, run_ids, due_us))

    async def owned(self, worker: str, /) -> Sequence[str]:
        return await self._read(lambda con: queries.owned(con, worker))

    async def attention(self, worker: str, /) -> Sequence[str]:
        return await self._read(lambda con: queries.attention(con, worker))

    async def list_runs(
        self, where: RunFilter, /, *, after: ListPlace | None = None, oldest_first: bool = False, limit: int = 50
    ) -> RunPage:
        return await self._read(lambda con: listing.list_runs(con, where, after, oldest_first, limit))

    async def count_runs(self, where: RunFilter, /, *, cap: int | None = None) -> RunCounts:
        return await self._read(lambda con: listing.count_runs(con, where, cap))

    async def ids_from(self, prefix: str, limit: int, /) -> Sequence[str]:
        return await self._read(lambda con: listing.ids_from(con, prefix, limit))

    async def deployments(self, pipeline: str | None = None, /) -> Sequence[Deployment]:
        return await self._read(lambda con: queries.deployments(con, pipeline))

    async def ledgers(self) -> Sequence[LedgerCount]:
        return await self._read(queries.ledgers)

    async def resting_ledgers(self, pipeline: str, /) -> dict[bytes, bytes]:
        return await self._read(lambda con: queries.resting_ledgers(con, pipeline))

    async def info(self) -> dict[str, str | int]:
        found = await self._read(lambda con: queries.info(con, self.path))
        holder = holder_of(self.path)
        found["owner"] = holder.text() if holder is not None else "nobody"
        return found

    # --- sweeps

    async def clock_us(self) -> int | None:
        return None

    async def register(self, worker: WorkerRow, /) -> None:
        self._live_loop()
        self._alone.row = worker

    async def renew(self, worker: str, now_us: int, /, *, draining: bool = False) -> bool:
        return self._alone.is_here(worker)

    async def bury(self, worker: str, beat: int, /) -> bool:
        return False

    async def retire(self, worker: str, /) -> None:
        self._alone.row = None

    async def workers(self) -> Sequence[WorkerRow]:
        self._live_loop()
        return await self._alone.workers(self.path, self.owned)

    async def generations(self) -> dict[str, int]:
        return await self._read(queries.generations)

    async def take_over(self, now_us: int, /) -> int:
        return await self._write(lambda con: queries.take_over(con, now_us))

    async def wake_invalid(self, generations: Mapping[str, int], build: str | None, now_us: int, /) -> int:
        return await self._write(lambda con: queries.wake_invalid(con, generations, build, now_us))

    async def wake_resting(self, pipeline: str, signature: bytes, now_us: int, /) -> int:
        return await self._write(lambda con: queries.wake_resting(con, pipeline, signature, now_us))

    async def deploy(self, deployment: Deployment, /) -> bool:
        return await self._write(lambda con: queries.deploy(con, deployment))

    async def hold_pipeline(self, hold: PipelineHold, /) -> bool:
        return await self._write(lambda con: holds.hold(con, hold))

    async def release_pipeline(self, pipeline: str, actor: str, note: str, at_us: int, /) -> bool:
        return await self._write(lambda con: holds.release(con, pipeline, actor, note, at_us))

    async def pipeline_holds(self, *, history: bool = False) -> Sequence[PipelineHold]:
        return await self._read(lambda con: holds.holds(con, history))

    async def schedules(self) -> Sequence[ScheduleState]:
        return await self._read(schedules.states)

    async def put_schedule(self, new: ScheduleState, known: ScheduleState | None, /) -> bool:
        return await self._write(lambda con: schedules.put(con, new, known))

    async def grant_slots(self, now_us: int, /) -> int:
        return await self._write(lambda con: slots.grant_slots(con, now_us))

    async def limits(self) -> Sequence[LimitUse]:
        return await self._read(limits.uses)

    async def resize_limits(self, bounds: Mapping[str, int], /) -> None:
        await self._write(lambda con: limits.resize(con, bounds))

    async def grant_permits(self, now_us: int, /) -> int:
        return await self._write(lambda con: limits.mend(con, now_us))

    @property
    def notes(self) -> Notebook:
        return SqliteNotebook(self._read, self._write)

    async def anybody_waits(self) -> bool:
        return await self._read(awaits.anybody_waits)

    async def waiting_runs(self) -> WaitingRuns:
        return await self._read(slots.waiting_runs)

    async def claim_key(self, key: SubmissionKey, now_us: int, /) -> SubmissionKey:
        return await self._write(lambda con: keys.claim(con, key, now_us))

    async def forget_keys(self, now_us: int, /) -> int:
        return await self._write(lambda con: keys.forget(con, now_us))

    async def count_ended(self, before_us: int, /) -> int:
        return await self._read(lambda con: retention.count_ended(con, before_us))

    async def remove_ended(self, before_us: int, limit: int, /) -> int:
        after = self._removed_up_to
        numbers = await self._read(lambda con: retention.ended_runs(con, before_us, limit, after))
        self._removed_up_to = numbers[-1] if len(numbers) == limit else 0
        return await self._write(lambda con: retention.remove(con, numbers, before_us)) if numbers else 0

    async def ended_runs(self, before_us: int, limit: int, /, *, after: EndedRun | None = None) -> Sequence[EndedRun]:
        return await self._read(lambda con: retention.page(con, before_us, limit, after))

    async def remove_runs(self, runs: Sequence[RunTail], /) -> int:
        return await self._write(lambda con: retention.remove_runs(con, runs))

    async def insert_ended(self, new: NewRun, state: IndexState, ended_us: int, rows: Sequence[JournalRow], /) -> bool:
        return await self._write(lambda con: retention.insert(con, new, state, ended_us, rows))

    async def reclaim(self) -> int:
        before = await self._read(lambda con: queries.size(self.path))
        unused = await self._read(queries.unused_ledgers)
        await self._write(lambda con: queries.forget_ledgers(con, unused))
        while await self._write(lambda con: queries.shrink(con, SHRINK_PAGES), transaction=False):
            pass  # in steps, so that appends go on in between
        await self._write(queries.empty_log, transaction=False)
        return max(0, before - await self._read(lambda con: queries.size(self.path)))


_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_open_stores):
        store.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
