"""What the commands that change runs have in common: one run by its id, or many by a selector [R-17]."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.cli.connect import Place, locate, with_client
from perdure.cli.exits import Exit
from perdure.cli.output import Output
from perdure.cli.problems import refuse
from perdure.cli.text import count

if TYPE_CHECKING:
    from perdure.runtime.client import Client
    from perdure.runtime.operations import RunOperation, RunVerdict, Selector

SHOWN = 50
"""So many verdicts are shown whole; of more, only those that were refused."""

STYLES = {"done": "green", "duplicate": "dim", "refused": "bold red"}


@dataclass(frozen=True)
class Chosen:
    """Which runs a command is about, and whether it asks and does; as the options have it."""

    run: str | None = None
    pipeline: str | None = None
    tenant: str | None = None
    resource: str | None = None
    status: list[str] | None = None
    step: str | None = None
    reason: str | None = None
    older_than: str | None = None
    waiting: list[str] | None = None
    annotation: list[str] | None = None
    worker: str | None = None
    dry_run: bool = False
    yes: bool = False

    def selector(self) -> Selector | None:
        """The selector, None where one run is named.

        Raises:
            Problem: neither, or both.
        """
        from perdure.cli.filters import annotations_of, checked_status, checked_waiting
        from perdure.cli.times import parse_duration_us
        from perdure.runtime.operations import Selector

        age = None if self.older_than is None else parse_duration_us(self.older_than, "--older-than")
        selector = Selector(
            self.pipeline,
            self.tenant,
            self.resource,
            tuple(checked_status(status) for status in self.status or ()),
            self.step,
            self.reason,
            None if age is None else timedelta(microseconds=age),
            self.worker,
            tuple(checked_waiting(kind) for kind in self.waiting or ()),
            annotations_of(self.annotation) or None,
        )
        many = selector != Selector()
        if many and self.run is not None:
            refuse("a run and options that choose many are given", "give the one or the others")
        if not many and self.run is None:
            refuse("missing argument 'RUN'", "give a run, or choose many: --pipeline, --status, --step, --older-than")
        return selector if many else None


def operate(
    chosen: Chosen,
    app: str | None,
    store: str | None,
    as_json: bool,
    operation: RunOperation,
    done: str,
    *,
    many: str = "",
    duplicate: str = "",
    risky: bool = False,
) -> int:
    """Change the run, or the runs, and say what became of them.

    Args:
        chosen: which runs.
        app, store, as_json: the options.
        operation: what to do.
        done: what was done then, for people.
        many: the same of many; default: `done`.
        duplicate: what is said of one run where it was so already; default: `done`.
        risky: ask for confirmation also where it is about one run.
    """
    selector = chosen.selector()
    place, out = locate(app, store), Output(json=as_json)
    if selector is None:
        if risky and not chosen.dry_run:
            confirm(f"The run would be {many or done}. Go on?", yes=chosen.yes)
        return _one(place, chosen, operation, (many or done, done, duplicate or done), out)
    return _many(place, chosen, selector, operation, many or done, out)


def _one(place: Place, chosen: Chosen, operation: RunOperation, said: tuple[str, str, str], out: Output) -> int:
    planned, done, duplicate = said

    async def work(client: Client) -> int:
        from perdure.cli.looks import status_cell
        from perdure.cli.runids import resolve_run
        from perdure.cli.tables import Cell
        from perdure.cli.views import info_json

        run_id = await resolve_run(client, chosen.run or "")
        written = await client.apply(run_id, operation, dry_run=chosen.dry_run)
        info = await (await client.run(run_id)).info()
        if out.json:
            out.value(info_json(info))
        elif chosen.dry_run:
            out.line(Cell(run_id, "bold"), f" would be {planned}" if written else " would stay as it is")
        else:
            out.line(Cell(run_id, "bold"), f" {done if written else duplicate}; it is now ", status_cell(info.status))
        return Exit.OK

    return with_client(place, work)


def _many(place: Place, chosen: Chosen, selector: Selector, operation: RunOperation, done: str, out: Output) -> int:
    async def work(client: Client) -> int:
        if not chosen.dry_run and not chosen.yes:
            planned = await client.each(selector, operation, dry_run=True)
            if planned:
                confirm(f"{_summary(planned, done, dry_run=True)}. Go on?", yes=False)
        with out.progress(done) as advance:
            verdicts = await client.each(
                selector, operation, dry_run=chosen.dry_run, progress=lambda number: advance(number, None)
            )
        _say(verdicts, done, chosen.dry_run, out)
        return Exit.FINDING if any(v.verdict == "refused" for v in verdicts) else Exit.OK

    return with_client(place, work)


def _say(verdicts: list[RunVerdict], done: str, dry_run: bool, out: Output) -> None:
    from perdure.cli.tables import Cell, Table

    if out.json:
        for v in verdicts:
            said = {"run_id": v.run_id, "pipeline": v.pipeline, "status": v.status, "verdict": v.verdict}
            out.value({**said, "detail": v.detail or None, "dry_run": dry_run})
        return
    shown = verdicts if len(verdicts) <= SHOWN else [v for v in verdicts if v.verdict == "refused"]
    if shown:
        table = Table(["run", "pipeline", "was", "verdict", "why"])
        for v in shown:
            table.add(Cell(v.run_id, "bold"), v.pipeline, v.status, Cell(v.verdict, STYLES[v.verdict]), v.detail)
        out.table(table)
    out.line(_summary(verdicts, done, dry_run=dry_run))


def _summary(verdicts: list[RunVerdict], done: str, *, dry_run: bool) -> str:
    if not verdicts:
        return "no run fits"
    numbers = {kind: sum(v.verdict == kind for v in verdicts) for kind in STYLES}
    would = "would be " if dry_run else ""
    parts = [f"{count(numbers['done'], 'run')} {would}{done}"]
    if numbers["duplicate"]:
        parts.append(f"{numbers['duplicate']:,} already so")
    if numbers["refused"]:
        parts.append(f"{numbers['refused']:,} {would}refused")
    return ", ".join(parts)


def confirm(question: str, *, yes: bool) -> None:
    """Ask the person at the keyboard; where there is none, `--yes` has to be given.

    Raises:
        Problem: nobody can be asked.
        typer.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        refuse("this asks for confirmation", "give --yes, or --dry-run to see what would be done")
    import typer

    typer.confirm(question, abort=True, err=True)
