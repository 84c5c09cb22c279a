"""From `module:attribute` or `file.py:attribute` to the App it names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from perdure.cli.blame import user_line
from perdure.cli.problems import Problem, refuse
from perdure.cli.settings import Setting, setting

if TYPE_CHECKING:
    from perdure.app import App

EXAMPLE = "payouts:app"


class BrokenCode(Problem):
    """The module that is named is there, but the code in it fails: an edit mends that, another name does not."""


@dataclass(frozen=True)
class LoadedApp:
    """An application and how the user named it."""

    app: App
    target: Setting


def find_app(argument: str | None, *, option: str = "--app") -> LoadedApp:
    """Import the application that the argument, the environment or the project names.

    Raises:
        Problem: nobody named one, or what was named is not there, or fails to import, or is not an App.
    """
    target = setting("app", argument, option=option)
    if target is None:
        refuse(
            "no application given",
            f"name it like `--app {EXAMPLE}`, in PERDURE_APP, or as `app` under [tool.perdure] in pyproject.toml",
        )
    return load_app(target)


def load_app(target: Setting) -> LoadedApp:
    """Import the application that a setting names.

    Raises:
        Problem: see `find_app`.
    """
    from perdure.app import App

    text = target.text.strip()
    place, colon, attribute = text.rpartition(":")
    if not colon or not place or not attribute:
        refuse(f"{target.source}: {text!r} is not of the form module:attribute", f"write it like {EXAMPLE}")
    module = load_module(place, target)
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            others = [key for key, value in vars(module).items() if isinstance(value, App)]
            known = f"it has {', '.join(f'{place}:{key}' for key in others)}" if others else "it has no App at all"
            refuse(f"{target.source}: module {place!r} has no attribute {attribute!r}", known)
        found = getattr(found, name)
    if not isinstance(found, App):
        refuse(
            f"{target.source}: {text} is of type {type(found).__name__}, not an App",
            "wrap the pipeline: app = App(my_pipeline.bind(deps), store=...)",
        )
    return LoadedApp(found, target)


def load_module(place: str, target: Setting) -> ModuleType:
    """Import a module by its dotted name or by its file, as if Python had been started in the working directory.

    Raises:
        Problem: it is not there, or fails while it is imported.
    """
    folders = [Path.cwd()] if target.folder is None else [Path.cwd(), target.folder]
    for folder in reversed(folders):
        _first_on_path(folder)
    if place.endswith(".py") or os.sep in place:
        return _load_file((folders[-1] / place).resolve(), place, target)
    if not all(part.isidentifier() for part in place.split(".")):
        refuse(f"{target.source}: {place!r} is not the name of a module", f"write it like {EXAMPLE} or file.py:app")
    return _import(place, place, target)


def _first_on_path(folder: Path) -> None:
    text = str(folder)
    if text in sys.path:
        sys.path.remove(text)
    sys.path.insert(0, text)


def _load_file(path: Path, place: str, target: Setting) -> ModuleType:
    if not path.is_file():
        refuse(f"{target.source}: there is no file {place}")
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    _first_on_path(folder)
    name = ".".join(parts)
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if len(parts) > 1 or (spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path):
        return _import(name, place, target)
    # A file whose name is no identifier, or is taken by another module: load it under a name of its own.
    return _import_file(path, f"perdure_target_{path.stem}", place, target)


def _import_file(path: Path, name: str, place: str, target: Setting) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        refuse(f"{target.source}: {place} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_problem(error, place, target) from error
    return module


def _import(name: str, place: str, target: Setting) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _import_problem(error, place, target) from error


def _import_problem(error: BaseException, place: str, target: Setting) -> Problem:
    if isinstance(error, ModuleNotFoundError) and error.name and _is_part_of(error.name, place):
        return Problem(
            f"{target.source}: there is no module {error.name!r} here",
            f"run the command in the folder that holds it, or name the file: {error.name.replace('.', os.sep)}.py:app",
        )
    if isinstance(error, SystemExit):
        return BrokenCode(
            f"{target.source}: importing {place} ended the program",
            "put what should only run as a script under `if __name__ == '__main__':`",
        )
    line = user_line(error, refused_by_us=True)
    where = f" ({line})" if line else ""
    return BrokenCode(
        f"{target.source}: importing {place} failed{where}: {type(error).__name__}: {error}",
        "PERDURE_DEBUG=1 shows the traceback",
    )


def _is_part_of(missing: str, place: str) -> bool:
    return place == missing or place.startswith(missing + ".")
