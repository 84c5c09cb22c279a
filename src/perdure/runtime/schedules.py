"""Submitting what schedules ask for: one run per tick, whoever is faster, whatever was missed [R-14].

The engine sleeps until the next tick of any schedule, in pieces, so that a clock that is set is noticed. At a tick it
reads how far the schedule has got, submits what is due through the door that everybody uses, each tick under a key of
its own, and then writes how far the schedule has got now. Crashing in between costs nothing: who looks next finds the
tick due again, and the key gives it the run that is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Literal, Protocol, TypeAlias

from msgspec.structs import replace

from perdure.core.ticks import Due, due_ticks, key_window_us
from perdure.define.schedule import AnySchedule
from perdure.define.timetable import moment
from perdure.errors import KeyTaken, QueueFull, ScheduleConflict, StoreUnavailable
from perdure.ports.store import ScheduleState, Store
from perdure.runtime.host import Host

logger = logging.getLogger("perdure")

_Kind: TypeAlias = Literal["tick-failed", "tick-skipped"]

LOOK_S = 30.0
"""The clock is looked at this often, however far the next tick is: it may have been set."""

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
"""How long a tick that cannot be submitted is left alone before it is tried again."""


class Submit(Protocol):
    """Submits the run of a tick, through the engine's own door; the run's id, and whether it is new."""

    async def __call__(self, schedule: AnySchedule, tick_us: int, window: timedelta, /) -> tuple[str, bool]:
        """See above."""
        ...


async def change_schedule(
    store: Store, id: str, change: Callable[[ScheduleState | None], ScheduleState | None]
) -> ScheduleState | None:
    """Change a schedule's state, whoever else does so meanwhile.

    Args:
        change: pure; the new state, or None to leave it as it is. Called again if somebody was faster.

    Returns:
        The state that was written; None if it was left.
    """
    while True:
        known = next((state for state in await store.schedules() if state.id == id), None)
        new = change(known)
        if new is None or await store.put_schedule(new, known):
            return new


class Watched:
    """A schedule in an engine.

    Attributes:
        cursor_us: ticks up to this time are of no interest here any more.
        next_us: the next tick after it.
        failures: how often in a row its due ticks could not be submitted.
        retry_at_s: not to be tried before this time of the loop.
    """

    __slots__ = ("cursor_us", "failures", "next_us", "retry_at_s", "schedule")

    def __init__(self, schedule: AnySchedule, cursor_us: int) -> None:
        self.schedule = schedule
        self.failures = 0
        self.retry_at_s = 0.0
        self.cursor_us = 0
        self.next_us: int | None = None
        self.move(cursor_us)

    def move(self, cursor_us: int) -> None:
        """Ticks up to this time have been considered."""
        self.cursor_us = cursor_us
        self.next_us = self.schedule.timetable.after(cursor_us)


class Scheduler:
    """Owns the engine's schedules, and the task that waits for their ticks."""

    def __init__(self, host: Host, schedules: Sequence[AnySchedule], submit: Submit) -> None:
        self._host = host
        self._schedules = tuple(schedules)
        self._submit = submit
        self._watched: list[Watched] = []
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()

    async def start(self) -> None:
        """Say which schedules there are now, and begin to wait for their ticks.

        A new schedule, and one whose time or pipeline was changed, begins now: ticks before are not its own. One that
        no app has any more is marked so, and begins anew when it comes back. On a store with many workers one that has
        a superseded topology says nothing about its schedules, and those that others look after stay.
        """
        store, now_us = self._host.store, self._host.system.now_us()
        known = {state.id: state for state in await store.schedules()}
        for schedule in self._schedules:
            if self._superseded(schedule):
                self._watched.append(Watched(schedule, now_us))
                continue
            state = await change_schedule(store, schedule.id, partial(_registered, schedule, now_us))
            state = state or known[schedule.id]
            self._watched.append(Watched(schedule, min(state.considered_us, now_us)))
        unknown = known.keys() - {schedule.id for schedule in self._schedules}
        if unknown:
            others = [row for row in await store.workers() if not row.dead] if store.shared else []
            for id in unknown.difference(*(row.schedules for row in others)):
                await change_schedule(store, id, partial(_removed, now_us))
        if self._watched:
            self._task = self._host.loop.create_task(self._forever(), name="perdure-schedules")

    def cancel(self) -> None:
        """Submit no more, at once. An append in flight goes on, and the key knows it [J-14]."""
        if self._task is not None:
            self._task.cancel()
        self._looked.set()

    async def stop(self) -> None:
        """Submit no more [R-6]."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
            self._task = None
        self._looked.set()

    def _superseded(self, schedule: AnySchedule) -> bool:
        line = self._host.lines.get(schedule.pipeline.id)
        return line is not None and self._host.superseded(line)

    async def caught_up(self) -> None:
        """Wait until no tick that has come is left to be tried."""
        while self._task is not None and not self._task.done() and self._wait_s() <= 0.0:
            self._looked.clear()
            await self._looked.wait()

    async def _forever(self) -> None:
        while True:
            try:
                for watched in self._watched:
                    if self._wait_s(watched) <= 0.0:
                        await self._consider(watched)
                wait_s = max(self._wait_s(), 0.0)
            except Exception:  # whatever it is, ticks go on
                logger.exception("schedules could not be looked after: a bug in the engine; it is tried again")
                wait_s = LOOK_S
            self._looked.set()
            await asyncio.sleep(wait_s)

    def _wait_s(self, watched: Watched | None = None) -> float:
        """How long nothing is to be done about a schedule, or about any."""
        if watched is None:
            return min((self._wait_s(each) for each in self._watched), default=LOOK_S)
        now_us = self._host.system.now_us()
        if now_us < watched.cursor_us:  # the clock was set back: keys know what was submitted already
            watched.move(now_us)
        if watched.next_us is None:
            return LOOK_S
        tick_s = (watched.next_us - now_us) / 1_000_000
        return min(max(tick_s, watched.retry_at_s - self._host.loop.time()), LOOK_S)

    async def _consider(self, watched: Watched) -> None:
        """A tick of a schedule has come: submit what is due. What goes wrong leaves it due [R-8]."""
        schedule, now_us = watched.schedule, self._host.system.now_us()
        try:
            await self._submit_due(watched, now_us)
        except (Exception, asyncio.CancelledError) as error:  # an author's function may raise anything
            if isinstance(error, asyncio.CancelledError) and (self._task is None or self._task.cancelling()):
                raise
            watched.failures += 1
            delay_s = min(FIRST_RETRY_S * 2.0 ** min(watched.failures - 1, 10), LAST_RETRY_S)
            watched.retry_at_s = self._host.loop.time() + delay_s
            expected = isinstance(error, StoreUnavailable)
            logger.warning(
                "schedule %r could not submit, trying again in %.0f s: %r",
                schedule.id,
                delay_s,
                error,
                exc_info=None if expected else error,
            )
            self._tell("tick-failed", schedule, f"{error!r}")
        else:
            watched.failures = 0
            watched.retry_at_s = 0.0
            watched.move(now_us)

    async def _submit_due(self, watched: Watched, now_us: int) -> None:
        schedule = watched.schedule
        if self._superseded(schedule):
            return
        state = next((each for each in await self._host.store.schedules() if each.id == schedule.id), None)
        if state is None or not _is_of(state, schedule) or state.removed_us or state.paused_us:
            return  # another deployment's, or an operator's; read again at the next tick
        since_us = state.considered_us if state.considered_us <= now_us else watched.cursor_us
        due = due_ticks(schedule.timetable, since_us, now_us, schedule.missed)
        if due.newest is None:
            return
        last, run_id = 0, ""
        for tick_us in due.ticks:
            submitted = await self._submit_tick(schedule, tick_us)
            if submitted:
                last, run_id = tick_us, submitted
        if due.passed_over:
            oldest = moment((due.ticks or (due.newest,))[0], schedule.zone).isoformat()
            logger.warning("schedule %r missed ticks before %s; they are passed over", schedule.id, oldest)
            self._tell("tick-skipped", schedule, f"ticks before {oldest} were missed")
        await change_schedule(
            self._host.store, schedule.id, lambda old: _considered(old, schedule, state, due, last, run_id)
        )

    async def _submit_tick(self, schedule: AnySchedule, tick_us: int) -> str:
        """The run of a tick; empty if it has none, for good."""
        now_us = self._host.system.now_us()
        window = timedelta(microseconds=key_window_us(schedule.timetable, tick_us, now_us, schedule.missed))
        try:
            run_id, _ = await self._submit(schedule, tick_us, window)
        except KeyTaken:  # submitted before, of other input: the author's function was changed, or is not pure
            return ""
        except (ScheduleConflict, QueueFull) as conflict:
            logger.warning("schedule %r: %s; the tick is passed over", schedule.id, conflict)
            self._tell("tick-skipped", schedule, str(conflict))
            return ""
        return run_id

    def _tell(self, kind: _Kind, schedule: AnySchedule, detail: str) -> None:
        if self._host.observers:
            self._host.emit(kind, detail=f"schedule {schedule.id}: {detail}")


def tick_key(schedule_id: str, tick_us: int) -> str:
    """The idempotency key of a tick [R-14]. Keys of this form belong to schedules."""
    return f"schedule:{schedule_id}:{moment(tick_us):%Y-%m-%dT%H:%M:%S.%fZ}"


def _is_of(state: ScheduleState, schedule: AnySchedule) -> bool:
    return state.timetable == schedule.timetable.text and state.pipeline == schedule.pipeline.id


def _registered(schedule: AnySchedule, now_us: int, old: ScheduleState | None) -> ScheduleState | None:
    """The state of a schedule that an app which starts has; None if that is known."""
    timetable, pipeline = schedule.timetable.text, schedule.pipeline.id
    if old is None:
        return ScheduleState(schedule.id, pipeline, timetable, now_us)
    if _is_of(old, schedule) and not old.removed_us:
        return None
    return replace(old, pipeline=pipeline, timetable=timetable, considered_us=now_us, removed_us=0)


def _removed(now_us: int, old: ScheduleState | None) -> ScheduleState | None:
    return None if old is None or old.removed_us else replace(old, removed_us=now_us)


def _considered(
    old: ScheduleState | None, schedule: AnySchedule, seen: ScheduleState, due: Due, tick_us: int, run_id: str
) -> ScheduleState | None:
    """How far a schedule has got after its due ticks; None if somebody has written better meanwhile.

    `seen` is what the decision was made on: where the clock was set back it lies ahead, and is corrected.
    """
    if old is None or due.newest is None or not _is_of(old, schedule):
        return None
    if old.considered_us >= due.newest and old.considered_us != seen.considered_us:
        return None
    new = replace(old, considered_us=due.newest)
    return replace(new, tick_us=tick_us, run_id=run_id) if run_id else new
