"""Schedules in an engine: every tick one run, whoever is there and whatever happens to clocks and stores [R-14]."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from perdure import App, Client, Engine, NotAllowed, NotFound, Schedule, StoreUnavailable, step
from perdure.define.timetable import microseconds
from perdure.runtime.schedules import LOOK_S
from perdure.runtime.system import RealSystem
from perdure.storage.memory import MemoryStore
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import Events, Failing, Gate, Gated, Inv, Line, World, app, line, virtually

HOUR = 3600.0
DAY = 24 * HOUR
BERLIN = ZoneInfo("Europe/Berlin")


@step("work")
async def work(inv: Inv) -> None:
    pass


nightly: Line = line(work, id="nightly")


def said(tick: datetime) -> str:
    """The input of the run of a tick."""
    return f"{tick:%m-%dT%H:%M}"


def hourly(**options: Any) -> Schedule[str]:
    return Schedule("hourly", nightly, input=said, every=HOUR, **options)


def scheduled(*schedules: Schedule[str], pipeline: Line = nightly, **options: Any) -> App:
    return app(pipeline, schedules=schedules, **options)


async def inputs(client: Client) -> list[str]:
    """What was submitted, in order."""
    found: list[str] = []
    for info in reversed(await client.list(limit=1000)):
        fact: Any = (await client.journal(info.run_id))[0].fact
        found.append(bytes(fact.input).decode().strip('"'))
    return found


async def look(system: VirtualSystem) -> None:
    """Let the engine look at its clock."""
    await system.sleep(LOOK_S + 1)


# --- ticks


@virtually
async def test_every_tick_submits_one_run_from_the_first_after_the_start(system: VirtualSystem) -> None:
    """R-14: the tick is the key, says what the input is, and stands in the run's annotations and actor [M-16]."""
    world = World(system)
    async with world.engine(scheduled(hourly(annotations={"team": "ops"}, priority=3))) as engine:
        await system.sleep(0.5 * HOUR)
        assert await inputs(engine) == []
        await system.sleep(3 * HOUR)
        assert await inputs(engine) == ["01-01T01:00", "01-01T02:00", "01-01T03:00"]
        run = (await engine.list())[0]
        fact: Any = (await engine.journal(run.run_id))[0].fact
        assert (fact.actor, fact.priority) == ("schedule hourly", 3)
        assert fact.annotations == {"schedule": "hourly", "tick": "2026-01-01T03:00:00+00:00", "team": "ops"}
        assert (await engine.journal(run.run_id))[0].at_us == EPOCH_US + 3 * 3_600_000_000  # not a moment late
        (info,) = await engine.schedules(ticks=2)
        assert info.last_run == run.run_id
        assert [f"{tick:%H:%M}" for tick in (info.last_tick, *info.next_ticks) if tick] == ["03:00", "04:00", "05:00"]


@virtually
async def test_a_night_of_each_change_of_clocks(system: VirtualSystem) -> None:
    """R-14: 2:30 does not exist in the night of March 29th and comes twice in that of October 25th."""
    schedule = Schedule("night", nightly, input=said, cron="30 2 * * *", tz="Europe/Berlin")
    for start, found in (
        (datetime(2026, 3, 28, 12, tzinfo=BERLIN), ["03-29T03:00", "03-30T02:30"]),
        (datetime(2026, 10, 24, 12, tzinfo=BERLIN), ["10-25T02:30", "10-26T02:30"]),
    ):
        world = World(system)
        system.skew_us += microseconds(start) - system.now_us()
        async with world.engine(scheduled(schedule)) as engine:
            await system.sleep(2 * DAY)
            assert await inputs(engine) == found


@virtually
async def test_ticks_far_apart_and_schedules_side_by_side(system: VirtualSystem) -> None:
    daily = Schedule("daily", nightly, input="daily", cron="@daily")
    other = Schedule("other", nightly, input="other", every=timedelta(days=3), anchor=None)
    world = World(system)
    async with world.engine(scheduled(daily, other)) as engine:
        await system.sleep(6.5 * DAY)
        found = await inputs(engine)
        assert (found.count("daily"), found.count("other")) == (6, 2)
        assert world.stores[-1].calls["append"] < 30  # nothing is written where nothing ticks


# --- being down


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["01-04T05:00"]),
        ({"missed": "skip"}, []),
        ({"missed": "all", "missed_limit": 3}, ["01-04T03:00", "01-04T04:00", "01-04T05:00"]),
        ({"missed": "all", "missed_within": 2 * HOUR}, ["01-04T04:00", "01-04T05:00"]),
        ({"missed_within": 600}, []),
    ],
)
@virtually
async def test_an_engine_that_was_down_for_days(
    system: VirtualSystem, options: dict[str, Any], found: list[str]
) -> None:
    """R-14: what was missed is made up for as the author says; then it goes on, and says what it passed over."""
    world, events = World(system), Events()
    async with world.engine(scheduled(hourly(**options))):
        pass
    await system.sleep(3 * DAY + 5.5 * HOUR)
    async with world.engine(scheduled(hourly(**options)), observers=(events,)) as engine:
        await look(system)
        assert await inputs(engine) == found
        assert events.kinds().count("tick-skipped") == 1
        await system.sleep(HOUR)
        assert await inputs(engine) == [*found, "01-04T06:00"]
        assert events.kinds().count("tick-skipped") == 1


@pytest.mark.parametrize("missed", ["latest", "skip", "all"])
@pytest.mark.parametrize("late_s", [0.0, 5.0])
@virtually
async def test_an_engine_that_restarts_at_a_tick_has_not_missed_it(
    system: VirtualSystem, missed: Any, late_s: float
) -> None:
    """R-14."""
    world, with_it = World(system), scheduled(hourly(missed=missed))
    async with world.engine(with_it):
        await system.sleep(HOUR - 1)
    await system.sleep(1 + late_s)
    async with world.engine(with_it) as engine:
        await look(system)
        assert await inputs(engine) == ["01-01T01:00"]
    async with world.engine(with_it) as engine:
        await look(system)
        assert await inputs(engine) == ["01-01T01:00"]


@pytest.mark.parametrize("pause_s", [1.0, 2 * DAY])
@virtually
async def test_a_tick_whose_consideration_was_lost_is_not_submitted_again(
    system: VirtualSystem, pause_s: float
) -> None:
    """R-14, R-5: the key outlives the run [R-9] and stands as long as the tick could be the latest."""
    world, with_it = World(system), scheduled(Schedule("rare", nightly, input="x", every=timedelta(days=3)))
    async with world.engine(with_it, around=Failing) as engine:
        store = world.stores[-1]
        assert isinstance(store, Failing)
        await look(system)
        store.fail_if("put_schedule", lambda _: True, StoreUnavailable("lost"))
        await system.sleep(3 * DAY)
        assert len(await inputs(engine)) == 1
        engine.abort()
    await system.sleep(pause_s)
    async with world.client(with_it) as client:
        assert (await client.schedules())[0].last_tick is None
        assert (await client.gc(0)).removed == 1
    async with world.engine(with_it) as engine:
        await look(system)
        assert await inputs(engine) == []
        assert (await engine.schedules())[0].last_tick is not None
        await system.sleep(3 * DAY)
        assert await inputs(engine) == ["x"]


@virtually
async def test_idle_waits_for_ticks_that_have_come(system: VirtualSystem) -> None:
    """R-14: an engine that is started to catch up, and stopped when it is idle, catches up."""
    world, with_it = World(system), scheduled(hourly(missed="all"))
    async with world.engine(with_it) as engine:
        await engine.idle()
    await system.sleep(2.5 * HOUR)
    async with world.engine(with_it) as engine:
        await engine.idle()
        assert await engine.counts() == {("nightly", "succeeded"): 2}


# --- several engines


@pytest.mark.parametrize("skew_us", [-300_000, 0, 300_000])
@virtually
async def test_two_engines_submit_a_tick_once(system: VirtualSystem, skew_us: int) -> None:
    """R-14: the key decides, whichever comes first, and with clocks that disagree."""
    world, apps = World(system), scheduled(hourly())
    other = VirtualSystem(system.loop, 7, skew_us=skew_us)

    class Beside(MemoryStore):
        """As if the store took several engines."""

        async def open(self, *, owner: str | None) -> None:
            await super().open(owner=None)

    async with world.engine(apps) as one, apps.engine(store=Beside(world.data), system=other):
        await system.sleep(5.5 * HOUR)
        assert await inputs(one) == [f"01-01T0{n}:00" for n in range(1, 6)]


# --- clocks


@virtually
async def test_a_clock_that_is_set_back_submits_no_tick_twice(system: VirtualSystem) -> None:
    """R-14, R-4."""
    world = World(system)
    async with world.engine(scheduled(hourly())) as engine:
        await system.sleep(2.5 * HOUR)
        system.skew_us -= 2 * 3_600_000_000  # 00:30 again
        await system.sleep(4 * HOUR)
        assert await inputs(engine) == ["01-01T01:00", "01-01T02:00", "01-01T03:00", "01-01T04:00"]


@virtually
async def test_a_clock_that_was_years_ahead_does_not_end_a_schedule(system: VirtualSystem) -> None:
    """R-14: what was noted under a wrong clock is corrected, and the true ticks come."""
    world = World(system)
    async with world.engine(scheduled(hourly())) as engine:
        await look(system)
        system.skew_us += 4 * 365 * 86_400_000_000
        await system.sleep(HOUR)
        system.skew_us = 0
        await system.sleep(2 * HOUR)
        found = await inputs(engine)
        assert [each for each in found if each in ("01-01T02:00", "01-01T03:00")] == ["01-01T02:00", "01-01T03:00"]
        (info,) = await engine.schedules()
        assert info.last_tick is not None
        assert info.last_tick.year == 2026
    async with world.engine(scheduled(hourly())) as engine:
        await system.sleep(HOUR)
        assert "01-01T04:00" in await inputs(engine)


@virtually
async def test_a_clock_that_is_set_forward_is_noticed(system: VirtualSystem) -> None:
    """R-14: however far the next tick is by the old time; what lies between was missed."""
    world = World(system)
    async with world.engine(scheduled(hourly())) as engine:
        await look(system)
        system.skew_us += 5 * 3_600_000_000
        await look(system)
        assert await inputs(engine) == ["01-01T05:00"]


# --- deployments


@virtually
async def test_a_changed_schedule_submits_no_tick_from_before_the_change(system: VirtualSystem) -> None:
    """R-14, D-4: neither old ticks nor those that the new line would have had."""
    world = World(system)
    async with world.engine(scheduled(hourly(missed="all"))) as engine:
        await system.sleep(1.5 * HOUR)
    await system.sleep(DAY)
    changed = Schedule("hourly", nightly, input=said, cron="15 * * * *", missed="all")
    async with world.engine(scheduled(changed)) as engine:
        await look(system)
        assert await inputs(engine) == ["01-01T01:00"]
        await system.sleep(HOUR)
        assert await inputs(engine) == ["01-01T01:00", "01-02T02:15"]


@virtually
async def test_a_schedule_that_is_gone_submits_nothing_and_begins_anew_when_it_is_back(system: VirtualSystem) -> None:
    """R-14, D-4."""
    world = World(system)
    async with world.engine(scheduled(hourly(missed="all"))):
        await look(system)
    async with world.engine(scheduled()) as engine:
        await system.sleep(3.5 * HOUR)
        assert await engine.schedules() == []
        (info,) = await engine.schedules(all=True)
        assert info.removed_at is not None
        assert info.next_ticks == ()
    async with world.engine(scheduled(hourly(missed="all"))) as engine:
        await system.sleep(HOUR)
        assert await inputs(engine) == ["01-01T04:00"]
        (info,) = await engine.schedules()
        assert info.removed_at is None


@virtually
async def test_an_engine_of_the_deployment_before_submits_nothing_of_a_changed_schedule(system: VirtualSystem) -> None:
    """R-14: while both run, the newer one's ticks count."""
    world = World(system)
    changed = scheduled(Schedule("hourly", nightly, input=said, cron="30 * * * *"))

    class Beside(MemoryStore):
        """As if the store took several engines."""

        async def open(self, *, owner: str | None) -> None:
            await super().open(owner=None)

    async with world.engine(scheduled(hourly())) as old:
        await look(system)
        async with changed.engine(store=Beside(world.data), system=VirtualSystem(system.loop, 7)):
            await system.sleep(2 * HOUR)
            assert await inputs(old) == ["01-01T00:30", "01-01T01:30"]


# --- holding and pausing


@virtually
async def test_a_held_pipeline_gets_its_runs_and_starts_none(system: VirtualSystem) -> None:
    """R-14, R-17: a hold is about attempts, not about ticks."""
    world = World(system)
    async with world.engine(scheduled(hourly())) as engine:
        await engine.hold_pipeline("nightly")
        await system.sleep(2.5 * HOUR)
        assert await engine.counts() == {("nightly", "ready"): 2}
        await engine.release_pipeline("nightly")
        await engine.idle()
        assert await engine.counts() == {("nightly", "succeeded"): 2}


@virtually
async def test_a_paused_schedule_submits_nothing_until_it_is_resumed(system: VirtualSystem) -> None:
    """R-14, R-17: from any process, across restarts, with who and why; ticks meanwhile are passed over."""
    world, with_it = World(system), scheduled(hourly(missed="all"))
    async with world.engine(with_it) as engine, world.client(with_it) as client:
        await system.sleep(1.5 * HOUR)
        assert await client.pause_schedule("hourly", actor="ada", note="books closed")
        assert not await client.pause_schedule("hourly", actor="bob")
        await system.sleep(2 * HOUR)
        assert await inputs(engine) == ["01-01T01:00"]
    async with world.engine(with_it) as engine, world.client(with_it) as client:
        await system.sleep(2 * HOUR)
        assert await inputs(engine) == ["01-01T01:00"]
        (info,) = await engine.schedules()
        assert (info.actor, info.note, info.next_ticks) == ("ada", "books closed", ())
        await client.resume_schedule("hourly", actor="eve", note="books open")
        (info,) = await engine.schedules()
        assert (info.paused_at, info.actor, info.note) == (None, "eve", "books open")
        await system.sleep(HOUR)
        assert await inputs(engine) == ["01-01T01:00", "01-01T06:00"]
        with pytest.raises(NotAllowed, match="not paused"):
            await client.resume_schedule("hourly")
        with pytest.raises(NotFound, match="daily"):
            await client.pause_schedule("daily")


# --- slots


@virtually
async def test_ticks_of_one_resource_run_one_after_the_other(system: VirtualSystem) -> None:
    """R-14, R-5: each has its run, also while the one before is not done."""
    gate = Gate()

    @step("slow")
    async def slow(inv: Inv) -> None:
        await gate()

    pipeline = line(slow, id="slow")
    schedule = Schedule("slow", pipeline, input="same", every=HOUR, resource="books")
    world = World(system)
    async with world.engine(scheduled(schedule, pipeline=pipeline)) as engine:
        await system.sleep(3.5 * HOUR)
        assert (len(await engine.list()), gate.passes) == (3, 1)
        gate.go.set()
        await engine.idle()
        assert (await engine.counts(), gate.passes) == ({("slow", "succeeded"): 3}, 3)


@pytest.mark.parametrize(("on_busy", "runs", "skipped"), [("join", 1, 0), ("reject", 1, 2), ("replace", 3, 0)])
@virtually
async def test_what_a_tick_does_to_a_busy_slot_is_the_authors_to_say(
    system: VirtualSystem, on_busy: Any, runs: int, skipped: int
) -> None:
    """R-14, R-5: a tick that is refused is over, and said so."""
    gate, events = Gate(), Events()

    @step("slow")
    async def slow(inv: Inv) -> None:
        await gate()

    pipeline = line(slow, id="slow")
    schedule = Schedule("slow", pipeline, input="same", every=HOUR, resource="books", on_busy=on_busy)
    world = World(system)
    async with world.engine(scheduled(schedule, pipeline=pipeline), observers=(events,)) as engine:
        await system.sleep(3.5 * HOUR)
        assert len(await engine.list()) == runs
        assert events.kinds().count("tick-skipped") == skipped
        gate.go.set()


# --- trouble


@virtually
async def test_a_function_that_raises_delays_its_tick_and_no_other_schedule(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """R-14, R-16: the tick stays due, with backoff; what was mended catches up."""
    broken = [True]

    def fragile(tick: datetime) -> str:
        if broken[0]:
            raise OSError("no such file")
        return f"fragile {said(tick)}"

    world, events = World(system), Events()
    first = Schedule("fragile", nightly, input=fragile, every=HOUR)
    async with world.engine(scheduled(first, hourly()), observers=(events,)) as engine:
        with caplog.at_level(logging.WARNING, "perdure"):
            await system.sleep(HOUR + 600)
        assert await inputs(engine) == ["01-01T01:00"]
        assert 5 < events.kinds().count("tick-failed") < 20
        assert "no such file" in caplog.text
        broken[0] = False
        await system.sleep(120)
        assert await inputs(engine) == ["01-01T01:00", "fragile 01-01T01:00"]


@pytest.mark.parametrize("call", ["schedules", "put_schedule", "append"])
@virtually
async def test_a_store_that_does_not_answer_is_waited_for(system: VirtualSystem, call: str) -> None:
    """R-8, R-14: the tick is late, and submitted once."""
    world, down = World(system), [False]
    async with world.engine(scheduled(hourly()), around=Failing) as engine:
        store = world.stores[-1]
        assert isinstance(store, Failing)
        await look(system)
        down[0] = True
        store.fail_if(call, lambda _: down[0], StoreUnavailable("no answer"))
        await system.sleep(HOUR + 120)
        down[0] = False
        await system.sleep(180)
        assert await inputs(engine) == ["01-01T01:00"]
        (info,) = await engine.schedules()
        assert info.last_tick is not None
        await system.sleep(HOUR)
        assert await inputs(engine) == ["01-01T01:00", "01-01T02:00"]


@virtually
async def test_an_engine_that_drains_submits_no_more(system: VirtualSystem) -> None:
    """R-6, R-14: and leaves what is due to the next."""
    world, with_it = World(system), scheduled(hourly())
    async with world.engine(with_it) as engine:
        await system.sleep(HOUR - 1)
        await engine.drain()
        await system.sleep(2)
        assert await inputs(engine) == []
    async with world.engine(with_it) as engine:
        await look(system)
        assert await inputs(engine) == ["01-01T01:00"]


@virtually
async def test_an_engine_that_is_stopped_in_a_submission_loses_and_doubles_nothing(system: VirtualSystem) -> None:
    """R-6, J-14, R-14: the append in flight is committed, and the next engine finds the key."""
    world, with_it = World(system), scheduled(hourly())
    async with world.engine(with_it, around=Gated) as engine:
        store = world.stores[-1]
        assert isinstance(store, Gated)
        await look(system)
        store.shut("append")
        await system.sleep(HOUR)
        draining = asyncio.ensure_future(engine.drain(0))
        await system.sleep(1)
        store.open_gate("append")
        await draining
    async with world.engine(with_it) as engine:
        await look(system)
        assert await inputs(engine) == ["01-01T01:00"]


# --- a real file


class Clock(RealSystem):
    """The real system, whose clock stands still and is set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.at_us = EPOCH_US

    def now_us(self) -> int:
        return self.at_us


async def test_a_file_remembers_what_was_considered(tmp_path: Path) -> None:
    """R-14: closed, dropped as by a kill, and opened again."""
    clock, with_it = Clock(), scheduled(hourly())

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Engine]:
        async with with_it.engine(store=SqliteStore(tmp_path / "runs.db"), system=clock) as engine:
            yield engine

    async def considered(engine: Engine, hours: int) -> None:
        while (last := (await engine.schedules())[0].last_tick) is None or last.hour != hours:  # noqa: ASYNC110  # yields
            await asyncio.sleep(0)

    async with opened():
        clock.at_us += 90 * 60_000_000
    async with opened() as engine:
        await considered(engine, 1)
        assert await inputs(engine) == ["01-01T01:00"]
    async with opened() as engine:
        assert await engine.pause_schedule("hourly")
        clock.at_us += 3_600_000_000
        engine.abort()
    async with opened() as engine:
        (info,) = await engine.schedules()
        assert info.paused_at is not None
        await engine.resume_schedule("hourly")
        engine.abort()
    clock.at_us += 3_600_000_000
    async with opened() as engine:
        await considered(engine, 3)
        assert await inputs(engine) == ["01-01T01:00", "01-01T03:00"]
