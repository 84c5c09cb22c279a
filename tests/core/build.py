"""Runs for the tests of the core, driven through the real planner as an engine would drive them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from perdure.core import admission, commit, outcomes
from perdure.core import plan as planning
from perdure.core.facts import (
    NULL,
    Fact,
    Failure,
    MessageReceived,
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
    Shape,
)
from perdure.core.ids import child_id
from perdure.core.journal import decode_facts, encode_facts
from perdure.core.operations import Operation, RunOp, UnitOp, UnwindOp
from perdure.core.permits import Limited
from perdure.core.projection import Projection, Stored
from perdure.core.reconciler import reconcile
from perdure.core.reducer import fold, fold_all
from perdure.core.retry import Retry
from perdure.core.topology import StepSpec, Topology

RUN = "run-1"
SHAPES: dict[str, Shape] = {
    "%": "sleep",
    "@": "message",
    "#": "runs",
    "+": "each",
    "$": "loop",
    "^": "children",
    "=": "child",
}
AT_ONCE = Retry(initial=0, cap=0, jitter=0)


def topology(text: str, *former: Topology) -> Topology:
    """Steps as in scenarios: `A* B*? C~`; `D&` has a condition, `E!` settles under a cancel, others: `SHAPES`.

    `F^>` leaves its child runs alone under a cancel.
    """
    specs: list[StepSpec] = []
    for word in text.split():
        name = word.rstrip("*?~&!%@#+$^=>")
        flags = word[len(name) :]
        shape: Shape = "handler"
        for sign in flags:
            shape = SHAPES.get(sign, shape)
        unwind, in_doubt, is_retired, conditional, settle = (sign in flags for sign in "*?~&!")
        specs.append(StepSpec(name, unwind, in_doubt, is_retired, conditional, settle, shape, ">" in flags))
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
        self.openings: dict[str, planning.Opening] = {}
        self.terms_of: dict[str, planning.Terms] = {}
        self.timeouts: dict[str, bytes] = {}

    def condition(self, step: str) -> bool:
        self.asked.append(step)
        if step in self.broken:
            raise planning.Unplannable("condition-raised", f"the condition of {step!r} raised")
        return step not in self.false

    def output(self) -> bytes:
        self.asked.append("output")
        if "output" in self.broken:
            raise planning.Unplannable("output-raised", "the output function raised")
        return b'"output"'

    def opening(self, step: str) -> planning.Opening:
        self.asked.append(f"open {step}")
        if f"open {step}" in self.broken:
            raise planning.Unplannable("opening-raised", f"what {step!r} begins with raised")
        return self.openings.get(step, planning.Opening(self.naps_us))

    def terms(self, step: str) -> planning.Terms:
        return self.terms_of.get(step, planning.Terms())

    def timeout_state(self, step: str) -> bytes | None:
        return self.timeouts.get(step)

    def message_state(self, step: str, payload: bytes) -> bytes:
        if f"message {step}" in self.broken:
            raise planning.Unplannable("payload-unreadable", f"the message of {step!r} cannot be read")
        return payload

    def failure_output(self, ended: RunFailed) -> bytes:
        self.asked.append("failure output")
        if "failure output" in self.broken:
            raise planning.Unplannable("output-raised", "the failure output function raised")
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
        self.op: planning.Next | None = None
        self.ends_of: dict[str, planning.RunEnd] = {}
        self.cycle = False
        self.told = False
        self.gate: Callable[[str], Limited | None] | None = None
        self._record([submission or submitted()])

    # --- the engine

    def setting(self) -> planning.Setting:
        now_us, author, ends = self.now_us, self.author, self.ends_of
        return planning.Setting(
            now_us, self.may_start, 0.5, self.policy, author, 0, ends, self.cycle, self.told, self.gate
        )

    def claim(self, lost_cause: RetryCause = "lost") -> planning.Plan:
        """A worker claims the run; an open attempt was lost."""
        claim = SegmentAttemptStarted(self.p.token + 1, "w", len(self.former) + 1, "build-1")
        return self._planned(commit.plan_claim(self.p, self.topology, claim, self.setting(), lost_cause=lost_cause))

    def ends(self, outcome: outcomes.Outcome) -> planning.Plan:
        """The open attempt ends."""
        return self._planned(commit.plan_outcome(self.p, self.topology, self.attempt, outcome, self.setting()))

    @property
    def attempt(self) -> RunOp | UnwindOp:
        """The attempt that is open in this process."""
        assert isinstance(self.op, (RunOp, UnwindOp)), "no attempt is open"
        return self.op

    @property
    def unit(self) -> UnitOp:
        """The unit whose items run in this process, or whose child runs are being submitted."""
        assert isinstance(self.op, UnitOp), "no unit is open"
        return self.op

    def goes_on(self) -> planning.Plan:
        return self._planned(commit.plan_next(self.p, self.topology, self.setting()))

    def ok(self, state: bytes = b"1") -> planning.Plan:
        return self.ends(outcomes.Returned(state))

    def fails(self) -> planning.Plan:
        """With the handler's own `Fail`."""
        return self.ends(outcomes.Declined(self._failure("declined")))

    def raises(self, *, never: bool = False) -> planning.Plan:
        return self.ends(outcomes.Raised(self._failure("error"), never))

    def times_out(self) -> planning.Plan:
        return self.ends(outcomes.TimedOut(self._failure("attempt-timeout")))

    def is_interrupted(self) -> planning.Plan:
        return self.ends(outcomes.Interrupted())

    def is_lost(self) -> planning.Plan:
        """The worker dies; another one claims the run."""
        self.restart()
        return self.claim()

    def wakes(self) -> planning.Plan:
        """The sleep that is open is over, and a worker takes the run up."""
        self.now_us = max(self.now_us, self.p.due_us)
        return self.claim()

    def memo(self, name: str, value: bytes) -> None:
        self._record([OperationProgress(self.attempt.step, name, msgspec.Raw(value), phase_of(self.attempt))])

    # --- items and child runs

    def items_end(self, *ended: outcomes.ItemOutcome, running: bool = False) -> planning.Plan:
        """Attempts of items end; with `running`, handlers of others are still at work."""
        plan = commit.plan_items(self.p, self.topology, self.unit, ended, self.setting(), running=running)
        return self._planned(plan)

    def item(self, index: int, outcome: outcomes.Outcome | bytes, *, more: bool = False) -> outcomes.ItemOutcome:
        """How the open attempt of an item ends; bytes: it returns that."""
        attempt = self.p.units[self.unit.step].entries[index].attempts
        made = outcomes.Returned(outcome) if isinstance(outcome, bytes) else outcome
        return outcomes.ItemOutcome(index, attempt, made, more)

    def item_memo(self, index: int, name: str, value: bytes) -> None:
        self._record([OperationProgress(self.unit.step, name, msgspec.Raw(value), item=index)])

    def item_failure(self, index: int, reason: str = "declined") -> Failure:
        return Failure(self.unit.step, reason, at_us=self.now_us, reason=reason, item=index)

    def dispatched(self, refused: dict[int, Failure] | None = None) -> planning.Plan:
        """The child runs are submitted."""
        return self._planned(commit.plan_dispatched(self.p, self.topology, self.unit, refused or {}, self.setting()))

    def child(self, index: int, step: str | None = None) -> str:
        """The id of a child run."""
        name = step or self.p.pin or ""
        return child_id(self.p.units[name].opened_us, RUN, name, index)

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

    def send(self, name: str, payload: bytes = b"5", key: str = "") -> admission.Admission:
        digest = hashlib.sha256(payload).hexdigest()
        return self._admit(
            admission.admit_message(
                self.p, lambda: MessageReceived(name, msgspec.Raw(payload), digest, "user", key), key
            )
        )

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
        op = self.attempt
        return Failure(op.step, reason, phase_of(op), op.attempt, self.now_us, reason=reason)

    def _planned(self, plan: planning.Plan) -> planning.Plan:
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

    def record(self, *facts: Fact) -> None:
        """Facts in one append, planned by nobody."""
        self._record(list(facts))

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
    name = name.replace("SegmentCreated", "Created")
    return f"{name} {getattr(fact, 'step', '')}".rstrip()


def refold(rows: Sequence[tuple[int, list[Fact]]]) -> Projection:
    """The projection of the stored text of these rows."""
    p = Projection(RUN)
    for at_us, facts in rows:
        for fact in decode_facts(RUN, p.version + 1, encode_facts(facts)):
            fold(p, fact, at_us)
    return p
