"""Memory and every other store, driven by the same random operations, must agree on every answer [I-7]."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from perdure.core.facts import RunCancelRequested
from perdure.core.permits import Entrance, Permit
from perdure.core.signature import signature_of
from perdure.ports.listing import WAITS_FOR
from perdure.ports.store import (
    TERMINAL,
    Append,
    AppendResult,
    Committed,
    Conflict,
    Deployment,
    IndexState,
    LoadedRun,
    PipelineHold,
    RunFilter,
    RunStatus,
    RunTail,
    ScheduleState,
    Snapshot,
    Store,
    WorkerRow,
)
from perdure.storage import open_store
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.lab import T0, Draft
from tests.postgres import PostgresServer

T = TypeVar("T")

Ask = Callable[[Store], Awaitable[object]]
Place: TypeAlias = tuple[Callable[[], Store], Callable[[], None]]

STATUSES: tuple[RunStatus, ...] = (
    "ready",
    "running",
    "held",
    "invalid",
    "corrupt",
    "succeeded",
    "failed",
    "canceled",
)
TIMES = st.integers(T0, T0 + 20)
LEDGERS = [(signature_of(ledger), ledger) for ledger in (b"{}", b'{"pin":"a"}', b'{"pin":"\xc3\xa4"}')]


RUNS = st.sampled_from([f"run-{made * 7919 % 1000:03}" for made in range(1, 7)] + ["run-none"])


def _awaiting(state: IndexState, awaits: list[str], need: int, at_us: int) -> IndexState:
    return replace(state, awaits=tuple(awaits), need=need, at_us=at_us)


def _signed(state: IndexState, signed: tuple[bytes, bytes]) -> IndexState:
    return replace(state, signature=signed[0], ledger=signed[1])


UNSIGNED = st.builds(
    IndexState,
    status=st.sampled_from(STATUSES),
    due_us=st.none() | TIMES,
    worker=st.sampled_from(("", "", "w1", "w2")),
    token=st.integers(0, 3),
    generation=st.integers(0, 2),
    build=st.sampled_from(("", "b1", "b2")),
    reason=st.sampled_from(("", "backoff", "sleeping", "waits for message 'a'", "waits for its slot")),
    canceling=st.booleans(),
    step=st.sampled_from(("", "reserve/v1")),
    version=st.integers(0, 5),
    tail_hash=st.sampled_from((b"", bytes(32))),
    priority=st.sampled_from((0, 0, 0, -9, 1, 9)),
)
SIGNED = st.builds(_signed, UNSIGNED, st.sampled_from([(b"", b""), *LEDGERS]))
AWAITING = st.builds(_awaiting, SIGNED, st.lists(RUNS, max_size=4), st.integers(0, 3), TIMES)
PERMITS = st.lists(
    st.sampled_from(
        (
            Permit("bank", "a", "concurrency", 1),
            Permit("bank", "b", "concurrency", 1),
            Permit("cpu", "", "concurrency", 2),
            Permit("runs", "", "in_flight", 2),
            Permit("api", "", "rate", 5),
        )
    ),
    max_size=3,
    unique=True,
).map(tuple)


def _needy(state: IndexState, permits: tuple[Permit, ...], at_us: int) -> IndexState:
    return replace(state, permits=permits, at_us=at_us, status="ready", worker="")


NEEDY = st.builds(_needy, UNSIGNED, PERMITS, TIMES)
STATES = SIGNED | AWAITING | NEEDY
LABELS = st.dictionaries(st.sampled_from(("team", "invoice")), st.sampled_from(("a", "ü")), max_size=2)
FILTERS = st.builds(
    RunFilter,
    pipeline=st.sampled_from((None, None, "payout", "refund")),
    tenant=st.sampled_from((None, None, "default", "acme")),
    resource=st.sampled_from((None, None, "slot-1", "run-001")),
    statuses=st.lists(st.sampled_from(STATUSES), max_size=2, unique=True).map(tuple),
    submitted_after_us=st.none() | TIMES,
    submitted_before_us=st.none() | TIMES,
    ended_after_us=st.none() | st.none() | TIMES,
    ended_before_us=st.none() | st.none() | st.none() | TIMES,
    step=st.sampled_from((None, None, None, "reserve/v1")),
    worker=st.sampled_from((None, None, None, "w1")),
    waiting=st.lists(st.sampled_from(WAITS_FOR), max_size=2, unique=True).map(tuple),
    annotations=LABELS.map(lambda labels: tuple(sorted(labels.items()))),
)
ENTRANCES = st.lists(
    st.sampled_from((Entrance("runs", "", 2, 1), Entrance("runs", "a", 1, 0), Entrance("few", "", 1, 1))),
    max_size=2,
    unique=True,
).map(tuple)
MUTEXES = st.lists(st.sampled_from(("a", "b")), max_size=2, unique=True).map(lambda names: tuple(sorted(names)))
PICK = st.integers(0, 10**6)
SERVING = st.dictionaries(st.sampled_from(("payout", "payout", "refund", "none")), st.integers(0, 3), max_size=3)


class Agreement(RuleBasedStateMachine):
    """The same operations on both stores; every answer is compared, but for the numbers of runs.

    `place` gives the other store's place, one for each history: how a store is opened there, and how it is left.
    """

    server_clock = False
    """Rates go by another clock there, and are left out."""

    @staticmethod
    def place() -> Place:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.make, self.leave = self.place()
        self.other: Store = self.make()
        self.data = MemoryData(shared=self.other.shared)
        self.memory: Store = MemoryStore(self.data)
        self.drafts: list[Draft] = []
        self.numbers: dict[str, tuple[int, int]] = {}
        self.sent: list[Append] = []
        self.made = 0

    @initialize()
    def opens(self) -> None:
        for store in (self.memory, self.other):
            self.loop.run_until_complete(store.open(owner="w1"))

    def teardown(self) -> None:
        for store in (self.memory, self.other):
            self.loop.run_until_complete(store.close())
        self.loop.close()
        self.leave()

    # --- asking both

    def both(self, ask: Ask) -> object:
        """Ask both stores; the answers are equal but for the runs' numbers."""
        first = self.loop.run_until_complete(_awaited(ask(self.memory)))
        second = self.loop.run_until_complete(_awaited(ask(self.other)))
        assert _without_numbers(first) == _without_numbers(second)
        return first

    def send(self, append: Append) -> AppendResult:
        memory, other = self.numbers.get(append.run_id, (10**9, 10**9))
        new = append.new is not None
        append = replace(append, permits=self.timeless(append.permits), index=self.placed(append.index))
        mine = replace(append, locator=0 if new else memory)
        theirs = replace(append, locator=0 if new else other)
        first = self.loop.run_until_complete(_awaited(self.memory.append(mine)))
        second = self.loop.run_until_complete(_awaited(self.other.append(theirs)))
        assert _without_numbers(first) == _without_numbers(second)
        if isinstance(first, Committed) and isinstance(second, Committed):
            self.numbers.setdefault(append.run_id, (first.locator, second.locator))
        self.sent.append(append)
        return first

    def timeless(self, permits: tuple[Permit, ...] | None) -> tuple[Permit, ...] | None:
        """Without rates, where they go by another clock."""
        if permits is None or not self.server_clock:
            return permits
        return tuple(permit for permit in permits if permit.kind != "rate")

    def placed(self, state: IndexState | None) -> IndexState | None:
        """The same of a row."""
        return None if state is None else replace(state, permits=self.timeless(state.permits) or ())

    def draft(self, pick: int) -> Draft:
        return self.drafts[pick % len(self.drafts)]

    # --- appends

    @rule(
        state=STATES,
        slot=st.sampled_from((None, None, "slot-1", "slot-2")),
        once=st.booleans(),
        pipeline=st.sampled_from(("payout", "payout", "refund")),
        tenant=st.sampled_from(("default", "default", "acme")),
        at_us=TIMES,
        token=st.integers(0, 1),
        labels=LABELS,
        permits=st.none() | PERMITS,
        mutexes=st.just(()) | MUTEXES,
        entrances=st.just(()) | ENTRANCES,
    )
    def submits(
        self,
        state: IndexState,
        slot: str | None,
        once: bool,
        pipeline: str,
        tenant: str,
        at_us: int,
        token: int,
        labels: dict[str, str],
        permits: tuple[Permit, ...] | None,
        mutexes: tuple[str, ...],
        entrances: tuple[Entrance, ...],
    ) -> None:
        self.made += 1
        run_id = f"run-{self.made * 7919 % 1000:03}"
        draft = Draft(
            run_id, slot=slot, once=once, pipeline=pipeline, tenant=tenant, submitted_us=at_us, annotations=labels
        )
        draft.new = replace(draft.new, mutexes=mutexes if slot else (), entrances=entrances)
        append = draft.submit(state, token)
        append.permits = permits
        result = self.send(append)
        if isinstance(result, Committed):
            draft.accept(append, result)
            self.drafts.append(draft)

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK, token=st.integers(0, 3), index=st.none() | STATES, at_us=TIMES)
    def appends(self, pick: int, token: int, index: IndexState | None, at_us: int) -> None:
        draft = self.draft(pick)
        append = draft.next(RunCancelRequested("someone"), token=token, index=index, at_us=at_us)
        result = self.send(append)
        if isinstance(result, Committed):
            draft.accept(append, result)

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK, awaits=st.lists(RUNS, min_size=1, max_size=3), need=st.integers(1, 2), owner=st.booleans())
    def rests_and_awaits(self, pick: int, awaits: list[str], need: int, owner: bool) -> None:
        """As a parked run does: circles, runs that have ended and runs that are not there come up often [R-16]."""
        draft = self.draft(pick)
        state = IndexState("ready", token=3, awaits=tuple(awaits), need=need, at_us=T0 + 15)
        append = draft.next(RunCancelRequested("someone"), token=3 * owner, index=state)
        result = self.send(append)
        if isinstance(result, Committed):
            draft.accept(append, result)

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK, permits=st.none() | PERMITS, index=st.none() | STATES, owned=st.booleans(), at_us=TIMES)
    def takes_places(
        self, pick: int, permits: tuple[Permit, ...] | None, index: IndexState | None, owned: bool, at_us: int
    ) -> None:
        """As a step does whose limits have to have places, or a claim [R-11]."""
        draft = self.draft(pick)
        if owned:
            index = IndexState("running", worker="w1", token=3)
        append = draft.next(RunCancelRequested("someone"), token=3, index=index, at_us=at_us)
        append.permits = permits
        result = self.send(append)
        if isinstance(result, Committed):
            draft.accept(append, result)

    @rule(now_us=TIMES, size=st.integers(1, 3))
    def mends_limits(self, now_us: int, size: int) -> None:
        self.both(lambda store: store.resize_limits({"cpu": size, "other": 1}))
        self.both(lambda store: store.grant_permits(now_us))

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK, at_us=TIMES)
    def ends(self, pick: int, at_us: int) -> None:
        draft = self.draft(pick)
        append = draft.next(RunCancelRequested("someone"), token=3, index=IndexState("failed", token=3), at_us=at_us)
        result = self.send(append)
        if isinstance(result, Committed):
            draft.accept(append, result)

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK, token=st.integers(0, 3), index=st.none() | STATES, after=PICK)
    def appends_too_late(self, pick: int, token: int, index: IndexState | None, after: int) -> None:
        draft = self.draft(pick)
        if len(draft.rows) > 1:
            self.send(draft.next(token=token, index=index, after=after % (len(draft.rows) - 1)))

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK, gap=st.integers(0, 3), token=st.integers(0, 3))
    def appends_onto_another_history(self, pick: int, gap: int, token: int) -> None:
        append = self.draft(pick).next(token=token)
        append.first_seq += gap
        append.prev_seq += gap
        append.prev_hash = bytes(32)
        assert not isinstance(self.send(append), Committed)

    @precondition(lambda self: len(self.drafts) > 2)
    @rule(picks=st.lists(PICK, min_size=4, max_size=12), stale=PICK, token=st.integers(0, 3), index=st.none() | STATES)
    def appends_together(self, picks: list[int], stale: int, token: int, index: IndexState | None) -> None:
        index = self.placed(index)
        drafts = {self.draft(pick).run_id: self.draft(pick) for pick in picks}
        appends = [draft.next(token=token, index=index) for draft in drafts.values()]
        appends[stale % len(appends)].prev_hash = bytes(32)
        self.sent += appends
        numbers = [self.numbers[append.run_id] for append in appends]
        answers: list[list[AppendResult]] = []
        for which, store in enumerate((self.memory, self.other)):
            group = [replace(append, locator=pair[which]) for append, pair in zip(appends, numbers, strict=True)]
            answers.append(self.loop.run_until_complete(_together(store, group)))
        assert _without_numbers(answers[0]) == _without_numbers(answers[1])
        for append, result in zip(appends, answers[0], strict=True):
            if isinstance(result, Committed):
                drafts[append.run_id].accept(append, result)

    @precondition(lambda self: bool(self.sent))
    @rule(pick=PICK)
    def sends_again(self, pick: int) -> None:
        self.send(self.sent[pick % len(self.sent)])

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK)
    def submits_a_known_id(self, pick: int) -> None:
        again = Draft(self.draft(pick).run_id, pipeline="other")
        append = again.submit()
        append.append_id = bytes(16)
        assert self.send(append) == Conflict()

    # --- index rows

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK, state=STATES, behind=st.booleans(), known=st.booleans())
    def sets_the_index(self, pick: int, state: IndexState, behind: bool, known: bool) -> None:
        draft = self.draft(pick)
        if known:
            state = replace(state, tail_hash=draft.rows[-1].hash)
        tail = draft.rows[0].first_seq if behind else draft.tail
        memory, other = self.numbers[draft.run_id]
        state = self.placed(state) or state
        self.both(lambda store: store.set_index(memory if store is self.memory else other, state, tail))

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK, row=PICK, fits=st.booleans())
    def snapshots(self, pick: int, row: int, fits: bool) -> None:
        draft = self.draft(pick)
        folded = draft.rows[row % len(draft.rows)]
        version = folded.first_seq + folded.count - 1
        snapshot = Snapshot(folded.first_seq, folded.hash if fits else bytes(32), version, 1, b"{}")
        memory, other = self.numbers[draft.run_id]
        self.memory.put_snapshot(memory, snapshot)
        self.other.put_snapshot(other, snapshot)
        self.both(lambda store: store.set_index(10**9, IndexState("ready"), 1))  # answered after the snapshot is in

    @rule()
    def reclaims(self) -> None:
        for store in (self.memory, self.other):
            self.loop.run_until_complete(store.reclaim())

    @rule(now_us=TIMES)
    def takes_over(self, now_us: int) -> None:
        self.both(lambda store: store.take_over(now_us))

    @rule(generation=st.integers(0, 2), build=st.sampled_from(("b1", "b2")), now_us=TIMES)
    def wakes_invalid(self, generation: int, build: str, now_us: int) -> None:
        self.both(lambda store: store.wake_invalid({"payout": generation}, build, now_us))

    @rule(pipeline=st.sampled_from(("payout", "refund")), at_us=TIMES)
    def holds_a_pipeline(self, pipeline: str, at_us: int) -> None:
        hold = PipelineHold(pipeline, "ada", "", at_us)
        self.both(lambda store: store.hold_pipeline(hold))
        self.both(lambda store: store.pipeline_holds(history=True))

    @rule(pipeline=st.sampled_from(("payout", "refund")), at_us=TIMES)
    def releases_a_pipeline(self, pipeline: str, at_us: int) -> None:
        self.both(lambda store: store.release_pipeline(pipeline, "eve", "", at_us))

    @rule(id=st.sampled_from(("daily", "hourly")), at_us=TIMES, known=st.sampled_from(("none", "real", "old")))
    def moves_a_schedule(self, id: str, at_us: int, known: str) -> None:
        new = ScheduleState(id, "payout", "every 60 s", at_us, paused_us=at_us % 2)
        states = {state.id: state for state in self.loop.run_until_complete(self.memory.schedules())}
        seen = states.get(id) if known == "real" else None if known == "none" else new
        self.both(lambda store: store.put_schedule(new, seen))
        self.both(lambda store: store.schedules())

    @precondition(lambda self: self.data.shared)
    @rule(id=st.sampled_from(("w1", "w2")), what=st.sampled_from(("register", "renew", "bury", "retire", "take over")))
    def is_a_worker(self, id: str, what: str) -> None:
        row = WorkerRow(id, "host", 7, T0, {"payout": 1}, seen_us=T0)
        beats = {row.id: row.beat for row in self.loop.run_until_complete(self.memory.workers())}
        if what == "register":
            self.both(lambda store: store.register(row))
        elif what == "renew":
            self.both(lambda store: store.renew(id, T0 + 1, draining=True))
        elif what == "bury":
            self.both(lambda store: store.bury(id, beats.get(id, 0)))
        elif what == "retire":
            self.both(lambda store: store.retire(id))
        else:
            self.both(lambda store: store.take_over(T0 + 7))
        self.both(lambda store: store.workers())
        self.both(lambda store: store.owned(id))

    @rule(generation=st.integers(1, 3), pipeline=st.sampled_from(("payout", "refund")))
    def deploys(self, generation: int, pipeline: str) -> None:
        deployment = Deployment(pipeline, generation, f"digest-{self.made}", b"[]", T0, "someone")
        self.both(lambda store: store.deploy(deployment))

    @rule(before_us=TIMES)
    def removes(self, before_us: int) -> None:  # all at once: which go first is each store's own business
        self.both(lambda store: store.count_ended(before_us))
        self.both(lambda store: store.remove_ended(before_us, 10**6))
        rows = self.loop.run_until_complete(self.memory.list_runs(RunFilter(), limit=10**6)).rows
        kept = {row.run.run_id for row in rows}
        self.drafts = [draft for draft in self.drafts if draft.run_id in kept]

    @rule(before_us=TIMES, back=st.booleans())
    def archives(self, before_us: int, back: bool) -> None:
        first, second = self.archived(self.memory, before_us, back), self.archived(self.other, before_us, back)
        assert _without_numbers(first) == _without_numbers(second)
        for mine, other in zip(first, second, strict=True):
            self.numbers[mine.row.run.run_id] = mine.row.locator, other.row.locator
        if not back:
            gone = {run.row.run.run_id for run in first}
            self.drafts = [draft for draft in self.drafts if draft.run_id not in gone]

    def archived(self, store: Store, before_us: int, back: bool) -> list[LoadedRun]:
        """What retention takes, removed; and put back, if it is to be and ended properly."""
        return self.loop.run_until_complete(_archived(store, before_us, back))

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK, state=STATES, ended_us=st.none() | TIMES, held=st.booleans())
    def restores(self, pick: int, state: IndexState, ended_us: int | None, held: bool) -> None:
        draft = self.draft(pick)
        memory, other = self.numbers[draft.run_id]
        state = self.placed(state) or state
        self.both(
            lambda store: store.restore_index(
                memory if store is self.memory else other, draft.new, state, ended_us, slot_held=held
            )
        )

    @rule(abort=st.booleans())
    def reopens(self, abort: bool) -> None:
        for store in (self.memory, self.other):
            if abort:
                self.loop.run_until_complete(_awaited(store.attention("w1")))  # whatever was queued has been written
                store.abort()
            else:
                self.loop.run_until_complete(store.close())
        self.memory, self.other = MemoryStore(self.data), self.make()
        self.opens()

    # --- reads

    @rule(now_us=TIMES, limit=st.integers(1, 5), turn=st.integers(0, 15))
    def asks_what_is_due(self, now_us: int, limit: int, turn: int) -> None:
        self.both(lambda store: store.due(now_us, limit, turn))

    @rule(now_us=TIMES, limit=st.integers(1, 5), turn=st.integers(0, 15), serving=SERVING)
    def asks_what_is_due_of_what_it_serves(self, now_us: int, limit: int, turn: int, serving: dict[str, int]) -> None:
        self.both(lambda store: store.due(now_us, limit, turn, serving))
        self.both(lambda store: store.next_due_us(serving))

    @rule(
        worker=st.sampled_from(("w1", "w2")),
        now_us=TIMES,
        limit=st.integers(1, 5),
        turn=st.integers(0, 15),
        serving=SERVING,
    )
    def picks(self, worker: str, now_us: int, limit: int, turn: int, serving: dict[str, int]) -> None:
        due = self.both(lambda store: store.due(now_us, limit, turn, serving))
        picked = self.both(lambda store: store.pick(worker, now_us, limit, turn, serving))
        assert picked == due

    @rule(worker=st.sampled_from(("w1", "w2")), run_ids=st.lists(RUNS, max_size=4), due_us=TIMES)
    def gives_back(self, worker: str, run_ids: list[str], due_us: int) -> None:
        self.both(lambda store: store.unpick(worker, run_ids, due_us))
        self.both(lambda store: store.load_many(list(dict.fromkeys(run_ids))))

    @rule(where=FILTERS, oldest_first=st.booleans(), limit=st.integers(1, 4))
    def lists(self, where: RunFilter, oldest_first: bool, limit: int) -> None:
        self.both(lambda store: _pages(store, where, oldest_first, limit))
        self.both(lambda store: store.count_runs(where))
        self.both(lambda store: store.ids_from("run-9", limit))

    @precondition(lambda self: bool(self.drafts))
    @rule(pick=PICK)
    def reads_a_run(self, pick: int) -> None:
        draft = self.draft(pick)
        self.both(lambda store: store.load(draft.run_id))
        self.both(lambda store: store.load_all_rows(draft.run_id))
        self.both(lambda store: _rows_of(store, draft.run_id))

    @invariant()
    def nothing_differs(self) -> None:
        if self.made:
            self.both(lambda store: store.list_runs(RunFilter(), limit=10**6))
            self.both(lambda store: store.attention("w1"))
            self.both(lambda store: store.next_due_us())
            self.both(lambda store: store.deployments())
            self.both(lambda store: store.ledgers())
            self.both(lambda store: store.anybody_waits())
            self.both(lambda store: store.limits())
            self.both(lambda store: store.count_ended(10**18))


async def _archived(store: Store, before_us: int, back: bool) -> list[LoadedRun]:
    found: list[LoadedRun] = []
    for run in sorted(await store.ended_runs(before_us, 10**6), key=lambda run: run.run_id):
        loaded = await store.load_all_rows(run.run_id)
        if loaded is not None and loaded.row.state.status in TERMINAL:
            found.append(loaded)
    tails = [RunTail(run.row.locator, run.rows[-1].first_seq, run.rows[-1].hash) for run in found]
    assert await store.remove_runs(tails) == len(found)
    if not back:
        return found
    for old in found:
        assert await store.insert_ended(old.row.run, old.row.state, old.row.ended_us or 0, old.rows)
    again = [await store.load_all_rows(old.row.run.run_id) for old in found]
    return [run for run in again if run is not None]


async def _pages(store: Store, where: RunFilter, oldest_first: bool, limit: int) -> list[object]:
    """All pages of a list. `limit` decides where they end, and nothing else."""
    found: list[object] = []
    page = await store.list_runs(where, oldest_first=oldest_first, limit=limit)
    found.append(page.rows)
    while page.next is not None:
        page = await store.list_runs(where, after=page.next, oldest_first=oldest_first, limit=limit)
        found.append(page.rows)
    return found


async def _rows_of(store: Store, run_id: str) -> object:
    found = await store.journal_of(run_id)
    return None if found is None else list(found[1])


async def _together(store: Store, appends: list[Append]) -> list[AppendResult]:
    return list(await asyncio.gather(*[store.append(append) for append in appends]))


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer


def _without_numbers(answer: object) -> object:
    """Answers with the runs' numbers struck out, as plain values."""
    plain: object = msgspec.to_builtins(answer)
    return _struck(plain)


def _struck(value: object) -> object:
    if isinstance(value, dict):
        fields = cast("dict[object, object]", value)
        return {key: 0 if key == "locator" else _struck(inner) for key, inner in fields.items()}
    if isinstance(value, (list, tuple)):
        return [_struck(inner) for inner in cast("list[object]", value)]
    return value


SETTINGS = settings(
    stateful_step_count=40,
    deadline=None,
    database=None,
    phases=(Phase.generate,),  # a history is short enough to read; shrinking it would take minutes of real files
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
)


class WithSqlite(Agreement):
    @staticmethod
    def place() -> Place:
        folder = Path(tempfile.mkdtemp(prefix="perdure-agreement-"))
        return lambda: SqliteStore(folder / "store.db"), lambda: shutil.rmtree(folder)


def _with_postgres(server: PostgresServer) -> type[Agreement]:
    class WithPostgres(Agreement):
        server_clock = True

        @staticmethod
        def place() -> Place:
            url = server.url()
            return lambda: open_store(url), lambda: None

    return WithPostgres


@pytest.mark.long
@pytest.mark.usefixtures("files_in_memory")
def test_agreement() -> None:
    run_state_machine_as_test(WithSqlite, settings=settings(SETTINGS, max_examples=50, derandomize=True))


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_agreement_at_length() -> None:
    run_state_machine_as_test(WithSqlite, settings=settings(SETTINGS, max_examples=1500))


@pytest.mark.long
def test_agreement_with_postgres(postgres: PostgresServer) -> None:
    machine = _with_postgres(postgres)
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=15, derandomize=True))


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_agreement_with_postgres_at_length(postgres: PostgresServer) -> None:
    run_state_machine_as_test(_with_postgres(postgres), settings=settings(SETTINGS, max_examples=500))
