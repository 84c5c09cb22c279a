"""Runs for the tests of the core, driven through the real planner as an engine would drive them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from perdure.core import admission, commit, outcomes
from perdure.core.facts import (
    NULL,
    Fact,
    Failure,
    OperationProgress,
    Phase,
    Resolution,
    RetryCause,
    RunCancelRequested,
    RunFailed,
    RunHeld,
    RunPrioritized,
    RunReleased,
    RunSubmitted,
    SegmentAttemptStarted,
)
from perdure.core.journal import decode_facts, encode_facts
from perdure.core.operations import Operation, RunOp, UnwindOp
from perdure.core.projection import Projection, Stored
from perdure.core.reconciler import reconcile
from perdure.core.reducer import fold, fold_all
from perdure.core.retry import Retry
from perdure.core.topology import StepSpec, Topology

RUN = "run-1"
AT_ONCE = Retry(initial=0, cap=0, jitter=0)


def topology(text: str, *former: Topology) -> Topology:
    """Steps as in scenarios: `A* B*? C~`; and `D&` has a condition, `E!` settles under a cancel, `F%` sleeps."""
    specs: list[StepSpec] = []
    for word in text.split():
        name = word.rstrip("*?~&!%")
        flags = word[len(name) :]
        specs.append(StepSpec(name, *(sign in flags for sign in "*?~&!%")))
    return Topology(specs).after(former)


def submitted(start_at_us: int = 0, deadline_us: int = 0) -> RunSubmitted:
    """The first fact of a run."""
    return RunSubmitted(RUN, "p", NULL, "", RUN, start_at_us=start_at_us, deadline_us=deadline_us)


class Author:
    """The author's functions. Steps in `false` have a false condition; what is in `broken` raises."""

    def __init__(self) -> None:
        self.false: set[str] = set()
        self.broken: set[str] = set()
        self.asked: list[str] = []
        self.naps_us = 1_000_000

    def condition(self, step: str) -> bool:
        self.asked.append(step)
        if step in self.broken:
            raise commit.Unplannable("condition-raised", f"the condition of {step!r} raised")
        return step not in self.false

    def output(self) -> bytes:
        self.asked.append("output")
        if "output" in self.broken:
            raise commit.Unplannable("output-raised", "the output function raised")
        return b'"output"'

    def sleep_us(self, step: str) -> int:
        self.asked.append(f"sleep {step}")
        return self.naps_us

    def failure_output(self, ended: RunFailed) -> bytes:
        self.asked.append("failure output")
        if "failure output" in self.broken:
            raise commit.Unplannable("output-raised", "the failure output function raised")
        return b'"failure output"'


class Life:
    """One run: its projection, the rows of its journal, and the operation whose attempt is open in this process."""

    def __init__(self, text: str, policy: Retry = AT_ONCE, *, submission: RunSubmitted | None = None) -> None:
        self.former: list[Topology] = []
        self.topology = topology(text)
        self.policy: Callable[[str], Retry] = lambda _step: policy
        self.author = Author()
        self.now_us = 1_000
        self.may_start = True
        self.rows: list[tuple[int, list[Fact]]] = []
        self.p = Projection(RUN)
        self.op: RunOp | UnwindOp | None = None
        self._record([submission or submitted()])

    # --- the engine

    def setting(self) -> commit.Setting:
        return commit.Setting(self.now_us, self.may_start, 0.5, self.policy, self.author)

    def claim(self, lost_cause: RetryCause = "lost") -> commit.Plan:
        """A worker claims the run; an open attempt was lost."""
        claim = SegmentAttemptStarted(self.p.token + 1, "w", len(self.former) + 1, "build-1")
        return self._planned(commit.plan_claim(self.p, self.topology, claim, self.setting(), lost_cause=lost_cause))

    def ends(self, outcome: outcomes.Outcome) -> commit.Plan:
        """The open attempt ends."""
        assert self.op is not None, "no attempt is open"
        return self._planned(commit.plan_outcome(self.p, self.topology, self.op, outcome, self.setting()))

    def goes_on(self) -> commit.Plan:
        return self._planned(commit.plan_next(self.p, self.topology, self.setting()))

    def ok(self, state: bytes = b"1") -> commit.Plan:
        return self.ends(outcomes.Returned(state))

    def fails(self) -> commit.Plan:
        """With the handler's own `Fail`."""
        return self.ends(outcomes.Declined(self._failure("declined")))

    def raises(self, *, never: bool = False) -> commit.Plan:
        return self.ends(outcomes.Raised(self._failure("error"), never))

    def times_out(self) -> commit.Plan:
        return self.ends(outcomes.TimedOut(self._failure("attempt-timeout")))

    def is_interrupted(self) -> commit.Plan:
        return self.ends(outcomes.Interrupted())

    def is_lost(self) -> commit.Plan:
        """The worker dies; another one claims the run."""
        self.restart()
        return self.claim()

    def wakes(self) -> commit.Plan:
        """The sleep that is open is over, and a worker takes the run up."""
        self.now_us = max(self.now_us, self.p.due_us)
        return self.claim()

    def memo(self, name: str, value: bytes) -> None:
        assert self.op is not None
        self._record([OperationProgress(self.op.step, name, msgspec.Raw(value), phase_of(self.op))])

    def deploy(self, text: str) -> None:
        self.former.append(self.topology)
        self.topology = topology(text, *self.former)

    def restart(self) -> None:
        """Everything in memory is gone; the run is folded from the stored text."""
        before = content(self.p)
        self.p = refold(self.rows)
        self.op = None
        assert content(self.p) == before

    # --- from outside

    def cancel(self, reason: str = "canceled") -> admission.Admission:
        return self._admit(admission.admit_cancel(self.p, RunCancelRequested("user", reason)))

    def hold(self) -> admission.Admission:
        return self._admit(admission.admit_hold(self.p, RunHeld("user", "by hand")))

    def release(self) -> admission.Admission:
        return self._admit(admission.admit_release(self.p, RunReleased("user")))

    def retry(self) -> admission.Admission:
        return self._admit(admission.admit_retry(self.p, RunReleased("user", retry=True)))

    def prioritize(self, priority: int) -> admission.Admission:
        return self._admit(admission.admit_priority(self.p, RunPrioritized("user", priority, "as told")))

    def resolve(self, how: Resolution, step: str | None = None, state: bytes = b"7") -> admission.Admission:
        own = refold(self.rows)
        request = admission.ResolveRequest(how, "user", step, state, note="as told")
        return self._admit(admission.admit_resolve(own, self.topology, request, self.now_us))

    def abandon(self, note: str = "") -> admission.Admission:
        answer = admission.admit_abandon(refold(self.rows), self.topology, "user", note, self.now_us)
        self.op = None if isinstance(answer, admission.Admitted) else self.op
        return self._admit(answer)

    # --- what is known

    @property
    def next(self) -> Operation:
        return reconcile(self.p, self.topology)

    @property
    def facts(self) -> list[Fact]:
        return [fact for _, facts in self.rows for fact in facts]

    def _failure(self, reason: str) -> Failure:
        assert self.op is not None
        return Failure(self.op.step, reason, phase_of(self.op), self.op.attempt, self.now_us, reason=reason)

    def _planned(self, plan: commit.Plan) -> commit.Plan:
        assert (plan.next is None) is not (plan.rest is None), "exactly one of the two"
        if plan.facts:
            self.rows.append((self.now_us, list(plan.facts)))
        self.op = plan.next
        self.now_us += 1_000
        return plan

    def _admit(self, answer: admission.Admission) -> admission.Admission:
        if isinstance(answer, admission.Admitted):
            self._record([answer.fact, *answer.more])
        return answer

    def _record(self, facts: list[Fact]) -> None:
        fold_all(self.p, facts, self.now_us)
        self.rows.append((self.now_us, facts))
        self.now_us += 1_000


def content(p: Projection) -> dict[str, object]:
    """All that facts decided, for comparison."""
    return {name: getattr(p, name) for name in Stored.__struct_fields__}


def phase_of(op: RunOp | UnwindOp) -> Phase:
    return "forward" if isinstance(op, RunOp) else "unwind"


def names(facts: Sequence[Fact]) -> list[str]:
    """Facts in short: `Reserved A`."""
    return [short(fact) for fact in facts]


def short(fact: Fact) -> str:
    name = type(fact).__name__.removeprefix("Operation").removeprefix("Run").removeprefix("Segment")
    return f"{name} {getattr(fact, 'step', '')}".rstrip()


def refold(rows: Sequence[tuple[int, list[Fact]]]) -> Projection:
    """The projection of the stored text of these rows."""
    p = Projection(RUN)
    for at_us, facts in rows:
        for fact in decode_facts(RUN, p.version + 1, encode_facts(facts)):
            fold(p, fact, at_us)
    return p
