"""J-4, J-5, J-6, R-12, R-17: what is admitted from outside, what is known already, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given

from perdure.core import admission
from perdure.core import facts as f
from perdure.core.admission import Admitted, Duplicate, NotPermitted, Taken
from perdure.core.operations import HeldOp, RunOp, UnwindOp
from perdure.core.projection import Projection
from perdure.core.retry import Retry
from perdure.errors import CorruptJournal
from tests.core.build import Life, names, refold
from tests.core.strategies import lives

LATER = Retry(initial=10, cap=10, jitter=0)

ANYTHING: dict[str, Callable[[Life], admission.Admission]] = {
    "cancel": Life.cancel,
    "hold": Life.hold,
    "release": Life.release,
    "retry": Life.retry,
    "resolve": lambda life: life.resolve("value"),
    "prioritize": lambda life: life.prioritize(-life.p.priority or 5),
    "abandon": Life.abandon,
}


@pytest.mark.parametrize("request_", ANYTHING)
@pytest.mark.parametrize("end", ["success", "failure"])
def test_nothing_is_admitted_after_the_end(request_: str, end: str) -> None:
    """J-6, M-12: the guard `terminal` decides, whatever is asked for."""
    life = Life("A")
    life.claim()
    _ = life.ok() if end == "success" else life.fails()
    assert ANYTHING[request_](life) == Taken("terminal", "the run has ended")


@given(lives())
def test_what_is_admitted_always_follows(life: Life) -> None:
    """J-6, J-8: at any time of a life, the engine running or not; what is refused leaves the run as it was."""
    for ask in ANYTHING.values():
        rows = len(life.rows)
        try:
            answer = ask(life)
        except CorruptJournal as error:
            raise AssertionError("an admitted fact did not follow") from error
        assert len(life.rows) - rows == isinstance(answer, Admitted)


# --- cancel, hold, release, retry -------------------------------------------------------------------------------------


def test_the_first_cancel_wins() -> None:
    """R-12, J-4: a second one is a success that writes nothing, whoever asks and why."""
    life = Life("A")
    assert life.cancel("first") == Admitted(f.RunCancelRequested("user", "first"))
    assert life.cancel("first") == Duplicate()
    assert life.cancel("second") == Duplicate()
    assert life.p.cancel == f.RunCancelRequested("user", "first")


def test_who_asked_is_in_the_fact() -> None:
    """M-16."""
    life = Life("A")
    for ask in (
        life.hold,
        life.release,
        life.retry,
        lambda: life.prioritize(3),
        lambda: life.resolve("value"),
        life.cancel,
    ):
        answer = ask()
        assert isinstance(answer, Admitted)
        assert answer.fact.actor == "user"  # type: ignore[union-attr] # every fact from outside has an actor


def test_the_same_priority_again_is_a_duplicate() -> None:
    """R-1, R-17, J-4: the last word counts."""
    life = Life("A")
    assert life.prioritize(0) == Duplicate()
    assert life.prioritize(5) == Admitted(f.RunPrioritized("user", 5, "as told"))
    assert life.prioritize(5) == Duplicate()
    assert life.p.priority == 5
    life.prioritize(0)
    assert life.p.priority == 0


def test_a_second_hold_is_a_duplicate_but_an_operators_replaces_a_policys() -> None:
    """R-17: the policy's would end with its operation."""
    life = Life("A", Retry(initial=0, cap=0, jitter=0, max_attempts=1))
    life.claim()
    life.raises()
    assert life.next == HeldOp("attempts-exhausted")
    assert isinstance(life.hold(), Admitted)
    assert life.next == HeldOp("by hand")
    assert life.hold() == Duplicate()


def test_only_a_held_run_is_released() -> None:
    """R-17."""
    life = Life("A")
    assert life.release() == NotPermitted("the run is not held")
    life.hold()
    assert isinstance(life.release(), Admitted)
    assert life.release() == NotPermitted("the run is not held")


def test_retry_now_ends_a_backoff_or_a_hold() -> None:
    """R-17, R-4."""
    life = Life("A", LATER)
    life.claim()
    life.raises()
    assert life.p.due_us > life.now_us
    assert isinstance(life.retry(), Admitted)
    assert life.p.due_us == 0
    assert "Reserved A" in names(life.claim().facts)
    life.restart()
    life.hold()
    life.retry()
    assert life.p.held is None


# --- resolve ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("how", "status", "state", "doubt_if_started"),
    [("value", "succeeded", b"7", False), ("skip", "skipped", None, True), ("fail", "failed", None, True)],
)
def test_a_forward_operation_is_resolved(
    how: f.Resolution, status: str, state: bytes | None, doubt_if_started: bool, started: bool
) -> None:
    """R-17, U-9, M-6: with a value, as skipped, as failed; whether it ever started or not, held or not."""
    life = Life("A B")
    if started:
        life.claim()
    life.hold()
    assert isinstance(life.resolve(how, "A"), Admitted)
    entry = life.p.forward["A"]
    assert (entry.status, entry.state, entry.in_doubt) == (status, state, doubt_if_started and started)
    assert life.p.pin is None
    assert life.p.held is not None, "resolving does not lift the hold"
    life.release()
    assert names(life.claim().facts)[1] == ("Reserved B" if how != "fail" else "Completed")


def test_a_resolved_failure_is_of_the_operators_doing() -> None:
    """R-17, M-10, U-1."""
    life = Life("A* B")
    life.claim()
    life.ok()
    answer = life.resolve("fail")
    assert isinstance(answer, Admitted)
    assert isinstance(answer.fact, f.OperationResolved)
    made = answer.fact.failure
    assert made is not None
    assert (made.step, made.kind, made.reason, made.attempt) == ("B", "user", "resolved", 1)
    assert answer.fact.note == "as told"
    assert isinstance(life.next, UnwindOp)


@pytest.mark.parametrize(("how", "status"), [("value", "succeeded"), ("skip", "failed"), ("fail", "failed")])
@pytest.mark.parametrize("started", [False, True])
def test_an_unwind_is_resolved(how: f.Resolution, status: str, started: bool) -> None:
    """R-17, U-8, U-4: a value says that it is undone; its state is not touched [M-2]."""
    life = Life("X* A* B")
    life.claim()
    life.ok(b"1")
    life.ok(b"2")
    life.hold()
    life.fails()
    life.release()
    if started:
        life.claim()
    assert isinstance(life.resolve(how, "A"), Admitted)
    assert life.p.unwind["A"].status == status
    assert life.p.state("A") == b"2"
    assert life.p.crossed == {"A", "B"}
    assert [x.step for x in life.p.unwind_failures] == (["A"] if how == "fail" else [])
    assert life.next == UnwindOp("X", 0, 1, in_doubt=False)


def test_a_resolution_records_what_it_passes_and_crosses() -> None:
    """E-7, U-4."""
    life = Life("X~ A B")
    assert isinstance(life.resolve("value", "A"), Admitted)
    assert life.p.passed == {"X"}
    answer = life.resolve("fail", "B")
    assert isinstance(answer, Admitted)
    assert isinstance(answer.fact, f.OperationResolved)
    assert (answer.fact.passed, answer.fact.crossed) == ((), ())


def test_a_running_attempt_is_fenced() -> None:
    """R-17: its end does not follow any more, and another one does not start where one was resolved."""
    life = Life("A B")
    life.claim()
    life.resolve("value")
    for late in (
        f.OperationSucceeded("A", 1),
        f.OperationRetryScheduled("A", 1, "error", 0),
        f.OperationFailed("A", f.Failure("A", "late")),
        f.OperationProgress("A", "m", f.NULL),
        f.OperationReserved("A", 2),
    ):
        with pytest.raises(CorruptJournal):
            refold([*life.rows, (1, [late])])
    assert names(life.goes_on().facts) == ["Reserved B"]


def running(text: str) -> Life:
    life = Life(text)
    life.claim()
    return life


def deployed(life: Life, text: str) -> Life:
    life.deploy(text)
    return life


def canceled(life: Life) -> Life:
    life.cancel()
    return life


def nothing_to_unwind() -> Life:
    life = running("A B")
    life.author.broken.add("failure output")
    life.fails()
    return life


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: running("A B"), "the next operation is of step 'A', not 'B'"),
        (lambda: deployed(running("A B"), "B"), "the next operation is not known: step 'A' is unresolved"),
        (lambda: canceled(running("A B")), "the run is being canceled"),
        (lambda: canceled(Life("A B")), "the run is being canceled"),
        (lambda: Life(""), "no operation is left to resolve"),
        (nothing_to_unwind, "no operation is left to resolve"),
    ],
)
def test_what_cannot_be_resolved(make: Callable[[], Life], problem: str) -> None:
    """R-17: the wrong step, an operation that is missing or unknown, one that a cancel takes, none at all."""
    life = make()
    rows = len(life.rows)
    answer = life.resolve("value", "B")
    assert isinstance(answer, NotPermitted)
    assert answer.problem.startswith(problem)
    assert len(life.rows) == rows


def test_a_step_that_settles_can_be_resolved_while_canceled() -> None:
    """R-12, R-17: it is still next."""
    life = canceled(running("A! B"))
    assert isinstance(life.resolve("value", "A"), Admitted)
    assert names(life.goes_on().facts)[0] == "Failed B"


def test_the_step_may_be_left_open() -> None:
    """R-17: whichever is next."""
    life = running("A B")
    assert isinstance(life.resolve("value", None), Admitted)
    assert life.p.forward["A"].status == "succeeded"


def test_a_conditional_step_is_resolved_without_asking() -> None:
    """R-17, E-12."""
    life = Life("A&")
    life.resolve("value", "A")
    assert life.author.asked == []
    assert life.p.state("A") == b"7"


def test_a_resolved_skip_is_not_asked_again() -> None:
    """R-17, E-12."""
    life = Life("A& B")
    life.resolve("skip", "A")
    assert life.next == RunOp("B", 1, 1, started=False)


def test_asking_changes_no_other_projection() -> None:
    """J-6: the caller loads its own; ours may be the engine's."""
    life = running("A")
    life.hold()
    before = life.p.held
    life.resolve("value", "nothing of that name")
    assert life.p.held is before
    assert isinstance(life.p, Projection)


# --- abandon ----------------------------------------------------------------------------------------------------------


def ends(answer: admission.Admission) -> f.RunFailed:
    """The terminal fact of an abandoned run."""
    assert isinstance(answer, Admitted)
    assert isinstance(answer.fact, f.RunAbandoned)
    outcome, ended = answer.more
    assert outcome == f.OutcomeCommitted("failure")
    assert isinstance(ended, f.RunFailed)
    return ended


def test_abandoning_ends_a_run_whose_step_is_gone() -> None:
    """D-7, U-9: no handler is called; what was begun is in doubt, what was done is listed."""
    life = Life("A* B* C")
    life.claim()
    life.ok()
    life.raises()
    life.deploy("A* C")
    ended = ends(life.abandon("lost"))
    assert (ended.failure.kind, ended.failure.reason, ended.failure.step) == ("abandoned", "abandoned", "B")
    assert "lost" in ended.failure.message
    assert (ended.in_doubt, ended.uncompensated) == (("B",), ("A",))
    assert (ended.half_unwound, ended.unavailable) == ((), ())
    assert life.p.ended == ended
    assert life.p.pin is None
    assert life.p.forward["B"].in_doubt


def test_abandoning_while_unwinding_keeps_what_happened() -> None:
    """D-7, U-9: an unwind that was begun is half unwound; the message says what the run had failed of."""
    life = Life("A* B* C", LATER)
    life.claim()
    life.ok()
    life.ok()
    life.fails()
    life.raises()
    ended = ends(life.abandon())
    assert ended.failure.step == "C"
    assert "while unwinding" in ended.failure.message
    assert ended.half_unwound == ("B",)
    assert ended.uncompensated == ("A", "B")


def test_abandoning_a_run_without_a_place_to_stand() -> None:
    """D-7, E-5: nothing in the topology is known; what could once be undone is unavailable."""
    life = Life("A* B")
    life.claim()
    life.ok()
    life.may_start = False
    life.raises()
    life.may_start = True
    life.resolve("skip", "B")
    life.deploy("X Y")
    ended = ends(life.abandon())
    assert ended.failure.step == ""
    assert ended.unavailable == ("A",)
    assert ended.in_doubt == ("B",)


def test_abandoning_before_anything_ran() -> None:
    life = Life("A* B")
    ended = ends(life.abandon())
    assert ended.failure.step == "A"
    assert (ended.in_doubt, ended.uncompensated, ended.unavailable) == ((), (), ())


def test_abandoning_a_held_run_names_the_step_that_was_next() -> None:
    life = Life("A* B")
    life.claim()
    life.hold()
    life.ok()
    assert ends(life.abandon()).failure.step == "B"
