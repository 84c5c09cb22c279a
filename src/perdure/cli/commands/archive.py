"""`perdure archive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse
from perdure.cli.retention import ArchiveLimit, LabelOption, collect
from perdure.cli.stopping import run_to_end
from perdure.cli.text import count
from perdure.cli.times import iso_local, iso_utc

if TYPE_CHECKING:
    from perdure.runtime.info import PartInfo


def archive(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DURATION", help="Only runs that ended so long ago, like 30d or 12h."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="DEST", help="A folder, or a URL like s3://bucket/prefix or file:///folder."),
    ] = None,
    list_: Annotated[
        str | None, typer.Option("--list", metavar="DEST", help="Only show the parts of that archive.")
    ] = None,
    label: LabelOption = None,
    limit: ArchiveLimit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many would go.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Move runs that ended long ago to an archive.

    The archive is made of parts, gzipped JSON lines, one a run with its whole journal. A part is written whole and
    durable before its runs are removed from the store; `restore` reads it. The same as `gc --archive`.

    JSON: as `gc`; with --list an object for each part: name, store, from, to (when its runs ended), runs.
    """
    if list_ is not None:
        if older_than is not None or to is not None:
            refuse("--list shows an archive, and --older-than and --to write one", "give the one or the others")
        return _show(list_, Output(json=as_json))
    if older_than is None or to is None:
        missing = "--older-than" if older_than is None else "--to"
        refuse(f"missing option '{missing}'", "like --older-than 30d --to archive, or --list archive")
    return collect(older_than, to, label, limit, dry_run, app, store, as_json)


def _show(place: str, out: Output) -> int:
    from perdure.cli.retention import opened
    from perdure.cli.tables import Table

    async def session() -> list[PartInfo]:
        from perdure.runtime.restoring import list_parts

        async with opened(place, create=False) as archive:
            return await list_parts(archive)

    parts = run_to_end(session())
    if out.json:
        for part in parts:
            span = {"from": iso_utc(part.from_us), "to": iso_utc(part.to_us)}
            out.value({"name": part.name, "store": part.store, **span, "runs": part.runs})
        return 0
    table = Table(["part", "store", "first ended", "last ended", "runs"], right=frozenset({"runs"}))
    for part in parts:
        table.add(part.name, part.store, iso_local(part.from_us), iso_local(part.to_us), f"{part.runs:,}")
    if parts:
        out.table(table)
    out.line(f"{count(len(parts), 'part')}, {count(sum(part.runs for part in parts), 'run')}")
    return 0
