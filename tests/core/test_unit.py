"""Open units of every shape: what deployments, snapshots, ledgers and people make of them [B-2, B-20]."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from perdure.core import facts as f
from perdure.core import outcomes
from perdure.core.explain import explain
from perdure.core.operations import InvalidOp, Operation, RunOp, UnitOp, UnwindOp
from perdure.core.plan import Opening, RunEnd, Terms
from perdure.core.projection import dump, restore
from perdure.core.reconciler import Lists, reconcile
from perdure.core.reducer import fold
from perdure.core.retry import Retry
from perdure.core.signature import decode_ledger, encode_ledger, ledger_of, projection_of
from perdure.core.unit import CHILD_SHAPES, Item, Unit
from perdure.core.units import items_due_us
from perdure.errors import CorruptJournal
from tests.core.build import AT_ONCE, Life, content, refold

SIGNS = {"each": "+", "loop": "$", "child": "=", "children": "^"}
LATER = Retry(initial=10, cap=10, jitter=0)
EVERY_SHAPE = pytest.mark.parametrize("shape", SIGNS)


def opened(shape: str, flags: str = "", policy: Retry = AT_ONCE) -> Life:
    """A run between X and B, whose unit A is open and has begun something."""
    life = Life(f"X* A{SIGNS[shape]}{flags} B", policy)
    data = (b"1", b"2", b"3") if shape in ("each", "children") else (b"1",)
    life.author.openings["A"] = Opening(items=data, pipeline="p" if shape in CHILD_SHAPES else "")
    life.claim()
    life.ok()
    return life


def goes_on(life: Life) -> None:
    """Everything that is at work ends well; a worker takes the run up where none owns it."""
    for _ in range(9):
        if life.p.pin != "A":
            return
        if life.p.units["A"].shape in CHILD_SHAPES:
            life.ends_of = {life.child(i, "A"): RunEnd("succeeded", b"1") for i in life.p.units["A"].open}
            if isinstance(life.op, UnitOp):
                life.dispatched()
        if isinstance(life.op, UnitOp):
            life.items_end(*(life.item(i, b"1") for i in sorted(life.p.units["A"].open)))
        elif life.op is None:
            life.now_us += 60_000_000
            life.claim()


@EVERY_SHAPE
def test_it_pins_goes_on_retired_and_its_removal_makes_the_run_invalid(shape: str) -> None:
    """E-2, E-3, E-9, B-20: wherever it stands now, and whatever was inserted before it."""
    life = opened(shape)
    life.restart()
    for text in (f"X* N A{SIGNS[shape]} B", f"B A{SIGNS[shape]}~ X*", f"A{SIGNS[shape]} X* B"):
        life.deploy(text)
        assert isinstance(life.next, UnitOp)
        assert (life.next.step, life.next.position, life.next.open) == ("A", life.topology.position["A"], True)
    life.deploy("X* B")
    assert isinstance(life.next, InvalidOp)
    assert life.next.reason == "step-missing"
    assert life.claim().facts == []
    life.deploy(f"X* A{SIGNS[shape]}~ N B")
    life.claim()
    goes_on(life)
    assert life.p.forward["A"].status == "succeeded"
    assert life.op == RunOp("N", 2, 1, started=False)


@EVERY_SHAPE
def test_retired_before_it_is_started_it_is_bypassed(shape: str) -> None:
    """E-9."""
    assert opened(shape, "~").op == RunOp("B", 2, 1, started=False)


@pytest.mark.parametrize("sign", [*SIGNS.values(), "@", "#", "%"])
def test_steps_before_it_that_never_ran_are_passed(sign: str) -> None:
    """E-7: recorded as it opens."""
    life = Life(f"X A{sign} B")
    life.author.openings["A"] = Opening(60_000_000, ("go",), 1, (b"1",), "p")
    life.claim()
    life.deploy(f"X N~ A{sign} B")
    life.ok()
    assert life.p.passed == {"N"}


@EVERY_SHAPE
def test_its_items_are_settled_when_it_opens(shape: str) -> None:
    """B-20: a deployment changes the code for the next attempt, and how many at once, not the items."""
    life = opened(shape)
    items, opened_us = list(life.p.units["A"].items), life.p.units["A"].opened_us
    life.author.openings["A"] = Opening(items=(b"9",), pipeline="q")
    life.is_lost()
    life.deploy(f"X* N A{SIGNS[shape]} B")
    life.author.terms_of["A"] = Terms(1)
    goes_on(life)
    assert life.author.asked.count("open A") == 1
    assert life.p.forward["A"].status == "succeeded"
    assert next(fact for fact in life.facts if isinstance(fact, f.BoundaryOpened)).items == tuple(
        map(msgspec.Raw, items)
    )
    assert opened_us


@EVERY_SHAPE
@pytest.mark.parametrize("cut", range(1, 9))
def test_a_snapshot_in_the_middle_goes_on_as_the_facts_do(shape: str, cut: int) -> None:
    """J-8: fold(all) = fold(snapshot of any prefix, rest)."""
    life = opened(shape, policy=LATER)
    if shape not in CHILD_SHAPES:
        life.items_end(life.item(0, outcomes.Raised(life.item_failure(0))), running=shape == "each")
        life.is_lost()
    goes_on(life)
    facts = [(at_us, fact) for at_us, row in life.rows for fact in row]
    head, rest = facts[: cut * len(facts) // 9], facts[cut * len(facts) // 9 :]
    p = refold([(at_us, [fact]) for at_us, fact in head])
    p = restore(dump(p), 0, p.row_seq, p.row_hash)
    for at_us, fact in rest:
        fold(p, fact, at_us)
    assert content(p) == content(life.p)
    assert dump(p) == dump(life.p)


def alike(op: Operation) -> Operation:
    """The operation without its attempt number."""
    return RunOp(op.step, op.position, 0, op.started) if isinstance(op, RunOp) else op


@EVERY_SHAPE
@pytest.mark.parametrize("flags", ["", "!", ">", "*?", "~"])
@pytest.mark.parametrize("then", ["open", "canceled", "held", "held and canceled", "skipped", "failed", "abandoned"])
def test_its_ledger_answers_as_the_run_itself(shape: str, flags: str, then: str) -> None:
    """D-6: also under a cancel with child runs in flight, for every deployment."""
    if ">" in flags and shape not in CHILD_SHAPES:
        return
    life = opened(shape)
    life.restart()
    acts: dict[str, list[Callable[[], object]]] = {
        "canceled": [life.cancel],
        "held": [life.hold],
        "held and canceled": [life.hold, life.cancel],
        "skipped": [lambda: life.resolve("skip", "A")],
        "failed": [lambda: life.resolve("fail", "A")],
        "abandoned": [lambda: life.record(f.RunAbandoned("user", f.Failure("A", "no")))],
    }
    for act in acts.get(then, []):
        act()
    ledger = ledger_of(life.p)
    again = projection_of(decode_ledger(encode_ledger(ledger)))
    assert ledger_of(again) == ledger
    for sign in SIGNS.values():
        for text in (f"X* A{sign}{flags} B", f"A{sign}{flags} X* N B", "X* A B", "X* B", "B"):
            life.deploy(text)
            found, expected = reconcile(again, life.topology), reconcile(life.p, life.topology)
            if "held" not in then:
                assert alike(found) == alike(expected)
            assert type(found) is type(expected)
            mine, its = Lists(life.p, life.topology), Lists(again, life.topology)
            named = set(Lists.__slots__) - {"item_counts"}  # of its items a ledger says no numbers [D-6]
            assert all(getattr(mine, name) == getattr(its, name) for name in named)
            fates = [step.fate for step in explain(again, life.topology).steps]
            assert fates == [step.fate for step in explain(life.p, life.topology).steps]


SENTENCES = {
    "each": ("it has 1 of 3 items done, 1 failed, and pins the run", "its items are done (3 attempts)"),
    "loop": ("it has 1 turn done, and pins the run", "its turns are done (2 attempts)"),
    "child": ("it waits for child runs: 0 of 1 succeeded, and pins the run", "its child run is done"),
    "children": ("it waits for child runs: 1 of 3 succeeded, 1 failed, and pins the run", "its 3 child runs are done"),
}


@EVERY_SHAPE
def test_explain_says_how_far_it_is(shape: str) -> None:
    """E-11."""
    life = opened(shape)
    life.author.terms_of["A"] = Terms(collect=True)
    if shape == "each":
        ended = life.item(0, b"1"), life.item(1, outcomes.Declined(life.item_failure(1)))
        life.items_end(*ended, running=True)
    elif shape == "loop":
        life.items_end(life.item(0, b"1", more=True))
    else:
        life.dispatched({1: f.Failure("A", "no")} if shape == "children" else None)
        life.ends_of = {life.child(0): RunEnd("succeeded", b"1")} if shape == "children" else {}
        life.claim()
    assert explain(life.p, life.topology).steps[1].why == SENTENCES[shape][0]
    goes_on(life)
    assert explain(life.p, life.topology).steps[1].why == SENTENCES[shape][1]
    assert explain(life.p, life.topology).steps[1].fate == "succeeded"


@EVERY_SHAPE
def test_a_unit_that_failed_keeps_its_items_for_the_handler_that_unwinds_in_doubt(shape: str) -> None:
    """U-12, B-22: after a restart, too; and the ledger says that it can."""
    life = opened(shape, "*?")
    life.resolve("fail", "A")
    life.restart()
    plan = life.claim()
    assert plan.next == UnwindOp("A", 1, 1, in_doubt=True)
    assert len(life.p.units["A"].items) == (3 if shape in ("each", "children") else 1)


@pytest.mark.parametrize("attempt", [0, 2, 3])
def test_attempts_of_an_item_rise_by_one(attempt: int) -> None:
    """M-8: per item."""
    life = opened("each")
    life.items_end(life.item(0, outcomes.Raised(life.item_failure(0))), life.item(1, b"1"), running=True)
    with pytest.raises(CorruptJournal):
        fold(refold(life.rows), f.ItemReserved("A", 0, attempt), 9)
    p = refold(life.rows[:-1])
    for fact in life.rows[-1][1]:
        if not isinstance(fact, f.ItemReserved):
            fold(p, fact, 9)
    if attempt != 2:
        with pytest.raises(CorruptJournal, match="does not follow 1"):
            fold(p, f.ItemReserved("A", 0, attempt), 9)


def test_a_release_starts_the_counting_anew_for_items_at_work_and_those_that_wait() -> None:
    """M-5, R-17: of failures and losses; attempts go on from where they were [M-8]."""
    life = opened("each", policy=LATER)
    for _ in range(2):
        life.is_lost()
        life.now_us += 60_000_000
        life.claim()
    life.items_end(life.item(0, outcomes.Raised(life.item_failure(0))), running=True)
    before = life.p.units["A"].entries
    assert [(e.failures, e.lost) for e in before] == [(3, 0), (2, 2), (2, 2)]
    assert before[0].due_us
    attempts = [e.attempts for e in before]
    life.hold()
    life.release()
    after = life.p.units["A"].entries
    assert [(e.failures, e.lost, e.due_us) for e in after] == [(0, 0, 0)] * 3
    assert [e.attempts for e in after] == attempts


def test_an_item_that_asks_for_later_has_a_worker_that_lives() -> None:
    """M-17, M-5: the row of losses ends."""
    life = opened("each", policy=LATER)
    life.is_lost()
    assert life.p.units["A"].entries[0].lost == 1
    life.items_end(life.item(0, outcomes.Postponed(5)), running=True)
    assert (life.p.units["A"].entries[0].lost, life.p.units["A"].entries[0].failures) == (0, 1)


def test_the_longest_due_go_first_and_outdated_dues_are_passed_over() -> None:
    """B-10: however an item came to wait again; what is asked costs as much as what is answered [J-12]."""
    unit = Unit("each", [b"0"] * 6, entries=[Item(1) for _ in range(5)])
    for index, due_us in ((0, 50), (1, 10), (2, 30), (3, 20), (4, 40)):
        unit.back_off(index, due_us)
    assert unit.next == 5
    assert unit.wake_us() == 0  # the sixth was never tried
    unit.entries.append(Item(1))
    assert unit.wake_us() == 10
    assert list(unit.startable(5, 3)) == []
    assert list(unit.startable(40, 3)) == [1, 2, 3]
    assert list(unit.startable(40, 9)) == [1, 2, 3, 4]
    unit.end_backoff(3)  # not the one that is due first
    unit.back_off(3, 60)
    assert list(unit.startable(100, 9)) == [0, 1, 2, 3, 4]
    assert list(unit.startable(50, 9)) == [0, 1, 2, 4]
    unit.end_backoff(1)
    assert unit.wake_us() == 30
    unit.end_all_backoffs()
    assert (unit.wake_us(), list(unit.startable(0, 3))) == (0, [0, 2, 3])
    for index in (0, 2, 3, 4):
        unit.end_backoff(index)
    assert (unit.wake_us(), list(unit.startable(99, 9))) == (None, [])


def drains(life: Life) -> None:
    life.may_start = False


def goes_on_as_it_is(_life: Life) -> None:
    pass


@pytest.mark.parametrize(
    ("bound", "act", "due"),
    [
        (0, Life.hold, None),
        (0, Life.cancel, None),
        (0, drains, None),
        (2, goes_on_as_it_is, None),
        (3, goes_on_as_it_is, "backoff"),
    ],
    ids=["held", "canceled", "draining", "no room", "backs off"],
)
def test_when_an_item_may_start_while_others_run(bound: int, act: Callable[[Life], object], due: str | None) -> None:
    """B-10, R-4, R-17, R-6: at the end of its backoff, if there is room beside them."""
    life = opened("each", policy=LATER)
    life.author.terms_of["A"] = Terms(bound)
    life.items_end(life.item(0, outcomes.Raised(life.item_failure(0))), running=True)
    act(life)
    due_us = life.p.units["A"].entries[0].due_us if due else None
    assert items_due_us(life.p, life.topology, "A", life.setting()) == due_us
