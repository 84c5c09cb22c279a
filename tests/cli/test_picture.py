"""`explain` draws the current topology with the frontier, and says of each step why [E-11]."""

from __future__ import annotations

import pytest

from perdure.cli.picture import draw, explanation_json, next_sentence
from perdure.cli.tables import plain
from perdure.core.explain import Explanation, StepExplanation, explain
from perdure.core.facts import (
    NULL,
    Fact,
    Failure,
    OperationFailed,
    OperationReserved,
    OperationRetryScheduled,
    OperationSkipped,
    OperationSucceeded,
    RunSubmitted,
    SegmentAttemptStarted,
)
from perdure.core.operations import (
    CancelOp,
    CompleteOp,
    EndedOp,
    EvaluateOp,
    FailOp,
    HeldOp,
    InvalidOp,
    Operation,
    RunOp,
    UnwindOp,
)
from perdure.core.projection import Projection
from perdure.core.reducer import fold_all
from perdure.core.topology import StepSpec, Topology
from perdure.core.words import Shape
from tests.cli.harness import records

SECOND = 1_000_000


def folded(*facts: Fact) -> Projection:
    p = Projection("run7")
    fold_all(p, [RunSubmitted("run7", "order", NULL, "", "run7"), SegmentAttemptStarted(1, "w", 1), *facts], 0)
    return p


def drawn(p: Projection, *steps: StepSpec, now_us: int = 0) -> list[str]:
    picture = draw(explain(p, Topology(steps)), now_us, fine=False)
    return [*plain(picture.steps), *plain(picture.gone)[1:], f"next: {picture.next}"]


def test_forward_with_the_frontier_between_what_ran_and_what_will() -> None:
    p = folded(
        OperationReserved("a", 1), OperationSucceeded("a", 1), OperationSkipped("b"),
        OperationReserved("c", 1), OperationRetryScheduled("c", 1, "error", 12 * SECOND),
    )  # fmt: skip
    lines = drawn(
        p,
        StepSpec("a"),
        StepSpec("new"),
        StepSpec("b", conditional=True),
        StepSpec("c"),
        StepSpec("old", retired=True),
        StepSpec("d", conditional=True),
    )
    assert [line.split()[:3] for line in lines[1:-1]] == [
        ["+", "a", "succeeded"],
        [".", "new", "passed"],
        ["-", "b", "skipped"],
        ["--", "frontier"],
        [">", "c", "unresolved"],
        [".", "old", "retired"],
        ["o", "d", "ahead"],
    ]
    assert "behind the frontier: it never runs" in lines[2]
    assert "its condition was false" in lines[3]
    assert lines[-1] == "next: run c as attempt 2, in 12 s"


def test_unwinding_shows_both_ways_and_the_unwind_frontier() -> None:
    p = folded(
        OperationReserved("a", 1), OperationSucceeded("a", 1), OperationReserved("b", 1), OperationSucceeded("b", 1),
        OperationReserved("c", 1), OperationFailed("c", Failure("c", "no")),
        OperationReserved("b", 1, "unwind", crossed=("b", "c")),
    )  # fmt: skip
    lines = drawn(p, StepSpec("a", unwind=True), StepSpec("b", unwind=True), StepSpec("c"))
    assert lines[0].split() == ["STEP", "FORWARD", "UNWIND", "WHY"]
    assert [line.split()[:4] for line in lines[1:-1]] == [
        ["o", "a", "succeeded", "will-unwind"],
        ["--", "unwind", "frontier"],
        [">", "b", "succeeded", "unwinding"],
        ["x", "c", "failed", "it"],
    ]
    assert lines[-1] == "next: unwind b as attempt 2"


def test_steps_that_left_the_pipeline_are_shown_apart() -> None:
    p = folded(OperationReserved("gone", 1), OperationSucceeded("gone", 1))
    lines = drawn(p, StepSpec("a"))
    assert "no longer in the pipeline" in lines[2]
    assert lines[-1].startswith("next: nothing: invalid (no-safe-frontier)")


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (RunOp("a", 0, 1, started=False), "run a as attempt 1, in 5 s"),
        (EvaluateOp("a", 0), "ask the condition of a, and run it if that holds, in 5 s"),
        (UnwindOp("a", 0, 2, in_doubt=True), "unwind a as attempt 2, in doubt, in 5 s"),
        (CancelOp("a", 0, in_doubt=False), "end a as canceled, without a call, and unwind"),
        (CompleteOp(), "compute the output and succeed"),
        (FailOp(), "nothing is left to unwind: end as failed"),
        (HeldOp("operator"), "nothing: held (operator); `perdure release`, `retry` or `resolve` goes on"),
        (InvalidOp("step-missing", "because"), "nothing: invalid (step-missing): because"),
        (EndedOp(), "nothing: the run has ended"),
    ],
)
def test_what_comes_next_in_words(op: Operation, said: str) -> None:
    assert next_sentence(op, 5 * SECOND, 0) == said


def test_the_explanation_as_json_has_the_documented_keys() -> None:
    found = explanation_json(explain(folded(), Topology([StepSpec("a")])))
    assert set(found) == {"run_id", "frontier", "unwind_frontier", "next", "due_at", "steps", "gone"}
    assert found["next"] == {"op": "run", "step": "a", "attempt": 1}
    assert set(records(found["steps"])[0]) == {
        "step", "position", "fate", "unwind", "shape", "attempts", "unwind_attempts", "in_doubt", "why",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("handler", "succeeded (attempt 7)"),
        ("each", "succeeded (7 attempts)"),
        ("loop", "succeeded (7 attempts)"),
        ("children", "succeeded (7 child runs)"),
    ],
)
def test_numbers_say_of_what_they_are(shape: Shape, said: str) -> None:
    """A step of items was not tried seven times because its items were."""
    step = StepExplanation("a", 0, "succeeded", None, 7, 0, False, "", shape)
    picture = draw(Explanation("run7", (step,), (), 0, None, EndedOp(), 0), 0, fine=False)
    assert said in plain(picture.steps)[1]
