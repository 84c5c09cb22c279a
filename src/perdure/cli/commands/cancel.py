"""`perdure cancel`."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.operate import operate
from perdure.cli.options import ActorOption, AppOption, JsonOption, RunArgument, StoreOption, who


def cancel(
    run: RunArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="WORD", help="Why; becomes the failure's reason.")
    ] = "canceled",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Cancel a run: what it did is unwound first.

    The request is durable and the first one counts; asking again changes nothing. JSON: the run, as in `list`.
    """
    return operate(
        run,
        app,
        store,
        as_json,
        lambda client, run_id: client.cancel(run_id, reason=reason, actor=who(actor)),
        "cancel requested",
    )
