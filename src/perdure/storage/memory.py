"""The store in memory: the executable reference that every other store has to agree with.

Everything happens on the event loop, in a fixed order: appends of one loop iteration are committed together in the
next one, which is when they become durable (as durable as this object is). Nothing reads a clock or throws dice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure.errors import StoreInUse, StoreUnavailable
from perdure.ports.store import (
    TERMINAL,
    Append,
    AppendResult,
    Committed,
    Conflict,
    Deployment,
    Fenced,
    Gone,
    IndexState,
    JournalRow,
    LoadedRun,
    NewRun,
    RunFilter,
    RunRow,
    SlotTaken,
    Snapshot,
    Trouble,
)

T = TypeVar("T")


@dataclass(slots=True)
class _Run:
    """One run: its journal, and the index row if it was not lost."""

    locator: int
    run_id: str
    rows: list[JournalRow] = field(default_factory=list[JournalRow])
    at: dict[int, JournalRow] = field(default_factory=dict[int, JournalRow])
    snapshot: Snapshot | None = None
    new: NewRun | None = None
    state: IndexState | None = None
    ended_us: int | None = None
    attention: bool = False
    slot_held: bool = False

    def add(self, append: Append) -> None:
        row = JournalRow(
            append.first_seq, append.count, append.at_us, append.append_id, append.hash, bytes(append.facts)
        )
        self.rows.append(row)
        self.at[row.first_seq] = row

    def row(self) -> RunRow | None:
        if self.new is None or self.state is None:
            return None
        return RunRow(self.locator, self.new, self.state, self.ended_us, self.attention)


class MemoryData:
    """What a `MemoryStore` keeps. It can outlive the store, as a file outlives a process.

    `MemoryStore(data)` reopens it.

    Attributes:
        owner: worker id of the engine that owns it, or None.
        commits: number of groups committed, for tests that count.
    """

    def __init__(self) -> None:
        self.owner: str | None = None
        self.commits = 0
        self._runs: dict[int, _Run] = {}
        self._by_id: dict[str, _Run] = {}
        self._slots: dict[tuple[str, str, str], _Run] = {}
        self._due: dict[int, int] = {}
        self._deployments: list[Deployment] = []
        self._numbers = itertools.count(1)
        self._stores: list[MemoryStore] = []

    def lose_index(self) -> None:
        """Forget every index row and snapshot, as a careless hand might; the journal stays. For tests of rebuilding."""
        for run in self._runs.values():
            run.new = run.state = run.snapshot = run.ended_us = None
            run.attention = run.slot_held = False
        self._slots.clear()
        self._due.clear()

    # --- writing

    def append(self, append: Append) -> AppendResult:
        if append.new is not None:
            return self._append_new(append, append.new)
        run = self._runs.get(append.locator)
        if run is None:
            return Gone()
        taken = run.at.get(append.first_seq)
        if taken is not None and taken.append_id == append.append_id:
            return Committed(run.locator)
        if run.state is not None and 0 < append.token < run.state.token:
            return Fenced(run.state.token)
        before = run.at.get(append.prev_seq)
        if taken is not None or before is None or before.hash != append.prev_hash:
            return Conflict()
        run.add(append)
        self._append_index(run, append)
        return Committed(run.locator)

    def _append_new(self, append: Append, new: NewRun) -> AppendResult:
        known = self._by_id.get(append.run_id)
        if known is not None:
            mine = bool(known.rows) and known.rows[0].append_id == append.append_id
            return Committed(known.locator) if mine else Conflict()
        if new.slot_key is not None:
            holder = self._slots.get((new.tenant, new.pipeline, new.slot_key))
            if holder is not None and holder.new is not None:
                return SlotTaken(holder.run_id, holder.new.input_digest)
        run = _Run(next(self._numbers), append.run_id, new=new)
        self._runs[run.locator] = self._by_id[run.run_id] = run
        if new.slot_key is not None:
            self._hold_slot(run, new)
        run.add(append)
        self._append_index(run, append)
        return Committed(run.locator)

    def _append_index(self, run: _Run, append: Append) -> None:
        outside = append.token == 0 and append.new is None
        if outside and run.state is not None and run.state.worker:
            run.attention = True
        elif append.index is not None and run.new is not None:
            self.set_state(run, append.index)
            if append.index.status in TERMINAL:
                run.ended_us = append.at_us
                if not run.new.slot_once:
                    self._free_slot(run)

    def set_index(self, locator: int, state: IndexState, tail_seq: int) -> bool:
        run = self._runs.get(locator)
        if run is None or run.state is None or run.rows[-1].first_seq != tail_seq:
            return False
        self.set_state(run, state)
        return True

    def set_state(self, run: _Run, state: IndexState) -> None:
        run.state = state
        run.attention = False
        if state.due_us is None:
            self._due.pop(run.locator, None)
        else:
            self._due[run.locator] = state.due_us

    def _hold_slot(self, run: _Run, new: NewRun) -> None:
        if new.slot_key is not None:
            self._slots[new.tenant, new.pipeline, new.slot_key] = run
            run.slot_held = True

    def _free_slot(self, run: _Run) -> None:
        if run.slot_held and run.new is not None and run.new.slot_key is not None:
            del self._slots[run.new.tenant, run.new.pipeline, run.new.slot_key]
        run.slot_held = False

    def put_snapshot(self, locator: int, snapshot: Snapshot) -> None:
        run = self._runs.get(locator)
        if run is not None:
            run.snapshot = snapshot

    def remove(self, run: _Run) -> None:
        self._free_slot(run)
        self._due.pop(run.locator, None)
        del self._runs[run.locator]
        del self._by_id[run.run_id]

    def restore(self, run: _Run, new: NewRun, state: IndexState, ended_us: int | None, slot_held: bool) -> None:
        self._free_slot(run)
        run.new, run.ended_us = new, ended_us
        self.set_state(run, state)
        if slot_held and new.slot_key is not None and (new.tenant, new.pipeline, new.slot_key) not in self._slots:
            self._hold_slot(run, new)

    # --- reading

    def run(self, run_id: str) -> _Run | None:
        return self._by_id.get(run_id)

    def at(self, locator: int) -> _Run | None:
        return self._runs.get(locator)

    def runs(self) -> list[_Run]:
        return list(self._runs.values())

    def due(self) -> list[tuple[int, int]]:
        """(due time, locator) of all runs that have a due time, longest due first."""
        return sorted((due_us, locator) for locator, due_us in self._due.items())

    def next_due_us(self) -> int | None:
        return min(self._due.values(), default=None)

    @property
    def registry(self) -> list[Deployment]:
        return self._deployments

    @property
    def stores(self) -> list[MemoryStore]:
        return self._stores


_SHARED: dict[str, MemoryData] = {}


def shared(name: str) -> MemoryData:
    """Give the data behind `memory://name`, the same object for the same name in this process."""
    return _SHARED.setdefault(name, MemoryData())


class MemoryStore:
    """A `Store` over `MemoryData`; several may be open at once, one of them as owner [R-2]."""

    def __init__(self, data: MemoryData | None = None) -> None:
        self.data = data if data is not None else MemoryData()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owns = False
        self._queue: list[Callable[[], None]] = []
        self._futures: list[asyncio.Future[Any]] = []
        self._change: list[Callable[[], None]] = []

    # --- life

    async def open(self, *, owner: str | None) -> None:
        if owner is not None:
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
        return self._queued(lambda: self.data.append(append))

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool]:
        return self._queued(lambda: self.data.set_index(locator, state, tail_seq))

    def put_snapshot(self, locator: int, snapshot: Snapshot, /) -> None:
        self._live()
        self._enqueue(lambda: self.data.put_snapshot(locator, snapshot))

    def _queued(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._live().create_future()

        def commit() -> None:
            result = work()
            if not future.done():
                future.set_result(result)

        self._enqueue(commit)
        self._futures.append(future)
        return future

    def _enqueue(self, commit: Callable[[], None]) -> None:
        if not self._queue:
            self._live().call_soon(self._flush)
        self._queue.append(commit)

    def _flush(self) -> None:
        group, self._queue, self._futures = self._queue, [], []
        for commit in group:
            commit()
        if group:
            self._committed()

    def _committed(self) -> None:
        self.data.commits += 1
        for store in self.data.stores:
            if store is not self:
                store.changed()

    def changed(self) -> None:
        """Another store on the same data committed: tell the listeners on their loop, after this turn of it."""
        if self._loop is not None:
            for listener in self._change:
                self._loop.call_soon_threadsafe(listener)

    # --- reads

    async def load(self, run_id: str, /) -> LoadedRun | None:
        self._live()
        run = self.data.run(run_id)
        row = None if run is None else run.row()
        if run is None or row is None:
            return None
        snapshot = run.snapshot
        if snapshot is not None:
            folded = run.at.get(snapshot.row_seq)
            if folded is None or folded.hash != snapshot.row_hash:
                snapshot = None
        after = 0 if snapshot is None else snapshot.row_seq
        return LoadedRun(row, snapshot, tuple(stored for stored in run.rows if stored.first_seq > after))

    async def load_all_rows(self, run_id: str, /) -> LoadedRun | None:
        self._live()
        run = self.data.run(run_id)
        row = None if run is None else run.row()
        return None if run is None or row is None else LoadedRun(row, None, tuple(run.rows))

    async def due(self, now_us: int, limit: int, /) -> Sequence[str]:
        self._live()
        waiting = (self.data.at(locator) for due_us, locator in self.data.due() if due_us <= now_us)
        return [run.run_id for run in itertools.islice(waiting, limit) if run is not None]

    async def next_due_us(self) -> int | None:
        self._live()
        return self.data.next_due_us()

    async def attention(self) -> Sequence[str]:
        self._live()
        return [run.run_id for run in self.data.runs() if run.attention]

    def on_change(self, listener: Callable[[], None], /) -> None:
        self._change.append(listener)

    def on_trouble(self, listener: Callable[[Trouble], None], /) -> None:
        """Nothing can go wrong here."""

    async def list_runs(self, where: RunFilter, /, *, after: str | None = None, limit: int = 50) -> Sequence[RunRow]:
        self._live()
        rows = [row for row in self._rows(where) if after is None or row.run.run_id < after]
        return sorted(rows, key=lambda row: row.run.run_id, reverse=True)[:limit]

    async def count_runs(self, where: RunFilter, /) -> dict[tuple[str, str], int]:
        self._live()
        counts: dict[tuple[str, str], int] = {}
        for row in self._rows(where):
            key = row.run.pipeline, row.state.status
            counts[key] = counts.get(key, 0) + 1
        return counts

    def _rows(self, where: RunFilter) -> list[RunRow]:
        rows = [run.row() for run in self.data.runs()]
        return [row for row in rows if row is not None and _matches(where, row)]

    # --- sweeps and registry

    async def take_over(self, now_us: int, /) -> int:
        return self._sweep(
            lambda run, state: bool(state.worker),
            lambda state: replace(state, status="ready", worker="", due_us=now_us),
        )

    async def wake_invalid(self, pipeline: str, generation: int, build: str, now_us: int, /) -> int:
        def judged_elsewhere(run: _Run, state: IndexState) -> bool:
            mine = run.new is not None and run.new.pipeline == pipeline and not state.worker
            return mine and state.status == "invalid" and (state.generation, state.build) != (generation, build)

        return self._sweep(judged_elsewhere, lambda state: replace(state, due_us=now_us))

    def _sweep(self, chosen: Callable[[_Run, IndexState], bool], change: Callable[[IndexState], IndexState]) -> int:
        self._live()
        self._flush()
        count = 0
        for run in self.data.runs():
            if run.state is not None and chosen(run, run.state):
                self.data.set_state(run, change(run.state))
                count += 1
        self._committed()
        return count

    async def deployments(self, pipeline: str | None = None, /) -> Sequence[Deployment]:
        self._live()
        return [known for known in self.data.registry if pipeline is None or known.pipeline == pipeline]

    async def deploy(self, deployment: Deployment, /) -> bool:
        self._live()
        key = deployment.pipeline, deployment.generation
        if any((known.pipeline, known.generation) == key for known in self.data.registry):
            return False
        self.data.registry.append(deployment)
        self._committed()
        return True

    async def count_ended(self, before_us: int, /) -> int:
        self._live()
        return sum(run.ended_us is not None and run.ended_us < before_us for run in self.data.runs())

    async def remove_ended(self, before_us: int, limit: int, /) -> int:
        self._live()
        self._flush()
        old = [run for run in self.data.runs() if run.ended_us is not None and run.ended_us < before_us][:limit]
        for run in old:
            self.data.remove(run)
        self._committed()
        return len(old)

    async def reclaim(self) -> int:
        return 0

    # --- rebuilding

    async def missing_index(self, limit: int, /) -> Sequence[str]:
        self._live()
        return [run.run_id for run in self.data.runs() if run.state is None][:limit]

    async def journal_of(self, run_id: str, /) -> tuple[int, Sequence[JournalRow]] | None:
        self._live()
        run = self.data.run(run_id)
        return None if run is None else (run.locator, list(run.rows))

    async def restore_index(
        self, locator: int, new: NewRun, state: IndexState, ended_us: int | None, /, *, slot_held: bool
    ) -> None:
        self._live()
        self._flush()
        run = self.data.at(locator)
        if run is not None:
            self.data.restore(run, new, state, ended_us, slot_held)
            self._committed()

    async def info(self) -> dict[str, str | int]:
        runs = self.data.runs()
        return {
            "kind": "memory",
            "runs": sum(run.state is not None for run in runs),
            "journal_rows": sum(len(run.rows) for run in runs),
            "size_bytes": sum(len(row.facts) for run in runs for row in run.rows),
        }


def _matches(where: RunFilter, row: RunRow) -> bool:
    run = row.run
    return (
        where.pipeline in (None, run.pipeline)
        and where.tenant in (None, run.tenant)
        and where.resource in (None, run.resource)
        and (not where.statuses or row.state.status in where.statuses)
        and (where.submitted_after_us is None or run.submitted_us >= where.submitted_after_us)
        and (where.submitted_before_us is None or run.submitted_us < where.submitted_before_us)
    )
