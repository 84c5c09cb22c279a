"""Lifecycle events for metrics, logs and progress views [R-15]."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import msgspec

EventKind: TypeAlias = Literal[
    "submitted",
    "claimed",
    "attempt-started",
    "attempt-succeeded",
    "attempt-failed",
    "retry-scheduled",
    "late",
    "held",
    "invalid",
    "corrupt",
    "released",
    "succeeded",
    "failed",
    "canceled",
    "uncompensated",
    "overdue",
    "stuck",
    "blocked",
    "store-trouble",
    "tick-failed",
    "tick-skipped",
]


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Something happened in this process, after it was durable.

    Attributes:
        kind: what. `late`: an attempt ended after it was resolved otherwise; its end is dropped. `overdue`: a run
            started more than a minute after it was due. `stuck`: an attempt has been running for a very long time.
            `blocked`: a handler keeps the event loop from running. `uncompensated`: a run ended and left effects.
            `tick-failed`: what a schedule wants could not be submitted; it is tried again. `tick-skipped`: a tick, or
            several that were missed, is passed over for good [R-14].
        run_id, pipeline, step, attempt: where it applies.
        at_us: microseconds since the epoch.
        detail: for people.
    """

    kind: EventKind
    at_us: int
    run_id: str = ""
    pipeline: str = ""
    step: str = ""
    phase: str = ""
    attempt: int = 0
    detail: str = ""


class Observer(Protocol):
    """Told of every event, on the loop; must not block. What it raises is logged and changes nothing."""

    def __call__(self, event: Event, /) -> None:
        """Take note of `event`."""
        ...
