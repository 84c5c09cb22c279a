"""The core as a judge of the sweep: real facts, planned by the real planner, folded by the real reducer.

Every event of a history is planned or admitted as a worker or an operator would, on a copy, from the view that folding
has kept up to date. What the facts record is compared with what the rules say is recorded [E-7, U-4]. The journal is
then folded once more from its beginning, without a view, and must come to the same projection [J-8].
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import assert_never

from perdure.core import admission, commit, frontier, outcomes, reconciler, reducer
from perdure.core import plan as planning
from perdure.core.facts import (
    NULL,
    BoundaryOpened,
    BoundaryResolved,
    Fact,
    Failure,
    ItemReserved,
    ItemRetryScheduled,
    OperationFailed,
    OperationParked,
    OperationReserved,
    OperationResolved,
    OperationRetryScheduled,
    OperationSkipped,
    OperationSucceeded,
    Phase,
    Resolution,
    RunCancelRequested,
    RunFailed,
    RunSubmitted,
    SegmentAttemptStarted,
)
from perdure.core.operations import (
    CancelOp,
    CompleteOp,
    EndedOp,
    EvaluateOp,
    FailOp,
    HeldOp,
    InvalidOp,
    Operation,
    RunOp,
    UnitOp,
    UnwindOp,
    WaitOp,
)
from perdure.core.projection import Projection, Stored, dump, restore
from perdure.core.retry import Retry
from perdure.core.topology import StepSpec, Topology
from tests.sweep import vocabulary as rules
from tests.sweep.shaped import SHAPES, Shaped, ShapedAuthor, is_shaped
from tests.sweep.vocabulary import FORWARD_ENDS, UNWIND_ENDS, Decision, What, World
from tests.sweep.worlds import CanonicalLedger, Recorded, recorded

_ALL = (admission, commit, frontier, planning, reconciler, reducer)
MODULES: Mapping[str, ModuleType] = {m.__name__: m for m in _ALL}

RUN = "sweep"
FORWARD = (RunOp, EvaluateOp, CancelOp)
OF_A_STEP = (
    BoundaryOpened,
    BoundaryResolved,
    ItemReserved,
    ItemRetryScheduled,
    OperationFailed,
    OperationParked,
    OperationReserved,
    OperationResolved,
    OperationRetryScheduled,
    OperationSkipped,
    OperationSucceeded,
)
COUNTED = (OperationReserved, OperationSucceeded, ItemReserved, ItemRetryScheduled)
WHY: Mapping[str, rules.Why] = {
    "step-missing": "unresolved step missing",
    "no-safe-frontier": "no safe frontier",
    "no-safe-unwind-frontier": "no safe unwind frontier",
    "shape-changed": "another shape",
}
WORDS: Mapping[What, Resolution] = {
    What.RESOLVED_VALUE: "value",
    What.RESOLVED_SKIP: "skip",
    What.RESOLVED_FAIL: "fail",
}


class Disagreement(Exception):
    """The core decides as the rules say, or not, but its facts do not record what they must."""


@dataclass(frozen=True, slots=True)
class Core:
    """The functions under test. A mutant brings its own."""

    fold: Callable[[Projection, Fact, int], None]
    view_of: Callable[[Projection, Topology], frontier.View]
    reconcile: Callable[[Projection, Topology], Operation]
    lists: Callable[[Projection, Topology], reconciler.Lists]
    in_doubt: Callable[[Projection], tuple[str, ...]]
    plan_claim: Callable[[Projection, Topology, SegmentAttemptStarted, planning.Setting], planning.Plan]
    plan_outcome: Callable[[Projection, Topology, RunOp | UnwindOp, outcomes.Outcome, planning.Setting], planning.Plan]
    shaped: Shaped
    admit_cancel: Callable[[Projection, RunCancelRequested], admission.Admission]
    admit_resolve: Callable[[Projection, Topology, admission.ResolveRequest, int], admission.Admission]
    unplannable: type[planning.Unplannable]
    admitted: type[admission.Admitted]

    @classmethod
    def of(cls, modules: Mapping[str, ModuleType]) -> Core:
        """The functions of these modules, by their real names."""

        def of(name: str) -> ModuleType:
            return modules[f"perdure.core.{name}"]

        return cls(
            of("reducer").fold,
            of("frontier").view_of,
            of("reconciler").reconcile,
            of("reconciler").Lists,
            of("reconciler").in_doubt,
            of("commit").plan_claim,
            of("commit").plan_outcome,
            Shaped.of(modules),
            of("admission").admit_cancel,
            of("admission").admit_resolve,
            of("plan").Unplannable,
            of("admission").Admitted,
        )


@dataclass(slots=True)
class _Author(ShapedAuthor):
    """The author's functions: one condition is answered, everything after it stops the plan."""

    core: Core
    answers: list[bool]

    def condition(self, step: str) -> bool:
        if not self.answers:
            raise self.core.unplannable("condition-raised", step)
        return self.answers.pop()

    def output(self) -> bytes:
        raise self.core.unplannable("output-raised", "not asked here")

    def failure_output(self, ended: RunFailed) -> bytes:
        raise self.core.unplannable("output-raised", "not asked here")


class CoreJudge:
    """Answers the questions of a sweep with the core; remembers the fold of the last history."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.history: World | None = None
        self.p = Projection(RUN)
        self.facts: list[Fact] = []
        self.entered: frozenset[str] = frozenset()
        self.crossed: frozenset[str] = frozenset()
        self.topologies: dict[int, tuple[rules.Topology, Topology]] = {}
        self.declared: dict[tuple[int, frozenset[str], frozenset[str]], tuple[Topology, Topology]] = {}

    def __call__(self, ledger: CanonicalLedger, topology: rules.Topology) -> Decision:
        if ledger.history is not self.history:
            self._follow(ledger.history)
            self.entered = frozenset(s for s, row in ledger.steps if row.forward is not None or row.passed)
            self.crossed = frozenset(s for s, row in ledger.steps if row.crossed)
        p, here = self.p, self._topology(topology)
        kept = p.view
        try:
            op = self.core.reconcile(p, here)
            self._check_record(op, here)
            return self._decision(op, here, ledger)
        finally:
            p.view = kept

    # --- questions

    def _topology(self, topology: rules.Topology) -> Topology:
        found = self.topologies.get(id(topology))  # the tuple is kept, so that its id stays its own
        if found is None:
            if len(self.topologies) > 10_000:
                self.topologies.clear()
            specs = (
                StepSpec(s.id, s.unwind, s.in_doubt, s.retired, conditional=True, shape=SHAPES[s.shape])
                for s in topology
            )
            found = self.topologies[id(topology)] = (topology, Topology(specs))
        return found[1]

    def _declared(self, here: Topology, unwind: frozenset[str], in_doubt: frozenset[str]) -> Topology:
        """The topology, after generations that declared these steps."""
        key = (id(here), unwind, in_doubt)
        found = self.declared.get(key)
        if found is None:
            if len(self.declared) > 50_000:
                self.declared.clear()
            after = Topology(here.steps, ever_unwind=unwind, ever_in_doubt=in_doubt)
            found = self.declared[key] = (here, after)
        return found[1]

    def _check_record(self, op: Operation, here: Topology) -> None:
        """What reserving the operation would record as passed or crossed."""
        if isinstance(op, FORWARD):
            now = self.core.view_of(self.p, here).newly_passed(self.p, op.position)
            expected = tuple(s for s in here.ids[: op.position] if s not in self.entered)
        elif isinstance(op, UnwindOp):
            now = self.core.view_of(self.p, here).newly_crossed(self.p, op.position)
            expected = tuple(s for s in here.ids[op.position :] if s not in self.crossed)
        else:
            return
        if now != expected or here.ids[op.position] != op.step:
            raise Disagreement(f"{self._told()}{op} would record {now}, the rules say {expected}")

    def _decision(self, op: Operation, here: Topology, ledger: CanonicalLedger) -> Decision:
        match op:
            case RunOp(step, _, attempt, _):
                return rules.Run(step, attempt)
            case EvaluateOp(step, _):
                return rules.Run(step, 1)
            case UnwindOp(step, _, attempt, in_doubt):
                return rules.Unwind(step, attempt, in_doubt)
            case CancelOp(step, _, _):
                return rules.CancelAt(step)
            case CompleteOp():
                return rules.Output(self.core.in_doubt(self.p))
            case FailOp():
                return self._failed(here, ledger)
            case InvalidOp(reason, _):
                return rules.Invalid(WHY[reason])
            case WaitOp(step, _, _, True) | UnitOp(step, _, _, True):
                return rules.GoOn(step)
            case HeldOp() | EndedOp() | WaitOp() | UnitOp():
                raise Disagreement(f"{self._told()}{op}")
            case _ as unreachable:
                assert_never(unreachable)

    def _failed(self, here: Topology, ledger: CanonicalLedger) -> Decision:
        failure = self.p.failure
        if failure is None:
            raise Disagreement(f"{self._told()}ends as failed without a failure")
        found = self.core.lists(self.p, self._declared(here, ledger.ever_unwind, ledger.ever_in_doubt))
        return _ended(
            failure.kind == "canceled",
            failure.step,
            (found.in_doubt, found.half_unwound, found.uncompensated, found.unavailable),
        )

    # --- histories

    def _follow(self, history: World) -> None:
        """Plan and fold a history; one that goes on from the last one only goes on."""
        before = self.history
        done = 0 if before is None else len(before)
        goes_on = before is not None and done < len(history) and (done == 0 or history[done - 1] is before[-1])
        if not goes_on:
            done = 0
            self.p, self.facts = Projection(RUN), []
            self._fold([RunSubmitted(RUN, "sweep", NULL, "", RUN)])
        self.history = history
        for row in list(recorded(history))[done:]:
            self._happen(row)
        again = Projection(RUN)
        for number, fact in enumerate(self.facts, start=1):
            self.core.fold(again, fact, number)
        if any(getattr(again, name) != getattr(self.p, name) for name in Stored.__struct_fields__):
            raise Disagreement(f"{self._told()}folding all facts again gives another projection")

    def _fold(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.core.fold(self.p, fact, len(self.facts) + 1)
            self.facts.append(fact)

    def _happen(self, row: Recorded) -> None:
        here = self._topology(row.topology)
        self.core.view_of(self.p, here)
        facts = self._facts(row, here)
        if facts and row.event.step:
            self._check_facts(row, facts[-1])
        self._fold(facts)

    def _facts(self, row: Recorded, here: Topology) -> list[Fact]:
        what, step = row.event.what, row.event.step
        if what is What.DEPLOYED:
            return []
        if what is What.CANCEL_REQUESTED:
            request = RunCancelRequested("sweep")
            return self._admitted(row, self.core.admit_cancel(self.p, request), may_be_known=True)
        if what in WORDS:
            asked = admission.ResolveRequest(WORDS[what], "sweep", step)
            return self._admitted(row, self.core.admit_resolve(self._copy(), here, asked, len(self.facts)))
        if is_shaped(self.p, row):
            return self.core.shaped.facts(self._copy(), here, row, len(self.facts) + 1, self._setting_at)
        phase: Phase = "unwind" if what in UNWIND_ENDS else "forward"
        lost = what in (What.LOST, What.UNWIND_LOST)
        if lost or (what is What.RAISED and self.p.cancel is not None):  # a planner would act on the cancel at once
            return [OperationRetryScheduled(step, row.attempt, "interrupted", 0, None, phase)]
        if what in FORWARD_ENDS or what in UNWIND_ENDS:
            op = RunOp(step, -1, row.attempt, True) if phase == "forward" else UnwindOp(step, -1, row.attempt, False)
            q = self._copy()
            setting = self._setting([], may_start=False)
            return self.core.plan_outcome(q, here, op, _outcome(what, step, phase), setting).facts[:1]
        claim = SegmentAttemptStarted(self.p.token + 1, "sweep", 1)
        setting = self._setting([what is not What.SKIPPED], may_start=what is not What.CANCEL_ACTED)
        return self.core.plan_claim(self._copy(), here, claim, setting).facts[:2]

    def _admitted(self, row: Recorded, answer: admission.Admission, *, may_be_known: bool = False) -> list[Fact]:
        if isinstance(answer, self.core.admitted):
            return [answer.fact]
        if not may_be_known:  # only a second cancel is
            raise Disagreement(f"{self._told()}{row.event}: {answer}")
        return []

    def _copy(self) -> Projection:
        """A projection for planning, which folds what it plans, with a view as far as ours."""
        q = restore(dump(self.p), 0, 0, b"")
        q.view = copy.copy(self.p.view)
        return q

    def _setting(self, answers: list[bool], *, may_start: bool) -> planning.Setting:
        return _setting(self.core, len(self.facts) + 1, answers, may_start=may_start)

    def _setting_at(self, now_us: int, may_start: bool) -> planning.Setting:
        return _setting(self.core, now_us, [True], may_start=may_start)

    def _check_facts(self, row: Recorded, fact: Fact) -> None:
        """The last fact of an event is of its step, phase and attempt, and records what the rules say."""
        passed: tuple[str, ...] = ()
        crossed: tuple[str, ...] = ()
        if isinstance(fact, OperationReserved | OperationResolved):
            passed, crossed = fact.passed, fact.crossed
        elif isinstance(fact, OperationSkipped | OperationFailed | OperationParked | BoundaryOpened):
            passed = fact.passed
        attempt = fact.attempt if isinstance(fact, COUNTED) else row.attempt
        step = fact.step if isinstance(fact, OF_A_STEP) else ""
        found = (step, attempt, sorted(passed), sorted(crossed))
        expected = (row.event.step, row.attempt, sorted(row.passed), sorted(row.crossed))
        if found != expected:
            raise Disagreement(f"{self._told()}{row.event} records {found}, the rules say {expected}: {fact}")

    def _told(self) -> str:
        lines = [f"  [{' '.join(map(str, h.topology))}] {h.event}" for h in self.history or ()]
        return "\n".join(["", *lines, "  "])


@functools.lru_cache(10_000)
def _ended(
    canceled: bool,
    step: str,
    lists: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]],
) -> Decision:
    """The same object for the same end: most questions have one of few answers."""
    return (rules.EndCanceled if canceled else rules.EndFailure)(step, rules.Lists(*lists))


_AT_ONCE = Retry(initial=0, cap=0, jitter=0)


def _setting(core: Core, now_us: int, answers: list[bool], *, may_start: bool) -> planning.Setting:
    return planning.Setting(now_us, may_start, 0.5, lambda _: _AT_ONCE, _Author(core, answers))


def _outcome(what: What, step: str, phase: Phase) -> outcomes.Outcome:
    failure = Failure(step, "happened", phase)
    if what in (What.RETURNED, What.UNWIND_RETURNED):
        return outcomes.Returned(b"1")
    if what in (What.FAILED, What.UNWIND_FAILED):
        return outcomes.Declined(failure)
    return outcomes.Raised(failure, never=what is What.GAVE_UP)
