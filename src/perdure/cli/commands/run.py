"""`perdure run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate
from perdure.cli.exits import Exit
from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.problems import Problem, refuse
from perdure.cli.settings import setting

if TYPE_CHECKING:
    from perdure.cli.serve import Limits


def run(
    app_argument: Annotated[
        str | None,
        typer.Argument(
            metavar="[APP]", help="The application, like payouts:app; the same as --app.", show_default=False
        ),
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="Runs at the same time; default: the application's."),
    ] = None,
    drain_timeout: Annotated[
        str | None,
        typer.Option("--drain-timeout", metavar="DURATION", help="How long running attempts may end when stopped."),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when no run is running, due, or due within 45 seconds.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Run the engine: execute what is due, until stopped.

    Ctrl-C or SIGTERM drains: nothing new starts, and running attempts may end. A second one stops at once, as a crash
    would; nothing is lost by that. On a terminal it shows what happens, elsewhere it prints a line for what matters.

    JSON: one object a line for every event: event, at, run_id, pipeline, step, phase, attempt, detail; the first is
    `started`, the last `stopped`.
    """
    if app_argument is not None and app is not None and app_argument != app:
        refuse(f"two applications given: {app_argument!r} and --app {app!r}")
    limits = limits_of(concurrency, drain_timeout)
    place = locate(app_argument if app_argument is not None else app, store, needs_app=True)
    from perdure.cli.serve import run_engine

    try:
        return run_engine(place, limits, until_idle=until_idle, as_json=as_json)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def limits_of(concurrency: int | None, drain_timeout: str | None) -> Limits:
    """What arguments, environment and project say of both.

    Raises:
        Problem: something else than a number, or a duration.
    """
    from perdure.cli.serve import Limits
    from perdure.cli.times import parse_duration_us

    at_once = setting("concurrency", None if concurrency is None else str(concurrency))
    drain = setting("drain_timeout", drain_timeout)
    number: int | None = None
    if at_once is not None:
        if not at_once.text.strip().isdecimal() or int(at_once.text) < 1:
            raise Problem(f"{at_once.source}: {at_once.text!r} is not a whole number of at least one")
        number = int(at_once.text)
    return Limits(number, None if drain is None else parse_duration_us(drain.text, drain.source) / 1e6)
