"""`perdure gc`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.output import Output
from perdure.cli.text import count, size
from perdure.cli.times import parse_duration_us

if TYPE_CHECKING:
    from perdure.runtime.client import Client


def gc(
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="DURATION", help="Only runs that ended so long ago, like 30d or 12h."),
    ],
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Remove at most so many runs.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many would go.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove runs that ended long ago, whole.

    Their space is given back to the file system. Only ended runs go; batches are small, so that an engine beside it
    is not held up.

    JSON: one object: removed (runs), bytes (given back), remaining (runs old enough that are still there), dry_run.
    """
    age = timedelta(microseconds=parse_duration_us(older_than, "--older-than"))
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        with out.progress("removing") as advance:
            report = await client.gc(age, limit=limit, dry_run=dry_run, progress=lambda done: advance(done, limit))
        if out.json:
            found = {"removed": report.removed, "bytes": report.bytes, "remaining": report.remaining}
            out.value({**found, "dry_run": dry_run})
        elif dry_run:
            going = report.remaining if limit is None else min(limit, report.remaining)
            out.line(f"{count(going, 'run')} would be removed")
        else:
            rest = f"; {count(report.remaining, 'run')} more are old enough" if report.remaining else ""
            out.line(f"{count(report.removed, 'run')} removed, {size(report.bytes)} given back{rest}")
        return 0

    return with_client(locate(app, store), work)
