"""Would the sweep notice? Each planted mistake must be found by it, and those beyond its questions by the scenarios."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from perdure.errors import CorruptJournal
from perdure.testing.scenario.model import Scenario
from perdure.testing.scenario.parser import read_files
from perdure.testing.scenario.report import Difference
from tests.sweep.core_judge import Core, CoreJudge, Disagreement
from tests.sweep.mutants import SCENARIOS, Mutation, NotApplicable, loaded, mutated
from tests.sweep.mutations import AT_THE_END, MUTATIONS
from tests.sweep.sweep import Kind, sweep

FOLDER = Path(__file__).parents[1] / "scenarios"


@functools.cache
def scenarios() -> tuple[Scenario, ...]:
    return tuple(read_files(map(str, sorted(FOLDER.glob("*.scenario")))))


SEEN_WITH_SHAPES = frozenset(
    {
        "a sleep records nothing as passed [E-7]",
        "a sleep may become a handler [D-1]",
        "what was begun leaves no doubt [U-12]",
        "a wait has no limit [B-8]",
    }
)
"""Of those beyond its questions, what the worlds with waits and units show."""
SHAPED = [m for m in AT_THE_END if m.what in SEEN_WITH_SHAPES]


def failing_scenarios(modules: Mapping[str, ModuleType]) -> int:
    """How many scenarios do not go as written. A mistake may also make facts that do not fit."""
    failed = 0
    for scenario in scenarios():
        try:
            modules[SCENARIOS].CoreDriver(scenario).run()
        except (Difference, CorruptJournal):
            failed += 1
    return failed


def found_by_sweep(modules: Mapping[str, ModuleType]) -> str | None:
    """The first difference; random lives are asked first, for they go on in one topology as the small worlds do not."""
    judge = CoreJudge(Core.of(modules))
    kinds: tuple[Kind, ...] = ("four-sample", "two")
    for kind in kinds:
        try:
            report = sweep(kind, judge, differences=1, seed=1, walks=1_000)
        except (Disagreement, CorruptJournal) as problem:
            return f"{kind}, {type(problem).__name__}"
        if report.differences:
            return f"{kind}, decision {report.questions:,}"
    return None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_the_sweep_finds_a_planted_mistake(mutation: Mutation, note: Callable[[str], None]) -> None:
    with loaded(mutation) as modules:
        found = found_by_sweep(modules)
        if found is None:
            pytest.fail(f"no world of two steps differs; {failing_scenarios(modules)} scenarios do", pytrace=False)
    note(f"sweep: {found}")


@pytest.mark.parametrize("mutation", SHAPED, ids=str)
def test_the_sweep_with_waits_and_units_finds_a_planted_mistake(
    mutation: Mutation, note: Callable[[str], None]
) -> None:
    """B-15, D-1, U-12: those that no world of handlers shows."""
    with loaded(mutation) as modules:
        try:
            report = sweep("shaped-sample", CoreJudge(Core.of(modules)), differences=1)
        except (Disagreement, CorruptJournal) as problem:
            note(f"sweep: {type(problem).__name__}")
            return
    assert report.differences, "no such world differs"
    note(f"sweep: shaped-sample, decision {report.questions:,}")


@pytest.mark.parametrize("mutation", AT_THE_END, ids=str)
def test_the_scenarios_find_a_planted_mistake(mutation: Mutation, note: Callable[[str], None]) -> None:
    with loaded(mutation) as modules:
        failed = failing_scenarios(modules)
    assert failed, "every scenario goes as written"
    note(f"scenarios: {failed} of {len(scenarios())}")


def test_without_a_mistake_nothing_is_found() -> None:
    """The reloaded modules are as good as the real ones: what is found above is the mistake."""
    with loaded(None) as modules:
        assert failing_scenarios(modules) == 0
        report = sweep("four-sample", CoreJudge(Core.of(modules)), walks=100)
    assert report.differences == []


def test_a_mutation_that_no_longer_fits_is_refused() -> None:
    mutation = Mutation("reducer", "nothing", "x = 1", "x = 2")
    assert mutated(mutation, "a\nx = 1\nb") == "a\nx = 2\nb"
    for source in ("", "x = 1\nx = 1"):
        with pytest.raises(NotApplicable):
            mutated(mutation, source)


def test_there_are_enough_mistakes() -> None:
    every = [*MUTATIONS, *AT_THE_END]
    assert len(MUTATIONS) >= 20
    assert len({(m.module, m.old, m.new) for m in every}) == len({m.what for m in every}) == len(every)
