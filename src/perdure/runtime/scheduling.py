"""Looking at schedules and pausing them, from any client [R-14, R-17]."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec.structs import replace

from perdure.define.timetable import Cron, moment, ticks_after, timetable_of
from perdure.errors import NotAllowed, NotFound
from perdure.ports.clock import System
from perdure.ports.store import ScheduleState, Store
from perdure.runtime.arguments import check_count, check_name, check_text
from perdure.runtime.schedules import change_schedule


class ScheduleInfo(msgspec.Struct, frozen=True):
    """Where a schedule stands.

    Attributes:
        timetable: when it ticks, in words.
        last_tick: the last tick that was submitted, in the schedule's zone; None before the first.
        last_run: the run of it; may have been removed by retention.
        next_ticks: those ahead, in the schedule's zone; none while it is paused or removed.
        paused_at: since when it is paused; None while it is not.
        actor, note: who paused or resumed it last, and why.
        removed_at: since when no app that started has it; None while one has.
    """

    id: str
    pipeline: str
    timetable: str
    last_tick: datetime | None
    last_run: str
    next_ticks: tuple[datetime, ...]
    paused_at: datetime | None
    actor: str
    note: str
    removed_at: datetime | None


class Schedules:
    """The part of `Client` that is about schedules."""

    _store: Store
    _system: System

    async def schedules(self, *, ticks: int = 3, all: bool = False) -> list[ScheduleInfo]:
        """The schedules that engines of this store have, by id [R-14].

        Args:
            ticks: how many to tell of those ahead, up to 1,000.
            all: also those that were removed: no app that started has them any more.
        """
        count, now_us = check_count("ticks", ticks, 0, 1000), self._system.now_us()
        states = await self._store.schedules()
        return [_info(state, now_us, count) for state in states if all or not state.removed_us]

    async def pause_schedule(self, schedule: str, *, note: str = "", actor: str = "") -> bool:
        """Let a schedule submit nothing until it is resumed; survives restarts and deployments [R-14, R-17].

        Ticks that come meanwhile are passed over. Runs that were submitted go on; to stop those, hold the pipeline.

        Returns:
            Whether it was not paused before.

        Raises:
            NotFound: no engine of this store has had such a schedule.
        """
        who, why, now_us = check_text("actor", actor), check_text("note", note), self._system.now_us()

        def pause(old: ScheduleState | None) -> ScheduleState | None:
            state = _known(schedule, old)
            return None if state.paused_us else replace(state, paused_us=max(now_us, 1), actor=who, note=why)

        return await change_schedule(self._store, check_name("schedule", schedule), pause) is not None

    async def resume_schedule(self, schedule: str, *, note: str = "", actor: str = "") -> None:
        """Let a paused schedule go on with its next tick [R-14].

        Raises:
            NotFound: no engine of this store has had such a schedule.
            NotAllowed: it is not paused.
        """
        who, why, now_us = check_text("actor", actor), check_text("note", note), self._system.now_us()

        def resume(old: ScheduleState | None) -> ScheduleState:
            state = _known(schedule, old)
            if not state.paused_us:
                raise NotAllowed(f"schedule {schedule!r} is not paused")
            return replace(state, considered_us=now_us, paused_us=0, actor=who, note=why)

        await change_schedule(self._store, check_name("schedule", schedule), resume)


def _known(schedule: str, state: ScheduleState | None) -> ScheduleState:
    if state is None:
        raise NotFound(f"no engine of this store has had a schedule {schedule!r}")
    return state


def _info(state: ScheduleState, now_us: int, count: int) -> ScheduleInfo:
    timetable = timetable_of(state.timetable)
    zone = timetable.zone if isinstance(timetable, Cron) else moment(0).tzinfo
    stands = timetable is None or state.paused_us or state.removed_us
    ahead = [] if timetable is None or stands else ticks_after(timetable, now_us, count)

    def shown(at_us: int) -> datetime | None:
        return moment(at_us).astimezone(zone) if at_us else None

    return ScheduleInfo(
        state.id,
        state.pipeline,
        state.timetable,
        shown(state.tick_us),
        state.run_id,
        tuple(moment(tick).astimezone(zone) for tick in ahead),
        shown(state.paused_us),
        state.actor,
        state.note,
        shown(state.removed_us),
    )
