"""`perdure resolve`."""

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
    NoteOption,
    OlderThanOption,
    OptionalRun,
    PipelineOption,
    ReasonSelector,
    ResourceOption,
    StatusOption,
    StoreOption,
    TenantOption,
    WaitingOption,
    WorkerOption,
    YesOption,
    who,
)
from perdure.cli.problems import refuse


def resolve(
    run: OptionalRun = None,
    step_argument: Annotated[
        str | None,
        typer.Argument(metavar="[STEP]", help="The step it must be; default: whichever is next.", show_default=False),
    ] = None,
    step_option: Annotated[
        str | None,
        typer.Option("--step", metavar="STEP", help="The same; of many: runs that stand at it."),
    ] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="It succeeded with this state; @FILE and - work too.")
    ] = None,
    skip: Annotated[bool, typer.Option("--skip", help="Pass over it: no state, not called again.")] = False,
    fail: Annotated[str | None, typer.Option("--fail", metavar="MESSAGE", help="It failed for good.")] = None,
    pipeline: PipelineOption = None,
    tenant: TenantOption = None,
    resource: ResourceOption = None,
    status: StatusOption = None,
    reason: ReasonSelector = None,
    older_than: OlderThanOption = None,
    waiting: WaitingOption = None,
    annotation: AnnotationOption = None,
    worker: WorkerOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Settle the next operation of runs by hand.

    It ends with a value, as skipped, or as failed. A running attempt is fenced off: what it returns no longer counts.
    With --app the value is checked against the type of the step's state.

    One run by its id, or many by what they have in common; many ask for confirmation.

    JSON: the run, as in `list`; of many, one object a line: run_id, pipeline, status (before), verdict (done,
    duplicate, refused), detail, dry_run. Exit code 1 if one of many was refused.
    """
    from perdure.runtime.operations import ResolveRun

    if step_argument is not None and step_option is not None and step_argument != step_option:
        refuse(f"two steps given: {step_argument!r} and --step {step_option!r}")
    at = None if run is not None else step_option
    chosen = Chosen(
        run, pipeline, tenant, resource, status, at, reason, older_than, waiting, annotation, worker, dry_run, yes
    )
    chosen.selector()  # which run comes first, how it ended second
    given = [
        name for name, given in (("--value", value), ("--skip", skip or None), ("--fail", fail)) if given is not None
    ]
    if len(given) != 1:
        problem = f"{' and '.join(given)} exclude each other" if given else "it is not said how to resolve the step"
        refuse(problem, "give one of --value JSON, --skip, --fail MESSAGE")
    step, by = step_argument or step_option, who(actor)
    if value is not None:
        import msgspec

        operation = ResolveRun(step, msgspec.Raw(read_json(value, "--value")), note=note, actor=by)
        return operate(chosen, app, store, as_json, operation, "resolved with a value")
    operation = ResolveRun(step, skip=skip, fail=fail, note=note, actor=by)
    done = "resolved as skipped" if skip else "resolved as failed"
    return operate(chosen, app, store, as_json, operation, done)
