"""Times and durations as people write and read them. All times inside are microseconds since the epoch, UTC."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from perdure.cli.problems import refuse

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|m|h|d|w)", re.ASCII)
_LONGEST_US = 100 * 365 * _UNITS_US["d"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """The time of now."""
    return time.time_ns() // 1_000


def parse_duration_us(text: str, name: str) -> int:
    """`30d`, `1h30m`, `250ms`; a bare number is seconds.

    Args:
        text: what the user wrote.
        name: the option, for the message.
    """
    clean = text.strip().lower()
    amount: float | None = None
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", clean):
        amount = float(clean) * _UNITS_US["s"]
    elif re.fullmatch(rf"({_PART.pattern}\s*)+", clean, re.ASCII):
        amount = sum(float(number) * _UNITS_US[unit] for number, unit in _PART.findall(clean))
    if amount is None:
        refuse(f"{name}: {text!r} is not a duration", "write it like 30d, 12h, 1h30m, 90s or 250ms")
    if amount > _LONGEST_US:
        refuse(f"{name}: {text!r} is longer than a hundred years")
    return round(amount)


def parse_time_us(text: str, name: str) -> int:
    """An ISO date or time; without an offset it is local time."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return to_us(moment.astimezone(UTC))
    except (ValueError, OverflowError, OSError):
        refuse(
            f"{name}: {text!r} is not a time", "write it like 2027-01-31, 2027-01-31T18:30 or 2027-01-31T18:30+01:00"
        )


def parse_time_or_duration_us(text: str, name: str, now: int) -> int:
    """A time, or a duration from now on."""
    if re.match(r"\s*\d{4}-", text):
        return parse_time_us(text, name)
    return now + parse_duration_us(text, name)


def parse_past_us(text: str, name: str, now: int) -> int:
    """A time, or a duration back from now."""
    if re.match(r"\s*\d{4}-", text):
        return parse_time_us(text, name)
    return now - parse_duration_us(text, name)


def to_us(moment: datetime) -> int:
    """Microseconds since the epoch of an aware datetime, exactly."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def to_datetime(at_us: int) -> datetime:
    """The aware datetime, UTC; what is beyond all calendars is the first or the last moment there is."""
    try:
        return EPOCH + timedelta(microseconds=at_us)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if at_us > 0 else datetime.min.replace(tzinfo=UTC)


def _local(at_us: int) -> datetime:
    """Local time, or UTC where that is no date any more."""
    moment = to_datetime(at_us)
    try:
        return moment.astimezone()
    except (OverflowError, ValueError, OSError):
        return moment


def iso_utc(at_us: int | None) -> str | None:
    """For JSON: `2027-01-31T17:30:00.000000Z`; None stays None."""
    if at_us is None:
        return None
    return to_datetime(at_us).strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


def iso_local(at_us: int) -> str:
    """For people: local time to the second, with its offset."""
    return _local(at_us).isoformat(sep=" ", timespec="seconds")


def iso_local_exact(at_us: int) -> str:
    """For people who look at single facts: local time to the millisecond."""
    return _local(at_us).isoformat(sep=" ", timespec="milliseconds")


def clock_local(at_us: int) -> str:
    """For a view of now: local time of day to the second."""
    return _local(at_us).strftime("%H:%M:%S")


def ago(at_us: int, now: int) -> str:
    """How far away a time is: `3 min ago`, `0 s ago`, `in 2 h`, and `now` for less than a second ahead."""
    distance = now - at_us
    if abs(distance) < 1_000_000:
        return "now" if distance < 0 else "0 s ago"
    text = span(abs(distance))
    return f"{text} ago" if distance > 0 else f"in {text}"


def span(length_us: int) -> str:
    """A length of time in its one fitting unit: `3 min`."""
    for unit, size in (("d", "d"), ("h", "h"), ("min", "min"), ("s", "s"), ("ms", "ms")):
        if length_us >= _UNITS_US[size] * (2 if unit in {"d", "h", "min"} else 1):
            return f"{length_us // _UNITS_US[size]} {unit}"
    return f"{length_us} us"


def when(at_us: int, now: int) -> str:
    """Local time and distance: `2027-01-31 18:30:00+01:00 (3 min ago)`."""
    return f"{iso_local(at_us)} ({ago(at_us, now)})"
