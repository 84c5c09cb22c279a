"""Scenarios against the pure core: reducer, reconciler and planner, no engine, no store."""

from __future__ import annotations

import json
from typing import assert_never

import msgspec

from perdure.core import admission, commit, outcomes
from perdure.core import plan as planning
from perdure.core.facts import (
    NULL,
    Fact,
    Failure,
    OperationParked,
    OperationSkipped,
    OperationSucceeded,
    Phase,
    RunCancelRequested,
    RunFailed,
    RunReleased,
    RunSubmitted,
    RunSucceeded,
    SegmentAttemptStarted,
)
from perdure.core.journal import decode_facts, encode_facts
from perdure.core.operations import HeldOp, InvalidOp, RunOp, UnitOp, UnwindOp
from perdure.core.projection import Projection
from perdure.core.reconciler import reconcile
from perdure.core.reducer import fold, fold_all
from perdure.core.retry import Retry
from perdure.core.topology import Topology
from perdure.testing.scenario.model import (
    HOUR_US,
    MOTION,
    Abandon,
    Attempt,
    Cancel,
    Deploy,
    End,
    Entry,
    HoldPipeline,
    Invalid,
    Lose,
    Output,
    ReleasePipeline,
    Resolve,
    Restart,
    Scenario,
    ScriptStep,
    Skip,
    Sleep,
    Wake,
    hours_at_opening,
)
from perdure.testing.scenario.report import Difference, describe_end

_RETRY = Retry(initial=0, cap=0, jitter=0)
_RUN = "scenario"
_LATER_US = 1_000
_EARLY_US = 60_000_000
_PIPELINE_HELD = HeldOp("the pipeline is held")


class _Script(planning.HandlersOnly):
    """The author's functions as the script has them: closed unless a line opens one."""

    def __init__(self) -> None:
        self.ask: str | None = None
        """The step whose condition is asked next; the answer is in `skip`."""
        self.skip = False
        self.may_end = False
        self.output_raises = False
        self.steps: dict[str, ScriptStep] = {}
        self.decided: dict[str, str] = {}
        """The arm by choice, as the run's ledger has it."""

    def condition(self, step: str) -> bool:
        if self.left_out(step):
            return False  # as the engine's branches: without asking the script
        if self.ask is None:
            raise planning.Unplannable("condition-raised", "the script is not there yet")
        answer = not (self.skip and step == self.ask)
        self.ask = None
        return answer

    def output(self) -> bytes:
        if not self.may_end or self.output_raises:
            raise planning.Unplannable("output-raised", "the script says so")
        return b"null"

    def left_out(self, step: str) -> bool:
        """The step stands in an arm that the run does not take."""
        arm = self.steps[step].arm
        return arm is not None and self.decided.get(arm[0]) != arm[1]

    def opening(self, step: str, /) -> planning.Opening:
        return planning.Opening(self.steps[step].hours * HOUR_US)

    def failure_output(self, ended: RunFailed) -> bytes:
        if not self.may_end:
            raise planning.Unplannable("output-raised", "the script is not there yet")
        return b"null"


class CoreDriver:
    """Drives one scenario line by line; raises `Difference` at the first line that is not what the core chooses."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.generations: list[Topology] = []
        self.script = _Script()
        self.journal: list[bytes] = []
        self.clock_us = 0
        self.pipeline_held = False
        self.opened_us = 0
        self.p = Projection(_RUN)
        self._record([RunSubmitted(_RUN, "scenario", NULL, "", _RUN)])

    def run(self) -> None:
        """Every line in turn."""
        for entry in self.scenario.entries:
            self._step(entry)

    def _step(self, entry: Entry) -> None:
        if self.pipeline_held and isinstance(entry, MOTION):
            raise self._difference(entry, entry.text, _PIPELINE_HELD.reason)
        match entry:
            case Deploy():
                self.generations.append(Topology(step.spec for step in entry.steps).after(self.generations))
                self.script.steps = {step.id: step for step in entry.steps}
                self.script.output_raises = False
                self._go_on(may_start=False)  # a pending cancel acts as soon as a deployment is valid
            case Attempt():
                self._attempt(entry)
            case Output():
                self._output(entry)
            case Cancel():
                self._admit(entry, admission.admit_cancel(self.p, RunCancelRequested("script")))
                self._go_on(may_start=False)
            case Restart() | Lose():
                self._restart()
            case Invalid():
                op = reconcile(self.p, self.topology)
                if not isinstance(op, InvalidOp) and not self.script.output_raises:
                    raise self._difference(entry, "an invalid run", _describe(op))
            case Skip():
                self._skip(entry)
            case Sleep():
                self._sleep(entry)
            case Wake():
                self._wake(entry)
            case HoldPipeline():
                self.pipeline_held = True
            case ReleasePipeline():
                self.pipeline_held = False
                self._go_on(may_start=False)
            case Resolve():
                state = json.dumps(entry.arm).encode()
                request = admission.ResolveRequest(entry.how, "script", entry.step, state)
                self._admit(entry, admission.admit_resolve(self.p, self.topology, request, self._now()))
            case Abandon():
                self._admit(entry, admission.admit_abandon(self.p, self.topology, "script", "", self._now()))
            case End():
                self._end(entry)
            case _ as unreachable:
                assert_never(unreachable)

    @property
    def topology(self) -> Topology:
        return self.generations[-1]

    def _now(self) -> int:
        self.clock_us += 1
        return self.clock_us

    def _setting(self, may_start: bool) -> planning.Setting:
        return planning.Setting(self._now(), may_start, 0.5, lambda _step: _RETRY, self.script)

    def _go_on(self, *, may_start: bool) -> planning.Plan:
        """Claim the run as a new worker would; facts are journaled, what the claim chose is returned."""
        if self.pipeline_held:
            return planning.Plan([], None, _PIPELINE_HELD)
        if self.p.parked() is None:  # any other delay passes at once
            self.clock_us = max(self.clock_us, self.p.due_us)
        self._note_decisions()
        claim = SegmentAttemptStarted(self.p.token + 1, "script", len(self.generations))
        plan = commit.plan_claim(self.p, self.topology, claim, self._setting(may_start))
        self._journal(plan.facts)
        return plan

    def _note_decisions(self) -> None:
        self.script.decided = {
            step: json.loads(entry.state)
            for step, entry in self.p.forward.items()
            if entry.state is not None and entry.state != b"null"
        }

    def _journal(self, facts: list[Fact]) -> None:
        if facts:
            self.journal.append(encode_facts(facts))

    def _record(self, facts: list[Fact]) -> None:
        fold_all(self.p, facts, self._now())
        self._journal(facts)

    def _restart(self) -> None:
        self.p = Projection(_RUN)
        for row in self.journal:
            for fact in decode_facts(_RUN, self.p.version + 1, row):
                fold(self.p, fact, self._now())

    def _attempt(self, entry: Attempt) -> None:
        self.script.ask, self.script.skip = entry.step, False
        plan = self._go_on(may_start=True)
        self.script.ask = None
        op = plan.next
        phase = "forward" if isinstance(op, RunOp) else "unwind"
        expected = f"{'run' if entry.phase == 'forward' else 'unwind'} {entry.step}"
        number = f" #{entry.attempt}" if entry.attempt is not None else ""
        right = op is not None and op.step == entry.step and phase == entry.phase
        if op is None or isinstance(op, UnitOp) or not right or entry.attempt not in (None, op.attempt):
            raise self._difference(entry, expected + number, _describe(op or plan.rest))
        if entry.result == "crash":
            self._restart()
            return
        setting = self._setting(may_start=False)
        outcome = _outcome(entry, op, setting.now_us)
        if isinstance(outcome, outcomes.Returned) and entry.arm is not None:
            self.script.decided[entry.step] = entry.arm
        plan = commit.plan_outcome(self.p, self.topology, op, outcome, setting)
        self._journal(plan.facts)

    def _skip(self, entry: Skip) -> None:
        self.script.ask, self.script.skip = entry.step, True
        plan = self._go_on(may_start=True)
        self.script.ask, self.script.skip = None, False
        skipped = [fact.step for fact in plan.facts if isinstance(fact, OperationSkipped)]
        skipped = [step for step in skipped if not self.script.left_out(step)]
        if skipped != [entry.step]:
            raise self._difference(entry, f"{entry.step} skipped", _describe(plan.next or plan.rest))

    def _sleep(self, entry: Sleep) -> None:
        self.script.ask, self.script.skip = entry.step, False
        plan = self._go_on(may_start=True)
        self.script.ask = None
        parked = [fact for fact in plan.facts if isinstance(fact, OperationParked)]
        if [fact.step for fact in parked] != [entry.step] or not isinstance(plan.rest, planning.Waiting):
            raise self._difference(entry, f"{entry.step} asleep", _describe(plan.next or plan.rest))
        self.opened_us = self.clock_us

    def _wake(self, entry: Wake) -> None:
        due_us = self.opened_us + hours_at_opening(self.scenario, entry) * HOUR_US
        for now_us, over in ((due_us - _EARLY_US, False), (due_us, True)):
            self.clock_us = now_us
            self._record([RunReleased("script", retry=True)])
            plan = self._go_on(may_start=True)
            woken = any(isinstance(fact, OperationSucceeded) and fact.step == entry.step for fact in plan.facts)
            if woken is not over:
                chosen = f"{_describe(plan.next or plan.rest)}, {'awake too early' if woken else 'not awake'}"
                raise self._difference(entry, f"{entry.step} asleep for as long as was fixed", chosen)

    def _output(self, entry: Output) -> None:
        self.script.may_end, self.script.output_raises = True, entry.raises
        plan = self._go_on(may_start=True)
        reached = isinstance(self.p.ended, RunSucceeded) or (
            isinstance(plan.rest, InvalidOp) and plan.rest.reason == "output-raised"
        )
        if not reached:
            raise self._difference(entry, "the output function", _describe(plan.next or plan.rest))
        self.script.may_end = False

    def _end(self, entry: End) -> None:
        self.script.may_end = True
        if self.p.ended is None:
            plan = self._go_on(may_start=True)
            if self.p.ended is None:
                raise self._difference(entry, entry.text, _describe(plan.next or plan.rest))
        chosen = describe_end(self.p.ended)
        if chosen != entry.text:
            raise self._difference(entry, entry.text, chosen)

    def _admit(self, entry: Entry, answer: admission.Admission) -> None:
        match answer:
            case admission.Admitted(fact, more):
                self._record([fact, *more])
            case admission.Duplicate():
                pass
            case admission.Taken() | admission.NotPermitted():
                raise self._difference(entry, entry.text, answer.problem)
            case _ as unreachable:
                assert_never(unreachable)

    def _difference(self, entry: Entry, expected: str, chosen: str) -> Difference:
        return Difference(self.scenario, entry, expected, chosen)


def _outcome(entry: Attempt, op: RunOp | UnwindOp, at_us: int) -> outcomes.Outcome:
    phase: Phase = "forward" if isinstance(op, RunOp) else "unwind"
    failure = Failure(op.step, "scripted", phase, op.attempt, at_us)
    match entry.result:
        case "ok":
            return outcomes.Returned(json.dumps(entry.arm).encode())
        case "fail":
            return outcomes.Declined(failure)
        case "later":
            return outcomes.Postponed(_LATER_US)
        case "error" | "crash":
            return outcomes.Raised(failure)
        case _ as unreachable:
            assert_never(unreachable)


def _describe(op: msgspec.Struct | None) -> str:
    match op:
        case RunOp():
            return f"run {op.step} #{op.attempt}"
        case UnwindOp():
            return f"unwind {op.step} #{op.attempt}"
        case InvalidOp():
            return f"invalid ({op.reason}: {op.detail})"
        case _:
            return type(op).__name__
