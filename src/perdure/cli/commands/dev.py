"""`perdure dev`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.evolution import one_app
from perdure.cli.exits import Exit
from perdure.cli.options import AppArgument, AppOption, JsonOption, StoreOption, YesOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse
from perdure.cli.settings import find_project, setting

if TYPE_CHECKING:
    from perdure.cli.watching import Watch

SHORTEST_POLL_US = 10_000


def dev(
    app_argument: AppArgument = None,
    app: AppOption = None,
    store: StoreOption = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="Runs at the same time; default: the application's."),
    ] = None,
    drain_timeout: Annotated[
        str, typer.Option("--drain-timeout", metavar="DURATION", help="How long running attempts may end.")
    ] = "3s",
    watch: Annotated[
        list[Path] | None,
        typer.Option("--watch", metavar="PATH", help="Also this file, or every file in this folder. Repeatable."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="PATTERN", help="Not files or folders like this: generated, *_pb2.py."),
    ] = None,
    poll: Annotated[
        str, typer.Option("--poll", metavar="DURATION", help="How often to look whether a file was saved.")
    ] = "250ms",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run the engine, and run it anew with the new code whenever a file is saved.

    At each save it says what the edit means for live runs, as `check` does; lets running attempts end; and starts an
    engine with the new code. Code that does not load never replaces an engine. Code that would make runs invalid
    does so only with --yes, or after a question on a terminal.

    It watches the Python files of the application's folder and all that the application loads. Ctrl-C or SIGTERM
    drains and stops; a second one stops at once. Exit code 5: the store cannot be used.

    JSON: one object a line: the events of `run`, and watching, saved (files), checked (as `check`), broken (error,
    running), held-back (running), anyway, kept (running), engine-ended (code).
    """
    from perdure.cli.commands.run import limits_of
    from perdure.cli.devchild import Order
    from perdure.cli.devloop import Loop, develop
    from perdure.cli.times import parse_duration_us

    named = one_app(app_argument, app)
    limits_of(concurrency, None)
    drain_us = parse_duration_us(drain_timeout, "--drain-timeout")
    poll_us = parse_duration_us(poll, "--poll")
    if poll_us < SHORTEST_POLL_US:
        refuse(f"--poll: {poll!r} is too often", "a quarter of a second, 250ms, is soon enough for people")
    seen = _watch(named, watch or (), ignore or ())
    order = Order(named, store, concurrency, drain_us / 1e6, as_json)
    try:
        return asyncio.run(develop(Loop(order, seen, poll_us / 1e6, yes), Output(json=as_json, outlived=True)))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _watch(named: str | None, paths: list[Path] | tuple[()], ignore: list[str] | tuple[()]) -> Watch:
    """What is watched, before anything is known of the application but its name."""
    from perdure.cli.watching import Watch

    if not all(pattern.strip() for pattern in ignore):
        refuse("--ignore is empty", "give it a pattern, or leave it out")
    for path in paths:
        if not path.exists():
            refuse(f"--watch: there is no {path}")
    project = find_project(Path.cwd()).path
    settings = () if project is None else (project,)
    return Watch((_root(named),), (*(path.absolute() for path in paths), *settings), tuple(ignore))


def _root(named: str | None) -> Path:
    """The folder of the application: where its file, or its outermost package, is."""
    target = setting("app", named)
    if target is None:
        return Path.cwd()
    base = Path.cwd() if target.folder is None else target.folder
    place = target.text.strip().rpartition(":")[0]
    if not (place.endswith(".py") or os.sep in place):
        return base
    folder = (base / place).resolve().parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder
