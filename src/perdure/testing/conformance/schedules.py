"""How far schedules have got: written by whoever saw the newest, and by nobody else [R-14]."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from perdure.ports.store import ScheduleState
from perdure.testing.conformance.lab import T0, Check, Lab, expect, part

CHECKS: list[Check] = []
check = part(CHECKS)

STATE = ScheduleState("daily", "payout", "cron 0 3 * * * Europe/Berlin", T0)
FULL = replace(STATE, tick_us=T0 + 1, run_id="run-1", paused_us=T0 + 2, actor="ada", note="why", removed_us=T0 + 3)


@check
async def a_schedule_is_written_by_whoever_knows_it(lab: Lab) -> None:
    """It is inserted once, and replaced only by who names what stands there, every field of it [R-14]."""
    store = await lab.engine()
    expect(list(await store.schedules()), [], "schedules of an empty store")
    expect(await store.put_schedule(FULL, STATE), False, "a change of what is not there")
    expect(await store.put_schedule(STATE, None), True, "a first state")
    expect(await store.put_schedule(FULL, None), False, "a second first state")
    expect(await store.put_schedule(FULL, STATE), True, "a change")
    expect(await store.put_schedule(STATE, STATE), False, "a change of what was there before")
    others = (
        replace(FULL, timetable="every 60 s"),
        replace(FULL, considered_us=T0 - 1),
        replace(FULL, tick_us=0),
        replace(FULL, run_id=""),
        replace(FULL, paused_us=0),
        replace(FULL, actor=""),
        replace(FULL, note=""),
        replace(FULL, removed_us=0),
    )
    for other in others:
        expect(await store.put_schedule(STATE, other), False, f"a change by who takes it for {other}")
    expect(list(await store.schedules()), [FULL], "what stands there")


@check
async def schedules_outlive_the_process(lab: Lab) -> None:
    """They are read back as they were written, by id [R-14]."""
    store = await lab.engine()
    await store.put_schedule(FULL, None)
    first = replace(STATE, id="a-first")
    await store.put_schedule(first, None)
    store = await lab.reopened(store)
    expect(list(await store.schedules()), [first, FULL], "after the store was opened again")


@check
async def of_two_that_change_a_schedule_one_does(lab: Lab) -> None:
    """Whoever comes second is told so, and changes nothing; also from another process [R-14]."""
    store, client = await lab.engine(), await lab.client()
    await store.put_schedule(STATE, None)
    one, two = replace(STATE, considered_us=T0 + 1), replace(STATE, considered_us=T0 + 2)
    done = await asyncio.gather(store.put_schedule(one, STATE), client.put_schedule(two, STATE))
    expect(sorted(done), [False, True], "how two fared who knew the same")
    expect(list(await client.schedules()), [one if done[0] else two], "what the one wrote")
