"""Scenarios against the pure core: reducer, reconciler and planner, no engine, no store."""

from __future__ import annotations

import json
from typing import assert_never

import msgspec

from perdure.core import admission, commit, outcomes
from perdure.core import plan as planning
from perdure.core.facts import (
    NULL,
    BoundaryOpened,
    Fact,
    Failure,
    MessageReceived,
    OperationFailed,
    OperationParked,
    OperationSkipped,
    OperationSucceeded,
    RunCancelRequested,
    RunHeld,
    RunReleased,
    RunSubmitted,
    RunSucceeded,
    SegmentAttemptStarted,
)
from perdure.core.ids import child_id
from perdure.core.journal import decode_facts, encode_facts
from perdure.core.operations import HeldOp, InvalidOp, RunOp, UnitOp
from perdure.core.projection import Projection
from perdure.core.reconciler import reconcile
from perdure.core.reducer import fold, fold_all
from perdure.core.retry import Retry
from perdure.core.topology import Topology
from perdure.core.unit import CHILD_SHAPES
from perdure.core.units import awaited_children
from perdure.testing.scenario.model import (
    HOUR_US,
    MOTION,
    Abandon,
    Attempt,
    Cancel,
    Deploy,
    End,
    Entry,
    Finish,
    HoldPipeline,
    Invalid,
    Lose,
    Output,
    ReleasePipeline,
    Resolve,
    Restart,
    Scenario,
    Send,
    Skip,
    Sleep,
    Take,
    TimeOut,
    Wait,
    Wake,
    Work,
    hours_at_opening,
)
from perdure.testing.scenario.report import Difference, describe_end
from perdure.testing.scenario.scripted import CoreScript, describe, item_outcome, other_ids, outcome_of

_RETRY = Retry(initial=0, cap=0, jitter=0)
_RUN = "scenario"
_EARLY_US = 60_000_000
_PIPELINE_HELD = HeldOp("the pipeline is held")


class CoreDriver:
    """Drives one scenario line by line; raises `Difference` at the first line that is not what the core chooses."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.generations: list[Topology] = []
        self.script = CoreScript()
        self.journal: list[tuple[int, bytes]] = []
        self.clock_us = 0
        self.pipeline_held = False
        self.opened_us = 0
        self.entry: Entry = scenario.entries[0]
        self.op: UnitOp | None = None
        self.running: dict[int, int] = {}
        """Attempts of items that run now, by index."""
        self.submitted: set[str] = set()
        self.ends: dict[str, planning.RunEnd] = {}
        """Of child runs and of runs that are waited for, by id."""
        self.told = False
        """A cancel has reached them."""
        self.ahead: planning.Plan | None = None
        """Planned by the line before, which could not keep the run from going on."""
        self.p = Projection(_RUN)
        self._record([RunSubmitted(_RUN, "scenario", NULL, "", _RUN)])

    def run(self) -> None:
        """Every line in turn."""
        following: tuple[Entry | None, ...] = (*self.scenario.entries[1:], None)
        for entry, after in zip(self.scenario.entries, following, strict=True):
            self.entry = entry
            self._step(entry, after)

    def _step(self, entry: Entry, after: Entry | None) -> None:
        if self.pipeline_held and isinstance(entry, MOTION):
            raise self._difference(entry, entry.text, _PIPELINE_HELD.reason)
        match entry:
            case Deploy():
                self._deploy(entry)
            case Attempt():
                self._attempt(entry)
            case Output():
                self._output(entry)
            case Cancel():
                self._admit(entry, admission.admit_cancel(self.p, RunCancelRequested("script")))
                self._interrupt_items()
                self._cancel_pending()
            case Restart():
                self._interrupt_items()
                self._restart()
            case Lose():
                self._restart()
            case Invalid():
                op = reconcile(self.p, self.topology)
                if not isinstance(op, InvalidOp) and not self.script.output_raises:
                    raise self._difference(entry, "an invalid run", describe(op))
            case Skip():
                self._skip(entry)
            case Sleep():
                self._sleep(entry)
            case Wake():
                self._until_due(entry, hours_at_opening(self.scenario, entry))
            case TimeOut():
                self.ahead = self._until_due(entry, hours_at_opening(self.scenario, entry))
            case Wait():
                self._wait(entry)
            case Send():
                payload = msgspec.Raw(json.dumps(entry.value).encode())
                message = MessageReceived(entry.step, payload, "", "script")
                self._admit(entry, admission.admit_message(self.p, lambda: message))
            case Take():
                self._take(entry)
            case Work():
                self._work(entry, isinstance(after, Work))
            case Finish():
                self._finish(entry)
            case HoldPipeline():
                self.pipeline_held = True
            case ReleasePipeline():
                self.pipeline_held = False
                self._cancel_pending()
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

    def _deploy(self, entry: Deploy) -> None:
        self._interrupt_items()
        self.generations.append(Topology(step.spec for step in entry.steps).after(self.generations))
        self.script.steps = {step.id: step for step in entry.steps}
        self.script.others.update(*(other_ids(step) for step in entry.steps if step.kind == "runs"))
        self.script.output_raises = False
        self._cancel_pending()  # it acts as soon as a deployment is valid

    @property
    def topology(self) -> Topology:
        return self.generations[-1]

    def _now(self) -> int:
        self.clock_us += 1
        return self.clock_us

    def _setting(self, may_start: bool) -> planning.Setting:
        return planning.Setting(
            self._now(), may_start, 0.5, lambda _step: _RETRY, self.script, ends=self.ends, told=self.told
        )

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
        facts = plan.facts
        while isinstance(plan.next, UnitOp) and plan.next.shape in CHILD_SHAPES:
            self._submit(plan.next)
            plan = commit.plan_dispatched(self.p, self.topology, plan.next, {}, self._setting(may_start))
            self._journal(plan.facts)
            facts = facts + plan.facts
        return planning.Plan(facts, plan.next, plan.rest)

    def _cancel_pending(self) -> None:
        """A cancel acts at once, and reaches child runs first; nothing else is let go on meanwhile."""
        if self.p.cancel is None or self.pipeline_held:
            return
        self._record([RunHeld("script", "the script is not there yet")])
        plan = self._go_on(may_start=True)
        if isinstance(plan.rest, (planning.Waiting, planning.Parked)) and self.p.unit() is not None and self.p.pin:
            canceled = planning.RunEnd("canceled", failure=Failure("", "scripted", kind="canceled"))
            open_children = awaited_children(self.p, self.p.pin)
            self.ends |= {run_id: canceled for run_id in open_children if run_id not in self.ends}
            self.told = True
            self._go_on(may_start=True)
        if self.p.ended is None:
            self._record([RunReleased("script")])

    def _note_decisions(self) -> None:
        self.script.decided = {
            step: json.loads(entry.state)
            for step, entry in self.p.forward.items()
            if entry.state is not None and entry.state != b"null"
        }

    def _journal(self, facts: list[Fact]) -> None:
        if facts:
            self.journal.append((self.clock_us, encode_facts(facts)))

    def _record(self, facts: list[Fact]) -> None:
        fold_all(self.p, facts, self._now())
        self._journal(facts)

    def _restart(self) -> None:
        self.running, self.op = {}, None
        self.p = Projection(_RUN)
        for at_us, row in self.journal:
            for fact in decode_facts(_RUN, self.p.version + 1, row):
                fold(self.p, fact, at_us)

    def _attempt(self, entry: Attempt) -> None:
        self.script.ask, self.script.skip = entry.step, False
        plan, self.ahead = self.ahead or self._go_on(may_start=True), None
        self.script.ask = None
        op = plan.next
        phase = "forward" if isinstance(op, RunOp) else "unwind"
        expected = f"{'run' if entry.phase == 'forward' else 'unwind'} {entry.step}"
        number = f" #{entry.attempt}" if entry.attempt is not None else ""
        right = op is not None and op.step == entry.step and phase == entry.phase
        if op is None or isinstance(op, UnitOp) or not right or entry.attempt not in (None, op.attempt):
            raise self._difference(entry, expected + number, describe(op or plan.rest))
        if entry.result == "crash":
            self._restart()
            return
        setting = self._setting(may_start=False)
        outcome = outcome_of(entry, op, setting.now_us)
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
            raise self._difference(entry, f"{entry.step} skipped", describe(plan.next or plan.rest))

    def _sleep(self, entry: Sleep) -> None:
        self.script.ask, self.script.skip = entry.step, False
        plan = self._go_on(may_start=True)
        self.script.ask = None
        parked = [fact for fact in plan.facts if isinstance(fact, OperationParked)]
        if [fact.step for fact in parked] != [entry.step] or not isinstance(plan.rest, planning.Waiting):
            raise self._difference(entry, f"{entry.step} asleep", describe(plan.next or plan.rest))
        self.opened_us = self.clock_us

    def _until_due(self, entry: Wake | TimeOut, hours: int) -> planning.Plan:
        """A minute before its time a wait must not be over; then it must, by success or as failed."""
        end = OperationFailed if isinstance(entry, TimeOut) else OperationSucceeded
        due_us = self.opened_us + hours * HOUR_US
        plan = planning.Plan([], None, None)
        for now_us, over in ((due_us - _EARLY_US, False), (due_us, True)):
            self.clock_us = now_us
            self._record([RunReleased("script", retry=True)])
            plan = self._go_on(may_start=True)
            ended = any(isinstance(fact, end) and fact.step == entry.step for fact in plan.facts)
            if not hours or ended is not over:
                chosen = f"{describe(plan.next or plan.rest)}, {'over too early' if ended else 'not over'}"
                raise self._difference(entry, f"{entry.step} waiting for as long as was fixed", chosen)
        return plan

    def _wait(self, entry: Wait) -> None:
        self.script.ask, self.script.skip = entry.step, False
        plan = self._go_on(may_start=True)
        self.script.ask = None
        opened = [fact.step for fact in plan.facts if isinstance(fact, (OperationParked, BoundaryOpened))]
        if opened != [entry.step] or not isinstance(plan.rest, planning.Parked):
            raise self._difference(entry, f"{entry.step} waiting", describe(plan.next or plan.rest))
        self.opened_us = self.clock_us

    def _ask(self, step: str) -> None:
        """Its condition is true, if it is asked."""
        self.script.ask, self.script.skip = (step if self.p.pin != step else None), False

    def _take(self, entry: Take) -> None:
        self._ask(entry.step)
        plan = self._go_on(may_start=True)
        self.script.ask = None
        taken = [fact for fact in plan.facts if isinstance(fact, OperationSucceeded)]
        chosen = [f"{fact.step} taking {json.loads(bytes(fact.state))}" for fact in taken]
        if chosen != [f"{entry.step} taking {entry.value}"]:
            what = " and ".join(chosen) or describe(plan.next or plan.rest)
            raise self._difference(entry, f"{entry.step} taking {entry.value}", what)

    # --- items and runs

    def _work(self, entry: Work, goes_on: bool) -> None:
        if not self.running:
            self._ask(entry.step)
            self._note_running(self._go_on(may_start=True))
            self.script.ask = None
        expected = {index: attempt for index, attempt, _ in entry.items}
        right = set(expected) == set(self.running) and self.op is not None and self.op.step == entry.step
        if not right or any(number not in (None, self.running[index]) for index, number in expected.items()):
            raise self._difference(entry, entry.text, self._works())
        ended = [
            item_outcome(entry.step, index, self.running.pop(index), result)
            for index, _, result in sorted(entry.items, key=lambda item: item[2] != "fail")
            if result != "runs"
        ]
        self._end_items(ended, may_start=goes_on)

    def _works(self) -> str:
        if self.op is None:
            return describe(reconcile(self.p, self.topology))
        return " ".join([f"work {self.op.step}", *(f"{index}#{n}" for index, n in sorted(self.running.items()))])

    def _note_running(self, plan: planning.Plan) -> None:
        self.op = plan.next if isinstance(plan.next, UnitOp) else None
        self.running |= dict(plan.next.start) if isinstance(plan.next, UnitOp) else {}

    def _end_items(self, ended: list[outcomes.ItemOutcome], *, may_start: bool) -> None:
        if self.op is not None:
            setting = self._setting(may_start)
            running = bool(self.running)
            plan = commit.plan_items(self.p, self.topology, self.op, ended, setting, running=running)
            self._journal(plan.facts)
            self._note_running(plan)

    def _interrupt_items(self) -> None:
        running, self.running = self.running, {}
        step = "" if self.op is None else self.op.step
        ended = [item_outcome(step, index, attempt, "runs") for index, attempt in running.items()]
        self._end_items(ended, may_start=False)
        self.op = None

    def _submit(self, op: UnitOp) -> None:
        found = self.p.units[op.step]
        for index, _ in op.start:
            run_id = child_id(found.opened_us, _RUN, op.step, index)
            if run_id in self.submitted:
                raise self._difference(self.entry, self.entry.text, f"child run {index} of {op.step} submitted twice")
            self.submitted.add(run_id)

    def _finish(self, entry: Finish) -> None:
        found = self.p.units.get(entry.step)
        for index, result in entry.runs:
            run_id = f"{entry.step}/{index}"
            if found is not None:
                run_id = child_id(found.opened_us, _RUN, entry.step, index)
            if found is not None and run_id not in self.submitted:
                self._go_on(may_start=True)
            if run_id in self.ends or run_id not in self.submitted | self.script.others:
                raise self._difference(entry, f"run {index} of {entry.step}, not ended", "no such run, or its end")
            failure = None if result == "ok" else Failure("work", "scripted")
            self.ends[run_id] = planning.RunEnd("succeeded" if failure is None else "failed", failure=failure)

    def _output(self, entry: Output) -> None:
        self.script.may_end, self.script.output_raises = True, entry.raises
        plan = self._go_on(may_start=True)
        reached = isinstance(self.p.ended, RunSucceeded) or (
            isinstance(plan.rest, InvalidOp) and plan.rest.reason == "output-raised"
        )
        if not reached:
            raise self._difference(entry, "the output function", describe(plan.next or plan.rest))
        self.script.may_end = False

    def _end(self, entry: End) -> None:
        self.script.may_end = True
        if self.p.ended is None:
            plan = self._go_on(may_start=True)
            if self.p.ended is None:
                raise self._difference(entry, entry.text, describe(plan.next or plan.rest))
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
