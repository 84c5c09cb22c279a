"""The types of the authoring API, judged by mypy and pyright as an author's editor would [I-1]."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MUST_PASS = HERE / "must_pass.py"
MUST_FAIL = HERE / "must_fail.py"
CHECKERS = ("mypy", "pyright")

_MARK = re.compile(r"# E(?:: (mypy|pyright))?$")


class Finding(NamedTuple):
    line: int
    message: str


class Planted(NamedTuple):
    """A statement with a mistake in it, and who must see it."""

    first: int
    last: int
    checkers: tuple[str, ...]


@functools.cache
def findings(checker: str) -> dict[str, list[Finding]]:
    """What a checker says about both files, by file name; one process for both."""
    arguments = {
        "mypy": ["-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--output=json"],
        "pyright": ["-m", "pyright", "--project", str(HERE / "pyrightconfig.json"), "--outputjson"],
    }[checker]
    files = [] if checker == "pyright" else [str(MUST_PASS), str(MUST_FAIL)]
    done = subprocess.run(
        [sys.executable, *arguments, *files], capture_output=True, text=True, cwd=ROOT, timeout=300, check=False
    )
    found: dict[str, list[Finding]] = {MUST_PASS.name: [], MUST_FAIL.name: []}
    for name, line, message in (_mypy if checker == "mypy" else _pyright)(done.stdout):
        found[Path(name).name].append(Finding(line, message))
    assert done.returncode == 1, done.stdout + done.stderr
    return found


def _mypy(output: str) -> Iterator[tuple[str, int, str]]:
    for row in output.splitlines():
        entry = json.loads(row)
        if entry["severity"] == "error":
            yield entry["file"], entry["line"], entry["message"]


def _pyright(output: str) -> Iterator[tuple[str, int, str]]:
    for entry in json.loads(output)["generalDiagnostics"]:
        if entry["severity"] == "error":
            yield entry["file"], entry["range"]["start"]["line"] + 1, entry["message"]


@functools.cache
def planted() -> tuple[Planted, ...]:
    text = MUST_FAIL.read_text()
    spans = sorted(_spans(ast.parse(text)), key=lambda span: span[1] - span[0])
    found: list[Planted] = []
    for number, line in enumerate(text.splitlines(), start=1):
        mark = _MARK.search(line)
        if mark is not None:
            first, last = next(span for span in spans if span[0] <= number <= span[1])
            found.append(Planted(first, last, (mark[1],) if mark[1] else CHECKERS))
    return tuple(found)


def _spans(tree: ast.AST) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.end_lineno is not None:
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
            yield (
                min(node.lineno, *(each.lineno for each in decorators)) if decorators else node.lineno,
                node.end_lineno,
            )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_correct_uses_have_no_error(checker: str) -> None:
    assert findings(checker)[MUST_PASS.name] == []


async def test_correct_uses_run() -> None:
    from tests.type_checks import must_pass

    await must_pass.run_alone()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_every_planted_mistake_is_seen(checker: str) -> None:
    lines = {finding.line for finding in findings(checker)[MUST_FAIL.name]}
    mistakes = [each for each in planted() if checker in each.checkers]
    missed = [each.first for each in mistakes if lines.isdisjoint(range(each.first, each.last + 1))]
    assert missed == []
    assert len(mistakes) >= 80


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_nothing_but_the_mistakes_is_reported(checker: str) -> None:
    marked = {line for each in planted() for line in range(each.first, each.last + 1)}
    assert [each for each in findings(checker)[MUST_FAIL.name] if each.line not in marked] == []
