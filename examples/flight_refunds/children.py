"""The processes of the demo: started, killed on purpose, and never left behind."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.flight_refunds.settings import Settings

BANK = "examples.flight_refunds.bank"
WORKER = "examples.flight_refunds.worker"
APPS = "examples.flight_refunds.app"
ROOT = Path(__file__).parents[2]
STOP_WITHIN_S = 10.0


class ChildDied(Exception):
    """A process of the demo ended although nobody asked it to; the message ends with what it wrote last."""


def environment() -> dict[str, str]:
    """Ours, in which the example can be imported from anywhere."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Child:
    """A Python process with its own session (Ctrl-C reaches only us) that ends when we do (its standard input closes).

    Use `Child.start`. What it writes to its error output goes to `<name>.log` in the directory.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, settings: Settings, *arguments: str) -> "Child":
        """Starts `python -m` with these arguments."""
        log = settings.directory / f"{name}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                pass_fds=() if settings.lock is None else (settings.lock,),
                env=environment(),
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ready(self) -> None:
        """Waits for the line with which it says that it is ready. Raises `ChildDied` if it ends instead."""
        if self._process.stdout is not None and await self._process.stdout.readline():
            return
        await self._process.wait()
        self.check()

    def check(self) -> None:
        """Raises `ChildDied` if it ended."""
        if self._process.returncode is not None:
            written = self._log.read_text(errors="replace").strip().splitlines()[-15:]
            ended = f"the {self._name}, process {self.pid}, ended with code {self._process.returncode}"
            raise ChildDied("\n".join([ended, *written]))

    async def kill(self) -> None:
        """`kill -9`: it gets no chance to tidy up."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Asks it to end by closing its standard input; kills it if it does not."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            await self.kill()


@asynccontextmanager
async def open_bank(settings: Settings) -> AsyncGenerator[Child]:
    """The bank, open for as long as the block lasts."""
    pace = settings.pace
    delays = ("--usual-s", str(pace.bank_s), "--slow-s", str(pace.bank_slow_s), "--hang-s", str(pace.bank_hangs_s))
    settle = ("--settle-s", str(pace.settle_s))
    bank = await Child.start("bank", settings, BANK, str(settings.directory), *delays, *settle)
    try:
        await bank.ready()
        yield bank
    finally:
        await bank.stop()


class Worker:
    """The worker process: one, and after its death another.

    Attributes:
        version: what the one started next deploys.
        pid: process id of the one started last.
        doing: what it is doing, for people.
    """

    def __init__(self, settings: Settings, version: str) -> None:
        self._settings = settings
        self.version = version
        self._child: Child | None = None
        self.pid = 0
        self.doing = "not started"

    async def start(self) -> None:
        """Starts a process and waits until its engine runs."""
        settings = self._settings
        self._child = await Child.start(
            "worker", settings, WORKER, str(settings.directory), settings.speed, self.version
        )
        self.pid = self._child.pid
        self.doing = f"process {self.pid}, starting {self.version}"
        await self._child.ready()
        self.doing = f"process {self.pid}, working on {self.version}"

    def check(self) -> None:
        """Raises `ChildDied` if the process ended by itself."""
        if self._child is not None:
            self._child.check()

    async def kill(self) -> None:
        """`kill -9`: it gets no chance to tidy up."""
        if self._child is not None:
            await self._child.kill()
            self.doing = f"process {self.pid}, dead"

    async def stop(self) -> None:
        """Lets it finish what it is doing, then ends it."""
        if self._child is not None:
            await self._child.stop()
            self.doing = f"process {self.pid}, ended"


@asynccontextmanager
async def open_worker(settings: Settings, version: str) -> AsyncGenerator[Worker]:
    """A worker that runs until the end of the block."""
    worker = Worker(settings, version)
    try:
        await worker.start()
        yield worker
    finally:
        await worker.stop()


@dataclass(frozen=True)
class Checked:
    """What `perdure check` said: the command as one would type it, its output, and its exit code."""

    command: str
    output: str
    code: int


async def perdure_check(settings: Settings, version: str) -> Checked:
    """Runs `perdure check` on a version and the runs of this demo. It changes nothing."""
    arguments = ("check", "--app", f"{APPS}:{version}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "perdure.cli.main",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        cwd=settings.directory,
        env={**environment(), "FLIGHT_REFUNDS_DIR": str(settings.directory)},
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return Checked(" ".join(("perdure", *arguments)), output.decode(), process.returncode or 0)
