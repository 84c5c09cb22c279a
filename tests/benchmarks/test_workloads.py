"""Every workload runs with small numbers and prints the documented keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.checking import record, section
from benchmarks.measurement import KEYS, Measurement, table

ROOT = Path(__file__).resolve().parents[2]

SMALL = {
    "W1": (["--runs", "6", "--concurrency", "3"], ["cpu_us_per_step", "steps"]),
    "W2": (["--steps", "40"], ["cpu_us_at_100", "cpu_us_at_end", "late_to_early"]),
    "W4": (["--runs", "30"], ["restart_to_due_step_ms", "restart_to_submitted_step_ms", "rss_resumed_mb"]),
    "W5": (["--runs", "3"], ["bare_p50_ms", "above_bare_ms"]),
    "raw": (["--runs", "5", "--concurrency", "2"], ["cpu_us_per_step"]),
    "bare": (["--runs", "20"], ["cpu_us_per_step"]),
    "check": (["--runs", "60"], ["ledgers", "check_ms", "census_ms"]),
    "submit_many": (["--runs", "40"], ["least_per_s", "most_per_s", "bar_per_s", "cpu_us_per_run"]),
    "foreach": (["--steps", "40"], ["items_per_s", "times_a_tenth", "bar_per_s", "bar_times", "cpu_us_per_item"]),
    "micro": (["--steps", "20"], ["op", "us_per_op"]),
}


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks`."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workload", SMALL)
def test_workload_prints_its_keys(workload: str, tmp_path: Path) -> None:
    arguments, extra = SMALL[workload]
    done = benchmarks(workload, *arguments, "--store", f"sqlite:///{tmp_path}/bench.db", "--json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == {"micro": 4, "check": 3}.get(workload, 1)
    for line in lines:
        found: dict[str, object] = json.loads(line)
        assert tuple(found)[: len(KEYS)] == KEYS
        assert found["workload"] == workload
        assert [key for key in extra if found.get(key) is None] == []
    assert list(tmp_path.iterdir()) == [], "a benchmark leaves nothing behind"


def test_many_runs_in_memory() -> None:
    done = benchmarks("W1", "--runs", "4", "--concurrency", "2", "--store", "memory://", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    assert (found["store"], found["bytes_per_run"], found["commits_per_run"]) == ("memory", None, None)


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious.db"
    path.write_text("mine")
    done = benchmarks("W1", "--store", f"sqlite:///{path}")
    assert done.returncode == 1
    assert "exists" in done.stderr
    assert "Traceback" not in done.stderr
    assert path.read_text() == "mine"


def test_table_shows_what_there_is() -> None:
    shown = table(
        [Measurement(workload="W1", store="sqlite", steps_per_s=12_345.6), Measurement(workload="W2", store="x")]
    )
    assert shown.splitlines() == [
        "workload   store  steps_per_s",
        "      W1  sqlite       12,346",
        "      W2       x            -",
    ]


def test_what_check_found_has_a_section_of_its_own(tmp_path: Path) -> None:
    """Recorded twice, it is there once; the rest of the page stays, and so does the section when the page is made."""
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\n## Bars\n\nabove\n", encoding="utf-8")
    found = Measurement(
        workload="check", store="sqlite", runs=7, extra={"ledgers": 3.0, "check_ms": 12.0, "census_ms": 5.0}
    )
    for _ in range(2):
        record([found], page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Results\n\n## Bars\n\nabove\n\n## check\n")
    assert text.count("| 7 | 3 | 12 ms | 5 ms |") == 1
    assert section(page) == text[text.index("\n## check") :]
    assert section(tmp_path / "none.md") == ""
