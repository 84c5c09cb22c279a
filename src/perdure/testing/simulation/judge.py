"""The judge of one run: reads its journal append by append, and says which rule a fact breaks.

Written against the rules alone, slow and simple; it shares no decision with the core. What the journal says is compared
with the deployed topologies, and with what the world saw of the handlers.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from perdure.core.chain import chain_hash
from perdure.core.facts import (
    BoundaryCompletionAdmitted,
    BoundaryDispatchCompleted,
    BoundaryInteractionCreated,
    BoundaryInteractionDispatched,
    BoundaryOpened,
    BoundaryResolved,
    ContinuationSegmentCreated,
    Fact,
    ItemFailed,
    ItemOutputRecorded,
    ItemReserved,
    ItemRetryScheduled,
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
    SegmentCompleted,
    SegmentSuspended,
)
from perdure.core.topology import StepSpec, Topology
from perdure.ports.store import Append
from perdure.testing.simulation import items, kin, mail, pauses, retries
from perdure.testing.simulation.law import NOTICE_US, Law
from perdure.testing.simulation.ledger import Ledger, Selection
from perdure.testing.simulation.parts import base, part
from perdure.testing.simulation.unit import UNIT_FACTS, UnitFact

_FROM_OUTSIDE = (RunCancelRequested, RunHeld, RunReleased, RunAbandoned, OperationResolved, MessageReceived)


class Judge(Ledger):
    """See the module. One for each run; `on_append` is told of every row that was written."""

    def __init__(self, run_id: str, law: Law) -> None:
        super().__init__(run_id)
        self.law = law
        self.topology = Topology(())
        self.canceled_at_us: int | None = None
        self.resolved_at_us: dict[tuple[Phase, str], int] = {}
        self.ended_line = 0
        self.was_invalid = False
        self.told_us = 0
        self.suspended = False

    def blame(self, rule: str, problem: str) -> None:
        """A rule is broken."""
        self.law.blame(self.run_id, rule, problem)

    def demand(self, held: bool, rule: str, problem: str) -> None:
        """A rule holds, or is blamed."""
        if not held:
            self.blame(rule, problem)

    # --- one append

    def on_append(self, append: Append, facts: list[Fact]) -> None:
        """Judge one row that was just written."""
        self.demand(append.first_seq == self.seq + 1, "J-2", f"row {append.first_seq} follows fact {self.seq}")
        self.demand(append.count == len(facts), "J-2", f"row {append.first_seq} says {append.count} facts")
        self.demand(append.prev_hash == self.tail, "J-11", "the row does not chain")
        expected = chain_hash(
            self.tail, append.first_seq, append.count, append.at_us, append.append_id, bytes(append.facts)
        )
        self.demand(expected == append.hash, "J-11", "the row's hash is wrong")
        self.tail, self.now_us, self.told_us = append.hash, append.at_us, self.law.now_us()
        outside = append.token == 0 and append.new is None
        for at, fact in enumerate(facts):
            self.seq += 1
            self.demand(self.ended is None, "J-8", f"{type(fact).__name__} follows a terminal fact")
            if outside and self.abandoned is None:
                self.demand(isinstance(fact, _FROM_OUTSIDE), "J-6", f"{type(fact).__name__} came from outside")
            if self.outcome is not None:
                self.demand(isinstance(fact, (RunSucceeded, RunFailed)), "M-12", "something follows the outcome")
            self._judge(fact, facts[at + 1 :])
        if not outside:
            self.demand(
                append.token in (self.token, 0),
                "J-7",
                f"append under token {append.token}, newest claim is {self.token}",
            )
            self._judge_end(facts)

    def _judge_end(self, facts: list[Fact]) -> None:
        """What must not be left undone when an owner's append ends."""
        last = facts[-1]
        if not isinstance(last, (OperationSucceeded, BoundaryResolved)):
            return
        if self.held is not None or self.law.draining(self.worker):
            return
        selection = self.next_unwind(self.topology) if self.failure else self.next_forward(self.topology)
        excused = bool(selection.invalid) or self.law.broken(self.worker)
        excused = excused or self.law.limited(selection.step or "")
        excused = excused or self.law.held_lately(self.run_id, NOTICE_US)
        excused = excused or self.law.superseded(self.submitted.pipeline if self.submitted else "", self.generation)
        self.demand(excused, "J-12", f"success of {last.step} was appended without what follows ({selection})")

    def _judge(self, fact: Fact, rest: list[Fact]) -> None:
        match fact:
            case RunSubmitted():
                self._submitted(fact)
            case SegmentAttemptStarted():
                self._claimed(fact)
            case OperationReserved():
                self._reserved(fact)
            case OperationParked(shape="runs"):
                kin.judge_parked(self, fact)
            case OperationWoken() if self.awaiting() is not None:
                kin.judge_woken(self, fact)
            case MessageReceived() | OperationWoken() | OperationParked(shape="message"):
                mail.judge(self, fact)
            case OperationParked():
                pauses.judge_parked(self, fact)
            case OperationSucceeded(attempt=0) if self.waiting() is not None:
                mail.judge_ended(self, fact)
            case OperationSucceeded(attempt=0) if self.awaiting() is not None:
                kin.judge_over(self, fact)
            case SegmentSuspended():
                pauses.judge_suspended(self, fact)
            case ContinuationSegmentCreated():
                self.demand(self.suspended, "J-16", "a segment begins while the last one goes on")
                self.suspended = False
            case OperationSucceeded(attempt=0):
                pauses.judge_woken(self, fact)
            case OperationSucceeded():
                self._succeeded(fact)
            case OperationRetryScheduled():
                self._closes(fact.phase, fact.step, fact.attempt)
                retries.judge_retry(self, fact, rest)
            case OperationFailed():
                self._failed(fact)
            case OperationSkipped():
                self._skipped(fact)
            case OperationResolved():
                self._resolved(fact)
            case OperationProgress():
                self._progress_made(fact)
            case RunCancelRequested():
                self._cancel(fact)
            case RunAbandoned():
                pauses.judge_abandoned(self, fact, rest)
            case SegmentCompleted():
                self.demand(not self.suspended, "J-16", "a segment that has ended is complete")
            case RunHeld() | RunReleased() | OutcomeCommitted():
                pass
            case RunSucceeded():
                self._run_succeeded(fact)
            case RunFailed() if self.abandoned is not None:
                pauses.judge_given_up(self, fact)
            case RunFailed():
                self._run_failed(fact)
            case _ if isinstance(fact, UNIT_FACTS):
                self._judge_unit(fact, rest)
            case _:
                self.blame("J-8", f"no play makes a {type(fact).__name__}: the judge does not know it yet")
        self.fold(fact)

    def _judge_unit(self, fact: UnitFact, rest: list[Fact]) -> None:
        match fact:
            case BoundaryOpened():
                items.judge_opened(self, fact)
            case ItemReserved():
                items.judge_reserved(self, fact)
            case ItemRetryScheduled() | ItemOutputRecorded() | ItemFailed():
                items.judge_ended(self, fact, rest)
            case BoundaryResolved():
                items.judge_resolved(self, fact)
            case BoundaryInteractionCreated():
                kin.judge_created(self, fact)
            case BoundaryInteractionDispatched():
                kin.judge_dispatched(self, fact, rest)
            case BoundaryDispatchCompleted():
                kin.judge_all_dispatched(self, fact)
            case BoundaryCompletionAdmitted():
                kin.judge_admitted(self, fact)
            case _ as unreachable:
                assert_never(unreachable)

    def _progress_made(self, fact: OperationProgress) -> None:
        name = part(fact.step, fact.item)
        open_ = self.is_open(fact.phase, name, self.attempts(fact.phase, name))
        self.demand(open_, "M-15", f"{name} has no open attempt")
        self.demand((fact.phase, name, fact.name) not in self.memos, "M-15", f"memo {fact.name} of {name} twice")

    # --- run

    def _submitted(self, fact: RunSubmitted) -> None:
        self.demand(self.seq == 1 and fact.run_id == self.run_id, "J-8", "RunSubmitted is not the first fact")
        self.law.check_slot(self.run_id, fact)
        kin.check_submitted(self, fact)

    def _claimed(self, fact: SegmentAttemptStarted) -> None:
        self.demand(fact.token > self.token, "R-3", f"token {fact.token} does not rise above {self.token}")
        self.demand(fact.generation >= self.generation, "D-4", f"generation {fact.generation} after {self.generation}")
        lives = self.law.lives(fact.worker) or (self.law.shared and self.seq == 2)  # what is submitted is nobody else's
        self.demand(lives, "R-2", f"{fact.worker} claimed the run and is not alive")
        if self.submitted is not None:
            self.topology = self.law.topology(self.submitted.pipeline, fact.generation)

    def _cancel(self, fact: RunCancelRequested) -> None:
        self.demand(self.cancel is None, "R-12", "a second cancel was recorded")
        self.canceled_at_us = self.law.now_us()
        if fact.reason == "replaced" and self.submitted is not None:
            self.law.check_replaced(self.run_id, self.submitted)
        if fact.reason == "deadline":
            deadline_us = self.submitted.deadline_us if self.submitted is not None else 0
            self.demand(0 < deadline_us <= self.now_us, "R-12", f"deadline {deadline_us} at {self.now_us}")
            self.law.count("deadline passed")

    # --- forward and unwind

    def _due(self) -> None:
        self.demand(self.held is None, "R-17", "an attempt was reserved on a held run")
        self.demand(
            self.due_us <= self.now_us,
            "R-4",
            f"an attempt was reserved {self.due_us - self.now_us} us before it was due",
        )

    def _reserved(self, fact: OperationReserved) -> None:
        step = fact.step
        self._due()
        self.demand(self.token > 0, "J-16", "no claim came before")
        self.demand(self.open is None, "R-1", f"reserved while {self.open} is open")
        before = self.attempts(fact.phase, step)
        self.demand(fact.attempt == before + 1, "M-8", f"attempt {fact.attempt} of {step} follows {before}")
        if fact.phase == "unwind":
            selection = self.next_unwind(self.topology)
            self.demand(selection.step == step, "U-3", f"unwind of {step} was reserved, {selection} is next")
            expected = self.newly_crossed(self.topology, step)
            self.demand(set(fact.crossed) == expected, "U-4", f"{step} crossed {fact.crossed}, not {sorted(expected)}")
            return
        self.check_forward(step, fact.passed)
        self.demand(self.asleep() is None, "D-1", f"a handler of {step} is to be called for a sleep that is open")
        if self.cancel is not None:
            spec = self.spec(step)
            settles = spec is not None and spec.settle and self.pin == step
            self.demand(settles, "R-12", f"attempt {fact.attempt} of {step} was reserved after the cancel")
        spec = self.spec(step)
        if spec is not None and spec.conditional and before == 0:
            self.demand(self.law.holds(step, self.submitted), "E-12", f"{step} runs although its condition is false")
        if self.current == ("forward", step):
            retries.check_bound(self, step, self.failures, self.lost)

    def check_forward(self, step: str, passed: tuple[str, ...], *, exact: bool = True) -> None:
        """A step may be started, skipped or canceled now, and passes what it says [E-2, E-4 .. E-9]."""
        self.demand(self.failure is None, "E-2", f"{step} goes forward while the run unwinds")
        if self.submitted is not None and self.submitted.waits and not self.forward and self.cancel is None:
            self.law.check_turn(self.run_id, self.submitted)
        selection = self.next_forward(self.topology)
        self.demand(selection.step == step, "E-6", f"{step} was selected, {selection} is next")
        expected = self.newly_passed(self.topology, step)
        if exact or passed:
            self.demand(set(passed) == expected, "E-7", f"{step} passed {passed}, not {sorted(expected)}")
        for _ in passed:
            self.law.count("step passed")
        spec_at = self.topology.position.get(step, 0)
        for spec in self.topology.steps[:spec_at]:
            if spec.retired and spec.id not in self.forward and spec.id in passed:
                self.law.count("retired step bypassed")

    def sleep_us(self, step: str) -> int:
        """How long a step sleeps in the code of the newest owner; 0: it is called."""
        return self.law.sleep_us(self.worker, self.submitted.pipeline if self.submitted is not None else "", step)

    def patience_us(self, step: str) -> int:
        """How long a step waits for its message in the code of the newest owner; 0: for ever."""
        return self.law.patience_us(self.worker, self.submitted.pipeline if self.submitted is not None else "", step)

    def spec(self, step: str) -> StepSpec | None:
        """A step as deployed now."""
        position = self.topology.position.get(base(step))
        return None if position is None else self.topology.steps[position]

    def _skipped(self, fact: OperationSkipped) -> None:
        self.check_forward(fact.step, fact.passed)
        spec = self.spec(fact.step)
        self.demand(self.cancel is None, "E-12", f"the condition of {fact.step} was asked after a cancel")
        self.demand(self.held is None, "R-17", f"the condition of {fact.step} was asked on a held run")
        self.demand(self.pin is None and fact.step not in self.forward, "E-12", f"{fact.step} was started before")
        conditional = spec is not None and spec.conditional
        self.demand(
            conditional and not self.law.holds(fact.step, self.submitted), "E-12", f"{fact.step} was skipped wrongly"
        )
        self.law.count("condition false")

    def _succeeded(self, fact: OperationSucceeded) -> None:
        self._closes(fact.phase, fact.step, fact.attempt)
        attempt = self.law.attempt((self.run_id, fact.phase, fact.step, fact.attempt))
        if attempt is None or attempt.how != "returned":
            self.blame("M-4", f"{fact.step}#{fact.attempt} is recorded as a success, the handler's end was {attempt}")
        elif fact.phase == "forward":
            state = msgspec.json.decode(fact.state)
            self.demand(
                state == attempt.value, "M-6", f"{fact.step} has state {state!r}, returned was {attempt.value!r}"
            )
        if fact.phase == "unwind":
            entry = self.forward.get(fact.step)
            self.law.count("unwound in doubt" if entry is not None and entry.in_doubt else "unwound")
        elif self.cancel is not None:
            self.law.count("canceled: the running handler succeeded")
            settled = self.spec(fact.step)
            if settled is not None and settled.settle:
                self.law.count("canceled: settled first")

    def _closes(self, phase: Phase, step: str, number: int) -> None:
        self.demand(self.open == (phase, step, number), "J-8", f"{phase} {step}#{number} ended, {self.open} is open")

    def _failed(self, fact: OperationFailed) -> None:
        before = self.attempts(fact.phase, fact.step)
        attempt = self.law.attempt((self.run_id, fact.phase, fact.step, before))
        canceled = fact.failure.kind == "canceled"
        if self.unit() is not None and fact.phase == "forward" and not canceled:
            (kin.judge_cycle if fact.failure.reason == "await-cycle" else items.judge_failed)(self, fact)
            return
        if self.awaiting() is not None and not canceled:
            kin.judge_wait_failed(self, fact)
            return
        if fact.failure.reason == "await-timeout":
            mail.judge_timed_out(self, fact)
            return
        exhausted = fact.failure.reason == "attempts-exhausted"  # a word that was not recorded before a death is lost
        own_word = attempt is not None and attempt.how == "failed" and self.open is not None and not exhausted
        if fact.phase == "unwind":
            self.law.count("unwind failed")
            self.demand(self.unwind[fact.step].status == "unresolved", "U-8", f"unwind of {fact.step} is resolved")
            return
        if fact.failure.kind == "canceled":
            self._canceled(fact, own_word)
            return
        if exhausted:
            self.law.count("retry bounded: failed")
            bound = self.law.policy(fact.step).max_attempts
            self.demand(self.failures + 1 == bound, "M-5", f"{fact.step} failed after {self.failures + 1} of {bound}")
        elif not own_word:
            never = attempt is not None and attempt.how == "never" and bool(self.law.policy(fact.step).never)
            self.demand(never, "M-9", f"{fact.step} failed for good, its last attempt ended as {attempt}")
        self.demand(fact.in_doubt is not own_word, "U-9", f"{fact.step} failed, in doubt: {fact.in_doubt}")
        self.demand(self.pin == fact.step, "E-2", f"{fact.step} failed and was not the unresolved step")

    def _canceled(self, fact: OperationFailed, own_word: bool) -> None:
        """A cancel acts on the next forward operation [R-12]."""
        started = self.attempts("forward", fact.step) > 0
        self.demand(self.cancel is not None, "R-12", f"{fact.step} was canceled without a request")
        self.check_forward(fact.step, fact.passed, exact=not started)
        if self.asleep() is not None or self.waiting() is not None:
            self.law.count("sleep canceled" if self.asleep() is not None else "wait canceled")
        kin.judge_canceled(self, fact.step)
        self.demand(
            fact.in_doubt is (started and not own_word), "R-12", f"{fact.step} was canceled, in doubt: {fact.in_doubt}"
        )
        self.law.count("canceled: in doubt" if fact.in_doubt else "canceled: never started")

    def _resolved(self, fact: OperationResolved) -> None:
        self.resolved_at_us[fact.phase, fact.step] = self.law.now_us()
        self.demand(bool(fact.actor), "M-16", "an operator without a name")
        known = self.passed | self.forward.keys()
        self.demand(not known & set(fact.passed), "E-7", f"{fact.step} passed again {known & set(fact.passed)}")
        self.demand(not self.crossed & set(fact.crossed), "U-4", f"{fact.step} crossed again {fact.crossed}")
        self.law.count(
            {"value": "resolved with a value", "skip": "resolved as skipped"}.get(fact.how, "resolved as failed")
        )

    # --- end

    def _run_succeeded(self, fact: RunSucceeded) -> None:
        self.demand(self.outcome is not None and self.outcome.outcome == "success", "E-10", "no outcome before the end")
        selection = self.next_forward(self.topology)
        self.demand(selection == Selection(None), "E-10", f"the run succeeded while {selection} is next")
        self.demand(self.held is None, "R-17", "a held run ended")
        self.demand(list(fact.in_doubt) == self.in_doubt(), "U-9", f"in doubt: {fact.in_doubt}, not {self.in_doubt()}")
        called = [step.id for step in self.topology.steps if not self.sleep_us(step.id)]
        expected = "+".join(self.state_text(step) or "-" for step in called)
        output = self.output()
        self.demand(output == expected, "M-13", f"output is {output!r}, not {expected!r}")
        self.ended_line = self.law.line()
        self.law.count("run succeeded")

    def _run_failed(self, fact: RunFailed) -> None:
        self.demand(self.outcome is not None and self.outcome.outcome == "failure", "E-10", "no outcome before the end")
        selection = self.next_unwind(self.topology)
        self.demand(selection == Selection(None), "U-9", f"the run ended while {selection} is left to unwind")
        self.demand(fact.failure == self.failure, "M-10", "the end names another failure")
        self.demand(list(fact.unwind_failures) == self.unwind_failures, "U-8", "the end names other unwind failures")
        lists = self.lists(self.topology)
        said = [list(fact.in_doubt), list(fact.half_unwound), list(fact.uncompensated), list(fact.unavailable)]
        self.demand(said in (lists, self._lists_of_all()), "U-9", f"lists are {said}, not {lists}")
        self.check_counts(fact)
        self.demand(self.output() == said, "M-13", f"failure output is {self.output()}, not {said}")
        for name, entries in zip(("half unwound", "uncompensated", "unavailable"), said[1:], strict=True):
            if entries:
                self.law.count(name)
        self.ended_line = self.law.line()
        self.law.count("run canceled" if fact.failure.kind == "canceled" else "run failed")

    def _lists_of_all(self) -> list[list[str]]:
        """The lists as an engine of an old generation has them that knows what newer ones declare [D-4, U-9]."""
        pipeline = self.submitted.pipeline if self.submitted is not None else ""
        newest = self.law.newest(pipeline)
        knowing = Topology(self.topology.steps, ever_unwind=newest.ever_unwind, ever_in_doubt=newest.ever_in_doubt)
        return self.lists(knowing)

    def check_counts(self, fact: RunFailed) -> None:
        """The end counts the items of steps that began one and did not succeed [U-12]."""
        counts = [entry.unit.counts(step) for step, entry in sorted(self.forward.items()) if entry.unit is not None]
        counts = [one for one in counts if one.not_started < one.items]
        said = list(fact.item_counts)
        self.demand(said == counts, "U-12", f"items are counted as {said}, not {counts}")
