"""docs/rules.md, the code and the tests keep step: every id cited exists, every rule marked built is cited in both."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "rules.md"
RULE = re.compile(r"^- \*\*(?P<id>[A-Z]-\d+)\*\* \((?P<state>[a-z]+)\)", re.MULTILINE)
SECTIONS = "BCDEIJMPRU"
# Not inside `UTF-8`, `X-E-7` or `E-7-old`.
CITED = re.compile(rf"(?<![\w-])[{SECTIONS}]-\d+(?![\w-]|\.\d)")
RULE_RANGE = re.compile(rf"(?<![\w-])([{SECTIONS}])-(\d+)\.\.(?:\1-)?(\d+)(?![\w-])")
STATES = {"built", "planned", "withdrawn"}

# These tests are about the rules' bookkeeping or about other words; an id in them proves nothing.
NOT_EVIDENCE = (ROOT / "tests" / "docs", ROOT / "tests" / "tidy")


def rules(text: str) -> dict[str, str]:
    """State of every rule by id."""
    return {found["id"]: found["state"] for found in RULE.finditer(text)}


def cited(text: str) -> set[str]:
    """Ids named in a text; `E-1..E-3` names three."""
    ids = set(CITED.findall(RULE_RANGE.sub(" ", text)))
    for section, first, last in RULE_RANGE.findall(text):
        ids |= {f"{section}-{number}" for number in range(int(first), int(last) + 1)}
    return ids


def docstrings(text: str) -> str:
    """All texts that stand alone in a file: docstrings of modules, classes, functions and attributes."""
    return "\n".join(
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


def files(folder: str, *endings: str) -> Iterator[Path]:
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in endings and path.is_file() and not any(home in path.parents for home in NOT_EVIDENCE):
            yield path


def in_order(ids: set[str]) -> list[str]:
    """By section, then by number."""
    return sorted(ids, key=lambda rule: (rule[0], int(rule[2:])))


@pytest.fixture(scope="module")
def states() -> dict[str, str]:
    return rules(RULES.read_text(encoding="utf-8"))


def test_the_page_is_readable(states: dict[str, str]) -> None:
    text = RULES.read_text(encoding="utf-8")
    assert set(states.values()) <= STATES, "a rule is built, planned or withdrawn"
    listed = [found["id"] for found in RULE.finditer(text)]
    assert len(listed) == len(set(listed)), "a number is never given twice"
    bullets = re.findall(r"^- \*\*([A-Z]-\d+)", text, re.MULTILINE)
    assert bullets == listed, "every rule is written `- **E-7** (built) text`"
    assert cited(text) <= set(states), f"rules.md itself cites unknown rules: {in_order(cited(text) - set(states))}"


def test_every_cited_rule_exists(states: dict[str, str]) -> None:
    unknown: dict[str, list[str]] = defaultdict(list)
    for folder in ("src", "tests", "examples", "docs", "benchmarks", "tools"):
        for path in files(folder, ".py", ".md", ".scenario", ".sql"):
            for rule in cited(path.read_text(encoding="utf-8")) - set(states):
                unknown[rule].append(str(path.relative_to(ROOT)))
    lines = [f"{rule}: {', '.join(unknown[rule])}" for rule in in_order(set(unknown))]
    if lines:
        pytest.fail("cited, but not in docs/rules.md:\n  " + "\n  ".join(lines), pytrace=False)


def test_every_built_rule_is_tested_and_documented(states: dict[str, str], note: Callable[[str], None]) -> None:
    in_tests: set[str] = set()
    for path in files("tests", ".py", ".scenario"):
        in_tests |= cited(path.read_text(encoding="utf-8"))
    in_source: set[str] = set()
    for path in files("src", ".py"):
        in_source |= cited(docstrings(path.read_text(encoding="utf-8")))
    built = {rule for rule, state in states.items() if state == "built"}
    note(f"{len(built)} rules built, {len(states) - len(built)} planned or withdrawn")
    problems = [
        f"{what}: {' '.join(in_order(missing))}"
        for what, missing in (
            ("cited by no test", built - in_tests),
            ("cited by no docstring in src", built - in_source),
        )
        if missing
    ]
    if problems:
        pytest.fail("marked as built in docs/rules.md, but\n  " + "\n  ".join(problems), pytrace=False)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("[J-12] and (E-2, E-7)", {"J-12", "E-2", "E-7"}),
        ("D-1..D-3", {"D-1", "D-2", "D-3"}),
        ("E-1..3", {"E-1", "E-2", "E-3"}),
        ("UTF-8, X-E-7, E-7-old, SHA-256, R-1.5", set[str]()),
        ("# U-9: the lists", {"U-9"}),
    ],
)
def test_what_counts_as_a_citation(text: str, ids: set[str]) -> None:
    assert cited(text) == ids


def test_a_comment_is_no_docstring() -> None:
    assert cited(docstrings('"""Module [E-1]."""\n# E-2\nx = "E-3"\n')) == {"E-1"}


def test_states_are_read() -> None:
    assert rules("- **E-7** (built) text\n- **E-8** (planned) more\n") == {"E-7": "built", "E-8": "planned"}
