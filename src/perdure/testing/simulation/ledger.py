"""What a judge knows of a run from its facts, and what the rules say comes next; written down as the rules are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from perdure.core.facts import (
    BoundaryOpened,
    BoundaryResolved,
    Fact,
    Failure,
    MessageReceived,
    OperationFailed,
    OperationParked,
    OperationProgress,
    OperationReserved,
    OperationResolved,
    OperationRetryScheduled,
    OperationSkipped,
    OperationSucceeded,
    OperationWoken,
    OutcomeCommitted,
    Phase,
    RunAbandoned,
    RunCancelRequested,
    RunFailed,
    RunHeld,
    RunReleased,
    RunSubmitted,
    RunSucceeded,
    SegmentAttemptStarted,
)
from perdure.core.topology import StepSpec, Topology
from perdure.testing.simulation.orders import Order
from perdure.testing.simulation.parts import base, index_of, part, said
from perdure.testing.simulation.unit import UNIT_FACTS, Unit, UnitFact


@dataclass
class Entry:
    """One step's forward operation.

    Attributes:
        until_us: of a sleep, when it is over; of another wait, when it has lasted too long.
        message, runs, need: what a wait is for, and how many of the runs have to end.
        unit: its items or child runs; with a state, or where an operator passed over it, it is the `former`.
    """

    status: Literal["unresolved", "succeeded", "skipped", "failed"]
    attempts: int = 0
    state: object = None
    in_doubt: bool = False
    until_us: int = 0
    message: str = ""
    runs: tuple[str, ...] | None = None
    need: int = 0
    unit: Unit | None = None
    former: Unit | None = None

    @property
    def asleep(self) -> bool:
        """It sleeps: it was begun without an attempt, and is not over."""
        waits = bool(self.message) or self.runs is not None
        return self.status == "unresolved" and self.until_us > 0 and not waits


@dataclass
class UnwindEntry:
    """One step's unwind operation."""

    status: Literal["unresolved", "succeeded", "failed"]
    attempts: int = 0


@dataclass(frozen=True)
class Selection:
    """What is next: a step, nothing (`step` is None), or that cannot be said (`invalid`)."""

    step: str | None
    invalid: str = ""


class Ledger:
    """See the module."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.seq: int = 0
        self.now_us = 0
        self.tail = b""
        self.submitted: RunSubmitted | None = None
        self.token = 0
        self.worker = ""
        self.generation = 0
        self.forward: dict[str, Entry] = {}
        self.unwind: dict[str, UnwindEntry] = {}
        self.passed: set[str] = set()
        self.crossed: set[str] = set()
        self.pin: str | None = None
        self.last_unwind: str | None = None
        self.open: tuple[Phase, str, int] | None = None
        self.current: tuple[Phase, str] | None = None
        self.failures = 0
        self.lost = 0
        self.due_us = 0
        self.cancel: RunCancelRequested | None = None
        self.held: RunHeld | None = None
        self.failure: Failure | None = None
        self.unwind_failures: list[Failure] = []
        self.memos: dict[tuple[Phase, str, str], object] = {}
        self.outcome: OutcomeCommitted | None = None
        self.ended: RunSucceeded | RunFailed | None = None
        self.abandoned: RunAbandoned | None = None
        self.unread: dict[str, list[MessageReceived]] = {}
        self.received: list[MessageReceived] = []
        self.woken: tuple[OperationWoken, MessageReceived | None] | None = None
        self.holds = 0
        self.releases = 0

    # --- folding

    def fold(self, fact: Fact) -> None:
        """Take a fact in."""
        match fact:
            case RunSubmitted():
                self.submitted = fact
                self.due_us = fact.start_at_us
            case SegmentAttemptStarted():
                self.token, self.worker, self.generation = fact.token, fact.worker, fact.generation
            case RunCancelRequested():
                self.cancel = fact
            case RunHeld():
                self.held = fact
                self.holds += 1
            case RunReleased():
                self.releases += 1
                self.held, self.failures, self.lost = None, 0, 0
                nap = self.asleep()
                if fact.retry or self.current is not None:
                    self.due_us = 0 if nap is None else nap.until_us
                if (unit := self.unit()) is not None:
                    unit.release()
            case RunAbandoned():
                self._fold_abandoned(fact)
            case MessageReceived():
                self.received.append(fact)
                self.unread.setdefault(fact.name, []).append(fact)
            case OperationWoken():
                unread = self.unread.get(self.forward[fact.step].message, [])
                self.woken = fact, (unread.pop(0) if fact.by == "message" and unread else None)
            case OutcomeCommitted():
                self.outcome = fact
            case RunSucceeded() | RunFailed():
                self.ended = fact
                self.held = None
            case OperationProgress():
                self.memos[fact.phase, part(fact.step, fact.item), fact.name] = msgspec.json.decode(fact.value)
            case _:
                self._fold_operation(fact)

    def _fold_abandoned(self, fact: RunAbandoned) -> None:
        if self.pin is not None:
            entry = self.forward[self.pin]
            entry.status, entry.in_doubt = "failed", entry.attempts > 0
        self.abandoned, self.failure = fact, fact.failure
        self.pin = self.open = self.held = None
        self.due_us = 0

    def _fold_operation(self, fact: Fact) -> None:
        match fact:
            case OperationReserved():
                self._fold_reserved(fact)
            case OperationSucceeded(step, _attempt, state, phase):
                self.open = None
                if phase == "forward":
                    self._progress(step, "succeeded", msgspec.json.decode(state))
                else:
                    self.unwind[step].status = "succeeded"
                self.woken = None
                self._end_operation(step)
            case OperationRetryScheduled():
                self.open = None
                self.due_us = fact.due_us
                if fact.cause == "later":
                    self.lost = 0
                elif fact.cause != "interrupted":
                    self.failures += 1
                    self.lost = self.lost + 1 if fact.cause == "lost" else 0
            case OperationFailed(step, failure, phase):
                self.open = None
                if phase == "unwind":
                    self.unwind[step].status = "failed"
                    self.unwind_failures.append(failure)
                else:
                    self._fail(step, failure, in_doubt=fact.in_doubt, passed=fact.passed)
                self._end_operation(step)
            case OperationSkipped(step, passed):
                self.passed |= set(passed)
                self._progress(step, "skipped", None)
                self.due_us = 0
            case OperationParked(step=step, due_us=due_us, passed=passed):
                message = fact.awaits[0] if fact.shape == "message" else ""
                runs = fact.awaits if fact.shape == "runs" else None
                self.forward[step] = Entry("unresolved", until_us=due_us, message=message, runs=runs, need=fact.need)
                self.pin, self.due_us = step, due_us if fact.shape == "sleep" else 0
                self.passed |= set(passed)
            case OperationResolved():
                self._fold_resolved(fact)
            case _ if isinstance(fact, UNIT_FACTS):
                self._fold_unit(fact)
            case _:
                pass

    def _fold_unit(self, fact: UnitFact) -> None:
        step = fact.step
        if isinstance(fact, BoundaryOpened):
            unit = Unit(fact.shape, [bytes(item) for item in fact.items], fact.pipeline, self.now_us)
            self.forward[step] = Entry("unresolved", unit=unit)
            self.pin, self.due_us = step, 0
            self.passed |= set(fact.passed)
            return
        entry = self.forward.get(step)
        if entry is None or entry.unit is None:
            return
        entry.attempts += entry.unit.fold(fact)
        if isinstance(fact, BoundaryResolved):
            self._progress(step, "succeeded", entry.unit.state(collect=fact.collect))
            self._end_operation(step)

    def _fold_reserved(self, fact: OperationReserved) -> None:
        step = fact.step
        self.open = (fact.phase, step, fact.attempt)
        if self.current != (fact.phase, step):
            self.current = (fact.phase, step)
            self.failures = self.lost = 0
        self.due_us = 0
        if fact.phase == "forward":
            self.forward.setdefault(step, Entry("unresolved")).attempts = fact.attempt
            self.pin = step
            self.passed |= set(fact.passed)
        else:
            self.unwind.setdefault(step, UnwindEntry("unresolved")).attempts = fact.attempt
            self.last_unwind = step
            self.crossed |= set(fact.crossed)

    def _fold_resolved(self, fact: OperationResolved) -> None:
        step = fact.step
        self.open = None  # of this step; or of one that was being unwound and is dropped by this [U-7]
        if fact.phase == "unwind":
            self.unwind.setdefault(step, UnwindEntry("unresolved")).status = (
                "succeeded" if fact.how == "value" else "failed"
            )
            if fact.how == "fail" and fact.failure is not None:
                self.unwind_failures.append(fact.failure)
            self.last_unwind = step
            self.crossed |= set(fact.crossed)
        elif fact.how == "fail" and fact.failure is not None:
            self._fail(step, fact.failure, in_doubt=self.attempts("forward", step) > 0, passed=fact.passed)
            if (unit := self.forward[step].unit) is not None:
                unit.fence()
        else:
            skipped = fact.how == "skip"
            self.passed |= set(fact.passed)
            state = None if skipped else msgspec.json.decode(fact.state)
            self._progress(step, "skipped" if skipped else "succeeded", state)
            self.forward[step].in_doubt = skipped and self.attempts("forward", step) > 0
        self._end_operation(step)

    def _progress(self, step: str, status: Literal["succeeded", "skipped"], state: object) -> None:
        entry = self.forward.setdefault(step, Entry("unresolved"))
        entry.status, entry.state = status, state
        entry.unit, entry.former = None, entry.unit
        self.pin = None

    def _fail(self, step: str, failure: Failure, *, in_doubt: bool, passed: tuple[str, ...]) -> None:
        entry = self.forward.setdefault(step, Entry("unresolved"))
        entry.status, entry.in_doubt = "failed", in_doubt
        self.pin, self.failure = None, failure
        self.passed |= set(passed)

    def _end_operation(self, step: str) -> None:
        self.due_us = 0
        if self.held is not None and self.held.step == step:
            self.held = None

    # --- asking

    def asleep(self) -> Entry | None:
        """The sleep that is open, if there is one."""
        entry = None if self.pin is None else self.forward[self.pin]
        return entry if entry is not None and entry.asleep else None

    def waiting(self) -> Entry | None:
        """The wait for a message that is open, if there is one."""
        entry = None if self.pin is None else self.forward[self.pin]
        return entry if entry is not None and entry.message else None

    def awaiting(self) -> Entry | None:
        """The wait for runs that is open, if there is one."""
        entry = None if self.pin is None else self.forward[self.pin]
        return entry if entry is not None and entry.runs is not None else None

    def unit(self) -> Unit | None:
        """The items, turns or child runs that the run stands at."""
        entry = None if self.pin is None else self.forward[self.pin]
        return None if entry is None else entry.unit

    def is_open(self, phase: Phase, step: str, number: int) -> bool:
        """Whether an attempt of a step, or of an item, is reserved, and nothing recorded of its end."""
        index = index_of(step)
        if index is None:
            return self.open == (phase, step, number)
        unit = self.unit() if self.pin == base(step) else None
        found = None if unit is None else unit.part(index)
        return found is not None and found.open and found.attempts == number

    def fates(self, step: str) -> list[str]:
        """What became of each item of a step that did not succeed; nothing of one that did [U-12]."""
        entry = self.forward.get(step)
        return entry.unit.fates() if entry is not None and entry.unit is not None else []

    def waits_for_message(self) -> bool:
        """Nothing is to be done before a message comes."""
        entry = self.waiting()
        return entry is not None and not self.unread.get(entry.message) and not entry.until_us and self.cancel is None

    def attempts(self, phase: Phase, step: str) -> int:
        """Attempts reserved so far, of a step or of an item."""
        entry = self.forward.get(base(step)) if phase == "forward" else self.unwind.get(step)
        index = index_of(step)
        if index is None:
            return 0 if entry is None else entry.attempts
        unit = (entry.unit or entry.former) if isinstance(entry, Entry) else None
        found = None if unit is None else unit.part(index)
        return 0 if found is None else found.attempts

    def state_text(self, step: str) -> str | None:
        """A committed state, as the handlers of the simulation return them."""
        entry = self.forward.get(step)
        done = entry is not None and entry.status == "succeeded" and entry.state is not None
        return said(entry.state) if entry is not None and done else None

    def memo_text(self, phase: Phase, step: str, name: str) -> str | None:
        """A recorded memo; an unwind handler sees those of its forward operation, unless it has one of its own."""
        own = self.memos.get((phase, step, name))
        found = own if own is not None else self.memos.get(("forward", step, name))
        return None if found is None else str(found)

    def order(self) -> Order | None:
        """The input."""
        return None if self.submitted is None else msgspec.json.decode(self.submitted.input, type=Order)

    def key(self) -> str:
        """The idempotency key under which it was submitted."""
        return "" if self.submitted is None else self.submitted.annotations.get("key", "")

    def output(self) -> object:
        """The committed output."""
        return None if self.outcome is None else msgspec.json.decode(self.outcome.output)

    # --- forward rules

    def next_forward(self, topology: Topology) -> Selection:
        """The next forward step [E-2 .. E-7, E-9]; conditions and time aside."""
        if self.pin is not None:
            return Selection(self.pin) if self.pin in topology.position else Selection(None, "step missing")
        counting = [step for step, entry in self.forward.items() if entry.status in ("succeeded", "skipped")]
        here = [topology.position[step] for step in counting if step in topology.position]
        if counting and not here:
            return Selection(None, "no safe frontier")
        for spec in topology.steps[max(here, default=-1) + 1 :]:
            if not spec.retired and spec.id not in self.passed:
                return Selection(spec.id)
        return Selection(None)

    def newly_passed(self, topology: Topology, step: str) -> set[str]:
        """What a reservation or skip of `step` passes [E-7]."""
        before = topology.ids[: topology.position.get(step, 0)]
        return {one for one in before if one not in self.forward and one not in self.passed}

    # --- unwind rules

    def had_effect(self, spec: StepSpec) -> bool:
        """U-2 (1), or U-12."""
        entry = self.forward.get(spec.id)
        return entry is not None and (entry.status == "succeeded" or (entry.in_doubt and spec.in_doubt))

    def next_unwind(self, topology: Topology) -> Selection:
        """The next step to unwind [U-2, U-3, U-5 .. U-7]."""
        last = self.last_unwind
        if last is not None and self.unwind[last].status == "unresolved" and last in topology.position:
            spec = topology.steps[topology.position[last]]
            if spec.unwind and self.had_effect(spec):
                return Selection(last)
        successes = [step for step, entry in self.forward.items() if entry.status == "succeeded"]
        for marks in (successes, list(self.crossed)):
            if marks and not any(step in topology.position for step in marks):
                return Selection(None, "no safe unwind frontier")
        frontier = min([topology.position[s] for s in self.crossed if s in topology.position], default=len(topology))
        for spec in reversed(topology.steps[:frontier]):
            if spec.unwind and self.had_effect(spec):
                return Selection(spec.id)
        return Selection(None)

    def newly_crossed(self, topology: Topology, step: str) -> set[str]:
        """What a reservation of the unwind of `step` crosses [U-4]."""
        return {one for one in topology.ids[topology.position.get(step, 0) :] if one not in self.crossed}

    # --- the lists of U-9

    def in_doubt(self) -> list[str]:
        """Steps in doubt, sorted."""
        return sorted(step for step, entry in self.forward.items() if entry.in_doubt)

    def lists(self, topology: Topology) -> list[list[str]]:
        """In doubt, half unwound, uncompensated, unavailable; each sorted."""
        half = sorted(step for step, entry in self.unwind.items() if entry.status == "unresolved")
        undone = {step for step, entry in self.unwind.items() if entry.status == "succeeded"}
        uncompensated = sorted(
            spec.id for spec in topology.steps if spec.unwind and self.had_effect(spec) and spec.id not in undone
        )
        unavailable: list[str] = []
        for step, entry in sorted(self.forward.items()):
            position = topology.position.get(step)
            if step in undone or (position is not None and topology.steps[position].unwind):
                continue
            if entry.status == "succeeded":
                lost = step in topology.ever_unwind
            else:
                lost = entry.in_doubt and step in topology.ever_in_doubt
            if lost:
                unavailable.append(step)
        return [self.in_doubt(), half, uncompensated, unavailable]
