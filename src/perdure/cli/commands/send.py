"""`perdure send`."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.inputs import read_json
from perdure.cli.operate import Chosen, operate
from perdure.cli.options import (
    ActorOption,
    AnnotationOption,
    AppOption,
    DryRunOption,
    JsonOption,
    OlderThanOption,
    OptionalRun,
    PipelineOption,
    ReasonSelector,
    ResourceOption,
    StatusOption,
    StepOption,
    StoreOption,
    TenantOption,
    WaitingOption,
    WorkerOption,
    YesOption,
    who,
)
from perdure.cli.problems import refuse


def send(
    run: OptionalRun = None,
    name_argument: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of the message.", show_default=False)
    ] = None,
    payload: Annotated[
        str, typer.Argument(metavar="[JSON]", help="What it says, @FILE, or - for stdin.", show_default=True)
    ] = "null",
    name_option: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The same; of many.")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="JSON", help="The same; of many.")] = None,
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="Sent again under it, an equal message is received once.")
    ] = "",
    pipeline: PipelineOption = None,
    tenant: TenantOption = None,
    resource: ResourceOption = None,
    status: StatusOption = None,
    step: StepOption = None,
    reason: ReasonSelector = None,
    older_than: OlderThanOption = None,
    waiting: WaitingOption = None,
    annotation: AnnotationOption = None,
    worker: WorkerOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Send a message to runs that wait for it, or will.

    The first await of that name consumes it; one that comes before the run waits is kept. With an application, name
    and value are checked against what the pipeline awaits, and nothing is written where they do not fit.

    One run by its id, or many by what they have in common, with --name and --value; many ask for confirmation.

    JSON: the run, as in `list`; of many, one object a line: run_id, pipeline, status (before), verdict (done,
    duplicate, refused), detail, dry_run. Exit code 1 if one of many was refused.
    """
    import msgspec

    from perdure.runtime.operations import SendMessage

    if name_argument is not None and name_option is not None and name_argument != name_option:
        refuse(f"two names given: {name_argument!r} and --name {name_option!r}")
    if value is not None and payload != "null":
        refuse("the value is given twice: as an argument and with --value")
    chosen = Chosen(
        run, pipeline, tenant, resource, status, step, reason, older_than, waiting, annotation, worker, dry_run, yes
    )
    chosen.selector()  # which run comes first, what it is sent second
    name = name_argument or name_option
    if name is None:
        refuse("missing argument 'NAME'", "give the name of the message; of many runs as --name NAME")
    data = read_json(payload if value is None else value, "JSON" if value is None else "--value")
    operation = SendMessage(name, msgspec.Raw(data), key, who(actor))
    return operate(
        chosen, app, store, as_json, operation, f"was sent {name}", many=f"sent {name}", duplicate="had been sent it"
    )
