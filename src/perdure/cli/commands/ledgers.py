"""`perdure ledgers`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.evolution import write
from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse

if TYPE_CHECKING:
    from perdure.runtime.census import Census
    from perdure.runtime.client import Client

ACTIONS = ("list", "export")


def ledgers(
    action: Annotated[
        str, typer.Argument(metavar="[list|export]", help="Show them, or write them for `check --ledgers`.")
    ] = "list",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to export to; default: stdout.")
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show or export where the live runs stand.

    An export holds ids of pipelines, steps and runs, numbers and times: no input, no state, no message.

    JSON: one object: ledgers (each pipeline, runs, stand, example_run, oldest, ledger).
    """
    if action not in ACTIONS:
        refuse(f"there is nothing to {action!r} about ledgers", f"there are {' and '.join(ACTIONS)}")
    if output is not None and action != "export":
        refuse("--output needs export", "perdure ledgers export --output FILE")
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        census = await client.census()
        if action == "export":
            _export(census, output, out)
        else:
            _print(census, out)
        return 0

    return with_client(locate(app, store), work)


def _export(census: Census, output: Path | None, out: Output) -> None:
    from perdure.cli.text import count
    from perdure.runtime.census import encode_census

    data = encode_census(census)
    if output is None:
        sys.stdout.write(data.decode())
        sys.stdout.flush()
        return
    write(output, data)
    runs = sum(entry.count for entry in census.ledgers)
    if out.json:
        out.value({"file": str(output), "runs": runs, "ledgers": len(census.ledgers)})
    else:
        out.line(f"{output}: {count(runs, 'live run')}, {count(len(census.ledgers), 'distinct ledger')}")


def _print(census: Census, out: Output) -> None:
    import msgspec

    from perdure.cli.tables import Table
    from perdure.cli.times import ago, iso_utc, now_us
    from perdure.core.check import stand_of
    from perdure.core.signature import projection_of

    current = {name: census.former(name)[-1] for name in {d.pipeline for d in census.deployments}}
    table = Table(["pipeline", "runs", "where they stand", "oldest", "example"], right=frozenset({"runs"}))
    rows: list[dict[str, object]] = []
    for entry in sorted(census.ledgers, key=lambda e: (e.pipeline, -e.count, e.example_run)):
        stand = stand_of(projection_of(entry.ledger), current.get(entry.pipeline))
        table.add(entry.pipeline, f"{entry.count:,}", stand, ago(entry.oldest_us, now_us()), entry.example_run)
        rows.append(
            {
                "pipeline": entry.pipeline,
                "runs": entry.count,
                "stand": stand,
                "example_run": entry.example_run,
                "oldest": iso_utc(entry.oldest_us),
                "ledger": msgspec.to_builtins(entry.ledger),
            }
        )
    if out.json:
        out.value({"ledgers": rows})
    elif rows:
        out.table(table)
    else:
        out.note("no live runs")
