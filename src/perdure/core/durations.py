"""Durations as people write them, seconds or `timedelta`, turned into whole microseconds or refused."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeAlias

Duration: TypeAlias = float | timedelta
"""Seconds, or a `timedelta`."""

MAX_DURATION_US = 1_000 * 365 * 86_400 * 1_000_000
"""A thousand years: more is a mistake, and this much still fits beside any date in 64 bits."""

_MICROSECOND = timedelta(microseconds=1)


def duration_us(value: object) -> int:
    """Microseconds of `value`, seconds or a `timedelta`; zero is a duration.

    Raises:
        ValueError: not a number or `timedelta`, not finite, negative, or longer than a thousand years. The message
            completes a sentence that begins with the name of what was given.
    """
    if isinstance(value, timedelta):
        us = value // _MICROSECOND
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"must be seconds or a timedelta, not {type(value).__name__}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be finite, not {value}")
    elif abs(value) > MAX_DURATION_US // 1_000_000:
        us = MAX_DURATION_US + 1 if value > 0 else -1
    else:
        us = round(value * 1_000_000)
        us = us or (value > 0) - (value < 0)  # what was not zero does not become it
    if us < 0:
        raise ValueError("must not be negative")
    if us > MAX_DURATION_US:
        raise ValueError("must not be longer than a thousand years")
    return us
