"""`perdure scenario`."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.options import JsonOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse

PLACES = ("core", "memory", "sqlite")


def scenario(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Scenario files.", show_default=False)],
    on: Annotated[str, typer.Option("--on", metavar="|".join((*PLACES, "all")), help="What to drive.")] = "core",
    as_json: JsonOption = False,
) -> int:
    """Run scenario files up to the first difference.

    A scenario is a run's life as a script, which has to be chosen line by line. Exit code 1 at the first difference,
    2 at a malformed line.

    JSON: one object a place: on, scenarios (how many passed), difference (file, scenario, line, expected, chosen) or
    null.
    """
    if on not in (*PLACES, "all"):
        refuse(f"--on: {on!r} is not one of {', '.join((*PLACES, 'all'))}")
    return _run(files, PLACES if on == "all" else (on,), Output(json=as_json))


def _run(files: list[str], places: tuple[str, ...], out: Output) -> int:
    raise NotImplementedError
