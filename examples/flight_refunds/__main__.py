"""Runs the demo: `python -m examples.flight_refunds`, or `make demo`."""

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.flight_refunds.app import DEFAULT_DIRECTORY
from examples.flight_refunds.children import ChildDied
from examples.flight_refunds.demo import RunsStuck, demo
from examples.flight_refunds.flights import airline_names
from examples.flight_refunds.progress import LiveView, PlainView, SilentView, View
from examples.flight_refunds.rollout import CheckRefused
from examples.flight_refunds.settings import Settings
from examples.flight_refunds.summary import Summary
from perdure import PerdureError

MARK = ".flight-refunds-demo"
"""File that makes a directory a demo's, and that a running demo keeps locked."""
PRODUCTS = ("refunds.db*", "bank.*", "*.log", "reports/*.json", "reports/.*.new")
"""What `--fresh` deletes."""
EXIT_UNSOUND = 1
EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_INTERRUPTED = 130

EPILOG = f"""
exit codes: {EXIT_UNSOUND} a refund was paid twice or lost, or an edit did what it should not, {EXIT_USAGE} wrong use,
{EXIT_FAILED} the demo could not finish, {EXIT_INTERRUPTED} interrupted.
To start over, add --fresh or delete the directory.
"""


class Unusable(Exception):
    """The directory cannot be used; the message says why."""


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.flight_refunds",
        description="Refunds for a month of real flights, edited three times on the way, with a worker that is killed.",
        epilog=EPILOG,
    )
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIRECTORY, help="directory of the demo (%(default)s)")
    parser.add_argument("--speed", choices=("watch", "fast"), default="watch", help="fast: a few seconds")
    parser.add_argument("--fresh", action="store_true", help="delete what an earlier demo left in the directory")
    parser.add_argument("--no-kill", action="store_true", help="leave the worker alone")
    parser.add_argument("--no-edits", action="store_true", help="deploy no edits on the way")
    parser.add_argument("--plain", action="store_true", help="lines of text, also on a terminal")
    parser.add_argument("--json", action="store_true", help="nothing but one JSON object at the end")
    return parser.parse_args(argv)


def prepare(directory: Path, *, fresh: bool) -> int:
    """Makes the directory ready and returns the lock on it. Raises `Unusable`; touches no foreign directory."""
    if directory.exists() and not directory.is_dir():
        raise Unusable(f"{directory} is not a directory")
    if directory.exists() and any(directory.iterdir()) and not (directory / MARK).exists():
        raise Unusable(f"{directory} holds something else; choose another --dir")
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / MARK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Unusable(f"another demo is running, or just ending, in {directory}") from None
    for pattern in PRODUCTS if fresh else ():
        for path in directory.glob(pattern):
            path.unlink()
    return lock


def view_for(options: argparse.Namespace, console: Console) -> View:
    """The way of showing progress that suits the output."""
    if options.json:
        return SilentView()
    if options.plain or not console.is_terminal or "CI" in os.environ:
        return PlainView(lambda line: print(line, flush=True))
    return LiveView(console, airline_names())


def print_summary(summary: Summary, options: argparse.Namespace, console: Console) -> None:
    """The last table, or the JSON object."""
    if options.json:
        print(json.dumps(summary.as_json()))
    elif options.plain or not console.is_terminal:
        for name, figure, meaning in summary.rows():
            print(f"{name:<8} {figure:>8}  {meaning}".rstrip())
    else:
        table = Table(show_header=False, title="flight refunds, January 2013", title_justify="left")
        for name, figure, meaning in summary.rows():
            bad = name in ("doubled", "lost") and figure != "0"
            table.add_row(name, figure, meaning, style="bold red" if bad else "")
        table.columns[1].justify = "right"
        console.print(table)


async def run(settings: Settings, view: View) -> Summary:
    """The demo; a SIGTERM ends it as Ctrl-C does, so that no process is left behind."""
    this = asyncio.current_task()
    if this is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    with view:
        return await demo(settings, view)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo and returns the exit code."""
    options = arguments(argv)
    console = Console()
    directory = Path(options.dir).absolute()
    try:
        lock = prepare(directory, fresh=options.fresh)
    except (Unusable, OSError) as problem:
        print(problem, file=sys.stderr)
        return EXIT_USAGE
    settings = Settings(directory, options.speed, kill=not options.no_kill, edit=not options.no_edits, lock=lock)
    try:
        summary = asyncio.run(run(settings, view_for(options, console)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (ChildDied, RunsStuck, CheckRefused, PerdureError) as error:
        print(f"{error}\nthe same command goes on from here", file=sys.stderr)
        return EXIT_FAILED
    print_summary(summary, options, console)
    for sentence in summary.problems:
        print(sentence, file=sys.stderr)
    return 0 if summary.sound else EXIT_UNSOUND


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
