"""`perdure init` writes something that works, and never overwrites anything."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from tests.cli.harness import Cli
from tests.cli.terminal import environment

OURS = ["orders.py", "pyproject.toml", "test_orders.py"]


def test_an_empty_folder_gets_pipeline_test_and_settings(cli: Cli, folder: Path) -> None:
    answer = cli("init")
    assert answer.code == Exit.OK
    assert sorted(path.name for path in folder.iterdir()) == OURS
    assert tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["perdure"] == {"app": "orders:app"}
    assert "perdure submit order" in answer.out


def test_a_new_folder_is_made(cli: Cli, folder: Path) -> None:
    answer = cli("init", "a/b", "--json")
    assert answer.json() == {"folder": "a/b", "written": ["orders.py", "test_orders.py", "pyproject.toml"], "kept": []}
    assert sorted(path.name for path in (folder / "a/b").iterdir()) == OURS


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_project_file_is_extended(cli: Cli, folder: Path, end: str) -> None:
    path = folder / "pyproject.toml"
    path.write_text('[project]\nname = "mine"' + end)
    assert cli("init").code == Exit.OK
    assert path.read_text() == '[project]\nname = "mine"\n\n[tool.perdure]\napp = "orders:app"\n'


def test_settings_that_are_there_stay(cli: Cli, folder: Path) -> None:
    path = folder / "pyproject.toml"
    path.write_text('[tool.perdure]\napp = "mine:app"\n')
    answer = cli("init")
    assert answer.code == Exit.OK
    assert "stays as it is" in answer.out
    assert path.read_text() == '[tool.perdure]\napp = "mine:app"\n'


@pytest.mark.parametrize("name", ["orders.py", "test_orders.py"])
def test_nothing_is_overwritten_or_half_written(cli: Cli, folder: Path, name: str) -> None:
    (folder / name).write_text("mine")
    answer = cli("init")
    assert answer.code == Exit.CONFLICT
    assert name in answer.err
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"


def test_wrong_uses(cli: Cli, folder: Path) -> None:
    (folder / "file").write_text("")
    answer = cli("init", "file")
    assert (answer.code, answer.err) == (Exit.USAGE, "error: file is not a folder\n")
    (folder / "pyproject.toml").write_text("[broken")
    answer = cli("init")
    assert answer.code == Exit.USAGE
    assert "pyproject.toml cannot be extended" in answer.err
    assert not (folder / "orders.py").exists()


def test_what_is_written_passes_its_test(cli: Cli, folder: Path) -> None:
    cli("init")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    done = subprocess.run(tests, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_what_is_written_has_no_mistake_that_a_type_checker_sees(cli: Cli, folder: Path) -> None:
    cli("init")
    check = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "orders.py", "test_orders.py"]
    done = subprocess.run(check, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_written_runs_with_the_commands_that_are_shown(cli: Cli, folder: Path) -> None:
    shown = cli("init").out
    command = next(line.split("  ")[1] for line in shown.splitlines() if "perdure submit" in line)
    assert cli(*shlex.split(command)[1:]).code == Exit.OK
    assert cli("run", "--until-idle").code == Exit.OK
    found = cli("show", "last", "--json").json()
    assert (found["status"], found["output"]) == ("succeeded", "parcel from shelf of lamp")
    assert "send/v1" in cli("explain", "last").out
