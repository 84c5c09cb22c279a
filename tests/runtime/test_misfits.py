"""Runs at rest that a new deployment cannot go on with say so when it comes, whatever they wait for [D-2, D-3]."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import AwaitMessage, InvalidRun, Run, Sleep, Succeeded, retired, step
from perdure.define.step import AnyStep
from perdure.runtime.registry import deploy
from perdure.runtime.system import RealSystem
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Inv, World, app, line, virtually

ask = AwaitMessage("ask/v1", name="go", type=int)
nap = Sleep("nap/v1", 7 * 86_400)


@step("before/v1")
async def before(inv: Inv) -> None: ...


@step("ask/v1")
async def asked(inv: Inv) -> int:
    return 1


@pytest.mark.parametrize("waits", [ask, nap], ids=["message", "sleep"])
@virtually
async def test_a_wait_whose_step_is_removed_is_invalid_at_once(
    system: VirtualSystem, waits: AnyStep[object, object]
) -> None:
    """E-3: and goes on as it was when the step is back."""
    world = World(system)
    async with world.engine(app(line(before, waits))) as engine:
        run = await engine.submit(line(before, waits), "x")
        await engine.idle()
    async with world.engine(app(line(before), build="2")) as engine:
        await engine.idle()
        assert (await engine.info(run.id)).status == "invalid"
        with pytest.raises(InvalidRun, match="step-missing"):
            await engine.result(run.id)
    async with world.engine(app(line(before, retired(waits)), build="3")) as engine:
        await engine.idle()
        assert (await engine.info(run.id)).status == "ready"
        if waits is ask:
            await engine.send(run.id, "go", 7)
        assert isinstance(await engine.result(run.id), Succeeded)


@virtually
async def test_another_shape_is_told_and_runs_elsewhere_rest_on(system: VirtualSystem) -> None:
    """D-1: only those that stand there are looked at."""
    world = World(system)
    async with world.engine(app(line(before, ask))) as engine:
        run = await engine.submit(line(before, ask), "x")
        later = await engine.submit(line(before, ask), "y", delay=3_600)
        await engine.idle()
        due_us = (await engine.info(later.id)).due_us
    async with world.engine(app(line(before, asked), build="2")) as engine:
        await engine.idle()
        info = await engine.info(run.id)
        assert (info.status, info.reason.split(":")[0]) == ("invalid", "shape-changed")
        assert (await engine.info(later.id)).due_us == due_us


async def _waiting(path: Path) -> Run[None]:
    """A run that waits for a message at a step that a shorter line does not have."""
    old = line(before, ask)
    async with app(old).engine(store=SqliteStore(path)) as engine:
        run = await engine.submit(old, "x")
        await engine.idle()
    return run


async def test_a_deployment_by_hand_tells_them_too(tmp_path: Path) -> None:
    """D-5: whichever engine starts next judges them first."""
    path, new = tmp_path / "x.db", line(before)
    run = await _waiting(path)
    async with app(new).client(store=SqliteStore(path)) as client:
        assert (await client.info(run.id)).due_us is None
        await client.deploy(force=True)
        assert (await client.info(run.id)).due_us is not None
    async with app(new).engine(store=SqliteStore(path)) as engine:
        await engine.idle()
        assert (await engine.info(run.id)).status == "invalid"


async def test_one_that_was_killed_after_deploying_is_made_up_for(tmp_path: Path) -> None:
    """R-16: the next engine finds the generation there, and looks all the same."""
    path, new = tmp_path / "x.db", line(before)
    run = await _waiting(path)
    async with app(new).client(store=SqliteStore(path)) as client:
        await deploy(client.store, RealSystem(), new.id, new.topology, "killed")
        assert (await client.info(run.id)).due_us is None
    async with app(new).engine(store=SqliteStore(path)) as engine:
        assert len(await engine.deployments(new.id)) == 2
        await engine.idle()
        assert (await engine.info(run.id)).status == "invalid"
