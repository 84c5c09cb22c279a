"""`perdure submit`."""

from __future__ import annotations

import difflib
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from perdure.cli.completing import complete_pipeline
from perdure.cli.connect import Place, locate, with_client
from perdure.cli.exits import Exit
from perdure.cli.inputs import read_json
from perdure.cli.many import read_inputs, submit_all
from perdure.cli.options import ActorOption, AppOption, JsonOption, StoreOption, TimeoutOption, who
from perdure.cli.output import Output
from perdure.cli.problems import refuse
from perdure.cli.tables import Cell
from perdure.cli.times import now_us, parse_duration_us, parse_time_or_duration_us, parse_time_us, to_datetime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.cli.many import Refusal
    from perdure.define.pipeline import AnyPipeline
    from perdure.runtime.client import Client
    from perdure.runtime.run import Run


class OnBusy(StrEnum):
    """See `Client.submit`."""

    JOIN = "join"
    REJECT = "reject"
    QUEUE = "queue"
    REPLACE = "replace"


PipelineArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE", help="The id of a pipeline of the application.", autocompletion=complete_pipeline
    ),
]
InputArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[INPUT]", help="The input as JSON, @FILE, or - for stdin.", show_default=False)
]
AboutOption: TypeAlias = Annotated[
    str | None, typer.Option("--resource", metavar="NAME", help="What the run is about.")
]
ForOption: TypeAlias = Annotated[str, typer.Option("--tenant", metavar="NAME", help="For whom it runs.")]
OnBusyOption: TypeAlias = Annotated[
    OnBusy | None,
    typer.Option("--on-busy", help="If a live run has the slot; default: queue where the slot is serial, else join."),
]
KeyOption: TypeAlias = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Submit once under this key, however often asked.")
]
KeyWindowOption: TypeAlias = Annotated[
    str | None, typer.Option("--key-window", metavar="DURATION", help="How long the key counts; default: 1d.")
]
ManyOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--many", metavar="FILE", help="Submit a run for each line of JSON in a file, - for stdin."),
]
DelayOption: TypeAlias = Annotated[str | None, typer.Option("--delay", metavar="DURATION", help="Start so much later.")]
StartOption: TypeAlias = Annotated[str | None, typer.Option("--start-at", metavar="TIME", help="Start at this time.")]
DeadlineOption: TypeAlias = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME|DURATION", help="Cancel it if it has not ended by then.")
]
AnnotationOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--annotation", "-a", metavar="KEY=VALUE", help="A note on the run. Repeatable.")
]
PriorityOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--priority", metavar="-9..9", min=-9, max=9, help="The higher comes first; default: the pipeline's."),
]
WaitOption: TypeAlias = Annotated[bool, typer.Option("--wait", help="Follow the run to its end, as `watch` does.")]


def submit(
    pipeline: PipelineArgument,
    input: InputArgument = None,
    resource: AboutOption = None,
    tenant: ForOption = "default",
    on_busy: OnBusyOption = None,
    key: KeyOption = None,
    key_window: KeyWindowOption = None,
    many: ManyOption = None,
    delay: DelayOption = None,
    start_at: StartOption = None,
    deadline: DeadlineOption = None,
    priority: PriorityOption = None,
    annotation: AnnotationOption = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Submit a run, or many.

    If a live run has the slot of the resource: `join` it, which asks for an equal input; `reject` the submission;
    `queue`, to start when its turn comes; `replace` it: it is canceled, and the new run starts when it has ended. A
    pipeline with slot="serial" queues by itself.

    With --many all lines are checked before the first is submitted; then each fares as if it were submitted alone.

    JSON: one object: run_id, created (false: it was there already), pipeline; with --wait also the lines of `watch`.
    With --many one for each line: line, run_id, created; for one that was refused also refused, and the run in the way.
    """
    if timeout is not None and not wait:
        refuse("--timeout needs --wait")
    if key_window is not None and key is None:
        refuse("--key-window needs --key")
    options = _times(delay, start_at, deadline)
    options |= {
        "tenant": tenant,
        "annotations": parse_annotations(annotation or ()),
        "on_busy": None if on_busy is None else on_busy.value,
        "actor": who(actor),
        "priority": priority,
    }
    out = Output(json=as_json)
    if many is not None:
        single = {"INPUT": input, "--resource": resource, "--key": key, "--wait": wait or None}
        _refuse_with_many([name for name, value in single.items() if value is not None], on_busy)
        return _submit_many(locate(app, store, needs_app=True), pipeline, many, options, out)
    options |= {"resource": resource, "idempotency_key": key, "key_window": _duration(key_window, "--key-window")}
    limit_s = None if timeout is None else parse_duration_us(timeout, "--timeout") / 1e6
    data = read_json("null" if input is None else input, "INPUT")
    place = locate(app, store, needs_app=True)
    chosen = find_pipeline(place, pipeline)
    value: object = chosen.input_codec.decode(data)

    async def work(client: Client) -> int:
        run = await client.submit(chosen, value, **options)
        _say(run, out)
        if not wait:
            return 0
        from perdure.cli.commands.watch import follow

        return await follow(client, run.id, limit_s, out)

    return with_client(place, work, creates=True)


def _times(delay: str | None, start_at: str | None, deadline: str | None) -> dict[str, Any]:
    if delay is not None and start_at is not None:
        refuse("--delay and --start-at exclude each other")
    by_us = None if deadline is None else parse_time_or_duration_us(deadline, "--deadline", now_us())
    return {
        "delay": _duration(delay, "--delay"),
        "start_at": None if start_at is None else to_datetime(parse_time_us(start_at, "--start-at")),
        "deadline": None if by_us is None else to_datetime(by_us),
    }


def _duration(text: str | None, name: str) -> timedelta | None:
    return None if text is None else timedelta(microseconds=parse_duration_us(text, name))


def _refuse_with_many(given: Sequence[str], on_busy: OnBusy | None) -> None:
    if given:
        refuse(f"--many and {given[0]} exclude each other")
    if on_busy is OnBusy.QUEUE or on_busy is OnBusy.REPLACE:
        refuse(f"--many and --on-busy {on_busy.value} exclude each other", "submit these one by one")


def _submit_many(place: Place, pipeline: str, file: str, options: Mapping[str, Any], out: Output) -> int:
    chosen = find_pipeline(place, pipeline)
    inputs = read_inputs(file, chosen)

    async def send(client: Client, values: Sequence[object]) -> Sequence[Run[object] | Refusal]:
        return await client.submit_many(chosen, values, **options)

    return with_client(place, lambda client: submit_all(client, send, inputs, out), creates=True)


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
