"""`perdure hold`."""

from __future__ import annotations

from typing import Annotated

import typer

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
    ResourceOption,
    StatusOption,
    StepOption,
    StoreOption,
    TenantOption,
    WaitingOption,
    WithReasonOption,
    WorkerOption,
    YesOption,
    who,
)


def hold(
    run: OptionalRun = None,
    reason: Annotated[str, typer.Option("--reason", metavar="WORD", help="Why, as a word for lists.")] = "operator",
    pipeline: PipelineOption = None,
    tenant: TenantOption = None,
    resource: ResourceOption = None,
    status: StatusOption = None,
    step: StepOption = None,
    with_reason: WithReasonOption = None,
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
    """Hold runs: no new attempt starts.

    They go on after `release`, `retry` or `resolve`. A whole pipeline: `hold-pipeline`.

    One run by its id, or many by what they have in common; many ask for confirmation.

    JSON: the run, as in `list`; of many, one object a line: run_id, pipeline, status (before), verdict (done,
    duplicate, refused), detail, dry_run. Exit code 1 if one of many was refused.
    """
    from perdure.runtime.operations import HoldRun

    chosen = Chosen(
        run,
        pipeline,
        tenant,
        resource,
        status,
        step,
        with_reason,
        older_than,
        waiting,
        annotation,
        worker,
        dry_run,
        yes,
    )
    return operate(chosen, app, store, as_json, HoldRun(reason, note, who(actor)), "held")
