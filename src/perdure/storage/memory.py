"""The store in memory: the executable reference that every other store has to agree with.

Everything happens on the event loop, in a fixed order: appends of one loop iteration are committed together in the
next one, which is when they become durable (as durable as this object is). Nothing reads a clock or throws dice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from msgspec.structs import replace

from perdure.errors import InvalidArgument
from perdure.ports.joining import CallerConnection, Journal, OwnTransaction
from perdure.ports.limits import LimitUse
from perdure.ports.listing import fits, place_of
from perdure.ports.notes import Notebook
from perdure.ports.store import (
    Change,
    Deployment,
    DueRun,
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
    RunRow,
    RunTail,
    ScheduleState,
    Serving,
    Shared,
    SubmissionKey,
    Trouble,
    WaitingRuns,
    WorkerRow,
    share,
    share_served,
)
from perdure.storage import memory_retention as retention
from perdure.storage import memory_workers as workers
from perdure.storage.memory_data import MemoryData, MemoryRun
from perdure.storage.memory_lost import MemoryLost
from perdure.storage.memory_notes import MemoryNotebook

__all__ = ["MemoryData", "MemoryRun", "MemoryStore", "shared"]

T = TypeVar("T")

_SHARED: dict[str, MemoryData] = {}


def shared(name: str) -> MemoryData:
    """Give the data behind `memory://name`, the same object for the same name in this process."""
    return _SHARED.setdefault(name, MemoryData())


class MemoryStore(MemoryLost):
    """A `Store` over `MemoryData`; several may be open at once, one of them as owner [R-2]."""

    async def join(self, connection: CallerConnection, /) -> Journal:
        raise InvalidArgument("a store in memory joins no transaction of a caller's; one in PostgreSQL does")

    async def begin(self) -> OwnTransaction:
        raise InvalidArgument("a store in memory has no transactions for handlers; one in PostgreSQL has")

    # --- reads

    async def load(self, run_id: str, /) -> LoadedRun | None:
        self._live()
        run = self.data.run(run_id)
        row = None if run is None else self.data.row(run)
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
        row = None if run is None else self.data.row(run)
        return None if run is None or row is None else LoadedRun(row, None, tuple(run.rows))

    async def load_many(self, run_ids: Sequence[str], /) -> Sequence[LoadedRun]:
        found = [await MemoryStore.load(self, run_id) for run_id in run_ids]
        return [loaded for loaded in found if loaded is not None]

    async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
        self._live()
        if serving is not None:
            return self._shared(now_us, limit, turn, serving).run_ids
        levels: dict[bool, dict[int, list[DueRun]]] = {True: {}, False: {}}
        for run in self.data.candidates(None):
            if run.due[0] <= now_us:
                levels[run.begun].setdefault(-run.priority, []).append(run.due)
        begun, new = ([level for _, level in sorted(found.items())] for found in levels.values())
        return share(begun, new, limit, turn)

    def _shared(self, now_us: int, limit: int, turn: int, serving: Serving) -> Shared:
        found = [run for run in self.data.candidates(serving) if run.due[0] <= now_us]
        return share_served(found, found, serving, self._last_tenant, limit, turn)

    async def next_due_us(self, serving: Serving | None = None, /) -> int | None:
        self._live()
        if serving is None:
            return self.data.next_due_us()
        return min((run.due[0] for run in self.data.candidates(serving)), default=None)

    async def pick(self, worker: str, now_us: int, limit: int, turn: int, serving: Serving, /) -> Sequence[str]:
        self._live()
        shared = self._shared(now_us, limit, turn, serving)
        self._last_tenant = shared.last(self._last_tenant)
        for run_id in shared.run_ids:
            self.data.pick(run_id, worker)
        return shared.run_ids

    async def unpick(self, worker: str, run_ids: Sequence[str], due_us: int, /) -> int:
        chosen = set(run_ids)
        return self._sweep(
            lambda run, state: run.run_id in chosen and state.worker == worker and state.status != "running",
            lambda state: replace(state, worker="", due_us=due_us),
        )

    async def owned(self, worker: str, /) -> Sequence[str]:
        self._live()
        return [run.run_id for run in self.data.runs() if run.state is not None and run.state.worker == worker]

    async def attention(self, worker: str, /) -> Sequence[str]:
        self._live()
        return [run.run_id for run in self.data.runs() if run.attention and run.state and run.state.worker == worker]

    def on_change(self, listener: Callable[[Change], None], /) -> None:
        self._change.append(listener)

    @asynccontextmanager
    async def attending(self) -> AsyncGenerator[None]:
        self._attending += 1
        try:
            yield
        finally:
            self._attending -= 1

    def on_trouble(self, listener: Callable[[Trouble], None], /) -> None:
        """Nothing can go wrong here."""

    async def list_runs(
        self, where: RunFilter, /, *, after: ListPlace | None = None, oldest_first: bool = False, limit: int = 50
    ) -> RunPage:
        self._live()
        places = sorted(((place_of(where, row), row) for row in self._rows(where)), key=_in_order)
        if not oldest_first:
            places.reverse()
        if after is not None:
            behind = (after.at_us, after.locator)
            places = [
                pair for pair in places if (_in_order(pair) > behind) == oldest_first and _in_order(pair) != behind
            ]
        shown = places[:limit]
        return RunPage(tuple(row for _, row in shown), shown[-1][0] if len(places) > limit else None)

    async def count_runs(self, where: RunFilter, /, *, cap: int | None = None) -> RunCounts:
        self._live()
        counts: dict[tuple[str, str], int] = {}
        for row in self._rows(where):
            key = row.run.pipeline, row.state.status
            counts[key] = counts.get(key, 0) + 1
        more = frozenset(key for key, number in counts.items() if cap is not None and number > cap)
        return RunCounts({key: cap if key in more and cap is not None else n for key, n in counts.items()}, more)

    async def ids_from(self, prefix: str, limit: int, /) -> Sequence[str]:
        self._live()
        ids = [row.run.run_id for row in self._rows(RunFilter()) if row.run.run_id.startswith(prefix)]
        return sorted(ids, reverse=True)[:limit]

    def _rows(self, where: RunFilter) -> list[RunRow]:
        rows = [self.data.row(run) for run in self.data.runs()]
        return [row for row in rows if row is not None and fits(where, row)]

    # --- sweeps and registry

    async def take_over(self, now_us: int, /) -> int:
        alive = workers.alive(self.data) if self.data.shared else set[str]()
        return self._sweep(
            lambda run, state: bool(state.worker) and state.worker not in alive,
            lambda state: replace(
                state, status="ready" if state.status == "running" else state.status, worker="", due_us=now_us
            ),
        )

    async def clock_us(self) -> int | None:
        return None

    async def register(self, worker: WorkerRow, /) -> None:
        self._live()
        self._worker = worker.id
        workers.register(self.data, worker)
        self._committed()

    async def renew(self, worker: str, now_us: int, /, *, draining: bool = False) -> bool:
        self._live()
        return workers.renew(self.data, worker, now_us, draining=draining)

    async def bury(self, worker: str, beat: int, /) -> bool:
        self._live()
        return workers.bury(self.data, worker, beat)

    async def retire(self, worker: str, /) -> None:
        self._live()
        self.data.workers.pop(worker, None)

    async def workers(self) -> Sequence[WorkerRow]:
        self._live()
        return workers.workers(self.data)

    async def generations(self) -> dict[str, int]:
        self._live()
        return {known.pipeline: known.generation for known in sorted(self.data.registry, key=lambda d: d.generation)}

    async def wake_invalid(self, generations: Mapping[str, int], build: str | None, now_us: int, /) -> int:
        def judged_elsewhere(run: MemoryRun, state: IndexState) -> bool:
            generation = None if run.new is None else generations.get(run.new.pipeline)
            if generation is None or state.worker or state.status != "invalid":
                return False
            if build is None:
                return state.generation < generation
            return (state.generation, state.build) != (generation, build)

        return self._sweep(judged_elsewhere, lambda state: replace(state, due_us=now_us))

    async def wake_resting(self, pipeline: str, signature: bytes, now_us: int, /) -> int:
        def rests_there(run: MemoryRun, state: IndexState) -> bool:
            mine = run.new is not None and run.new.pipeline == pipeline and not state.worker and not run.waiting
            later = state.due_us is None or state.due_us > now_us
            return mine and later and state.status == "ready" and state.signature == signature

        return self._sweep(rests_there, lambda state: replace(state, due_us=now_us))

    def _sweep(
        self, chosen: Callable[[MemoryRun, IndexState], bool], change: Callable[[IndexState], IndexState]
    ) -> int:
        self._live()
        self._flush()
        count = 0
        for run in self.data.runs():
            if run.state is not None and chosen(run, run.state):
                self.data.put_row(run, change(run.state))
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

    async def hold_pipeline(self, hold: PipelineHold, /) -> bool:
        self._live()
        held = self.data.hold(hold)
        if held:
            for run in self.data.runs():  # whoever was given a place and cannot start gives it back
                if run.new is not None and run.new.pipeline == hold.pipeline and run.state is not None:
                    self.data.limits.give_back(run.locator, run.state)
            self._committed()
        return held

    async def release_pipeline(self, pipeline: str, actor: str, note: str, at_us: int, /) -> bool:
        self._live()
        released = self.data.release_hold(pipeline, actor, note, at_us)
        if released:
            self.data.limits.mend(at_us)
            self._committed()
        return released

    async def pipeline_holds(self, *, history: bool = False) -> Sequence[PipelineHold]:
        self._live()
        return [hold for hold in self.data.pipeline_holds if history or not hold.released_us]

    async def schedules(self) -> Sequence[ScheduleState]:
        self._live()
        return [state for _, state in sorted(self.data.schedules.items())]

    async def put_schedule(self, new: ScheduleState, known: ScheduleState | None, /) -> bool:
        self._live()
        if self.data.schedules.get(new.id) != known:
            return False
        self.data.schedules[new.id] = new
        self._committed()
        return True

    async def grant_slots(self, now_us: int, /) -> int:
        self._live()
        self._flush()
        granted = self.data.grant_slots(now_us)
        self._committed()
        return granted

    async def limits(self) -> Sequence[LimitUse]:
        self._live()
        self._flush()
        return self.data.mutexes.entrances.shown(self.data.limits.uses())

    async def resize_limits(self, bounds: Mapping[str, int], /) -> None:
        self._live()
        self._flush()
        self.data.limits.resize(bounds)

    async def grant_permits(self, now_us: int, /) -> int:
        self._live()
        self._flush()
        in_line = self.data.limits.waiting
        for run in self.data.runs():
            if run.state is None or run.new is None or run.state.status != "ready" or run.state.due_us is None:
                continue
            if run.state.due_us <= now_us and workers.is_stranded(self.data, run.new.pipeline, run.state.generation):
                self.data.limits.give_back(run.locator, run.state)
        self.data.limits.mend(now_us)
        self._committed()
        return in_line - self.data.limits.waiting

    @property
    def notes(self) -> Notebook:
        self._live()
        self._flush()
        return MemoryNotebook(self.data)

    async def anybody_waits(self) -> bool:
        self._live()
        return self.data.awaits.any

    async def waiting_runs(self) -> WaitingRuns:
        self._live()
        return self.data.waiting_runs()

    async def claim_key(self, key: SubmissionKey, now_us: int, /) -> SubmissionKey:
        self._live()
        self._flush()
        known = self.data.key_in_force(key, now_us)
        if known is None:
            self.data.put_key(key)
            self._committed()
        return known or key

    async def forget_keys(self, now_us: int, /) -> int:
        self._live()
        return self.data.forget_keys(now_us)

    async def count_ended(self, before_us: int, /) -> int:
        self._live()
        return len(retention.removable(self.data, before_us))

    async def ended_runs(self, before_us: int, limit: int, /, *, after: EndedRun | None = None) -> Sequence[EndedRun]:
        self._live()
        return retention.page(self.data, before_us, limit, after)

    async def remove_ended(self, before_us: int, limit: int, /) -> int:
        self._live()
        self._flush()
        old = retention.removable(self.data, before_us)[:limit]
        for run in old:
            self.data.remove(run)
        self._committed()
        return len(old)

    async def remove_runs(self, runs: Sequence[RunTail], /) -> int:
        self._live()
        self._flush()
        removed = retention.remove(self.data, runs)
        self._committed()
        return removed

    async def insert_ended(self, new: NewRun, state: IndexState, ended_us: int, rows: Sequence[JournalRow], /) -> bool:
        self._live()
        self._flush()
        inserted = retention.insert(self.data, new, state, ended_us, rows)
        self._committed()
        return inserted

    async def ledgers(self) -> Sequence[LedgerCount]:
        self._live()
        return self.data.ledgers()

    async def resting_ledgers(self, pipeline: str, /) -> dict[bytes, bytes]:
        self._live()
        mine = [entry for entry in self.data.ledgers() if entry.pipeline == pipeline]
        return {entry.signature: entry.ledger for entry in mine if entry.signature}

    async def reclaim(self) -> int:
        self._live()
        self.data.forget_ledgers()
        return 0

    async def info(self) -> dict[str, str | int]:
        runs = self.data.runs()
        return {
            "kind": "memory",
            "runs": sum(run.state is not None for run in runs),
            "journal_rows": sum(len(run.rows) for run in runs),
            "size_bytes": sum(len(row.facts) for run in runs for row in run.rows),
        }


def _in_order(pair: tuple[ListPlace, RunRow]) -> tuple[int, int]:
    return pair[0].at_us, pair[0].locator
