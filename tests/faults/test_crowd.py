"""Runs that wait and have items in every way, under workers that are killed: all end, as they should, once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from perdure import Client, ConflictError, RunInfo
from perdure.core.facts import ItemReserved, OperationReserved
from perdure.define.items import item_key
from tests.faults.crowd import app, crowd

ROOT = Path(__file__).parents[2]


def worker(folder: Path) -> subprocess.Popen[str]:
    """A worker of the crowd's app; it has started when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "run", "tests.faults.crowd:app", "--store", f"sqlite:///{folder}/crowd.db"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "PERDURE_TEST_EFFECTS": str(folder / "effects"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if "started" in line:
            return process
    raise AssertionError("the worker did not start: " + "".join(said))


async def all_runs(client: Client) -> list[RunInfo]:
    page = await client.list(limit=500)
    found: list[RunInfo] = list(page)
    while page.next is not None:
        page = await client.list(limit=500, after=page.next)
        found += page
    return found


async def effects_done(folder: Path) -> int:
    path = folder / "effects"
    return len(path.read_text().splitlines()) if path.exists() else 0


async def until_more_effects(folder: Path, process: subprocess.Popen[str], more: int) -> None:
    """Wait until so many handlers were called since, or nothing is left to do."""
    wanted = await effects_done(folder) + more
    async with app.client(store=f"sqlite:///{folder}/crowd.db") as client:
        while await effects_done(folder) < wanted and process.poll() is None:
            await send_to_all(client)
            if all(info.ended for info in await all_runs(client)):
                return


async def send_to_all(client: Client) -> None:
    """What each run waits for, again and again; it is received once."""
    for info in await all_runs(client):
        if info.pipeline == crowd.id and not info.ended:
            with suppress(ConflictError):
                await client.send(info.run_id, "go", 5, key="once")


async def check(client: Client, folder: Path) -> None:
    """Every run ended; no handler was called more often than the journal reserved it [M-8, M-3]."""
    reserved: Counter[str] = Counter()
    ends: Counter[tuple[str, str]] = Counter()
    for info in await all_runs(client):
        assert info.ended, info
        ends[info.pipeline, info.reason] += 1
        for recorded in await client.journal(info.run_id):
            match recorded.fact:
                case ItemReserved(step=step, index=index):
                    reserved[item_key(info.run_id, step, index)] += 1
                case OperationReserved(step=step, phase="forward"):
                    reserved[f"{info.run_id}/do/{step}"] += 1
                case OperationReserved(step=step):
                    reserved[f"{info.run_id}/undo/{step}"] += 1
                case _:
                    pass
    called = Counter((folder / "effects").read_text().splitlines())
    assert {key: times for key, times in called.items() if times > reserved[key]} == {}
    assert {reason for pipeline, reason in ends if pipeline == crowd.id} <= {"", "unlucky", "child-failed", "canceled"}
    assert (await client.verify()).findings == ()


async def play(folder: Path, runs: int, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    async with app.client(store=f"sqlite:///{folder}/crowd.db") as client:
        submitted = [await client.submit(crowd, n + 1) for n in range(runs)]
        for _ in range(kills):
            process = worker(folder)
            await until_more_effects(folder, process, dice.randrange(5, 60))
            with suppress(ConflictError):
                await dice.choice(submitted).cancel()
            process.send_signal(dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            process.communicate()
        process = worker(folder)
        try:
            while not all(info.ended for info in await all_runs(client)):
                await send_to_all(client)
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate()
        assert "Traceback" not in said, said
        await check(client, folder)


@pytest.mark.timeout(300)
def test_a_few_runs_through_three_kills(tmp_path: Path) -> None:
    """B-10, B-15, B-21, B-24, R-7, R-13, R-16."""
    asyncio.run(play(tmp_path, 12, 3, seed=1))


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
def test_many_runs_through_many_kills(tmp_path: Path, seed: int) -> None:
    """As above."""
    asyncio.run(play(tmp_path, 80, 20, seed=seed))
