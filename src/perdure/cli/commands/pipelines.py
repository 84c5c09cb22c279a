"""`perdure hold-pipeline` and `perdure release-pipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.options import ActorOption, AppOption, JsonOption, NoteOption, StoreOption, who
from perdure.cli.output import Output

if TYPE_CHECKING:
    from perdure.ports.store import PipelineHold
    from perdure.runtime.client import Client

PipelineArgument: TypeAlias = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's id.")]


def hold_pipeline(
    pipeline: PipelineArgument,
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Hold a whole pipeline.

    No new attempt starts in any of its runs. What is running ends and is recorded, new runs are accepted and wait. The
    hold lasts until `release-pipeline`, also when the engine is restarted; a running engine takes note at once.

    JSON: one object: pipeline, held, new (it was not held before), actor, note, since.
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        new = await client.hold_pipeline(pipeline, note=note, actor=who(actor))
        hold = next((h for h in await client.pipeline_holds() if h.pipeline == pipeline), None)
        if out.json:
            out.value({"pipeline": pipeline, "held": hold is not None, "new": new, **_said(hold)})
        elif new or hold is None:
            out.line(f"pipeline {pipeline} is held; `perdure release-pipeline {pipeline}` lets it go on")
        else:
            out.line(held_line(hold))
        return 0

    return with_client(locate(app, store), work)


def release_pipeline(
    pipeline: PipelineArgument,
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let a held pipeline go on.

    Runs that are held themselves stay held. JSON: one object: pipeline, held (false).
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        await client.release_pipeline(pipeline, note=note, actor=who(actor))
        if out.json:
            out.value({"pipeline": pipeline, "held": False})
        else:
            out.line(f"pipeline {pipeline} goes on")
        return 0

    return with_client(locate(app, store), work)


def held_line(hold: PipelineHold) -> str:
    """A hold in a line."""
    from perdure.cli.times import ago, now_us

    by = f" by {hold.actor}" if hold.actor else ""
    why = f": {hold.note}" if hold.note else ""
    return f"pipeline {hold.pipeline} is held since {ago(hold.at_us, now_us())}{by}{why}"


def _said(hold: PipelineHold | None) -> dict[str, object]:
    from perdure.cli.times import iso_utc

    if hold is None:
        return {"actor": None, "note": None, "since": None}
    return {"actor": hold.actor or None, "note": hold.note or None, "since": iso_utc(hold.at_us)}
