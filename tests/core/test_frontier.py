"""E-4, E-7, U-4, U-5: both frontiers, kept up to date fact by fact, at a cost that does not grow with the run."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from typing import SupportsIndex, TypeVar, overload

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.facts import RunFailed, RunSucceeded
from perdure.core.frontier import View, view_of
from perdure.core.projection import ForwardEntry
from perdure.core.topology import StepSpec, Topology
from tests.core.build import Life, refold, topology
from tests.core.strategies import TOPOLOGIES, lives

T = TypeVar("T")

KEPT = ("frontier", "progressed", "succeeded", "crossed", "unwind_frontier")


@given(lives(), st.sampled_from(TOPOLOGIES))
def test_a_view_kept_up_to_date_is_as_good_as_a_new_one(life: Life, text: str) -> None:
    """E-4, U-5: and what it would record as passed and crossed is the same everywhere."""
    kept = view_of(life.p, life.topology)
    new = View(life.topology, refold(life.rows))
    assert {name: getattr(kept, name) for name in KEPT} == {name: getattr(new, name) for name in KEPT}
    for position in range(kept.frontier + 1, len(life.topology)):
        assert kept.newly_passed(life.p, position) == new.newly_passed(life.p, position)
    for position in range(kept.unwind_frontier):
        assert kept.newly_crossed(life.p, position) == new.newly_crossed(life.p, position)
    other = topology(text)
    assert view_of(life.p, other).topology is other
    assert view_of(life.p, life.topology).frontier == kept.frontier


def test_nothing_done_is_before_the_first_step() -> None:
    """E-4."""
    view = view_of(Life("A B").p, topology("A B"))
    assert (view.frontier, view.progressed, view.unwind_frontier) == (-1, 0, 2)


def test_the_frontier_is_the_greatest_position_of_a_step_that_is_there() -> None:
    """E-4: in the topology of now; succeeded and skipped count, gone ones do not."""
    life = Life("A B& C")
    life.author.false.add("B")
    life.claim()
    life.ok()
    for text, frontier in (("A B C", 1), ("B A C", 1), ("C X A", 2), ("B C D A~ E", 3), ("X B", 1), ("X Y", -1)):
        assert view_of(life.p, topology(text)).frontier == frontier, text


def test_a_view_is_built_once_per_topology() -> None:
    life = Life("A B")
    assert view_of(life.p, life.topology) is view_of(life.p, life.topology)
    assert view_of(life.p, topology("A B")) is not view_of(life.p, life.topology)


# --- cost -------------------------------------------------------------------------------------------------------------


class Visits:
    """How many steps or ledger entries were looked at."""

    def __init__(self) -> None:
        self.count = 0


class CountingTuple(tuple[T, ...]):
    """A tuple that counts its items as they are read."""

    visits: Visits

    @classmethod
    def of(cls, items: tuple[T, ...], visits: Visits) -> CountingTuple[T]:
        made = cls(items)
        made.visits = visits
        return made

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> T: ...
    @overload
    def __getitem__(self, key: slice, /) -> tuple[T, ...]: ...
    def __getitem__(self, key: SupportsIndex | slice, /) -> T | tuple[T, ...]:
        self.visits.count += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[T]:
        self.visits.count += len(self)
        return super().__iter__()


class CountingLedger(dict[str, ForwardEntry]):
    """A ledger that counts its entries as they are walked over."""

    visits: Visits

    def __iter__(self) -> Iterator[str]:
        self.visits.count += len(self)
        return super().__iter__()

    def items(self) -> ItemsView[str, ForwardEntry]:  # type: ignore[override] # a view is all that is asked for
        self.visits.count += len(self)
        return super().items()


def counted(life: Life, steps: Topology) -> Visits:
    """Count from now on what the core looks at."""
    visits = Visits()
    steps.steps = CountingTuple[StepSpec].of(steps.steps, visits)
    steps.ids = CountingTuple[str].of(steps.ids, visits)
    ledger = CountingLedger(life.p.forward)
    ledger.visits = visits
    life.p.forward = ledger
    life.topology = steps
    return visits


LENGTH = 10_000


def test_counting_sees_a_full_walk() -> None:
    life = Life("A B C")
    visits = counted(life, topology("A B C"))
    list(life.topology.steps)
    assert life.topology.ids[1:] == ("B", "C")
    assert life.topology.steps[0].id == "A"
    assert visits.count == 6


@pytest.mark.parametrize("flags", ["", "&"])
def test_a_step_costs_the_same_at_the_start_and_at_the_end_of_a_long_run(flags: str) -> None:
    """E-6, J-12: steps visited per step are few, and as few in the last thousand as in the first."""
    life = Life("")
    visits = counted(life, topology(" ".join(f"s{i}{flags}" for i in range(LENGTH))))
    life.claim()
    by_thousand: list[int] = []
    for _ in range(10):
        before = visits.count
        for _ in range(LENGTH // 10):
            life.ok()
        by_thousand.append(visits.count - before)
    assert isinstance(life.p.ended, RunSucceeded)
    assert max(by_thousand[:-1]) == min(by_thousand[:-1]) <= 3 * LENGTH // 10
    assert by_thousand[-1] <= by_thousand[0] + LENGTH + 10  # the end names what is in doubt: once


def test_a_retry_costs_the_same_however_often() -> None:
    """E-2: a pin is found without looking around."""
    life = Life("")
    visits = counted(life, topology(" ".join(f"s{i}" for i in range(LENGTH))))
    life.claim()
    for _ in range(LENGTH // 2):
        life.ok()
    before = visits.count
    for _ in range(1_000):
        life.raises()
    assert life.p.attempts("forward", f"s{LENGTH // 2}") == 1_001
    assert visits.count - before <= 2 * 1_000


def test_unwinding_costs_the_same_at_both_ends() -> None:
    """U-3, U-5: every step is passed over once, and recorded as crossed once."""
    life = Life("")
    visits = counted(life, topology(" ".join(f"s{i}{'*' if i % 3 else ''}" for i in range(LENGTH))))
    life.claim()
    for _ in range(LENGTH - 1):
        life.ok()
    life.fails()
    before = visits.count
    while life.op is not None:
        life.ok()
    assert isinstance(life.p.ended, RunFailed)
    assert visits.count - before <= 6 * LENGTH


def test_retired_and_passed_steps_ahead_are_passed_over_once() -> None:
    """E-7, E-9: a long stretch of them is no burden for the steps that follow."""
    life = Life("")
    words = ["s0", *(f"r{i}~" for i in range(LENGTH // 2)), *(f"s{i}" for i in range(1, LENGTH // 2))]
    visits = counted(life, topology(" ".join(words)))
    life.claim()
    life.ok()
    assert len(life.p.passed) == LENGTH // 2
    before = visits.count
    for _ in range(1_000):
        life.ok()
    assert visits.count - before <= 3 * 1_000
