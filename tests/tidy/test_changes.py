"""Fragments in changes.d can be gathered into the changelog without a human sorting them out."""

from __future__ import annotations

import re

from tests.tidy.source import ROOT

NAME = re.compile(r"[a-z0-9-]+\.(added|changed|fixed|faster|removed)\.md")


def test_fragments_are_named_and_filled() -> None:
    wrong = [
        path.name
        for path in (ROOT / "changes.d").iterdir()
        if path.name != "README.md" and not (NAME.fullmatch(path.name) and path.read_text("utf-8").strip())
    ]
    assert not wrong, f"see changes.d/README.md for the names: {wrong}"
