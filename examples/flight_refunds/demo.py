"""The demo: a bank, a worker, 460 runs, three edits while they are under way, and one `kill -9`."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from examples.flight_refunds.app import app_for
from examples.flight_refunds.audit import audit, keys_by_run, paid_by_run
from examples.flight_refunds.children import Child, Worker, open_bank, open_worker
from examples.flight_refunds.edits import Life, came_true, problems, told
from examples.flight_refunds.flights import CarrierDay, read_month
from examples.flight_refunds.progress import Cell, Snapshot, View
from examples.flight_refunds.rollout import KILL_AT, Rollout, edits_after, version_of
from examples.flight_refunds.settings import Settings
from examples.flight_refunds.summary import Summary, tally
from examples.flight_refunds.versions import PIPELINE, V4
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
        CheckRefused: a version must not be deployed.
    """
    began_s = time.monotonic()
    plan = sorted(read_month(), key=lambda run: (run.day, run.carrier))
    async with open_bank(settings) as bank, app_for(settings, V4).client() as client:
        version = await version_of(client)
        async with open_worker(settings, version) as worker:
            known = await list_runs(client)
            if known:
                found = f"{len(known)} of {len(plan)} runs are here from an earlier demo, {ended(known)} have ended"
                view.say(f"{found}; to start over, delete {settings.directory}")
            stage = Stage(settings, view, plan, client, bank, worker, began_s)
            edits = edits_after(version) if settings.edit else []
            kill = settings.kill and ended(known) < len(plan) * KILL_AT
            rollout = Rollout(settings, view, client, worker, stage.look, edits, kill)
            runs = await stage.play(known, rollout)
            return await summarise(settings, client, runs, rollout, began_s)


async def summarise(settings: Settings, client: Client, runs: Runs, rollout: Rollout, began_s: float) -> Summary:
    """What the journals, the registry of deployments and the bank's file say, each of them read whole."""
    lives = [Life(run.run_id, name, await client.journal(run.run_id)) for name, run in runs.items()]
    deployments = await client.deployments(PIPELINE)
    keys = keys_by_run(settings.bank_file)
    edits = told(lives, deployments)
    wrong = [*rollout.surprises, *problems(lives, deployments, keys)]
    told_of = {each.edit.name: each for each in edits}
    for said in rollout.foretold:
        became = told_of.get(said.edit.name)
        if became is None:
            wrong.append(f"when {said.edit.what}: the registry of deployments does not know it")
        elif not came_true(said, became):
            wrong.append(f"when {said.edit.what}: {said}, but {dict(became.soon)} of {became.in_flight} runs")
    counts = tally([[recorded.fact for recorded in life.facts] for life in lives])
    paid_with = Counter(key.split("/do/")[-1] for key in chain.from_iterable(keys.values()))
    return Summary(
        counts, audit(settings.bank_file), edits, dict(sorted(paid_with.items())), wrong, time.monotonic() - began_s
    )


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

    async def play(self, known: Runs, rollout: Rollout) -> Runs:
        """Lets the days pass until every run has ended, and the edits be deployed on the way.

        Args:
            known: runs that an earlier demo has submitted; their days are over already.
        """
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
            await rollout.turn(runs.values(), len(self.plan))
            await asyncio.sleep(self.settings.pace.look_every_s)

    async def submit(self, until: int) -> None:
        """Submits the runs of all days until that one.

        Those of an earlier demo are submitted again, which is harmless: with `slot="once"` a carrier and day has one
        run, for ever, and whoever submits it again is given that one.
        """
        due = [run for run in self.plan if run.day.day <= until][self.submitted :]
        await asyncio.gather(*(self.client.submit(V4, run, actor="demo") for run in due))
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


async def list_runs(client: Client) -> Runs:
    """All runs of the month by resource."""
    return {run.resource: run for run in await client.list(pipeline=PIPELINE, limit=1_000)}


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
            return Cell.SETTLING if run.reason == "polling" else Cell.RETRYING if run.reason else Cell.WAITING


def complain_if_stuck(runs: Runs, directory: Path) -> None:
    """Raises `RunsStuck` if a run waits for an operator: then watching would never end."""
    stuck = [run for run in runs.values() if run.status in ("held", "invalid", "corrupt")]
    if stuck:
        first = stuck[0]
        raise RunsStuck(
            f"{len(stuck)} runs wait for an operator; {first.resource} is {first.status}: {first.reason}\n"
            f"look at it: FLIGHT_REFUNDS_DIR={directory} perdure explain {first.run_id} --app {APP}"
        )
