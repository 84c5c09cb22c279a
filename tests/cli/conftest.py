"""The command line in this process: arguments in; exit code, stdout and stderr out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from perdure.cli.main import main
from tests.cli.harness import Answer, Cli
from tests.cli.project import write_project


@contextlib.contextmanager
def isolated(folder: Path) -> Generator[pytest.MonkeyPatch]:
    """Work in a folder with nothing configured, and leave nothing imported behind."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith("PERDURE_")]:
            patch.delenv(name)
        patch.setenv("COLUMNS", "100")
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "dont_write_bytecode", True)  # a test may write a module twice within one second
        yield patch
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Path]:
    """Give the working directory of the test, empty."""
    with isolated(tmp_path):
        yield tmp_path


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Give a function that runs one command in the folder."""

    def run(*arguments: str, stdin: bytes | None = None) -> Answer:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin or b"")))
        capsys.readouterr()
        code = main(arguments)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


@pytest.fixture
def project(folder: Path) -> Path:
    """Give the folder with an application in it and no store yet."""
    write_project(folder)
    return folder


@pytest.fixture(scope="session")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder whose runs came to every kind of stand; nobody may change it."""
    folder = tmp_path_factory.mktemp("worked")
    write_project(folder)
    with isolated(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name, trouble in (
            ("good", ""), ("more", ""), ("bad", "declined"), ("stuck", "no-route"), ("odd", "bad-output"),
        ):  # fmt: skip
            assert main(["submit", "job", f'{{"name": "{name}", "trouble": "{trouble}"}}', "--actor", "ada"]) == 0
        assert main(["run", "--until-idle"]) == 0
        assert main(["submit", "job", '{"name": "later"}', "--delay", "30d", "-a", "color=blue"]) == 0
    return folder


@pytest.fixture(scope="session")
def names(worked: Path) -> dict[str, str]:
    """Give the ids of the runs in that folder by the names of their resources."""
    with isolated(worked), contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["list", "--json"]) == 0
    return {run["resource"]: run["run_id"] for run in json.loads(out.getvalue())["runs"]}


@pytest.fixture
def shop(folder: Path, worked: Path) -> Path:
    """Give the folder with the application and a store in which runs came to every kind of stand."""
    shutil.copytree(worked, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
