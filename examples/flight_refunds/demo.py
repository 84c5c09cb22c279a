"""The demo: a bank, a worker, 460 runs, and one `kill -9` half-way."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.flight_refunds.app import app_for
from examples.flight_refunds.audit import audit, paid_by_run
from examples.flight_refunds.children import Child, Worker, open_bank, open_worker
from examples.flight_refunds.flights import CarrierDay, read_month
from examples.flight_refunds.pipeline import refunds
from examples.flight_refunds.progress import Cell, Snapshot, View
from examples.flight_refunds.settings import Settings
from examples.flight_refunds.summary import Summary, tally
from perdure import Client, RunInfo

Runs = Mapping[str, RunInfo]
"""What the index says of the runs, by resource: a run's resource is the name of its carrier and day."""


APP = "examples.flight_refunds.app:app"


class RunsStuck(Exception):
    """Runs that only an operator gets going again; the message says which, and how to look at one."""


async def demo(settings: Settings, view: View) -> Summary:
    """Runs the month, or what is left of it: where all is done, nothing is submitted or paid again.

    Raises:
        ChildDied: the bank or the worker ended by itself.
        RunsStuck: runs are held or invalid.
    """
    began_s = time.monotonic()
    plan = sorted(read_month(), key=lambda run: (run.day, run.carrier))
    async with open_bank(settings) as bank, open_worker(settings) as worker, app_for(settings).client() as client:
        known = await list_runs(client)
        if known:
            found = f"{len(known)} of {len(plan)} runs are here from an earlier demo, {ended(known)} have ended"
            view.say(f"{found}; to start over, delete {settings.directory}")
        stage = Stage(settings, view, plan, client, bank, worker, began_s)
        runs = await stage.play(known)
        counts = tally([[recorded.fact for recorded in await client.journal(run.run_id)] for run in runs.values()])
    return Summary(counts, audit(settings.bank_file), time.monotonic() - began_s)


@dataclass
class Stage:
    """Everything that takes part. `submitted` counts the runs of the plan that were submitted by this demo."""

    settings: Settings
    view: View
    plan: Sequence[CarrierDay]
    client: Client
    bank: Child
    worker: Worker
    began_s: float
    submitted: int = 0

    async def play(self, known: Runs) -> Runs:
        """Lets the days pass until every run has ended; when half of them have, kills the worker.

        Args:
            known: runs that an earlier demo has submitted; their days are over already.
        """
        half = len(self.plan) // 2
        kill = self.settings.kill and ended(known) < half
        today = max((run.day.day for run in self.plan if run.name in known), default=0)
        first_s = time.monotonic()
        while True:
            await self.submit(until=today + 1 + int((time.monotonic() - first_s) / self.settings.pace.day_s))
            runs = await self.look()
            if ended(runs) == len(self.plan):
                return runs
            self.bank.check()
            self.worker.check()
            complain_if_stuck(runs, self.settings.directory)
            if kill and ended(runs) >= half:
                kill = False
                await self.kill_and_restart()
            await asyncio.sleep(self.settings.pace.look_every_s)

    async def submit(self, until: int) -> None:
        """Submits the runs of all days until that one.

        Those of an earlier demo are submitted again, which is harmless: with `slot="once"` a carrier and day has one
        run, for ever, and whoever submits it again is given that one.
        """
        due = [run for run in self.plan if run.day.day <= until][self.submitted :]
        await asyncio.gather(*(self.client.submit(refunds, run, actor="demo") for run in due))
        self.submitted += len(due)

    async def look(self) -> Runs:
        """Shows what the journal's index says of the runs, and the bank's file of the money."""
        runs = await list_runs(self.client)
        paid = paid_by_run(self.settings.bank_file)
        snapshot = Snapshot(
            seconds=time.monotonic() - self.began_s,
            cells={run: cell_of(runs.get(run.name), has_paid=run.name in paid) for run in self.plan},
            paid=sum(count for count, _ in paid.values()),
            paid_cents=sum(cents for _, cents in paid.values()),
            worker=self.worker.doing,
        )
        self.view.show(snapshot)
        return runs

    async def kill_and_restart(self) -> None:
        """Kills the worker in the middle of whatever it is doing, and starts another that knows nothing of it."""
        await self.worker.kill()
        running = sum(run.status == "running" for run in (await self.look()).values())
        self.view.say(f"kill -9 {self.worker.pid}: the worker is dead, {running} runs are left in mid-step")
        await asyncio.sleep(self.settings.pace.stay_dead_s)
        await self.worker.start()
        await self.look()
        self.view.say(f"a new worker, process {self.worker.pid}, goes on from the journal")


async def list_runs(client: Client) -> Runs:
    """All runs of the month by resource."""
    return {run.resource: run for run in await client.list(pipeline=refunds.id, limit=1_000)}


def ended(runs: Runs) -> int:
    """How many runs need no more work."""
    return sum(run.ended_us is not None for run in runs.values())


def cell_of(run: RunInfo | None, *, has_paid: bool) -> Cell:
    """How to show a run."""
    if run is None:
        return Cell.WAITING
    match run.status:
        case "succeeded":
            return Cell.PAID if has_paid else Cell.QUIET
        case "failed" | "canceled":
            return Cell.UNWOUND
        case "held" | "invalid" | "corrupt":
            return Cell.STUCK
        case "running":
            return Cell.RUNNING
        case _:
            return Cell.RETRYING if run.reason else Cell.WAITING


def complain_if_stuck(runs: Runs, directory: Path) -> None:
    """Raises `RunsStuck` if a run waits for an operator: then watching would never end."""
    stuck = [run for run in runs.values() if run.status in ("held", "invalid", "corrupt")]
    if stuck:
        first = stuck[0]
        raise RunsStuck(
            f"{len(stuck)} runs wait for an operator; {first.resource} is {first.status}: {first.reason}\n"
            f"look at it: FLIGHT_REFUNDS_DIR={directory} perdure explain {first.run_id} --app {APP}"
        )
