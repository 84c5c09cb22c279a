"""Options that several commands share, so that one word means one thing everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from perdure.cli.completing import complete_pipeline, complete_run

AppOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="The application, like payouts:app or payouts.py:app [PERDURE_APP, or `app` under tool.perdure].",
    ),
]
StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store, like sqlite:///payouts.db; default: that of the application, else PERDURE_STORE.",
    ),
]
AppArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="[APP]", help="The application, like payouts:app; the same as --app.", show_default=False),
]
LedgersOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--ledgers", metavar="FILE", help="An export by `perdure ledgers export` instead of the store."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Answer in JSON, one value a line.")]
RunArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run id, its first 6 or more characters, or `last`.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
ActorOption: TypeAlias = Annotated[
    str | None, typer.Option("--actor", metavar="WHO", help="Who asks, for the journal; default: you, here.")
]
NoteOption: TypeAlias = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why, for the journal.")]
LeaseOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--lease",
        metavar="DURATION",
        help="On a store of many workers: who is silent for so long is taken for dead; default: the application's.",
    ),
]
TimeoutOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--timeout", metavar="DURATION", help="Stop waiting after this long, with exit code 1."),
]
PipelineOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--pipeline", "-p", metavar="ID", help="Only runs of this pipeline.", autocompletion=complete_pipeline
    ),
]
TenantOption: TypeAlias = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only runs of this tenant.")
]
ResourceOption: TypeAlias = Annotated[
    str | None, typer.Option("--resource", metavar="NAME", help="Only runs about this resource.")
]
StatusOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--status", "-s", metavar="STATUS", help="Of many: runs that are held, invalid, ...; repeatable."),
]
StepOption: TypeAlias = Annotated[
    str | None, typer.Option("--step", metavar="STEP", help="Of many: runs that stand at this step.")
]
WithReasonOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--with-reason", metavar="WORD", help="Of many: held, invalid or backing off for this reason."),
]
ReasonSelector: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--reason", "--with-reason", metavar="WORD", help="Of many: held, invalid or backing off for this reason."
    ),
]
OlderThanOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--older-than", metavar="DURATION", help="Of many: submitted so long ago, like 1h or 30d."),
]
WaitingOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--waiting",
        metavar="WHAT",
        help="Only runs that wait for: slot, run, message, time, retry, limit, deployment. Repeatable.",
    ),
]
AnnotationOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--annotation", metavar="KEY=VALUE", help="Only runs submitted with this annotation. Repeatable."),
]
WorkerOption: TypeAlias = Annotated[
    str | None, typer.Option("--worker", metavar="ID", help="Only runs that this worker owns.")
]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing, and say what would become of each.")
]
YesOption: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
OptionalRun: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run id, its first 6 or more characters, or `last`.",
        show_default=False,
        autocompletion=complete_run,
    ),
]


def who(actor: str | None) -> str:
    """The actor of a fact that this command causes: as given, else `user@machine` [M-16]."""
    if actor is not None:
        return actor
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
