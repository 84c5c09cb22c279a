"""Each numbered rule of E, and cancel and hold, as a table: what a run with this past does next in that topology."""

from __future__ import annotations

import pytest

from perdure.core.facts import OperationReserved, RunSucceeded
from perdure.core.operations import HeldOp, RunOp
from perdure.core.reconciler import canceled_failure, reconcile
from tests.core.build import Life, topology
from tests.core.pasts import brief, past, stopped, then

# --- forward ----------------------------------------------------------------------------------------------------------


def test_a_run_keeps_no_topology() -> None:
    """E-1: the topology of now decides, and a projection has no other."""
    life = past("A B C", "ok dies")
    assert [then(life, text) for text in ("A B C", "B", "A B D")] == ["run B 2", "run B 2", "run B 2"]
    assert [then(Life("A"), text) for text in ("X", "Y X", "")] == ["run X 1", "run Y 1", "complete"]


@pytest.mark.parametrize("text", ["A B C", "C B", "B", "B A C", "A C B~", "B~", "A B&", "C X A B Y"])
@pytest.mark.parametrize("act", ["dies", "raises dies", "late dies"])
def test_an_unresolved_step_is_next_wherever_it_stands(text: str, act: str) -> None:
    """E-2, E-9: retired or not, behind or ahead; its condition is not asked any more [E-12]."""
    life = past("A B C", f"ok {act}")
    attempt = life.p.attempts("forward", "B") + 1
    assert then(life, text) == f"run B {attempt}"
    op = life.next
    assert isinstance(op, RunOp)
    assert op.started
    assert op.position == life.topology.position["B"]


@pytest.mark.parametrize("text", ["", "A", "A C", "X"])
def test_a_missing_unresolved_step_makes_the_run_invalid_until_it_is_back(text: str) -> None:
    """E-3: restored, for instance as retired, it goes on with the next attempt number."""
    life = past("A B C", "ok dies")
    assert then(life, text) == "invalid step-missing"
    assert then(life, "A B~ C") == "run B 2"
    assert then(life, "A B C") == "run B 2"


@pytest.mark.parametrize(
    ("acts", "text", "expected"),
    [
        ("", "A B C", "run A 2"),
        ("ok ok hold resolve:value", "A B C", "held"),
        ("ok resolve:value hold", "A B X C", "held"),
        ("skip:B ok", "A X B& C", "run C 2"),
    ],
)
def test_the_frontier_is_the_furthest_progress(acts: str, text: str, expected: str) -> None:
    """E-4."""
    assert then(past("A B& C", acts), text) == expected


@pytest.mark.parametrize(
    ("done", "text", "expected"),
    [
        (0, "X A", "run X 1"),
        (1, "A B C", "run B 1"),
        (1, "B A C", "run C 1"),
        (1, "B C A", "complete"),
        (2, "B A C", "run C 1"),
        (2, "A X C", "run X 1"),
        (2, "B C", "run C 1"),
        (2, "C B A", "complete"),
        (2, "C", "invalid no-safe-frontier"),
        (3, "A B C D", "run D 1"),
    ],
)
def test_the_first_step_after_the_frontier_is_next(done: int, text: str, expected: str) -> None:
    """E-4, E-6, E-8: reordering changes only what is ahead."""
    assert then(stopped("A B C E", done), text) == expected


def test_progress_that_is_nowhere_leaves_no_safe_frontier() -> None:
    """E-5: successes or skips exist, none is in the topology; it may come back."""
    life = stopped("A B", 1)
    assert then(life, "X Y") == "invalid no-safe-frontier"
    assert then(life, "") == "invalid no-safe-frontier"
    assert then(life, "X A~ Y") == "run Y 1"


def test_a_skip_alone_needs_a_frontier_too() -> None:
    """E-5, E-12."""
    life = past("A& B", "skip:A hold ok")
    assert life.p.forward["A"].status == "skipped"
    life.release()
    assert then(life, "X Y") == "invalid no-safe-frontier"
    assert then(life, "X A Y") == "run Y 1"


def test_no_progress_at_all_needs_no_frontier() -> None:
    """E-4, E-5: a run that never started fits any topology, the empty one included."""
    assert then(Life("A"), "X") == "run X 1"
    assert then(Life("A"), "") == "complete"


@pytest.mark.parametrize(("text", "expected"), [("A~ B", "run B 1"), ("A~ B~", "complete"), ("A~ B& C", "ask B")])
def test_the_next_is_neither_retired_nor_passed(text: str, expected: str) -> None:
    """E-6, E-9."""
    assert then(Life("A"), text) == expected


def test_a_passed_step_never_runs_wherever_it_moves() -> None:
    """E-7: X and Y stood before B when it was reserved; passing is no success and moves no frontier."""
    life = stopped("A B", 1)
    life.deploy("A X Y~ B C")
    life.deploy("X Y~ A B C")
    plan = life.claim()
    reserved = plan.facts[-1]
    assert isinstance(reserved, OperationReserved)
    assert (reserved.step, reserved.passed) == ("B", ("X", "Y"))
    life.hold()
    life.ok()
    life.release()
    assert then(life, "A B X Y C") == "run C 1"
    assert then(life, "X A B") == "complete"
    assert then(life, "X Y Z") == "invalid no-safe-frontier", "X was passed, which is no progress"
    assert life.p.state("X") is None


def test_a_step_behind_the_frontier_never_runs_though_unrecorded() -> None:
    """E-7: the record is for later; now its position alone decides."""
    life = stopped("A B", 1)
    assert then(life, "X A B") == "run B 1"
    assert then(life, "A X B") == "run X 1", "nothing was reserved meanwhile: X is ahead again"


def test_a_retired_success_counts_for_the_frontier() -> None:
    """E-9."""
    life = stopped("A B C", 1)
    assert then(life, "X A~ C") == "run C 1"


def test_a_step_appended_after_the_last_success_runs_before_the_output() -> None:
    """E-10, M-12: until the outcome is committed."""
    life = stopped("A B", 2)
    assert then(life, "A B") == "complete"
    assert then(life, "A B C") == "run C 1"
    life.deploy("A B")
    life.claim()
    assert isinstance(life.p.ended, RunSucceeded)
    assert then(life, "A B C") == "ended"


def test_a_condition_is_asked_of_a_step_that_never_started() -> None:
    """E-12, E-2."""
    life = Life("A&")
    assert brief(life.next) == "ask A"
    life.claim()
    life.raises()
    life.restart()
    assert brief(life.next) == "run A 3"


# --- cancel and hold --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acts", "text", "expected"),
    [
        ("ok cancel dies", "A B C", "cancel B in doubt"),
        ("ok cancel dies", "B~", "cancel B in doubt"),
        ("ok cancel dies", "A C", "invalid step-missing"),
        ("ok cancel dies", "A B! C", "run B 2"),
        ("ok hold cancel dies", "A B C", "cancel B in doubt"),
        ("ok hold cancel dies", "A B! C", "held"),
    ],
)
def test_a_cancel_acts_on_the_unresolved_step(acts: str, text: str, expected: str) -> None:
    """R-12: at once on a held run; it waits where the step is missing [E-3]; `settle` lets the step retry first."""
    assert then(past("A B C", acts), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A B", "cancel B"),
        ("A B&", "cancel B"),
        ("A B!", "cancel B"),
        ("A X B", "cancel X"),
        ("A B~ C", "cancel C"),
        ("A", "complete"),
        ("X", "invalid no-safe-frontier"),
    ],
)
@pytest.mark.parametrize("held", [False, True])
def test_a_cancel_acts_on_the_next_step_before_its_condition_is_asked(text: str, expected: str, held: bool) -> None:
    """R-12, E-12: a step that never started is in no doubt and has nothing to settle."""
    life = stopped("A B", 1)
    life.cancel()
    if held:
        life.hold()
        expected = expected.replace("complete", "held")
    assert then(life, text) == expected


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ("ok hold dies", "held"),
        ("hold", "held"),
        ("ok fails hold dies", "held"),
    ],
)
def test_a_held_run_does_nothing(acts: str, expected: str) -> None:
    """R-17: forward and backward, with the reason of the hold."""
    life = past("A* B C", acts)
    assert brief(life.next) == expected
    assert life.next == HeldOp("by hand")
    life.release()
    assert brief(life.next) != "held"


def test_a_hold_does_not_hide_that_a_run_is_invalid() -> None:
    """D-1, R-17."""
    life = past("A B", "ok hold dies")
    assert then(life, "A") == "invalid step-missing"
    life = past("A* B", "ok fails hold dies")
    assert then(life, "B") == "invalid no-safe-unwind-frontier"


def test_a_canceled_failure_names_its_reason() -> None:
    """M-11, R-12."""
    life = Life("A")
    life.cancel("deadline")
    made = canceled_failure(life.p, "A", 2, 77)
    assert (made.kind, made.reason, made.message) == ("canceled", "deadline", "the run's deadline passed")
    assert (made.step, made.attempt, made.at_us, made.phase) == ("A", 2, 77, "forward")
    assert canceled_failure(Life("A").p, "A", 0, 0).reason == "canceled"


# --- the whole --------------------------------------------------------------------------------------------------------


def test_an_ended_run_does_nothing_whatever_is_deployed() -> None:
    """M-12, E-10."""
    for acts in ("ok ok ok", "fails", "cancel late"):
        life = past("A B C", acts)
        for text in ("A B C D", "", "X*", "A* B* C*"):
            assert then(life, text) == "ended"


def test_deciding_changes_nothing() -> None:
    """J-15, D-8: asked twice, answered alike; only the view is remembered."""
    life = past("A* B C", "ok raises dies")
    facts = len(life.facts)
    for text in ("A* B C", "X", "A", "B A*"):
        asked = topology(text)
        assert reconcile(life.p, asked) == reconcile(life.p, asked)
    life.restart()
    assert life.p.version == facts


def test_time_plays_no_part() -> None:
    """R-4: the due time says when; the reconciler does not look at it."""
    life = past("A", "raises dies")
    life.p.due_us = 10**15
    assert brief(life.next) == "run A 3"
