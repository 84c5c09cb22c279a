"""Processes that work on one server: paused beyond their lease, with wrong clocks, forgotten by a careless hand."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from perdure import App, Client, Run, Succeeded
from perdure.core.facts import SegmentAttemptStarted
from perdure.runtime.membership import MARGIN
from perdure.runtime.system import RealSystem
from tests.faults.worker import LEASE_S, Skewed, work
from tests.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
HOUR_S = 3600.0


class Worker:
    """A process; see `tests/faults/worker.py`."""

    def __init__(self, url: str, effects: Path, skew_s: float = 0.0, lease_s: float = LEASE_S) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.worker", url, str(effects), str(skew_s), str(lease_s)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.id = ""

    async def up(self) -> None:
        """Wait until it works."""
        self.id = (await self._line()).removeprefix("up ")

    async def _line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    async def until(self, step: str, times: int = 1) -> None:
        """Wait until it has begun a step so many times more."""
        while times:
            line = await self._line()
            assert line, "it has ended"
            times -= line == step

    def let_go(self) -> None:
        """The long ones may end, as soon as it reads this."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """Let it go on if it was stopped, and leave in good order."""
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()


class Effects:
    """What was done, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[tuple[float, str, str, str]]:
        """When, by which worker, for which run, which step."""
        text = self.path.read_text() if self.path.exists() else ""
        words = [line.split() for line in text.splitlines()]
        return [(float(at_s), worker, run_id, step) for at_s, worker, run_id, step in words]

    def of(self, run: Run[object]) -> list[tuple[str, str]]:
        """Worker and step of each effect of a run."""
        return [(worker, step) for _, worker, run_id, step in self.lines() if run_id == run.id]


@asynccontextmanager
async def client_of(url: str, skew_s: float = 0.0) -> AsyncGenerator[Client]:
    """A client, whose clock may be wrong."""
    async with App(work.bind(), store=url).client(system=Skewed(skew_s)) as client:
        yield client


async def claims(run: Run[object]) -> list[str]:
    """Who claimed a run, in order."""
    return [fact.fact.worker for fact in await run.journal() if isinstance(fact.fact, SegmentAttemptStarted)]


async def test_a_worker_that_was_stopped_for_longer_than_its_lease_does_nothing_more(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """R-3: SIGSTOP in the middle of a handler; another ends the run, and the woken one goes on as somebody else."""
    url, effects = postgres.url(), Effects(tmp_path / "effects")
    with closing(Worker(url, effects.path)) as first:
        await first.up()
        async with client_of(url) as client:
            runs = [await client.submit(work, "long") for _ in range(5)]
            await first.until("long/v1", 5)
            first.process.send_signal(signal.SIGSTOP)
            stopped_s = RealSystem().steady_s()
            with closing(Worker(url, effects.path)) as second:
                await second.up()
                first.let_go()  # as soon as it wakes, its handlers return
                second.let_go()
                for run in runs:
                    assert isinstance(await run.result(timeout=30), Succeeded)
                    assert await claims(run) == [first.id, second.id]
                    assert effects.of(run)[-2:] == [(second.id, "long/v1"), (second.id, "last/v1")]
                facts = [len(await run.journal()) for run in runs]
                first.process.send_signal(signal.SIGCONT)
            # the second one has left: what is submitted now only the first can do, under its new name
            after = await client.submit(work, "x")
            assert isinstance(await after.result(timeout=30), Succeeded)
            (newly,) = await claims(after)
            assert newly not in (first.id, second.id)
            assert [len(await run.journal()) for run in runs] == facts
            assert (await client.verify()).findings == ()
    past_s = stopped_s + LEASE_S * (1 - MARGIN)
    assert [line for line in effects.lines() if line[1] == first.id and line[0] > past_s] == []
    assert {worker for worker, _ in effects.of(after)} <= {first.id, newly}


async def test_clocks_that_are_an_hour_off_delay_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    """R-4: two workers and a client whose clocks differ by an hour go by the clock of the server."""
    url, effects, lease_s = postgres.url(), Effects(tmp_path / "effects"), HOUR_S / 60  # nobody is silent for so long
    with (
        closing(Worker(url, effects.path, HOUR_S, lease_s)) as fast,
        closing(Worker(url, effects.path, -HOUR_S, lease_s)) as slow,
    ):
        await fast.up()
        await slow.up()
        for skew_s in (0.0, HOUR_S, -HOUR_S):
            async with client_of(url, skew_s) as client:
                begun_s = RealSystem().steady_s()
                runs = [await client.submit(work, "flaky" if n % 2 else "x", delay=n / 100) for n in range(10)]
                for run in runs:
                    assert isinstance(await run.result(timeout=60), Succeeded)
                times = [at_s for at_s, _, run_id, _ in effects.lines() if run_id in {run.id for run in runs}]
                assert min(times) - begun_s < HOUR_S / 2
                at_us = [fact.at_us for run in runs for fact in await run.journal()]
                assert max(at_us) - min(at_us) < HOUR_S / 2 * 1_000_000
        async with client_of(url) as client:
            assert [row.dead for row in await client.store.workers()] == [False, False]


async def test_a_worker_whose_row_was_deleted_goes_on_as_another(postgres: PostgresServer, tmp_path: Path) -> None:
    """R-3: by hand, while its handler runs: that handler counts for nothing, and is called once more."""
    schema = "deleted_by_hand"
    url, effects = postgres.url(schema=schema), Effects(tmp_path / "effects")
    with closing(Worker(url, effects.path)) as worker:
        await worker.up()
        async with client_of(url) as client:
            run = await client.submit(work, "long")
            await worker.until("long/v1")
            postgres.sql(f"DELETE FROM {schema}.worker")
            await worker.until("long/v1")
            worker.let_go()
            assert isinstance(await run.result(timeout=30), Succeeded)
            former, newly = await claims(run)
            assert former == worker.id
            assert newly != former
            assert [step for _, step in effects.of(run)] == ["flaky/v1", "long/v1", "long/v1", "last/v1"]
            assert (await client.verify()).findings == ()
