"""What a store in memory keeps, and what every append does to it: the rules of the port, written once and plainly."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from perdure.ports.records import ends_from_outside
from perdure.ports.store import (
    TERMINAL,
    Append,
    AppendResult,
    Candidate,
    Committed,
    Conflict,
    Deployment,
    Fenced,
    Gone,
    IndexState,
    JournalRow,
    KeyUsed,
    LedgerCount,
    LimitReached,
    NewRun,
    RunRow,
    ScheduleState,
    Serving,
    SlotTaken,
    Snapshot,
    SubmissionKey,
    WaitCycle,
    WaitingRuns,
    WorkerRow,
)
from perdure.storage.ledgers import Counted, merged
from perdure.storage.memory_awaits import MemoryAwaits
from perdure.storage.memory_holds import MemoryHolds
from perdure.storage.memory_limits import MemoryLimits
from perdure.storage.memory_mutexes import MemoryMutexes, without

Slot: TypeAlias = tuple[str, str, str]

if TYPE_CHECKING:
    from perdure.storage.memory_base import MemoryBase


def slot_of(new: NewRun | None) -> Slot | None:
    """The slot that a run takes, or waits for."""
    return None if new is None or new.slot_key is None else (new.tenant, new.pipeline, new.slot_key)


@dataclass(slots=True)
class MemoryRun:
    """One run: its journal, and the index row if it was not lost; `lost_by` owned it then."""

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
    lost_by: str = ""

    def add(self, append: Append) -> None:
        row = JournalRow(
            append.first_seq, append.count, append.at_us, append.append_id, append.hash, bytes(append.facts)
        )
        self.rows.append(row)
        self.at[row.first_seq] = row

    @property
    def waiting(self) -> bool:
        """It waits for its slot."""
        return self.new is not None and bool(self.new.waits) and not self.slot_held and self.ended_us is None


class MemoryData(MemoryHolds):
    """What a `MemoryStore` keeps. It can outlive the store, as a file outlives a process.

    `MemoryStore(data)` reopens it.

    Attributes:
        shared: any number of engines may work on it, as on a server; see `Store.shared`.
        owner: worker id of the engine that owns it, or None; where it is shared, always None.
        workers: who works on it, by id.
        schedules: by id.
        commits: number of groups committed, for tests that count.
        passed_on: something was passed on to other runs, and nobody has been told yet.
    """

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        self.shared = shared
        self.owner: str | None = None
        self.workers: dict[str, WorkerRow] = {}
        self.commits, self.passed_on = 0, False
        self._runs: dict[int, MemoryRun] = {}
        self._by_id: dict[str, MemoryRun] = {}
        self._slots: dict[Slot, MemoryRun] = {}
        self._waiting: dict[Slot, dict[int, MemoryRun]] = {}
        self._keys: dict[Slot, SubmissionKey] = {}
        self._due: dict[int, int] = {}
        self.registry: list[Deployment] = []
        self._ledgers: dict[bytes, bytes] = {}
        self.schedules: dict[str, ScheduleState] = {}
        self.awaits = MemoryAwaits(self._is_live, self._by_id.__contains__, self._keeps_waiting)
        self.limits = MemoryLimits(self._may_start, lambda run, us: self.set_due(self._runs[run], us, ""))
        self.mutexes = MemoryMutexes()
        self._numbers = itertools.count(1)
        self.stores: list[MemoryBase] = []

    def lose_index(self) -> None:
        """Forget every index row and snapshot, as a careless hand might; the journal stays. For tests of rebuilding."""
        for run in self._runs.values():
            run.lost_by = run.state.worker if run.state is not None else run.lost_by
            run.new = run.state = run.snapshot = run.ended_us = None
            run.attention = run.slot_held = False
        self._slots.clear()
        self._waiting.clear()
        self._due.clear()
        self.awaits.clear()
        self.limits.clear()
        self.mutexes.clear()

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
        unasked = ends_from_outside(append) and run.state is not None and bool(run.state.worker)
        if taken is not None or before is None or before.hash != append.prev_hash or unasked:
            return Conflict()
        if append.token and self._closes_a_circle(run, append.index):
            return WaitCycle()
        if append.permits is not None:
            full = self.limits.refused(run.locator, append.permits, append.at_us)
            if full is not None:
                return LimitReached(full.limit, full.key)
            if run.ended_us is None:
                self.limits.take(run.locator, append.permits, append.at_us)
        run.add(append)
        self._append_index(run, append)
        return Committed(run.locator)

    def _append_new(self, append: Append, new: NewRun) -> AppendResult:
        known = self._by_id.get(append.run_id)
        if known is not None:
            mine = bool(known.rows) and known.rows[0].append_id == append.append_id
            return Committed(known.locator) if mine else Conflict()
        if append.key is not None:
            taken = self.key_in_force(append.key, append.at_us)
            if taken is not None:
                return KeyUsed(taken.run_id, taken.input_digest)
        slot = slot_of(new)
        if slot is not None and not new.waits:
            holder = self._slots.get(slot)
            if holder is not None and holder.new is not None:
                return SlotTaken(holder.run_id, holder.new.input_digest)
        excluded = self.mutexes.refused(new)
        if excluded is not None:
            return excluded
        full = self.limits.refused(0, append.permits or (), append.at_us)
        if full is not None:
            return LimitReached(full.limit, full.key)
        run = self.add(new)
        self.mutexes.take(run.locator, new)
        if append.key is not None:
            self.put_key(append.key)
        if slot is not None and not new.waits:
            self._hold_slot(run, new)
        run.add(append)
        if append.permits and not (append.index is not None and append.index.status in TERMINAL):
            self.limits.take(run.locator, append.permits, append.at_us)
        self._append_index(run, append)
        if slot is not None and run.waiting:
            self._waiting.setdefault(slot, {})[run.locator] = run
            self._grant(slot, append.at_us)
        return Committed(run.locator)

    def add(self, new: NewRun) -> MemoryRun:
        """A run of that id, with nothing in it; there must be none."""
        run = MemoryRun(next(self._numbers), new.run_id, new=without(new))
        self._runs[run.locator] = self._by_id[run.run_id] = run
        return run

    def _append_index(self, run: MemoryRun, append: Append) -> None:
        outside = append.token == 0 and append.new is None
        if outside and run.state is not None and run.state.worker:
            run.attention = True
        elif append.index is not None and run.new is not None:
            self.set_state(run, append.index)
            if append.index.status in TERMINAL:
                self._end(run, append.at_us)
                self._wait_no_more(run)
                if not run.new.slot_once:
                    self._pass_slot_on(run, append.at_us)

    def set_index(self, locator: int, state: IndexState, tail_seq: int) -> bool | WaitCycle:
        run = self._runs.get(locator)
        if run is None or run.state is None or run.rows[-1].first_seq != tail_seq:
            return False
        if state.tail_hash not in (b"", run.rows[-1].hash):
            return False
        if self._closes_a_circle(run, state):
            return WaitCycle()
        self.set_state(run, state)
        return True

    def _closes_a_circle(self, run: MemoryRun, state: IndexState | None) -> bool:
        return state is not None and state.status == "ready" and self.awaits.closes_a_circle(run.run_id, state.awaits)

    def set_state(self, run: MemoryRun, state: IndexState) -> None:
        if state.ledger:
            self._ledgers[state.signature] = state.ledger
            state = replace(state, ledger=b"")
        at_us = state.at_us
        enough = self.awaits.put(run.run_id, () if state.status in TERMINAL else state.awaits, state.need)
        if enough or self._closes_a_circle(run, state):
            state = replace(state, due_us=state.at_us if state.status == "ready" else state.due_us)
        permits = state.permits if state.status == "ready" and not state.worker else ()
        state = replace(state, awaits=(), need=0, at_us=0, permits=())
        self.put_row(run, state)
        if state.worker:
            self.limits.claimed(run.locator, ended=run.ended_us is not None)
            return
        due_us = self.limits.rests(run.locator, permits, at_us, begun=state.token > 0, ended=run.ended_us is not None)
        if due_us is not None and permits:
            first_us = min(due_us, due_us if state.due_us is None else state.due_us)
            self.put_row(run, replace(state, due_us=first_us, reason="" if due_us == at_us else state.reason))

    def put_row(self, run: MemoryRun, state: IndexState) -> None:
        """Write a row; what the run waits for stays as it is."""
        run.state = state
        run.attention = False
        if state.due_us is None:
            self._due.pop(run.locator, None)
        else:
            self._due[run.locator] = state.due_us

    def _end(self, run: MemoryRun, at_us: int) -> None:
        known, run.ended_us = run.ended_us, at_us
        self.limits.ended(run.locator)
        self.mutexes.free(run.locator)
        for waiter in self.awaits.ended(run.run_id) if known is None else ():
            other = self._by_id[waiter]
            if other.state is not None and other.state.status == "ready" and not other.state.worker:
                self.set_due(other, at_us, other.state.reason)

    def _keeps_waiting(self, run_id: str) -> bool:
        """It waits, or will when it is released; one that is invalid may come to do something else."""
        run = self._by_id.get(run_id)
        return run is not None and run.state is not None and run.state.status in ("ready", "held")

    def _may_start(self, locator: int) -> bool:
        new, state = self._runs[locator].new, self._runs[locator].state
        held = {hold.pipeline for hold in self.pipeline_holds if not hold.released_us}
        return new is not None and new.pipeline not in held and state is not None and state.status == "ready"

    def _is_live(self, run_id: str) -> bool:
        run = self._by_id.get(run_id)
        return run is not None and run.ended_us is None

    def _hold_slot(self, run: MemoryRun, new: NewRun) -> None:
        if new.slot_key is not None:
            self._slots[new.tenant, new.pipeline, new.slot_key] = run
            run.slot_held = True

    def _free_slot(self, run: MemoryRun) -> None:
        if run.slot_held and run.new is not None and run.new.slot_key is not None:
            del self._slots[run.new.tenant, run.new.pipeline, run.new.slot_key]
        run.slot_held = False

    def _pass_slot_on(self, run: MemoryRun, at_us: int) -> None:
        slot = slot_of(run.new) if run.slot_held else None
        self._free_slot(run)
        if slot is not None:
            self._grant(slot, at_us)

    def _wait_no_more(self, run: MemoryRun) -> None:
        slot = slot_of(run.new)
        if slot is not None and slot in self._waiting:
            self._waiting[slot].pop(run.locator, None)
            if not self._waiting[slot]:
                del self._waiting[slot]

    def _grant(self, slot: Slot, now_us: int) -> bool:
        """Give a slot to whoever has waited longest for it, unless somebody has it."""
        if slot in self._slots or slot not in self._waiting:
            return False
        run = self._waiting[slot][min(self._waiting[slot])]
        self._wait_no_more(run)
        if run.new is not None and run.state is not None:
            self._hold_slot(run, run.new)
            if run.state.status in ("ready", "invalid") and not run.state.worker:
                self.set_due(run, now_us, "")
        return True

    def grant_slots(self, now_us: int) -> int:
        granted = sum(self._grant(slot, now_us) for slot in list(self._waiting))
        for run in self._waiting_runs():
            state, deadline_us = run.state, run.new.deadline_us if run.new is not None else 0
            if state is None or state.due_us is None or state.worker or state.canceling:
                continue
            if not deadline_us or deadline_us > now_us:
                self.set_due(run, deadline_us or None, state.reason)
        return granted

    def set_due(self, run: MemoryRun, due_us: int | None, reason: str) -> None:
        """Write when a run is due, and nothing else but why."""
        if run.state is not None:
            self.passed_on = True
            attention = run.attention
            self.put_row(run, replace(run.state, due_us=due_us, reason=reason))
            run.attention = attention

    def _waiting_runs(self) -> list[MemoryRun]:
        return [run for runs in self._waiting.values() for run in runs.values()]

    def waiting_runs(self) -> WaitingRuns:
        superseded: set[str] = set()
        for slot, runs in self._waiting.items():
            last = max((n for n, run in runs.items() if _replaces(run)), default=0)
            holder = self._slots.get(slot)
            before = [run for n, run in runs.items() if n < last] + ([holder] if last and holder is not None else [])
            superseded.update(
                run.run_id
                for run in before
                if run.locator < last and run.state is not None and not run.state.canceling and run.ended_us is None
            )
        return WaitingRuns(sum(len(runs) for runs in self._waiting.values()), tuple(sorted(superseded)))

    def key_in_force(self, key: SubmissionKey, now_us: int) -> SubmissionKey | None:
        known = self._keys.get((key.tenant, key.pipeline, key.key))
        return known if known is not None and known.expires_us > now_us else None

    def put_key(self, key: SubmissionKey) -> None:
        self._keys[key.tenant, key.pipeline, key.key] = key

    def forget_keys(self, now_us: int) -> int:
        old = [name for name, key in self._keys.items() if key.expires_us <= now_us]
        for name in old:
            del self._keys[name]
        return len(old)

    def put_snapshot(self, locator: int, snapshot: Snapshot) -> None:
        run = self._runs.get(locator)
        if run is not None:
            run.snapshot = snapshot

    def remove(self, run: MemoryRun) -> None:
        self._pass_slot_on(run, run.ended_us or 0)
        self.limits.ended(run.locator)
        self.mutexes.free(run.locator)
        self.awaits.put(run.run_id, (), 0)
        self._due.pop(run.locator, None)
        del self._runs[run.locator]
        del self._by_id[run.run_id]

    def restore(self, run: MemoryRun, new: NewRun, state: IndexState, ended_us: int | None, slot_held: bool) -> None:
        self._free_slot(run)
        self._wait_no_more(run)
        self.awaits.put(run.run_id, (), 0)
        if ended_us is not None:
            self._end(run, ended_us)
        self.mutexes.restore(run.locator, new, ended=ended_us is not None)
        run.new, run.ended_us = without(new), ended_us
        self.set_state(run, state)
        if slot_held and new.slot_key is not None and (new.tenant, new.pipeline, new.slot_key) not in self._slots:
            self._hold_slot(run, new)
        slot = slot_of(new)
        if slot is not None and run.waiting:
            self._waiting.setdefault(slot, {})[run.locator] = run

    def forget_ledgers(self) -> None:
        used = {run.state.signature for run in self._runs.values() if run.state is not None}
        self._ledgers = {signature: ledger for signature, ledger in self._ledgers.items() if signature in used}

    # --- reading

    def row(self, run: MemoryRun) -> RunRow | None:
        if run.new is None or run.state is None:
            return None
        left = self.awaits.left(run.run_id)
        return RunRow(run.locator, run.new, run.state, run.ended_us, run.attention, run.waiting, left)

    def run(self, run_id: str) -> MemoryRun | None:
        return self._by_id.get(run_id)

    def at(self, locator: int) -> MemoryRun | None:
        return self._runs.get(locator)

    def runs(self) -> list[MemoryRun]:
        return list(self._runs.values())

    def candidates(self, serving: Serving | None) -> list[Candidate]:
        """All runs that have a due time, are not held, and are served by who serves this; longest due first."""
        held = {hold.pipeline for hold in self.pipeline_holds if not hold.released_us}
        found: list[Candidate] = []
        for due_us, locator in sorted((due_us, locator) for locator, due_us in self._due.items()):
            run = self._runs[locator]
            new, state = run.new, run.state
            if new is None or state is None or new.pipeline in held:
                continue
            if serving is None or state.generation <= serving.get(new.pipeline, -1):
                due = (due_us, locator, run.run_id)
                found.append(Candidate(due, new.pipeline, new.tenant, state.priority, state.token > 0))
        return found

    def next_due_us(self) -> int | None:
        if self.pipeline_holds:
            return min((run.due[0] for run in self.candidates(None)), default=None)
        return min(self._due.values(), default=None)

    def pick(self, run_id: str, worker: str) -> None:
        """A run is a worker's; nothing else of it changes."""
        run = self._by_id[run_id]
        if run.state is not None:
            run.state = replace(run.state, worker=worker, due_us=None)
            self._due.pop(run.locator, None)

    def ledgers(self) -> list[LedgerCount]:
        found: list[Counted] = []
        for run in self._runs.values():
            if run.new is None or run.state is None or run.state.status in TERMINAL or run.state.status == "corrupt":
                continue
            ledger = self._ledgers.get(run.state.signature, b"")
            signature = run.state.signature if ledger else b""
            first = run.run_id, run.new.submitted_us, run.locator
            found.append((run.new.pipeline, signature, ledger, 1, *first))
        return merged(found)


def _replaces(run: MemoryRun) -> bool:
    return run.new is not None and run.new.waits == "replace" and run.state is not None and not run.state.canceling
