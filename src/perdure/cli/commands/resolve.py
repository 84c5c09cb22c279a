"""`perdure resolve`."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.inputs import read_json
from perdure.cli.operate import operate
from perdure.cli.options import ActorOption, AppOption, JsonOption, NoteOption, RunArgument, StoreOption, who
from perdure.cli.problems import refuse


def resolve(
    run: RunArgument,
    step_argument: Annotated[
        str | None,
        typer.Argument(metavar="[STEP]", help="The step it must be; default: whichever is next.", show_default=False),
    ] = None,
    step_option: Annotated[str | None, typer.Option("--step", metavar="STEP", help="The same, as an option.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="It succeeded with this state; @FILE and - work too.")
    ] = None,
    skip: Annotated[bool, typer.Option("--skip", help="Pass over it: no state, not called again.")] = False,
    fail: Annotated[str | None, typer.Option("--fail", metavar="MESSAGE", help="It failed for good.")] = None,
    note: NoteOption = "",
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Settle the next operation of a run by hand.

    It ends with a value, as skipped, or as failed. A running attempt is fenced off: what it returns no longer counts.
    With --app the value is checked against the type of the step's state. JSON: the run, as in `list`.
    """
    if step_argument is not None and step_option is not None and step_argument != step_option:
        refuse(f"two steps given: {step_argument!r} and --step {step_option!r}")
    chosen = [
        name for name, given in (("--value", value), ("--skip", skip or None), ("--fail", fail)) if given is not None
    ]
    if len(chosen) != 1:
        problem = f"{' and '.join(chosen)} exclude each other" if chosen else "it is not said how to resolve the step"
        refuse(problem, "give one of --value JSON, --skip, --fail MESSAGE")
    step = step_argument or step_option
    by = who(actor)
    if value is not None:
        import msgspec

        raw = msgspec.Raw(read_json(value, "--value"))
        return operate(
            run, app, store, as_json,
            lambda client, run_id: client.resolve(run_id, step, value=raw, note=note, actor=by),
            "resolved with a value",
        )  # fmt: skip
    return operate(
        run,
        app,
        store,
        as_json,
        lambda client, run_id: client.resolve(run_id, step, skip=skip, fail=fail, note=note, actor=by),
        "resolved as skipped" if skip else "resolved as failed",
    )
