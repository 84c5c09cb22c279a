"""Items and turns: many attempts under one step, each durable before it starts and told when it ends [B-10, B-22]."""

from __future__ import annotations

from typing import Literal

import pytest

from perdure.core import admission, outcomes
from perdure.core import facts as f
from perdure.core.explain import explain
from perdure.core.operations import HeldOp, RunOp, UnitOp, UnwindOp
from perdure.core.plan import Closed, Opening, Plan, Terms, Waiting
from perdure.core.retry import Retry
from tests.core.build import AT_ONCE, Life, names

SECOND_US = 1_000_000
LATER = Retry(initial=10, cap=10, jitter=0)
HOLDS = Retry(initial=0, cap=0, jitter=0, max_attempts=2)
FAILS = Retry(initial=0, cap=0, jitter=0, max_attempts=2, then="fail")


def items(
    count: int = 3, text: str = "A+ B", policy: Retry = AT_ONCE, *, bound: int = 0, collect: bool = False, most: int = 0
) -> Life:
    """A run in whose first step so many items are at work."""
    life = Life(text, policy)
    life.author.openings["A"] = Opening(items=tuple(b"%d" % i for i in range(count)))
    life.author.terms_of["A"] = Terms(bound, collect, most)
    life.claim()
    return life


def raised(life: Life, index: int, *, never: bool = False) -> outcomes.ItemOutcome:
    return life.item(index, outcomes.Raised(life.item_failure(index, "error"), never))


def declined(life: Life, index: int) -> outcomes.ItemOutcome:
    return life.item(index, outcomes.Declined(life.item_failure(index)))


def started(plan: Plan) -> list[tuple[int, int]]:
    """The items that the plan starts, with their attempts."""
    return list(plan.next.start) if isinstance(plan.next, UnitOp) else []


# --- items


def test_items_are_reserved_in_the_append_of_the_success_before_them() -> None:
    """J-12, M-8, B-20: what they are is settled there, and each attempt is durable before its handler starts."""
    life = Life("A B+ C")
    life.author.openings["B"] = Opening(items=(b"1", b"2"))
    life.claim()
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A", "BoundaryOpened B", "ItemReserved B", "ItemReserved B"]
    assert plan.next == UnitOp("B", 1, "each", True, ((0, 1), (1, 1)))
    assert life.p.attempts("forward", "B") == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_outputs_are_put_together_in_index_order(order: tuple[int, ...]) -> None:
    """B-10, M-6: whatever the order of their ends; the last one, the state, and what follows are one append [J-12]."""
    life = items()
    for index in order[:-1]:
        assert names(life.items_end(life.item(index, b'"%d"' % index), running=True).facts) == ["ItemOutputRecorded A"]
        assert life.p.state("A") is None
    plan = life.items_end(life.item(order[-1], b'"%d"' % order[-1]))
    assert names(plan.facts) == ["ItemOutputRecorded A", "BoundaryResolved A", "Reserved B"]
    assert life.p.state("A") == b'["0","1","2"]'
    assert life.p.units == {}


def test_many_ends_are_one_append() -> None:
    """J-12."""
    life = items()
    plan = life.items_end(*(life.item(index, b"1") for index in (2, 0, 1)))
    assert names(plan.facts) == ["ItemOutputRecorded A"] * 3 + ["BoundaryResolved A", "Reserved B"]


def test_no_items_succeed_at_once_with_an_empty_list() -> None:
    """B-10: and without doubt."""
    life = items(0)
    assert life.op == RunOp("B", 1, 1, started=False)
    assert (life.p.state("A"), life.p.attempts("forward", "A")) == (b"[]", 0)


def test_only_so_many_are_at_work_at_once_and_they_start_in_order() -> None:
    """B-2: bounded in flight; whenever one ends the next starts in the same append."""
    life = items(5, bound=2)
    assert life.unit.start == ((0, 1), (1, 1))
    assert started(life.items_end(life.item(1, b"1"), running=True)) == [(2, 1)]
    assert started(life.items_end(life.item(0, b"1"), life.item(2, b"1"))) == [(3, 1), (4, 1)]
    life.author.terms_of["A"] = Terms(1)  # deployed meanwhile: what runs, runs [B-20]
    assert started(life.items_end(life.item(3, b"1"), running=True)) == []
    assert life.items_end(life.item(4, b"1")).next == RunOp("B", 1, 1, started=False)


def test_one_item_backs_off_while_others_go_on() -> None:
    """B-10, M-8, M-17: attempts are its own; it starts again before those that never did, once it is due."""
    life = items(4, policy=LATER, bound=2)
    plan = life.items_end(raised(life, 0), running=True)
    assert names(plan.facts) == ["ItemRetryScheduled A", "ItemReserved A"]
    assert started(plan) == [(2, 1)]
    due_us = life.p.units["A"].entries[0].due_us
    life.now_us = due_us
    assert started(life.items_end(life.item(1, b"1"), running=True)) == [(0, 2)]
    assert started(life.items_end(life.item(0, b"1"), life.item(2, b"1"))) == [(3, 1)]


def test_when_all_that_is_left_backs_off_the_run_rests_until_the_first_is_due() -> None:
    """R-4, D-8: a claim before that writes nothing."""
    life = items(2, policy=LATER)
    life.items_end(raised(life, 0), running=True)
    life.now_us += SECOND_US
    plan = life.items_end(raised(life, 1))
    due_us = life.p.units["A"].entries[0].due_us
    assert plan.rest == Waiting(due_us)
    assert life.claim().facts == []
    life.now_us = due_us
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "ItemReserved A"]
    assert started(plan) == [(0, 2)]


def test_an_item_that_exhausts_its_attempts_holds_the_run_and_a_release_goes_on() -> None:
    """M-5, R-17: those at work end first, none starts; the bound then counts from zero, attempts do not [M-8]."""
    life = items(3, policy=HOLDS, bound=2)
    assert started(life.items_end(raised(life, 0), running=True)) == [(0, 2)]
    plan = life.items_end(raised(life, 0), running=True)
    assert names(plan.facts) == ["ItemRetryScheduled A", "Held A"]
    assert life.p.held is not None
    assert (life.p.held.reason, started(plan)) == ("attempts-exhausted", [])
    assert isinstance(life.items_end(life.item(1, b"1")).rest, HeldOp)
    life.release()
    assert started(life.claim()) == [(0, 3), (2, 1)]
    assert started(life.items_end(raised(life, 0), running=True)) == [(0, 4)]
    assert life.p.held is None


def test_two_items_hold_the_run_once_and_the_end_of_the_last_frees_it() -> None:
    """R-17: a hold by policy ends with its step, though the success was on its way when it came."""
    life = items(2, policy=Retry(initial=0, cap=0, jitter=0, max_attempts=1))
    plan = life.items_end(raised(life, 0), raised(life, 1))
    assert names(plan.facts) == ["ItemRetryScheduled A", "Held A", "ItemRetryScheduled A"]
    life.release()
    life.claim()
    life.hold()
    assert isinstance(life.items_end(life.item(0, b"1"), life.item(1, b"2")).rest, HeldOp)
    assert life.p.state("A") == b"[1,2]"


@pytest.mark.parametrize("kind", ["declined", "never", "exhausted", "timeout"])
def test_an_item_that_fails_for_good_fails_the_step_once_all_at_work_have_ended(kind: str) -> None:
    """B-22, M-9, U-12: none starts any more; whatever the reason, other items were begun: the step is in doubt."""
    life = items(4, "X* A+ B", FAILS, bound=2)
    life.author.openings["A"] = Opening(items=(b"0", b"1", b"2", b"3"))
    life.ok()
    if kind in ("exhausted", "timeout"):
        life.items_end(raised(life, 0), running=True)
    ends = {
        "declined": lambda: declined(life, 0),
        "never": lambda: raised(life, 0, never=True),
        "exhausted": lambda: raised(life, 0),
        "timeout": lambda: life.item(0, outcomes.TimedOut(life.item_failure(0, "attempt-timeout"))),
    }
    plan = life.items_end(ends[kind](), running=True)
    assert names(plan.facts) == ["ItemFailed A"]
    entry = life.p.units["A"].entries[0]
    assert entry.in_doubt is (kind != "declined")
    plan = life.items_end(life.item(1, b"1"))
    assert names(plan.facts) == ["ItemOutputRecorded A", "Failed A", "Reserved X"]
    assert life.p.failure is not None
    assert life.p.failure.item == 0
    assert life.p.failure.reason == {"declined": "declined", "never": "error"}.get(kind, "attempts-exhausted")
    assert life.p.forward["A"].in_doubt
    unit = life.p.units["A"]
    assert [unit.entries[0].failure is None, unit.entries[1].output, unit.next] == [False, b"1", 2], "all are kept"


def test_the_failure_of_the_least_index_is_the_steps() -> None:
    """B-22."""
    life = items(3)
    life.items_end(declined(life, 2), running=True)
    life.items_end(declined(life, 1), life.item(0, b"1"))
    assert life.p.failure is not None
    assert life.p.failure.item == 1


def test_failures_are_collected_where_that_is_declared() -> None:
    """B-22, B-10: in index order, beside the values; and nothing stops."""
    life = items(3, bound=1, collect=True)
    assert started(life.items_end(declined(life, 0))) == [(1, 1)]
    life.items_end(life.item(1, b"7"))
    plan = life.items_end(declined(life, 2))
    assert names(plan.facts) == ["ItemFailed A", "BoundaryResolved A", "Reserved B"]
    state = life.p.state("A") or b""
    assert state.startswith(b'[{"failure":{"step":"A","message":"declined"')
    assert b',{"value":7},{"failure":' in state
    assert life.p.failure is None


def test_items_whose_worker_was_lost_are_told_at_the_next_claim() -> None:
    """M-17, M-8: those at work, and only those; after the first loss at once, after the next with a backoff [M-5]."""
    life = items(3, "X A+ B", LATER)
    life.author.openings["A"] = Opening(items=(b"0", b"1", b"2"))
    life.ok()
    life.items_end(life.item(1, b"1"), running=True)
    plan = life.is_lost()
    assert names(plan.facts) == ["AttemptStarted", *["ItemRetryScheduled A"] * 2, *["ItemReserved A"] * 2]
    assert started(plan) == [(0, 2), (2, 2)]
    assert [getattr(fact, "cause", "") for fact in plan.facts[1:3]] == ["lost", "lost"]
    plan = life.is_lost()
    assert isinstance(plan.rest, Waiting)
    assert [life.p.units["A"].entries[i].lost for i in range(3)] == [2, 0, 2]


def test_an_item_that_is_lost_five_times_in_a_row_holds_the_run() -> None:
    """M-5: whatever the policy; an answer in between begins the row anew."""
    life = items(1)
    for _ in range(4):
        life.is_lost()
    assert life.p.held is None
    life.items_end(raised(life, 0))
    for _ in range(4):
        life.is_lost()
    assert life.p.held is None
    assert isinstance(life.is_lost().rest, HeldOp)
    assert life.p.held is not None
    assert life.p.held.reason == "lost-attempts"


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [(outcomes.Interrupted(), "interrupted"), (outcomes.Postponed(5 * SECOND_US), "later")],
)
def test_interruptions_and_wakes_count_towards_no_bound(outcome: outcomes.Outcome, cause: str) -> None:
    """M-5, M-17."""
    life = items(1, policy=HOLDS)
    for attempt in range(1, 6):
        assert life.p.units["A"].entries[0].attempts == attempt
        plan = life.items_end(life.item(0, outcome))
        fact = plan.facts[0]
        assert isinstance(fact, f.ItemRetryScheduled)
        assert (fact.cause, fact.failure) == (cause, None)
        if isinstance(plan.rest, Waiting):
            life.now_us = plan.rest.due_us
            life.claim()
    assert life.p.units["A"].entries[0].failures == 0


def test_an_item_that_returns_too_much_holds_the_run() -> None:
    """P-4: it is not failed."""
    life = items(2)
    too_big = outcomes.Refused(life.item_failure(0, "payload-too-large"))
    plan = life.items_end(life.item(0, too_big), running=True)
    assert names(plan.facts) == ["ItemRetryScheduled A", "Held A"]
    assert life.p.held is not None
    assert life.p.held.reason == "payload-too-large"


def test_an_end_of_an_attempt_that_was_closed_is_left_out() -> None:
    """M-8, R-17: of an older attempt, or of one that ended already."""
    life = items(2)
    old, other = life.item(0, b"1"), life.item(1, b"1")
    life.items_end(raised(life, 0), other, running=True)
    assert life.items_end(old, other, running=True).facts == []
    assert life.p.units["A"].open == {0}


def test_what_an_item_remembered_is_its_own() -> None:
    """M-15, B-23: for its later attempts; other items and the step know nothing of it."""
    life = items(2)
    life.item_memo(0, "m", b"1")
    life.item_memo(1, "m", b"2")
    life.items_end(raised(life, 0), running=True)
    assert [life.p.memo("forward", "A", "m", item) for item in (0, 1, None)] == [b"1", b"2", None]


# --- cancel, drain, operators


def test_under_a_cancel_no_item_starts_and_the_unit_closes_canceled() -> None:
    """R-12, U-12: what is at work ends first; none of these ends is a failure of its own."""
    life = items(4, "A+ B", HOLDS, bound=2)
    life.cancel()
    plan = life.items_end(life.item(0, b"1"), running=True)
    assert (names(plan.facts), started(plan)) == (["ItemOutputRecorded A"], [])
    plan = life.items_end(raised(life, 1))
    assert names(plan.facts)[:2] == ["ItemRetryScheduled A", "Failed A"]
    assert life.p.units["A"].entries[1].failures == 0
    assert isinstance(life.p.ended, f.RunFailed)
    assert (life.p.ended.failure.kind, life.p.ended.in_doubt) == ("canceled", ("A",))


def test_a_cancel_that_the_last_item_outruns_acts_on_the_next_step() -> None:
    """R-12: a handler that still succeeds has succeeded, so the step has."""
    life = items(2)
    life.cancel()
    plan = life.items_end(life.item(0, b"1"), life.item(1, b"2"))
    assert names(plan.facts)[2:4] == ["BoundaryResolved A", "Failed B"]
    assert isinstance(life.p.ended, f.RunFailed)
    assert (life.p.ended.failure.kind, life.p.ended.in_doubt) == ("canceled", ())


def test_a_step_that_settles_goes_on_with_its_items_under_a_cancel() -> None:
    """R-12: and the cancel acts on the next step."""
    life = items(3, "A+! B", LATER, bound=1)
    life.cancel()
    assert started(life.items_end(life.item(0, b"1"))) == [(1, 1)]
    life.items_end(raised(life, 1))
    assert life.op is not None
    life.items_end(life.item(2, b"1"))
    life.now_us += 60 * SECOND_US
    assert started(life.claim()) == [(1, 2)]
    assert "BoundaryResolved A" in names(life.items_end(life.item(1, b"1")).facts)
    assert life.p.failure is not None
    assert life.p.failure.step == "B"


def test_a_cancel_ends_a_unit_that_backs_off_at_once() -> None:
    """R-12: also on a held run."""
    life = items(1, policy=LATER)
    life.items_end(raised(life, 0))
    life.cancel()
    assert names(life.claim().facts)[1] == "Failed A"


def test_a_worker_that_drains_starts_none_and_records_what_ends() -> None:
    """R-6: the success of the last one, too."""
    life = items(4, bound=2)
    life.may_start = False
    assert started(life.items_end(life.item(0, b"1"), running=True)) == []
    assert isinstance(life.items_end(life.item(1, outcomes.Interrupted())).rest, Closed)
    life.may_start = True
    assert started(life.claim()) == [(1, 2), (2, 1)]
    life.items_end(life.item(1, b"1"), running=True)
    assert started(life.items_end(life.item(2, b"1"), running=True)) == []
    life.may_start = False
    plan = life.items_end(life.item(3, b"1"))
    assert names(plan.facts) == ["ItemOutputRecorded A", "BoundaryResolved A"]
    assert plan.rest == Closed()


@pytest.mark.parametrize("text", ["A+ B", "A$ B"])
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize(("how", "status"), [("value", "succeeded"), ("skip", "skipped"), ("fail", "failed")])
def test_an_operator_resolves_it_and_what_is_at_work_is_fenced(
    how: Literal["value", "skip", "fail"], status: str, begun: bool, text: str
) -> None:
    """R-17, U-9: in doubt unless there is a value, if anything was begun; its ends come too late."""
    life = items(1, text)
    if not begun:
        life = Life(text)
        life.author.openings["A"] = Opening(items=(b"1",))
        life.hold()
        life.claim()
        life.release()
    unit = life.op
    ended = [life.item(0, b"1")] if begun else []
    assert isinstance(life.resolve(how, "A", b"7"), admission.Admitted)
    entry = life.p.forward["A"]
    assert (entry.status, entry.in_doubt) == (status, begun and how != "value")
    assert life.p.state("A") == (b"7" if how == "value" else None)
    if not begun:
        return
    life.op = unit
    plan = life.items_end(*ended, running=True)
    assert (plan.facts, started(plan)) == ([], [])
    life.op = unit
    plan = life.items_end()
    assert names(plan.facts)[0] in ("Reserved B", "Completed")


def test_abandoned_it_is_in_doubt_once_an_item_was_begun() -> None:
    """D-7, U-9."""
    life = items(2)
    life.abandon()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.in_doubt == ("A",)
    assert life.p.ended.item_counts == (f.ItemCounts("A", 2, in_doubt=2),)


def test_the_end_of_a_run_counts_the_items_of_a_step_that_did_not_succeed() -> None:
    """U-12: completed; failed by their own word; in doubt, that is used up or cut off; and those never begun."""
    life = items(6, policy=FAILS, bound=4)
    life.items_end(raised(life, 0), life.item(1, b"1"), running=True)
    life.items_end(raised(life, 0), declined(life, 2), running=True)
    life.items_end(life.item(3, outcomes.Interrupted()), running=True)
    life.cancel()
    life.items_end(life.item(4, b"4"))
    assert isinstance(life.p.ended, f.RunFailed)
    (counts,) = life.p.ended.item_counts
    assert counts == f.ItemCounts("A", 6, completed=2, failed=1, in_doubt=2)
    assert counts.not_started == 1
    told = explain(life.p, life.topology).steps[0].why
    assert told == "a cancel resolved it: of 6 items 2 completed, 1 failed, 2 in doubt, 1 not started"


def test_nothing_is_counted_where_no_item_was_begun_or_the_step_has_its_state() -> None:
    """U-12: collected failures are in the state."""
    life = items(2, collect=True)
    life.items_end(declined(life, 0), life.item(1, b"1"))
    life.fails()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.item_counts == ()
    life = Life("A B+")
    life.author.openings["B"] = Opening(items=(b"1",))
    life.claim()
    life.fails()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.item_counts == ()


def test_the_turns_of_a_loop_are_counted() -> None:
    """U-12: one that is handed on and was not begun is there, too."""
    life = items(1, "A$ B")
    turn(life, b"1")
    life.cancel()
    turn(life, b"2")
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.item_counts == (f.ItemCounts("A", 3, completed=2),)
    assert life.p.ended.item_counts[0].not_started == 1


def test_a_unit_in_doubt_can_be_unwound_in_doubt() -> None:
    """U-12."""
    life = items(2, "A*?+ B")
    plan = life.items_end(declined(life, 0), life.item(1, b"1"))
    assert plan.next == UnwindOp("A", 0, 1, in_doubt=True)


# --- loops


def turn(life: Life, output: bytes, *, more: bool = True) -> Plan:
    index = life.unit.start[0][0]
    return life.items_end(life.item(index, output, more=more))


def test_each_turn_starts_when_the_output_of_the_one_before_is_durable() -> None:
    """B-15, B-23, J-12: in one append with it; what a turn hands on is the item of the next."""
    life = items(1, "A$ B")
    for n in range(1, 4):
        assert life.unit.start == ((n - 1, 1),)
        plan = turn(life, b"%d" % n)
        assert names(plan.facts) == ["ItemOutputRecorded A", "ItemReserved A"]
    assert life.p.units["A"].items == [b"0", b"1", b"2", b"3"]
    plan = turn(life, b'"done"', more=False)
    assert names(plan.facts) == ["ItemOutputRecorded A", "BoundaryResolved A", "Reserved B"]
    assert life.p.state("A") == b'"done"'


def test_too_many_turns_hold_the_run_and_a_release_allows_as_many_again() -> None:
    """B-23, R-17; a turn that is the last allowed and is done holds nothing."""
    life = items(1, "A$ B", most=2)
    turn(life, b"1")
    plan = turn(life, b"2")
    assert names(plan.facts) == ["ItemOutputRecorded A", "Held A"]
    assert isinstance(plan.rest, HeldOp)
    assert plan.rest.reason == "max-turns"
    life.release()
    assert started(life.claim()) == [(2, 1)]
    turn(life, b"3")
    assert isinstance(turn(life, b"4").rest, HeldOp)
    life.release()
    life.claim()
    turn(life, b"5")
    assert turn(life, b"6", more=False).next == RunOp("B", 1, 1, started=False)


def test_a_turn_is_retried_as_any_item_and_fails_the_step() -> None:
    """B-23, M-5, B-22."""
    life = items(1, "A$ B", LATER)
    turn(life, b"1")
    plan = life.items_end(raised(life, 1))
    assert isinstance(plan.rest, Waiting)
    life.now_us = plan.rest.due_us
    assert started(life.claim()) == [(1, 2)]
    assert started(life.is_lost()) == [(1, 3)]
    life.items_end(declined(life, 1))
    assert isinstance(life.p.ended, f.RunFailed)
    assert (life.p.ended.failure.item, life.p.ended.in_doubt) == (1, ("A",))


def test_a_canceled_loop_takes_no_further_turn() -> None:
    """R-12: unless the last one is done."""
    for more in (True, False):
        life = items(1, "A$ B")
        life.cancel()
        turn(life, b"1", more=more)
        assert isinstance(life.p.ended, f.RunFailed)
        assert life.p.ended.failure.step == ("A" if more else "B")
