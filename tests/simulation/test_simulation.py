"""Seeded simulation of engine, store and clock: no seed breaks a rule, and every kind of fault happens.

The judge that reads every fact names the rules it finds broken; the README beside this file lists what it watches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from perdure.testing.simulation import KINDS, LIMITED_KINDS, SHARED_KINDS, Report, Violation, simulate

ENOUGH = 200
"""So many seeds have to show every kind of fault."""

SHARED = 40
"""So many seeds of worlds in which workers share a store are played; they are longer than the others."""


def play(
    seeds: Iterable[int],
    note: Callable[[str], None],
    kinds: Sequence[str] = KINDS,
    enough: int = ENOUGH,
    *,
    shared: bool = False,
    limited: bool = False,
) -> None:
    """Play seeds; fail on the first that breaks a rule, and on a kind of fault that never happened."""
    tally: Counter[str] = Counter()
    runs = facts = played = 0
    for seed in seeds:
        report = simulate(seed, shared=shared, limited=limited)
        report.check()
        tally += report.tally
        runs, facts, played = runs + report.runs, facts + report.facts, played + 1
    note(f"{played} seeds, {runs} runs, {facts} facts")
    for start in range(0, len(kinds), 6):
        note(", ".join(f"{kind} {tally[kind]}" for kind in kinds[start : start + 6]))
    missing = [kind for kind in kinds if not tally[kind]]
    assert played < enough or not missing, f"never happened in {played} seeds: {missing}"


@pytest.mark.long
@pytest.mark.timeout(900)  # ten seconds of work, on machines that do other things besides
def test_no_seed_breaks_a_rule(sim_seeds: Sequence[int], note: Callable[[str], None]) -> None:
    """M-1 .. M-17, E-1 .. E-12, U-1 .. U-12, J-1 .. J-16, R-1 .. R-18 under crashes, cancels and redeployments."""
    play(sim_seeds, note)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_seed_of_many_workers_breaks_a_rule(sim_seeds: Sequence[int], note: Callable[[str], None]) -> None:
    """R-2, R-3, R-16, D-4 and the others: pauses, deaths, rolling deployments, clocks an hour off."""
    play(sim_seeds[:SHARED], note, SHARED_KINDS, SHARED, shared=True)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("shared", "enough"), [(False, 40), (True, 8)])
def test_no_seed_with_limits_breaks_a_rule(
    shared: bool, enough: int, sim_seeds: Sequence[int], note: Callable[[str], None]
) -> None:
    """R-10, R-11, R-16: never more at once than there are places, which all come back; nobody starves."""
    play(sim_seeds[:enough], note, LIMITED_KINDS, enough, shared=shared, limited=True)


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(4))
def test_no_seed_of_many_with_limits_breaks_a_rule(block: int, note: Callable[[str], None]) -> None:
    """The same for others."""
    play(range(50_000 + block * 500, 50_500 + block * 500), note, LIMITED_KINDS, limited=True)
    play(range(60_000 + block * 50, 60_050 + block * 50), note, LIMITED_KINDS, shared=True, limited=True)


def crash_everywhere(seed: int, turns: int) -> int:
    """Play a seed once for each place where a process can die: before and after every append and every effect."""
    points = simulate(seed, turns=turns, crash_at=0).crash_points
    for point in range(1, points + 1):
        simulate(seed, turns=turns, crash_at=point).check()
    return points


@pytest.mark.parametrize("seed", [1, 4])
def test_a_crash_at_any_point_breaks_no_rule(seed: int, note: Callable[[str], None]) -> None:
    """J-12, J-14, M-3, M-6, M-8: not only where chance puts it."""
    note(f"{crash_everywhere(seed, 8)} places to die in seed {seed}")


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_crash_at_any_point_of_many_seeds_breaks_no_rule(seed: int) -> None:
    crash_everywhere(seed, 40)


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(10))
def test_no_seed_of_many_breaks_a_rule(block: int, note: Callable[[str], None]) -> None:
    """The same for ten thousand others."""
    play(range(10_000 + block * 1_000, 11_000 + block * 1_000), note)


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(10))
def test_no_seed_of_many_with_many_workers_breaks_a_rule(block: int, note: Callable[[str], None]) -> None:
    """R-2, R-3: two thousand others."""
    play(range(30_000 + block * 200, 30_200 + block * 200), note, SHARED_KINDS, shared=True)


@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_long_plays_break_no_rule() -> None:
    """Few seeds with many turns: long journals, many deployments, many crashes of one run."""
    for seed in range(20_000, 20_100):
        simulate(seed, turns=400).check()
    for seed in range(20_100, 20_120):
        simulate(seed, turns=400, shared=True).check()


def test_a_seed_is_the_same_play_every_time() -> None:
    """Otherwise a seed that fails could not be played again."""
    assert simulate(11).trace == simulate(11).trace
    assert simulate(4, shared=True).trace == simulate(4, shared=True).trace


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_the_same_play_in_every_process(hash_seed: str) -> None:
    """Nothing hangs on addresses or on the order of sets."""
    seeds = (3, 47, 57)
    command = [sys.executable, "-m", "perdure.testing.simulation", *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == [simulate(seed).digest for seed in seeds]


def test_seeds_differ() -> None:
    assert len({simulate(seed).digest for seed in range(5)}) == 5


def test_a_failure_says_how_to_play_it_again() -> None:
    report = simulate(0, turns=3)
    with pytest.raises(AssertionError, match=r"make sim SEED=0"):
        broken(report).check()


def broken(report: Report) -> Report:
    """The same, as if a rule had been broken in it."""
    violation = Violation("", "R-16", "an example")
    return replace(report, violations=(violation,))
