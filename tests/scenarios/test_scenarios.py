"""Every scenario file on the core, on the engine in memory, and on SQLite and PostgreSQL with a real reopen at restart
and crash.

The rules are E-1 .. E-12, U-1 .. U-12, B-8, B-10, B-15, B-20 .. B-24, D-7, R-12, R-13 and R-17; each scenario names its
own in brackets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.ports.store import PipelineHold
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.clock import run_virtual
from perdure.testing.scenario.engine import EngineDriver
from perdure.testing.scenario.model import Scenario, ScenarioError
from perdure.testing.scenario.parser import parse, read_files
from perdure.testing.scenario.report import Difference
from perdure.testing.scenario.runner import PLACES, On, run_one, run_scenarios
from tests.postgres import PostgresServer

FOLDER = Path(__file__).parent
FILES = sorted(str(path) for path in FOLDER.glob("*.scenario"))
SCENARIOS = read_files(FILES)
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("on", PLACES)
def test_every_scenario(on: On, part: int, request: pytest.FixtureRequest) -> None:
    if part:  # the first is on a disk as users have it
        request.getfixturevalue("files_in_memory")
    chosen = SCENARIOS[part::PARTS]
    report = run_scenarios(chosen, on)
    assert report.difference is None, str(report.difference)
    assert report.ran == len(chosen)


@pytest.mark.parametrize("part", [0, *[pytest.param(part, marks=pytest.mark.deep) for part in range(1, PARTS)]])
def test_every_scenario_on_postgres(part: int, postgres: PostgresServer) -> None:
    """In one schema that is emptied after each; nothing of it stays behind [I-7]."""
    chosen = SCENARIOS[part::PARTS]
    report = run_scenarios(chosen, postgres.url(schema=f"scenarios{part}"))
    assert report.difference is None, str(report.difference)
    assert report.ran == len(chosen)
    assert postgres.sql(f"SELECT nspname FROM pg_namespace WHERE nspname LIKE 'scenarios{part}%'") == ""


def test_the_scenarios_are_all_there(note: Callable[[str], None]) -> None:
    assert len(SCENARIOS) >= 725
    note(f"scenarios: {len(SCENARIOS)} on each of {', '.join(PLACES)}, PostgreSQL")


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
    "a call where a sleep is": ("deploy nap:sleep\nrun nap -> ok", 3, ""),
    "a sleep where a call is": ("deploy A\nsleep A", 3, ""),
    "a sleep that is open already": ("deploy nap:sleep\nsleep nap\nsleep nap", 4, ""),
    "nothing sleeps": ("deploy A B\nrun A -> ok\nwake A", 4, ""),
    "a sleep before its time": ("deploy nap:sleep B\nsleep nap\nrun B -> ok", 4, ""),
    "doubt about a sleep": ("deploy nap:sleep\nsleep nap\ncancel\nend canceled at nap in-doubt nap", 5, "at nap"),
    "a sleep of another kind": ("deploy nap:sleep\nsleep nap\ndeploy nap:sleep=2\ninvalid", 5, ""),
    "a poll that knew": ("deploy A:poll B\nrun A -> later\nrun B -> ok", 4, "run A #2"),
    "another arm": ("deploy A:choice L@A=x R@A=y\nrun A -> ok x\nrun R -> ok", 4, "run L #1"),
    "an arm that is not taken": ("deploy A:choice L@A=x R@A=y\nrun A -> ok x\nskip R", 4, ""),
    "a start in a held pipeline": ("deploy A\nhold pipeline\nrun A -> ok", 4, "held"),
    "a cancel that does not wait": ("deploy A\nhold pipeline\ncancel\nend canceled at A", 5, ""),
    "a run that goes on": ("deploy A B\nrun A -> ok\nabandon\nrun B -> ok", 5, ""),
    "given up elsewhere": ("deploy A B\nrun A -> ok\nabandon\nend abandoned at A", 5, "at B"),
    "given up twice": ("deploy A\nabandon\nabandon", 4, "ended"),
    "another message": ("deploy A:message\nsend A x\nsend A y\ntake A y", 5, ""),
    "a message twice": ("deploy A:message B:message\nsend A x\ntake A x\ntake B x", 5, ""),
    "no message": ("deploy A:message\nwait A\ntake A x", 4, ""),
    "a call where a message is": ("deploy A:message\nrun A -> ok", 3, ""),
    "a wait that came to nothing": ("deploy A B:message\nwait B", 3, ""),
    "a wait without a limit": ("deploy A:message\nwait A\ntime-out A\nend failure at A", 4, ""),
    "another limit": ("deploy A:message=2\nwait A\ndeploy A:message=1\ntake A x", 5, ""),
    "items that do not run": ("deploy A:items=3/2\nwork A 0:ok 1:ok 2:ok", 3, "work A 0#1 1#1"),
    "items that run, too": ("deploy A:items=3\nwork A 0:ok", 3, "work A 0#1 1#1 2#1"),
    "an item that is done": ("deploy A:items=2/1\nwork A 0:ok\nwork A 0:ok", 4, "work A 1#1"),
    "another attempt of an item": ("deploy A:items=2\nwork A 0:ok 1:error\nwork A 1#1:ok", 4, "work A 1#2"),
    "an item after a failed one": ("deploy A:items=2/1\nwork A 0:fail\nwork A 1:ok", 4, ""),
    "a failed item that is no failure": ("deploy A:items=1 B\nwork A 0:fail\nrun B -> ok", 4, ""),
    "doubt about collected items": ("deploy A:collect=1\nwork A 0:fail\noutput -> ok\nend success in-doubt A", 5, ""),
    "a turn too many": ("deploy A:loop B\nwork A 0:ok\nwork A 1:ok", 4, ""),
    "a turn too few": ("deploy A:loop B\nwork A 0:more\nrun B -> ok", 4, "work A 1#1"),
    "a child run that runs": ("deploy A:child B\nwait A\nrun B -> ok", 4, "waits for its child run"),
    "a child run that has ended": ("deploy A:children=2\nwait A\nfinish A 0:ok\nfinish A 0:ok", 5, ""),
    "a child run that is none": ("deploy A:child\nwait A\nfinish A 1:ok", 4, ""),
    "a failed child run that is no failure": ("deploy A:child B\nwait A\nfinish A 0:fail\nrun B -> ok", 5, ""),
    "a cancel without a doubt": ("deploy A:child\nwait A\ncancel\nend canceled at A", 5, "in-doubt A"),
    "runs that run": ("deploy A:runs=2 B\nwait A\nfinish A 0:ok\nrun B -> ok", 5, "waits for 2 of 2 runs"),
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


class _Forgetful(MemoryStore):
    """Holds no pipeline."""

    async def hold_pipeline(self, hold: PipelineHold, /) -> bool:
        return True

    async def release_pipeline(self, pipeline: str, actor: str, note: str, at_us: int, /) -> bool:
        return True


@pytest.mark.parametrize("before", ["run A -> error", "run A -> later", "sleep nap"])
def test_a_pipeline_that_is_not_held_is_noticed(before: str) -> None:
    """R-17: while the pipeline is held, nothing else keeps the run from going on."""
    deploy = "deploy nap:sleep A" if before == "sleep nap" else "deploy A:poll"
    wait = "resolve nap value" if before == "sleep nap" else "restart"
    scenario = _scenario(f"{deploy}\n{before}\nhold pipeline\n{wait}\nrelease pipeline")
    run_one(scenario, "memory")
    data = MemoryData()
    with pytest.raises(Difference, match="expected a run that did nothing"):
        run_virtual(lambda system: EngineDriver(scenario, lambda: _Forgetful(data), system).run())


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
    "scenario x\ndeploy A:nap": ("kinds poll, sleep, choice, message, runs, items, collect, loop, child, children", 2),
    "scenario x\ndeploy A:message*": ("no unwind", 2),
    "scenario x\ndeploy A:runs*?": ("no unwind", 2),
    "scenario x\ndeploy A:loop=3": ("a number only for", 2),
    "scenario x\ndeploy A:child=3": ("a number only for", 2),
    "scenario x\ndeploy A:runs=3/2": ("at once only for", 2),
    "scenario x\ndeploy A:items=3/0": ("flags", 2),
    "scenario x\ndeploy A:message\nsend A": ("send STEP VALUE", 3),
    "scenario x\ndeploy A:message\ntake A x y": ("take STEP VALUE", 3),
    "scenario x\ndeploy A:message\nwait": ("one step", 3),
    "scenario x\ndeploy A:items\nwork A": ("at least one index", 3),
    "scenario x\ndeploy A:items\nwork A ok": ("0:ok", 3),
    "scenario x\ndeploy A:items\nwork A 0:later": ("ok, more, error, fail, runs", 3),
    "scenario x\ndeploy A:items=2\nwork A 1:ok 0:ok": ("in order", 3),
    "scenario x\ndeploy A:items=2\nwork A 0:more": (":loop", 3),
    "scenario x\ndeploy A\nwork A 0:ok": ("items, collect, loop", 3),
    "scenario x\ndeploy A:items=2\nwork A 0:runs 1:ok\nresolve A fail": ("while items run", 4),
    "scenario x\ndeploy A:message=2\nwait A\ntime-out A\nrestart": ("after a time-out", 5),
    "scenario x\ndeploy A:child\nwait A\nfinish A 0:error": ("ok, fail", 4),
    "scenario x\ndeploy A:child\nwait A\nfinish A 0#1:ok": ("without attempts", 4),
    "scenario x\ndeploy A:poll=2": ("hours", 2),
    "scenario x\ndeploy A:sleep=0": ("flags", 2),
    "scenario x\ndeploy A:sleep*": ("no unwind", 2),
    "scenario x\ndeploy A:choice*?": ("no unwind", 2),
    "scenario x\ndeploy L@A=x": ("behind that choice", 2),
    "scenario x\ndeploy A L@A=x": ("behind that choice", 2),
    "scenario x\ndeploy A:choice B L@A=x": ("behind that choice", 2),
    "scenario x\ndeploy A:choice L@A=x R@A=y M@A=x": ("one after another", 2),
    "scenario x\ndeploy A:choice B@A=x:choice": ("no choice within an arm", 2),
    "scenario x\ndeploy A\nrun A -> later": (":poll", 3),
    "scenario x\ndeploy A:poll*\nrun A -> fail\nunwind A -> later": (":poll", 4),
    "scenario x\ndeploy A\nrun A -> ok left": ("nothing more", 3),
    "scenario x\ndeploy A:choice\nrun A -> ok": ("the arm", 3),
    "scenario x\ndeploy A:choice\nresolve A value": ("the arm", 3),
    "scenario x\ndeploy A\nhold": ("hold pipeline", 3),
    "scenario x\ndeploy A\nend canceled": ("at STEP", 3),
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_line_is_named_with_what_was_expected(text: str) -> None:
    expected, line = MALFORMED[text]
    with pytest.raises(ScenarioError, match=f"bad.scenario:{line}: expected .*({expected})"):
        parse(text, "bad.scenario")
