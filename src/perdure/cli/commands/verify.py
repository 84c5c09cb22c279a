"""`perdure verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.exits import Exit
from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.output import Output
from perdure.cli.text import count

if TYPE_CHECKING:
    from perdure.runtime.client import Client


def verify(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run id, its beginning, or `last`; default: all.", show_default=False),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Write anew what follows from the facts: lost index rows, slots, mutexes, places."
        ),
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Recompute everything from the facts; exit code 1 on findings.

    Checks every hash, projection and index row, and who has which slot, mutex, place under a limit and wait. Changes
    nothing unless --repair is given, and may run beside an engine.

    JSON: one object: runs, facts, findings (each run_id, seq, problem; run_id is empty where it concerns no run).
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        from perdure.cli.runids import resolve_run
        from perdure.cli.tables import Cell, Table

        run_id = None if run is None else await resolve_run(client, run)
        with out.progress("verifying") as advance:
            report = await client.verify(run_id, repair=repair, progress=advance)
        read = f"{count(report.runs, 'run')}, {count(report.facts, 'fact')}"
        if out.json:
            findings = [{"run_id": f.run_id, "seq": f.seq, "problem": f.problem} for f in report.findings]
            out.value({"runs": report.runs, "facts": report.facts, "findings": findings})
        elif report.findings:
            table = Table(["run", "fact", "problem"], right=frozenset({"fact"}))
            for finding in report.findings:
                table.add(finding.run_id, str(finding.seq or ""), Cell(finding.problem, "red"))
            out.table(table)
            out.line(Cell(count(len(report.findings), "finding"), "bold red"), f" in {read}")
            if repair:
                out.note("what follows from the facts was written anew; verify again")
        else:
            out.line(Cell("all good", "green"), f": {read}")
        return Exit.FINDING if report.findings else Exit.OK

    return with_client(locate(app, store), work)
