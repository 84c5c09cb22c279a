"""`perdure gc`."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.retention import ArchiveLimit, LabelOption, collect


def gc(
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="DURATION", help="Only runs that ended so long ago, like 30d or 12h."),
    ],
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="DEST", help="Archive them before, to a folder or URL; see `archive`."),
    ] = None,
    label: LabelOption = None,
    limit: ArchiveLimit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many would go.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove runs that ended long ago, whole.

    Their space is given back to the file system. Only ended runs go; batches are small, so that an engine beside it
    is not held up. With --archive each run is durably there before it is removed; one whose journal is damaged stays,
    is named, and makes the exit code 1.

    JSON: one object: removed (runs), bytes (given back), remaining (runs old enough that are still there), dry_run,
    archived (runs), parts (names), findings (each run_id, problem).
    """
    return collect(older_than, archive, label, limit, dry_run, app, store, as_json)
