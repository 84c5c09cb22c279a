"""Generations: a topology that was never seen is deployed by the engine that brings it [D-4, D-5]."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Failed, StoreUnusable, Succeeded, UnwindInvocation, retired, step
from perdure.ports.store import Deployment
from perdure.runtime.registry import topologies
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import PROMPT, Inv, Line, World, app, line, virtually


async def undo(inv: UnwindInvocation[str, object], state: None) -> None:
    """Takes nothing back, successfully."""


def make(id: str, *, unwinds: bool = False, fails: bool = False) -> Any:
    async def handler(inv: Inv) -> None:
        from perdure import Fail

        if fails:
            raise Fail("no")

    return step(id, unwind=undo)(handler) if unwinds else step(id)(handler)


@virtually
async def test_the_same_topology_is_one_generation_whatever_its_code(system: VirtualSystem) -> None:
    """D-4: handlers, comments, builds and policies do not count; order, ids and flags do."""
    one, two = make("one/v1"), make("two/v1")
    versions: list[tuple[Line, int]] = [
        (line(one, two), 1),
        (line(make("one/v1", fails=True), two, retry=PROMPT), 1),  # other code, other policy
        (line(two, one), 2),
        (line(two, retired(one)), 3),
        (line(two), 4),
        (line(make("two/v1", unwinds=True)), 5),
        (line(one, two), 6),  # a former one becomes current again: that is a deployment [D-5]
        (line(one, two), 6),
    ]
    world = World(system)
    for number, (pipeline, generation) in enumerate(versions):
        async with world.engine(app(pipeline, build=str(number))) as engine:
            known = await engine.deployments("line")
            assert [deployment.generation for deployment in known] == list(range(1, generation + 1))
            assert known[-1].digest == pipeline.topology.digest
            assert known[-1].actor


@virtually
async def test_a_run_shows_the_generation_that_advanced_it(system: VirtualSystem) -> None:
    """D-4, E-1: and the next one decides what is still ahead."""
    first, second = line(make("one/v1")), line(make("one/v1"), make("two/v1"))
    world = World(system)
    async with world.engine(app(first)) as engine:
        done = await engine.submit(first, "x")
        await done.result()
        waiting = await engine.submit(first, "y", delay=10)
    async with world.engine(app(second)) as engine:
        assert isinstance(await engine.result(waiting.id), Succeeded)
        assert ((await engine.info(done.id)).generation, (await engine.info(waiting.id)).generation) == (1, 2)
        words = [(explained.step, explained.fate) for explained in (await engine.explain(waiting.id)).steps]
        assert words == [("one/v1", "succeeded"), ("two/v1", "succeeded")]


@virtually
async def test_what_former_generations_could_take_back_is_remembered(system: VirtualSystem) -> None:
    """U-9: a step that lost its unwind handler is named as unavailable."""
    world = World(system)
    before = line(make("one/v1", unwinds=True), make("two/v1"))
    after = line(make("one/v1"), make("two/v1", fails=True))
    async with world.engine(app(before)):
        pass
    async with world.engine(app(after)) as engine:
        result = await (await engine.submit(after, "x")).result()
        assert isinstance(result, Failed)
        assert (result.unavailable, result.uncompensated) == (("one/v1",), ())


@pytest.mark.parametrize("steps", [b"\xff", b"[]x", b'[{"id":"a"},{"id":"a"}]'])
def test_a_damaged_deployment_is_named(steps: bytes) -> None:
    """D-4: an operator learns which row to restore, not how a decoder failed."""
    damaged = Deployment("payout", 3, "", steps, 0, "")
    with pytest.raises(StoreUnusable, match="generation 3 of pipeline 'payout' in this store is damaged"):
        topologies([damaged])
