"""Configuration: arguments, then `PERDURE_*`, then `[tool.perdure]` of the nearest pyproject.toml."""

from __future__ import annotations

import difflib
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from perdure.cli.problems import refuse

KEYS = ("app", "store", "concurrency", "drain_timeout", "lease", "processes")


@dataclass(frozen=True)
class Setting:
    """A value and where it was said, so that a message can name the place to mend.

    Attributes:
        text: the value as text.
        source: `--store`, `PERDURE_STORE`, or `[tool.perdure] in PATH`.
        folder: what relative paths in it are relative to; None for the working directory.
    """

    text: str
    source: str
    folder: Path | None = None


@dataclass(frozen=True)
class ProjectFile:
    """The `[tool.perdure]` table of a project, or an empty one."""

    path: Path | None
    table: dict[str, str]


def find_project(start: Path) -> ProjectFile:
    """The nearest pyproject.toml at or above `start` that has a `[tool.perdure]` table."""
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            table = _read(path)
            if table is not None:
                return ProjectFile(path, _checked(table, path))
    return ProjectFile(None, {})


def _read(path: Path) -> dict[str, object] | None:
    try:
        content: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{path} cannot be read: {error}")
    except tomllib.TOMLDecodeError as error:
        refuse(f"{path} is not valid TOML: {error}", "mend the file, or run the command from another folder")
    tool = content.get("tool")
    if not isinstance(tool, dict):
        return None
    table = cast("dict[str, object]", tool).get("perdure")
    if table is None:
        return None
    if not isinstance(table, dict):
        refuse(f"[tool.perdure] in {path} is not a table")
    return cast("dict[str, object]", table)


def _checked(table: dict[str, object], path: Path) -> dict[str, str]:
    for key, value in table.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            refuse(f"[tool.perdure] in {path} has an unknown setting {key!r}", f"{meant}it knows {', '.join(KEYS)}")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            refuse(f"[tool.perdure] {key} in {path} is neither text nor a number")
    return {key: str(value) for key, value in table.items()}


def setting(name: str, argument: str | None, *, option: str | None = None) -> Setting | None:
    """The value of a setting, or None if nobody gave one.

    Args:
        name: one of `KEYS`.
        argument: what stood on the command line.
        option: how that argument is called; `--NAME` by default.
    """
    if argument is not None:
        return _filled(Setting(argument, option or f"--{name.replace('_', '-')}"))
    variable = f"PERDURE_{name.upper()}"
    if variable in os.environ:
        return _filled(Setting(os.environ[variable], variable))
    project = find_project(Path.cwd())
    if project.path is not None and name in project.table:
        return _filled(Setting(project.table[name], f"[tool.perdure] {name} in {project.path}", project.path.parent))
    return None


def _filled(value: Setting) -> Setting:
    if not value.text.strip():
        refuse(f"{value.source} is empty", "give it a value, or leave it out")
    return value
