"""`perdure explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.cli.connect import locate, with_client
from perdure.cli.options import AppOption, JsonOption, RunArgument, StoreOption
from perdure.cli.output import Output

if TYPE_CHECKING:
    from perdure.core.explain import Explanation
    from perdure.runtime.client import Client
    from perdure.runtime.info import RunInfo


def explain(run: RunArgument, app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> int:
    """Draw a run: why each step ran, will run, or never will.

    It is drawn in the pipeline as deployed now: the newest topology that the store has registered, or that of the
    application where the store has none yet.

    JSON: one object: run_id, pipeline, status, pipeline_held, waits_for_worker (what worker is missing for it to go
    on), frontier, unwind_frontier (positions), next (op, step, attempt, open, reason, detail; op of steps without a
    handler is their shape), due_at (of a wait: at the latest), steps and gone (each step, position, fate, unwind,
    shape, attempts, unwind_attempts, in_doubt, why).
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        from perdure.cli.picture import explanation_json
        from perdure.cli.runids import resolve_run

        run_id = await resolve_run(client, run)
        explanation = await client.explain(run_id)
        info = await (await client.run(run_id)).info()
        if out.json:
            held = any(hold.pipeline == info.pipeline for hold in await client.pipeline_holds())
            said = {"pipeline": info.pipeline, "status": info.status, "pipeline_held": held}
            missing = {"waits_for_worker": info.waits_for_worker or None}
            out.value({**said, **missing, **explanation_json(explanation)})
        else:
            _print(explanation, info, out)
            await note_hold(client, info.pipeline, out)
        return 0

    return with_client(locate(app, store), work)


def _print(explanation: Explanation, info: RunInfo, out: Output) -> None:
    from perdure.cli.looks import status_cell, unicode_terminal
    from perdure.cli.picture import draw
    from perdure.cli.tables import Cell
    from perdure.cli.times import ago, now_us
    from perdure.cli.views import reason_words

    now = now_us()
    picture = draw(explanation, now, fine=out.terminal and unicode_terminal())
    about = "" if info.resource == info.run_id else f", about {info.resource}"
    reason = f" ({words})" if (words := reason_words(info)) else ""
    canceling = ", canceling" if info.canceling and info.ended_us is None else ""
    out.line(Cell(f"run {info.run_id}", "bold"), f" of {info.pipeline}{about}")
    out.line(status_cell(info.status), f"{reason}{canceling}, submitted {ago(info.submitted_us, now)}")
    out.line("")
    out.table(picture.steps)
    if picture.gone.rows:
        out.line("")
        out.line("known to the run, but no longer in the pipeline:")
        out.table(picture.gone)
    out.line("")
    out.line(Cell("next: ", "bold"), picture.next)


async def note_hold(client: Client, pipeline: str, out: Output) -> None:
    """Say so if the pipeline is held: nothing of it starts, whatever is next."""
    from perdure.cli.commands.pipelines import held_line

    for hold in await client.pipeline_holds():
        if hold.pipeline == pipeline:
            out.note(f"{held_line(hold)}; `perdure release-pipeline {pipeline}` lets it go on")
