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

    JSON: one object: run_id, pipeline, status, frontier, unwind_frontier (positions), next (op, step, attempt, reason,
    detail), due_at, steps and gone (each step, position, fate, unwind, attempts, unwind_attempts, in_doubt, why).
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        from perdure.cli.picture import explanation_json
        from perdure.cli.runids import resolve_run

        run_id = await resolve_run(client, run)
        explanation = await client.explain(run_id)
        info = await (await client.run(run_id)).info()
        if out.json:
            out.value({"pipeline": info.pipeline, "status": info.status, **explanation_json(explanation)})
        else:
            _print(explanation, info, out)
        return 0

    return with_client(locate(app, store), work)


def _print(explanation: Explanation, info: RunInfo, out: Output) -> None:
    from perdure.cli.looks import status_cell, unicode_terminal
    from perdure.cli.picture import draw
    from perdure.cli.tables import Cell
    from perdure.cli.times import ago, now_us

    now = now_us()
    picture = draw(explanation, now, fine=out.terminal and unicode_terminal())
    about = "" if info.resource == info.run_id else f", about {info.resource}"
    reason = f" ({info.reason})" if info.reason else ""
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
