"""Engines that break a promise to a run that does nothing: asleep, to be asked later, given up, held, or in a queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perdure.core import commit, reconciler, reducer
from perdure.core import plan as planning
from perdure.core.facts import Fact, OperationParked, OperationRetryScheduled, RunReleased, RunSubmitted
from perdure.core.operations import CancelOp, InvalidOp, Operation, RunOp, UnwindOp, WaitOp
from perdure.core.outcomes import Outcome, Postponed
from perdure.core.projection import Projection
from perdure.core.reconciler import Lists
from perdure.core.topology import Topology
from perdure.ports.joining import Journal
from perdure.ports.store import Append, Candidate, RunRow, Serving, SubmissionKey
from perdure.runtime.client import Client
from perdure.runtime.engine import Engine
from perdure.storage.memory_data import MemoryData, MemoryRun, Slot
from tests.simulation.mutants import Mutant, emits


def forgets(patch: pytest.MonkeyPatch, kind: type[Fact], **changes: object) -> None:
    """Facts of a kind are written otherwise."""
    original = planning.emit

    def emit(p: Projection, facts: list[Fact], fact: Fact, at_us: int) -> None:
        original(p, facts, replace(fact, **changes) if isinstance(fact, kind) else fact, at_us)

    emits(patch, emit)


def folds_otherwise(patch: pytest.MonkeyPatch, kind: type[Fact], after: Callable[[Projection], None]) -> None:
    """A projection is not what the facts say."""
    folds: dict[type, Callable[[Projection, Fact, int], None]] = getattr(reducer, "_FOLDS")  # noqa: B009 # private
    original = folds[kind]

    def fold(p: Projection, fact: Fact, at_us: int) -> None:
        original(p, fact, at_us)
        after(p)

    patch.setitem(folds, kind, fold)


def ends_sleeps_when_released(patch: pytest.MonkeyPatch) -> None:
    def at_once(p: Projection) -> None:
        p.due_us = 0

    folds_otherwise(patch, RunReleased, at_once)


def sleeps_too_short(patch: pytest.MonkeyPatch) -> None:
    original = planning.emit

    def emit(p: Projection, facts: list[Fact], fact: Fact, at_us: int) -> None:
        if isinstance(fact, OperationParked):
            fact = replace(fact, due_us=at_us + (fact.due_us - at_us) // 2)
        original(p, facts, fact, at_us)

    emits(patch, emit)


def passes_nothing_by_sleeping(patch: pytest.MonkeyPatch) -> None:
    forgets(patch, OperationParked, passed=())


def opens_sleeps_after_a_cancel(patch: pytest.MonkeyPatch) -> None:
    original = reconciler.reconcile

    def reconcile(p: Projection, topology: Topology) -> Operation:
        op = original(p, topology)
        if isinstance(op, CancelOp) and topology.steps[op.position].shape == "sleep":
            return WaitOp(op.step, op.position, "sleep", open=p.pin == op.step)
        return op

    patch.setattr("perdure.core.commit.reconcile", reconcile)


def takes_a_handler_for_a_sleep(patch: pytest.MonkeyPatch) -> None:
    """An open sleep whose step is called now is called: the shape is not looked at."""
    original = reconciler.reconcile

    def reconcile(p: Projection, topology: Topology) -> Operation:
        op = original(p, topology)
        if isinstance(op, InvalidOp) and op.reason == "shape-changed" and p.pin is not None and p.parked():
            return RunOp(p.pin, topology.position[p.pin], 1, started=True)
        return op

    patch.setattr("perdure.core.commit.reconcile", reconcile)


def asks_a_poll_too_early(patch: pytest.MonkeyPatch) -> None:
    original = commit.plan_outcome

    def plan_outcome(
        p: Projection, topology: Topology, op: RunOp | UnwindOp, outcome: Outcome, s: planning.Setting
    ) -> planning.Plan:
        if isinstance(outcome, Postponed):
            outcome = Postponed(outcome.delay_us // 2)
        return original(p, topology, op, outcome, s)

    patch.setattr("perdure.runtime.driver.plan_outcome", plan_outcome)


def says_later_for_an_error(patch: pytest.MonkeyPatch) -> None:
    original = planning.emit

    def emit(p: Projection, facts: list[Fact], fact: Fact, at_us: int) -> None:
        if isinstance(fact, OperationRetryScheduled) and fact.cause == "error":
            fact = replace(fact, cause="later")
        original(p, facts, fact, at_us)

    emits(patch, emit)


def gives_up_what_is_executed(patch: pytest.MonkeyPatch) -> None:
    def permit(force: bool) -> Callable[[RunRow], None]:
        return lambda row: None

    patch.setattr("perdure.runtime.operating._permit_abandon", permit)

    def never(append: Append) -> bool:
        return False

    patch.setattr("perdure.storage.memory_data.ends_from_outside", never)  # the store would not have it


def gives_up_without_doubt(patch: pytest.MonkeyPatch) -> None:
    class Forgetful(Lists):
        def __init__(self, p: Projection, topology: Topology) -> None:
            super().__init__(p, topology)
            self.in_doubt = ()

    patch.setattr("perdure.core.admission.Lists", Forgetful)


def holds_no_pipeline(patch: pytest.MonkeyPatch) -> None:
    async def on_holds(self: Engine) -> None:
        """Takes no note."""

    original = MemoryData.candidates

    def candidates(self: MemoryData, serving: Serving | None) -> list[Candidate]:
        hidden, self.pipeline_holds = self.pipeline_holds, []
        try:
            return original(self, serving)
        finally:
            self.pipeline_holds = hidden

    patch.setattr(Engine, "_on_holds", on_holds)
    patch.setattr(MemoryData, "candidates", candidates)


def lets_the_last_go_first(patch: pytest.MonkeyPatch) -> None:
    original: Callable[[MemoryData, Slot, int], bool] = getattr(MemoryData, "_grant")  # noqa: B009 # private

    def grant(self: MemoryData, slot: Slot, now_us: int) -> bool:
        waiting: dict[Slot, dict[int, MemoryRun]] = getattr(self, "_waiting")  # noqa: B009 # private
        others = waiting.pop(slot, {})
        if others:
            last = max(others)
            waiting[slot] = {last: others.pop(last)}
        granted = original(self, slot, now_us)
        if others:
            waiting[slot] = others | waiting.get(slot, {})
        return granted

    patch.setattr(MemoryData, "_grant", grant)


def passes_no_slot_on(patch: pytest.MonkeyPatch) -> None:
    def grant(self: MemoryData, slot: Slot, now_us: int) -> bool:
        return False

    patch.setattr(MemoryData, "_grant", grant)


def replaces_nobody(patch: pytest.MonkeyPatch) -> None:
    async def make_place(self: Client, actor: str) -> None:
        """Cancels nobody."""

    patch.setattr(Client, "_make_place", make_place)


def forgets_keys(patch: pytest.MonkeyPatch) -> None:
    def put_key(self: MemoryData, key: SubmissionKey) -> None:
        """Forgets it."""

    patch.setattr(MemoryData, "put_key", put_key)


def gives_other_input_the_run_of_a_key(patch: pytest.MonkeyPatch) -> None:
    async def under_key(
        self: Client, submitted: RunSubmitted, key: SubmissionKey, run_id: str, digest: bytes, journal: Journal
    ) -> str:
        return run_id

    patch.setattr(Client, "_under_key", under_key)


AT_REST = (
    Mutant("ends sleeps when released", ("R-4",), ends_sleeps_when_released),
    Mutant("sleeps too short", ("B-20",), sleeps_too_short),
    Mutant("passes nothing by sleeping", ("E-7",), passes_nothing_by_sleeping),
    Mutant("opens sleeps after a cancel", ("R-12",), opens_sleeps_after_a_cancel),
    Mutant("calls a handler for an open sleep", ("D-1", "J-8"), takes_a_handler_for_a_sleep),
    Mutant("asks a poll too early", ("R-4",), asks_a_poll_too_early),
    Mutant("says later for an error", ("M-17",), says_later_for_an_error),
    Mutant("gives up what is executed", ("D-7",), gives_up_what_is_executed),
    Mutant("gives up without doubt", ("U-9",), gives_up_without_doubt),
    Mutant("holds no pipeline", ("R-17",), holds_no_pipeline),
    Mutant("lets the last go first", ("R-5",), lets_the_last_go_first),
    Mutant("passes no slot on", ("R-16", "M-1"), passes_no_slot_on),
    Mutant("replaces nobody", ("R-5",), replaces_nobody),
    Mutant("forgets keys", ("R-5",), forgets_keys),
    Mutant("gives other input the run of a key", ("R-5",), gives_other_input_the_run_of_a_key),
)
"""Every one is found within `SEEDS` seeds."""
