"""Generations: a topology that was never seen is deployed by the engine that brings it [D-4, D-5]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from perdure import Failed, StoreUnusable, Succeeded, UnwindInvocation, retired, step
from perdure.ports.store import Deployment
from perdure.runtime.registry import topologies
from perdure.storage.memory import MemoryData, MemoryStore
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


class Counting(MemoryStore):
    """Counts what an engine asks about deployments and invalid runs."""

    def __init__(self, data: MemoryData) -> None:
        super().__init__(data)
        self.asked: list[str] = []

    async def deployments(self, pipeline: str | None = None, /) -> Sequence[Deployment]:
        self.asked.append("deployments")
        return await super().deployments(pipeline)

    async def wake_invalid(self, generations: Mapping[str, int], build: str | None, now_us: int, /) -> int:
        self.asked.append("wake_invalid")
        return await super().wake_invalid(generations, build, now_us)


@pytest.mark.parametrize("shared", [False, True])
@virtually
async def test_a_start_reads_the_registry_once_however_many_pipelines_there_are(
    system: VirtualSystem, shared: bool
) -> None:
    """D-4, D-2: what it costs to start does not grow with what is bound, once that is deployed."""
    data = MemoryData(shared=shared)
    many = app(*(line(make(f"step/v{number}"), id=f"line-{number}") for number in range(20)))
    asked: list[str] = []
    for _ in range(2):
        store = Counting(data)
        asked = store.asked
        async with many.engine(store=store, system=system) as engine:
            assert {(d.pipeline, d.generation) for d in await engine.deployments()} == {
                (f"line-{number}", 1) for number in range(20)
            }
    assert asked == ["deployments", "wake_invalid", "deployments"]  # the last one is the client's above


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
