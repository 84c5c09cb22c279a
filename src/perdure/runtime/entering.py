"""From the arguments of `submit` to the first fact of a run: checked here, before anything is written [P-2]."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from msgspec.structs import replace

from perdure.core.durations import Duration
from perdure.core.facts import RunSubmitted
from perdure.core.permits import Entrance
from perdure.define.limit import KeyTrouble, key_of
from perdure.define.pipeline import AnyPipeline
from perdure.errors import InvalidArgument, PayloadError
from perdure.ports.clock import System
from perdure.runtime.arguments import (
    check_annotations,
    check_duration,
    check_name,
    check_priority,
    check_text,
    check_time,
)


class SubmitOptions(msgspec.Struct, frozen=True):
    """What `submit` takes besides pipeline and input; see `Client.submit`."""

    resource: str | None = None
    tenant: str = "default"
    delay: Duration | None = None
    start_at: datetime | None = None
    deadline: datetime | timedelta | None = None
    annotations: Mapping[str, str] | None = None
    actor: str = ""
    priority: int | None = None


class Submission(msgspec.Struct, frozen=True):
    """A run that is about to be submitted.

    Attributes:
        submitted: its first fact.
        entrances: limits that have to have room for it [R-11].
    """

    submitted: RunSubmitted
    entrances: tuple[Entrance, ...] = ()

    def waiting(self, how: Literal["queue", "replace"]) -> Submission:
        """The same, waiting for its slot where that is taken [R-5]."""
        return replace(self, submitted=replace(self.submitted, waits=how))


def submission(
    pipeline: AnyPipeline, input: object, options: SubmitOptions, system: System, payload_limit: int | None
) -> Submission:
    """What a submission appends, and under which limits.

    Raises:
        PayloadError: the input cannot be stored, or is over the limit [P-4]; names the path.
        InvalidArgument: another argument is out of range.
    """
    codec = pipeline.input_codec
    data = codec.encode(input)
    if payload_limit is not None and len(data) > payload_limit:
        raise PayloadError("$", f"the input has {len(data):,} bytes, the limit is {payload_limit:,}")
    resource = options.resource
    if resource is None and pipeline.resource is not None:
        resource = pipeline.resource(codec.decode(data))
    run_id = system.run_id()
    now_us = system.now_us()
    submitted = RunSubmitted(
        run_id,
        pipeline.id,
        msgspec.Raw(data),
        codec.digest(input).hex(),
        run_id if resource is None else check_name("resource", resource),
        "default" if options.tenant == "default" else check_name("tenant", options.tenant),
        pipeline.slot,
        _start_us(options, now_us),
        _deadline_us(options, pipeline, now_us),
        "" if options.actor == "" else check_text("actor", options.actor),
        check_annotations(options.annotations),
        priority=pipeline.priority if options.priority is None else check_priority(options.priority),
        mutexes=pipeline.mutexes,
    )
    return Submission(submitted, entrances_of(pipeline, submitted))


def entrances_of(pipeline: AnyPipeline, submitted: RunSubmitted) -> tuple[Entrance, ...]:
    """The limits that have to have room for a run of a pipeline, when it is submitted [R-11].

    Raises:
        InvalidArgument: the key of one cannot be told from this input.
    """
    found: list[Entrance] = []
    for limit in pipeline.limits:
        if limit.queue is None:
            continue
        try:
            entrance = limit.entrance(key_of(limit, lambda: pipeline.input_codec.decode(submitted.input)))
        except KeyTrouble as trouble:
            raise InvalidArgument(f"the run cannot be submitted: {trouble}") from trouble.__cause__
        found += [] if entrance is None else [entrance]
    return tuple(found)


def _start_us(options: SubmitOptions, now_us: int) -> int:
    """When the run may start, 0 for at once."""
    if options.delay is not None and options.start_at is not None:
        raise InvalidArgument("give delay or start_at, not both")
    if options.delay is not None:
        delay_us = check_duration("delay", options.delay)
        return now_us + delay_us if delay_us else 0
    return 0 if options.start_at is None else max(check_time("start_at", options.start_at), 0)


def _deadline_us(options: SubmitOptions, pipeline: AnyPipeline, now_us: int) -> int:
    """When the run is canceled, 0 for never."""
    deadline = options.deadline
    if isinstance(deadline, timedelta):
        return now_us + check_duration("deadline", deadline)
    if deadline is not None:
        return max(check_time("deadline", deadline), 1)
    return 0 if pipeline.deadline_s is None else now_us + int(pipeline.deadline_s * 1_000_000)
