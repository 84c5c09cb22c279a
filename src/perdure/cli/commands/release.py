"""`perdure release`."""

from __future__ import annotations

from perdure.cli.operate import operate
from perdure.cli.options import ActorOption, AppOption, JsonOption, NoteOption, RunArgument, StoreOption, who


def release(
    run: RunArgument,
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let a held run go on.

    A bounded retry policy counts from zero again. JSON: the run, as in `list`.
    """
    return operate(
        run,
        app,
        store,
        as_json,
        lambda client, run_id: client.release(run_id, note=note, actor=who(actor)),
        "released",
    )
