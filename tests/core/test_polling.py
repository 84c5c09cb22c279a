"""`Later`: an attempt that ends without a state and without an error [B-15, M-17]."""

from __future__ import annotations

import pytest

from perdure.core import facts as f
from perdure.core import plan as planning
from perdure.core.explain import explain
from perdure.core.operations import EndedOp, HeldOp, RunOp
from perdure.core.outcomes import Postponed
from perdure.core.plan import Waiting
from perdure.core.retry import MAX_LOST_IN_A_ROW, Retry
from tests.core.build import AT_ONCE, Life, names, submitted

HOUR_US = 3_600_000_000


def says_later(life: Life, delay_us: int = HOUR_US) -> planning.Plan:
    return life.ends(Postponed(delay_us))


def test_later_waits_for_exactly_so_long_without_a_failure() -> None:
    """B-15, M-17: no backoff, no jitter, no failure; the time is absolute."""
    life = Life("A", Retry(initial=5, jitter=1))
    life.claim()
    now_us = life.now_us
    plan = says_later(life)
    assert plan.facts == [f.OperationRetryScheduled("A", 1, "later", now_us + HOUR_US)]
    assert plan.rest == Waiting(now_us + HOUR_US)
    assert life.claim().rest == Waiting(now_us + HOUR_US)  # too early: nothing is written [D-8]
    life.now_us = now_us + HOUR_US
    assert life.claim().next == RunOp("A", 0, 2, started=True)


def test_later_counts_towards_no_bound() -> None:
    """M-5: a bound of one failed attempt is not reached by any number of Later."""
    life = Life("A", Retry(max_attempts=2, initial=0, cap=0, jitter=0))
    life.claim()
    for _ in range(10):
        says_later(life, 1)
        life.claim()
    life.raises()
    assert life.op == RunOp("A", 0, 12, started=True)
    says_later(life, 1)
    life.claim()
    assert isinstance(life.raises().rest, HeldOp)  # the second failure of the operation


def test_later_ends_a_row_of_lost_attempts() -> None:
    """M-5: a handler that answered did not kill its worker."""
    life = Life("A")
    life.claim()
    for _ in range(MAX_LOST_IN_A_ROW - 1):
        life.is_lost()
    says_later(life, 1)
    life.claim()
    for _ in range(MAX_LOST_IN_A_ROW - 1):
        assert life.is_lost().next is not None
    assert isinstance(life.is_lost().rest, HeldOp)


@pytest.mark.parametrize("cut", [Life.retry, None])
def test_a_poll_is_asked_at_once_by_retry(cut: object) -> None:
    """R-17: retry cuts the waiting short; without it the run waits."""
    life = Life("A")
    life.claim()
    says_later(life)
    if cut is not None:
        life.retry()
    assert (life.claim().next is not None) is (cut is not None)


def test_the_waiting_survives_restarts_snapshots_and_edits() -> None:
    """R-4, E-2: it pins as any unresolved operation, retired too."""
    life = Life("A B")
    life.claim()
    due_us = life.now_us + HOUR_US
    says_later(life)
    life.restart()
    assert (life.p.due_us, life.p.pin) == (due_us, "A")
    assert life.p.current is not None
    assert life.p.current.later
    life.deploy("N B A~")
    assert life.claim().rest == Waiting(due_us)
    life.now_us = due_us
    assert life.claim().next == RunOp("A", 2, 2, started=True)


def test_cancel_ends_a_poll_at_once_in_doubt() -> None:
    """R-12, U-9: as any started operation."""
    life = Life("A")
    life.claim()
    says_later(life)
    life.cancel()
    assert life.claim().rest == EndedOp()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.in_doubt == ("A",)


def test_a_cancel_while_it_asks_does_not_wait_for_later() -> None:
    """R-12: any other end than success resolves the operation as canceled."""
    life = Life("A")
    life.claim()
    life.cancel()
    assert "Failed A" in names(says_later(life).facts)


def test_a_poll_that_settles_polls_on_under_a_cancel() -> None:
    """R-12: `on_cancel="settle"` waits for its own resolution."""
    life = Life("A! B")
    life.claim()
    life.cancel()
    assert isinstance(says_later(life, 1_000).rest, Waiting)
    life.claim()
    assert isinstance(life.ok().rest, EndedOp)
    assert life.p.state("A") == b"1"


def test_a_deadline_ends_a_poll() -> None:
    """R-12: the wait is not longer than the run may take."""
    life = Life("A", submission=submitted(deadline_us=50_000))
    life.claim()
    says_later(life)
    life.now_us = 50_000
    life.claim()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.failure.reason == "deadline"


def test_a_hold_stops_asking_and_release_asks_at_once() -> None:
    """R-17."""
    life = Life("A")
    life.claim()
    says_later(life, 1_000)
    life.hold()
    life.now_us += HOUR_US
    assert isinstance(life.claim().rest, HeldOp)
    life.release()
    assert life.claim().next == RunOp("A", 0, 2, started=True)


def test_resolve_gives_a_poll_its_state() -> None:
    """R-17: whoever knows the answer need not wait."""
    life = Life("A B", AT_ONCE)
    life.claim()
    says_later(life)
    life.resolve("value")
    assert life.claim().next == RunOp("B", 1, 1, started=False)
    assert life.p.state("A") == b"7"


def test_explain_says_that_it_was_told_later() -> None:
    """E-11."""
    life = Life("A")
    life.claim()
    says_later(life)
    assert "said later" in explain(life.p, life.topology).steps[0].why
    life.now_us += HOUR_US
    life.claim()
    assert "said later" not in explain(life.p, life.topology).steps[0].why
