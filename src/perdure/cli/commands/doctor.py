"""`perdure doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.cli.exits import Exit
from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.output import Output
from perdure.cli.tables import Cell, Table

if TYPE_CHECKING:
    from perdure.cli.diagnosis import Check

STYLES = {"ok": "green", "warn": "bold yellow", "fail": "bold red"}


def doctor(app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> int:
    """Examine machine, application, store and runs.

    Says what is not well and what to do about it. Every line is ok, warn or fail; exit code 1 if one is fail.

    JSON: one object a line: check, verdict, found, advice (or null).
    """
    from perdure.cli.examine import examine

    checks = examine(app, store)
    _say(checks, Output(json=as_json))
    return Exit.FINDING if any(check.verdict == "fail" for check in checks) else Exit.OK


def _say(checks: list[Check], out: Output) -> None:
    if out.json:
        for check in checks:
            out.value(check.json())
        return
    table = Table([])
    for check in checks:
        table.add(Cell(check.verdict, STYLES[check.verdict]), check.name, check.found)
        if check.advice:
            table.add("", "", Cell(f"-> {check.advice}", "dim"))
    out.table(table)
    failed = sum(check.verdict == "fail" for check in checks)
    warned = sum(check.verdict == "warn" for check in checks)
    if failed:
        out.line(Cell(f"{failed} of {len(checks)} checks failed", STYLES["fail"]), f", {warned} to look at")
    elif warned:
        out.line(Cell(f"{warned} of {len(checks)} checks to look at", STYLES["warn"]), ", none failed")
    else:
        out.line(Cell(f"all {len(checks)} checks are good", STYLES["ok"]))
