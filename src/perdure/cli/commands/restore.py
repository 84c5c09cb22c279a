"""`perdure restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from perdure.cli.connect import SQLITE, Place, store_url, with_client
from perdure.cli.exits import Exit
from perdure.cli.options import JsonOption
from perdure.cli.output import Output
from perdure.cli.problems import Problem, refuse
from perdure.cli.retention import opened
from perdure.cli.runids import SHORTEST
from perdure.cli.settings import Setting
from perdure.cli.stopping import run_to_end
from perdure.cli.tables import Cell, Table
from perdure.cli.text import count
from perdure.cli.times import now_us, parse_past_us, to_datetime
from perdure.errors import NotFound

if TYPE_CHECKING:
    from perdure.runtime.client import Client
    from perdure.runtime.info import RestoreReport


def restore(
    place: Annotated[str, typer.Argument(metavar="DEST", help="The archive: a folder or URL.", show_default=False)],
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="The run of this id, or of its first 6 or more characters."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All runs.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Runs that ended from then on; a time, or like 30d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Runs that ended before then; a time, or like 30d.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="The store to put them into; default: a new file, restored.db."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only read them, and verify that all is there.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Put archived runs into a store, to look at them there.

    `show`, `journal`, `explain` and `verify` work on them as ever; they have ended, so that no engine executes them.
    Every run is verified first. What is damaged is named, is not restored, and makes the exit code 1.

    JSON: one object: parts (read), runs, facts, restored, known (were there already), store (null with --dry-run),
    findings (each part, run_id, problem), dry_run.
    """
    chosen = [run is not None, everything, since is not None or until is not None]
    if sum(chosen) != 1:
        refuse("which runs is not said, or said twice", "give --run RUN, --all, or --since and --until")
    now, out = now_us(), Output(json=as_json)
    bounds = (
        None if since is None else parse_past_us(since, "--since", now),
        None if until is None else parse_past_us(until, "--until", now),
    )
    if dry_run and to is not None:
        refuse("--dry-run writes nothing, and --to says where to", "give the one or the other")
    run = run_to_end(_reached(place, run, now))  # before a store is made for it
    if dry_run:
        return _say(run_to_end(_read(place, run, bounds, now, out)), None, out)
    url = _new_file() if to is None else store_url(Setting(to, "--to"))

    async def work(client: Client) -> int:
        async with opened(place, create=False) as archive:
            with out.progress("restoring") as advance:
                report = await client.restore(
                    archive,
                    run,
                    since=None if bounds[0] is None else to_datetime(bounds[0]),
                    until=None if bounds[1] is None else to_datetime(bounds[1]),
                    progress=advance,
                )
        return _say(report, url, out)

    return with_client(Place(None, url), work, creates=True)


async def _reached(place: str, run: str | None, now: int) -> str | None:
    """The whole id of the run that is asked for; the archive can be read, and has it."""
    from perdure.runtime.restoring import ids_from, restore

    async with opened(place, create=False) as archive:
        if run is None:
            return None
        try:
            await restore(archive, None, run_id=run, since_us=None, until_us=None, now_us=now, progress=None)
            return run
        except NotFound as error:
            found = await ids_from(archive, run) if len(run) >= SHORTEST else []
            if len(found) > 1:
                refuse(f"more than one run begins with {run!r}", f"give more of the id: {', '.join(found[:3])}")
            if not found:
                hint = "`perdure archive --list` shows when the runs of each part ended"
                raise Problem(str(error), hint, Exit.NOT_FOUND) from error
            return found[0]


async def _read(
    place: str, run: str | None, bounds: tuple[int | None, int | None], now: int, out: Output
) -> RestoreReport:
    from perdure.runtime.restoring import restore

    async with opened(place, create=False) as archive:
        with out.progress("reading") as advance:
            return await restore(
                archive, None, run_id=run, since_us=bounds[0], until_us=bounds[1], now_us=now, progress=advance
            )


def _new_file() -> str:
    """A file that is not there yet, in this folder."""
    number = 1
    while (path := Path("restored.db" if number == 1 else f"restored-{number}.db")).exists():
        number += 1
    return f"{SQLITE}{quote(str(path))}"


def _say(report: RestoreReport, url: str | None, out: Output) -> int:
    code = Exit.FINDING if report.findings else Exit.OK
    if out.json:
        findings = [{"part": f.part, "run_id": f.run_id or None, "problem": f.problem} for f in report.findings]
        numbers = {"parts": report.parts, "runs": report.runs, "facts": report.facts}
        done = {"restored": report.restored, "known": report.known, "store": url}
        out.value({**numbers, **done, "findings": findings, "dry_run": url is None})
        return code
    if report.findings:
        table = Table(["part", "run", "problem"])
        for finding in report.findings:
            table.add(finding.part, finding.run_id, Cell(finding.problem, "red"))
        out.table(table)
    read = f"{count(report.runs, 'run')}, {count(report.facts, 'fact')} in {count(report.parts, 'part')}"
    if url is None:
        good = "all good: " if not report.findings else f"{count(len(report.findings), 'finding')} in "
        out.line(f"{good}{read}")
        return code
    known = f", {count(report.known, 'run')} known" if report.known else ""
    out.line(f"{count(report.restored, 'run')} restored{known} of {read}")
    out.line(f"look at them with --store {url}")
    return code
