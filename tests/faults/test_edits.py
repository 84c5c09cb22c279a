"""Edits while runs are in flight [E-1, E-4, E-10, D-4, M-14, M-15, R-5]."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from perdure import InvalidRun, ScheduleConflict, Succeeded, step
from perdure.core.facts import OperationProgress
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, Line, World, app, facts, line, until, virtually


def noting(id: str, effects: list[str], gate: Gate | None = None) -> Any:
    """A step that notes its id, and may wait before."""

    async def handler(inv: Inv) -> str:
        if gate is not None:
            await gate()
        effects.append(id)
        return f"state of {id}"

    return step(id)(handler)


async def stopped_in(world: World, pipeline: Line, gate: Gate) -> str:
    """A run whose worker is killed while a handler waits at the gate."""
    async with world.engine(app(pipeline, build="before")) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        engine.abort()
    gate.go.set()
    return run.id


@virtually
async def test_removing_a_finished_step_breaks_no_run_in_flight(system: VirtualSystem) -> None:
    """E-4, E-6: what was done stays done; the rest goes on."""
    effects: list[str] = []
    gate = Gate()
    one, two, three = noting("one/v1", effects), noting("two/v1", effects), noting("three/v1", effects, gate)
    world = World(system)
    run_id = await stopped_in(world, line(one, two, three), gate)
    async with world.engine(app(line(one, three), build="after")) as engine:
        assert isinstance(await engine.result(run_id), Succeeded)
    assert effects == ["one/v1", "two/v1", "three/v1"]


@virtually
async def test_a_recorded_state_belongs_to_its_step_wherever_that_moves(system: VirtualSystem) -> None:
    """E-8, M-14: states are known by id, never by position: after a swap each is what its own step returned."""
    effects: list[str] = []
    gate = Gate()
    one, two = noting("one/v1", effects), noting("two/v1", effects)

    def last(*needs: Any) -> Any:
        async def handler(inv: Inv) -> None:
            await gate()
            effects.append(f"{inv[one]}, {inv[two]}")

        return step("last/v1", needs=needs)(handler)

    world = World(system)
    run_id = await stopped_in(world, line(one, two, last(one, two)), gate)
    async with world.engine(app(line(two, one, last(one, two)), build="after")) as engine:
        assert isinstance(await engine.result(run_id), Succeeded)
    assert effects == ["one/v1", "two/v1", "state of one/v1, state of two/v1"]


@virtually
async def test_a_step_added_at_the_end_is_run_by_runs_in_flight_and_by_no_ended_one(system: VirtualSystem) -> None:
    """E-10, M-12: the last word is with the topology of now, until the outcome is committed."""
    effects: list[str] = []
    gate = Gate()
    one, more = noting("one/v1", effects), noting("more/v1", effects)
    before = line(one, noting("two/v1", effects, gate))
    world = World(system)
    async with world.engine(app(before, build="before")) as engine:
        ended = await engine.submit(before, "ended")
        await gate.until(1)
        gate.go.set()
        await ended.result()
        gate.go.clear()
        running = await engine.submit(before, "running")
        await gate.until(2)
        engine.abort()
    gate.go.set()
    async with world.engine(app(line(one, noting("two/v1", effects, gate), more), build="after")) as engine:
        assert isinstance(await engine.result(running.id), Succeeded)
        assert isinstance(await engine.result(ended.id), Succeeded)
        await engine.idle()
    assert effects.count("more/v1") == 1


@virtually
async def test_only_a_change_of_the_topology_makes_a_generation(system: VirtualSystem) -> None:
    """D-4: another body, another comment, another pipeline of the same app: the runs of this one go on."""
    effects: list[str] = []
    world = World(system)
    async with world.engine(app(line(noting("one/v1", effects)), build="before")) as engine:
        run = await engine.submit(line(noting("one/v1", effects)), "x", delay=5)
    other = line(noting("other/v1", effects), id="other")
    async with world.engine(app(line(noting("one/v1", effects)), other, build="after")) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)
        assert [deployment.generation for deployment in await engine.deployments("line")] == [1]


@virtually
async def test_a_slot_held_by_a_run_nobody_can_continue_is_visible_and_can_be_freed(system: VirtualSystem) -> None:
    """R-5, D-3: the second call is answered at once, with the name of the holder; an operator can end that."""
    gate = Gate()

    def resource(input: str) -> str:
        return "one"

    before = line(noting("gone/v1", [], gate), resource=resource)
    after = line(noting("one/v1", []), resource=resource)
    world = World(system)
    run_id = await stopped_in(world, before, gate)
    async with world.engine(app(after, build="after")) as engine:
        with pytest.raises(InvalidRun, match="gone/v1"):
            await engine.result(run_id)
        before_us = world.now_us()
        with pytest.raises(ScheduleConflict, match=run_id) as caught:
            await engine.submit(after, "another")
        assert caught.value.run_id == run_id
        assert world.now_us() == before_us
        assert (await engine.info(run_id)).reason.startswith("step-missing")
    async with world.engine(app(before, build="back")) as engine:
        assert isinstance(await engine.result(run_id), Succeeded)
        assert (await engine.submit(before, "another")).created


@virtually
async def test_values_made_at_once_are_the_same_after_any_crash(system: VirtualSystem) -> None:
    """M-15: known by name, not by the order in which they happened to be ready. Fifty seeds."""
    for seed in range(50):
        dice = random.Random(seed)
        world = World(system)
        made: list[str] = []
        crash_after = dice.randrange(1, 6)

        async def value(name: str, dice: random.Random = dice, made: list[str] = made) -> str:
            await system.sleep(dice.random())
            made.append(name)
            return f"{name} {len(made)}"

        @step("one/v1")
        async def one(inv: Inv, value: Any = value) -> list[str]:
            def make(name: str) -> Any:
                return inv.memo(name, lambda: value(name), type=str)

            return list(await asyncio.gather(*(make(name) for name in "abcde")))

        pipeline: Any = line(one)
        async with world.engine(app(pipeline)) as engine:
            run = await engine.submit(pipeline, "x")
            while len([f for f in await facts(run) if isinstance(f, OperationProgress)]) < crash_after:
                await system.sleep(0.05)
            before = {f.name: bytes(f.value) for f in await facts(run) if isinstance(f, OperationProgress)}
            engine.abort()
        async with world.engine(app(pipeline)) as engine:
            again = await engine.run(run.id)
            assert isinstance(await again.result(), Succeeded)
            after = {f.name: bytes(f.value) for f in await facts(again) if isinstance(f, OperationProgress)}
            assert sorted(after) == list("abcde")
            assert {name: after[name] for name in before} == before


@virtually
async def test_a_reason_that_does_not_pass_is_shown_and_not_answered_with_pending(system: VirtualSystem) -> None:
    """D-3: a run that cannot go on is invalid with its reason; it is not asked in a tight loop without a word."""

    def broken(inv: Inv) -> bool:
        asked.append(1)
        raise ValueError("always")

    asked: list[int] = []

    @step("one/v1", when=broken)
    async def one(inv: Inv) -> None:
        pass

    pipeline = line(one)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await until(run, "invalid")
        await system.sleep(3600)
        assert len(asked) < 10
        with pytest.raises(InvalidRun, match="always"):
            await run.result()
