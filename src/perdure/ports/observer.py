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
    "waiting",
    "woken",
    "unit-opened",
    "unit-resolved",
    "child-ended",
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
            started more than a minute after it was due. `waiting`: the run rests until a message comes or other runs
            end; `woken`: that has come, or took too long. `unit-opened`, `unit-resolved`: a step with items, turns or
            child runs began, or has its state; `child-ended`: one of them. `stuck`: an attempt has been
            running for a very long time. `blocked`: a handler keeps the event loop from running. `uncompensated`: a run
            ended and left effects. `tick-failed`: what a schedule wants could not be submitted; it is tried again.
            `tick-skipped`: a tick, or several that were missed, is passed over for good [R-14].
        run_id, pipeline, step, attempt: where it applies.
        at_us: microseconds since the epoch.
        detail: for people.
        item: index of the item, turn or child run it is about; None where it is about the step.
    """

    kind: EventKind
    at_us: int
    run_id: str = ""
    pipeline: str = ""
    step: str = ""
    phase: str = ""
    attempt: int = 0
    detail: str = ""
    item: int | None = None


class Observer(Protocol):
    """Told of every event, on the loop; must not block. What it raises is logged and changes nothing."""

    def __call__(self, event: Event, /) -> None:
        """Take note of `event`."""
        ...
