"""What a page points to is there: other pages, headings of pages, and files of the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
IN_CODE = re.compile(r"`(?P<path>(?:src|tests|docs|examples|tools)/[\w./-]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        words = re.sub(r"[^\w\- ]", "", str(heading).lower())
        found.add(words.replace(" ", "-"))
    return found


def broken(page: Path) -> list[str]:
    """The links and paths of a page that lead nowhere."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    wrong: list[str] = []
    for target in (str(found["target"]) for found in LINK.finditer(text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in anchors(there.read_text(encoding="utf-8"))
        ):
            wrong.append(target)
    wrong += [str(found["path"]) for found in IN_CODE.finditer(text) if not (ROOT / str(found["path"])).exists()]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_leads_nowhere(page: Path) -> None:
    assert broken(page) == []


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Runs & facts (J)\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#runs--facts-j) [b](other.md#none) [c](gone.md) [d](https://example.org) `tests/none.py`\n"
        "```text\n[e](not-a-link.md)\n```\n",
        encoding="utf-8",
    )
    assert broken(page) == ["other.md#none", "gone.md", "tests/none.py"]
