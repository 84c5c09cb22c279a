"""Which ticks of a schedule are to be submitted now; times passed in [R-14].

A *tick* is a point in time at which a schedule submits a run: whole microseconds since 1970, UTC. The state of a
schedule says up to which time its ticks have been considered; those after it, up to now, are due, less what the author
does not want made up for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol, TypeAlias

import msgspec

MissedPolicy: TypeAlias = Literal["latest", "skip", "all"]
"""What becomes of ticks that passed while nobody could submit them."""

LATE_US = 60_000_000
"""Up to a minute late is late, not missed: an engine that restarts at a tick has not missed it."""

_DAY_US = 86_400_000_000


class Timetable(Protocol):
    """When a schedule ticks. Pure: the same question has the same answer for ever."""

    def after(self, at_us: int, /) -> int | None:
        """The first tick after `at_us`; None if there is none."""
        ...

    def latest(self, at_us: int, /) -> int | None:
        """The last tick at or before `at_us`; None if there is none."""
        ...


class Missed(msgspec.Struct, frozen=True):
    """What to do about ticks that were missed.

    Attributes:
        policy: `latest`: submit the newest tick that is due; `skip`: the same, unless it is more than a minute late;
            `all`: every one.
        limit: with `all`, the newest so many.
        within_us: none that is older; None: however old.
    """

    policy: MissedPolicy = "latest"
    limit: int = 100
    within_us: int | None = None


class Due(msgspec.Struct, frozen=True):
    """What is due of a schedule.

    Attributes:
        ticks: to submit, oldest first.
        newest: the newest tick that has passed, submitted or not; None if none has since the last consideration.
        passed_over: ticks have passed that are not submitted.
    """

    ticks: tuple[int, ...] = ()
    newest: int | None = None
    passed_over: bool = False


def due_ticks(timetable: Timetable, considered_us: int, now_us: int, missed: Missed) -> Due:
    """The ticks after `considered_us`, up to `now_us`, that are to be submitted [R-14]."""
    newest = timetable.latest(now_us)
    if newest is None or newest <= considered_us:
        return Due()
    oldest_us = considered_us + 1
    if missed.within_us is not None:
        oldest_us = max(oldest_us, now_us - missed.within_us)
    if missed.policy == "skip":
        oldest_us = max(oldest_us, now_us - LATE_US)
    limit = missed.limit if missed.policy == "all" else 1
    ticks: list[int] = []
    for tick in _backwards(timetable, newest):
        if tick < oldest_us or len(ticks) == limit:
            return Due(tuple(reversed(ticks)), newest, passed_over=tick > considered_us)
        ticks.append(tick)
    return Due(tuple(reversed(ticks)), newest)


def _backwards(timetable: Timetable, tick: int | None) -> Iterator[int]:
    while tick is not None:
        yield tick
        tick = timetable.latest(tick - 1)


def key_window_us(timetable: Timetable, tick: int, now_us: int, missed: Missed) -> int:
    """How long the key of a tick has to stand so that no engine that looks later can submit the tick again.

    As long as `due_ticks` could find the tick, if its consideration was lost, and a day for clocks that disagree.
    """
    if missed.policy == "all" and missed.within_us is not None:
        last_us = tick + missed.within_us
    else:
        following = timetable.after(tick)
        last_us = tick + 365 * _DAY_US if following is None else following
    return max(last_us - now_us, 0) + _DAY_US
