"""How attempts that do not succeed are recorded, and what becomes of their operation [M-5, M-9, M-17, R-6, R-12]."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.core import facts as f
from perdure.core import plan as planning
from perdure.core.facts import Failure
from perdure.core.operations import EndedOp, HeldOp, RunOp
from perdure.core.outcomes import Refused
from perdure.core.plan import ENGINE_ACTOR, Waiting
from perdure.core.retry import MAX_LOST_IN_A_ROW, Retry
from tests.core.build import AT_ONCE, Life, names, submitted

LATER = Retry(initial=1, factor=2, cap=30, jitter=0)
SECOND_US = 1_000_000


def retried(plan: planning.Plan) -> f.OperationRetryScheduled:
    found = [fact for fact in plan.facts if isinstance(fact, f.OperationRetryScheduled)]
    assert len(found) == 1
    return found[0]


def failed(plan: planning.Plan) -> f.OperationFailed:
    found = [fact for fact in plan.facts if isinstance(fact, f.OperationFailed)]
    assert len(found) == 1
    return found[0]


def returns_too_much(life: Life) -> planning.Plan:
    return life.ends(Refused(Failure("A", "9 MB, at most 1", reason="payload-too-large")))


# --- retry ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "cause", "reason"),
    [
        (Life.raises, "error", "error"),
        (Life.times_out, "timeout", "attempt-timeout"),
        (Life.is_lost, "lost", "lost"),
    ],
)
def test_errors_timeouts_and_losses_leave_the_operation_unresolved(
    act: Callable[[Life], planning.Plan], cause: str, reason: str
) -> None:
    """M-5, M-17, R-18: with their cause, and the failure for whoever looks."""
    life = Life("A")
    life.claim()
    fact = retried(act(life))
    assert (fact.step, fact.attempt, fact.cause) == ("A", 1, cause)
    assert fact.failure is not None
    assert (fact.failure.reason, fact.failure.attempt) == (reason, 1)
    assert life.op == RunOp("A", 0, 2, started=True)


def test_backoff_grows_with_each_failure() -> None:
    """M-5, R-4: without bound unless a policy sets one."""
    life = Life("A", LATER)
    life.claim()
    for delay_s in (1, 2, 4, 8, 16, 30, 30):
        now_us = life.now_us
        plan = life.raises()
        assert plan.rest == Waiting(now_us + delay_s * SECOND_US)
        life.now_us = now_us + delay_s * SECOND_US
        life.claim()
    assert life.p.attempts("forward", "A") == 8


def test_the_first_loss_is_retried_at_once_and_further_ones_with_backoff() -> None:
    """M-17: inferred at the next claim."""
    life = Life("A", LATER)
    life.claim()
    plan = life.is_lost()
    assert names(plan.facts) == ["AttemptStarted", "RetryScheduled A", "Reserved A"]
    assert retried(plan).due_us == life.now_us - 1_000
    now_us = life.now_us
    assert life.is_lost().rest == Waiting(now_us + 2 * SECOND_US)


def test_an_interruption_is_no_failure() -> None:
    """R-6, M-5: no backoff, no count, no failure kept."""
    life = Life("A", Retry(initial=10, cap=10, jitter=0, max_attempts=2, then="fail"))
    life.claim()
    for _ in range(5):
        life.may_start = False
        fact = retried(life.is_interrupted())
        assert (fact.cause, fact.failure, fact.due_us) == ("interrupted", None, life.now_us - 1_000)
        life.may_start = True
        assert names(life.claim().facts) == ["AttemptStarted", "Reserved A"]
    assert life.p.current is not None
    assert life.p.current.failures == 0
    assert life.p.attempts("forward", "A") == 6


def test_an_attempt_of_a_broken_contract_is_interrupted_not_lost() -> None:
    """D-2, M-17: the claim after an invalid run was mended says what became of the old attempt."""
    life = Life("A")
    life.claim()
    life.restart()
    assert retried(life.claim(lost_cause="interrupted")).cause == "interrupted"
    assert life.p.current is not None
    assert life.p.current.failures == 0


@pytest.mark.parametrize("phase", ["forward", "unwind"])
def test_the_same_holds_backwards(phase: str) -> None:
    """U-8, M-17: in unwind too, with the phase in the fact."""
    life = Life("A* B", LATER)
    life.claim()
    if phase == "unwind":
        life.ok()
        life.fails()
    fact = retried(life.raises())
    assert fact.phase == phase
    assert fact.failure is not None
    assert fact.failure.phase == phase


# --- the end of patience ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "acts", [["raises"] * 3, ["times_out"] * 3, ["is_lost"] * 3, ["raises", "is_lost", "times_out"]]
)
def test_exhaustion_holds_the_run(acts: list[str]) -> None:
    """M-5: by default, and all three causes count."""
    life = Life("A", Retry(initial=0, cap=0, jitter=0, max_attempts=3))
    plan = life.claim()
    for act in acts:
        assert life.p.held is None
        plan = getattr(life, act)()
    assert names(plan.facts)[-2:] == ["RetryScheduled A", "Held A"]
    assert plan.rest == HeldOp("attempts-exhausted")
    assert life.p.held is not None
    assert (life.p.held.actor, life.p.held.step) == (ENGINE_ACTOR, "A"), "M-16"
    life.release()
    life.claim()
    life.raises()
    assert life.op == RunOp("A", 0, 5, started=True), "R-17: the count starts anew, attempts go on"


def test_exhaustion_fails_the_run_if_declared() -> None:
    """M-5, M-9, U-9: reason `attempts-exhausted`, and the step is in doubt."""
    life = Life("A* B*?", Retry(initial=0, cap=0, jitter=0, max_attempts=2, then="fail"))
    life.claim()
    life.ok()
    life.raises()
    plan = life.raises()
    assert names(plan.facts) == ["Failed B", "Reserved B"]
    assert failed(plan).in_doubt
    assert failed(plan).failure.reason == "attempts-exhausted"
    assert life.attempt.attempt == 1


def test_a_bound_is_forward_only() -> None:
    """M-5: unless given for unwind."""
    life = Life("A* B", Retry(initial=0, cap=0, jitter=0, max_attempts=1, then="fail"))
    life.claim()
    life.ok()
    life.raises()
    for _ in range(20):
        life.raises()
    assert life.p.held is None
    assert life.p.attempts("unwind", "A") == 21


@pytest.mark.parametrize("then", ["hold", "fail"])
def test_a_bound_for_unwind(then: str) -> None:
    """M-5, U-8, U-9: it fails the unwind, not the run's failure; or holds."""
    policy = Retry(initial=0, cap=0, jitter=0, unwind_max_attempts=2, then="fail" if then == "fail" else "hold")
    life = Life("A* B", policy)
    life.claim()
    life.ok()
    life.fails()
    life.raises()
    plan = life.raises()
    if then == "hold":
        assert plan.rest == HeldOp("attempts-exhausted")
        return
    assert not failed(plan).in_doubt
    end = plan.facts[-1]
    assert isinstance(end, f.RunFailed)
    assert [(x.step, x.phase, x.reason) for x in end.unwind_failures] == [("A", "unwind", "attempts-exhausted")]
    assert (end.failure.step, end.uncompensated) == ("B", ("A",))


def test_a_never_retryable_exception_fails_at_once_and_leaves_doubt() -> None:
    """M-5, M-9: it is not the handler's own word."""
    life = Life("A")
    life.claim()
    plan = life.raises(never=True)
    assert names(plan.facts)[0] == "Failed A"
    assert failed(plan).in_doubt
    assert failed(plan).failure.reason == "error"
    assert plan.facts[-1] == f.RunFailed(failed(plan).failure, in_doubt=("A",))


def test_fail_is_the_handlers_own_word() -> None:
    """M-9, M-5: permanent at once, without doubt, whatever the policy."""
    life = Life("A", Retry(max_attempts=5))
    life.claim()
    plan = life.fails()
    assert not failed(plan).in_doubt
    assert plan.rest == EndedOp()


@pytest.mark.parametrize("policy", [AT_ONCE, Retry(initial=0, cap=0, jitter=0, max_attempts=50, then="fail")])
def test_five_losses_in_a_row_hold_whatever_the_policy(policy: Retry) -> None:
    """M-5: an operation that kills its worker."""
    life = Life("A", policy)
    life.claim()
    for _ in range(MAX_LOST_IN_A_ROW - 1):
        life.is_lost()
    life.raises()  # an answer breaks the row
    for _ in range(MAX_LOST_IN_A_ROW - 1):
        life.is_lost()
        assert life.p.held is None
    assert life.is_lost().rest == HeldOp("lost-attempts")
    assert life.claim().facts == []


def test_a_refused_value_holds_the_run() -> None:
    """P-4: over the hard limit; the step is not failed, and its next attempt may return less."""
    life = Life("A")
    life.claim()
    plan = returns_too_much(life)
    assert names(plan.facts) == ["RetryScheduled A", "Held A"]
    assert plan.rest == HeldOp("payload-too-large")
    life.release()
    life.claim()
    assert names(life.ok(b"1").facts)[0] == "Succeeded A"


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_a_cancel_at_rest_resolves_the_next_operation_without_a_call() -> None:
    """R-12, M-11: and goes on to unwind in the same append [J-12]."""
    life = Life("A* B C")
    life.claim()
    life.may_start = False
    life.ok()
    life.may_start = True
    life.cancel()
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "Failed B", "Reserved A"]
    assert failed(plan).failure.kind == "canceled"
    assert not failed(plan).in_doubt
    assert life.p.attempts("forward", "B") == 0


def test_a_cancel_of_a_run_that_never_started_calls_nothing() -> None:
    """R-12."""
    life = Life("X~ A B", submission=submitted(start_at_us=10**12))
    life.cancel()
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "Failed A", "Completed", "OutcomeCommitted", "Failed"]
    assert failed(plan).passed == ("X",), "E-7"


def test_a_cancel_while_backing_off_acts_at_once() -> None:
    """R-12, R-4: it does not wait for the due time; the step was attempted, so it is in doubt."""
    life = Life("A", LATER)
    life.claim()
    life.raises()
    life.cancel()
    plan = life.claim()
    assert names(plan.facts)[:2] == ["AttemptStarted", "Failed A"]
    assert failed(plan).in_doubt
    assert failed(plan).failure.attempt == 1


def test_a_cancel_acts_while_draining() -> None:
    """R-12, R-6: it starts nothing."""
    life = Life("A* B")
    life.claim()
    life.may_start = False
    life.ok()
    life.cancel()
    assert names(life.claim().facts) == ["AttemptStarted", "Failed B"]


def test_a_success_in_flight_commits_and_the_cancel_acts_on_the_next() -> None:
    """R-12."""
    life = Life("A* B C")
    life.claim()
    life.cancel()
    assert names(life.ok().facts) == ["Succeeded A", "Failed B", "Reserved A"]


def test_a_success_of_the_last_step_in_flight_ends_the_run_well() -> None:
    """R-12: nothing is left that the cancel could act on."""
    life = Life("A")
    life.claim()
    life.cancel()
    assert names(life.ok().facts)[-1] == "Succeeded"


@pytest.mark.parametrize(
    ("act", "in_doubt"),
    [
        (Life.fails, False),
        (Life.raises, True),
        (Life.times_out, True),
        (Life.is_interrupted, True),
        (Life.is_lost, True),
        (returns_too_much, True),
    ],
    ids=["Fail", "raises", "times out", "interrupted", "lost", "refused"],
)
def test_any_other_end_in_flight_resolves_the_step_as_canceled(
    act: Callable[[Life], planning.Plan], in_doubt: bool
) -> None:
    """R-12: its own `Fail` too, but without doubt [M-9]."""
    life = Life("A B")
    life.claim()
    life.cancel("asked for")
    plan = act(life)
    assert failed(plan).in_doubt is in_doubt
    assert (failed(plan).failure.kind, failed(plan).failure.reason) == ("canceled", "asked for")
    assert isinstance(plan.facts[-1], f.RunFailed)
    assert plan.facts[-1].failure.kind == "canceled", "M-11"


def test_a_step_that_settles_retries_to_its_own_resolution_first() -> None:
    """R-12: started, it goes on; then the cancel acts on the next."""
    life = Life("A!* B!")
    life.claim()
    life.cancel()
    life.raises()
    assert life.op == RunOp("A", 0, 2, started=True)
    life.is_lost()
    assert life.op == RunOp("A", 0, 3, started=True)
    assert names(life.ok().facts) == ["Succeeded A", "Failed B", "Reserved A"]


def test_a_step_that_settles_may_fail_by_its_own_word() -> None:
    """R-12, M-11: then the run has failed, it was not canceled."""
    life = Life("A! B")
    life.claim()
    life.cancel()
    plan = life.fails()
    assert failed(plan).failure.kind == "system"
    assert isinstance(plan.facts[-1], f.RunFailed)


def test_a_cancel_acts_at_once_on_a_held_run() -> None:
    """R-12: one by an operator, and one by policy."""
    life = Life("A B")
    life.hold()
    life.cancel()
    assert names(life.claim().facts)[:2] == ["AttemptStarted", "Failed A"]
    life = Life("A", Retry(initial=0, cap=0, jitter=0, max_attempts=1))
    life.claim()
    life.raises()
    life.cancel()
    assert names(life.claim().facts)[:2] == ["AttemptStarted", "Failed A"]


def test_a_canceled_held_run_still_unwinds_only_when_released() -> None:
    """R-17, U-11: the hold stands, no new attempt starts."""
    life = Life("A* B")
    life.claim()
    life.hold()
    life.ok()
    life.cancel()
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "Failed B"]
    assert plan.rest == HeldOp("by hand")
    life.release()
    assert names(life.claim().facts) == ["AttemptStarted", "Reserved A"]


def test_a_cancel_waits_where_the_next_operation_is_missing() -> None:
    """R-12, E-3, E-5, D-8."""
    life = Life("A B")
    life.claim()
    life.restart()
    life.cancel()
    life.deploy("B")
    assert life.claim().facts == []
    life.deploy("A~ B")
    assert "Failed A" in names(life.claim().facts)


# --- deadline ---------------------------------------------------------------------------------------------------------


def test_a_deadline_is_a_cancel_with_its_reason() -> None:
    """R-12, M-16."""
    life = Life("A B", submission=submitted(deadline_us=500_000))
    life.claim()
    life.now_us = 499_999
    assert names(life.ok().facts) == ["Succeeded A", "Reserved B"]
    life.now_us = 500_000
    life.restart()
    plan = life.claim()
    assert names(plan.facts)[:4] == ["AttemptStarted", "RetryScheduled B", "CancelRequested", "Failed B"]
    assert plan.facts[2] == f.RunCancelRequested(ENGINE_ACTOR, "deadline")
    assert failed(plan).failure.reason == "deadline"
    assert failed(plan).in_doubt


@pytest.mark.parametrize("stand", ["held", "waiting", "delayed"])
def test_a_deadline_acts_on_a_run_at_rest(stand: str) -> None:
    """R-12, R-4."""
    start_us = 900_000 if stand == "delayed" else 0
    life = Life("A", LATER, submission=submitted(start_us, deadline_us=500_000))
    if stand == "waiting":
        life.claim()
        life.raises()
    elif stand == "held":
        life.hold()
    life.now_us = 500_000
    assert names(life.claim().facts)[1:3] == ["CancelRequested", "Failed A"]


def test_a_success_that_comes_after_the_deadline_counts() -> None:
    """R-12: the deadline acts on the next operation, if there is one."""
    life = Life("A", submission=submitted(deadline_us=500_000))
    life.claim()
    life.now_us = 600_000
    assert names(life.ok().facts) == ["Succeeded A", "CancelRequested", "Completed", "OutcomeCommitted", "Succeeded"]


def test_a_deadline_comes_once_and_not_into_unwinding() -> None:
    """R-12, U-11."""
    life = Life("A* B", submission=submitted(deadline_us=500_000))
    life.claim()
    life.ok()
    life.fails()
    life.now_us = 600_000
    assert names(life.raises().facts) == ["RetryScheduled A", "Reserved A"]
    life = Life("A!", submission=submitted(deadline_us=500_000))
    life.claim()
    life.now_us = 600_000
    assert "CancelRequested" in names(life.raises().facts)
    assert "CancelRequested" not in names(life.raises().facts)


def test_a_deadline_of_an_invalid_run_is_recorded_once() -> None:
    """R-12, D-8: the cancel waits until the step is back."""
    life = Life("A", submission=submitted(deadline_us=500_000))
    life.claim()
    life.deploy("B")
    life.restart()
    life.now_us = 600_000
    assert "CancelRequested" in names(life.claim().facts)
    assert life.claim().facts == []
    life.deploy("A")
    assert "Failed A" in names(life.claim().facts)
