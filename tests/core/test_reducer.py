"""J-8: folding is total over legal histories and loud about all others; nothing else changes a projection."""

from __future__ import annotations

import copy
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import facts as f
from perdure.core.explain import explain
from perdure.core.facts import Fact
from perdure.core.projection import Projection
from perdure.core.reconciler import Lists, reconcile
from perdure.core.reducer import fold, fold_all
from perdure.errors import CorruptJournal
from tests.core.build import AT_ONCE, RUN, Life, content, refold, submitted, topology
from tests.core.states import CANDIDATES, STANDS, Stand
from tests.core.strategies import FACTS, TOPOLOGIES, lives


def refusal(p: Projection, fact: Fact) -> CorruptJournal | None:
    """Fold a fact; the error if it cannot follow."""
    try:
        fold(p, fact, 99)
    except CorruptJournal as error:
        return error
    return None


@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.name)
def test_every_fact_at_every_stand_follows_or_is_refused(stand: Stand) -> None:
    """J-8: exactly these facts may follow; all others raise `CorruptJournal`, never anything else."""
    rows = stand.make().rows
    accepted: set[str] = set()
    for name, fact in CANDIDATES.items():
        p = refold(rows)
        version = p.version
        refused = refusal(p, fact)
        if refused is not None:
            assert (refused.run_id, refused.seq) == (RUN, version + 1)
            assert type(fact).__name__ in refused.problem
            continue
        accepted.add(name)
        assert p.version == version + 1
        if p.submitted is not None:
            for text in TOPOLOGIES:  # and whatever was accepted can be reconciled and explained
                reconcile(p, topology(text))
                explain(p, topology(text))
                Lists(p, topology(text))
    assert accepted == stand.legal


def test_the_candidates_are_of_every_type_and_each_follows_somewhere() -> None:
    assert {type(fact) for fact in CANDIDATES.values()} == set(get_args(Fact))
    legal = set[str]().union(*(stand.legal for stand in STANDS))
    assert legal <= set(CANDIDATES)
    followed = {type(CANDIDATES[name]) for name in legal}
    assert followed == set(get_args(Fact)) - {f.RunFailed}  # the outcome committed there is a success


@given(lives(most=25), st.one_of(*FACTS.values()))
def test_any_fact_after_any_life_follows_or_is_refused(life: Life, fact: Fact) -> None:
    """J-8."""
    try:
        fold(life.p, fact, 99)
    except CorruptJournal:
        return
    for text in TOPOLOGIES:
        reconcile(life.p, topology(text))
        explain(life.p, topology(text))


@given(st.lists(st.one_of(*FACTS.values()), max_size=6))
def test_any_facts_at_all_follow_or_are_refused(made: list[Fact]) -> None:
    p = Projection(RUN)
    fold(p, submitted(), 1)
    try:
        fold_all(p, made, 2)
    except CorruptJournal:
        return
    assert p.version == 1 + len(made)


@given(lives())
def test_folding_changes_no_fact_and_keeps_none_of_its_parts(life: Life) -> None:
    """J-1, M-2, M-7: the same facts fold to the same projection twice, and they are as they were."""
    before = copy.deepcopy(life.facts)
    first = refold(life.rows)
    assert life.facts == before
    assert content(refold(life.rows)) == content(first)
    assert content(first) == content(life.p)


def test_the_error_names_run_sequence_and_fact() -> None:
    """J-8."""
    life = Life("A")
    life.claim()
    with pytest.raises(CorruptJournal) as caught:
        fold(life.p, f.OperationSucceeded("B", 1), 9)
    assert str(caught.value) == (
        "journal of run run-1 is corrupt at fact 4: OperationSucceeded: attempt 1 of 'B' is not open"
    )


def test_a_journal_begins_with_the_submission_of_its_run() -> None:
    """J-8, M-2."""
    for fact in CANDIDATES.values():
        p = Projection(RUN)
        if fact == submitted():
            fold(p, fact, 1)
            with pytest.raises(CorruptJournal, match="only the first fact submits a run"):
                fold(p, fact, 1)
        else:
            with pytest.raises(CorruptJournal):
                fold(p, fact, 1)


def test_a_fencing_token_only_rises() -> None:
    """J-7, R-3."""
    p = Life("A").p
    fold(p, f.SegmentAttemptStarted(5, "w", 3), 1)
    for token in (5, 4, 0, -1):
        with pytest.raises(CorruptJournal, match=f"token {token} does not rise above 5"):
            fold(copy.copy(p), f.SegmentAttemptStarted(token, "w", 3), 1)
    fold(p, f.SegmentAttemptStarted(7, "v", 2), 1)
    assert (p.token, p.worker, p.generation) == (7, "v", 3), "D-4: the newest generation that ever advanced the run"


@pytest.mark.parametrize("attempt", [-1, 0, 1, 3])
def test_attempts_rise_by_one(attempt: int) -> None:
    """M-8: never reused, never left out."""
    life = Life("A")
    life.claim()
    p = refold(life.rows)
    fold(p, f.OperationRetryScheduled("A", 1, "error", 0), 9)
    with pytest.raises(CorruptJournal, match=f"attempt {attempt} does not follow 1"):
        fold(p, f.OperationReserved("A", attempt), 9)


def test_forward_and_unwind_attempts_count_apart() -> None:
    """M-8."""
    life = Life("A* B")
    life.claim()
    life.raises()
    life.ok()
    plan = life.fails()
    assert isinstance(plan.facts[-1], f.OperationReserved)
    assert (plan.facts[-1].phase, plan.facts[-1].attempt) == ("unwind", 1)


def test_one_attempt_of_a_run_is_open_at_a_time() -> None:
    """R-1: not two of one operation, not one of each phase."""
    life = Life("A* B* C")
    for plan in (life.claim, life.ok, life.ok, life.fails):
        plan()
        if life.op is None:
            break
        for fact in (f.OperationReserved("A", 2), f.OperationReserved("A", 1, "unwind"), f.OperationReserved("D", 1)):
            with pytest.raises(CorruptJournal):
                fold(refold(life.rows), fact, 9)


def test_a_resolution_closes_the_attempt_even_of_a_dropped_unwind() -> None:
    """R-17, U-7: the unwind of B runs while its handler is deployed away, and an operator resolves the one of A."""
    life = Life("A* B* C")
    for act in (life.claim, life.ok, life.ok, life.fails):
        act()
    life.deploy("A* B C")
    life.resolve("fail", "A")
    assert life.p.current is not None
    assert not life.p.current.open
    with pytest.raises(CorruptJournal, match="is not open"):
        fold(refold(life.rows), f.OperationSucceeded("B", 1, phase="unwind"), 9)


def test_a_memo_is_written_once() -> None:
    """M-15: key step, phase and name."""
    life = Life("A")
    life.claim()
    life.memo("m", b"1")
    with pytest.raises(CorruptJournal, match="memo 'm' is taken"):
        life.memo("m", b"1")


def test_a_terminal_fact_is_the_last() -> None:
    """J-6, M-12."""
    life = Life("A")
    life.claim()
    life.ok()
    for fact in CANDIDATES.values():
        with pytest.raises(CorruptJournal, match="nothing follows a terminal fact|only the first"):
            fold(refold(life.rows), fact, 9)


def test_after_the_outcome_only_the_matching_end_follows() -> None:
    """E-10, M-12: no deployment and no cancel changes it."""
    life = Life("A")
    life.claim()
    life.ok()
    at_us, last = life.rows[-1]
    rows = [*life.rows[:-1], (at_us, last[:-1])]
    p = refold(rows)
    assert p.outcome is not None
    with pytest.raises(CorruptJournal, match="the outcome is committed"):
        fold(p, f.RunCancelRequested("user"), 9)
    with pytest.raises(CorruptJournal, match="does not match the committed outcome"):
        fold(refold(rows), f.RunFailed(f.Failure("A", "no")), 9)
    fold(p := refold(rows), f.RunSucceeded(), 9)
    assert p.ended == f.RunSucceeded()


def test_a_release_starts_the_counting_anew() -> None:
    """M-5, R-17: of failures and of losses; attempts go on from where they were [M-8]."""
    life = Life("A", AT_ONCE)
    life.claim()
    for _ in range(3):
        life.raises()
    life.is_lost()
    assert life.p.current is not None
    assert (life.p.current.failures, life.p.current.lost, life.p.current.attempt) == (4, 1, 5)
    life.hold()
    life.release()
    assert life.p.current is not None
    assert (life.p.current.failures, life.p.current.lost, life.p.current.attempt) == (0, 0, 5)


def test_losses_in_a_row_end_with_an_answer() -> None:
    """M-5: an error in between breaks the row, but counts as a failure."""
    life = Life("A")
    life.claim()
    life.is_lost()
    life.is_lost()
    life.raises()
    assert life.p.current is not None
    assert (life.p.current.failures, life.p.current.lost) == (3, 0)
    assert life.p.current.last_failure is not None
    assert life.p.current.last_failure.reason == "error"


def test_another_operation_counts_from_nothing() -> None:
    life = Life("A* B")
    life.claim()
    life.raises()
    life.ok()
    assert life.p.current is not None
    assert (life.p.current.step, life.p.current.failures) == ("B", 0)
    life.raises()
    life.fails()
    assert life.p.current is not None
    assert (life.p.current.step, life.p.current.phase, life.p.current.failures) == ("A", "unwind", 0)


def test_a_hold_by_policy_ends_with_its_operation_and_an_operators_does_not() -> None:
    """R-17."""
    policy = type(AT_ONCE)(initial=0, cap=0, jitter=0, max_attempts=1)
    life = Life("A B", policy)
    life.claim()
    life.raises()
    assert life.p.held is not None
    assert life.p.held.step == "A"
    life.resolve("value")
    assert life.p.held is None
    life.hold()
    life.resolve("value")
    assert life.p.held is not None
