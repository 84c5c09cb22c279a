"""`perdure show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.cli.connect import locate, with_client
from perdure.cli.options import AppOption, JsonOption, RunArgument, StoreOption
from perdure.cli.output import Output

if TYPE_CHECKING:
    from perdure.cli.tables import Cell
    from perdure.runtime.client import Client
    from perdure.runtime.info import RunInfo


def show(run: RunArgument, app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> int:
    """Show one run: where it stands, and what came of it.

    JSON: one object, as in `list` with also parent (run id), progress (of the items it stands at: step, shape, total,
    done, failed, open), input, annotations, start_at, deadline_at, actor, child_of (step and index in the parent),
    waits (step, for: time, message or runs, message, runs, need, until), children (each step, index, run_id, status),
    facts, attempts, output, failure, unwind_failures, last_failure, in_doubt, half_unwound, uncompensated, unavailable,
    item_counts (of a failed run, each step, items, completed, failed, in_doubt, not_started).
    """

    async def work(client: Client) -> int:
        from perdure.cli.runids import resolve_run

        run_id = await resolve_run(client, run)
        await show_run(client, run_id, Output(json=as_json))
        return 0

    return with_client(locate(app, store), work)


async def show_run(client: Client, run_id: str, out: Output) -> None:
    """Print a run, as its facts and its index row tell it."""
    from perdure.cli.commands.explain import note_hold
    from perdure.cli.tables import Table
    from perdure.cli.times import now_us
    from perdure.cli.views import RunStory, info_json
    from perdure.cli.waits import detail_json
    from perdure.errors import CorruptJournal

    handle = await client.run(run_id)
    info = await handle.info()
    try:
        story = RunStory(await client.journal(run_id))
    except CorruptJournal:
        story = RunStory([])
    if out.json:
        out.value({**info_json(info), **detail_json(info), **story.json()})
        return
    now = now_us()
    table = Table([])
    for name, value in [*head_rows(info, now), *story.rows(now)]:
        table.add(name, value)
    out.table(table)
    for hint in hints(info):
        out.note(hint)
    if info.ended_us is None:
        await note_hold(client, info.pipeline, out)


def head_rows(info: RunInfo, now: int) -> list[tuple[str, str | Cell]]:
    """What the index row says, as names and values."""
    from perdure.cli.looks import STATUS_STYLES
    from perdure.cli.tables import Cell
    from perdure.cli.times import when
    from perdure.cli.views import reason_words, status_words
    from perdure.cli.waits import progress_words

    rows: list[tuple[str, str | Cell]] = [
        ("run", Cell(info.run_id, "bold")),
        ("pipeline", info.pipeline),
        ("status", Cell(status_words(info, now), STATUS_STYLES.get(info.status, ""))),
    ]
    if reason := reason_words(info):
        rows.append(("reason", reason))
    if info.step:
        rows.append(("at step", info.step))
    if info.progress is not None:
        rows.append(("progress", progress_words(info.progress)))
    if info.resource != info.run_id:
        rows.append(("resource", info.resource))
    if info.tenant != "default":
        rows.append(("tenant", info.tenant))
    rows.append(("submitted", when(info.submitted_us, now)))
    if info.ended_us is not None:
        rows.append(("ended", when(info.ended_us, now)))
    elif info.due_us is not None:
        rows.append(("due", when(info.due_us, now)))
    if info.priority:
        rows.append(("priority", str(info.priority)))
    if info.generation:
        rows.append(("generation", str(info.generation)))
    if info.worker:
        rows.append(("worker", info.worker))
    return rows


def hints(info: RunInfo) -> list[str]:
    """What to do about a run that waits for somebody."""
    match info.status:
        case "held":
            return [f"held: `perdure release`, `perdure retry` or `perdure resolve {info.run_id}` lets it go on"]
        case "invalid":
            return [
                f"invalid: `perdure explain {info.run_id}` says why; deploy code that can continue it, or `perdure "
                f"abandon {info.run_id}`"
            ]
        case "corrupt":
            return [f"corrupt: `perdure verify {info.run_id}` says what does not fit; the run is set aside"]
        case _:
            return []
