"""J-12, J-15: what one append holds, and when there is nothing to append at all."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given

from perdure.core import commit
from perdure.core import facts as f
from perdure.core import plan as planning
from perdure.core.commit import plan_submission
from perdure.core.operations import EndedOp, HeldOp, InvalidOp, RunOp, UnitOp, UnwindOp
from perdure.core.outcomes import Returned
from perdure.core.plan import Closed, Waiting
from perdure.core.projection import Projection, dump, restore
from perdure.core.retry import Retry
from perdure.errors import CorruptJournal
from tests.core.build import RUN, Life, content, names, refold, submitted, topology
from tests.core.strategies import lives, unit_plan

LATER = Retry(initial=10, cap=10, jitter=0)

# --- one append per clean step ----------------------------------------------------------------------------------------


def test_a_claim_and_its_first_reservation_are_one_append() -> None:
    """J-12, J-16: the first claim begins the first segment."""
    life = Life("A B")
    assert names(life.claim().facts) == ["AttemptStarted", "Reserved A"]
    assert life.op == RunOp("A", 0, 1, started=False)


def test_a_success_and_the_next_reservation_are_one_append() -> None:
    """J-12, M-6: and the state travels with its success."""
    life = Life("A B")
    life.claim()
    plan = life.ok(b'{"seat":"12A"}')
    assert plan.facts == [
        f.OperationSucceeded("A", 1, msgspec.Raw(b'{"seat":"12A"}')),
        f.OperationReserved("B", 1),
    ]
    assert plan.next == RunOp("B", 1, 1, started=False)


def test_the_last_success_the_outcome_and_the_end_are_one_append() -> None:
    """J-12, J-16, E-10."""
    life = Life("A")
    life.claim()
    plan = life.ok()
    assert plan.facts == [
        f.OperationSucceeded("A", 1, msgspec.Raw(b"1")),
        f.SegmentCompleted(),
        f.OutcomeCommitted("success", msgspec.Raw(b'"output"')),
        f.RunSucceeded(),
    ]
    assert plan.rest == EndedOp()


def test_the_last_unwind_the_outcome_and_the_end_are_one_append() -> None:
    """J-12, U-9."""
    life = Life("A* B")
    life.claim()
    life.ok()
    assert names(life.fails().facts) == ["Failed B", "Reserved A"]
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A", "Completed", "OutcomeCommitted", "Failed"]
    assert plan.facts[2] == f.OutcomeCommitted("failure", msgspec.Raw(b'"failure output"'))


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_a_clean_run_of_n_steps_costs_n_plus_one_appends(steps: int) -> None:
    """J-12: after the submission; at least one, for a run without steps."""
    life = Life(" ".join(f"s{i}" for i in range(steps)))
    life.claim()
    while life.op is not None:
        life.ok()
    assert life.p.ended == f.RunSucceeded()
    assert len(life.rows) - 1 == steps + 1


def test_a_submission_may_carry_claim_and_reservation() -> None:
    """J-12: N appends then."""
    life = Life("A B")
    p = Projection(RUN)
    claim = f.SegmentAttemptStarted(1, "w", 1)
    plan = plan_submission(p, life.topology, submitted(), claim, life.setting())
    assert names(plan.facts) == ["Submitted", "AttemptStarted", "Reserved A"]
    assert plan.next == RunOp("A", 0, 1, started=False)


def test_a_submission_for_later_waits() -> None:
    """R-4."""
    life = Life("A")
    p = Projection(RUN)
    later = submitted(start_at_us=life.now_us + 5)
    plan = plan_submission(p, life.topology, later, f.SegmentAttemptStarted(1, "w", 1), life.setting())
    assert plan.rest == Waiting(life.now_us + 5)
    assert plan.next is None


def test_skips_travel_with_the_next_reservation() -> None:
    """E-12: several conditions are asked while planning, each once."""
    life = Life("A B& C& D& E")
    life.author.false.update("BC")
    life.claim()
    assert names(life.ok().facts) == ["Succeeded A", "Skipped B", "Skipped C", "Reserved D"]
    life.ok()
    assert life.author.asked == ["B", "C", "D"]


def test_skips_travel_with_the_end() -> None:
    """E-12, J-12."""
    life = Life("A B&")
    life.author.false.add("B")
    life.claim()
    assert names(life.ok().facts) == ["Succeeded A", "Skipped B", "Completed", "OutcomeCommitted", "Succeeded"]


def test_a_skip_records_what_it_passes() -> None:
    """E-7, E-12."""
    life = Life("X~ A& Y~ B")
    life.author.false.add("A")
    plan = life.claim()
    assert plan.facts[1:] == [f.OperationSkipped("A", ("X",)), f.OperationReserved("B", 1, passed=("Y",))]


def test_an_unwind_reservation_records_what_it_crosses() -> None:
    """U-4: at or after its position now, each id once."""
    life = Life("A* B* C* D")
    life.claim()
    life.ok()
    life.ok()
    life.ok()
    assert life.fails().facts[-1] == f.OperationReserved("C", 1, "unwind", (), ("C", "D"))
    life.deploy("X A* D B* Y C*")
    assert life.ok().facts[-1] == f.OperationReserved("A", 1, "unwind", (), ("A", "B", "Y")), "D was crossed before"
    assert life.p.crossed == {"A", "B", "C", "D", "Y"}


def test_what_is_in_doubt_is_named_on_success_too() -> None:
    """U-9."""
    life = Life("A B")
    life.claim()
    life.resolve("skip")
    life.goes_on()
    assert life.ok().facts[-1] == f.RunSucceeded(("A",))


# --- when a plan stops ------------------------------------------------------------------------------------------------


def test_draining_reserves_nothing() -> None:
    """R-6, J-12: the success is committed alone; a finished run still ends."""
    life = Life("A B")
    life.claim()
    life.may_start = False
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A"]
    assert plan.rest == Closed()
    assert life.claim() == planning.Plan([], None, Closed())
    life.may_start = True
    life.claim()
    life.may_start = False
    assert names(life.ok().facts)[-1] == "Succeeded"


def test_draining_does_not_ask_conditions() -> None:
    """R-6, E-12: the worker that starts the step asks."""
    life = Life("A B&")
    life.claim()
    life.may_start = False
    life.ok()
    assert life.author.asked == []


def test_a_known_hold_reserves_nothing() -> None:
    """R-17, J-12."""
    life = Life("A B")
    life.claim()
    life.hold()
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A"]
    assert plan.rest == HeldOp("by hand")


def test_a_known_deployment_decides() -> None:
    """E-1: the plan is for the topology it is given."""
    life = Life("A B")
    life.claim()
    life.deploy("A C")
    assert names(life.ok().facts) == ["Succeeded A", "Reserved C"]
    life.deploy("A B")
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded C", "Reserved B"]


def test_an_outcome_commits_though_its_step_is_gone() -> None:
    """E-3, M-4: what the handler returned is true whatever was deployed meanwhile."""
    life = Life("A B C")
    life.claim()
    life.ok()
    life.deploy("A C")
    assert names(life.ok().facts) == ["Succeeded B", "Reserved C"]


def test_an_operation_that_is_due_later_is_not_reserved() -> None:
    """R-4: the retry travels alone and the lease is free."""
    life = Life("A", LATER)
    life.claim()
    due_us = life.now_us + 10_000_000
    plan = life.raises()
    assert names(plan.facts) == ["RetryScheduled A"]
    assert plan.rest == Waiting(due_us)
    assert life.claim() == planning.Plan([], None, Waiting(due_us))
    life.now_us = due_us
    assert names(life.claim().facts) == ["AttemptStarted", "Reserved A"]


def test_a_delayed_start_waits() -> None:
    """R-4, D-8."""
    life = Life("A", submission=submitted(start_at_us=50_000))
    assert life.claim() == planning.Plan([], None, Waiting(50_000))
    life.retry()
    assert names(life.claim().facts) == ["AttemptStarted", "Reserved A"], "R-17: retry now"


# --- invalid runs -----------------------------------------------------------------------------------------------------


def rest_of(plan: planning.Plan) -> str:
    return plan.rest.reason if isinstance(plan.rest, InvalidOp) else type(plan.rest).__name__


def missing() -> Life:
    life = Life("A B")
    life.claim()
    life.deploy("B")
    return life


def nowhere() -> Life:
    life = Life("A B")
    life.claim()
    life.hold()
    life.ok()
    life.release()
    life.deploy("X")
    return life


def unwinding_nowhere() -> Life:
    life = Life("A* B")
    life.claim()
    life.ok()
    life.hold()
    life.fails()
    life.release()
    life.deploy("X")
    return life


def broken_condition() -> Life:
    life = Life("A&")
    life.author.broken.add("A")
    return life


def broken_output() -> Life:
    life = Life("")
    life.author.broken.add("output")
    return life


def broken_failure_output() -> Life:
    life = Life("A")
    life.author.broken.add("failure output")
    life.claim()
    life.fails()
    return life


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (missing, "step-missing"),
        (nowhere, "no-safe-frontier"),
        (unwinding_nowhere, "no-safe-unwind-frontier"),
        (broken_condition, "condition-raised"),
        (broken_output, "output-raised"),
        (broken_failure_output, "output-raised"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_run_is_not_claimed_and_nothing_is_written(make: Callable[[], Life], reason: str) -> None:
    """D-1, D-8, D-2: however often it is looked at; it is no fact."""
    life = make()
    before, token = content(refold(life.rows)), life.p.token
    for _ in range(3):
        plan = life.claim()
        assert plan.facts == []
        assert rest_of(plan) == reason
    assert content(life.p) == before
    assert life.p.token == token


def test_an_invalid_run_goes_on_when_it_is_valid_again() -> None:
    """D-2, E-3, M-13."""
    life = missing()
    life.claim()
    life.deploy("A~ B")
    assert names(life.claim().facts) == ["AttemptStarted", "RetryScheduled A", "Reserved A"]
    life = broken_condition()
    life.claim()
    life.author.broken.clear()
    assert names(life.claim().facts) == ["AttemptStarted", "Reserved A"]


def test_a_success_is_committed_alone_when_what_follows_raises() -> None:
    """J-12, M-13, E-12: the run is invalid, not failed, and the handler is not called again."""
    for text, broken, reason in (("A", "output", "output-raised"), ("A B&", "B", "condition-raised")):
        life = Life(text)
        life.author.broken.add(broken)
        life.claim()
        plan = life.ok()
        assert names(plan.facts) == ["Succeeded A"]
        assert rest_of(plan) == reason
        assert life.p.failure is None
        life.author.broken.clear()
        assert "Reserved A" not in names(life.claim().facts)


def test_a_raising_output_may_be_followed_by_a_step() -> None:
    """M-13, E-10: until the outcome is committed the topology has the last word."""
    life = broken_output()
    life.claim()
    life.deploy("A")
    assert names(life.claim().facts) == ["AttemptStarted", "Reserved A"]


def test_what_was_skipped_before_a_condition_raised_is_kept() -> None:
    """E-12, D-8: the claim did something."""
    life = Life("A& B&")
    life.author.false.add("A")
    life.author.broken.add("B")
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "Skipped A"]
    assert rest_of(plan) == "condition-raised"
    assert life.claim().facts == []


@pytest.mark.parametrize("act", ["held", "ended"])
def test_a_held_or_ended_run_is_not_claimed(act: str) -> None:
    """D-8, R-17."""
    life = Life("A")
    if act == "held":
        life.hold()
    else:
        life.claim()
        life.ok()
    rows = len(life.rows)
    plan = life.claim()
    assert plan.facts == []
    assert type(plan.rest) is (HeldOp if act == "held" else EndedOp)
    assert len(life.rows) == rows


def test_an_open_attempt_of_an_invalid_run_stays_open() -> None:
    """D-8, M-17: its loss is recorded by the claim that goes on."""
    life = missing()
    life.restart()
    assert life.claim().facts == []
    life.deploy("A B")
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "RetryScheduled A", "Reserved A"]


# --- purity -----------------------------------------------------------------------------------------------------------


@given(lives())
def test_the_same_past_gives_the_same_plan(life: Life) -> None:
    """J-15: outcome and projection in, facts out; what was planned is what was folded [J-12]."""
    claim = f.SegmentAttemptStarted(life.p.token + 1, "w", 9)
    plans: list[bytes] = []
    for _ in range(2):
        p = restore(dump(life.p), 0, 0, b"")
        if life.op is None:
            plan = commit.plan_claim(p, life.topology, claim, life.setting())
        elif isinstance(life.op, UnitOp):
            plan = unit_plan(p, life.topology, life.op, life.setting())
        else:
            plan = commit.plan_outcome(p, life.topology, life.attempt, Returned(b"2"), life.setting())
        plans.append(msgspec.json.encode((plan.facts, repr(plan.next), repr(plan.rest))))
        expected = refold([*life.rows, (life.now_us, list(plan.facts))])
        assert content(expected) == content(p)
    assert plans[0] == plans[1]


@given(lives())
def test_every_plan_of_a_life_reserves_at_most_once_and_last(life: Life) -> None:
    """M-8, J-12, R-1: and an ended run has its outcome and its end in one append [E-10]."""
    for _, facts in life.rows:
        reserved = [i for i, fact in enumerate(facts) if isinstance(fact, f.OperationReserved)]
        assert reserved in ([], [len(facts) - 1])
        outcomes = [i for i, fact in enumerate(facts) if isinstance(fact, f.OutcomeCommitted)]
        ends = [i for i, fact in enumerate(facts) if isinstance(fact, f.RunSucceeded | f.RunFailed)]
        assert (outcomes, ends) in (([], []), ([len(facts) - 2], [len(facts) - 1]))
        completed = [fact for fact in facts if isinstance(fact, f.SegmentCompleted)]
        assert len(completed) == len(ends), "J-16"


@given(lives())
def test_attempts_of_a_life_rise_by_one(life: Life) -> None:
    """M-8: per step and phase, from one."""
    seen: dict[tuple[str, str], int] = {}
    for fact in life.facts:
        if isinstance(fact, f.OperationReserved):
            key = (fact.phase, fact.step)
            assert fact.attempt == seen.get(key, 0) + 1
            seen[key] = fact.attempt


@given(lives())
def test_nothing_of_a_life_follows_its_end(life: Life) -> None:
    """M-12, J-6."""
    if life.p.ended is None:
        return
    assert life.claim().facts == []
    for request in (life.cancel, life.hold, life.release, life.retry, lambda: life.resolve("value")):
        assert type(request()).__name__ == "Taken"
    assert life.goes_on().facts == []


def test_an_outcome_needs_its_open_attempt() -> None:
    """J-7, R-17: what ends twice, or was resolved meanwhile, is refused."""
    life = Life("A B")
    life.claim()
    op = life.op
    assert isinstance(op, RunOp)
    life.resolve("value")
    with pytest.raises(CorruptJournal, match="attempt 1 of 'A' is not open"):
        commit.plan_outcome(refold(life.rows), life.topology, op, Returned(b"1"), life.setting())
    unwind = UnwindOp("A", 0, 1, in_doubt=False)
    with pytest.raises(CorruptJournal):
        commit.plan_outcome(refold(life.rows), topology("A"), unwind, Returned(b"1"), life.setting())


def test_an_owner_that_was_overtaken_plans_nothing() -> None:
    """J-7: the newest claim in the projection must be the planner's own."""
    life = Life("A B")
    life.claim()
    own = msgspec.structs.replace(life.setting(), token=life.p.token)
    op = life.attempt
    life.is_lost()
    with pytest.raises(planning.NotOwner, match="was overtaken by 2"):
        commit.plan_outcome(life.p, life.topology, op, Returned(b"1"), own)
    with pytest.raises(planning.NotOwner):
        commit.plan_next(life.p, life.topology, own)
