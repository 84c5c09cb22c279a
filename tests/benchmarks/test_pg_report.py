"""The section about PostgreSQL: written anew each time, and the rest of the page stays."""

from __future__ import annotations

from pathlib import Path

from benchmarks.checking import section
from benchmarks.measurement import Measurement
from benchmarks.on_postgres import Findings, Sizes
from benchmarks.pg_report import HEADING, bars_of, write_section
from benchmarks.turns import Program, Turn


def _program(name: str, *walls_s: float) -> Program:
    """A program that did 100 runs in each of those times."""
    turns = [Turn(100, wall_s, 0.005, 0.0025, 400_000, 1.0, 2.0) for wall_s in walls_s]
    return Program(name, [], 1, 100, turns=turns)


def _found() -> Findings:
    at_1 = {"perdure": _program("perdure", 0.6, 0.3), "bare": _program("bare", 0.05, 0.05)}
    at_128 = {
        "perdure": _program("perdure", 0.02, 0.04),
        "perdure, two workers": _program("perdure, two workers", 0.01, 0.02),
        "DBOS": _program("DBOS", 2.0, 3.0),
    }
    start = Measurement(
        workload="start",
        store="postgresql",
        runs=7,
        extra={"first_step_ms": 300.0, "least_ms": 200.0, "most_ms": 900.0, "fill_s": 1.0},
    )
    return Findings(
        {1: at_1, 128: at_128}, stored={1: (5_000.0, 6.0, 6.0)}, start=start, missing={"Restate": "no npm here"}
    )


def test_bars() -> None:
    """Ratios are medians of the ratios of neighbours; a peer that was not there has no bar."""
    bars = {bar.what: (round(bar.value, 3), bar.reached) for bar in bars_of(_found())}
    assert bars == {
        "W1 at 128, one worker": (18_750.0, True),
        "W1 at 128, by DBOS": (87.5, True),
        "W1 at 128, two workers by one": (2.0, True),
        "W1 at 1, a commit by a bare insert": (1.5, True),
        "start to first new step, 7 waiting": (300.0, True),
    }


def test_the_section_is_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text(f"# Results\n\nabove\n\n{HEADING}\n\nold\n\n## check\n\nbelow\n", encoding="utf-8")
    for _ in range(2):
        write_section(_found(), page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Results\n\nabove\n\n## check\n\nbelow\n\n## PostgreSQL\n")
    assert "old" not in text
    assert text.count("| 1 | perdure | 1,250 (833–1,667) | 1 | 10 | 5 | 4e+03 |") == 1
    assert text.count("Restate was not measured: no npm here.") == 1
    assert section(page, HEADING) == text[text.index("\n## PostgreSQL") :]


def test_a_share_of_the_sizes() -> None:
    """A try measures less of everything, but something of each, and each slice twice."""
    small = Sizes().shrunk(0.0001)
    assert (small.slices, small.runs, small.bare, small.crowd) == (2, (1, 1, 1), 1, 100)
