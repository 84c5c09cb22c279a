"""Which ticks are due: none twice, none too old, none too many [R-14]."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.ticks import LATE_US, Due, Missed, MissedPolicy, due_ticks, key_window_us

MINUTE = 60_000_000
DAY = 1440 * MINUTE


class Listed:
    """A timetable of some ticks."""

    def __init__(self, *ticks: int) -> None:
        self.ticks = sorted(ticks)

    def after(self, at_us: int, /) -> int | None:
        return next((tick for tick in self.ticks if tick > at_us), None)

    def latest(self, at_us: int, /) -> int | None:
        return next((tick for tick in reversed(self.ticks) if tick <= at_us), None)


TEN = Listed(*(n * 10 * MINUTE for n in range(1, 11)))


@pytest.mark.parametrize(
    ("missed", "considered", "now", "due"),
    [
        (Missed(), 5, 9, Due()),
        (Missed(), 10, 10, Due()),
        (Missed(), 9, 10, Due((10,), 10)),  # at the tick itself
        (Missed(), 10, 39, Due((30,), 30, passed_over=True)),
        (Missed(), 20, 39, Due((30,), 30)),
        (Missed(within_us=5 * MINUTE), 20, 39, Due((), 30, passed_over=True)),
        (Missed(within_us=9 * MINUTE), 20, 39, Due((30,), 30)),
        (Missed("skip"), 9, 10, Due((10,), 10)),
        (Missed("skip"), 9, 11, Due((10,), 10)),  # late by a minute is not missed
        (Missed("skip"), 9, 12, Due((), 10, passed_over=True)),
        (Missed("skip"), 0, 20, Due((20,), 20, passed_over=True)),
        (Missed("all"), 0, 45, Due((10, 20, 30, 40), 40)),
        (Missed("all"), 20, 45, Due((30, 40), 40)),
        (Missed("all", limit=2), 0, 45, Due((30, 40), 40, passed_over=True)),
        (Missed("all", limit=4), 0, 45, Due((10, 20, 30, 40), 40)),
        (Missed("all", within_us=20 * MINUTE), 0, 45, Due((30, 40), 40, passed_over=True)),
        (Missed("all", within_us=MINUTE), 0, 45, Due((), 40, passed_over=True)),
        (Missed(), 50, 20, Due()),  # a clock that was set back
    ],
)
def test_due_ticks(missed: Missed, considered: int, now: int, due: Due) -> None:
    """R-14; times in minutes."""
    found = due_ticks(TEN, considered * MINUTE, now * MINUTE, missed)
    wanted = Due(
        tuple(tick * MINUTE for tick in due.ticks),
        None if due.newest is None else due.newest * MINUTE,
        due.passed_over,
    )
    assert found == wanted


POLICIES = st.sampled_from(get_args(MissedPolicy))
MISSED = st.builds(Missed, POLICIES, st.integers(1, 4), st.one_of(st.none(), st.integers(1, 60 * MINUTE)))


@given(
    ticks=st.sets(st.integers(0, 60 * MINUTE), max_size=12),
    looks=st.lists(st.integers(0, 70 * MINUTE), max_size=10),
    missed=MISSED,
)
def test_no_tick_is_due_twice_however_often_one_looks(ticks: set[int], looks: list[int], missed: Missed) -> None:
    """R-14: considering up to the newest tick is enough."""
    timetable, considered, submitted = Listed(*ticks), -1, list[int]()
    for now in sorted(looks):
        due = due_ticks(timetable, considered, now, missed)
        submitted += due.ticks
        considered = considered if due.newest is None else due.newest
        assert all(tick <= now for tick in due.ticks)
    assert submitted == sorted(set(submitted))
    assert set(submitted) <= ticks


@given(
    ticks=st.sets(st.integers(0, 60 * MINUTE), min_size=1, max_size=12),
    first=st.integers(0, 70 * MINUTE),
    second=st.integers(0, 200 * MINUTE),
    missed=MISSED.filter(lambda missed: missed.policy != "all" or missed.within_us is not None),
)
def test_the_key_of_a_tick_stands_as_long_as_the_tick_can_be_due(
    ticks: set[int], first: int, second: int, missed: Missed
) -> None:
    """R-14: who has lost what was considered finds the tick due again only while its key stands."""
    timetable = Listed(*ticks)
    for tick in due_ticks(timetable, -1, first, missed).ticks:
        expires = first + key_window_us(timetable, tick, first, missed)
        again = due_ticks(timetable, -1, expires - DAY + second, missed)
        assert tick not in again.ticks or second <= DAY or timetable.after(tick) is None
        assert expires >= first + DAY


def test_late_is_a_minute() -> None:
    assert LATE_US == MINUTE
