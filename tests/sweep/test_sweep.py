"""E-1..E-12, U-1..U-12, R-12, R-17: the core decides every small world as the rules do, and records what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sweep.core_judge import MODULES, Core, CoreJudge
from tests.sweep.sweep import Kind, Report, sweep

FOUR_STEP_SEED = 20130101


def run(kind: Kind, seed: int = 0) -> Report:
    report = sweep(kind, CoreJudge(Core.of(MODULES)), seed=seed)
    if report.differences:
        pytest.fail(f"{report}\n" + "\n\n".join(map(str, report.differences)), pytrace=False)
    return report


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_world_of_two_steps(note: Callable[[str], None]) -> None:
    report = run("two")
    note(str(report))
    assert report.ledgers == 1_934
    assert report.questions == 1_771_832  # exactly: a sweep that shrinks proves less and fails here


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_sample_of_the_worlds_of_two_steps_with_waits_and_units(note: Callable[[str], None]) -> None:
    """B-15, B-20, D-1, U-12: steps that wait or have items, and may be something else in each deployment."""
    report = run("shaped-sample")
    note(str(report))
    assert report.ledgers == 329
    assert {"GoOn", "CancelAt", "Unwind", "Invalid", "EndFailure", "EndCanceled"} <= set(report.decisions)


@pytest.mark.deep
@pytest.mark.timeout(3_600)
def test_every_world_of_two_steps_with_waits_and_units(note: Callable[[str], None]) -> None:
    report = run("shaped")
    note(str(report))
    assert report.ledgers == 3_940
    assert report.questions > 1_400_000


@pytest.mark.long
@pytest.mark.timeout(300)
def test_random_lives_of_four_steps(note: Callable[[str], None]) -> None:
    report = run("four-sample", FOUR_STEP_SEED)
    note(f"{report}, seed {FOUR_STEP_SEED}")
    decided = {"Run", "Unwind", "CancelAt", "Output", "EndFailure", "EndCanceled", "Invalid"}
    assert decided <= set(report.decisions), "each kind of decision happens in a sample worth its name"


@pytest.mark.deep
@pytest.mark.timeout(3_600)
def test_every_world_of_three_steps(note: Callable[[str], None]) -> None:
    report = run("three")
    note(str(report))
    assert report.ledgers == 4_456
    assert report.questions > 8_000_000
