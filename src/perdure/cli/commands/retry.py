"""`perdure retry`."""

from __future__ import annotations

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
    StepOption,
    StoreOption,
    TenantOption,
    WaitingOption,
    WorkerOption,
    YesOption,
    who,
)


def retry(
    run: OptionalRun = None,
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
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let runs go on now, whatever they wait for.

    Cuts a backoff short, ends a hold, looks at an invalid run again.

    One run by its id, or many by what they have in common; many ask for confirmation.

    JSON: the run, as in `list`; of many, one object a line: run_id, pipeline, status (before), verdict (done,
    duplicate, refused), detail, dry_run. Exit code 1 if one of many was refused.
    """
    from perdure.runtime.operations import RetryRun

    chosen = Chosen(
        run, pipeline, tenant, resource, status, step, reason, older_than, waiting, annotation, worker, dry_run, yes
    )
    return operate(chosen, app, store, as_json, RetryRun(note, who(actor)), "will be tried now", many="tried now")
