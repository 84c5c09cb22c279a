"""When schedules tick: cron lines through both changes of the clock, leap days, odd zones, intervals [R-14]."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.define.timetable import NICKNAMES, Cron, Every, microseconds, moment, timetable_of
from perdure.errors import DefinitionError

BERLIN = ZoneInfo("Europe/Berlin")


def ticks(line: str, start: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    """The first ticks after a local time, forwards; the same is asked for backwards."""
    cron = Cron(line, ZoneInfo(zone))
    at: int | None = microseconds(datetime.fromisoformat(start).replace(tzinfo=cron.zone))
    found: list[int] = []
    for _ in range(count):
        assert at is not None
        at = cron.after(at)
        assert at is not None
        found.append(at)
    back, last = list[int](), found[-1]
    for _ in range(count):
        latest = cron.latest(last)
        assert latest is not None
        back.append(latest)
        last = latest - 1
    assert back[::-1] == found
    return [moment(tick, cron.zone).isoformat(timespec="minutes") for tick in found]


def test_a_local_time_that_does_not_exist_ticks_at_the_next_that_does() -> None:
    """R-14: not an hour later, not at all, or on the day before."""
    assert ticks("30 2 * * *", "2026-03-28T00:00", 3) == [
        "2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00",
    ]  # fmt: skip


def test_all_local_times_of_a_gap_tick_once_together() -> None:
    """R-14: 2:00, 2:15, 2:30, 2:45 and 3:00 are one tick."""
    assert ticks("*/15 * * * *", "2026-03-29T01:20", 4) == [
        "2026-03-29T01:30+01:00", "2026-03-29T01:45+01:00", "2026-03-29T03:00+02:00", "2026-03-29T03:15+02:00",
    ]  # fmt: skip


def test_a_local_time_that_comes_twice_ticks_once_the_first_time() -> None:
    """R-14."""
    assert ticks("30 2 * * *", "2026-10-24T00:00", 3) == [
        "2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00",
    ]  # fmt: skip
    assert ticks("*/30 * * * *", "2026-10-25T01:40", 3) == [
        "2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T03:00+01:00",
    ]  # fmt: skip


def test_within_the_hour_that_comes_twice_the_latest_tick_is_of_its_first_coming() -> None:
    """R-14: who looks in the second coming has missed nothing, and nothing is ahead before the hour ends."""
    second = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)
    cron = Cron("*/5 * * * *", BERLIN)
    assert cron.latest(microseconds(second)) == microseconds(datetime(2026, 10, 25, 2, 55, tzinfo=BERLIN, fold=0))
    assert cron.after(microseconds(second)) == microseconds(datetime(2026, 10, 25, 3, 0, tzinfo=BERLIN))


def test_a_day_that_does_not_exist_ticks_when_the_next_begins() -> None:
    """R-14: Samoa went from the 29th to the 31st."""
    assert ticks("0 12 * * *", "2011-12-28T13:00", 3, "Pacific/Apia") == [
        "2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T12:00+14:00",
    ]  # fmt: skip


def test_half_an_hour_is_a_gap_too() -> None:
    """R-14: Lord Howe moves its clocks by thirty minutes."""
    assert ticks("15 2 * * *", "2026-10-03T03:00", 2, "Australia/Lord_Howe") == [
        "2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00",
    ]  # fmt: skip


def test_leap_days_and_last_days() -> None:
    assert ticks("0 0 29 2 *", "2026-01-01T00:00", 2) == ["2028-02-29T00:00+01:00", "2032-02-29T00:00+01:00"]
    assert ticks("0 0 L 2 *", "2026-01-01T00:00", 3) == [
        "2026-02-28T00:00+01:00", "2027-02-28T00:00+01:00", "2028-02-29T00:00+01:00",
    ]  # fmt: skip


def test_a_day_of_month_and_a_day_of_week_tick_on_either() -> None:
    assert ticks("0 9 1 * MON", "2026-06-01T10:00", 3) == [
        "2026-06-08T09:00+02:00", "2026-06-15T09:00+02:00", "2026-06-22T09:00+02:00",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NICKNAMES)
def test_nicknames(name: str) -> None:
    assert Cron(name, BERLIN).line == NICKNAMES[name]


LINES = ("*/7 * * * *", "30 1,2,3 * * *", "15 */2 * * *", "0 0 L * *", "45 23 * * FRI", "0 0 29 2 *", "59 1-3 * 3,10 *")
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kolkata", "UTC")


@given(
    line=st.sampled_from(LINES),
    zone=st.sampled_from(ZONES),
    near=st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001  # made aware below
    month=st.sampled_from((None, 3, 4, 10, 11)),
)
def test_forwards_and_backwards_agree(line: str, zone: str, near: datetime, month: int | None) -> None:
    """R-14: between two neighbouring ticks every look finds the same two."""
    at = near.replace(tzinfo=UTC)
    if month is not None:  # where clocks change
        at = at.replace(month=month, day=min(at.day, 28), minute=0, second=0, microsecond=0)
    cron, now = Cron(line, ZoneInfo(zone)), microseconds(at)
    before, after = cron.latest(now), cron.after(now)
    assert before is not None
    assert after is not None
    assert before <= now < after
    assert cron.after(before) == after
    assert cron.latest(after) == after
    assert cron.latest(after - 1) == before


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"),
        ("", "five fields"),
        ("61 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("a b c d e", "bad minute"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 0 31 * 1#9", "bad day-of-week"),
        ("@fortnightly", "five fields"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused(line: str, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        Cron(line, BERLIN)


@given(st.text(alphabet="0123456789*/,-#LWMONJAN? \t", max_size=20))
def test_no_line_does_anything_but_tick_or_be_refused(line: str) -> None:
    try:
        cron = Cron(line, BERLIN)
    except DefinitionError:
        return
    after = cron.after(0)
    assert after is None or after > 0


# --- intervals


@given(every=st.integers(1_000_000, 10**13), anchor=st.integers(-(10**16), 10**16), now=st.integers(0, 4 * 10**15))
def test_intervals_are_counted_from_their_anchor_both_ways(every: int, anchor: int, now: int) -> None:
    """R-14: absolute time, whenever the engine started."""
    timetable = Every(every, anchor)
    before, after = timetable.latest(now), timetable.after(now)
    assert before <= now < after == before + every
    assert (before - anchor) % every == 0


def test_an_interval_takes_no_note_of_clocks() -> None:
    day = Every(timedelta(days=1) // timedelta(microseconds=1), microseconds(datetime(2026, 1, 1, 3, tzinfo=BERLIN)))
    summer = day.after(microseconds(datetime(2026, 7, 1, tzinfo=BERLIN)))
    assert moment(summer, BERLIN).hour == 4


@pytest.mark.parametrize(
    "timetable",
    [Cron("@daily", BERLIN), Cron("*/5 1-3 * * MON", ZoneInfo("UTC")), Every(1_500_000, 7), Every(1_000_001, 0)],
)
def test_a_timetable_is_read_back_from_its_words(timetable: Cron | Every) -> None:
    again = timetable_of(timetable.text)
    assert again is not None
    assert again.text == timetable.text
    assert again.after(10**15) == timetable.after(10**15)


@pytest.mark.parametrize("text", ["", "cron", "cron 0 0 * * * Nowhere/Land", "cron x UTC", "every", "lunar 3"])
def test_words_of_another_release_are_not_understood(text: str) -> None:
    assert timetable_of(text) is None
