"""`perdure init`."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.exits import Exit
from perdure.cli.options import JsonOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse
from perdure.cli.tables import Cell

WRITTEN = ("orders.py", "test_orders.py")
PROJECT = "pyproject.toml"
SETTINGS = '[tool.perdure]\napp = "orders:app"\n'
NEXT_STEPS = (
    ("pytest", "its test passes"),
    ('perdure submit order \'{"order_id": "1", "item": "lamp", "cents": 4200}\'', "the run waits in orders.db"),
    ("perdure run --until-idle", "the engine works until nothing is left"),
    ("perdure explain last", "what happened, step by step"),
)


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where; made if missing. Default: here.", show_default=False)
    ] = Path(),
    as_json: JsonOption = False,
) -> int:
    """Write a pipeline, its test and the settings, to start from.

    Never overwrites a file: if one of its files is there already, nothing is written at all. An existing
    pyproject.toml gets a [tool.perdure] table at its end, unless it has one.

    JSON: one object: folder, written and kept (names of files).
    """
    project = folder / PROJECT
    _refuse_what_cannot_be(folder)
    settings = _settings(project)
    written: list[str] = list(WRITTEN)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in WRITTEN:
            _write_new(folder / name, (files("perdure.cli") / "templates" / f"{name}.txt").read_text(encoding="utf-8"))
        if settings:
            written.append(PROJECT)
            with project.open("a", encoding="utf-8") as file:
                file.write(settings)
    except FileExistsError as error:
        refuse(f"{error.filename} is there already; it was not touched", code=Exit.CONFLICT)
    except OSError as error:
        refuse(f"{error.filename or folder} cannot be written: {error.strerror}")
    _say(Output(json=as_json), folder, written, [] if settings else [PROJECT])
    return 0


def _refuse_what_cannot_be(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        refuse(f"{folder} is not a folder")
    taken = [name for name in WRITTEN if (folder / name).exists()]
    if taken:
        refuse(
            f"{' and '.join(str(folder / name) for name in taken)} would be overwritten; nothing was written",
            "choose another folder: perdure init DIR",
            Exit.CONFLICT,
        )


def _settings(project: Path) -> str:
    """What to append to pyproject.toml; empty where it has settings of ours."""
    if not project.exists():
        return SETTINGS
    try:
        text = project.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        refuse(f"{project} cannot be extended: {error}", "mend the file first")
    if "perdure" in content.get("tool", {}):
        return ""
    return ("" if not text or text.endswith("\n") else "\n") + "\n" + SETTINGS


def _write_new(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _say(out: Output, folder: Path, written: list[str], kept: list[str]) -> None:
    if out.json:
        out.value({"folder": str(folder), "written": written, "kept": kept})
        return
    out.line("wrote ", ", ".join(str(folder / name) for name in written))
    if kept:
        out.line(f'{folder / PROJECT} has a [tool.perdure] table already, which stays as it is; app is "orders:app"')
    out.line("")
    out.line("next", "" if folder == Path() else f", in {folder}", ":")
    wide = max(len(command) for command, _ in NEXT_STEPS)
    for command, meaning in NEXT_STEPS:
        out.line("  ", Cell(command.ljust(wide), "bold"), Cell(f"  {meaning}", "dim"))
