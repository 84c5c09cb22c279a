"""Runs that rest at a step that a newer version removed, while workers of both come and go [D-2, D-3, D-4]."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack

import pytest

from perdure import AwaitMessage, Client, Engine, Succeeded, step
from perdure.runtime.misfits import PATROL_S
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, app, line, virtually
from tests.runtime.test_workers import BEAT_S, LEASE_S, Shared

ask = AwaitMessage("ask/v1", name="go", type=int)


@step("before/v1")
async def before(inv: Inv) -> None: ...


@step("after/v1")
async def after(inv: Inv) -> None: ...


OLD, NEW = line(before, ask), line(before, after)
REST, INVALID, DONE = ("ready", "waits for message 'go'"), ("invalid", "step-missing"), ("succeeded", "")


async def submitted(client: Client, *inputs: str) -> None:
    """Runs of the old version."""
    for input in inputs:
        await client.submit(OLD, input)


async def waiting(engine: Engine, *inputs: str) -> None:
    """Runs that wait for their messages by now."""
    await submitted(engine, *inputs)
    await engine.idle()


async def told(client: Client) -> dict[tuple[str, str], int]:
    """How many runs there are of each status, and what they say."""
    return Counter((run.status, run.reason.split(":")[0]) for run in await client.list())


@pytest.mark.parametrize("killed", [False, True], ids=["in good order", "killed"])
@pytest.mark.parametrize("late_s", [0.0, 0.1, BEAT_S, 2 * LEASE_S])
@virtually
async def test_who_waits_is_judged_when_the_last_old_worker_is_gone(
    system: VirtualSystem, late_s: float, killed: bool
) -> None:
    """Until then each of them says what it waits for, whichever version looked at it, and goes on when that comes.

    What the old one comes to before it knows of the newer is left waiting, too.
    """
    world = Shared(system)
    async with world.client(app(NEW)) as client, AsyncExitStack() as old:
        first = await old.enter_async_context(world.engine(app(OLD)))
        await waiting(first, "a", "b", "c")
        async with world.engine(app(NEW)), world.engine(app(NEW)):
            await system.sleep(late_s)
            await submitted(first, "d", "e", "f")
            await system.sleep(LEASE_S)
            knows = late_s >= BEAT_S
            assert await told(client) == ({REST: 3, DONE: 3} if knows else {REST: 6})
            if killed:
                first.abort()
            else:
                await old.aclose()
            await system.sleep(3 * LEASE_S)
            assert await told(client) == ({INVALID: 3, DONE: 3} if knows else {INVALID: 6})


@virtually
async def test_who_waits_goes_on_with_an_old_worker_that_stays(system: VirtualSystem) -> None:
    """Whatever the newer one patrols: nobody who can go on with a run is passed over by a judgement [D-4]."""
    world = Shared(system)
    async with world.client(app(NEW)) as client, world.engine(app(OLD)) as first:
        await waiting(first, "a", "b", "c")
        async with world.engine(app(NEW)):
            await system.sleep(3 * PATROL_S)
            assert await told(client) == {REST: 3}
        for run in await client.list():
            await client.send(run.run_id, "go", 7)
            assert isinstance(await client.result(run.run_id), Succeeded)


@pytest.mark.parametrize("seen", [True, False], ids=["found at a beat", "between two beats"])
@virtually
async def test_what_a_visitor_leaves_is_judged(system: VirtualSystem, seen: bool) -> None:
    """An old worker that crashes again and again may have left something though nobody saw it [R-16]."""
    world = Shared(system)
    async with world.engine(app(OLD)):
        pass
    async with world.client(app(NEW)) as client, world.engine(app(NEW)):
        await system.sleep(BEAT_S / 2)
        async with world.engine(app(OLD)) as visitor:
            await waiting(visitor, "a", "b")
            await system.sleep(BEAT_S if seen else 0)
        assert await told(client) == {REST: 2}
        await system.sleep(2 * BEAT_S if seen else PATROL_S + BEAT_S)
        assert await told(client) == {INVALID: 2}


@virtually
async def test_who_starts_later_judges_what_the_deployer_did_not(system: VirtualSystem) -> None:
    """The worker that deployed a version was killed before it looked at anything [D-3]."""
    world = Shared(system)
    async with world.client(app(NEW)) as client:
        async with world.engine(app(OLD)) as first:
            await waiting(first, "a", "b")
        async with world.engine(app(NEW)) as deployer:
            deployer.abort()
        assert await told(client) == {REST: 2}
        async with world.engine(app(NEW)):
            await system.sleep(BEAT_S / 2)
            assert await told(client) == {INVALID: 2}


@virtually
async def test_who_becomes_the_newest_by_a_rollback_judges(system: VirtualSystem) -> None:
    """Runs of the version that was rolled back, which nobody has any more [D-5]."""
    world = Shared(system)
    async with world.client(app(NEW)) as client, world.engine(app(NEW)), AsyncExitStack() as newer:
        await waiting(await newer.enter_async_context(world.engine(app(OLD))), "a", "b")
        await client.roll_back("line", 1, actor="ada", force=True)
        await system.sleep(2 * BEAT_S)
        await newer.aclose()
        await system.sleep(2 * BEAT_S)
        assert await told(client) == {INVALID: 2}


@virtually
async def test_what_an_older_worker_could_not_do_is_asked_anew_though_it_has_gone(system: VirtualSystem) -> None:
    """It judged, and left before the newer one's next beat; a broken contract is not called again by itself [D-2]."""
    gate = Gate()

    @step("one/v1")
    async def broken(inv: Inv) -> int:
        await gate()
        return "no number"  # type: ignore[return-value]  # the contract it breaks

    @step("one/v1")
    async def mended(inv: Inv) -> int:
        return 1

    world = Shared(system)
    async with world.engine(app(line(broken), build="old")) as first:
        run = await first.submit(line(broken), "x")
        await gate.reached.wait()
        async with world.engine(app(line(mended, after), build="new")) as second:
            await system.sleep(0.1)
            gate.go.set()
            while (await second.info(run.id)).status != "invalid":
                await system.sleep(0.01)
            await first.stop()
            await system.sleep(2 * BEAT_S)
            assert (await second.info(run.id)).status == "succeeded"
