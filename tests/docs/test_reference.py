"""The reference pages say what docstrings and the command line's help say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import reference


def test_the_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    code = reference.main(["--check"])
    assert code == 0, capsys.readouterr().err


def test_a_stale_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = tmp_path / "docs" / "reference"
    pages.mkdir(parents=True)
    monkeypatch.setattr(reference, "REFERENCE", pages)
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    (pages / "cli.md").write_text("old", encoding="utf-8")
    assert reference.main(["--check"]) == 1
    assert "docs/reference/cli.md is stale" in capsys.readouterr().err


class Sample:
    """One line.

    More of it.

    Attributes:
        size: in bytes,
            on disk.
        name: of the thing.
    """

    def grow(self, by: int, /, *, twice: bool = False) -> Iterator[int]:
        """Grow.

        Args:
            by: how much.

        Raises:
            ValueError: not so much.
        """
        yield by


def test_a_docstring_becomes_markdown() -> None:
    assert list(reference.entry("Sample", Sample)) == [
        "### Sample",
        "",
        "One line.",
        "",
        "More of it.",
        "",
        "**Attributes**",
        "",
        "- `size`: in bytes,",
        "  on disk.",
        "- `name`: of the thing.",
        "",
        "#### Sample.grow",
        "",
        "```text",
        "Sample.grow(by: int, *, twice: bool = False) -> Iterator[int]",
        "```",
        "",
        "Grow.",
        "",
        "**Args**",
        "",
        "- `by`: how much.",
        "",
        "**Raises**",
        "",
        "- `ValueError`: not so much.",
        "",
    ]
