"""Rolling deployments: old and new workers side by side [D-4, D-5, D-2]."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from perdure import Fail, Failed, InvalidRun, Schedule, Succeeded, UnwindInvocation, step
from perdure.core.facts import OperationReserved, SegmentAttemptStarted
from perdure.define.step import AnyStep
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, Line, app, facts, line, until, virtually
from tests.runtime.test_workers import LEASE_S, Shared


def versions(gate: Gate) -> tuple[Line, Line, list[tuple[str, str]]]:
    """Two generations of a pipeline, the second with a step in between, and what was done."""
    done: list[tuple[str, str]] = []

    @step("one/v1")
    async def one(inv: Inv) -> None:
        done.append((inv.input, "one"))
        await gate()

    @step("two/v1")
    async def two(inv: Inv) -> None:
        done.append((inv.input, "two"))

    @step("three/v1")
    async def three(inv: Inv) -> None:
        done.append((inv.input, "three"))

    return line(one, three), line(one, two, three), done


@step("nothing/v1")
async def noting_nothing(inv: Inv) -> None:
    """Does nothing."""


def open_gate() -> Gate:
    """A gate that holds nobody up."""
    gate = Gate()
    gate.go.set()
    return gate


@virtually
async def test_a_newer_worker_deploys_and_an_older_one_does_not(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """A topology never seen is a new generation; a superseded one stays so, whoever starts with it [D-4]."""
    old, new, _ = versions(open_gate())
    world = Shared(system)
    async with world.engine(app(old)) as engine, world.engine(app(new)):
        assert await world.stores[0].generations() == {"line": 2}
        async with world.engine(app(old)):
            assert await world.stores[0].generations() == {"line": 2}
        await system.sleep(LEASE_S)
        assert {row.id: row.serves for row in await world.stores[0].workers()}[engine.worker] == {"line": 1}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("generation 2 is deployed by now, and this worker has 1" in text for text in warnings) == 2


@virtually
async def test_a_run_goes_over_to_the_newer_generation_and_never_back(system: VirtualSystem) -> None:
    """The old worker ends what runs and lets go; the new one goes on with the new step [D-4, J-12]."""
    gate = Gate()
    old, new, done = versions(gate)
    world = Shared(system)
    async with world.engine(app(old)) as first:
        run = await first.submit(old, "x")
        await gate.reached.wait()
        async with world.engine(app(new)) as second:
            await system.sleep(LEASE_S)  # by then the old one knows
            gate.go.set()
            assert isinstance(await run.result(timeout=60), Succeeded)
            claims = [fact for fact in await facts(run) if isinstance(fact, SegmentAttemptStarted)]
            assert [(fact.worker, fact.generation) for fact in claims] == [(first.worker, 1), (second.worker, 2)]
    assert done == [("x", "one"), ("x", "two"), ("x", "three")]


@virtually
async def test_an_older_worker_leaves_alone_what_a_newer_one_advanced(system: VirtualSystem) -> None:
    """Even where nobody else is left; the run waits for a newer worker, and goes on with it [D-4]."""
    gate = Gate()
    old, new, done = versions(gate)
    world = Shared(system)
    async with world.engine(app(old)):
        pass
    async with world.engine(app(new), drain_timeout=0) as second:
        run = await second.submit(new, "x")
        await gate.reached.wait()
    gate.go.set()
    async with world.engine(app(old)) as first, world.client(app(new)) as client:
        assert await world.stores[-1].generations() == {"line": 2}
        mine = await first.submit(old, "y")
        assert isinstance(await mine.result(timeout=60), Succeeded)
        await system.sleep(100)
        assert (await (await client.run(run.id)).info()).status == "ready"
        assert [name for who, name in done if who == "x"] == ["one"]
        async with world.engine(app(new)):
            assert isinstance(await (await client.run(run.id)).result(timeout=60), Succeeded)
    assert [name for who, name in done if who == "x"] == ["one", "one", "two", "three"]
    assert [name for who, name in done if who == "y"] == ["one", "three"]


@virtually
async def test_an_older_worker_alone_goes_on_with_what_nobody_advanced(system: VirtualSystem) -> None:
    """A new version that crashes at its start strands nobody: the old workers serve on [D-4]."""
    gate = Gate()
    old, new, done = versions(gate)
    world = Shared(system)
    async with world.engine(app(old), concurrency=2) as first:
        runs = [await first.submit(old, str(n)) for n in range(4)]
        await gate.until(2)
        for _ in range(5):
            async with world.engine(app(new), concurrency=1):
                pass
            await system.sleep(LEASE_S / 2)
        gate.go.set()
        for run in runs:
            assert isinstance(await run.result(timeout=60), Succeeded)
    assert sorted(done) == sorted((str(n), name) for n in range(4) for name in ("one", "three"))


@virtually
async def test_under_load_with_an_old_worker_that_crashes_again_and_again(system: VirtualSystem) -> None:
    """Nothing moves back, nothing is done twice, nothing starves, whatever comes and goes [D-4, R-16]."""
    effects: list[tuple[str, str]] = []

    def noting(name: str) -> AnyStep[str, object]:
        @step(name)
        async def one(inv: Inv) -> None:
            effects.append((inv.run_id, name))
            await system.sleep(0.3)

        return one

    first, second, third = noting("one/v1"), noting("two/v1"), noting("three/v1")
    old, new = line(first, third), line(first, second, third)
    world = Shared(system)
    async with world.client(app(new)) as client, world.engine(app(old), concurrency=3):
        runs = [await client.submit(new, str(n)) for n in range(40)]
        await system.sleep(1)
        async with world.engine(app(new), concurrency=3):
            for number in range(12):
                async with world.engine(app(old), concurrency=3, drain_timeout=5 * (number % 2)) as crashing:
                    await system.sleep(0.5)
                    if number % 3 == 0:
                        crashing.abort()
            for run in runs:
                assert isinstance(await run.result(timeout=600), Succeeded)
        assert (await client.verify()).findings == ()
        for run in runs:
            journal = await facts(run)
            generations = [fact.generation for fact in journal if isinstance(fact, SegmentAttemptStarted)]
            assert generations == sorted(generations)
            reserved = [fact.step for fact in journal if isinstance(fact, OperationReserved)]
            assert reserved == sorted(reserved, key=["one/v1", "two/v1", "three/v1"].index)


@virtually
async def test_a_rollback_makes_the_old_workers_the_newest(system: VirtualSystem) -> None:
    """`deploy` of the former topology is a new generation, which the workers that have it find out about [D-5]."""
    old, new, done = versions(open_gate())
    world = Shared(system)
    async with world.engine(app(old)) as engine, world.client(app(old)) as client:
        async with world.engine(app(new)):
            pass
        await client.roll_back("line", 1, actor="ada")
        assert await world.stores[0].generations() == {"line": 3}
        await system.sleep(LEASE_S)
        assert (await world.stores[0].workers())[0].serves == {"line": 3}
        run = await engine.submit(old, "x")
        assert isinstance(await run.result(timeout=60), Succeeded)
        claims = [fact for fact in await facts(run) if isinstance(fact, SegmentAttemptStarted)]
        assert [fact.generation for fact in claims] == [3]
    assert done == [("x", "one"), ("x", "three")]


@virtually
async def test_what_an_older_worker_judged_invalid_is_asked_anew_by_the_newer(system: VirtualSystem) -> None:
    """Before its backoff is over: another generation may know better [D-2]."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        return None

    def no(_inv: Inv) -> bool:
        raise ValueError("not this release")

    def yes(_inv: Inv) -> bool:
        return True

    @step("two/v1", when=no)
    async def broken(inv: Inv) -> None:
        return None

    @step("two/v1", when=yes)
    async def mended(inv: Inv) -> None:
        return None

    @step("three/v1")
    async def three(inv: Inv) -> None:
        return None

    old, new = line(one, broken), line(one, mended, three)
    world = Shared(system)
    async with (
        world.engine(app(old, build="old")) as engine,
        world.engine(app(new, build="new"), concurrency=1) as second,
    ):
        run = await engine.submit(old, "x")
        with pytest.raises(InvalidRun):
            await run.result(timeout=60)
        before_us = system.now_us()
        await until(await second.run(run.id), "succeeded")
        assert system.now_us() - before_us < LEASE_S * 1_000_000


@virtually
async def test_what_an_older_worker_knows_follows_from_its_generation(system: VirtualSystem) -> None:
    """Not from when it was started: what only a newer one can take back is not named missing at an end by it; as soon
    as its own is the newest again, what others could take back meanwhile is [U-9, D-5].
    """

    async def undo(inv: UnwindInvocation[str, object], state: None) -> None: ...

    @step("one/v1")
    async def one(inv: Inv) -> None: ...

    @step("one/v1", unwind=undo)
    async def undoable(inv: Inv) -> None: ...

    @step("two/v1")
    async def fails(inv: Inv) -> None:
        raise Fail("no")

    old, new = line(one, fails), line(undoable, fails)
    world = Shared(system)
    async with world.engine(app(old)) as first:
        async with world.engine(app(new)):
            pass
        async with world.engine(app(old)) as second:
            for engine in (first, second):
                result = await (await engine.submit(old, "x")).result()
                assert isinstance(result, Failed)
                assert result.unavailable == ()
            await first.roll_back("line", 1, actor="ada")
            await system.sleep(LEASE_S)
            for engine in (first, second):
                result = await (await engine.submit(old, "x")).result()
                assert isinstance(result, Failed)
                assert result.unavailable == ("one/v1",)


@virtually
async def test_a_schedule_ticks_on_whoever_else_comes_and_goes(system: VirtualSystem) -> None:
    """Another app on the store, or an older worker that crashes, removes no schedule of the living [R-14, D-4]."""
    old, new, done = versions(open_gate())
    other = line(noting_nothing, id="other")
    every = Schedule("tick", new, every=timedelta(minutes=1), input=lambda tick: f"{tick:%H:%M}")
    world = Shared(system)
    async with world.engine(app(old)):
        pass
    async with world.engine(app(new, schedules=(every,))):
        for _ in range(10):
            async with world.engine(app(old)), world.engine(app(other)):
                await system.sleep(61)
    ticks = [who for who, name in done if name == "one"]
    assert len(ticks) >= 10
    assert len(set(ticks)) == len(ticks)
