"""The scenario files are those that other implementations of the rules are held to, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIES = ROOT / "tests" / "scenarios"


def originals() -> Path:
    """The folder named by PERDURE_SCENARIOS, else the one that may stand beside a checkout."""
    named = os.environ.get("PERDURE_SCENARIOS")
    return Path(named) if named else ROOT.parent / "shared" / "scenarios"


def test_the_copies_equal_the_originals() -> None:
    folder = originals()
    if not folder.is_dir():
        pytest.skip(f"no original scenarios at {folder}; name their folder in PERDURE_SCENARIOS")
    wanted = {path.name: path.read_bytes() for path in folder.glob("*.scenario")}
    assert wanted, f"{folder} holds no scenario files"
    differing = [
        name
        for name, content in sorted(wanted.items())
        if not (COPIES / name).is_file() or (COPIES / name).read_bytes() != content
    ]
    assert not differing, f"copy these from {folder} to tests/scenarios: {', '.join(differing)}"


def test_there_are_scenarios() -> None:
    """However the comparison went, an empty folder must not pass for a full one."""
    assert sum(path.read_text("utf-8").count("\nscenario ") for path in COPIES.glob("*.scenario")) > 100
