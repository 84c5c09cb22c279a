"""Sleeps: a time that is fixed when they open, no call, no attempt, no doubt [B-15, B-20]."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.core import admission
from perdure.core import facts as f
from perdure.core.explain import explain
from perdure.core.operations import EndedOp, HeldOp, InvalidOp, RunOp, WaitOp
from perdure.core.plan import Closed, Waiting
from perdure.core.reconciler import reconcile
from perdure.core.reducer import fold
from perdure.core.signature import decode_ledger, projection_of, sign
from perdure.errors import CorruptJournal
from tests.core.build import Life, names, submitted

SECOND_US = 1_000_000


def asleep(text: str = "A% B") -> Life:
    """A run that sleeps in its first step for a second."""
    life = Life(text)
    life.claim()
    return life


def test_it_opens_and_rests_in_the_append_of_the_success_before_it() -> None:
    """J-12, R-4: nothing is called, no append of its own, and no worker is held."""
    life = Life("A S% B")
    life.claim()
    now_us = life.now_us
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A", "Parked S", "Suspended S"]
    assert plan.facts[1] == f.OperationParked("S", now_us + SECOND_US)
    assert plan.rest == Waiting(now_us + SECOND_US)
    assert life.claim().facts == []  # too early: nothing is written [D-8]


def test_its_end_and_what_follows_are_the_append_of_the_claim() -> None:
    """J-12: one sleep costs a run one commit."""
    life = asleep()
    plan = life.wakes()
    assert names(plan.facts) == ["AttemptStarted", "ContinuationCreated", "Succeeded A", "Reserved B"]
    assert plan.next == RunOp("B", 1, 1, started=False)
    assert (life.p.state("A"), life.p.attempts("forward", "A")) == (b"null", 0)


def test_a_run_may_end_with_its_last_sleep() -> None:
    life = asleep("A%")
    assert life.wakes().rest == EndedOp()
    assert isinstance(life.p.ended, f.RunSucceeded)


def test_sleeps_follow_one_another() -> None:
    life = asleep("A% B%")
    plan = life.wakes()
    assert names(plan.facts) == ["AttemptStarted", "ContinuationCreated", "Succeeded A", "Parked B", "Suspended B"]
    assert isinstance(plan.rest, Waiting)
    assert life.wakes().rest == EndedOp()


def test_the_time_is_that_of_its_opening_whatever_is_deployed() -> None:
    """B-20, R-4: another duration is for sleeps that open later."""
    life = asleep("A% B%")
    due_us = life.p.due_us
    life.author.naps_us = 50 * SECOND_US
    life.deploy("N A% B%")
    life.restart()
    life.now_us = due_us
    assert isinstance(life.claim().rest, Waiting)
    assert life.p.due_us == due_us + 50 * SECOND_US


def test_it_waits_for_a_delayed_start_first() -> None:
    """R-4."""
    life = Life("A%", submission=submitted(start_at_us=9 * SECOND_US))
    assert life.claim().rest == Waiting(9 * SECOND_US)
    assert life.wakes().rest == Waiting(10 * SECOND_US)


def test_a_cancel_ends_it_at_once_and_without_doubt() -> None:
    """R-12, U-9: nothing was called."""
    life = asleep("A B% C")
    life.ok()
    life.cancel()
    assert life.claim().rest == EndedOp()
    assert isinstance(life.p.ended, f.RunFailed)
    assert (life.p.ended.failure.step, life.p.ended.failure.kind, life.p.ended.in_doubt) == ("B", "canceled", ())


def test_a_deadline_ends_it_at_once() -> None:
    """R-12."""
    life = Life("A%", submission=submitted(deadline_us=5_000))
    life.claim()
    life.now_us = 5_000
    life.claim()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.failure.reason == "deadline"


def held_and_released(life: Life) -> None:
    life.hold()
    life.release()


@pytest.mark.parametrize("act", [Life.retry, held_and_released])
def test_what_cuts_a_backoff_short_does_not_wake_it(act: Callable[[Life], object]) -> None:
    """B-20, R-17: only resolving it does."""
    life = asleep()
    due_us = life.p.due_us
    act(life)
    assert life.claim().rest == Waiting(due_us)


def test_held_it_does_not_end_until_it_is_released() -> None:
    """R-17."""
    life = asleep()
    life.hold()
    assert isinstance(life.wakes().rest, HeldOp)
    life.release()
    assert life.claim().next == RunOp("B", 1, 1, started=False)


@pytest.mark.parametrize(("how", "status"), [("value", "succeeded"), ("skip", "skipped"), ("fail", "failed")])
def test_an_operator_resolves_it(how: f.Resolution, status: str) -> None:
    """R-17, U-9: without doubt, whatever is said."""
    life = asleep()
    assert isinstance(life.resolve(how, "A", b"null"), admission.Admitted)
    entry = life.p.forward["A"]
    assert (entry.status, entry.in_doubt) == (status, False)
    assert life.claim().rest is None or how == "fail"


def test_abandoned_it_leaves_no_doubt() -> None:
    """D-7, U-9."""
    life = asleep()
    life.abandon()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.in_doubt == ()


def test_a_worker_that_drains_opens_no_sleep_and_ends_none() -> None:
    """R-6: another does, later."""
    life = Life("A%")
    life.may_start = False
    assert isinstance(life.claim().rest, Closed)
    life.may_start = True
    life.claim()
    life.may_start = False
    assert isinstance(life.wakes().rest, Closed)


def test_a_false_condition_skips_it_and_a_true_one_opens_it() -> None:
    """E-12."""
    life = Life("A%& B%& C")
    life.author.false.add("A")
    assert names(life.claim().facts) == ["AttemptStarted", "Skipped A", "Parked B", "Suspended B"]
    assert life.author.asked == ["A", "B", "open B"]


def test_it_pins_goes_on_retired_and_its_removal_makes_the_run_invalid() -> None:
    """E-2, E-3, E-9."""
    life = asleep("A% B")
    life.deploy("N B A%~")
    assert life.next == WaitOp("A", 2, "sleep", open=True)
    life.deploy("N B")
    assert isinstance(life.next, InvalidOp)
    assert life.next.reason == "step-missing"
    life.deploy("A%~ N B")
    assert life.wakes().next == RunOp("N", 1, 1, started=False)


def test_a_retired_sleep_is_not_opened() -> None:
    """E-9."""
    assert asleep("A%~ B").op == RunOp("B", 1, 1, started=False)


def test_steps_before_it_are_passed() -> None:
    """E-7."""
    life = Life("A S%")
    life.claim()
    life.deploy("A N~ S%")
    life.ok()
    assert life.p.passed == {"N"}


@pytest.mark.parametrize(("before", "after"), [("A% B", "A B"), ("A B", "A% B")])
def test_a_sleep_that_becomes_a_handler_or_the_other_way_round_is_invalid_while_it_is_open(
    before: str, after: str
) -> None:
    """D-1, B-20."""
    life = Life(before)
    life.claim()
    life.restart()
    life.deploy(after)
    assert isinstance(life.next, InvalidOp)
    assert life.next.reason == "shape-changed"
    finished = Life(before)
    finished.claim()
    if finished.op is None:
        finished.wakes()
    else:
        finished.ok()
    finished.deploy(after)
    assert not isinstance(finished.next, InvalidOp)


def test_a_ledger_knows_that_a_run_sleeps() -> None:
    """D-6: what a deployment does to a run is read off its ledger."""
    life = asleep()
    p = projection_of(decode_ledger(sign(life.p)[1]))
    for text in ("A% B", "A B", "B", "A%~ B"):
        life.deploy(text)
        assert reconcile(p, life.topology) == reconcile(life.p, life.topology)


def test_explain_tells_a_sleep_from_a_handler() -> None:
    """E-11."""
    life = asleep()
    assert "it sleeps" in explain(life.p, life.topology).steps[0].why
    life.wakes()
    assert "it slept" in explain(life.p, life.topology).steps[0].why


def test_an_end_without_a_sleep_is_corrupt() -> None:
    """J-8."""
    life = Life("A")
    life.claim()
    life.raises()
    with pytest.raises(CorruptJournal, match="does not wait"):
        fold(life.p, f.OperationSucceeded("A", 0), life.now_us)
