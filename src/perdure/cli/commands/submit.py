"""`perdure submit`."""

from __future__ import annotations

import difflib
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import Place, locate, with_client
from perdure.cli.exits import Exit
from perdure.cli.inputs import read_json
from perdure.cli.options import ActorOption, AppOption, JsonOption, StoreOption, TimeoutOption, who
from perdure.cli.output import Output
from perdure.cli.problems import refuse
from perdure.cli.tables import Cell
from perdure.cli.times import now_us, parse_duration_us, parse_time_or_duration_us, parse_time_us, to_datetime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.define.pipeline import AnyPipeline
    from perdure.runtime.client import Client
    from perdure.runtime.run import Run


def submit(
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="The id of a pipeline of the application.")],
    input: Annotated[
        str, typer.Argument(metavar="[INPUT]", help="The input as JSON, @FILE, or - for stdin.", show_default=False)
    ] = "null",
    resource: Annotated[str | None, typer.Option("--resource", metavar="NAME", help="What the run is about.")] = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="For whom it runs.")] = "default",
    delay: Annotated[str | None, typer.Option("--delay", metavar="DURATION", help="Start so much later.")] = None,
    start_at: Annotated[str | None, typer.Option("--start-at", metavar="TIME", help="Start at this time.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME|DURATION", help="Cancel it if it has not ended by then.")
    ] = None,
    annotation: Annotated[
        list[str] | None, typer.Option("--annotation", "-a", metavar="KEY=VALUE", help="A note on the run. Repeatable.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run to its end, as `watch` does.")] = False,
    timeout: TimeoutOption = None,
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Submit a run. An equal input on a busy slot joins the run that is there.

    JSON: one object: run_id, created (false: it was there already), pipeline; with --wait also the lines of `watch`.
    """
    if delay is not None and start_at is not None:
        refuse("--delay and --start-at exclude each other")
    if timeout is not None and not wait:
        refuse("--timeout needs --wait")
    data = read_json(input, "INPUT")
    starts_in = None if delay is None else timedelta(microseconds=parse_duration_us(delay, "--delay"))
    starts_at = None if start_at is None else to_datetime(parse_time_us(start_at, "--start-at"))
    ends_by = None if deadline is None else to_datetime(parse_time_or_duration_us(deadline, "--deadline", now_us()))
    labels = parse_annotations(annotation or ())
    limit_s = None if timeout is None else parse_duration_us(timeout, "--timeout") / 1e6
    place = locate(app, store, needs_app=True)
    chosen = find_pipeline(place, pipeline)
    value: object = chosen.input_codec.decode(data)
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        run = await client.submit(
            chosen,
            value,
            resource=resource,
            tenant=tenant,
            delay=starts_in,
            start_at=starts_at,
            deadline=ends_by,
            annotations=labels,
            actor=who(actor),
        )
        _say(run, out)
        if not wait:
            return 0
        from perdure.cli.commands.watch import follow

        return await follow(client, run.id, limit_s, out)

    return with_client(place, work, creates=True)


def _say(run: Run[object], out: Output) -> None:
    if out.json:
        out.value({"run_id": run.id, "created": run.created, "pipeline": run.pipeline})
    elif run.created:
        out.line(Cell(run.id, "bold"), " submitted")
    else:
        out.line(Cell(run.id, "bold"), " joined: a run of equal input is there already")


def find_pipeline(place: Place, pipeline_id: str) -> AnyPipeline:
    """The pipeline of the application that has this id.

    Raises:
        Problem: there is none.
    """
    pipelines = place.pipelines
    if pipeline_id not in pipelines:
        near = difflib.get_close_matches(pipeline_id, pipelines, 1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        hint = f"{meant}it has {', '.join(sorted(pipelines))}"
        refuse(f"the application has no pipeline {pipeline_id!r}", hint, Exit.NOT_FOUND)
    return pipelines[pipeline_id]


def parse_annotations(pairs: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` pairs as a mapping.

    Raises:
        Problem: one has no `=` or no key, or a key comes twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            refuse(f"--annotation: {pair!r} is not of the form KEY=VALUE")
        if key in found:
            refuse(f"--annotation: {key!r} is given twice")
        found[key] = value
    return found
