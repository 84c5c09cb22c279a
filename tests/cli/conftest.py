"""The command line in this process: arguments in; exit code, stdout and stderr out."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from perdure.cli.main import main
from tests.cli.harness import Answer, Cli


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Give the working directory of the test, empty, with nothing configured and nothing left imported behind it."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PERDURE_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Give a function that runs one command."""

    def run(*arguments: str, stdin: bytes | None = None) -> Answer:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin or b"")))
        capsys.readouterr()
        code = main(arguments)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run
