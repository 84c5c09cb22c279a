"""`python -m benchmarks WORKLOAD` measures and prints JSON or a table; `compare` measures all side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.checking import LEDGERS, RESULTS, checking, record
from benchmarks.claiming import claiming, server
from benchmarks.items import foreach
from benchmarks.latency import w5
from benchmarks.limits import bare, raw
from benchmarks.listing import listing
from benchmarks.long_run import w2
from benchmarks.measurement import Measurement, table
from benchmarks.micro import micro
from benchmarks.places import place
from benchmarks.process import run
from benchmarks.runs import w1
from benchmarks.starting import starting
from benchmarks.submitting import submitting
from benchmarks.waiting import w4
from perdure import PerdureError

WORKLOADS = {
    "W1": "many runs of 5 trivial steps, at 1, 32 and 128 at a time",
    "W2": "one run of 1,000 steps and one of 10,000",
    "W4": "100,000 waiting runs, then kill -9 and a new worker",
    "W5": "latency of a one-step run on an idle engine",
    "check": "what an edit means for 100,000 live runs, with 20, 2,000 and 10,000 distinct ledgers",
    "submit_many": "20,000 runs in one call, until all are durable; bar: 20,000 a second on SQLite",
    "foreach": "one step of 10,000 items beside one of 1,000; bars: 8,000 items a second on SQLite, 11 times",
    "claim": "10,000 due runs among 1,000,000 on PostgreSQL, 8 workers; bars: 2 s for all, 3 ms for one alone",
    "list": "pages and counts of 1,000,000 runs, and `check` on them; bars: 5 ms a page, `check` 1 s",
    "start": "a worker starts where 1,000,000 runs wait on PostgreSQL, until its first step; bar: 0.5 s",
    "micro": "fold, reconcile, plan and append, without a store",
    "raw": "the appends of W1 through the same appender, without an engine, at 1 and 128",
    "bare": "a plain SQLite commit loop",
}


def main() -> int:
    """See the module."""
    arguments = _parser().parse_args()
    if arguments.workload == "compare":
        from benchmarks.compare import compare

        return compare()
    if arguments.workload == "postgres":
        from benchmarks.on_postgres import Sizes, on_postgres

        return on_postgres(Sizes().shrunk(arguments.share), arguments.results)
    found: list[Measurement] = []
    try:
        for measurement in measure(
            arguments.workload, arguments.store, arguments.runs, arguments.steps, arguments.concurrency
        ):
            found.append(measurement)
            if arguments.json:
                print(measurement.json(), flush=True)
    except (PerdureError, RuntimeError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    if not arguments.json:
        print(table(found))
    if arguments.record and arguments.workload == "check":
        record(found)
    return 0


def measure(
    workload: str, store: str | None, runs: int | None, steps: int | None, concurrency: int | None
) -> Iterator[Measurement]:
    """The measurements of one workload, each on an empty store at `store`.

    Args:
        store: a URL; None: a file in a temporary directory.
        runs, steps, concurrency: instead of the workload's own.
    """
    match workload:
        case "W1":
            for at_once in (1, 32, 128) if concurrency is None else (concurrency,):
                count = runs or (1_000 if at_once < 8 else 6_000)
                with place(store) as where:
                    yield run(w1(where, runs=count, steps=steps or 5, concurrency=at_once))
        case "W2":
            for length in (1_000, 10_000) if steps is None else (steps,):
                with place(store) as where:
                    yield run(w2(where, steps=length))
        case "W4":
            with place(store) as where:
                yield run(w4(where, runs=runs or 100_000))
        case "W5":
            with place(store) as where:
                yield run(w5(where, runs=runs or 200))
        case "check":
            for ledgers in LEDGERS:
                with place(store) as where:
                    yield run(checking(where, runs=runs or 100_000, ledgers=min(ledgers, runs or ledgers)))
        case "submit_many":
            with place(store) as where:
                yield run(submitting(where, runs=runs or 20_000))
        case "foreach":
            with place(store) as where:
                yield run(foreach(where, items=steps or 10_000))
        case "claim":
            with server(store) as url:
                count = runs or 1_000_000
                yield from run(claiming(url, runs=count, due=min(10_000, count)))
        case "list":
            if store is not None and not store.startswith("postgres"):
                with place(store) as where:
                    yield from run(listing(where.url, runs=runs or 1_000_000))
            else:
                with server(store) as url:
                    yield from run(listing(url, runs=runs or 1_000_000))
        case "start":
            with server(store) as url:
                yield run(starting(url, runs=runs or 1_000_000))
        case "raw":
            for at_once in (1, 128) if concurrency is None else (concurrency,):
                count = runs or (1_000 if at_once < 8 else 6_000)
                with place(store) as where:
                    yield run(raw(where, runs=count, steps=steps or 5, concurrency=at_once))
        case "bare":
            with place(store) as where:
                yield bare(where, runs=runs or 4_000)
        case _:
            yield from micro(steps=steps or 2_000)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure perdure through its public API, with default settings.",
        epilog="workloads:\n" + "\n".join(f"  {name:8} {what}" for name, what in WORKLOADS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workload", choices=[*WORKLOADS, "compare", "postgres"], metavar="WORKLOAD")
    parser.add_argument(
        "--store",
        metavar="URL",
        help="where; must not exist yet (default: a temporary SQLite file, or a PostgreSQL of its own)",
    )
    for name, what in (
        ("--runs", "runs to measure"),
        ("--steps", "steps of a run"),
        ("--concurrency", "runs at a time"),
    ):
        parser.add_argument(name, type=_positive, metavar="N", help=what)
    parser.add_argument("--share", type=float, default=1.0, help="postgres: this share of its sizes, for a try")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="postgres: the page that it writes its section of"
    )
    parser.add_argument("--record", action="store_true", help="check: write its section of benchmarks/RESULTS.md")
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each measurement")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
