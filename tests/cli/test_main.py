"""The entry point: help, exit codes, and a message instead of a traceback [I-2]."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import typer

from perdure.cli import main as entry
from perdure.cli.exits import MEANINGS, Exit
from tests.cli.harness import Cli
from tools.reference import HelpGroup, help_of

DEPS = """
@asynccontextmanager
async def deps() -> AsyncGenerator[object]:
    raise OSError("no bank here")
    yield None
"""


@pytest.mark.parametrize("columns", ["80", "100"])
def test_help_lists_every_command_and_every_exit_code(cli: Cli, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    answer = cli("--help")
    assert answer.code == Exit.OK
    for commands in entry.COMMANDS.values():
        for name in commands:
            assert f"  {name} " in answer.out
    for code, meaning in MEANINGS.items():
        assert f"{int(code):>3}  {meaning}" in answer.out
    assert "..." not in answer.out.replace("[ARGS]...", "")


def test_every_command_answers_in_json_and_says_how(cli: Cli) -> None:
    for commands in entry.COMMANDS.values():
        for name in commands:
            text = cli(name, "--help").out
            assert "--json" in text
            assert "JSON:" in text


def test_no_command_at_all_shows_the_help(cli: Cli) -> None:
    answer = cli()
    assert (answer.code, answer.err) == (Exit.USAGE, "")
    assert answer.out == cli("--help").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lst",), "did you mean 'list'"),
        (("list", "--lmit", "3"), "--lmit"),
        (("show",), "missing argument 'run'"),
        (("list", "--limit", "many"), "'--limit' / '-n'"),
        (("list", "--limit", "0"), "'--limit' / '-n'"),
    ],
)
def test_wrong_words_take_two_lines(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    answer = cli(*arguments)
    assert answer.code == Exit.USAGE
    assert said in answer.err.lower()
    assert len(answer.err.splitlines()) == 2
    assert answer.err.splitlines()[0].startswith("error: ")
    assert "--help" in answer.err.splitlines()[1]
    assert answer.out == ""


def test_errors_are_json_where_answers_are(cli: Cli) -> None:
    answer = cli("list", "--json")
    assert answer.code == Exit.USAGE
    assert answer.out == ""
    error = json.loads(answer.err)["error"]
    assert set(error) == {"kind", "message", "hint", "exit"}
    assert error["exit"] == Exit.USAGE


def test_debug_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in cli("list").err
    monkeypatch.setenv("PERDURE_DEBUG", "1")
    assert "Traceback" in cli("list").err


def test_a_bug_says_so_and_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.cli.commands.version.perdure_version", None)
    answer = cli("version")
    assert answer.code == Exit.BUG
    assert answer.err.startswith("error: perdure failed in a way it should not: TypeError: ")
    assert "Traceback" in answer.err


def test_a_mistake_in_the_application_is_not_called_a_bug(project: Path, cli: Cli) -> None:
    path = project / "shop.py"
    path.write_text(path.read_text().replace("lambda j: j.name", "lambda j: j.nam"))
    answer = cli("submit", "job", '{"name": "x"}')
    assert answer.code == Exit.USAGE
    assert answer.err.startswith("error: the application raised AttributeError (shop.py, line ")
    del sys.modules["shop"]
    path.write_text(path.read_text().replace("job.bind()", "job.bind(deps)").replace("\napp =", DEPS + "\napp ="))
    answer = cli("run", "--until-idle")
    assert answer.code == Exit.USAGE
    assert answer.err.startswith("error: the application raised OSError (shop.py, line ")


def test_interruption_has_its_own_exit_code(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(as_json: bool = False) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(entry.COMMANDS["Begin"], "version", interrupted)
    answer = cli("version")
    assert answer.code == Exit.INTERRUPTED
    assert "Traceback" not in answer.err


def test_a_command_is_built_alone_and_is_the_same() -> None:
    """I-2: a start that looks at one command says of it what one that looks at all of them says."""
    every = cast("HelpGroup", typer.main.get_command(entry.build()))
    assert list(every.commands) == [name for commands in entry.COMMANDS.values() for name in commands]
    for name in every.commands:
        alone = cast("HelpGroup", typer.main.get_command(entry.build(name)))
        assert list(alone.commands) == [name]
        assert help_of(alone.commands[name], name) == help_of(every.commands[name], name)


def test_a_command_that_is_not_the_first_word_is_found_all_the_same(cli: Cli) -> None:
    assert cli("--", "version").out == cli("version").out != ""


def test_version(cli: Cli) -> None:
    assert cli("version").out.startswith("perdure ")
    assert set(cli("version", "--json").json()) == {"perdure", "python", "sqlite"}


def test_help_loads_nothing_that_only_commands_need(tmp_path: Path) -> None:
    code = (
        "import sys; from perdure.cli.main import main; main(['--help']); "
        "print(sorted({'rich', 'sqlite3', 'perdure.storage.sqlite', 'perdure.testing'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_installed_program_runs(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("perdure")
    done = subprocess.run([program, "list"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith("error: no store and no application given\nhint: ")


def test_the_version_is_that_of_the_package(cli: Cli) -> None:
    """I-2."""
    from importlib.metadata import version

    answer = cli("--version")
    assert (answer.code, answer.out) == (Exit.OK, f"perdure {version('perdure')}\n")


def test_the_package_runs_as_a_module() -> None:
    """I-2: where the script is not on the path."""
    done = subprocess.run([sys.executable, "-m", "perdure", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "perdure")
