"""R-11: a limit decides when something starts, never what; planning asks it last of all."""

from __future__ import annotations

import pytest

from perdure.core import facts as f
from perdure.core import plan as planning
from perdure.core.commit import plan_submission
from perdure.core.operations import EndedOp, InvalidOp, RunOp, UnitOp, UnwindOp
from perdure.core.permits import Limited, Permit
from perdure.core.plan import Closed, Waiting
from perdure.core.projection import Projection
from perdure.core.retry import Retry
from tests.core.build import RUN, Life, names, submitted

BANK = Permit("bank", "7", "concurrency", 2)
LATER = Retry(initial=10, cap=10, jitter=0)


class Door:
    """A gate that is shut for some steps, and notes who asked."""

    def __init__(self, *shut: str) -> None:
        self.shut = set(shut)
        self.asked: list[str] = []

    def __call__(self, step: str) -> Limited | None:
        self.asked.append(step)
        if "broken" in self.shut:
            raise planning.Unplannable("limit-key-raised", "the key raised")
        return Limited(BANK) if step in self.shut else None


def shut(life: Life, *steps: str) -> Door:
    """From now on there is no place for these steps."""
    life.gate = door = Door(*steps)
    return door


def test_the_success_before_a_shut_gate_is_committed_alone() -> None:
    """J-12, R-11."""
    life = Life("A B")
    life.claim()
    shut(life, "B")
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A"]
    assert plan.rest == Limited(BANK)


@pytest.mark.parametrize("text", ["A", "A&", "A+"])
def test_a_claim_that_finds_the_gate_shut_writes_nothing(text: str) -> None:
    """D-8, R-11: whatever kind of step it is; asked again it goes on."""
    life = Life(text)
    shut(life, "A")
    assert life.claim() == planning.Plan([], None, Limited(BANK))
    assert life.p.token == 0
    shut(life)
    assert names(life.claim().facts)[0] == "AttemptStarted"


def test_unwind_asks_too() -> None:
    """R-11."""
    life = Life("A* B")
    life.claim()
    life.ok()
    door = shut(life, "A")
    plan = life.fails()
    assert names(plan.facts) == ["Failed B"]
    assert plan.rest == Limited(BANK)
    door.shut.clear()
    assert life.claim().next == UnwindOp("A", 0, 1, in_doubt=False)


def test_nothing_that_starts_nothing_asks() -> None:
    """R-11: a cancel, the end, a drain and a backoff need no place."""
    life = Life("A B", LATER)
    door = shut(life, "A", "B", planning.RUN)
    life.cancel()
    assert life.claim().rest == EndedOp()
    life = Life("A B", LATER)
    life.claim()
    life.gate = door
    assert isinstance(life.raises().rest, Waiting)
    life = Life("A")
    life.claim()
    life.gate = door
    assert life.ok().rest == EndedOp()
    life = Life("A")
    life.gate, life.may_start = door, False
    assert life.claim().rest == Closed()
    assert door.asked == []


def test_the_run_is_asked_before_its_first_claim_alone() -> None:
    """R-11: a run that has begun is in flight; one that has not writes nothing."""
    life = Life("A B")
    shut(life, planning.RUN)
    assert life.claim() == planning.Plan([], None, Limited(BANK))
    p = Projection(RUN)
    plan = plan_submission(p, life.topology, submitted(), f.SegmentAttemptStarted(1, "w", 1), life.setting())
    assert names(plan.facts) == ["Submitted"]
    assert plan.rest == Limited(BANK)
    life.gate = None
    life.claim()
    door = shut(life, planning.RUN)
    assert life.ok().next == RunOp("B", 1, 1, started=False)
    assert door.asked == ["B"]


def test_a_key_that_raises_makes_the_run_invalid() -> None:
    """D-1, R-11."""
    life = Life("A B")
    life.claim()
    shut(life, "broken")
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A"]
    assert plan.rest == InvalidOp("limit-key-raised", "the key raised")


def test_a_lost_attempt_is_recorded_though_the_gate_is_shut() -> None:
    """M-17, R-11: the count of lost attempts does not wait for a place."""
    life = Life("A")
    life.claim()
    life.restart()
    shut(life, "A")
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "RetryScheduled A"]
    assert plan.rest == Limited(BANK)


def test_items_of_a_running_unit_do_not_ask() -> None:
    """R-11: a step of items is one operation: its place is taken when it begins."""
    life = Life("A+ B")
    life.author.openings["A"] = planning.Opening(items=(b"1", b"2", b"3"))
    life.author.terms_of["A"] = planning.Terms(bound=1)
    assert isinstance(life.claim().next, UnitOp)
    door = shut(life, "A")
    assert isinstance(life.items_end(life.item(0, b"1")).next, UnitOp)
    assert door.asked == []
