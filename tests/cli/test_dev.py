"""`perdure dev`: an edit while runs are live, what keeps the engine that runs, and Ctrl-C [I-2, R-6, D-6]."""

from __future__ import annotations

import json
import os
import py_compile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from tests.cli.harness import Cli
from tests.cli.project import SETTINGS
from tests.cli.terminal import Piped, Terminal, without_ansi

pytestmark = pytest.mark.long

SLOW = """
import asyncio
from pathlib import Path

from perdure import App, Invocation, Pipeline, nothing, step

Inv = Invocation[str, object]


@step("wait/v1")
async def wait(inv: Inv) -> None:
    print("waits")
    while not Path("go").exists():
        await asyncio.sleep(0.01)


@step("more/v1")
async def more(inv: Inv) -> None:
    print("does more")


slow: Pipeline[str, object, None] = Pipeline(
    id="slow", input=str, deps=object, resource=lambda i: i, steps=(wait,), output=nothing
)
app = App(slow.bind(), store="sqlite:///slow.db")
"""
STEPS = "steps=(wait,)"
MORE = SLOW.replace(STEPS, "steps=(wait, more)")
OTHER = SLOW.replace(STEPS, "steps=(more,)")
BROKEN = SLOW.replace(STEPS, "steps=(wait,")
REFUSED = SLOW.replace(STEPS, "steps=(wait, wait)")
ENGINE = "Ctrl-C drains and stops it"

Start = Callable[..., Terminal]


@pytest.fixture
def start(folder: Path) -> Generator[Start]:
    """Give a function that starts `perdure dev` in a pipe, or on a terminal; looks are frequent."""
    started: list[Terminal] = []

    def run(*arguments: str, terminal: bool = False) -> Terminal:
        kind = Terminal if terminal else Piped
        started.append(kind(folder, "dev", "--poll", "20ms", *arguments))
        return started[-1]

    yield run
    for each in started:
        each.close()


@pytest.fixture
def file(folder: Path, cli: Cli) -> Path:
    """Give the file of an application, with one run that waits for a file `go`."""
    path = folder / "slow.py"
    path.write_text(SLOW)
    (folder / "pyproject.toml").write_text(SETTINGS.replace("shop", "slow"))
    assert cli("submit", "slow", '"x"').code == Exit.OK
    return path


def save(file: Path, text: str, dev: Terminal) -> None:
    """Save it; what is read from then on is what came after."""
    dev.seen = ""
    file.write_text(text)


def stop(dev: Terminal) -> str:
    """End it as `kill` would; gives what came."""
    dev.process.terminate()
    seen = without_ansi(dev.read_to_end())
    assert dev.process.returncode == Exit.OK
    assert "Traceback" not in seen
    return seen


def status(cli: Cli) -> object:
    return cli("show", "last", "--json").json()["status"]


def test_a_live_run_goes_on_under_the_new_code(file: Path, cli: Cli, start: Start) -> None:
    dev = start("--drain-timeout", "0")
    dev.read_until("waits")
    save(file, MORE, dev)
    dev.read_until("waits")  # interrupted, which is no failure, and taken up again
    assert "saved: slow.py\n" in dev.seen
    assert "slow: inserted more/v1; 1 live run, 1 distinct ledger" in dev.seen
    assert "no run would become invalid" in dev.seen
    assert "draining: 1 running" in dev.seen
    (file.parent / "go").touch()
    dev.read_until("of slow succeeded")
    assert "does more" in dev.seen
    stop(dev)
    assert status(cli) == "succeeded"


def test_an_edit_of_a_handler_is_said_in_a_line(file: Path, start: Start) -> None:
    dev = start("--drain-timeout", "0")
    dev.read_until("waits")
    save(file, SLOW.replace('"waits"', '"tarries"'), dev)
    dev.read_until("tarries")
    assert "the steps are the same; 1 live run goes on with the new code" in dev.seen
    assert "WHERE IT STANDS" not in dev.seen
    stop(dev)


def test_an_engine_may_end_its_attempts_first(file: Path, cli: Cli, start: Start) -> None:
    """R-6: the attempt that runs is not made again, and what comes after it is done by the new code."""
    file.write_text(MORE)
    dev = start("--drain-timeout", "1h")
    dev.read_until("waits")
    save(file, MORE.replace('"does more"', '"does it differently"'), dev)
    dev.read_until("draining: 1 running")
    (file.parent / "go").touch()
    dev.read_until("does it differently")
    assert "waits\n" not in dev.seen
    stop(dev)


def test_code_that_does_not_load_replaces_nothing(file: Path, cli: Cli, start: Start) -> None:
    dev = start()
    dev.read_until("waits")
    for text, said in (
        (BROKEN, "(slow.py, line 22): SyntaxError"),
        (REFUSED, "(slow.py, line 22): DefinitionError"),
        ("import nowhere_at_all\n", "(slow.py, line 1): ModuleNotFoundError"),
        (SLOW.replace("app =", "application ="), "module 'slow' has no attribute 'app'"),
        (SLOW + "import sys\nsys.exit(3)\n", "importing slow ended the program"),
        (SLOW + "import os\nos._exit(4)\n", "imported the application ended with exit code 4"),
    ):
        save(file, text, dev)
        dev.read_until("the engine goes on with the code from before, until this is mended")
        assert said in dev.seen, dev.seen
    (file.parent / "go").touch()
    dev.read_until("of slow succeeded")
    save(file, MORE, dev)
    dev.read_until(ENGINE)
    assert "slow: inserted more/v1" in dev.seen
    stop(dev)


def test_an_import_that_never_ends_is_given_up_at_the_next_save(file: Path, start: Start) -> None:
    dev = start("--drain-timeout", "0")
    dev.read_until("waits")
    save(file, SLOW + "while True: pass\n", dev)
    dev.read_until("the code is still being imported")
    save(file, MORE, dev)
    dev.read_until("waits")
    assert "inserted more/v1" in dev.seen
    stop(dev)


def test_code_that_would_make_runs_invalid_is_held_back(file: Path, cli: Cli, start: Start) -> None:
    """D-6: nobody can be asked, so the engine that runs stays."""
    dev = start()
    dev.read_until("waits")
    save(file, OTHER, dev)
    dev.read_until("the engine goes on with the code from before; --yes would have run the new")
    assert "1 run would become invalid because its unresolved step wait/v1 is gone" in dev.seen
    assert "draining" not in dev.seen
    (file.parent / "go").touch()
    dev.read_until("of slow succeeded")
    stop(dev)
    assert status(cli) == "succeeded"


def test_yes_runs_it_and_the_run_is_restored_by_the_next_save(file: Path, cli: Cli, start: Start) -> None:
    """D-2: an invalid run waits for code that can carry it on."""
    dev = start("--yes", "--drain-timeout", "0")
    dev.read_until("waits")
    save(file, OTHER, dev)
    dev.read_until("of slow invalid")
    assert "run anyway" in dev.seen
    save(file, MORE, dev)
    dev.read_until("waits")
    (file.parent / "go").touch()
    dev.read_until("of slow succeeded")
    stop(dev)


def test_a_person_is_asked(file: Path, start: Start) -> None:
    dev = start("--drain-timeout", "0", terminal=True)
    dev.read_until("waits")
    save(file, OTHER, dev)
    dev.read_until("run the new code anyway? [y/N], or save again")
    dev.press(b"perhaps\n")
    dev.read_until("y runs the new code, n does not")
    dev.press(b"n\n")
    dev.read_until("the engine goes on with the code from before")
    assert "draining" not in dev.seen

    save(file, OTHER + "# again\n", dev)
    dev.read_until("or save again")
    save(file, MORE, dev)  # a save is an answer too
    dev.read_until("waits")
    assert "inserted more/v1" in without_ansi(dev.seen)

    save(file, OTHER, dev)
    dev.read_until("or save again")
    dev.press(b"y\n")
    dev.read_until("of slow invalid")
    dev.press(b"\x03")
    assert "Traceback" not in dev.read_to_end()
    assert dev.process.returncode == Exit.OK


def test_ctrl_c_is_an_answer(file: Path, start: Start) -> None:
    dev = start("--drain-timeout", "0", terminal=True)
    dev.read_until("waits")
    save(file, OTHER, dev)
    dev.read_until("or save again")
    dev.press(b"\x03")
    assert "draining: 1 running" in dev.read_to_end()
    assert dev.process.returncode == Exit.OK


def test_ctrl_c_drains(file: Path, cli: Cli, start: Start) -> None:
    dev = start("--drain-timeout", "1h", terminal=True)
    dev.read_until("waits")
    dev.press(b"\x03")
    dev.read_until("draining: 1 running")
    (file.parent / "go").touch()
    seen = dev.read_to_end()
    assert dev.process.returncode == Exit.OK
    assert "1 run succeeded" in without_ansi(seen)
    assert "Traceback" not in seen
    assert status(cli) == "succeeded"


def test_a_second_ctrl_c_stops_at_once(file: Path, cli: Cli, start: Start) -> None:
    dev = start("--drain-timeout", "1h", terminal=True)
    dev.read_until("waits")
    dev.press(b"\x03")
    dev.read_until("draining: 1 running")
    dev.press(b"\x03")
    seen = dev.read_to_end()
    assert dev.process.returncode == Exit.INTERRUPTED
    assert "Traceback" not in seen
    assert status(cli) == "running"  # as after a crash


def test_a_save_in_the_middle_of_a_restart_is_not_lost(file: Path, start: Start) -> None:
    dev = start("--drain-timeout", "1h")
    dev.read_until("waits")
    save(file, SLOW + "print('first edit')\n", dev)
    dev.read_until("draining: 1 running")
    save(file, SLOW + "print('second edit')\n", dev)
    (file.parent / "go").touch()
    dev.read_until("second edit")
    assert "saved: slow.py\n" in dev.seen
    stop(dev)


def test_what_the_application_writes_is_no_save(file: Path, cli: Cli, start: Start) -> None:
    """Everything in the folder is watched, and the store, its companions and a log change beside it."""
    writes = SLOW.replace('print("waits")', 'Path("my.log").write_text("at work")')
    file.write_text(writes)
    (file.parent / "go").touch()
    dev = start("--watch", ".")
    dev.read_until("of slow succeeded")
    (file.parent / "texts.json").write_text("{}")  # looked at after what the run wrote, or together with it
    dev.read_until("saved: ")
    dev.read_until("the steps are the same")
    seen = stop(dev)
    assert [line.partition("saved: ")[2] for line in seen.splitlines() if "saved: " in line] == ["texts.json"]
    assert (file.parent / "my.log").exists()


def test_code_that_is_broken_at_the_start_is_waited_for(file: Path, start: Start) -> None:
    file.write_text(BROKEN)
    dev = start()
    dev.read_until("no engine runs until the next save")
    assert "SyntaxError" in dev.seen
    save(file, SLOW, dev)
    dev.read_until("waits")
    stop(dev)


def test_a_start_that_would_make_runs_invalid_is_asked_about(file: Path, start: Start) -> None:
    """D-6: the file was edited while nobody watched; Ctrl-D is no."""
    before = start("--drain-timeout", "0")
    before.read_until("waits")
    stop(before)
    file.write_text(OTHER)
    dev = start(terminal=True)
    dev.read_until("or save again")
    assert "no engine runs" not in dev.seen
    dev.press(b"\x04")
    dev.read_until("no engine runs until the next save")
    save(file, SLOW, dev)
    dev.read_until("waits")
    dev.press(b"\x03")
    dev.press(b"\x03")
    assert "Traceback" not in dev.read_to_end()


def test_an_engine_that_ends_by_itself_is_started_by_the_next_save(file: Path, start: Start) -> None:
    file.write_text(SLOW.replace("slow.bind()", "slow.bind(lambda: int('no number'))"))
    dev = start()
    dev.read_until("the engine has ended with exit code 2; the next save starts another")
    assert "invalid literal" in dev.seen
    save(file, SLOW, dev)
    dev.read_until("waits")
    stop(dev)


def test_a_store_that_another_engine_owns_ends_it(file: Path, start: Start) -> None:
    from perdure.storage.sqlite.owner import Ownership

    ownership = Ownership.take(file.parent / "slow.db", "w-first")
    try:
        dev = start()
        seen = dev.read_to_end()
    finally:
        ownership.release()
    assert dev.process.returncode == Exit.STORE
    assert "w-first" in seen


def test_an_engine_does_not_outlive_its_parent(file: Path, cli: Cli, start: Start) -> None:
    dev = start("--drain-timeout", "0")
    dev.read_until("waits")
    dev.process.kill()
    assert "draining" not in dev.seen
    dev.read_to_end()  # the engine writes to the same pipe, so this is its end
    (file.parent / "go").touch()
    assert cli("run", "--until-idle").code == Exit.OK
    assert status(cli) == "succeeded"


def test_a_file_and_what_it_imports(folder: Path, start: Start) -> None:
    """A module elsewhere that the application loads counts as well."""
    for name in ("app", "lib"):
        (folder / name).mkdir()
    helper = folder / "lib" / "helper.py"
    helper.write_text("print('one')\n")
    text = SLOW.replace(
        "import asyncio", f"import asyncio, sys\nsys.path.append({str(helper.parent)!r})\nimport helper"
    )
    (folder / "app" / "slow.py").write_text(text)
    dev = start("app/slow.py:app")
    dev.read_until(ENGINE)
    assert "one\n" in dev.seen
    save(helper, "print('two')\n", dev)
    dev.read_until(ENGINE)
    assert "saved: lib/helper.py\n" in dev.seen
    assert dev.seen.count("two\n") == 1  # the look at the edit is silent
    stop(dev)


def test_a_save_of_the_same_size_in_the_same_second_is_not_taken_for_the_one_before(file: Path, start: Start) -> None:
    """I-2: that is how Python knows whether what another process compiled is of today."""
    assert len(OTHER) == file.stat().st_size
    second_ns = (file.stat().st_mtime_ns // 10**9 - 1_000) * 10**9
    os.utime(file, ns=(second_ns, second_ns))
    py_compile.compile(str(file))
    dev = start("--json", "--drain-timeout", "0")
    dev.read_until("waits")
    other = file.with_name("other.txt")
    other.write_text(OTHER)
    os.utime(other, ns=(second_ns + 5, second_ns + 5))
    other.replace(file)
    dev.read_until('"held-back"')
    stop(dev)


def test_for_programs(file: Path, start: Start) -> None:
    dev = start("--json", "--drain-timeout", "0")
    dev.read_until("waits")
    save(file, BROKEN, dev)
    dev.read_until('"broken"')
    file.write_text(OTHER)
    dev.read_until('"held-back"')
    file.write_text(MORE)
    dev.read_until("waits")
    seen = stop(dev)
    events = [json.loads(line) for line in seen.splitlines() if line != "waits"]
    ours = [event for event in events if event["event"] in {"saved", "checked", "broken", "held-back"}]
    assert [event["event"] for event in ours] == [
        "saved", "broken", "saved", "checked", "held-back", "saved", "checked"
    ]  # fmt: skip
    assert ours[0]["files"] == ["slow.py"]
    assert ours[1]["running"] is True
    assert "SyntaxError" in ours[1]["error"]["message"]
    assert (ours[3]["ok"], ours[6]["ok"]) == (False, True)
