"""`perdure worker`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from perdure.cli.exits import Exit
from perdure.cli.options import AppArgument, AppOption, JsonOption, LeaseOption, StoreOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse


def worker(
    app_argument: AppArgument = None,
    app: AppOption = None,
    store: StoreOption = None,
    processes: Annotated[
        int | None, typer.Option("--processes", "-n", min=1, help="How many processes work; default: 1.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", "-c", min=1, help="Runs at the same time in each process; default: the application's."
        ),
    ] = None,
    drain_timeout: Annotated[
        str | None,
        typer.Option("--drain-timeout", metavar="DURATION", help="How long running attempts may end when stopped."),
    ] = None,
    lease: LeaseOption = None,
    as_json: JsonOption = False,
) -> int:
    """Work on a store with several processes, and start those again that crash.

    Each process is a worker of its own, in a fresh interpreter; its lines begin with its number. One that crashed is
    started again, at first soon and then less and less often, and its runs go on elsewhere at once. More than one
    process needs a store that many workers share: PostgreSQL.

    Ctrl-C or SIGTERM drains all of them: nothing new starts, and running attempts may end. A second one stops at once.
    Processes whose supervisor is killed drain, too.

    Exit codes: 0 all drained; 1 one ended otherwise, or crashed before it could work; 130 stopped at once. Where the
    first cannot work, or later none can: what it ended with, which is 2 for the application and 5 for the store.

    JSON: one object a line: the events of `run` with the number of their process, and supervising (app, store,
    processes), process-ended (process, pid, code, again_in_s), buried (process, worker, runs), draining.
    """
    from perdure.cli.commands.run import limits_of, number_of
    from perdure.cli.evolution import one_app
    from perdure.cli.supervisor import supervise
    from perdure.cli.workerchild import Order

    if sys.platform == "win32":
        refuse("`perdure worker` does not run on Windows", "start `perdure run` once for each process")
    limits = limits_of(concurrency, drain_timeout, lease)
    number = number_of("processes", processes) or 1
    order = Order(
        one_app(app_argument, app), store, limits.concurrency, limits.drain_timeout_s, limits.lease_s, as_json
    )
    try:
        return asyncio.run(supervise(order, number, Output(json=as_json, outlived=True)))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
