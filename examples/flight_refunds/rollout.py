"""The edits, deployed while runs are under way: the worker ends, `perdure check`, the next worker begins."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from examples.flight_refunds.children import Checked, Worker, perdure_check
from examples.flight_refunds.edits import Foretold, foretold
from examples.flight_refunds.progress import View
from examples.flight_refunds.settings import Settings
from examples.flight_refunds.versions import CARELESS, EDITS, PIPELINE, VERSIONS, Edit
from perdure import Client, RunInfo

KILL_AT = 0.5
"""The worker is killed when this share of the runs has ended."""
PATIENCE = 0.9
"""When this share of the runs has ended, an edit does not wait any more for runs to be at the step it replaces."""


class CheckRefused(Exception):
    """`perdure check` refuses a version that the demo wants to deploy; the message is what it said."""


async def version_of(client: Client) -> str:
    """The version that is current in the store; the first one where none of them is."""
    deployments = await client.deployments(PIPELINE)
    current = max(deployments, key=lambda each: each.generation).digest if deployments else ""
    return next((name for name, each in VERSIONS.items() if each.topology.digest == current), "v1")


def edits_after(version: str) -> list[Edit]:
    """Those that are not deployed yet."""
    names = list(VERSIONS)
    return [edit for edit in EDITS if names.index(edit.name) > names.index(version)]


@dataclass
class Rollout:
    """Deploys the edits when their time has come.

    Attributes:
        edits: those still to be deployed, in order.
        look: shows the newest state.
        kill: the worker is to be killed, once. The worker that comes after it deploys the edit that replaces a step,
            if that is still to come.
        foretold: what `check` said of each edit that was deployed here.
        surprises: what went otherwise than it should, in sentences.
    """

    settings: Settings
    view: View
    client: Client
    worker: Worker
    look: Callable[[], Awaitable[object]]
    edits: list[Edit]
    kill: bool
    foretold: list[Foretold] = field(default_factory=list[Foretold])
    surprises: list[str] = field(default_factory=list[str])

    async def turn(self, runs: Collection[RunInfo], total: int) -> None:
        """Does what is due: an edit, the kill, or nothing."""
        share = sum(run.ended_us is not None for run in runs) / total
        if self.edits and self.edits[0].share <= share:
            waits = self.edits[0].replaces is not None and share < PATIENCE
            if not waits or any(map(_is_polling, runs)):
                await self.deploy(self.edits.pop(0))
        elif self.kill and share >= KILL_AT and all(each.replaces is None for each in self.edits):
            await self.kill_and_restart()

    async def deploy(self, edit: Edit) -> None:
        """Ends the worker, checks, and starts the next one with the new version.

        While there is no worker nothing happens to the runs, so what `check` says can be compared with what became of
        them. It could as well be asked while one works.

        Raises:
            CheckRefused: runs would be stranded; nothing was deployed, and there is no worker now.
        """
        if edit.replaces is not None and self.kill:
            await self.kill_worker()
        else:
            await self.worker.stop()
            await self.look()
            self.view.say(f"the worker was asked to end: it has finished what it was doing, process {self.worker.pid}")
        if edit.replaces is not None:
            await self.try_careless(edit)
        report = await self.client.check([VERSIONS[edit.name]])
        checked = await self.check(edit.name)
        if checked.code != 0 or not report.ok:
            raise CheckRefused(checked.output)
        self.foretold.append(foretold(report, edit))
        self.worker.version = edit.name
        await self.worker.start()
        await self.look()
        self.view.say(f"{edit.what} by a new worker, process {self.worker.pid}")

    async def try_careless(self, edit: Edit) -> None:
        """Checks the version that strands runs. It has to be refused if there are such runs, and is not deployed."""
        said = foretold(await self.client.check([CARELESS]), edit)
        checked = await self.check("careless")
        if (checked.code != 0) is not (said.invalid > 0):
            self.surprises.append(
                f"perdure check ended with {checked.code} where {said.invalid} runs would be stranded"
            )
        told = f"{said.invalid} runs would be stranded: not deployed" if checked.code else "nobody would be stranded"
        self.view.say(f"without `retired` on the old step: exit code {checked.code}, {told}")

    async def check(self, version: str) -> Checked:
        """`perdure check`, shown."""
        checked = await perdure_check(self.settings, version)
        await self.look()
        self.view.show_command(checked.command, checked.output)
        return checked

    async def kill_worker(self) -> None:
        """Kills it in the middle of whatever it is doing."""
        self.kill = False
        await self.worker.kill()
        await self.look()
        runs = await self.client.list(pipeline=PIPELINE, status="running", limit=1_000)
        self.view.say(f"kill -9 {self.worker.pid}: the worker is dead, {len(runs)} runs are left in mid-step")

    async def kill_and_restart(self) -> None:
        """Kills the worker, and starts another that knows nothing of it."""
        await self.kill_worker()
        await asyncio.sleep(self.settings.pace.stay_dead_s)
        await self.worker.start()
        await self.look()
        self.view.say(f"a new worker, process {self.worker.pid}, goes on from the journal")


def _is_polling(run: RunInfo) -> bool:
    return run.status == "ready" and run.reason == "polling"
