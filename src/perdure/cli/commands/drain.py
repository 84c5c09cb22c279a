"""`perdure drain`."""

from __future__ import annotations

from perdure.cli.evolution import Edit, edited
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
    since when, and why. JSON: one object: steps (each pipeline, step,
    drained, runs, unresolved, since, read_by, why).
    """
    from perdure.cli.edits import drain_json, drain_row
    from perdure.cli.tables import Table
    from perdure.cli.times import now_us

    if store is not None and ledgers is not None:
        refuse("--store and --ledgers exclude each other", "an export stands for a store")
    out = Output(json=as_json)
    report = Edit(edited(app_argument, app, store), ledgers).report()
    found = [(checked.pipeline, each) for checked in report.pipelines for each in checked.drains]
    if out.json:
        out.value({"steps": [drain_json(pipeline, each) for pipeline, each in found]})
        return 0
    if not found:
        out.note("no step is retired; `retired(step)` in steps= retires one")
        return 0
    table = Table(["pipeline", "step", "runs", "since", "verdict"], right=frozenset({"runs"}))
    for pipeline, each in found:
        table.add(*drain_row(pipeline, each, now_us()))
    out.table(table)
    return 0
