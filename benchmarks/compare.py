"""`make bench`: perdure, the same appends without an engine, a bare commit loop and DBOS, interleaved and repeated.

Writes `benchmarks/RESULTS.md`. Exit code 0 if every bar was reached, else 1; 2 if something could not be measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.items import foreach
from benchmarks.latency import w5
from benchmarks.long_run import w2
from benchmarks.measurement import KEYS, Measurement
from benchmarks.micro import micro
from benchmarks.places import place
from benchmarks.process import ROOT, load, run
from benchmarks.report import write_report
from benchmarks.side_by_side import STEPS, Rates, w1_beside_limits
from benchmarks.submitting import submitting
from benchmarks.waiting import w4

REPETITIONS = 3
RESULTS = ROOT / "benchmarks" / "RESULTS.md"


@dataclass(frozen=True)
class Sizes:
    """How much of everything one repetition measures."""

    repetitions: int = REPETITIONS
    slices_at_1: int = 20
    runs_at_1: int = 60
    slices: int = 5
    runs: int = 3_000
    commits: int = 360  # as many as sixty runs at 1 need
    dbos_runs: int = 400
    long_run: int = 10_000
    waiting: int = 100_000
    idle_runs: int = 150
    items: int = 10_000
    submitted: int = 20_000


@dataclass
class Findings:
    """Everything that was measured, by repetition (and slice)."""

    at_1: Rates = field(default_factory=Rates)
    at_32: Rates = field(default_factory=Rates)
    at_128: Rates = field(default_factory=Rates)
    dbos: list[Measurement] = field(default_factory=list[Measurement])
    dbos_ratio: list[float] = field(default_factory=list[float])
    long_runs: list[Measurement] = field(default_factory=list[Measurement])
    waiting: list[Measurement] = field(default_factory=list[Measurement])
    idle: list[Measurement] = field(default_factory=list[Measurement])
    items: list[Measurement] = field(default_factory=list[Measurement])
    submitted: list[Measurement] = field(default_factory=list[Measurement])
    micro: list[Measurement] = field(default_factory=list[Measurement])
    loads: list[str] = field(default_factory=list[str])
    seconds: float = 0.0


def compare(sizes: Sizes | None = None, results: Path = RESULTS) -> int:
    """Measure everything and write the results."""
    if find_spec("dbos") is None:
        print("benchmarks: DBOS is not installed; run `make bench`, or `make bench-env` first", file=sys.stderr)
        return 2
    sizes = sizes or Sizes()
    findings = Findings()
    started = time.monotonic()
    for repetition in range(sizes.repetitions):
        _say(f"repetition {repetition + 1} of {sizes.repetitions}, load {load()}")
        findings.loads.append(load())
        _repetition(findings, sizes)
    findings.micro = list(micro(steps=2_000))
    findings.seconds = time.monotonic() - started
    bars = write_report(findings, results)
    _say(f"written to {results}")
    return 0 if all(bar.reached for bar in bars) else 1


def _repetition(findings: Findings, sizes: Sizes) -> None:
    at_1 = _beside(1, sizes.runs_at_1, sizes.commits, sizes.slices_at_1)
    at_32 = _beside(32, sizes.runs, sizes.commits, sizes.slices)
    at_128 = _beside(128, sizes.runs, sizes.commits, sizes.slices)
    dbos = _dbos(sizes.dbos_runs, 128)
    again = _beside(128, sizes.runs, sizes.commits, sizes.slices)
    at_128.add(again)
    findings.at_1.add(at_1)
    findings.at_32.add(at_32)
    findings.at_128.add(at_128)
    findings.dbos.append(dbos)
    findings.dbos_ratio += [rate / (dbos.steps_per_s or 1.0) for rate in at_128.perdure]
    findings.long_runs.append(_one(f"W2, {sizes.long_run:,} steps", lambda w: run(w2(w, steps=sizes.long_run))))
    findings.idle.append(_one("W5", lambda w: run(w5(w, runs=sizes.idle_runs))))
    findings.items.append(_one(f"foreach, {sizes.items:,} items", lambda w: run(foreach(w, items=sizes.items))))
    findings.submitted.append(_one("submit_many", lambda w: run(submitting(w, runs=sizes.submitted))))
    findings.waiting.append(_one(f"W4, {sizes.waiting:,} waiting runs", lambda w: run(w4(w, runs=sizes.waiting))))


def _beside(concurrency: int, runs: int, commits: int, slices: int) -> Rates:
    _say(f"  W1 at {concurrency}, raw and bare in turn")
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        return run(w1_beside_limits(Path(folder), concurrency=concurrency, runs=runs, commits=commits, slices=slices))


def _one(name: str, measure: Callable[..., Measurement]) -> Measurement:
    _say(f"  {name}")
    with place(None) as where:
        return measure(where)


def _dbos(runs: int, concurrency: int) -> Measurement:
    """DBOS in a process of its own: it keeps threads and global state."""
    _say(f"  DBOS, W1 at {concurrency}")
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.peer_dbos",
                f"{folder}/dbos.sqlite",
                str(runs),
                str(STEPS),
                str(concurrency),
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    values = json.loads(done.stdout.splitlines()[-1])
    known = {key: values.pop(key) for key in KEYS}
    return Measurement(**known, extra=values)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
