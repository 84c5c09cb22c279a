"""`perdure list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.filters import (
    STATUSES,
    Asked,
    AtStepOption,
    BeforeOption,
    EndedBeforeOption,
    EndedSinceOption,
    SinceOption,
    StatusesOption,
)
from perdure.cli.options import (
    AnnotationOption,
    AppOption,
    JsonOption,
    PipelineOption,
    ResourceOption,
    StoreOption,
    TenantOption,
    WaitingOption,
    WorkerOption,
)
from perdure.cli.output import Output
from perdure.cli.problems import refuse

if TYPE_CHECKING:
    from perdure.ports.store import PipelineHold, RunFilter
    from perdure.runtime.client import Client
    from perdure.runtime.listing import Counts, Page

WATCH_EVERY_S = 1.0
USUAL = 20
FEW = 1_000
"""So many runs of one pipeline and status are counted for the line below a page: that costs less than the page."""


def list_runs(
    pipeline: PipelineOption = None,
    status: StatusesOption = None,
    waiting: WaitingOption = None,
    step: AtStepOption = None,
    tenant: TenantOption = None,
    resource: ResourceOption = None,
    annotation: AnnotationOption = None,
    worker: WorkerOption = None,
    since: SinceOption = None,
    before: BeforeOption = None,
    ended_since: EndedSinceOption = None,
    ended_before: EndedBeforeOption = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first.")] = False,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="PLACE", help="The next page: what the page before named, and its options."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=999, help="Runs a page.")] = USUAL,
    count: Annotated[bool, typer.Option("--count", help="Only how many there are, by pipeline and status.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Count all there are, however many, which may take long.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing the first page until Ctrl-C.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """List runs, newest first, and how many there are by status.

    Every filter has an index: a page takes as long as it is, whatever the store holds. Where few runs fit what is
    combined, a page may be short and name a next one.

    JSON: one object with runs (each run_id, pipeline, tenant, resource, status, step, reason, waits_for_worker (what
    worker is missing for it to go on), canceling, generation, worker, priority, submitted_at, due_at, ended_at,
    annotations), counts (number by status, over all pages), at_least (the statuses of which there may be more), next
    (the --after of the next page, or null) and held_pipelines (their ids). With --count: counts (number by status, by
    pipeline), at_least (likewise) and exact (nothing was left out).
    """
    asked = Asked(
        pipeline,
        status,
        waiting,
        step,
        tenant,
        resource,
        annotation,
        worker,
        since,
        before,
        ended_since,
        ended_before,
    )
    look = _Look(asked, asked.where(), oldest, after, limit, exact, Output(json=as_json))
    if count and watch:
        refuse("--count and --watch are given", "give one of them")

    async def work(client: Client) -> int:
        if count:
            look.say_counts(await client.count(look.where, exact=exact))
        elif watch:
            await look.watch(client)
        else:
            await look.show(client)
        return 0

    return with_client(locate(app, store), work)


class _Look:
    """One page of runs, and how it is shown."""

    def __init__(
        self, asked: Asked, where: RunFilter, oldest: bool, after: str | None, limit: int, exact: bool, out: Output
    ) -> None:
        self.where = where
        self._asked = asked
        self._oldest = oldest
        self._after = after
        self._limit = limit
        self._exact = exact
        self._out = out

    async def show(self, client: Client) -> None:
        """Read it and print it."""
        from perdure.cli.commands.pipelines import held_line
        from perdure.cli.tables import Cell
        from perdure.cli.times import now_us
        from perdure.cli.views import counts_line, info_json, runs_table

        page, counts, holds = await self._fetch(client)
        out = self._out
        if out.json:
            shown = [info_json(info) for info in page]
            held = [hold.pipeline for hold in holds]
            more = sorted({status for _, status in counts.at_least})
            totals = _by_status(counts)
            out.value({"runs": shown, "counts": totals, "at_least": more, "next": page.next, "held_pipelines": held})
            return
        if page:
            out.table(runs_table(page, now_us()))
        out.line(*counts_line(counts, STATUSES, counts.at_least))
        for hold in holds:
            out.line(Cell(held_line(hold), "yellow"))
        self._say_what_is_next(page)

    def _say_what_is_next(self, page: Page) -> None:
        from perdure.ports.store import RunFilter

        out = self._out
        if page.next is not None:
            how = " --oldest" * self._oldest + f" --limit {self._limit}" * (self._limit != USUAL)
            command = f"perdure list{self._asked.options()}{how} --after {page.next}"
            few = "" if len(page) == self._limit else "some thousands of runs were looked through; "
            out.note(f"{few}more: `{command}`")
        elif not page and self.where == RunFilter():
            out.note("no runs yet; `perdure submit PIPELINE INPUT` makes one, `perdure run APP` works on it")
        elif not page:
            out.note("no run fits the filters; `perdure list` without them shows all")

    async def _fetch(self, client: Client) -> tuple[Page, Counts, list[PipelineHold]]:
        where = self.where
        page = await client.page(where, oldest_first=self._oldest, after=self._after, limit=self._limit)
        counts = await client.count(where, exact=self._exact, cap=FEW)
        holds = [hold for hold in await client.pipeline_holds() if where.pipeline in (None, hold.pipeline)]
        return page, counts, holds

    def say_counts(self, counts: Counts) -> None:
        """How many there are, and nothing else."""
        from perdure.cli.looks import status_cell
        from perdure.cli.tables import Cell, Table

        out = self._out
        pipelines = sorted({pipeline for pipeline, _ in counts})
        if out.json:
            numbers = {p: {s: n for (q, s), n in sorted(counts.items()) if q == p} for p in pipelines}
            more = {p: sorted(s for q, s in counts.at_least if q == p) for p in pipelines}
            out.value({"counts": numbers, "at_least": more, "exact": counts.exact})
            return
        table = Table(["pipeline", "status", "runs"])
        for pipeline in pipelines:
            for status in [status for status in STATUSES if (pipeline, status) in counts]:
                plus = "+" if (pipeline, status) in counts.at_least else ""
                table.add(Cell(pipeline, "bold"), status_cell(status), f"{counts[pipeline, status]:,}{plus}")
        if pipelines:
            out.table(table)
        else:
            out.line("no runs")
        if not counts.exact:
            out.note("+: at least so many, it was counted no further; `--exact` counts all")

    async def watch(self, client: Client) -> None:
        """Show the page again and again: in place on a terminal, one after the other elsewhere."""
        import asyncio

        from perdure.cli.output import rich_table, rich_text
        from perdure.cli.times import now_us
        from perdure.cli.views import counts_line, runs_table

        out = self._out
        if not out.terminal:
            while True:
                await self.show(client)
                await asyncio.sleep(WATCH_EVERY_S)
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        with Live(console=out.console, screen=False, auto_refresh=False) as live:
            while True:
                page, counts, _ = await self._fetch(client)
                line = counts_line(counts, STATUSES, counts.at_least)
                told = Text.assemble(*(rich_text(part) for part in line))
                live.update(Group(rich_table(runs_table(page, now_us()), out.console.width), told), refresh=True)
                await asyncio.sleep(WATCH_EVERY_S)


def _by_status(counts: Counts) -> dict[str, int]:
    totals: dict[str, int] = {}
    for (_, status), number in counts.items():
        totals[status] = totals.get(status, 0) + number
    return totals
