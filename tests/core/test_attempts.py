"""M-5, E-3: a bound holds though the step was not there when an attempt of it was lost."""

from __future__ import annotations

import pytest

from perdure.core import facts as f
from perdure.core.operations import InvalidOp
from perdure.core.plan import Opening
from perdure.core.retry import DEFAULT_RETRY, Retry
from tests.core.build import Life, names, submitted

BOUNDED = Retry(initial=0, cap=0, jitter=0, max_attempts=2, then="fail")


def deployed(life: Life, text: str) -> None:
    """Deploy; a step that is not there has no policy of its own, so the default one is in force."""
    life.deploy(text)
    life.policy = lambda step: BOUNDED if step in life.topology.position else DEFAULT_RETRY


def at_its_last_attempt(text: str, gone: str) -> Life:
    """The second of two attempts is lost, A is gone, and the run's deadline has passed."""
    life = Life(text, BOUNDED, submission=submitted(deadline_us=60_000))
    life.author.openings["A"] = Opening(items=(b"1",))
    life.claim()
    life.is_lost()
    life.now_us = 60_000
    life.restart()
    deployed(life, gone)
    return life


@pytest.mark.parametrize("text", ["A! B", "A+! B"])
def test_the_loss_is_recorded_by_the_first_claim_that_knows_the_step(text: str) -> None:
    """M-5, M-17: under its own policy, so there is no third attempt; until then the run is invalid [D-2]."""
    life = at_its_last_attempt(text, "B")
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "CancelRequested"], "the deadline is all that can be told"
    assert isinstance(plan.rest, InvalidOp)
    plan = life.claim()
    assert plan.facts == []  # D-8
    deployed(life, text)
    plan = life.claim()
    assert life.p.attempts("forward", "A") == 2
    assert life.p.failure is not None
    assert (life.p.failure.step, life.p.failure.reason) == ("A", "attempts-exhausted")
    assert life.p.forward["A"].in_doubt


def test_an_operator_may_resolve_the_attempt_that_nobody_recorded() -> None:
    """R-17: it is fenced as any other, once the step is there."""
    life = at_its_last_attempt("A! B", "B")
    life.claim()
    deployed(life, "A! B")
    life.resolve("value", "A")
    life.claim()
    assert life.p.forward["A"].status == "succeeded"


def test_a_step_of_another_shape_is_canceled_without_its_loss() -> None:
    """R-12, D-1: the cancel resolves it, in doubt, and closes the attempt."""
    life = at_its_last_attempt("A B", "A% B")
    plan = life.claim()
    assert names(plan.facts)[:3] == ["AttemptStarted", "CancelRequested", "Failed A"]
    assert isinstance(life.p.ended, f.RunFailed)
    assert (life.p.ended.failure.reason, life.p.ended.in_doubt) == ("deadline", ("A",))
