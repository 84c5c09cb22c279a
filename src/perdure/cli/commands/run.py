"""`perdure run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate
from perdure.cli.exits import Exit
from perdure.cli.options import AppOption, JsonOption, LeaseOption, StoreOption
from perdure.cli.problems import refuse
from perdure.cli.settings import setting

if TYPE_CHECKING:
    from perdure.cli.serve import Limits

SHORTEST_LEASE_S = 1.0


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
    lease: LeaseOption = None,
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
    limits = limits_of(concurrency, drain_timeout, lease)
    place = locate(app_argument if app_argument is not None else app, store, needs_app=True)
    from perdure.cli.serve import run_engine

    try:
        return run_engine(place, limits, until_idle=until_idle, as_json=as_json)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def limits_of(concurrency: int | None, drain_timeout: str | None, lease: str | None = None) -> Limits:
    """What arguments, environment and project say of these.

    Raises:
        Problem: something else than a number, or a duration.
    """
    from perdure.cli.serve import Limits
    from perdure.cli.times import parse_duration_us

    drain, silence = setting("drain_timeout", drain_timeout), setting("lease", lease)
    lease_s = None if silence is None else parse_duration_us(silence.text, silence.source) / 1e6
    if silence is not None and lease_s is not None and lease_s < SHORTEST_LEASE_S:
        refuse(
            f"{silence.source}: {silence.text!r} is too short for a lease",
            "a worker renews three times in its lease; 15s is usual, and 1s the least",
        )
    return Limits(
        number_of("concurrency", concurrency),
        None if drain is None else parse_duration_us(drain.text, drain.source) / 1e6,
        lease_s,
    )


def number_of(name: str, argument: int | None) -> int | None:
    """A setting that is a whole number of at least one; None if nobody gave it.

    Raises:
        Problem: it is something else.
    """
    given = setting(name, None if argument is None else str(argument))
    if given is None:
        return None
    if not given.text.strip().isdecimal() or int(given.text) < 1:
        refuse(f"{given.source}: {given.text!r} is not a whole number of at least one")
    return int(given.text)
