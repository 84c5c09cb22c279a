"""Real processes around a real file: kills, clients beside the engine, a second engine, forks, a full disk."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Canceled, StoreUnavailable, Succeeded, step
from perdure.core.facts import OperationReserved, OperationResolved, OperationSucceeded, RunCancelRequested
from perdure.storage.sqlite import SqliteStore
from tests.runtime import process as child
from tests.runtime.lab import Events, Gate, Inv, Line, app, facts, line, until

ROOT = Path(__file__).resolve().parents[2]


def start(command: str, *arguments: object, effects: Path | None = None) -> subprocess.Popen[str]:
    """Run a command of `tests/runtime/process.py` in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        child.EFFECTS: str(effects or os.devnull),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.process", command, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def told(process: subprocess.Popen[str]) -> str:
    """The next line a process prints; empty when it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def kill(process: subprocess.Popen[str]) -> None:
    """End a process as a power cut would."""
    process.kill()
    with process:
        pass


async def run(command: str, *arguments: object) -> list[str]:
    """Run a command to its end, while the loop here goes on; the lines it printed."""
    process = start(command, *arguments)
    output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, output
    lines: list[str] = output.splitlines()
    return lines


async def test_kill_again_and_again_loses_nothing_acknowledged_and_every_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: Callable[[str], None]
) -> None:
    """J-14, M-8, R-7: a worker is killed in the middle of its steps; what its journal says happened has happened."""
    path, effects = tmp_path / "store.db", tmp_path / "effects"
    acknowledged: list[str] = []
    kills = 4
    for number in range(kills):
        async with child.app.client(store=SqliteStore(path)) as client:
            acknowledged += [(await client.submit(child.work, f"{number} {n}")).id for n in range(12)]
        process = start("worker", path, effects=effects)
        for _ in range(8 + 5 * number):
            assert told(process)
        kill(process)
    monkeypatch.setenv(child.EFFECTS, str(effects))
    async with child.app.engine(store=SqliteStore(path)) as engine:
        results = {run_id: await engine.result(run_id, timeout=60) for run_id in acknowledged}
        journals = {run_id: await facts(await engine.run(run_id)) for run_id in acknowledged}
        assert (await engine.verify()).findings == ()
    happened = effects.read_text().splitlines()
    attempts = {tuple(token.split()[:3]) for token in happened}
    assert len(attempts) == len(happened)  # no attempt ran twice
    for run_id, result in results.items():
        assert isinstance(result, Succeeded)
        recorded: Any = result.output
        assert set(recorded) <= set(happened)  # every recorded success had its effect
        reserved = {(run_id, f.step, str(f.attempt)) for f in journals[run_id] if isinstance(f, OperationReserved)}
        assert {attempt for attempt in attempts if attempt[0] == run_id} <= reserved  # M-8: none began unreserved
        succeeded = Counter(f.step for f in journals[run_id] if isinstance(f, OperationSucceeded))
        assert succeeded == {"one/v1": 1, "two/v1": 1, "three/v1": 1}
    repeated = len(happened) - len(acknowledged) * 4
    note(f"{kills} kills, {len(acknowledged)} runs, 0 lost, {repeated} attempts repeated")


async def test_after_a_kill_only_the_items_that_were_lost_are_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B-10, M-17: ten items are done, four run, six have not begun; attempts count for each."""
    path, effects = tmp_path / "store.db", tmp_path / "effects"
    async with child.app.client(store=SqliteStore(path)) as client:
        run = await client.submit(child.itemized, "x")
    process = start("worker", path, effects=effects)
    waiting = 0
    while waiting < 4:
        said = told(process)
        assert said
        waiting += said.startswith("waiting")
    kill(process)
    assert len(effects.read_text().splitlines()) == 14
    monkeypatch.setenv(child.EFFECTS, str(effects))
    process = start("worker", path, effects=effects)  # 14 to 19 hang in their first attempt, four at a time
    waiting = 0
    while waiting < 4:
        said = told(process)
        assert said
        waiting += said.startswith("waiting")
    kill(process)
    process = start("worker", path, effects=effects)
    waiting = 0
    while waiting < 2:
        said = told(process)
        assert said
        waiting += said.startswith("waiting")
    kill(process)
    async with child.app.engine(store=SqliteStore(path)) as engine:
        result = await engine.result(run.id, timeout=60)
        assert (await engine.verify()).findings == ()
    assert isinstance(result, Succeeded)
    made: Any = result.output
    assert [token.split()[1:3] for token in made] == [
        [f"items/v1#{index}", "1" if index < 10 else "2"] for index in range(20)
    ]
    happened = Counter(token.split()[1] for token in effects.read_text().splitlines())
    assert happened == {f"items/v1#{index}": 1 if index < 10 else 2 for index in range(20)}


async def test_an_operation_that_kills_its_worker_is_stopped_and_the_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M-5: one poison among twenty; after five lost attempts it is held, whatever the policy."""
    path, effects = tmp_path / "store.db", tmp_path / "effects"
    async with child.app.client(store=SqliteStore(path)) as client:
        runs = [await client.submit(child.poisoned, "poison" if n == 7 else "harmless") for n in range(20)]
    deaths = 0
    while deaths < 5:
        process = start("worker", path, effects=effects)
        with process:
            while told(process):
                pass
        assert process.returncode == -9
        deaths += 1
    monkeypatch.setenv(child.EFFECTS, str(effects))
    async with child.app.engine(store=SqliteStore(path)) as engine:
        async with asyncio.timeout(60):
            info = await until(await engine.run(runs[7].id), "held")
        assert (info.reason, info.step) == ("lost-attempts", "poison/v1")
        for n, run in enumerate(runs):
            if n != 7:
                assert isinstance(await engine.result(run.id, timeout=30), Succeeded)
    poison = [line for line in effects.read_text().splitlines() if line.startswith(runs[7].id)]
    assert len(poison) == 5


async def test_a_client_in_another_process_is_noticed_by_the_running_engine(tmp_path: Path) -> None:
    """R-2, R-12, R-17: it submits, cancels and resolves what is owned here, at once and without writing to wake us."""
    path = tmp_path / "store.db"
    os.environ.setdefault(child.EFFECTS, os.devnull)
    async with child.app.engine(store=SqliteStore(path)) as engine:
        first = await engine.submit(child.patient, "to be canceled")
        second = await engine.submit(child.patient, "to be resolved")
        third = await engine.submit(child.work, "to be held", delay=3600)
        lines = await run(
            "client",
            path,
            "submit:from outside",
            f"cancel:{first.id}",
            f"result:{first.id}",
            f"resolve:{second.id}",
            f"result:{second.id}",
            f"hold:{third.id}",
            f"release:{third.id}",
        )
        submitted, run_id = lines[0].split()
        assert [submitted, *lines[1:]] == [
            "submitted",
            "asked",
            "Canceled",
            "resolved",
            "Succeeded",
            "held",
            "released",
        ]
        assert isinstance(await engine.result(run_id, timeout=30), Succeeded)
        assert isinstance(await first.result(timeout=30), Canceled)
        assert isinstance(await second.result(timeout=30), Succeeded)
        told_by = [fact.actor for fact in await facts(first) if isinstance(fact, RunCancelRequested)]
        told_by += [fact.actor for fact in await facts(second) if isinstance(fact, OperationResolved)]
        assert told_by == ["child", "child"]


async def test_a_second_engine_is_told_who_holds_the_file(tmp_path: Path) -> None:
    """R-2: worker, process and host; the first one is not disturbed."""
    path = tmp_path / "store.db"
    async with child.app.engine(store=SqliteStore(path)) as engine:
        [refused] = await run("second_engine", path)
        assert refused.startswith("StoreInUse ")
        assert engine.worker in refused
        assert re.search(rf"process {os.getpid()}\b", refused)
        waiting = await engine.submit(child.patient, "x")
        await waiting.cancel()
        assert isinstance(await waiting.result(timeout=30), Canceled)
    assert await run("second_engine", path) == ["started"]


async def test_a_killed_engine_leaves_no_lock_behind(tmp_path: Path) -> None:
    """R-2, R-7"""
    path = tmp_path / "store.db"
    process = start("worker", path)
    assert told(process) == "started"
    kill(process)
    assert await run("second_engine", path) == ["started"]


async def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    """R-2"""
    lines = await run("fork", tmp_path / "store.db")
    told = [line for line in lines if not line.startswith(("effect", "waiting"))]
    assert told == ["child StoreUnavailable True", "Succeeded", "Succeeded", "True"]


async def test_a_full_disk_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    """R-8: no run fails for it; when there is room again everything goes on."""
    lines = await run("fill_disk", tmp_path / "store.db")
    assert lines[-3:] == ["waited True", "succeeded 200", "found 0"]


# --- in this process


def waits(gate: Gate) -> Line:
    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()

    @step("two/v1")
    async def two(inv: Inv) -> None:
        pass

    return line(one, two)


async def test_a_lock_of_another_program_is_waited_for(tmp_path: Path) -> None:
    """R-8: appends, claims and submissions wait; the observers are told; no run notices."""
    path = tmp_path / "store.db"
    gate, events = Gate(), Events()
    pipeline = waits(gate)
    store = SqliteStore(path, patience_s=0.01)
    async with app(pipeline).engine(store=store, observers=[events]) as engine:
        running = await engine.submit(pipeline, "running")
        await gate.until(1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        gate.go.set()
        submitting = asyncio.ensure_future(engine.submit(pipeline, "new"))
        async with asyncio.timeout(30):
            await events.until("store-trouble")
        assert not submitting.done()
        assert (await engine.info(running.id)).status == "running"  # reads go on
        other.execute("ROLLBACK")
        other.close()
        for run in (running, await submitting):
            assert isinstance(await run.result(timeout=30), Succeeded)
            assert "OperationRetryScheduled" not in [type(fact).__name__ for fact in await facts(run)]


async def test_a_file_that_is_gone_stops_the_engine_cleanly(tmp_path: Path) -> None:
    """R-8: everybody who waits is told, nothing hangs, nothing is written to whatever takes the file's name."""
    path = tmp_path / "store.db"
    gate, events = Gate(), Events()
    pipeline = waits(gate)
    async with asyncio.timeout(60):
        async with app(pipeline).engine(store=SqliteStore(path), observers=[events]) as engine:
            run = await engine.submit(pipeline, "x")
            await gate.until(1)
            for name in os.listdir(tmp_path):
                if not name.endswith("-owner"):
                    os.unlink(tmp_path / name)
            path.write_bytes(b"")
            gate.go.set()
            error = await engine.failed()
            assert "store.db" in str(error)
            with pytest.raises(StoreUnavailable):
                await run.result()
            with pytest.raises(StoreUnavailable):
                await engine.submit(pipeline, "y")
            assert "store-trouble" in events.kinds()
    assert path.read_bytes() == b""


async def test_messages_from_two_processes_are_kept_once_each_and_wake_the_run(tmp_path: Path) -> None:
    """B-24, R-16, J-5: with one key between them one is received, whoever comes first."""
    path = tmp_path / "store.db"
    async with child.app.engine(store=SqliteStore(path)) as engine:
        waiting = await engine.submit(child.listener, "x")
        await until(waiting, "ready")
        answers = await asyncio.gather(
            *(run("client", path, *(f"send:{waiting.id} {word} k" for _ in range(3))) for word in ("one", "two"))
        )
        lost, won = sorted(answers, key=lambda lines: "sent" in lines)
        assert (won, lost) == (["sent", "duplicate", "duplicate"], ["KeyTaken"] * 3)
        async for info in waiting.watch():
            if info.step == "again/v1":
                break
        assert await run("client", path, f"send:{waiting.id} last l", f"result:{waiting.id}") == ["sent", "Succeeded"]
        result = await waiting.result()
        assert isinstance(result, Succeeded)
        assert result.output == ["one" if won is answers[0] else "two", "last"]
        assert (await engine.verify()).findings == ()
