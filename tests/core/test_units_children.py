"""Child runs: submitted under ids that follow from the parent, waited for, told of a cancel [B-1, B-21]."""

from __future__ import annotations

from typing import Literal

import pytest

from perdure.core import admission, units
from perdure.core import facts as f
from perdure.core.ids import child_id
from perdure.core.operations import HeldOp, RunOp, UnitOp, UnwindOp
from perdure.core.plan import Closed, Opening, Parked, Plan, RunEnd, Terms
from tests.core.build import RUN, Life, names

NO = f.Failure("X", "no", reason="broken", kind="user")
GOOD = RunEnd("succeeded", b"1")
BAD = RunEnd("failed", failure=NO, in_doubt=True)


def children(
    count: int = 3, text: str = "A^ B", *, bound: int = 0, collect: bool = False, sent: bool = True, pre: bool = False
) -> Life:
    """A run whose step A has so many child runs, submitted or about to be; with `pre`, a step X goes before."""
    life = Life(text)
    life.author.openings["A"] = Opening(items=tuple(b"%d" % i for i in range(count)), pipeline="p")
    life.author.terms_of["A"] = Terms(bound, collect)
    life.claim()
    if pre:
        life.ok()
    if sent:
        life.dispatched()
    return life


def end(life: Life, *indices: int, how: RunEnd = GOOD) -> None:
    """These child runs have ended."""
    life.ends_of = {**life.ends_of, **{life.child(index, "A"): how for index in indices}}


def created(plan: Plan) -> list[int]:
    return [index for index, _ in plan.next.start] if isinstance(plan.next, UnitOp) else []


# --- submission


def test_they_are_created_before_they_are_submitted_and_recorded_after() -> None:
    """B-1, J-12, J-16: in index order, in the append of the success before; the run rests in that which records it."""
    life = Life("X A^ B")
    life.author.openings["A"] = Opening(items=(b"1", b"2"), pipeline="p")
    life.claim()
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded X", "BoundaryOpened A", "BoundaryInteractionCreated A"]
    assert plan.next == UnitOp("A", 1, "children", True, ((0, 1), (1, 1)))
    plan = life.dispatched()
    assert names(plan.facts) == ["BoundaryInteractionDispatched A", "BoundaryDispatchCompleted A", "Suspended A"]
    opened_us = life.p.units["A"].opened_us
    ids = tuple(child_id(opened_us, RUN, "A", index) for index in range(2))
    assert plan.rest == Parked(0, ids, 2, "waits for 2 child runs")
    assert life.claim().facts == []  # D-8


def test_one_child_run_is_the_state_itself() -> None:
    """B-2, B-21."""
    life = children(1, "A= B")
    assert life.claim().rest == Parked(0, (life.child(0),), 1, "waits for its child run")
    end(life, 0, how=RunEnd("succeeded", b'{"x":1}'))
    plan = life.claim()
    assert names(plan.facts) == [
        "AttemptStarted",
        "BoundaryCompletionAdmitted A",
        "ContinuationCreated",
        "BoundaryResolved A",
        "Reserved B",
    ]
    assert life.p.state("A") == b'{"x":1}'


def test_no_child_runs_succeed_at_once() -> None:
    """B-10."""
    life = children(0, sent=False)
    assert life.op == RunOp("B", 1, 1, started=False)
    assert life.p.state("A") == b"[]"


def test_their_outputs_are_put_together_in_index_order() -> None:
    """B-10, B-21: and until the last has ended a claim writes down those that have."""
    life = children(3)
    end(life, 2, how=RunEnd("succeeded", b"2"))
    assert names(life.claim().facts) == ["AttemptStarted", "BoundaryCompletionAdmitted A"]
    assert life.claim().facts == []
    end(life, 1, 0)
    assert life.claim().next == RunOp("B", 1, 1, started=False)
    assert life.p.state("A") == b"[1,1,2]"


def test_a_bound_on_child_runs_submits_more_as_others_end() -> None:
    """B-2: the run is woken when half of those that go have ended, so as not to be woken for each."""
    life = children(6, bound=4)
    rest = life.claim().rest
    assert isinstance(rest, Parked)
    assert (len(rest.awaits), rest.need) == (4, 2)
    end(life, 0, 3)
    plan = life.claim()
    assert names(plan.facts) == [
        "AttemptStarted",
        *["BoundaryCompletionAdmitted A"] * 2,
        "BoundaryInteractionCreated A",
    ]
    assert created(plan) == [4, 5]
    plan = life.dispatched()
    assert "BoundaryDispatchCompleted A" in names(plan.facts)
    assert isinstance(plan.rest, Parked)
    assert plan.rest.need == 4, "none is left to be submitted: it waits for all"


def test_many_are_submitted_in_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """B-1: each wave is recorded before the next is created, so a crash repeats one wave at most."""
    monkeypatch.setattr(units, "WAVE", 2)
    life = children(5, sent=False)
    assert created_of(life) == [0, 1]
    plan = life.dispatched()
    assert names(plan.facts) == ["BoundaryInteractionDispatched A", "BoundaryInteractionCreated A"]
    assert created(plan) == [2, 3]
    life.dispatched()
    plan = life.dispatched()
    assert isinstance(plan.rest, Parked)
    assert plan.rest.need == 5


def created_of(life: Life) -> list[int]:
    return [index for index, _ in life.unit.start]


def test_a_worker_lost_before_it_recorded_the_submission_submits_again() -> None:
    """B-1, J-7, D-8: the same ones under the same ids, by a claim of its own; no attempt was lost by that."""
    life = children(2, sent=False)
    ids = [life.child(index) for index in range(2)]
    end(life, 0, 1, how=RunEnd("missing"))
    plan = life.is_lost()
    assert names(plan.facts) == ["AttemptStarted"]
    assert (created(plan), life.p.token) == ([0, 1], 2)
    assert [life.child(index) for index in range(2)] == ids
    assert life.p.units["A"].entries[0].attempts == 1


def test_a_child_that_ended_before_its_submission_was_recorded_counts() -> None:
    """J-10, B-21."""
    life = children(1, "A= B", sent=False)
    end(life, 0)
    life.restart()
    plan = life.claim()
    assert names(plan.facts)[:2] == ["AttemptStarted", "BoundaryCompletionAdmitted A"]
    assert created(plan) == [0], "that it is submitted is not known yet; doing it again does no harm"
    assert names(life.dispatched().facts)[-2:] == ["BoundaryResolved A", "Reserved B"]
    assert life.p.state("A") == b"1"


def test_a_refused_submission_is_a_failed_child() -> None:
    """B-1, B-21: the others are waited for, and the step fails with reason `child-refused`."""
    life = children(3, sent=False)
    plan = life.dispatched({1: NO})
    assert names(plan.facts) == [
        "BoundaryInteractionDispatched A",
        "BoundaryDispatchCompleted A",
        "BoundaryCompletionAdmitted A",
        "Suspended A",
    ]
    end(life, 0, 2)
    life.claim()
    assert life.p.failure is not None
    assert (life.p.failure.reason, life.p.failure.item, life.p.failure.cause) == ("child-refused", 1, NO)


# --- ends


@pytest.mark.parametrize("status", ["failed", "canceled", "missing"])
def test_a_child_that_does_not_succeed_fails_the_step(status: Literal["failed", "canceled", "missing"]) -> None:
    """B-21, U-12: with its failure attached, once the others have ended; the step is in doubt."""
    life = children(3, "X* A*?^ B", pre=True)
    end(life, 1, how=RunEnd(status, failure=None if status == "missing" else NO, in_doubt=status == "failed"))
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "BoundaryCompletionAdmitted A"]
    end(life, 0, 2)
    plan = life.claim()
    assert plan.next == UnwindOp("A", 1, 1, in_doubt=True)
    failure = life.p.failure
    assert failure is not None
    assert (failure.reason, failure.item, failure.kind) == (
        "child-failed",
        1,
        "system" if status == "missing" else "user",
    )
    assert failure.cause == (None if status == "missing" else NO)
    entries = life.p.units["A"].entries
    assert [entry.status for entry in entries] == ["succeeded", status, "succeeded"]
    assert entries[1].in_doubt is (status == "failed")


@pytest.mark.parametrize(("of_child", "kind"), [("canceled", "system"), ("abandoned", "system"), ("user", "user")])
def test_a_run_whose_child_was_canceled_or_given_up_was_not(of_child: f.FailureKind, kind: f.FailureKind) -> None:
    """M-11, B-21: it failed; only who was canceled ends as canceled."""
    life = children(1)
    end(life, 0, how=RunEnd("failed", failure=f.Failure("do", "no", kind=of_child)))
    life.claim()
    assert isinstance(life.p.ended, f.RunFailed)
    failure = life.p.ended.failure
    assert (failure.kind, failure.reason, failure.cause and failure.cause.kind) == (kind, "child-failed", of_child)


def test_a_failed_child_keeps_those_from_being_submitted_that_are_not() -> None:
    """B-21, B-22."""
    life = children(4, bound=2)
    end(life, 0, how=BAD)
    assert created(life.claim()) == []
    end(life, 1)
    life.claim()
    assert life.p.failure is not None
    assert life.p.units["A"].next == 2


def test_failed_children_are_collected_where_that_is_declared() -> None:
    """B-21, B-22: and the others are submitted none the less."""
    life = children(3, bound=1, collect=True)
    end(life, 0, how=BAD)
    assert created(life.claim()) == [1]
    life.dispatched()
    end(life, 1)
    life.claim()
    life.dispatched({2: NO})
    state = life.p.state("A") or b""
    assert b'{"failure":{"step":"A","message":"its child run is failed: no"' in state
    assert b',{"value":1},' in state
    assert life.p.forward["A"].status == "succeeded"


def test_children_created_for_a_worker_that_was_lost_end_with_the_unit_that_gives_up() -> None:
    """B-7, R-16: none is submitted any more, so none that is missing is waited for."""
    life = children(4, bound=2)
    end(life, 0, 1)
    assert created(life.claim()) == [2, 3]
    life.restart()  # before they are submitted; one was, and has failed
    end(life, 2, how=BAD)
    end(life, 3, how=RunEnd("missing"))
    life.claim()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.failure.item == 2


def test_a_circle_through_a_child_fails_the_step() -> None:
    """R-13: once nothing else can be done; the children are left as they are."""
    life = children(2, sent=False)
    life.cycle = True
    life.dispatched()
    assert isinstance(life.p.ended, f.RunFailed)
    assert (life.p.ended.failure.reason, life.p.ended.in_doubt) == ("await-cycle", ("A",))
    life = children(2)
    end(life, 0, 1)
    life.cycle = True
    assert life.claim().next == RunOp("B", 1, 1, started=False)


# --- cancel, hold, drain, operators


def test_a_cancel_waits_for_the_children_which_were_told() -> None:
    """B-21, R-12: also on a held run; then the step is canceled, in doubt."""
    life = children(3, bound=2)
    life.hold()
    life.cancel()
    plan = life.claim()
    assert plan.facts == []
    assert isinstance(plan.rest, Parked)
    end(life, 0)
    assert created(life.claim()) == []
    end(life, 1, how=RunEnd("canceled", failure=NO))
    life.release()
    life.claim()
    assert isinstance(life.p.ended, f.RunFailed)
    assert (life.p.ended.failure.kind, life.p.ended.in_doubt) == ("canceled", ("A",))


def test_a_cancel_that_all_children_outrun_acts_on_the_next_step() -> None:
    """R-12, B-21."""
    life = children(2)
    life.cancel()
    end(life, 0, 1)
    life.claim()
    assert life.p.forward["A"].status == "succeeded"
    assert life.p.failure is not None
    assert (life.p.failure.step, life.p.failure.kind) == ("B", "canceled")


def test_a_cancel_waits_for_no_child_that_is_left_alone_or_was_not_begun() -> None:
    """B-21, R-12."""
    life = children(2, "A^> B")
    life.cancel()
    life.claim()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.in_doubt == ("A",)


def test_under_a_cancel_children_that_nobody_submitted_are_not_waited_for() -> None:
    """B-21, B-7."""
    life = children(2, sent=False)
    life.restart()
    life.cancel()
    end(life, 0, 1, how=RunEnd("missing"))
    life.claim()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.failure.kind == "canceled"


def test_a_step_that_settles_submits_and_waits_under_a_cancel() -> None:
    """R-12: what an owner that was lost left undone, too."""
    life = children(3, "A^! B", bound=2, sent=False)
    life.restart()
    life.cancel()
    end(life, 0, 1, how=RunEnd("missing"))
    plan = life.claim()
    assert created(plan) == [0, 1]
    life.dispatched()
    life.ends_of = {}
    end(life, 0)
    assert created(life.claim()) == [2]
    life.dispatched()
    end(life, 1, 2)
    life.claim()
    assert life.p.forward["A"].status == "succeeded"
    assert life.p.failure is not None
    assert life.p.failure.step == "B"


def test_held_it_takes_no_note_of_ends_until_it_is_released() -> None:
    """R-17."""
    life = children(2)
    life.hold()
    end(life, 0, 1)
    plan = life.claim()
    assert plan.facts == []
    assert isinstance(plan.rest, HeldOp)
    life.release()
    assert life.claim().next == RunOp("B", 1, 1, started=False)


def test_a_worker_that_drains_records_what_it_submitted() -> None:
    """R-6, B-1: another waits for them."""
    life = children(2, sent=False)
    life.may_start = False
    plan = life.dispatched()
    assert names(plan.facts) == ["BoundaryInteractionDispatched A", "BoundaryDispatchCompleted A"]
    assert plan.rest == Closed()
    life.may_start = True
    end(life, 0, 1)
    assert life.claim().next == RunOp("B", 1, 1, started=False)


@pytest.mark.parametrize("canceled", [False, True])
@pytest.mark.parametrize("how", ["value", "skip", "fail"])
def test_an_operator_resolves_it_and_the_children_go_on(how: f.Resolution, canceled: bool) -> None:
    """R-17, U-9: also while a cancel waits for them, which may be for ever."""
    life = children(2)
    end(life, 0, 1)
    if canceled:
        life.cancel()
    assert isinstance(life.resolve(how, "A"), admission.Admitted)
    assert life.p.forward["A"].in_doubt is (how != "value")
    plan = life.claim()
    assert names(plan.facts)[:2] == ["AttemptStarted", "ContinuationCreated"]
    assert not any(isinstance(fact, f.BoundaryCompletionAdmitted) for fact in life.facts)


def test_an_operator_resolves_it_while_the_children_are_being_submitted() -> None:
    """R-17: the submission comes too late to be recorded."""
    life = children(2, sent=False)
    life.resolve("value", "A")
    plan = life.dispatched()
    assert names(plan.facts) == ["Reserved B"]


def test_abandoned_it_is_in_doubt() -> None:
    """D-7, U-9."""
    life = children(2)
    life.abandon()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.in_doubt == ("A",)
