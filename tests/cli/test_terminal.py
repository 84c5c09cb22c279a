"""On a terminal: tables, colour, a live view, and Ctrl-C; in a pipe: signals and plain lines [I-2, R-6]."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from tests.cli.harness import Cli, records
from tests.cli.project import SETTINGS
from tests.cli.terminal import COLOUR, PATIENCE_S, PROGRAM, Terminal, environment, without_ansi

SLOW = """
import asyncio
from pathlib import Path

from perdure import App, Invocation, Pipeline, nothing, step


@step("wait/v1")
async def wait(inv: Invocation[str, object]) -> None:
    Path("started").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)


slow: Pipeline[str, object, None] = Pipeline(
    id="slow", input=str, deps=object, resource=lambda i: i, steps=(wait,), output=nothing
)
app = App(slow.bind(), store="sqlite:///slow.db")
"""

Open = Callable[..., Terminal]


@pytest.fixture
def open_terminal() -> Generator[Open]:
    """Give a function that starts `perdure` in a terminal."""
    opened: list[Terminal] = []

    def start(folder: Path, *arguments: str, columns: int = 100, **extra: str) -> Terminal:
        opened.append(Terminal(folder, *arguments, columns=columns, **extra))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def slow(folder: Path, cli: Cli) -> Path:
    """Give a folder with one run that waits for a file `go`."""
    (folder / "slow.py").write_text(SLOW)
    (folder / "pyproject.toml").write_text(SETTINGS.replace("shop", "slow"))
    assert cli("submit", "slow", '"x"').code == Exit.OK
    return folder


def status(cli: Cli) -> object:
    return cli("show", "last", "--json").json()["status"]


def test_a_table_with_colour(shop: Path, open_terminal: Open) -> None:
    seen = open_terminal(shop, "list", columns=200).read_to_end()
    assert COLOUR.search(seen)
    lines = without_ansi(seen).splitlines()
    assert any(set(line.strip()) == {"─"} for line in lines)
    assert any("stuck" in line and "attempts-exhausted" in line for line in lines)


def test_no_colour_where_it_is_not_wanted(shop: Path, open_terminal: Open) -> None:
    seen = open_terminal(shop, "list", columns=200, NO_COLOR="1").read_to_end()
    assert not COLOUR.search(seen.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", ""))
    assert "─" in seen


def test_a_dumb_terminal_gets_what_a_pipe_gets(shop: Path, open_terminal: Open) -> None:
    seen = open_terminal(shop, "list", columns=200, TERM="dumb").read_to_end()
    assert "\x1b" not in seen
    assert "─" not in seen


def test_explain_draws_with_signs(shop: Path, open_terminal: Open) -> None:
    seen = without_ansi(open_terminal(shop, "explain", "last", columns=160).read_to_end())
    assert "▶" in seen
    assert "○" in seen


def test_json_on_a_terminal_has_no_colour(shop: Path, open_terminal: Open) -> None:
    assert "\x1b" not in open_terminal(shop, "list", "--json").read_to_end()


def test_list_can_be_watched(shop: Path, open_terminal: Open) -> None:
    terminal = open_terminal(shop, "list", "--watch", columns=200)
    terminal.read_until("1 failed")
    terminal.press(b"\x03")
    assert "Traceback" not in terminal.read_to_end()
    assert terminal.process.returncode == Exit.INTERRUPTED


def test_a_reader_that_stops_early_is_no_error(shop: Path) -> None:
    with subprocess.Popen(
        [PROGRAM, "journal", "last", "--json"],
        cwd=shop,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        process.wait(PATIENCE_S)
    assert "Traceback" not in said
    assert "Exception ignored" not in said


def run_program(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A shell line in which `PERDURE` is the installed program."""
    line = command.replace("PERDURE", shlex.quote(PROGRAM))
    return subprocess.run(
        ["/bin/sh", "-c", line], cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("gone", [">&-", "> /dev/full"])
def test_an_engine_outlives_its_log(project: Path, cli: Cli, gone: str) -> None:
    """R-6: a log that nobody reads any more is not what an engine is there for, nor worth a line for each event."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    for name in ("a", "b", "c"):
        cli("submit", "job", f'{{"name": "{name}"}}')
    done = run_program(project, f"PERDURE run --until-idle {gone}")
    assert done.returncode == Exit.OK
    assert len(done.stderr.splitlines()) <= 1, done.stderr
    assert [run["status"] for run in records(cli("list", "--json").json()["runs"])] == ["succeeded"] * 3


@pytest.mark.parametrize("command", ["list", "list --json", "show last", "doctor"])
def test_an_answer_that_cannot_be_written_is_no_bug(shop: Path, command: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    done = run_program(shop, f"PERDURE {command} > /dev/full")
    assert done.returncode == Exit.FINDING
    assert "stdout cannot be written: No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert run_program(shop, f"PERDURE {command} >&-").stderr.count("Traceback") == 0


def test_verify_on_a_terminal(shop: Path, open_terminal: Open) -> None:
    terminal = open_terminal(shop, "verify")
    assert "all good: 6 runs" in without_ansi(terminal.read_to_end())
    assert terminal.process.returncode == Exit.OK


def test_ctrl_c_drains(slow: Path, cli: Cli, open_terminal: Open) -> None:
    terminal = open_terminal(slow, "run")
    terminal.read_until("wait/v1")
    terminal.press(b"\x03")
    terminal.read_until("draining: 1 running")
    (slow / "go").touch()
    seen = terminal.read_to_end()
    assert terminal.process.returncode == Exit.OK
    assert "1 run succeeded" in without_ansi(seen)
    assert "Traceback" not in seen
    assert status(cli) == "succeeded"


def test_a_second_ctrl_c_stops_at_once_and_nothing_is_lost(slow: Path, cli: Cli, open_terminal: Open) -> None:
    terminal = open_terminal(slow, "run")
    terminal.read_until("wait/v1")
    terminal.press(b"\x03")
    terminal.read_until("draining: 1 running")
    terminal.press(b"\x03")
    seen = terminal.read_to_end()
    assert terminal.process.returncode == Exit.INTERRUPTED
    assert "Traceback" not in seen
    (slow / "go").touch()
    assert cli("run", "--until-idle").code == Exit.OK
    assert status(cli) == "succeeded"


def test_sigterm_drains_in_a_pipe(slow: Path, cli: Cli) -> None:
    with subprocess.Popen(
        [PROGRAM, "run", "--drain-timeout", "0"],
        cwd=slow,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert "started" in first
        assert "\x1b" not in first
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == Exit.OK
    assert "Traceback" not in rest
    assert status(cli) == "ready"  # interrupted, which is no failure, or not started yet


STUBBORN = SLOW.replace(
    "        await asyncio.sleep(0.01)",
    """\
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass""",
)


def test_a_handler_that_cannot_be_canceled_does_not_keep_the_process(slow: Path, cli: Cli, open_terminal: Open) -> None:
    """R-6: at once is at once; asyncio alone would wait for the handler for ever."""
    (slow / "slow.py").write_text(STUBBORN)
    terminal = open_terminal(slow, "run")
    terminal.read_until("wait/v1")
    terminal.press(b"\x03")
    terminal.read_until("draining: 1 running")
    terminal.press(b"\x03")
    seen = terminal.read_to_end()
    assert terminal.process.returncode == Exit.INTERRUPTED
    assert "left behind" in seen
    assert "Traceback" not in seen
    assert "destroyed" not in seen
    assert status(cli) == "running"  # as after a crash


def test_ctrl_c_ends_a_command_that_waits(slow: Path, open_terminal: Open) -> None:
    terminal = open_terminal(slow, "watch", "last")
    terminal.read_until("ready")
    terminal.press(b"\x03")
    seen = terminal.read_to_end()
    assert terminal.process.returncode == Exit.INTERRUPTED
    assert "Traceback" not in seen
