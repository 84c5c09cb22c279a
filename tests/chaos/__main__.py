"""`python -m tests.chaos`: see the package. Exits with 1 where anything is not as it must be."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perdure import App, Client, ConflictError, PerdureError
from tests.chaos.app import payment
from tests.chaos.crew import Crew
from tests.chaos.judge import Verdict, judge
from tests.postgres import PostgresServer

ROLLBACK_EACH = 4
"""Every so manieth deployment is undone after a while."""


@dataclass(frozen=True)
class Plan:
    """What is done, and how often, in seconds."""

    seconds: float
    runs: int
    workers: int
    seed: int
    kill_each: float = 2.0
    restart_each: float = 20.0
    deploy_each: float = 30.0
    pause_each: float = 9.0
    patience: float = 240.0


async def insist(work: Callable[[], Awaitable[object]]) -> None:
    """Again until the server is there."""
    while True:
        try:
            await work()
            return
        except ConflictError:
            return
        except PerdureError:
            await asyncio.sleep(0.2)


async def every(seconds: float, until: float, act: Callable[[], Awaitable[None]]) -> None:
    """Do something again and again."""
    while time.monotonic() + seconds < until:
        await asyncio.sleep(seconds)
        await act()


class Chaos:
    """One go."""

    def __init__(self, plan: Plan, server: PostgresServer, folder: Path) -> None:
        self.plan, self.server = plan, server
        self.url = server.url(schema="chaos")
        self.dice = random.Random(plan.seed)
        self.crew = Crew(folder, self.url, plan.workers, self.dice)
        self.books = folder / "books"
        self.ids: list[str] = []
        self.restarts = self.cancels = self.released = self.rollbacks = 0
        self.late_us = 0

    async def run(self) -> Verdict:
        """All of it; what was found."""
        pipeline = payment(1)
        app = App(pipeline.bind(), store=self.url)
        self.books.touch()
        self.crew.fill()
        try:
            async with app.client() as client:
                until = time.monotonic() + self.plan.seconds
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.submit(client))
                    tasks.create_task(every(self.plan.kill_each, until, self.kill))
                    tasks.create_task(every(self.plan.pause_each, until, self.crew.pause_one))
                    tasks.create_task(every(self.plan.restart_each, until, self.restart))
                    tasks.create_task(every(self.plan.deploy_each, until, lambda: self.deploy(client)))
                    tasks.create_task(every(0.5, until, lambda: self.cancel(client)))
                    tasks.create_task(every(2.0, until, lambda: self.look_after(client)))
                await self.ended(client)
                return await judge(client, self.books, range(self.plan.runs))
        finally:
            self.crew.stop()

    async def submit(self, client: Client) -> None:
        """At an even rate, for most of the time."""
        pipeline, pace_s = payment(1), self.plan.seconds * 0.8 / self.plan.runs
        begun = time.monotonic()
        for number in range(self.plan.runs):

            async def one(number: int = number) -> None:
                self.ids.append((await client.submit(pipeline, number, idempotency_key=str(number))).id)

            await insist(one)
            await asyncio.sleep(max(0.0, begun + number * pace_s - time.monotonic()))

    async def kill(self) -> None:
        self.crew.kill_one()

    async def restart(self) -> None:
        """The server, by a kill and in good order in turn."""
        self.restarts += 1
        await asyncio.to_thread(self.server.stop, "immediate" if self.restarts % 2 else "fast")
        await asyncio.sleep(0.5)
        await asyncio.to_thread(self.server.start)

    async def deploy(self, client: Client) -> None:
        """A new version; or the one before once more, which some runs cannot go on with until the next one."""
        version = self.crew.version + 1
        if version % ROLLBACK_EACH == 0 and not self.rollbacks % 2:
            self.rollbacks += 1
            newest = max(deployment.generation for deployment in await client.deployments("payment"))
            await insist(lambda: client.roll_back("payment", newest - 1, actor="chaos", force=True))
            await self.crew.deploy(version - 2)
            self.crew.version = version - 1
            return
        await self.crew.deploy(version)

    async def cancel(self, client: Client) -> None:
        """One of the runs, whatever it does."""
        if self.ids:
            self.cancels += 1
            await insist(lambda: client.cancel(self.dice.choice(self.ids[-200:]), reason="chaos", actor="chaos"))

    async def look_after(self, client: Client) -> None:
        """As an operator does: runs whose worker died five times in a row are held for somebody to look at."""
        with suppress(PerdureError):
            for run in await client.list(status="held"):
                self.released += 1
                await client.release(run.run_id, actor="chaos")

    async def ended(self, client: Client) -> None:
        """Wait until nothing is left."""
        give_up = time.monotonic() + self.plan.patience
        left = -1
        while time.monotonic() < give_up:
            self.crew.fill()
            await self.look_after(client)
            with suppress(PerdureError):
                left = sum((await client.counts(status=("ready", "running", "held", "invalid"))).values())
                if not left:
                    return
            await asyncio.sleep(0.5)
        print(f"{left} runs had not ended after {self.plan.patience:g} s", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Read the command line, and go."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args(arguments)
    plan = Plan(given.seconds, given.runs, given.workers, given.seed)
    print(f"{plan.runs} runs, {plan.workers} workers, {plan.seconds:g} s, seed {plan.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    chaos, verdict = go(plan, folder)
    print(report(chaos, verdict))
    if verdict.problems:
        print(f"log of the workers: {folder / 'workers.log'}")
        return 1
    shutil.rmtree(folder)
    return 0


def go(plan: Plan, folder: Path) -> tuple[Chaos, Verdict]:
    """One go on a server of its own."""
    server = PostgresServer(fsync=True)
    try:
        server.start()
        chaos = Chaos(plan, server, folder)
        return chaos, asyncio.run(chaos.run())
    finally:
        server.remove()


def report(chaos: Chaos, verdict: Verdict) -> str:
    """What happened, for people."""
    did = {**chaos.crew.did, "server restarts": chaos.restarts, "rollbacks": chaos.rollbacks}
    did |= {"cancels asked for": chaos.cancels, "held runs released": chaos.released}
    lines = [
        ", ".join(f"{count} {name}" for name, count in did.items()),
        ", ".join(f"{count} {status}" for status, count in sorted(verdict.outcomes.items())),
        f"{verdict.claims} claims, {verdict.lost} attempts lost",
        *[f"PROBLEM {problem}" for problem in verdict.problems[:30]],
        f"{len(verdict.problems)} problems" if verdict.problems else "every run ended once; the books are equal",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
