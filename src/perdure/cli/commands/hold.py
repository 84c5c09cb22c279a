"""`perdure hold`."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.operate import operate
from perdure.cli.options import ActorOption, AppOption, JsonOption, NoteOption, RunArgument, StoreOption, who


def hold(
    run: RunArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="WORD", help="Why, as a word for lists.")] = "operator",
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Hold a run: no new attempt starts.

    It goes on after `release`, `retry` or `resolve`. JSON: the run, as in `list`.
    """
    return operate(
        run,
        app,
        store,
        as_json,
        lambda client, run_id: client.hold(run_id, reason=reason, note=note, actor=who(actor)),
        "held",
    )
