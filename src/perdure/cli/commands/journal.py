"""`perdure journal`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.options import AppOption, JsonOption, RunArgument, StoreOption
from perdure.cli.output import Output

if TYPE_CHECKING:
    from perdure.runtime.client import Client


def journal(
    run: RunArgument,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only facts after this one.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many facts.")] = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print the facts of a run, in order: all that is known about it.

    JSON: one object a line: seq, at, fact (its name) and the fact's own fields.
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        from perdure.cli.runids import resolve_run
        from perdure.cli.times import now_us
        from perdure.cli.views import fact_json, facts_table

        run_id = await resolve_run(client, run)
        facts = [recorded for recorded in await client.journal(run_id) if recorded.seq > after][:limit]
        if out.json:
            for recorded in facts:
                out.value(fact_json(recorded))
        elif facts:
            out.table(facts_table(facts, now_us()))
        else:
            out.note(f"run {run_id} has no fact after {after}")
        return 0

    return with_client(locate(app, store), work)
