"""`benchmarks/RESULTS.md`: bars and figures of one comparison."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bars import Bar, at_least, at_most
from benchmarks.checking import section
from benchmarks.items import AT_LEAST_PER_S as ITEMS_PER_S
from benchmarks.items import AT_MOST_TIMES as ITEMS_TIMES
from benchmarks.measurement import Measurement, median
from benchmarks.process import commit, machine
from benchmarks.side_by_side import shown
from benchmarks.submitting import AT_LEAST_PER_S as SUBMITTED_PER_S

if TYPE_CHECKING:
    from benchmarks.compare import Findings


def write_report(findings: Findings, path: Path) -> list[Bar]:
    """Write the page; the bars with what was measured. The section of a workload that records itself stays."""
    bars = bars_of(findings)
    path.write_text(page(findings, bars) + section(path) + section(path, "## PostgreSQL"), encoding="utf-8")
    return bars


def bars_of(findings: Findings) -> list[Bar]:
    """The bars, each with its measurements."""
    longest, waiting, idle = findings.long_runs, findings.waiting, findings.idle
    restart_ms = [
        max(a, b)
        for a, b in zip(
            _extra(waiting, "restart_to_due_step_ms"), _extra(waiting, "restart_to_submitted_step_ms"), strict=True
        )
    ]
    return [
        at_least("W1 at 128", 20_000, findings.at_128.perdure, " steps/s"),
        at_least("W1 at 128, by DBOS on SQLite", 80, findings.dbos_ratio, " times"),
        at_least("W1 at 128, by raw", 0.35, findings.at_128.to_raw()),
        at_least("W1 at 1, by a bare commit loop", 0.6, findings.at_1.to_bare()),
        at_least("W1 at 1 (a bare loop with 3,430 commits/s asks for this)", 2_200, findings.at_1.perdure, " steps/s"),
        at_least("W2", 3_000, [m.steps_per_s or 0.0 for m in longest], " steps/s"),
        at_most("W2, processor time of a late step by an early one", 1.2, _extra(longest, "late_to_early")),
        at_most("W4, memory of the worker", 120, [m.rss_mb or 0.0 for m in waiting], " MB"),
        at_most("W4, restart to first new step", 1_000, restart_ms, " ms"),
        at_most("W4, file for a waiting run", 600, [m.bytes_per_run or 0.0 for m in waiting], " bytes"),
        at_least("foreach", ITEMS_PER_S, _extra(findings.items, "items_per_s"), " items/s"),
        at_most("foreach, 10,000 items by 1,000", ITEMS_TIMES, _extra(findings.items, "times_a_tenth"), " times"),
        at_least("submit_many", SUBMITTED_PER_S, [m.runs_per_s or 0.0 for m in findings.submitted], " runs/s"),
        at_most("W5, p50 above a bare commit", 2, _extra(idle, "above_bare_ms"), " ms"),
    ]


def _extra(measurements: Sequence[Measurement], key: str) -> list[float]:
    return [float(value) for m in measurements if (value := m.extra.get(key)) is not None]


def page(findings: Findings, bars: Sequence[Bar]) -> str:
    """The whole page."""
    return "\n".join(
        [
            "# Results",
            "",
            "<!-- Written by `make bench`. How each workload works: docs/reference/benchmarks.md -->",
            "",
            f"{datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {findings.seconds / 60:.0f} minutes, "
            f"load average before each repetition {', '.join(findings.loads)}.",
            f"{machine()}; dbos {version('dbos')}.",
            "SQLite in WAL mode, synchronous=FULL. Default settings everywhere. Medians, with the smallest and the",
            "greatest value of all repetitions in brackets. Ratios are medians of the ratios of neighbouring slices.",
            "",
            "## Bars",
            "",
            *_rows(
                ("what", "bar", "measured", "measured by bar", ""),
                [(bar.what, bar.bar, shown(list(bar.measured)), f"{bar.share:.2f}", _verdict(bar)) for bar in bars],
            ),
            "",
            "## W1: steps a second",
            "",
            *_w1(findings),
            "",
            "## Other workloads",
            "",
            *_others(findings),
            "",
        ]
    )


def _verdict(bar: Bar) -> str:
    return "reached" if bar.reached else "**missed**"


def _w1(findings: Findings) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for at_once, rates in ((1, findings.at_1), (32, findings.at_32), (128, findings.at_128)):
        rows.append(
            (
                str(at_once),
                shown(rates.perdure),
                shown(rates.raw),
                shown(rates.bare),
                f"{median(rates.to_raw()):.2f}",
                f"{median(rates.to_bare()):.2f}",
                shown(rates.cpu_us_per_step),
            )
        )
    lines = _rows(("at a time", "perdure", "raw", "bare", "by raw", "by bare", "processor µs a step"), rows)
    rate = [m.steps_per_s or 0.0 for m in findings.dbos]
    cpu = _extra(findings.dbos, "cpu_us_per_step")
    return [
        *lines,
        "",
        f"DBOS at 128: {shown(rate)} steps/s, {shown(cpu)} processor µs a step. "
        f"perdure by DBOS: {shown(findings.dbos_ratio)}.",
    ]


def _others(findings: Findings) -> list[str]:
    rows: list[tuple[str, str]] = []
    for name, measurements, keys in (
        ("W2", findings.long_runs, ("cpu_us_per_step", "cpu_us_at_100", "cpu_us_at_end", "bare_per_s")),
        ("W4", findings.waiting, ("rss_empty_mb", "rss_filled_mb", "rss_resumed_mb", "idle_cpu_percent")),
        ("W4", findings.waiting, ("restart_to_due_step_ms", "restart_to_submitted_step_ms")),
        ("foreach", findings.items, ("items_per_s_of_a_tenth", "cpu_us_per_item")),
        ("submit_many", findings.submitted, ("least_per_s", "most_per_s", "cpu_us_per_run")),
        ("W5", findings.idle, ("bare_p50_ms", "bare_p99_ms")),
    ):
        rows += [(f"{name} {key}", shown(_extra(measurements, key))) for key in keys]
    rows.append(("W4 runs_per_s, submitted", shown([m.runs_per_s or 0.0 for m in findings.waiting])))
    rows.append(("W5 p50_ms", shown([m.p50_ms or 0.0 for m in findings.idle])))
    rows.append(("W5 p99_ms", shown([m.p99_ms or 0.0 for m in findings.idle])))
    rows += [(f"micro {m.extra['op']} us_per_op", shown(_extra([m], "us_per_op"))) for m in findings.micro]
    return _rows(("what", "measured"), rows)


def _rows(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
