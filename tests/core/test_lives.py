"""R-16: whatever happened to a run, once everything goes well it ends, or the deployment cannot go on with it."""

from __future__ import annotations

from hypothesis import given, settings

from perdure.core import outcomes
from perdure.core.operations import InvalidOp, UnitOp
from perdure.core.plan import Opening, Rest
from perdure.core.retry import Retry
from perdure.core.units import resting
from tests.core.build import AT_ONCE, Life
from tests.core.strategies import awaited_goes_well, claimed, lives, unit_goes_well

MOST = 300


def all_goes_well(life: Life) -> None:
    """The worker is gone and another one takes over; nothing raises, all that is waited for comes."""
    life.author.broken.clear()
    life.policy = lambda _step: AT_ONCE
    life.told = True
    if life.op is not None:
        life.restart()


def moves(life: Life) -> Rest | None:
    """One operation goes well, or the run is claimed; why nothing moved, if nothing did."""
    awaited_goes_well(life)
    if isinstance(life.op, UnitOp):
        unit_goes_well(life)
    elif life.op is not None:
        life.ok()
    else:
        life.release()
        life.now_us += 60_000_000
        plan = claimed(life)
        return plan.rest if not plan.facts else None
    return None


@settings(max_examples=250)
@given(lives(most=50))
def test_every_life_ends_once_all_goes_well(life: Life) -> None:
    """B-7, R-16, D-1: no wait, item, turn or child run is stuck, at whatever point a worker was lost."""
    if life.p.ended is not None:
        return
    all_goes_well(life)
    idle = 0
    for _ in range(MOST):
        if life.p.ended is not None:
            return
        rest = moves(life)
        if isinstance(rest, InvalidOp):
            return
        idle = idle + 1 if rest is not None else 0
        assert idle < 3, f"nothing moves: {rest}"
    raise AssertionError("it does not end")


def test_what_a_run_rests_for_follows_from_its_facts() -> None:
    """R-16: it is what a claim would answer that does nothing."""
    later = Retry(initial=10, cap=10, jitter=0)
    for text in ("A@ B", "A# B", "A^ B", "A= B", "A+ B", "A$ B"):
        life = Life(text, later)
        items = (b"1", b"2") if text[1] in "^+" else (b"1",)
        life.author.openings["A"] = Opening(60_000_000, ("r1",), 1, items, "p")
        life.claim()
        if isinstance(life.op, UnitOp) and text[1] in "^=":
            life.dispatched()
        elif isinstance(life.op, UnitOp):
            life.items_end(*(life.item(i, outcomes.Raised(life.item_failure(i))) for i in range(len(items))))
        plan = life.claim()
        assert (plan.facts, plan.rest) == ([], resting(life.p)), text
        assert plan.rest is not None
