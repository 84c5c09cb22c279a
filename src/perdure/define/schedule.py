"""Schedules as values: when, what, and what about ticks that nobody could submit [R-14]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, Never, TypeAlias, TypeVar, cast, get_args
from zoneinfo import ZoneInfo

from perdure.core.durations import Duration, duration_us
from perdure.core.facts import PRIORITIES
from perdure.core.ticks import Missed, MissedPolicy
from perdure.define.functions import check_pure
from perdure.define.names import check_id, name_problem
from perdure.define.pipeline import Pipeline
from perdure.define.timetable import Cron, Every, microseconds, moment
from perdure.errors import DefinitionError, PayloadError

In = TypeVar("In")

OnBusyTick: TypeAlias = Literal["queue", "join", "reject", "replace"]
"""What the submission of a tick does when a live run has its slot."""

MAX_ID_BYTES = 200
MIN_EVERY = timedelta(seconds=1)
ALL_WITHIN = timedelta(days=7)
MAX_LIMIT = 10_000
_MAX_ANNOTATIONS = 30
"""The schedule's id and the tick are two more."""


class Schedule(Generic[In]):
    """Submits a run of a pipeline at each tick of a cron line or an interval; hand it to `App(schedules=...)`.

    Every tick is submitted once, however many engines there are and however often they restart: its time is the
    submission's idempotency key [R-14].

    Attributes:
        id: names the schedule in the store; one that is changed goes on under its id from the time of the change.
        pipeline: what is run.
        timetable: when.
        missed: what about ticks that passed while nobody could submit them.
        on_busy: see `Client.submit`.
        tenant: likewise.
        deadline: likewise, from the submission on.
        priority: likewise.
    """

    def __init__(
        self,
        id: str,
        pipeline: Pipeline[In, Never, object],
        *,
        input: In | Callable[[datetime], In],
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        anchor: datetime | None = None,
        missed: MissedPolicy = "latest",
        missed_limit: int = 100,
        missed_within: Duration | None = None,
        resource: str | Callable[[datetime], str] | None = None,
        tenant: str = "default",
        on_busy: OnBusyTick | None = None,
        deadline: Duration | None = None,
        annotations: Mapping[str, str] | None = None,
        priority: int | None = None,
    ) -> None:
        """Builds and checks the schedule.

        Args:
            id: not empty, at most 200 bytes, one of its kind in the app.
            pipeline: one that the app binds.
            input: the input of every run, or a pure function that makes it of the tick, a datetime in the zone `tz`.
            cron: minute, hour, day of month, month, day of week, as in a crontab, or `@daily` and the like; local times
                of the zone `tz`. One that does not exist ticks at the next that does; one that comes twice, once.
            tz: name of a time zone, such as `Europe/Berlin`; default: UTC.
            every: instead of `cron`: seconds or `timedelta` of absolute time, at least one second.
            anchor: a tick of `every`, with time zone; default: 1970-01-01, 00:00 UTC. Intervals are counted from it.
            missed: of ticks that passed unsubmitted, submit the `latest`, which may be late; `skip` it, too, if it is
                more than a minute late; or submit `all`, oldest first.
            missed_limit: with `all`: the newest so many at most, up to 10,000.
            missed_within: none that is older, seconds or `timedelta`. Default: a week with `all`, else no limit.
            resource: what the run is about, or a pure function that says it of the tick; default: as with `submit`.
            tenant: see `submit`.
            on_busy: see `submit`. Default: `queue`, so that each tick has its run, one after the other; `reject` where
                the pipeline has `slot="once"` or mutexes. A tick that is refused counts as submitted.
            deadline: seconds or `timedelta` after its submission when a run is canceled.
            annotations: labels of every run, at most 30; `schedule` and `tick` are added.
            priority: from -9 to 9; default: the pipeline's [R-1].

        Raises:
            DefinitionError: the schedule could not work; says why.
        """
        self.id: str = _check_id(id)
        where = f"schedule {id!r}"
        if not isinstance(pipeline, Pipeline):  # pyright: ignore[reportUnnecessaryIsInstance]  # what untyped code passes
            raise DefinitionError(f"{where}: its pipeline must be a Pipeline, not {ascii(pipeline)[:80]}")
        self.pipeline: Pipeline[In, Never, object] = pipeline
        self.zone = _zone(where, tz)
        self.timetable = _timetable(where, self.zone, cron, every, anchor)
        self.missed = _missed(where, missed, missed_limit, missed_within)
        self._input = _input(where, pipeline, input)
        self._resource = _resource(where, resource)
        self.tenant = _name(f"{where}: tenant", tenant)
        self.on_busy: OnBusyTick = _on_busy(where, pipeline, on_busy)
        self.deadline = None if deadline is None else timedelta(microseconds=_duration(where, "deadline", deadline))
        self._annotations = _annotations(where, annotations)
        self.priority = None if priority is None else _priority(where, priority)

    def input_at(self, tick_us: int) -> In:
        """The input of the run of a tick; calls the author's function, which may raise anything."""
        given = self._input
        return cast("In", given(moment(tick_us, self.zone)) if callable(given) else given)

    def resource_at(self, tick_us: int) -> str | None:
        """The resource of the run of a tick; likewise."""
        given = self._resource
        return given(moment(tick_us, self.zone)) if callable(given) else given

    def annotations_at(self, tick_us: int) -> dict[str, str]:
        """The annotations of the run of a tick."""
        return {"schedule": self.id, "tick": moment(tick_us, self.zone).isoformat(), **self._annotations}

    def __repr__(self) -> str:
        return f"<schedule {self.id!r}: {self.timetable.text}>"


AnySchedule: TypeAlias = Schedule[Any]
"""A schedule whose types nobody asks for."""


def _check_id(id: str) -> str:
    size = len(check_id("schedule", id).encode())
    if size > MAX_ID_BYTES:
        raise DefinitionError(f"the id of a schedule must not be longer than {MAX_ID_BYTES} bytes, this has {size:,}")
    return id


def _zone(where: str, tz: object) -> ZoneInfo:
    if tz is not None and not isinstance(tz, str):
        raise DefinitionError(f"{where}: tz must be the name of a time zone, such as 'Europe/Berlin', not {tz!r}"[:300])
    try:
        return ZoneInfo("UTC" if tz is None else tz)
    except (LookupError, ValueError, OSError):
        raise DefinitionError(
            f"{where}: there is no time zone {tz!r} here; names are like 'Europe/Berlin', and where the system has no "
            f"zones, `pip install tzdata` brings them"
        ) from None


def _timetable(where: str, zone: ZoneInfo, cron: object, every: object, anchor: object) -> Cron | Every:
    if (cron is None) == (every is None):
        raise DefinitionError(f"{where}: give either cron or every" + ("" if cron is None else ", not both"))
    if cron is not None:
        if anchor is not None:
            raise DefinitionError(f"{where}: anchor belongs to every, not to cron")
        if not isinstance(cron, str):
            raise DefinitionError(f"{where}: cron must be a str such as '0 3 * * *', not {cron!r}"[:300])
        try:
            return Cron(cron, zone)
        except DefinitionError as error:
            raise DefinitionError(f"{where}: {error}") from None
    every_us = _duration(where, "every", every)
    if every_us < MIN_EVERY // timedelta(microseconds=1):
        raise DefinitionError(f"{where}: every must be at least {MIN_EVERY.total_seconds():g} s, not {every!r}")
    if anchor is None:
        return Every(every_us, 0)
    if not isinstance(anchor, datetime) or anchor.utcoffset() is None:
        raise DefinitionError(f"{where}: anchor must be a datetime with time zone, not {anchor!r}"[:300])
    return Every(every_us, microseconds(anchor))


def _missed(where: str, policy: MissedPolicy, limit: int, within: Duration | None) -> Missed:
    if policy not in get_args(MissedPolicy):
        raise DefinitionError(f"{where}: missed must be one of {', '.join(get_args(MissedPolicy))}, not {policy!r}")
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise DefinitionError(f"{where}: missed_limit must be a whole number from 1 to {MAX_LIMIT:,}, not {limit!r}")
    if within is None and policy == "all":
        within = ALL_WITHIN
    within_us = None if within is None else _duration(where, "missed_within", within)
    if within_us == 0:
        raise DefinitionError(f"{where}: missed_within must be longer than nothing; to make up for none, missed='skip'")
    return Missed(policy, limit, within_us)


def _input(where: str, pipeline: Pipeline[In, Never, object], given: In | Callable[[datetime], In]) -> object:
    if callable(given):
        check_pure(f"{where}: input", given, named=False)
        return given
    try:
        pipeline.input_codec.encode(given)
    except PayloadError as error:
        raise DefinitionError(f"{where}: its input does not fit pipeline {pipeline.id!r}: {error}") from None
    return given


def _resource(where: str, given: str | Callable[[datetime], str] | None) -> str | Callable[[datetime], str] | None:
    if callable(given):
        check_pure(f"{where}: resource", given, named=False)
        return given
    return None if given is None else _name(f"{where}: resource", given)


def _on_busy(where: str, pipeline: Pipeline[In, Never, object], given: OnBusyTick | None) -> OnBusyTick:
    if given is None:
        return "reject" if pipeline.slot == "once" or pipeline.mutexes else "queue"
    if given not in get_args(OnBusyTick):
        raise DefinitionError(f"{where}: on_busy must be one of {', '.join(get_args(OnBusyTick))}, not {given!r}")
    if pipeline.slot == "once" and given in ("queue", "replace"):
        raise DefinitionError(
            f"{where}: on_busy={given!r} would wait for ever: pipeline {pipeline.id!r} has slot='once'"
        )
    if pipeline.mutexes and given in ("queue", "replace"):
        raise DefinitionError(
            f"{where}: on_busy={given!r}: pipeline {pipeline.id!r} has mutexes, and no run waits for those"
        )
    return given


def _annotations(where: str, given: Mapping[str, str] | None) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # what untyped code passes
        raise DefinitionError(f"{where}: annotations must be a mapping, not {type(given).__name__}")
    if len(given) > _MAX_ANNOTATIONS:
        raise DefinitionError(f"{where}: at most {_MAX_ANNOTATIONS} annotations, not {len(given)}")
    for key, value in given.items():
        _name(f"{where}: an annotation's key", key)
        if key in ("schedule", "tick"):
            raise DefinitionError(f"{where}: annotation {key!r} is added by the schedule itself")
        if value != "":
            _name(f"{where}: annotation {key!r}", value)
    return dict(given)


def _priority(where: str, given: object) -> int:
    if type(given) is not int or given not in PRIORITIES:
        first, last = PRIORITIES[0], PRIORITIES[-1]
        raise DefinitionError(f"{where}: priority must be a whole number from {first} to {last}, not {given!r}")
    return given


def _name(what: str, value: object) -> str:
    problem = name_problem(value)
    if problem is not None:
        raise DefinitionError(f"{what} {problem}: {ascii(value)[:80]}")
    return str(value)


def _duration(where: str, name: str, value: object) -> int:
    try:
        return duration_us(value)
    except ValueError as error:
        raise DefinitionError(f"{where}: {name} {error}") from None
