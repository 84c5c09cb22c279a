"""Engines that are broken on purpose, one promise each: what the simulation has to notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from perdure.core import commit, reconciler
from perdure.core import plan as planning
from perdure.core.facts import (
    Fact,
    OperationFailed,
    Phase,
    RetryCause,
    RunSubmitted,
    SegmentAttemptStarted,
)
from perdure.core.operations import Operation, RunOp
from perdure.core.projection import Projection, memo_key
from perdure.core.reconciler import Lists
from perdure.core.topology import Topology
from perdure.ports.joining import Journal
from perdure.ports.store import Append, AppendResult, Committed, IndexState, NewRun, Store
from perdure.runtime import applying, indexing
from perdure.runtime.client import Client
from perdure.runtime.engine import Engine
from perdure.runtime.host import Host
from perdure.runtime.live import LiveRun
from perdure.storage.memory import MemoryStore
from perdure.storage.memory_data import MemoryData, MemoryRun

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A broken engine.

    Attributes:
        rules: one of them is blamed when it is found, or a rule that begins so.
        shared: it is one of many workers.
        limited: there are limits and mutexes.
    """

    name: str
    rules: tuple[str, ...]
    apply: Patch
    shared: bool = False
    limited: bool = False


def emits(patch: pytest.MonkeyPatch, emit: Callable[[Projection, list[Fact], Fact, int], None]) -> None:
    """Every part of the planner plans its facts so."""
    for module in ("commit", "attempts", "waits", "units"):
        patch.setattr(f"perdure.core.{module}.emit", emit)


def acknowledges_before_the_append(patch: pytest.MonkeyPatch) -> None:
    async def append(store: Store, append: Append, tell: Callable[[str], None]) -> AppendResult:
        _ = store.append(append)
        tell(append.run_id)
        return Committed(append.locator)

    patch.setattr("perdure.runtime.submitting.append_and_tell", append)
    patch.setattr("perdure.runtime.outside.append_and_tell", append)


def wakes_nobody_when_the_caller_is_gone(patch: pytest.MonkeyPatch) -> None:
    async def append(store: Store, append: Append, tell: Callable[[str], None]) -> AppendResult:
        result = await asyncio.shield(store.append(append))
        if isinstance(result, Committed):
            tell(append.run_id)
        return result

    patch.setattr("perdure.runtime.submitting.append_and_tell", append)
    patch.setattr("perdure.runtime.outside.append_and_tell", append)


def cancels_an_append_with_its_caller(patch: pytest.MonkeyPatch) -> None:
    async def append(store: Store, append: Append, tell: Callable[[str], None]) -> AppendResult:
        result = await store.append(append)
        if isinstance(result, Committed):
            tell(append.run_id)
        return result

    patch.setattr("perdure.runtime.submitting.append_and_tell", append)
    patch.setattr("perdure.runtime.outside.append_and_tell", append)


def starts_a_handler_before_its_reservation_is_durable(patch: pytest.MonkeyPatch) -> None:
    class Impatient:
        def __init__(self, store: Store) -> None:
            self._store = store

        def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
            _ = self._store.append(append)
            done: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
            done.set_result(Committed(append.locator))
            return done

    original = applying.apply

    async def apply(host: Host, live: LiveRun, plan: planning.Plan, now_us: int) -> planning.Next | None:
        if plan.rest is not None:
            return await original(host, live, plan, now_us)
        store = host.store
        host.store = Impatient(store)  # type: ignore[assignment] # as much of a store as is used
        try:
            return await original(host, live, plan, now_us)
        finally:
            host.store = store

    for module in ("driver", "items", "children"):
        patch.setattr(f"perdure.runtime.{module}.apply", apply)


def reconciles_without(patch: pytest.MonkeyPatch, field: str) -> None:
    original = reconciler.reconcile

    def reconcile(p: Projection, topology: Topology) -> Operation:
        hidden = getattr(p, field)
        setattr(p, field, None)
        try:
            return original(p, topology)
        finally:
            setattr(p, field, hidden)

    patch.setattr("perdure.core.commit.reconcile", reconcile)


def ignores_cancels(patch: pytest.MonkeyPatch) -> None:
    reconciles_without(patch, "cancel")


def ignores_holds(patch: pytest.MonkeyPatch) -> None:
    reconciles_without(patch, "held")


def never_tells_a_handler_of_a_cancel(patch: pytest.MonkeyPatch) -> None:
    def must_stop(self: LiveRun) -> bool:
        return False

    patch.setattr(LiveRun, "must_stop", must_stop)


def goes_on_without_reading_after_a_conflict(patch: pytest.MonkeyPatch) -> None:
    async def reload(self: LiveRun) -> None:
        self.noticed = False

    patch.setattr(LiveRun, "reload", reload)


def loses_the_due_time_of_what_it_lets_go(patch: pytest.MonkeyPatch) -> None:
    original = indexing.resting_state

    def resting_state(p: Projection, rest: planning.Rest, now_us: int) -> IndexState:
        state = original(p, rest, now_us)
        return replace(state, due_us=None) if isinstance(rest, planning.Closed) else state

    patch.setattr("perdure.runtime.applying.resting_state", resting_state)


def uses_an_attempt_number_twice(patch: pytest.MonkeyPatch) -> None:
    original = reconciler.reconcile

    def reconcile(p: Projection, topology: Topology) -> Operation:
        op = original(p, topology)
        return replace(op, attempt=max(1, op.attempt - 1)) if isinstance(op, RunOp) else op

    patch.setattr("perdure.core.commit.reconcile", reconcile)


def retries_too_early(patch: pytest.MonkeyPatch) -> None:
    original = commit.plan_claim

    def plan_claim(
        p: Projection,
        topology: Topology,
        claim: SegmentAttemptStarted,
        s: planning.Setting,
        *,
        lost_cause: RetryCause = "lost",
    ) -> planning.Plan:
        p.due_us = 0
        return original(p, topology, claim, s, lost_cause=lost_cause)

    patch.setattr("perdure.runtime.driver.plan_claim", plan_claim)


def takes_nothing_over(patch: pytest.MonkeyPatch) -> None:
    async def take_over(self: MemoryStore, now_us: int, /) -> int:
        return 0

    patch.setattr(MemoryStore, "take_over", take_over)


def joins_whatever_occupies_the_slot(patch: pytest.MonkeyPatch) -> None:
    async def equal(self: Client, submitted: RunSubmitted, run_id: str, digest: bytes, journal: Journal) -> bool:
        return True

    patch.setattr(Client, "_equal", equal)


def lets_two_runs_into_a_slot(patch: pytest.MonkeyPatch) -> None:
    def hold_slot(self: MemoryData, run: MemoryRun, new: NewRun) -> None:
        """Holds nothing."""

    patch.setattr(MemoryData, "_hold_slot", hold_slot)


def does_not_know_its_own_append(patch: pytest.MonkeyPatch) -> None:
    """The store forgets who wrote what: an append that is sent again is refused as somebody else's."""
    original = MemoryData.append

    def append(self: MemoryData, append: Append) -> AppendResult:
        return original(self, replace(append, append_id=append.append_id[:8] + self.commits.to_bytes(8, "big")))

    patch.setattr(MemoryData, "append", append)


def forgets_what_is_in_doubt(patch: pytest.MonkeyPatch) -> None:
    class Forgetful(Lists):
        def __init__(self, p: Projection, topology: Topology) -> None:
            super().__init__(p, topology)
            self.in_doubt = ()

    patch.setattr("perdure.core.commit.Lists", Forgetful)


def calls_every_canceled_step_clean(patch: pytest.MonkeyPatch) -> None:
    original = planning.emit

    def emit(p: Projection, facts: list[Fact], fact: Fact, at_us: int) -> None:
        if isinstance(fact, OperationFailed) and fact.failure.kind == "canceled":
            fact = replace(fact, in_doubt=False)
        original(p, facts, fact, at_us)

    emits(patch, emit)


def never_bounds_retries(patch: pytest.MonkeyPatch) -> None:
    def after_failure(*_: object) -> str:
        return "retry"

    patch.setattr("perdure.core.attempts.after_failure", after_failure)


def keeps_memos_to_itself(patch: pytest.MonkeyPatch) -> None:
    async def memo(
        self: LiveRun, step_id: str, phase: Phase, name: str, value: bytes, item: int | None = None, /
    ) -> None:
        self.p.memos.setdefault(memo_key(phase, step_id, item), {})[name] = value

    patch.setattr(LiveRun, "memo", memo)


def ends_without_asking_for_appended_steps(patch: pytest.MonkeyPatch) -> None:
    """The topology of the submission is followed to the end, whatever is deployed later."""
    first: dict[str, Topology] = {}
    original = reconciler.reconcile

    def reconcile(p: Projection, topology: Topology) -> Operation:
        return original(p, first.setdefault(p.run_id, topology))

    patch.setattr("perdure.core.commit.reconcile", reconcile)


def submits_without_a_wake_up(patch: pytest.MonkeyPatch) -> None:
    def silence(self: Engine, *_: str) -> None:
        """Tells nobody."""

    patch.setattr(Engine, "_notify", silence)
    patch.setattr(Engine, "_on_change", silence)


MUTANTS = (
    Mutant("acknowledges before the append", ("R-5", "R-12", "R-17"), acknowledges_before_the_append),
    Mutant(
        "wakes nobody when the caller is gone",
        ("R-16", "R-12", "R-17", "R-5", "B-21"),
        wakes_nobody_when_the_caller_is_gone,
    ),
    Mutant("cancels an append with its caller", ("J-14",), cancels_an_append_with_its_caller),
    Mutant("starts a handler early", ("M-8", "R-15"), starts_a_handler_before_its_reservation_is_durable),
    Mutant("ignores cancels", ("E-12", "R-12", "R-16"), ignores_cancels),
    Mutant("ignores holds", ("R-17", "R-15"), ignores_holds),
    Mutant("never tells a handler of a cancel", ("R-12",), never_tells_a_handler_of_a_cancel),
    Mutant(
        "skips the reload after a conflict",
        ("J-8", "J-11", "M-15", "R-12", "R-16"),
        goes_on_without_reading_after_a_conflict,
    ),
    Mutant("loses the due time on drain", ("R-16",), loses_the_due_time_of_what_it_lets_go),
    Mutant("uses an attempt number twice", ("J-8",), uses_an_attempt_number_twice),
    Mutant("retries too early", ("R-4",), retries_too_early),
    Mutant("takes nothing over", ("R-16",), takes_nothing_over),
    Mutant("joins other input", ("R-5",), joins_whatever_occupies_the_slot),
    Mutant("lets two runs into a slot", ("M-1",), lets_two_runs_into_a_slot),
    Mutant("does not know its own append again", ("J-8", "J-14", "I-1", "R-5"), does_not_know_its_own_append),
    Mutant("forgets what is in doubt", ("U-9",), forgets_what_is_in_doubt),
    Mutant("calls canceled steps clean", ("R-12",), calls_every_canceled_step_clean),
    Mutant("never bounds retries", ("M-5",), never_bounds_retries),
    Mutant("keeps memos to itself", ("M-15",), keeps_memos_to_itself),
    Mutant("follows the first topology", ("E-", "U-", "R-15"), ends_without_asking_for_appended_steps),
    Mutant("wakes nobody", ("R-16", "R-12", "R-17"), submits_without_a_wake_up),
)
"""Every one is found within `SEEDS` seeds, or by the one in `FIRST_SEEDS`."""

SEEDS = 400

FIRST_SEEDS: Mapping[str, int] = {
    "has no gate before effects": 52,
    "wakes nobody when the caller is gone": 40,
    "never tells a handler of a cancel": 37,
    "forgets the keys of messages": 33,
    "takes the last message": 30,
    "retries too early": 22,
    "has no gate before appends": 22,
    "forgets keys": 20,
    "calls failed items clean": 18,
    "counts while it cannot renew": 16,
    "passes nothing by sleeping": 13,
    "gives up what is executed": 10,
    "ends sleeps when released": 10,
    "goes on after its death": 9,
    "begins items after one failed": 8,
    "gives other input the run of a key": 7,
    "calls a handler for an open sleep": 7,
    "wakes nobody": 6,
    "looks only before it waits": 6,
    "gives up without doubt": 5,
}
"""The seeds that are known to find them, asked before the others; a change of the simulation may move them."""
