"""The smallest example as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("Ada", "2"), ["output='Ada invites 2 to table 7, no cake'"]),
        (("Ben", "8"), ["output='Ben invites 8 to table 7, a cake'"]),
        (("Eve", "13"), ["table 7 is free again", "thirteen at a table bring bad luck", "reason='superstition'"]),
    ],
)
def test_hello(arguments: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    """E-12, M-5, U-1: skips, tries again, unwinds."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.hello.app", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for text in expected:
        assert text in done.stdout
    assert (tmp_path / "hello.db").exists()


def test_hello_is_short() -> None:
    lines = (ROOT / "examples" / "hello" / "app.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) < 60
