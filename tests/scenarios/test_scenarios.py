"""Every scenario file on the core, on the engine in memory, and on SQLite with a real reopen at restart and crash.

The rules are E-1 .. E-12, U-1 .. U-12, R-12 and R-17; each scenario names its own in brackets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.testing.scenario.model import Scenario, ScenarioError, parse, read_files
from perdure.testing.scenario.report import Difference
from perdure.testing.scenario.runner import PLACES, On, run_one, run_scenarios

FOLDER = Path(__file__).parent
FILES = sorted(str(path) for path in FOLDER.glob("*.scenario"))
SCENARIOS = read_files(FILES)
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("on", PLACES)
def test_every_scenario(on: On, part: int) -> None:
    chosen = SCENARIOS[part::PARTS]
    report = run_scenarios(chosen, on)
    assert report.difference is None, str(report.difference)
    assert report.ran == len(chosen)


def test_the_scenarios_are_all_there(note: Callable[[str], None]) -> None:
    assert len(SCENARIOS) >= 490
    note(f"scenarios: {len(SCENARIOS)} on each of {', '.join(PLACES)}")


WRONG = {
    "another step": ("deploy A B\nrun B -> ok", 3, "run A #1"),
    "another attempt": ("deploy A\nrun A #2 -> ok", 3, "#1"),
    "an end too early": ("deploy A B\nrun A -> ok\nend success", 4, ""),
    "a list left out": (
        "deploy A*? B\nrun A -> error\nresolve A fail\ndeploy B\nend failure at A in-doubt A",
        6,
        "unavailable A",
    ),
    "an unwind that is not due": ("deploy A B\nrun A -> ok\nrun B -> fail\nunwind A -> ok", 5, ""),
    "valid": ("deploy A B\nrun A -> ok\ninvalid", 4, ""),
    "a skip of a started step": ("deploy A B\nrun A -> error\nskip A", 4, ""),
    "success where the output raises": ("deploy A\nrun A -> ok\noutput -> raises\nend success", 5, ""),
}


@pytest.mark.parametrize("on", ["core", "memory"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_scenario_is_told_where_it_differs(on: On, name: str) -> None:
    text, line, chosen = WRONG[name]
    with pytest.raises(Difference) as caught:
        run_one(_scenario(text), on)
    assert caught.value.entry.number == line
    assert chosen in caught.value.chosen


def _scenario(text: str) -> Scenario:
    return parse(f"scenario wrong\n{text}\n", "wrong.scenario")[0]


MALFORMED = {
    "scenario": ("a name", 1),
    "deploy A": ("scenario NAME", 1),
    "scenario x\nrun A -> ok": ("deploy", 2),
    "scenario x\ndeploy": ("step", 2),
    "scenario x\ndeploy A?": ("flags", 2),
    "scenario x\ndeploy A~*": ("flags", 2),
    "scenario x\ndeploy A A": ("each step once", 2),
    "scenario x\ndeploy A\nrun A": ("-> ok", 3),
    "scenario x\ndeploy A\nrun A #0 -> ok": ("attempt", 3),
    "scenario x\ndeploy A\nrun A -> okay": ("-> ok", 3),
    "scenario x\ndeploy A\nskip": ("one step", 3),
    "scenario x\ndeploy A\nresolve A maybe": ("value|skip|fail", 3),
    "scenario x\ndeploy A\ncancel A": ("nothing after", 3),
    "scenario x\ndeploy A\nend failure": ("at STEP", 3),
    "scenario x\ndeploy A\nend success unavailable A in-doubt B": ("sorted steps|one of|nothing more", 3),
    "scenario x\ndeploy A\nend success\nrun A -> ok": ("scenario NAME", 4),
    "scenario x\ndeploy A\njump B": ("scenario, deploy, run", 3),
    "scenario x\n": ("deploy", 1),
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_line_is_named_with_what_was_expected(text: str) -> None:
    expected, line = MALFORMED[text]
    with pytest.raises(ScenarioError, match=f"bad.scenario:{line}: expected .*({expected})"):
        parse(text, "bad.scenario")
