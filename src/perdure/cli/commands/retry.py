"""`perdure retry`."""

from __future__ import annotations

from perdure.cli.operate import operate
from perdure.cli.options import ActorOption, AppOption, JsonOption, NoteOption, RunArgument, StoreOption, who


def retry(
    run: RunArgument,
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let a run go on now, whatever it waits for.

    Cuts a backoff short, ends a hold, looks at an invalid run again. JSON: the run, as in `list`.
    """
    return operate(
        run,
        app,
        store,
        as_json,
        lambda client, run_id: client.retry(run_id, note=note, actor=who(actor)),
        "will be tried now",
    )
