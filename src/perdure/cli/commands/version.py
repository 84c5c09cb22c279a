"""`perdure version`."""

from __future__ import annotations

from perdure.cli.options import JsonOption
from perdure.cli.output import Output


def perdure_version() -> str:
    """The version of the installed package; `unknown` where it runs from bare files."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("perdure")
    except PackageNotFoundError:
        return "unknown"


def version(as_json: JsonOption = False) -> int:
    """Show the version of perdure and of what it stands on.

    JSON: perdure, python, sqlite.
    """
    import platform
    import sqlite3

    versions = {"perdure": perdure_version(), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    out = Output(json=as_json)
    if as_json:
        out.value(versions)
    else:
        out.line(f"perdure {versions['perdure']} (Python {versions['python']}, SQLite {versions['sqlite']})")
    return 0
