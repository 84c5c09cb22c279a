"""What a submission does where it is in somebody's way, and how a refusal is told [R-5, R-10, R-11]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, TypeAlias, get_args

from perdure.core.durations import Duration
from perdure.core.facts import RunSubmitted
from perdure.core.permits import Entrance
from perdure.define.pipeline import AnyPipeline, Pipeline
from perdure.errors import InvalidArgument, MutexConflict, QueueFull, ScheduleConflict
from perdure.ports.limits import NoRoom
from perdure.ports.records import LoadedRun, MutexTaken
from perdure.runtime.arguments import check_duration, check_name
from perdure.runtime.entering import Submission

OnBusy: TypeAlias = Literal["join", "reject", "queue", "replace"]
"""What a submission does when a live run has its slot."""

KEY_WINDOW = timedelta(days=1)


def policy_of(pipeline: AnyPipeline, on_busy: OnBusy | None) -> OnBusy:
    """What a submission does on a busy slot; a serial one queues unless it says otherwise [R-5]."""
    if not isinstance(pipeline, Pipeline):  # pyright: ignore[reportUnnecessaryIsInstance]  # what untyped code passes
        what = ascii(pipeline)[:80]
        raise InvalidArgument(f"submit takes a Pipeline, whose types say how the input is stored, not {what}")
    if on_busy is None:
        return "queue" if pipeline.slot == "serial" else "join"
    if on_busy not in get_args(OnBusy):
        raise InvalidArgument(f"on_busy must be one of {', '.join(get_args(OnBusy))}, not {on_busy!r}")
    if pipeline.slot == "once" and on_busy in ("queue", "replace"):
        raise InvalidArgument(f"on_busy={on_busy!r} would wait for ever: pipeline {pipeline.id!r} has slot='once'")
    if pipeline.mutexes and on_busy in ("queue", "replace"):
        raise InvalidArgument(f"on_busy={on_busy!r}: pipeline {pipeline.id!r} has mutexes, and no run waits for those")
    return on_busy


def in_line(submissions: list[Submission]) -> list[Submission]:
    """Those with a resource in common wait for the slot from the start, so that none can be overtaken by the next one
    while it learns that the slot was taken; a free slot they get at once [R-5]."""
    of_resource = Counter(one.submitted.resource for one in submissions)
    return [one.waiting("queue") if of_resource[one.submitted.resource] > 1 else one for one in submissions]


def window_of(key: str | None, window: Duration | None) -> int:
    """For how many microseconds an idempotency key counts; 0 without one [R-5]."""
    if key is None:
        if window is not None:
            raise InvalidArgument("key_window needs an idempotency_key")
        return 0
    check_name("idempotency_key", key)
    window_us = check_duration("key_window", KEY_WINDOW if window is None else window)
    if not window_us:
        raise InvalidArgument("key_window must be longer than nothing")
    return window_us


def keeps_its_slot(holder: LoadedRun) -> bool:
    """It has ended, and nobody else will ever have its slot [R-5]."""
    return holder.row.ended_us is not None and holder.row.run.slot_once


def busy_slot(submitted: RunSubmitted, run_id: str, how: str, long: str = "") -> ScheduleConflict:
    """Who is in the way [R-5]."""
    long = long or (" for ever (slot='once')" if submitted.slot == "once" else "")
    return ScheduleConflict(
        f"pipeline {submitted.pipeline!r} has run {run_id}{how} for resource {submitted.resource!r}; "
        f"it occupies the slot{long}",
        run_id,
    )


def mutex_taken(submitted: RunSubmitted, taken: MutexTaken) -> MutexConflict:
    """Who has it [R-10]."""
    return MutexConflict(
        f"run {taken.run_id} of pipeline {taken.pipeline!r} has mutex {taken.name!r} for resource "
        f"{submitted.resource!r}",
        taken.run_id,
        taken.name,
        taken.pipeline,
    )


def queue_full(submitted: RunSubmitted, full: NoRoom, entrances: Sequence[Entrance]) -> QueueFull:
    """How many are inside, and how many of them may wait [R-11]."""
    size = next(one for one in entrances if (one.limit, one.key) == (full.limit, full.key))
    where = f"limit {full.limit!r}" + (f" key {full.key!r}" if full.key else "")
    return QueueFull(
        f"pipeline {submitted.pipeline!r}: {where} has no room for another run; it lets in {size.room:,} that have not "
        f"ended (in_flight={size.bound}, queue={size.queue})",
        full.limit,
        full.key,
    )
