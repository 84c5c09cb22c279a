"""`perdure drain`."""

from __future__ import annotations

from perdure.cli.evolution import Edit, edited, outdated_engine
from perdure.cli.options import AppArgument, AppOption, JsonOption, LedgersOption, StoreOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse


def drain(
    app_argument: AppArgument = None,
    app: AppOption = None,
    store: StoreOption = None,
    ledgers: LedgersOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say which retired steps may be removed.

    A step may go when every live run would do the same without it; for the others it says how many runs need them,
    since when, and why. An engine that is running goes on with what it started with, and may start what is retired by
    now: then it says so.

    JSON: one object: steps (each pipeline, step, drained, runs, unresolved, since, read_by, why) and outdated_engine
    (who runs something else than what is current, or null).
    """
    from perdure.cli.edits import drain_json, drain_row
    from perdure.cli.tables import Table
    from perdure.cli.times import now_us
    from perdure.runtime.census import check

    if store is not None and ledgers is not None:
        refuse("--store and --ledgers exclude each other", "an export stands for a store")
    out = Output(json=as_json)
    place = edited(app_argument, app, store)
    edit = Edit(place, ledgers)
    census, deployments = edit.look()
    report = check(census, edit.candidates())
    engine = outdated_engine(place, deployments)
    found = [(checked.pipeline, each) for checked in report.pipelines for each in checked.drains]
    if out.json:
        steps = [drain_json(pipeline, each) for pipeline, each in found]
        out.value({"steps": steps, "outdated_engine": engine or None})
        return 0
    if not found:
        out.note("no step is retired; `retired(step)` in steps= retires one")
        return 0
    table = Table(["pipeline", "step", "runs", "since", "verdict"], right=frozenset({"runs"}))
    for pipeline, each in found:
        table.add(*drain_row(pipeline, each, now_us()))
    out.table(table)
    if engine:
        out.note(f"not yet: {engine} runs what was deployed before, and may start what is retired by now: restart it")
    return 0
