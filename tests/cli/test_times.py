"""Times and durations as people write and read them."""

from __future__ import annotations

import time
from collections.abc import Generator
from datetime import UTC, datetime

import pytest

from perdure.cli import times
from perdure.cli.problems import Problem

SECOND = 1_000_000
HOUR = 3_600 * SECOND


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Let local time be known."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("0", 0),
        ("90", 90 * SECOND),
        ("1.5", 1_500_000),
        ("250ms", 250_000),
        ("7us", 7),
        ("10min", 600 * SECOND),
        ("10m", 600 * SECOND),
        ("1h30m", 5_400 * SECOND),
        ("1h 30m", 5_400 * SECOND),
        ("30D", 30 * 24 * HOUR),
        ("2w", 14 * 24 * HOUR),
    ],
)
def test_durations(text: str, us: int) -> None:
    assert times.parse_duration_us(text, "--delay") == us


@pytest.mark.parametrize("text", ["", " ", "-1", "-5s", "nan", "inf", "1e9", "5 parsecs", "h", "1h?", "200000w", "१s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(Problem) as caught:
        times.parse_duration_us(text, "--delay")
    assert caught.value.message.startswith("--delay: ")


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2027-01-31T18:30", "2027-01-31T17:30:00.000000Z"),
        ("2027-07-31 18:30:05", "2027-07-31T16:30:05.000000Z"),
        ("2027-01-31T18:30+05:00", "2027-01-31T13:30:00.000000Z"),
        ("2027-01-31T18:30Z", "2027-01-31T18:30:00.000000Z"),
        ("2027-01-31", "2027-01-30T23:00:00.000000Z"),
    ],
)
def test_a_time_without_an_offset_is_local(text: str, utc: str) -> None:
    assert times.iso_utc(times.parse_time_us(text, "--start-at")) == utc


@pytest.mark.parametrize("text", ["", "tomorrow", "2027-13-01", "2027-01-31T25:00", "31.1.2027", "0001-01-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(Problem) as caught:
        times.parse_time_us(text, "--start-at")
    assert caught.value.message.startswith("--start-at: ")


def test_a_deadline_is_a_time_or_a_duration() -> None:
    assert times.parse_time_or_duration_us("2h", "--deadline", now=5) == 2 * HOUR + 5
    assert times.parse_past_us("2h", "--since", now=5) == 5 - 2 * HOUR
    assert times.parse_past_us("1970-01-01T02:00Z", "--since", now=5) == 2 * HOUR
    assert times.parse_time_or_duration_us("1970-01-01T02:00Z", "--deadline", now=5) == 2 * HOUR


@pytest.mark.parametrize(
    ("distance_us", "text"),
    [
        (-999_999, "now"),
        (0, "0 s ago"),
        (999_999, "0 s ago"),
        (SECOND, "1 s ago"),
        (119 * SECOND, "119 s ago"),
        (120 * SECOND, "2 min ago"),
        (2 * HOUR, "2 h ago"),
        (47 * HOUR, "47 h ago"),
        (48 * HOUR, "2 d ago"),
        (-90 * SECOND, "in 90 s"),
    ],
)
def test_how_far_away(distance_us: int, text: str) -> None:
    assert times.ago(1_000 * HOUR - distance_us, 1_000 * HOUR) == text


def test_local_time_and_distance() -> None:
    assert times.when(0, 3 * SECOND) == "1970-01-01 01:00:00+01:00 (3 s ago)"
    assert times.iso_utc(1_500) == "1970-01-01T00:00:00.001500Z"
    assert times.iso_utc(None) is None


@pytest.mark.parametrize("zone", ["UTC-14", "UTC+12"])  # as POSIX has it: Kiribati, and Baker Island
def test_every_moment_can_be_shown_everywhere(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """A start at the end of time is accepted, so it is shown; so is what a damaged row has for a time."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    last_us = times.to_us(datetime.max.replace(tzinfo=UTC))
    assert times.iso_local(last_us).startswith("9999-12-31 ")
    for at_us in (last_us, 1 << 62, -(1 << 62)):
        assert times.iso_local(at_us)
        assert times.iso_local_exact(at_us)
        assert times.clock_local(at_us)
        assert times.iso_utc(at_us)
        assert times.when(at_us, 0)
