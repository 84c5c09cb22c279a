"""The oracle alone must reproduce every line of every scenario before it may judge the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweep.oracle import NotLegal, apply, decide
from tests.sweep.scenario_reader import Line, Malformed, Scenario, read_file
from tests.sweep.vocabulary import (
    CancelAt,
    EndCanceled,
    EndFailure,
    EndSuccess,
    Event,
    Invalid,
    Lists,
    Output,
    Run,
    Step,
    Topology,
    Unwind,
    What,
    World,
)

FOLDER = Path(__file__).parents[1] / "scenarios"
LEAST = {"forward.scenario": 34, "unwind.scenario": 31, "operate.scenario": 25, "generated.scenario": 400}

RUN_OUTCOMES = {"ok": What.RETURNED, "error": What.RAISED, "fail": What.FAILED, "crash": What.LOST}
UNWIND_OUTCOMES = {
    "ok": What.UNWIND_RETURNED,
    "error": What.UNWIND_RAISED,
    "fail": What.UNWIND_FAILED,
    "crash": What.UNWIND_LOST,
}
WORDS = {"value": What.RESOLVED_VALUE, "skip": What.RESOLVED_SKIP, "fail": What.RESOLVED_FAIL}


class Teller:
    """Tells one scenario to the oracle, line by line."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world: World = ()
        self.topology: Topology = ()

    def tell(self) -> None:
        for line in self.scenario.lines:
            self._line(line)
            while isinstance(decision := decide(self.world, self.topology), CancelAt):
                self._happens(What.CANCEL_ACTED, decision.step)  # a cancel is acted on at once

    def _line(self, line: Line) -> None:
        match line.verb:
            case "deploy":
                self.topology = line.topology
                self._happens(What.DEPLOYED)
            case "run":
                chosen = decide(self.world, self.topology)
                self._expect(line, isinstance(chosen, Run) and chosen.step == line.step)
                self._expect(line, isinstance(chosen, Run) and line.attempt in (None, chosen.attempt))
                self._happens(What.RESERVED, line.step)
                self._happens(RUN_OUTCOMES[line.outcome], line.step)
            case "unwind":
                chosen = decide(self.world, self.topology)
                self._expect(line, isinstance(chosen, Unwind) and chosen.step == line.step)
                self._expect(line, isinstance(chosen, Unwind) and line.attempt in (None, chosen.attempt))
                self._happens(What.UNWIND_RESERVED, line.step)
                self._happens(UNWIND_OUTCOMES[line.outcome], line.step)
            case "output":
                self._expect(line, isinstance(decide(self.world, self.topology), Output))
                self._happens(What.OUTPUT_RETURNED if line.outcome == "ok" else What.OUTPUT_RAISED)
            case "skip":
                self._expect(line, decide(self.world, self.topology) == Run(line.step, 1))
                self._happens(What.SKIPPED, line.step)
            case "resolve":
                self._happens(WORDS[line.outcome], line.step)
            case "cancel":
                self._happens(What.CANCEL_REQUESTED)
            case "restart":
                pass  # the oracle has nothing but the history anyway
            case "invalid":
                self._expect(line, isinstance(decide(self.world, self.topology), Invalid))
            case "end success":
                self._expect(line, line.lists == Lists(in_doubt=line.lists.in_doubt))
                self._expect(line, decide(self.world, self.topology) == EndSuccess(line.lists.in_doubt))
            case "end failure":
                self._expect(line, decide(self.world, self.topology) == EndFailure(line.step, line.lists))
            case "end canceled":
                self._expect(line, decide(self.world, self.topology) == EndCanceled(line.step, line.lists))
            case other:
                raise AssertionError(other)

    def _happens(self, what: What, step: str = "") -> None:
        self.world = apply(self.world, self.topology, Event(what, step))

    def _expect(self, line: Line, holds: bool) -> None:
        where = f"{self.scenario.file}:{line.number} ({self.scenario.name})"
        assert holds, f"{where}: expected {line}, the oracle chose {decide(self.world, self.topology)}"


@pytest.mark.parametrize("file", LEAST)
def test_the_oracle_reproduces_every_scenario(file: str) -> None:
    """E-1 to E-12, U-1 to U-12, R-12, R-17."""
    scenarios = read_file(FOLDER / file)
    assert len(scenarios) >= LEAST[file]
    for scenario in scenarios:
        Teller(scenario).tell()


def test_a_wrong_expectation_is_noticed() -> None:
    lines = (Line(1, "deploy", topology=(Step("A"), Step("B"))), Line(2, "run", "B", None, "ok"))
    with pytest.raises(AssertionError, match="the oracle chose Run"):
        Teller(Scenario("wrong", "none", lines)).tell()


@pytest.mark.parametrize(
    "text", ["deploy", "deploy A?", "run A", "run A -> maybe", "end failure A", "end success in-doubt", "jump"]
)
def test_the_reader_refuses_malformed_lines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.scenario"
    path.write_text(f"scenario bad\n{text}\n", encoding="utf-8")
    with pytest.raises(Malformed, match=r"bad\.scenario:2"):
        read_file(path)


AB: Topology = (Step("A", unwind=True, in_doubt=True), Step("B"))


def history(*events: Event, topology: Topology = AB) -> World:
    world: World = ()
    for event in events:
        world = apply(world, topology, event)
    return world


def test_only_what_is_next_can_happen() -> None:
    """E-2, E-12, R-17: no other step is reserved, skipped or resolved; a started step is not asked again."""
    world = history(Event(What.RESERVED, "A"), Event(What.RAISED, "A"))
    for event in (
        Event(What.RESERVED, "B"),
        Event(What.SKIPPED, "A"),
        Event(What.RESOLVED_VALUE, "B"),
        Event(What.RETURNED, "A"),
        Event(What.OUTPUT_RETURNED),
        Event(What.UNWIND_RESERVED, "A"),
        Event(What.CANCEL_ACTED, "A"),
    ):
        with pytest.raises(NotLegal):
            apply(world, AB, event)


def test_a_running_attempt_that_fails_while_canceled_is_canceled_without_doubt() -> None:
    """R-12: its own `Fail` under a cancel is canceled, but not in doubt."""
    world = history(Event(What.RESERVED, "A"), Event(What.CANCEL_REQUESTED), Event(What.FAILED, "A"))
    assert decide(world, AB) == EndCanceled("A", Lists())


def test_a_running_attempt_that_raises_while_canceled_is_in_doubt() -> None:
    """R-12, U-9, U-12."""
    events = (Event(What.RESERVED, "A"), Event(What.CANCEL_REQUESTED), Event(What.RAISED, "A"))
    world = history(*events, Event(What.CANCEL_ACTED, "A"))
    assert decide(world, AB) == Unwind("A", 1, in_doubt=True)


def test_a_success_under_a_cancel_commits_and_the_cancel_acts_on_the_next() -> None:
    """R-12."""
    world = history(Event(What.RESERVED, "A"), Event(What.CANCEL_REQUESTED), Event(What.RETURNED, "A"))
    assert decide(world, AB) == CancelAt("B")


def test_a_cancel_after_the_last_step_acts_on_a_step_appended_later() -> None:
    """R-12, E-10: the cancel acts on the next operation the run selects, until the outcome is committed."""
    only_a = (AB[0],)
    world = history(Event(What.RESERVED, "A"), Event(What.RETURNED, "A"), topology=only_a)
    world = apply(world, only_a, Event(What.CANCEL_REQUESTED))
    assert isinstance(decide(world, only_a), Output)
    assert decide(world, AB) == CancelAt("B")


def test_exhaustion_leaves_the_step_in_doubt() -> None:
    """M-9, U-9: only `Fail` is the handler's own word."""
    world = history(Event(What.RESERVED, "A"), Event(What.GAVE_UP, "A"))
    assert decide(world, AB) == Unwind("A", 1, in_doubt=True)
    assert decide(world, (Step("B"),)) == EndFailure("A", Lists(in_doubt=("A",), unavailable=("A",)))
