"""Who is silent: nobody who beats is buried, and whoever does not is found in time [R-3]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.silence import MISSED_RENEWALS, Silence

LEASE_S, INTERVAL_S = 15.0, 5.0
LONGEST_S = INTERVAL_S * MISSED_RENEWALS

Reading = tuple[float, int]
"""When a renewal was sent, and the counter that was read after it, at once."""


def first_found(readings: Sequence[Reading]) -> float | None:
    """When the only other worker was called silent for the first time."""
    silence = Silence(LEASE_S, INTERVAL_S)
    for sent_s, beat in readings:
        if silence.heard({"b": beat}, sent_s, sent_s):
            return sent_s
    return None


@pytest.mark.parametrize(
    ("readings", "found_s"),
    [
        ([(0, 1), (5, 1), (10, 1), (14.9, 1)], None),  # not a whole lease
        ([(0, 1), (5, 1), (10, 1), (15, 1)], 15),
        ([(100, 7), (105, 7), (110, 8), (115, 8), (120, 8), (125, 8)], 125),  # a beat begins it anew
        ([(0, 8), (5, 1), (10, 1), (15, 1), (20, 1)], 20),  # a counter that fell has moved, too
        ([(0, 1), (10, 1), (20, 1)], 20),  # every other renewal lost: time counts all the same
        ([(0, 1), (10.1, 1), (20.2, 1), (30.3, 1), (90, 1)], None),  # two in a row lost: the store, perhaps
        ([(0, 1), (5, 1), (600, 1), (605, 1)], None),  # an hour in which nobody could renew buries nobody
        ([(0, 1), (5, 1), (600, 1), (605, 1), (610, 1)], 610),  # what had counted before it still counts
    ],
)
def test_silence_is_counted_while_own_renewals_succeed(readings: list[Reading], found_s: float | None) -> None:
    assert first_found(readings) == found_s


def test_one_that_was_never_seen_before_has_a_whole_lease() -> None:
    """However long this worker has watched the others."""
    silence = Silence(LEASE_S, INTERVAL_S)
    assert not silence.heard({}, 0, 0)
    assert not silence.heard({"b": 0}, 5, 5)
    assert not silence.heard({"b": 0, "c": 0}, 15, 15)
    assert silence.heard({"b": 0, "c": 0}, 20, 20) == ["b"]
    assert silence.heard({"b": 0, "c": 0}, 30, 30) == ["b", "c"]


def test_one_that_was_gone_is_new_when_it_comes_back() -> None:
    """A row that was away has no past."""
    silence = Silence(LEASE_S, INTERVAL_S)
    for at_s, beats in ((0, {"b": 3}), (5, {"b": 3}), (10, {}), (15, {"b": 3}), (20, {"b": 3}), (25, {"b": 3})):
        assert not silence.heard(beats, at_s, at_s)
    assert silence.heard({"b": 3}, 30, 30) == ["b"]


def test_silence_counts_from_the_answer() -> None:
    """A slow store: the counter may have moved until it was read, and its owner may rely on that for a lease."""
    silence = Silence(LEASE_S, INTERVAL_S)
    assert not silence.heard({"b": 1}, 0, 4)
    assert not silence.heard({"b": 1}, 9, 9)
    assert not silence.heard({"b": 1}, 15, 15)  # eleven seconds after it may have moved
    assert silence.heard({"b": 1}, 19, 19) == ["b"]


# --- in general: two clocks' worth of moments, and a store that takes its time

steps = st.floats(0.01, LEASE_S - 0.01, allow_nan=False)


@dataclass
class Watch:
    """One worker's renewals and readings of another that beats at given times."""

    beats_s: list[float]
    silence: Silence = field(default_factory=lambda: Silence(LEASE_S, INTERVAL_S))

    def read(self, sent_s: float, read_s: float, answered_s: float) -> list[str]:
        """Renew at `sent_s`; the store reads the counter at `read_s`."""
        return self.silence.heard({"b": sum(at_s <= read_s for at_s in self.beats_s)}, sent_s, answered_s)


def moments(gaps: Sequence[float]) -> list[float]:
    """The sums so far."""
    at_s, found = 0.0, list[float]()
    for gap in gaps:
        at_s += gap
        found.append(at_s)
    return found


@given(
    beats=st.lists(steps, min_size=1, max_size=60),
    renewals=st.lists(
        st.tuples(st.floats(0.01, 3 * LONGEST_S), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=40
    ),
)
def test_whoever_beats_once_per_lease_is_never_called_silent(
    beats: list[float], renewals: list[tuple[float, float, float]]
) -> None:
    """R-3: whatever the watcher's renewals, and however slowly the store reads in between."""
    watch = Watch(moments(beats))
    last_s = watch.beats_s[-1]
    sent_s = 0.0
    for gap_s, read_at, answered_at in renewals:
        answered_s = sent_s + gap_s * answered_at  # before the next renewal is sent
        read_s = sent_s + (answered_s - sent_s) * read_at
        if read_s > last_s:
            return  # from here on it does not beat any more
        assert not watch.read(sent_s, read_s, answered_s), f"called silent at {sent_s}, beats {watch.beats_s}"
        sent_s += gap_s


@given(
    beats=st.lists(steps, max_size=10),
    watched_s=st.floats(0, 40),
    gaps=st.lists(st.floats(0.5, INTERVAL_S), min_size=60, max_size=60),
)
def test_whoever_falls_silent_is_found_within_a_lease_and_two_renewals(
    beats: list[float], watched_s: float, gaps: list[float]
) -> None:
    """R-3: where the watcher's own renewals succeed; counted from the last beat, or from when it was first seen."""
    watch = Watch(moments(beats))
    last_s = max(watch.beats_s[-1] if beats else 0.0, watched_s)
    for gap_s in moments(gaps):
        at_s = watched_s + gap_s
        if watch.read(at_s, at_s, at_s):
            assert at_s >= last_s + LEASE_S, "found too early"
            return
        assert at_s < last_s + LEASE_S + 2 * INTERVAL_S, "still not found"


@given(
    gaps=st.lists(st.one_of(st.floats(0.5, LONGEST_S), st.floats(LONGEST_S + 0.1, 3_600)), min_size=1, max_size=60),
)
def test_only_time_between_renewals_that_succeed_counts(gaps: list[float]) -> None:
    """R-3: a watcher that could not renew for longer than two intervals does not know who could."""
    silence = Silence(LEASE_S, INTERVAL_S)
    silence.heard({"b": 0}, 0, 0)
    at_s = counted_s = 0.0
    for gap_s in gaps:
        at_s += gap_s
        counted_s += gap_s if gap_s <= LONGEST_S else 0.0
        if abs(counted_s - LEASE_S) < 1e-6:
            return  # the last bit of a float decides
        assert silence.heard({"b": 0}, at_s, at_s) == (["b"] if counted_s > LEASE_S else [])
