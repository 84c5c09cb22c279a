"""What the commands that change one run have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from perdure.cli.connect import locate, with_client
from perdure.cli.output import Output

if TYPE_CHECKING:
    from perdure.runtime.client import Client


def operate(
    run: str,
    app: str | None,
    store: str | None,
    as_json: bool,
    change: Callable[[Client, str], Awaitable[object]],
    done: str,
) -> int:
    """Find the run, change it, and say what it is now.

    Args:
        run: the run as the user names it.
        app, store, as_json: the options.
        change: what to do, given client and run id.
        done: what was done, for people.
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        from perdure.cli.looks import status_cell
        from perdure.cli.runids import resolve_run
        from perdure.cli.tables import Cell
        from perdure.cli.views import info_json

        run_id = await resolve_run(client, run)
        await change(client, run_id)
        info = await (await client.run(run_id)).info()
        if out.json:
            out.value(info_json(info))
        else:
            out.line(Cell(run_id, "bold"), f" {done}; it is now ", status_cell(info.status))
        return 0

    return with_client(locate(app, store), work)
