"""What the commands about retention and archives have in common [R-9]."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.exits import Exit
from perdure.cli.output import Output
from perdure.cli.tables import Cell, Table
from perdure.cli.text import count, size
from perdure.cli.times import parse_duration_us

if TYPE_CHECKING:
    from perdure.ports.archive import Archive
    from perdure.runtime.client import Client
    from perdure.runtime.info import GcReport

ArchiveLimit: TypeAlias = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="Remove at most so many runs.")
]
LabelOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--label", metavar="NAME", help="What the store is called in the archive; default: from its URL."),
]


@asynccontextmanager
async def opened(place: str, *, create: bool) -> AsyncGenerator[Archive]:
    """An open archive."""
    from perdure.storage import open_archive

    archive = open_archive(place)
    try:
        await archive.open(create=create)
        yield archive
    finally:
        await archive.close()


def _check(place: str) -> None:
    """Refuse what names no archive, before anything is done."""
    from perdure.storage import open_archive

    open_archive(place)


def collect(
    older_than: str,
    to: str | None,
    label: str | None,
    limit: int | None,
    dry_run: bool,
    app: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Remove runs, archived before if `to` says where; `gc` and `archive`."""
    age = timedelta(microseconds=parse_duration_us(older_than, "--older-than"))
    out, place = Output(json=as_json), locate(app, store)
    if to is not None:
        _check(to)

    async def work(client: Client) -> int:
        from perdure.runtime.parts import label_of

        name = label if label is not None else label_of(place.url)

        async def gc(archive: Archive | None) -> GcReport:
            with out.progress("removing" if archive is None else "archiving") as advance:
                total = None if dry_run else _total(await client.gc(age, dry_run=True), limit)
                return await client.gc(
                    age,
                    limit=limit,
                    dry_run=dry_run,
                    archive=archive,
                    label=name,
                    progress=lambda done: advance(done, total),
                )

        if to is None or dry_run:
            report = await gc(None)
        else:
            async with opened(to, create=True) as archive:
                report = await gc(archive)
        _say(report, out, limit, dry_run, archived=to is not None)
        return Exit.FINDING if report.findings else Exit.OK

    return with_client(place, work)


def _total(report: GcReport, limit: int | None) -> int:
    return report.remaining if limit is None else min(limit, report.remaining)


def _say(report: GcReport, out: Output, limit: int | None, dry_run: bool, *, archived: bool) -> None:
    if out.json:
        found = {"removed": report.removed, "bytes": report.bytes, "remaining": report.remaining, "dry_run": dry_run}
        findings = [{"run_id": finding.run_id, "problem": finding.problem} for finding in report.findings]
        out.value({**found, "archived": report.archived, "parts": list(report.parts), "findings": findings})
        return
    if dry_run:
        out.line(f"{count(_total(report, limit), 'run')} would be {'archived and ' if archived else ''}removed")
        return
    if report.findings:
        table = Table(["run", "stays, because"])
        for finding in report.findings:
            table.add(finding.run_id, Cell(finding.problem, "red"))
        out.table(table)
        out.note("what is damaged is not archived, and stays: `perdure verify RUN` says more; `perdure gc` removes it")
    rest = f"; {count(report.remaining, 'run')} more are old enough" if report.remaining else ""
    where = f"{count(report.archived, 'run')} archived in {count(len(report.parts), 'part')}, " if archived else ""
    out.line(f"{where}{count(report.removed, 'run')} removed, {size(report.bytes)} given back{rest}")
