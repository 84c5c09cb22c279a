"""`perdure scenario`."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from perdure.cli.exits import Exit
from perdure.cli.options import JsonOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse
from perdure.cli.tables import Cell, Table
from perdure.cli.text import count

if TYPE_CHECKING:
    from perdure.testing.scenario.model import Scenario
    from perdure.testing.scenario.report import Difference

PLACES = ("core", "memory", "sqlite")


def scenario(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Scenario files.", show_default=False)],
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="PLACE",
            help="What to drive: core, memory, sqlite, all of them, or the URL of a store beside which one is made.",
        ),
    ] = "core",
    as_json: JsonOption = False,
) -> int:
    """Run scenario files up to the first difference.

    A scenario is a run's life as a script, which has to be chosen line by line: by the pure core, by an engine on a
    store in memory, on SQLite, or on a store that is made beside the one a URL names, and removed. Exit code 1 at the
    first difference, 2 at a malformed line.

    JSON: one object a place: on, scenarios (how many ran), difference (file, scenario, line, text, expected, chosen)
    or null.
    """
    places = PLACES if on == "all" else (on,)
    if on not in (*PLACES, "all") and "://" not in on:
        refuse(f"--on: {on!r} is not one of {', '.join(PLACES)}, all, and no URL of a store")
    out = Output(json=as_json)
    found = read(files)
    if not found:
        refuse(f"there is no scenario in {', '.join(files)}", "a scenario begins with a line `scenario NAME`")
    for place in places:
        if not _run(found, place, out):
            return Exit.FINDING
    return Exit.OK


def read(files: list[str]) -> list[Scenario]:
    """All scenarios of the files, in order.

    Raises:
        Problem: a file cannot be read, or a line is malformed.
    """
    from perdure.testing.scenario.model import ScenarioError
    from perdure.testing.scenario.parser import read_files

    found: list[Scenario] = []
    for name in files:
        try:
            if Path(name).is_dir():
                refuse(f"{name} is a folder", f"name the files: {name.rstrip('/')}/*.scenario")
            found += read_files([name])
        except OSError as error:
            refuse(f"{name or repr(name)} cannot be read: {error.strerror}")
        except UnicodeDecodeError as error:
            refuse(f"{name} is not UTF-8 text (byte {error.start})")
        except ScenarioError as error:
            refuse(str(error), "docs/reference/scenarios.md has the grammar")
    return found


def _run(found: list[Scenario], on: str, out: Output) -> bool:
    """Run the scenarios on one place and say how it went; true if all is as written."""
    from perdure.testing.scenario.runner import run_scenarios

    place = urlsplit(on).scheme or on  # a URL may have a password in it
    with _quiet(), out.progress(f"scenarios on {place}") as advance:
        report = run_scenarios(found, on, progress=advance)
    difference = report.difference
    if out.json:
        shown = None if difference is None else difference_json(difference)
        out.value({"on": place, "scenarios": report.ran, "difference": shown})
    elif difference is None:
        out.line(Cell("all good", "green"), f": {count(report.ran, 'scenario')} on {place}")
    else:
        _say(difference, place, out)
    return difference is None


@contextmanager
def _quiet() -> Generator[None]:
    """Nothing of what an engine logs: a script makes runs invalid and handlers fail on purpose."""
    logger = logging.getLogger("perdure")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _say(difference: Difference, place: str, out: Output) -> None:
    where = f"{difference.scenario.file}:{difference.entry.number}"
    out.line(Cell(f"{where}: on {place} something else was chosen", "bold red"))
    table = Table([])
    table.add("scenario", difference.scenario.name)
    table.add("line", difference.entry.text)
    table.add("expected", Cell(difference.expected, "green"))
    table.add("chosen", Cell(difference.chosen, "red"))
    out.table(table)


def difference_json(difference: Difference) -> dict[str, object]:
    """The first difference, for programs."""
    return {
        "file": difference.scenario.file,
        "scenario": difference.scenario.name,
        "line": difference.entry.number,
        "text": difference.entry.text,
        "expected": difference.expected,
        "chosen": difference.chosen,
    }
