"""A store in memory that is open: its life, and groups that are committed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from perdure.errors import StoreInUse, StoreUnavailable
from perdure.ports.changes import all_of, change_of
from perdure.ports.records import claims
from perdure.ports.store import (
    ANYTHING,
    Append,
    AppendResult,
    Change,
    Fenced,
    IndexState,
    Snapshot,
    Tenancy,
    WaitCycle,
)
from perdure.storage.memory_data import MemoryData

T = TypeVar("T")


class MemoryBase:
    """What is below a `MemoryStore`; see there."""

    def __init__(self, data: MemoryData | None = None) -> None:
        self.data = data if data is not None else MemoryData()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owns = False
        self._worker = ""
        self._queue: list[tuple[Callable[[], None], Change | None]] = []
        self._futures: list[asyncio.Future[Any]] = []
        self._change: list[Callable[[Change], None]] = []
        self._attending = 0
        self._last_tenant: Tenancy = ("", "")

    # --- life

    @property
    def shared(self) -> bool:
        return self.data.shared

    async def open(self, *, owner: str | None) -> None:
        if owner is not None and not self.data.shared:
            if self.data.owner is not None:
                raise StoreInUse(f"this memory is owned by {self.data.owner}; one engine at a time")
            self.data.owner = owner
            self._owns = True
        self._loop = asyncio.get_running_loop()
        self.data.stores.append(self)

    async def close(self) -> None:
        if self._loop is not None:
            self._flush()
            self._leave()

    def abort(self) -> None:
        if self._loop is not None:
            lost, self._futures, self._queue = self._futures, [], []
            for future in lost:
                future.cancel()
            self._leave()

    def _leave(self) -> None:
        self._loop = None
        if self in self.data.stores:
            self.data.stores.remove(self)
        if self._owns:
            self._owns = False
            self.data.owner = None

    def _live(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise StoreUnavailable("the store is closed")
        return self._loop

    # --- the group

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        worker, owned = self._worker, append.token > 0 or claims(append)

        def commit() -> AppendResult:
            if owned and self._found_dead(worker):
                return Fenced(max(append.token, 1))
            return self.data.append(append)

        return self._queued(commit, change_of(append) if self.data.shared else ANYTHING)

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool | WaitCycle]:
        worker = self._worker
        return self._queued(
            lambda: False if self._found_dead(worker) else self.data.set_index(locator, state, tail_seq)
        )

    def _found_dead(self, worker: str) -> bool:
        row = self.data.workers.get(worker)
        return bool(worker) and (row is None or row.dead)

    def put_snapshot(self, locator: int, snapshot: Snapshot, /) -> None:
        self._live()
        self._enqueue(lambda: self.data.put_snapshot(locator, snapshot), None)

    def _queued(self, work: Callable[[], T], change: Change | None = ANYTHING) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._live().create_future()

        def commit() -> None:
            result = work()
            if not future.done():
                future.set_result(result)

        self._enqueue(commit, change)
        self._futures.append(future)
        return future

    def _enqueue(self, commit: Callable[[], None], change: Change | None) -> None:
        if not self._queue:
            self._live().call_soon(self._flush)
        self._queue.append((commit, change))

    def _flush(self) -> None:
        group, self._queue, self._futures = self._queue, [], []
        for commit, _ in group:
            commit()
        if group:
            self._committed(all_of(change for _, change in group))

    def _committed(self, change: Change | None = ANYTHING) -> None:
        """Tell the others."""
        self.data.commits += 1
        passed_on, self.data.passed_on = self.data.passed_on, False
        told = ANYTHING if passed_on else change
        for store in self.data.stores:
            if told is not None and store is not self:
                store.changed(told)

    def changed(self, change: Change) -> None:
        """Another store on the same data committed: tell the listeners on their loop, after this turn of it."""
        if self._loop is not None and (change.urgent or self._attending):
            for listener in self._change:
                self._loop.call_soon_threadsafe(listener, change)
