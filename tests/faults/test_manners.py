"""Threads, shutdown, lists, memory, imports: an engine that is a good neighbour [R-6, R-7, I-1, M-15]."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure import DefinitionError, Failed, InvalidRun, Retry, Succeeded, step
from perdure.core.facts import OperationRetryScheduled
from perdure.core.projection import Projection
from perdure.ports.store import RunFilter, RunPage
from perdure.runtime.live import LiveRun
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, Line, Watched, World, app, facts, line, until, virtually

ROOT = Path(__file__).resolve().parents[2]


def waiting(gate: Gate) -> Line:
    """A pipeline whose step waits."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()

    return line(one)


# --- asyncio and threads


@virtually
async def test_recovering_more_runs_than_there_are_threads_ends(system: VirtualSystem) -> None:
    """I-1, R-7: async work needs no thread; fifty pending runs, two threads."""
    gate = Gate()
    pipeline = waiting(gate)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        runs = [await engine.submit(pipeline, str(n)) for n in range(50)]
        await gate.until(50)
        engine.abort()
    async with world.engine(app(pipeline, threads=2)) as engine:
        await gate.until(100)
        gate.go.set()
        for run in runs:
            assert isinstance(await engine.result(run.id), Succeeded)


async def test_a_hundred_async_runs_start_no_thread(tmp_path: Path) -> None:
    """I-1: a file has its two threads and the watchdog, however much is done."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await asyncio.sleep(0)

    pipeline = line(one)
    async with app(pipeline).engine(store=SqliteStore(tmp_path / "store.db")) as engine:
        await (await engine.submit(pipeline, "warm up")).result(timeout=30)
        before = set(threading.enumerate())
        runs = await asyncio.gather(*(engine.submit(pipeline, str(n)) for n in range(100)))
        for run in runs:
            assert isinstance(await run.result(timeout=30), Succeeded)
        assert not set(threading.enumerate()) - before


@virtually
async def test_remembering_from_a_thread_is_an_error_and_never_silently_lost(system: VirtualSystem) -> None:
    """M-15: what cannot be recorded there says so; the run is not a success that forgot something."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await asyncio.gather(*(asyncio.to_thread(lambda: inv.memo("a", lambda: 1, type=int)) for _ in range(5)))

    pipeline = line(one)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidRun, match="async def"):
            await run.result()


def test_how_long_a_handler_may_block_is_a_setting() -> None:
    """R-15: it warns and never stops a step."""
    pipeline = waiting(Gate())
    app(pipeline, block_limit=5)
    with pytest.raises(DefinitionError, match="block_limit"):
        app(pipeline, block_limit=0)


@virtually
async def test_the_error_of_a_step_is_told_even_when_everything_is_busy(system: VirtualSystem) -> None:
    """M-10: not an error of the machinery in its place."""

    @step("busy/v1")
    def busy(inv: Inv) -> None:
        raise KeyError("the busy one")

    @step("one/v1", retry=Retry(max_attempts=1, then="fail"))
    async def one(inv: Inv) -> None:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise RuntimeError("the real one") from error

    pipeline = line(one)
    other = line(busy, id="busy", retry=Retry(max_attempts=1, then="fail"))
    async with World(system).engine(app(pipeline, other, threads=1)) as engine:
        runs = [await engine.submit(other, str(n)) for n in range(10)]
        result = await (await engine.submit(pipeline, "x")).result()
        assert isinstance(result, Failed)
        assert result.failure.message == "the real one\ncaused by ValueError: first"
        for run in runs:
            failed = await run.result()
            assert isinstance(failed, Failed)
            assert failed.failure.error == "KeyError"


# --- shutdown


@virtually
async def test_an_engine_whose_task_is_cancelled_lets_go_in_order(system: VirtualSystem) -> None:
    """R-6: cancellation is no way around the shutdown: attempts are interrupted and recorded, the store is free."""
    gate = Gate()
    pipeline = waiting(gate)
    world = World(system)

    async def serve() -> None:
        async with world.engine(app(pipeline), drain_timeout=5) as engine:
            await engine.submit(pipeline, "x")
            await asyncio.get_running_loop().create_future()

    serving = asyncio.ensure_future(serve())
    await gate.until(1)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    async with world.client(app(pipeline)) as client:
        [info] = await client.list()
        assert (info.status, info.worker) == ("ready", "")
        [scheduled] = [f for f in await facts(await client.run(info.run_id)) if isinstance(f, OperationRetryScheduled)]
        assert scheduled.cause == "interrupted"


@virtually
async def test_a_step_that_ends_within_the_drain_time_is_not_repeated(system: VirtualSystem) -> None:
    """R-6"""
    attempts: list[int] = []
    started = asyncio.Event()

    @step("one/v1")
    async def one(inv: Inv) -> None:
        attempts.append(inv.attempt)
        started.set()
        await system.sleep(3)

    pipeline = line(one)
    world = World(system)
    async with world.engine(app(pipeline), drain_timeout=10) as engine:
        run = await engine.submit(pipeline, "x")
        await started.wait()
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)
    assert attempts == [1]
    assert world.now_us() == 3_000_000


# --- lists and reads


@virtually
async def test_a_list_is_one_question_to_the_store(system: VirtualSystem) -> None:
    """I-1: not one more for each run of the page."""

    class Counting(Watched):
        async def list_runs(self, where: RunFilter, /, **how: Any) -> RunPage:
            self.calls["list"] += 1
            return await super().list_runs(where, **how)

        async def load_all_rows(self, run_id: str, /) -> Any:
            self.calls["all rows"] += 1
            return await super().load_all_rows(run_id)

    pipeline = waiting(Gate())
    world = World(system)
    async with world.engine(app(pipeline), around=Counting) as engine:
        for n in range(60):
            await engine.submit(pipeline, str(n), delay=1000)
        calls = world.stores[0].calls
        before = Counter(calls)
        assert len(await engine.list(limit=50)) == 50
        assert calls - before == {"list": 1}


# --- memory


def living() -> int:
    """Objects of ours that live now."""
    gc.collect()
    return sum(isinstance(thing, (LiveRun, Projection, asyncio.Task, asyncio.Future)) for thing in gc.get_objects())


@virtually
async def test_runs_that_ended_leave_nothing_in_memory(system: VirtualSystem) -> None:
    """R-7: however many; not in the engine, not for those who watched, not for deadlines or trouble."""

    @step("one/v1", timeout=1000, retry=Retry(initial=0.001))
    async def one(inv: Inv) -> None:
        if inv.attempt == 1:
            raise OSError("down")

    pipeline = line(one, deadline=10_000)
    async with World(system).engine(app(pipeline)) as engine:

        async def some() -> None:
            for run in [await engine.submit(pipeline, str(n)) for n in range(50)]:
                async for _ in run.watch():
                    pass
                await run.result()

        await some()
        await engine.idle()
        before = living()
        for _ in range(5):
            await some()
        await engine.idle()
        assert living() <= before


@virtually
async def test_asking_how_a_run_stands_leaves_nothing_in_memory(system: VirtualSystem) -> None:
    """I-1: reads do not pin."""
    pipeline = waiting(Gate())
    world = World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        run = await engine.submit(pipeline, "x", delay=1000)
        before = living()
        for _ in range(300):
            await client.info(run.id)
            await client.explain(run.id)
            with pytest.raises(TimeoutError):
                await client.result(run.id, timeout=0)
        assert living() <= before + 2
        await run.cancel()
        await until(run, "canceled")


# --- imports


def python(*arguments: str) -> str:
    """What a program of its own prints."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=90, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_steps_may_stand_in_the_main_program_and_use_processes() -> None:
    """I-1: nothing is imported again under another name."""
    assert python("tests/faults/script.py") == "49\n"


def test_importing_patches_nothing() -> None:
    """I-1: builtins, loop policy, hooks, warnings, signals and the root logger are as they were."""
    program = """
import asyncio, builtins, logging, signal, sys, threading, warnings

def world():
    return (
        dict(vars(builtins)), type(asyncio.get_event_loop_policy()), sys.excepthook, sys.unraisablehook,
        threading.excepthook, list(warnings.filters), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)],
        list(logging.getLogger().handlers), logging.getLogger().level, logging.getLoggerClass(),
        threading.active_count(), sys.getrecursionlimit(), sys.getswitchinterval(),
        list(sys.meta_path), list(sys.path_hooks),
    )

before = world()
import perdure, perdure.cli.main, perdure.testing.clock
assert world() == before
print("untouched")
"""
    assert python("-W", "ignore", "-c", program) == "untouched\n"
