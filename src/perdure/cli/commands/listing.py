"""`perdure list`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.options import AppOption, JsonOption, PipelineOption, ResourceOption, StoreOption, TenantOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse

if TYPE_CHECKING:
    from perdure.ports.store import PipelineHold, RunFilter, RunStatus
    from perdure.runtime.client import Client
    from perdure.runtime.info import RunInfo

STATUSES: tuple[RunStatus, ...] = ("ready", "running", "held", "invalid", "corrupt", "succeeded", "failed", "canceled")
WATCH_EVERY_S = 1.0


def list_runs(
    pipeline: PipelineOption = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", "-s", metavar="STATUS", help=f"Only runs that are: {', '.join(STATUSES)}. Repeatable."
        ),
    ] = None,
    tenant: TenantOption = None,
    resource: ResourceOption = None,
    submitted_after: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME|DURATION", help="Only runs submitted then or later, or so long ago at most."
        ),
    ] = None,
    submitted_before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME|DURATION", help="Only runs submitted earlier, or longer ago."),
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="RUN", help="Go on after this run: the next page.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=999, help="Runs a page.")] = 20,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing the first page until Ctrl-C.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """List runs, newest first, and how many there are by status.

    JSON: one object with runs (each run_id, pipeline, tenant, resource, status, step, reason, waits_for_worker (what
    worker is missing for it to go on), canceling, generation, worker, priority, submitted_at, due_at, ended_at,
    annotations), counts (number by status, over all pages), next (the --after of the next page, or null) and
    held_pipelines (their ids).
    """
    from perdure.cli.times import now_us, parse_past_us
    from perdure.ports.store import RunFilter
    from perdure.runtime.arguments import check_text

    now = now_us()
    where = RunFilter(
        None if pipeline is None else check_text("--pipeline", pipeline),
        None if tenant is None else check_text("--tenant", tenant),
        None if resource is None else check_text("--resource", resource),
        tuple(checked_status(s) for s in status or ()),
        None if submitted_after is None else parse_past_us(submitted_after, "--since", now),
        None if submitted_before is None else parse_past_us(submitted_before, "--before", now),
    )
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        from perdure.cli.runids import resolve_run

        start = None if after is None else await resolve_run(client, after)
        if watch:
            await _watch(client, where, start, limit, out)
        else:
            _print(await fetch(client, where, start, limit), where, out)
        return 0

    return with_client(locate(app, store), work)


def checked_status(text: str) -> RunStatus:
    """A status by its name.

    Raises:
        Problem: there is no such status.
    """
    word = text.strip().lower()
    for status in STATUSES:
        if status == word:
            return status
    near = difflib.get_close_matches(word, STATUSES, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    refuse(f"--status: there is no status {text!r}", f"{meant}there are {', '.join(STATUSES)}")


class Page:
    """One page of runs.

    Attributes:
        runs: newest first.
        counts: by pipeline and status, over all pages.
        next: id to go on after; None on the last page.
        holds: pipelines that are held, of those asked for.
    """

    def __init__(
        self, runs: list[RunInfo], counts: dict[tuple[str, str], int], next: str | None, holds: list[PipelineHold]
    ) -> None:
        self.runs = runs
        self.counts = counts
        self.next = next
        self.holds = holds


async def fetch(client: Client, where: RunFilter, after: str | None, limit: int) -> Page:
    """Read one page and the counts."""
    from perdure.cli.times import now_us
    from perdure.runtime.info import info_of
    from perdure.runtime.workforce import lacking

    rows = await client.store.list_runs(where, after=after, limit=limit + 1)
    lacks = await lacking(client.store, rows, await client.store.clock_us() or now_us())
    runs = [info_of(row, lacks=lacks.get(row.run.run_id, "")) for row in rows]
    counts = await client.store.count_runs(where)
    holds = [hold for hold in await client.pipeline_holds() if where.pipeline in (None, hold.pipeline)]
    return Page(runs[:limit], counts, runs[limit - 1].run_id if len(runs) > limit else None, holds)


def _print(page: Page, where: RunFilter, out: Output) -> None:
    from perdure.cli.commands.pipelines import held_line
    from perdure.cli.tables import Cell
    from perdure.cli.times import now_us
    from perdure.cli.views import counts_line, info_json, runs_table
    from perdure.ports.store import RunFilter

    if out.json:
        totals: dict[str, int] = {}
        for (_, status), number in page.counts.items():
            totals[status] = totals.get(status, 0) + number
        shown = [info_json(info) for info in page.runs]
        held = [hold.pipeline for hold in page.holds]
        out.value({"runs": shown, "counts": totals, "next": page.next, "held_pipelines": held})
        return
    if page.runs:
        out.table(runs_table(page.runs, now_us()))
    out.line(*counts_line(page.counts, STATUSES))
    for hold in page.holds:
        out.line(Cell(held_line(hold), "yellow"))
    if page.next is not None:
        out.note(f"more: `perdure list --after {page.next}`")
    elif not page.runs and where == RunFilter():
        out.note("no runs yet; `perdure submit PIPELINE INPUT` makes one, `perdure run APP` works on it")
    elif not page.runs:
        out.note("no run fits the filters; `perdure list` without them shows all")


async def _watch(client: Client, where: RunFilter, after: str | None, limit: int, out: Output) -> None:
    """Show the page again and again: in place on a terminal, one after the other elsewhere."""
    import asyncio

    from perdure.cli.output import rich_table, rich_text
    from perdure.cli.times import now_us
    from perdure.cli.views import counts_line, runs_table

    if not out.terminal:
        while True:
            _print(await fetch(client, where, after, limit), where, out)
            await asyncio.sleep(WATCH_EVERY_S)
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=out.console, screen=False, auto_refresh=False) as live:
        while True:
            page = await fetch(client, where, after, limit)
            counts = Text.assemble(*(rich_text(part) for part in counts_line(page.counts, STATUSES)))
            live.update(Group(rich_table(runs_table(page.runs, now_us()), out.console.width), counts), refresh=True)
            await asyncio.sleep(WATCH_EVERY_S)
