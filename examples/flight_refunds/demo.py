"""The demo: a bank, a worker, 460 runs, and one `kill -9` half-way."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        known = await submit(client, plan)
        if known:
            view.say(f"{known} of {len(plan)} runs are here from an earlier demo; they are left as they are")
        stage = Stage(settings, view, plan, client, bank, worker, began_s)
        half_done = ended(await list_runs(client)) >= len(plan) // 2
        runs = await stage.play(kill=settings.kill and not half_done)
        counts = tally([[recorded.fact for recorded in await client.journal(run.run_id)] for run in runs.values()])
    return Summary(counts, audit(settings.bank_file), time.monotonic() - began_s)


async def submit(client: Client, plan: Sequence[CarrierDay]) -> int:
    """Submits a run for each carrier and day; returns how many there were already.

    Doing it again is harmless: with `slot="once"` a carrier and day has one run, for ever, and submitting it again
    answers with that one.
    """
    handles = [await client.submit(refunds, run, actor="demo") for run in plan]
    return sum(not handle.created for handle in handles)


@dataclass(frozen=True)
class Stage:
    """Everything that takes part."""

    settings: Settings
    view: View
    plan: Sequence[CarrierDay]
    client: Client
    bank: Child
    worker: Worker
    began_s: float

    async def play(self, *, kill: bool) -> Runs:
        """Watches until every run has ended; kills the worker once, when half of them have, if asked to."""
        while True:
            runs = await list_runs(self.client)
            self.view.show(self.snapshot(runs))
            if ended(runs) == len(self.plan):
                return runs
            self.bank.check()
            self.worker.check()
            complain_if_stuck(runs)
            if kill and ended(runs) >= len(self.plan) // 2:
                kill = False
                await self.kill_and_restart(runs)
            await asyncio.sleep(self.settings.pace.look_every_s)

    async def kill_and_restart(self, runs: Runs) -> None:
        """Kills the worker in the middle of whatever it is doing, and starts another that knows nothing of it."""
        await self.worker.kill()
        self.view.say(f"kill -9 {self.worker.pid}: the worker is dead in the middle of its work")
        self.view.show(self.snapshot(runs))
        await asyncio.sleep(self.settings.pace.stay_dead_s)
        await self.worker.start()
        self.view.say(f"a new worker, process {self.worker.pid}, goes on from the journal")

    def snapshot(self, runs: Runs) -> Snapshot:
        """What the journal's index says of the runs, and the bank's file of the money."""
        paid = paid_by_run(self.settings.bank_file)
        return Snapshot(
            seconds=time.monotonic() - self.began_s,
            cells={run: cell_of(runs.get(run.name), has_paid=run.name in paid) for run in self.plan},
            paid=sum(count for count, _ in paid.values()),
            paid_cents=sum(cents for _, cents in paid.values()),
            worker=self.worker.doing,
        )


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


def complain_if_stuck(runs: Runs) -> None:
    """Raises `RunsStuck` if a run waits for an operator: then watching would never end."""
    stuck = [run for run in runs.values() if run.status in ("held", "invalid", "corrupt")]
    if stuck:
        first = stuck[0]
        raise RunsStuck(
            f"{len(stuck)} runs wait for an operator; {first.resource} is {first.status}: {first.reason}\n"
            f"look at it: perdure explain --app examples.flight_refunds.app:app {first.run_id}"
        )
