"""`postgres`: perdure on PostgreSQL, with one worker process and with two, beside its limits and its peers.

All of them take turns on one server of our own, which syncs every commit; see docs/reference/benchmarks.md. Writes its
section of `benchmarks/RESULTS.md`. Exit code 0 if every bar was reached, else 1; 2 where a peer was not there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import across
from benchmarks.children import Child, Part
from benchmarks.measurement import Measurement
from benchmarks.places import place
from benchmarks.process import load, run
from benchmarks.runs import Slice
from benchmarks.starting import starting
from benchmarks.turns import Program, Server, folder, server
from benchmarks.waiting import w4
from benchmarks.written import Counters

STEPS = 5
AT_ONCE = (1, 32, 128)


@dataclass(frozen=True)
class Sizes:
    """How much is measured: slices of each program, and runs in a slice."""

    slices: int = 7
    runs: tuple[int, int, int] = (200, 2_000, 4_000)
    bare: int = 1_200
    peers: tuple[int, int, int] = (15, 60, 100)
    restate: tuple[int, int, int] = (30, 200, 400)
    absurd: tuple[int, int, int] = (15, 100, 200)
    long_run: int = 2_000
    waiting: int = 100_000
    crowd: int = 1_000_000
    idle: int = 150

    def shrunk(self, share: float) -> Sizes:
        """A share of each, at least one."""

        def less(count: int) -> int:
            return max(1, int(count * share))

        def all_less(counts: tuple[int, int, int]) -> tuple[int, int, int]:
            return less(counts[0]), less(counts[1]), less(counts[2])

        return Sizes(
            max(2, less(self.slices)),
            all_less(self.runs),
            less(self.bare),
            all_less(self.peers),
            all_less(self.restate),
            all_less(self.absurd),
            less(self.long_run),
            less(self.waiting),
            less(self.crowd),
            less(self.idle),
        )


@dataclass
class Findings:
    """Everything that was measured.

    Attributes:
        programs: W1 by how many runs at a time, then by name.
        long_runs: W2 by name.
        stored: bytes on disk, commits and journal rows of a run, by how many at a time.
        missing: peers that were not there, and why.
    """

    programs: dict[int, dict[str, Program]] = field(default_factory=dict[int, dict[str, Program]])
    long_runs: dict[str, Program] = field(default_factory=dict[str, Program])
    stored: dict[int, tuple[float, float, float]] = field(default_factory=dict[int, tuple[float, float, float]])
    waiting: Measurement | None = None
    same: across.Latencies | None = None
    client: Slice | None = None
    client_handler: Part | None = None
    start: Measurement | None = None
    missing: dict[str, str] = field(default_factory=dict[str, str])
    loads: list[str] = field(default_factory=list[str])
    seconds: float = 0.0


def on_postgres(sizes: Sizes, results: Path) -> int:
    """Measure everything and write the section."""
    from benchmarks.pg_report import write_section

    began = time.monotonic()
    found = Findings()
    with server() as there:
        for at, concurrency in enumerate(AT_ONCE):
            _say(f"W1 at {concurrency}, load {load()}")
            found.loads.append(load())
            found.programs[concurrency] = _w1(there, found, sizes, at, concurrency)
        _say(f"W2, {sizes.long_run:,} steps")
        found.long_runs = _w2(there, found, sizes)
        _w5(there, found, sizes)
        _say(f"W4, {sizes.waiting:,} waiting runs")
        with place(there.postgres.url()) as where:
            found.waiting = run(w4(where, runs=sizes.waiting))
        _say(f"start, {sizes.crowd:,} waiting runs")
        found.start = run(starting(there.postgres.url(), runs=sizes.crowd))
    found.loads.append(load())
    found.seconds = time.monotonic() - began
    bars = write_section(found, results)
    for peer, why in found.missing.items():
        _say(f"{peer} was not measured: {why}")
    _say(f"written to {results}")
    return 2 if found.missing else 0 if all(bar.reached for bar in bars) else 1


def _w1(there: Server, found: Findings, sizes: Sizes, at: int, concurrency: int) -> dict[str, Program]:
    with ExitStack() as stack:
        programs = {p.name: p for p in _start(stack, there, found, sizes, at, concurrency)}
        for program in programs.values():  # warm
            for child in program.children:
                at_once = max(1, program.concurrency // len(program.children))
                child.measure(min(program.runs, 2 * at_once), at_once)
        for number in range(sizes.slices):
            for program in _in_turn(list(programs.values()), number):
                there.turn(program)
    with closing(Counters(programs["perdure"].url)) as counted:
        rows = counted.rows()
        runs = rows / (STEPS + 1)
        found.stored[concurrency] = (counted.bytes() / runs, counted.commits() / runs, rows / runs)
    return programs


def _in_turn(programs: list[Program], number: int) -> Sequence[Program]:
    """Everybody begins once, so that nobody always has the same neighbour before it."""
    first = number % len(programs)
    return programs[first:] + programs[:first]


def _start(stack: ExitStack, there: Server, found: Findings, sizes: Sizes, at: int, concurrency: int) -> list[Program]:
    def begin(module: str, *arguments: str, alone: bool = False) -> Child:
        child = Child(module, *arguments, alone=alone)
        stack.callback(child.end)
        return child

    url, url_of_two = there.postgres.url(), there.postgres.url()
    programs = [
        Program(
            "perdure", [begin("benchmarks.pg_child", "perdure", url, str(STEPS))], concurrency, sizes.runs[at], url
        ),
        Program(
            "perdure, two workers",
            [begin("benchmarks.pg_child", "perdure", url_of_two, str(STEPS)) for _ in range(2)],
            max(2, concurrency),
            sizes.runs[at],
        ),
        Program(
            "raw",
            [begin("benchmarks.pg_child", "raw", there.postgres.url(), str(STEPS))],
            concurrency,
            sizes.runs[at],
        ),
        Program("bare", [begin("benchmarks.pg_child", "bare", there.postgres.url(), str(STEPS))], 1, sizes.bare),
    ]
    place = stack.enter_context(folder())
    for name, runs, module, argument in (
        ("DBOS", sizes.peers[at], "benchmarks.peer_dbos_pg", there.database("dbos")),
        ("Restate", sizes.restate[at], "benchmarks.peer_restate", str(place)),
        ("Absurd", sizes.absurd[at], "benchmarks.peer_absurd", there.database("absurd")),
    ):
        try:
            child = begin(module, argument, str(STEPS), alone=name == "Restate")
        except RuntimeError as error:
            found.missing[name] = str(error)
            continue
        programs.append(Program(name, [child], concurrency, runs))
    return programs


def _w2(there: Server, found: Findings, sizes: Sizes) -> dict[str, Program]:
    """One run of many steps; DBOS has a tenth of them."""
    with ExitStack() as stack:
        steps, few = sizes.long_run, max(1, sizes.long_run // 10)
        programs: dict[str, Program] = {}
        for name, count, module, arguments in (
            ("perdure", steps, "benchmarks.pg_child", ("perdure", there.postgres.url(), str(steps))),
            ("DBOS", few, "benchmarks.peer_dbos_pg", (there.database("dbos"), str(few))),
        ):
            if name in found.missing:
                continue
            child = Child(module, *arguments)
            stack.callback(child.end)
            programs[name] = Program(name, [child], 1, 1, steps=count)
            child.measure(1, 1)
        for _ in range(max(2, sizes.slices // 2)):
            for program in programs.values():
                there.turn(program)
        return programs


def _w5(there: Server, found: Findings, sizes: Sizes) -> None:
    _say("W5, in one process and from another")
    found.same = run(across.same_process(there.postgres.url(), sizes.idle))
    url = there.postgres.url()
    worker = Child("benchmarks.across", url)
    try:
        found.client = run(across.from_client(url, sizes.idle))
        found.client_handler = worker.measure(sizes.idle, 1)
    finally:
        worker.end()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
