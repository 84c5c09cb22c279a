"""`perdure worker`: processes that crash, drain, stop at once, and lose their supervisor [R-2, R-3, R-6]."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from perdure import step
from perdure.cli import supervisor
from perdure.cli.exits import Exit
from perdure.cli.main import main
from perdure.cli.output import Output
from perdure.cli.problems import Problem
from perdure.cli.serve import keep_told
from perdure.cli.supervisor import FIRST_DELAY_S, LONGEST_DELAY_S, STEADY_S, Restarts, how_ended, supervise
from perdure.cli.workerchild import Order
from perdure.testing.clock import VirtualSystem
from tests.cli.harness import Cli, records
from tests.cli.project import SETTINGS
from tests.cli.terminal import PATIENCE_S, Piped
from tests.postgres import PostgresServer
from tests.runtime.lab import Inv, app, line, virtually
from tests.runtime.test_workers import LEASE_S, Shared

SLOW = """
import asyncio
import os
import signal
from pathlib import Path

from perdure import App, Invocation, Pipeline, nothing, step

Inv = Invocation[str, object]


@step("wait/v1")
async def wait(inv: Inv) -> None:
    if inv.input == "deadly":
        Path("broken").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"{os.getpid()} begins {inv.input}.")
    while not Path(inv.input).exists():
        await asyncio.sleep(0.01)


slow: Pipeline[str, object, None] = Pipeline(
    id="slow", input=str, deps=object, resource=lambda i: i, steps=(wait,), output=nothing
)
app = App(slow.bind(), store="STORE")
if Path("broken").exists():
    raise ValueError("broken by now")
"""

Start = Callable[..., Piped]


@pytest.fixture
def start(folder: Path) -> Generator[Start]:
    """Give a function that starts `perdure worker` in a pipe."""
    started: list[Piped] = []

    def run(*arguments: str) -> Piped:
        started.append(Piped(folder, "worker", *arguments))
        return started[-1]

    yield run
    for each in started:
        each.close()


def write(folder: Path, store: str = "sqlite:///slow.db") -> None:
    """Write an application whose runs wait for a file with their name."""
    (folder / "slow.py").write_text(SLOW.replace("STORE", store))
    (folder / "pyproject.toml").write_text(SETTINGS.replace("shop", "slow"))


def submit(cli: Cli, name: str) -> None:
    assert cli("submit", "slow", json.dumps(name)).code == Exit.OK


def begun(worker: Piped, name: str) -> int:
    """Wait until an attempt of that run begins; in which process. What is read later came later."""
    worker.read_until(f"begins {name}.")
    before, _, worker.seen = worker.seen.partition(f" begins {name}.")
    return int(before.split()[-1])


def statuses(cli: Cli) -> list[object]:
    return [run["status"] for run in records(cli("list", "--json").json()["runs"])]


def test_what_a_killed_process_had_goes_on_at_once_and_a_signal_drains_all(
    folder: Path, cli: Cli, start: Start, postgres: PostgresServer
) -> None:
    """R-3, R-6: its row is marked dead by whoever saw it die; SIGTERM from a service manager, which reaches every
    process, and the supervisor's word together still are one wish to drain."""
    write(folder, postgres.url())
    submit(cli, "a")
    worker = start("--processes", "2", "--lease", "1h")
    first = begun(worker, "a")
    os.kill(first, signal.SIGKILL)
    worker.read_until("was killed by SIGKILL; it is started again in 0.5 s")
    second = begun(worker, "a")
    assert second != first
    (folder / "a").touch()
    worker.read_until("of slow succeeded")
    deadline = time.monotonic() + PATIENCE_S
    while cli("workers").out.count(" alive ") < 2 and time.monotonic() < deadline:
        pass  # the one that was started again takes a while to come
    submit(cli, "b")
    child = begun(worker, "b")
    os.kill(child, signal.SIGTERM)
    worker.read_until("draining: 1 running")
    worker.process.terminate()
    worker.read_until("draining 2 processes")
    (folder / "b").touch()
    seen = worker.read_to_end()
    assert worker.process.returncode == Exit.OK
    assert "stopped at once" not in seen
    assert statuses(cli) == ["succeeded"] * 2
    assert cli("workers").out == "no workers\n"
    (dead,) = records(cli("workers", "--all", "--json").json()["workers"])
    assert (dead["process"], dead["state"]) == (first, "dead")


def test_a_second_signal_stops_at_once(folder: Path, cli: Cli, start: Start) -> None:
    write(folder)
    submit(cli, "a")
    worker = start()
    begun(worker, "a")
    worker.process.terminate()
    worker.read_until("draining: 1 running")
    worker.process.terminate()
    assert "stopped at once; the next engine goes on" in worker.read_to_end()  # which nobody says who was killed
    assert worker.process.returncode == Exit.INTERRUPTED
    assert statuses(cli) == ["running"]  # it goes on where it was


def test_a_process_whose_supervisor_is_killed_drains(folder: Path, cli: Cli, start: Start) -> None:
    """R-6: it ends its attempts, begins no more, and ends; what it prints goes where it went before."""
    write(folder)
    submit(cli, "a")
    worker = start("--json", "--concurrency", "1")
    begun(worker, "a")
    submit(cli, "b")
    worker.process.kill()
    worker.process.wait(30)
    (folder / "a").touch()
    seen = worker.read_to_end()  # which is when nobody has the pipe any more
    events = [json.loads(line) for line in seen.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events][-3:] == ["attempt-succeeded", "succeeded", "stopped"]
    assert {event["process"] for event in events} == {1}
    assert statuses(cli) == ["ready", "succeeded"]


def here(processes: int) -> int:
    """Supervise processes from this one."""
    return asyncio.run(supervise(Order("slow:app", None, None, None, None, False), processes, Output()))


def test_what_is_wrong_with_the_application_is_said_once(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(folder)
    (folder / "broken").touch()
    assert here(3) == Exit.USAGE
    said = capfd.readouterr()
    assert said.err.count("broken by now") == 1
    assert "Traceback" not in said.err
    assert said.out == ""


def test_a_process_that_dies_as_it_starts_ends_the_command(folder: Path) -> None:
    (folder / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    with pytest.raises(Problem, match=r"^worker process \d+ was killed by SIGSEGV before it could work$") as caught:
        here(1)
    assert caught.value.code == Exit.FINDING


def test_several_processes_need_a_store_for_many_workers(folder: Path) -> None:
    """R-2: refused before anything starts."""
    write(folder)
    with pytest.raises(Problem, match=r"^sqlite:///slow.db is a store for one engine, not for 2 processes$") as caught:
        here(2)
    assert caught.value.code == Exit.USAGE
    assert "--processes 1" in caught.value.hint
    assert not (folder / "slow.db").exists()


def test_processes_that_cannot_work_any_more_end_the_command(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many starts in vain, with what the last one said."""
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(supervisor, "ROUNDS_IN_VAIN", 1)
    write(folder)
    assert main(["submit", "slow", '"deadly"']) == Exit.OK
    assert here(1) == Exit.USAGE
    said = capfd.readouterr()
    assert said.err.count("broken by now") == 1
    assert said.out.count("it is started again in 0.01 s") == 1


@virtually
async def test_the_supervisor_hears_of_another_identity(system: VirtualSystem) -> None:
    """R-3: a worker that was found dead goes on as another, and it is that one which dies with the process."""

    @step("one/v1")
    async def one(inv: Inv) -> None: ...

    world, told = Shared(system), list[str]()
    async with world.engine(app(line(one))) as engine:
        first = engine.worker
        telling = asyncio.create_task(keep_told(engine, told.append))
        await system.sleep(1)
        assert await world.stores[0].bury(first, world.data.workers[first].beat)
        await system.sleep(LEASE_S)
        telling.cancel()
        assert told == [first, engine.worker]
        assert first != engine.worker


def test_the_wait_before_a_restart_grows_and_is_forgotten() -> None:
    restarts = Restarts()
    assert [restarts.after(0.0) for _ in range(3)] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert [restarts.after(1.0) for _ in range(60)][-1] == LONGEST_DELAY_S
    assert restarts.after(STEADY_S) == 0.0
    assert restarts.after(0.0) == FIRST_DELAY_S


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (5, "ended with exit code 5"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_how_a_process_ended_in_words(code: int, words: str) -> None:
    assert how_ended(code) == words


def test_a_setting_that_is_no_number_is_named(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_PROCESSES", "many")
    answer = cli("worker", "slow:app")
    assert answer.code == Exit.USAGE
    assert "PERDURE_PROCESSES: 'many' is not a whole number of at least one" in answer.err
