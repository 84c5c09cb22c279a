"""Cron lines in a time zone, and intervals: when a schedule ticks [R-14].

A cron line speaks of local times, and is evaluated on them as if clocks were never changed. Each is then placed in its
zone: one that does not exist there at the next that does, one that comes twice at its first coming. So no line ever
ticks twice for one local time, and none loses a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from perdure.core.ticks import Timetable
from perdure.errors import DefinitionError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_FIRST = datetime(1971, 1, 1)  # noqa: DTZ001  # a local time of no zone, as cron lines speak of
_LAST_YEAR = 9000
"""Beyond it nothing is looked for: calendars end, and conversions with them."""

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def moment(at_us: int, zone: tzinfo = UTC) -> datetime:
    """Microseconds since the epoch as an aware datetime."""
    return (_EPOCH + at_us * _US).astimezone(zone)


def microseconds(at: datetime) -> int:
    """The other way round."""
    return (at - _EPOCH) // _US


class Cron:
    """The ticks of a cron line in a zone.

    Attributes:
        line: five fields, as given or as the nickname stands for.
        text: the whole timetable in words, which `timetable_of` reads.
    """

    __slots__ = ("line", "text", "zone")

    def __init__(self, line: str, zone: ZoneInfo) -> None:
        """Reads and checks the line.

        Raises:
            DefinitionError: it cannot be read, or never comes.
        """
        fields = NICKNAMES.get(line.strip().lower(), line).split()
        if len(fields) != 5:
            raise DefinitionError(
                f"cron {line!r} must have five fields (minute, hour, day of month, month, day of week) or be one of "
                f"{', '.join(NICKNAMES)}; this has {len(fields)}"
            )
        self.line = " ".join(fields)
        self.zone = zone
        self.text = f"cron {self.line} {zone.key}"
        from cronsim import CronSimError  # as below: a start without such a schedule does not wait for it

        try:
            comes = next(self._locals(_FIRST), None)
        except (CronSimError, AssertionError) as error:
            raise DefinitionError(f"cron {line!r}: {str(error).lower() or 'it cannot be read'}") from None
        if comes is None:
            raise DefinitionError(f"cron {line!r} never comes")

    def after(self, at_us: int, /) -> int | None:
        """See `core.ticks.Timetable`."""
        local = moment(at_us, self.zone).replace(tzinfo=None, fold=0)
        for each in self._locals(local):
            tick = self._placed(each)
            if tick > at_us:
                return tick
        return None

    def latest(self, at_us: int, /) -> int | None:
        """See `core.ticks.Timetable`."""
        here = moment(at_us, self.zone)
        first = here.replace(fold=0).utcoffset() or timedelta()
        local = (_EPOCH + at_us * _US + first).replace(tzinfo=None)  # the clock as if it had not been set back
        for each in self._locals(local + _US, backwards=True):
            tick = self._placed(each)
            if tick <= at_us:
                return tick
        return None

    def _locals(self, local: datetime, *, backwards: bool = False) -> Iterator[datetime]:
        """Local times of the line after `local`, or before it."""
        from cronsim import CronSim

        if backwards and not local.microsecond:
            local -= _US
        for each in CronSim(self.line, local, reverse=backwards):
            if not 1 < each.year < _LAST_YEAR:
                return
            yield each

    def _placed(self, local: datetime) -> int:
        """When a local time is: its first coming, or where the gap ends that it lies in."""
        early = local.replace(tzinfo=self.zone, fold=1)
        late = local.replace(tzinfo=self.zone, fold=0)
        # In a gap, and only there, the offset of fold=1 is the greater one.
        if (early.utcoffset() or timedelta()) <= (late.utcoffset() or timedelta()):
            return microseconds(late)
        before, after = microseconds(early) // 1_000_000, microseconds(late) // 1_000_000
        old = moment(before * 1_000_000, self.zone).utcoffset()
        while after - before > 1:
            middle = (before + after) // 2
            if moment(middle * 1_000_000, self.zone).utcoffset() == old:
                before = middle
            else:
                after = middle
        return after * 1_000_000


class Every:
    """A tick each so many microseconds of absolute time, counted from an anchor in both directions."""

    __slots__ = ("anchor_us", "every_us", "text")

    def __init__(self, every_us: int, anchor_us: int) -> None:
        self.every_us = every_us
        self.anchor_us = anchor_us % every_us
        offset = f", offset {_seconds(self.anchor_us)} s" if self.anchor_us else ""
        self.text = f"every {_seconds(every_us)} s{offset}"

    def after(self, at_us: int, /) -> int:
        """See `core.ticks.Timetable`."""
        return self.latest(at_us) + self.every_us

    def latest(self, at_us: int, /) -> int:
        """See `core.ticks.Timetable`."""
        return at_us - (at_us - self.anchor_us) % self.every_us


def ticks_after(timetable: Timetable, at_us: int, count: int) -> list[int]:
    """The first `count` ticks after a time; fewer where there are no more."""
    found: list[int] = []
    following = timetable.after(at_us) if count else None
    while following is not None and len(found) < count:
        found.append(following)
        following = timetable.after(following)
    return found


def timetable_of(text: str) -> Cron | Every | None:
    """What `text` of a timetable stands for; None for one that this release cannot read."""
    words = text.split()
    try:
        if words[0] == "cron":
            return Cron(" ".join(words[1:-1]), ZoneInfo(words[-1]))
        if words[0] == "every":
            return Every(_us(words[1]), _us(words[4]) if len(words) > 4 else 0)
    except (DefinitionError, LookupError, ValueError, OSError):
        return None
    return None


def _seconds(us: int) -> str:
    """Exact, and no longer than it has to be."""
    return f"{us // 1_000_000}.{us % 1_000_000:06}".rstrip("0").rstrip(".") if us % 1_000_000 else str(us // 1_000_000)


def _us(seconds: str) -> int:
    whole, _, part = seconds.partition(".")
    return int(whole) * 1_000_000 + int(part.ljust(6, "0") or 0)
