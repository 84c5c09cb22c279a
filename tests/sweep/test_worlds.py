"""The worlds of the sweep are what they claim to be: legal, distinct, and not fewer than they were."""

from __future__ import annotations

from tests.sweep.oracle import apply, decide_known, declare, read
from tests.sweep.sweep import sweep
from tests.sweep.vocabulary import Decision, EndFailure, Lists, Topology, Unwind, World
from tests.sweep.worlds import (
    ALL_FLAGS,
    FOREIGN_FLAGS,
    CanonicalLedger,
    as_the_rules_see,
    canonical,
    open_steps,
    reachable,
    recorded,
    topologies,
)


def test_every_history_of_a_small_world_is_legal_and_leads_to_its_ledger() -> None:
    ledgers: set[CanonicalLedger] = set()
    for reached in reachable("AB", "X", fine=True):
        world: World = ()
        for happened in reached.history:
            world = apply(world, happened.topology, happened.event)
        ledger = canonical(read(world), world)
        assert ledger == canonical(reached.known, reached.history)
        ledgers.add(ledger)
    assert len(ledgers) == 1_934  # exactly: an enumeration that shrinks proves less and fails here


def test_every_history_with_waits_and_units_is_legal_and_leads_to_its_ledger() -> None:
    ledgers: set[CanonicalLedger] = set()
    for reached in reachable("AB", fine=True, shaped=True):
        world: World = ()
        for happened in reached.history:
            world = apply(world, happened.topology, happened.event)
        ledger = canonical(read(world), world)
        assert ledger == canonical(reached.known, reached.history)
        ledgers.add(ledger)
    assert len(ledgers) == 2_452


def test_two_steps_and_all_their_flags_make_85_topologies() -> None:
    found = topologies(("A", ALL_FLAGS), ("B", ALL_FLAGS))
    assert len(found) == len(set(found)) == 85


def test_what_a_history_records_adds_up_to_its_ledger() -> None:
    """E-7, U-4: the newly passed and crossed ids are disjoint, and together all that the ledger holds."""
    for reached in reachable("AB", "X", fine=True):
        rows = list(recorded(reached.history))
        assert sum(len(row.passed) for row in rows) == len(reached.known.passed)
        assert sum(len(row.crossed) for row in rows) == len(reached.known.crossed)
        assert frozenset[str]().union(*(row.passed for row in rows)) == reached.known.passed
        assert frozenset[str]().union(*(row.crossed for row in rows)) == reached.known.crossed


def test_the_rules_see_no_difference_between_topologies_that_are_asked_about_once() -> None:
    """E-4 to E-9, U-2, U-3: in each phase the flags of the other change no decision."""
    after = topologies(("A", ALL_FLAGS), ("B", ALL_FLAGS), ("X", FOREIGN_FLAGS))
    for reached in reachable("AB", "X", fine=True)[::97]:
        known, unwinding = reached.known, reached.known.failed_at is not None
        for topology in after:
            seen = as_the_rules_see(topology, unwinding=unwinding)
            assert decide_known(known, seen) == decide_known(known, topology)
            assert open_steps(known, seen) == open_steps(known, topology) or not unwinding


def test_a_sweep_reports_a_judge_that_is_wrong_and_only_such_a_one() -> None:
    """U-2: a judge that never unwinds is found out; one that follows the rules is not."""

    def right(ledger: CanonicalLedger, topology: Topology) -> Decision:
        known = read(ledger.history)
        known.ever_unwind |= ledger.ever_unwind
        known.ever_in_doubt |= ledger.ever_in_doubt
        declare(known, topology)
        return decide_known(known, topology)

    def never_unwinds(ledger: CanonicalLedger, topology: Topology) -> Decision:
        decision = right(ledger, topology)
        return EndFailure("A", Lists()) if isinstance(decision, Unwind) else decision

    assert sweep("four-sample", right, seed=1, walks=40).differences == []
    report = sweep("four-sample", never_unwinds, seed=1, walks=40, differences=3)
    assert len(report.differences) == 3
    assert all(isinstance(difference.question.expected, Unwind) for difference in report.differences)
    assert "the rules say Unwind" in str(report.differences[0])
