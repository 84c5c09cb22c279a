"""Schedules as values: what they say, and what is refused when they are built [R-14]."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import App, DefinitionError, Invocation, Pipeline, Schedule, nothing, step
from perdure.core.ticks import Missed
from perdure.define.timetable import Cron, Every, microseconds

make: Any = Schedule


@dataclass(frozen=True)
class Report:
    day: str


@step("work")
async def work(inv: Invocation[Report, object]) -> None:
    pass


report: Pipeline[Report, object, None] = Pipeline(id="report", input=Report, deps=object, steps=(work,), output=nothing)
once: Pipeline[Report, object, None] = Pipeline(
    id="once", input=Report, deps=object, steps=(work,), output=nothing, slot="once"
)


def of(tick: datetime) -> Report:
    """The report of a day."""
    return Report(tick.date().isoformat())


def month(tick: datetime) -> str:
    """The month of a tick."""
    return f"{tick:%Y-%m}"


GOOD: dict[str, Any] = {"id": "daily", "pipeline": report, "input": of, "cron": "0 3 * * *"}


def built(**changes: Any) -> Schedule[Report]:
    """A good schedule with changes; None takes an argument away."""
    arguments = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    schedule: Schedule[Report] = make(**arguments)
    return schedule


# --- what it says


def test_the_input_is_made_of_the_tick_in_its_zone() -> None:
    """R-14: half past midnight in Berlin is a day later than in UTC."""
    tick = microseconds(datetime(2026, 6, 30, 22, 30, tzinfo=UTC))
    assert built(tz="Europe/Berlin").input_at(tick) == Report("2026-07-01")
    assert built().input_at(tick) == Report("2026-06-30")
    assert built(input=Report("x")).input_at(tick) == Report("x")


def test_the_resource_is_made_of_the_tick_too() -> None:
    tick = microseconds(datetime(2026, 6, 30, 22, 30, tzinfo=UTC))
    assert built(resource=month).resource_at(tick) == "2026-06"
    assert built(resource="books").resource_at(tick) == "books"
    assert built().resource_at(tick) is None


def test_runs_are_labelled_with_schedule_and_tick() -> None:
    tick = microseconds(datetime(2026, 6, 30, 22, 30, tzinfo=UTC))
    labels = built(tz="Europe/Berlin", annotations={"team": "ops"}).annotations_at(tick)
    assert labels == {"schedule": "daily", "tick": "2026-07-01T00:30:00+02:00", "team": "ops"}


def test_defaults() -> None:
    """R-14: the latest of what was missed, each tick a run of its own."""
    schedule = built()
    assert isinstance(schedule.timetable, Cron)
    assert (schedule.timetable.text, schedule.on_busy) == ("cron 0 3 * * * UTC", "queue")
    assert schedule.missed == Missed("latest", 100, None)
    assert built(missed="all").missed == Missed("all", 100, 7 * 86_400_000_000)
    assert built(pipeline=once).on_busy == "reject"


def test_an_interval_counts_from_its_anchor() -> None:
    anchor = datetime(2026, 1, 1, 0, 20, tzinfo=UTC)
    timetable = built(cron=None, every=timedelta(hours=1), anchor=anchor).timetable
    assert isinstance(timetable, Every)
    assert timetable.after(microseconds(anchor) + 5) == microseconds(anchor) + 3_600_000_000


# --- what is refused


async def later(tick: datetime) -> Report:
    return of(tick)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"id": " "}, "the id of a schedule must not be empty"),
        ({"id": "x" * 201}, "must not be longer than 200 bytes, this has 201"),
        ({"pipeline": report.bind()}, "must be a Pipeline"),
        ({"cron": None}, "give either cron or every"),
        ({"every": 60}, "not both"),
        ({"cron": "0 3 * *"}, "'daily': cron '0 3 \\* \\*' must have five fields"),
        ({"cron": "0 0 31 2 *"}, "'daily': cron '0 0 31 2 \\*': bad day-of-month"),
        ({"cron": 3}, "cron must be a str"),
        ({"tz": "Europe/Berlinn"}, "no time zone 'Europe/Berlinn'"),
        ({"tz": ""}, "no time zone ''"),
        ({"tz": "../etc/passwd"}, "no time zone"),
        ({"tz": 1}, "name of a time zone"),
        ({"anchor": datetime(2026, 1, 1, tzinfo=UTC)}, "anchor belongs to every"),
        ({"cron": None, "every": 0}, "at least 1 s"),
        ({"cron": None, "every": 0.5}, "at least 1 s"),
        ({"cron": None, "every": -1}, "every must not be negative"),
        ({"cron": None, "every": "1h"}, "every must be seconds or a timedelta"),
        ({"cron": None, "every": 60, "anchor": datetime(2026, 1, 1)}, "with time zone"),  # noqa: DTZ001  # the mistake
        ({"missed": "some"}, "latest, skip, all"),
        ({"missed_limit": 0}, "from 1 to 10,000"),
        ({"missed_limit": True}, "from 1 to 10,000"),
        ({"missed_within": 0}, "longer than nothing"),
        ({"missed_within": -1}, "missed_within must not be negative"),
        ({"input": later}, "later is async"),
        ({"input": lambda: Report("x")}, "input"),
        ({"input": 3}, "does not fit pipeline 'report'"),
        ({"resource": ""}, "resource must not be empty"),
        ({"resource": 5}, "resource must be a str"),
        ({"tenant": ""}, "tenant must not be empty"),
        ({"on_busy": "wait"}, "on_busy must be one of"),
        ({"pipeline": once, "on_busy": "queue"}, "wait for ever"),
        ({"deadline": -1}, "deadline must not be negative"),
        ({"priority": 10}, "from -9 to 9"),
        ({"priority": 1.0}, "from -9 to 9"),
        ({"annotations": "ab"}, "must be a mapping"),
        ({"annotations": {"tick": "x"}}, "added by the schedule itself"),
        ({"annotations": {"": "x"}}, "must not be empty"),
        ({"annotations": {"a": 1}}, "annotation 'a' must be a str"),
        ({"annotations": {str(n): "" for n in range(31)}}, "at most 30"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_built(changes: dict[str, Any], problem: str) -> None:
    """R-14: by the author's own words, not at three in the morning."""
    with pytest.raises(DefinitionError, match=problem):
        built(**changes)


def test_an_app_takes_schedules_of_its_own_pipelines_each_once() -> None:
    """R-14."""
    daily, app = built(), make_app
    assert app(report.bind(), schedules=(daily,)).schedules == (daily,)
    with pytest.raises(DefinitionError, match="'daily' stands twice"):
        app(report.bind(), schedules=(daily, built(cron="@hourly")))
    with pytest.raises(DefinitionError, match="pipeline 'report' is not bound in this app"):
        app(schedules=(daily,))
    same_id: Pipeline[Report, object, None] = Pipeline(
        id="report", input=Report, deps=object, steps=(work,), output=nothing
    )
    with pytest.raises(DefinitionError, match="another one than is bound"):
        app(same_id.bind(), schedules=(daily,))
    with pytest.raises(DefinitionError, match="a tuple of one ends in a comma"):
        app(report.bind(), schedules=daily)
    with pytest.raises(DefinitionError, match="must hold schedules"):
        app(report.bind(), schedules=("daily",))


make_app: Any = App
