"""`perdure schedules`, `perdure pause-schedule` and `perdure resume-schedule`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from perdure.cli.completing import complete_schedule
from perdure.cli.connect import Place, locate, sqlite_path, with_client
from perdure.cli.evolution import one_app
from perdure.cli.exits import Exit
from perdure.cli.options import ActorOption, AppArgument, AppOption, JsonOption, NoteOption, StoreOption, who
from perdure.cli.output import Output
from perdure.cli.problems import refuse

if TYPE_CHECKING:
    from datetime import datetime

    from perdure.cli.tables import Cell
    from perdure.define.schedule import AnySchedule
    from perdure.runtime.client import Client
    from perdure.runtime.scheduling import ScheduleInfo

ScheduleArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="The schedule's id.", autocompletion=complete_schedule)
]


def schedules(
    target: AppArgument = None,
    ticks: Annotated[
        int, typer.Option("--ticks", "-n", metavar="N", min=0, max=1000, help="How many ticks ahead to show.")
    ] = 3,
    removed: Annotated[
        bool, typer.Option("--all", help="Also those that were removed: no application that started has them any more.")
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """List schedules: when they tick, when they last did, and what comes next.

    With an application, as it has them now: state `new` or `changed` means that no engine has started with it yet, and
    `removed` that the application has it no more; once an engine has started without it, only --all shows it. Also
    before there is a store.

    JSON: one object: schedules (each id, pipeline, timetable, state (active, paused, new, changed, removed), last_tick,
    last_run, next_ticks, paused_at, actor, note: who paused or
    resumed it last, and why). Times are UTC.
    """
    out = Output(json=as_json)
    place = locate(one_app(target, app), store)
    path = sqlite_path(place.url)
    if place.app is not None and path is not None and not path.exists():
        return _show(place, [], ticks, out)

    async def work(client: Client) -> int:
        return _show(place, await _stored(client, place, ticks, removed=removed), ticks, out)

    return with_client(place, work)


def pause_schedule(
    schedule: ScheduleArgument,
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let a schedule submit nothing until it is resumed.

    Ticks that come meanwhile are passed over. Runs that it submitted go on; `hold-pipeline` stops those. The pause
    outlives restarts and deployments.

    JSON: one object: schedule, paused, new (it was not paused before).
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        await _check(client, schedule)
        new = await client.pause_schedule(schedule, note=note, actor=who(actor))
        if out.json:
            out.value({"schedule": schedule, "paused": True, "new": new})
        elif new:
            out.line(f"schedule {schedule} is paused; `perdure resume-schedule {schedule}` lets it go on")
        else:
            out.line(f"schedule {schedule} was paused already")
        return 0

    return with_client(locate(app, store), work)


def resume_schedule(
    schedule: ScheduleArgument,
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let a paused schedule go on with its next tick.

    JSON: one object: schedule, paused (false).
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        await _check(client, schedule)
        await client.resume_schedule(schedule, note=note, actor=who(actor))
        if out.json:
            out.value({"schedule": schedule, "paused": False})
        else:
            out.line(f"schedule {schedule} goes on")
        return 0

    return with_client(locate(app, store), work)


async def _stored(client: Client, place: Place, ticks: int, *, removed: bool) -> list[ScheduleInfo]:
    """What the store knows; of what was removed what is asked for, and what the application has again."""
    declared: set[str] = set() if place.app is None else {each.id for each in place.app.app.schedules}
    found = await client.schedules(ticks=ticks, all=True)
    return [info for info in found if removed or info.removed_at is None or info.id in declared]


async def _check(client: Client, schedule: str) -> None:
    """Refuse what the store does not know, and say what it does."""
    known = [info.id for info in await client.schedules(ticks=0, all=True)]
    if schedule not in known:
        hint = f"it has had {', '.join(known)}" if known else "no engine with schedules has started on it yet"
        refuse(f"the store knows no schedule {schedule!r}", hint, Exit.NOT_FOUND)


def _show(place: Place, stored: list[ScheduleInfo], ticks: int, out: Output) -> int:
    from perdure.cli.tables import Table

    known = {info.id: info for info in stored}
    declared = {} if place.app is None else {each.id: each for each in place.app.app.schedules}
    rows: list[dict[str, object]] = []
    table = Table(["schedule", "pipeline", "when", "state", "last", "next"], spare=("pipeline", "state"), wraps="next")
    for id in sorted({**known, **declared}):
        info, schedule = known.get(id), declared.get(id)
        state = _state(info, schedule, with_app=place.app is not None)
        timetable = schedule.timetable.text if schedule is not None else info.timetable if info is not None else ""
        ahead = () if state in ("paused", "removed") else _ahead(info, schedule, ticks)
        row = _row(id, schedule.pipeline.id if schedule is not None else "", timetable, state, info, ahead)
        rows.append(row)
        last = "never" if info is None or info.last_tick is None else _local(info.last_tick)
        said: str | Cell = "" if state == "active" else state
        table.add(id, str(row["pipeline"]), timetable, said, last, ", ".join(map(_local, ahead)))
    if out.json:
        out.value({"schedules": rows})
    elif rows:
        out.table(table)
    else:
        out.note("there are no schedules; App(schedules=...) has them")
    return 0


def _state(info: ScheduleInfo | None, schedule: AnySchedule | None, *, with_app: bool) -> str:
    if info is None:
        return "new"
    if info.paused_at is not None:
        return "paused"
    if schedule is None:
        return "removed" if with_app or info.removed_at is not None else "active"
    if info.removed_at is not None:
        return "new"
    same = info.timetable == schedule.timetable.text and info.pipeline == schedule.pipeline.id
    return "active" if same else "changed"


def _ahead(info: ScheduleInfo | None, schedule: AnySchedule | None, ticks: int) -> tuple[datetime, ...]:
    from perdure.cli.times import now_us
    from perdure.define.timetable import moment, ticks_after

    if schedule is None:
        return () if info is None else info.next_ticks
    return tuple(moment(tick, schedule.zone) for tick in ticks_after(schedule.timetable, now_us(), ticks))


def _row(
    id: str, pipeline: str, timetable: str, state: str, info: ScheduleInfo | None, ahead: tuple[datetime, ...]
) -> dict[str, object]:
    return {
        "id": id,
        "pipeline": pipeline or (info.pipeline if info is not None else ""),
        "timetable": timetable,
        "state": state,
        "last_tick": None if info is None else _utc(info.last_tick),
        "last_run": None if info is None else info.last_run or None,
        "next_ticks": [_utc(tick) for tick in ahead],
        "paused_at": None if info is None else _utc(info.paused_at),
        "actor": None if info is None else info.actor or None,
        "note": None if info is None else info.note or None,
    }


def _utc(at: datetime | None) -> str | None:
    from perdure.cli.times import iso_utc, to_us

    return None if at is None else iso_utc(to_us(at))


def _local(at: datetime) -> str:
    """In the schedule's own zone, which is what its author thinks in."""
    return at.isoformat(sep=" ", timespec="minutes" if not at.second else "seconds")
