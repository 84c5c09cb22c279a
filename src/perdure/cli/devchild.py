"""The two child processes of `perdure dev`, in which modules are always fresh: the engine, and the look at an edit.

Ctrl-C on the terminal reaches every process on it; these two leave it to their parent, which ends them.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from perdure.cli.problems import Report, report
from perdure.cli.stopping import leave_ctrl_c_to_the_parent
from perdure.core.check import CheckReport

if TYPE_CHECKING:
    import io

    from perdure.cli.connect import Place

OPTIONS = ("-B", "-P")
"""Of the interpreter: a cached module may be that of a save in the same second; the working directory comes later."""


class Order(msgspec.Struct, frozen=True):
    """What a child is to do.

    Attributes:
        app, store, concurrency: as given to `perdure dev`; the child reads environment and project anew.
        drain_timeout_s: how long running attempts may end.
        as_json: events as JSON.
        lifeline: see `Supervised`.
    """

    app: str | None
    store: str | None
    concurrency: int | None
    drain_timeout_s: float
    as_json: bool
    lifeline: int | None = None


class Trouble(msgspec.Struct, frozen=True):
    """Why the code cannot be run.

    Attributes:
        report: ready to be shown.
        broken: an edit mends it; otherwise the command was wrong.
    """

    report: Report
    broken: bool


class Looked(msgspec.Struct, frozen=True):
    """What a look at the code found.

    Attributes:
        app: the application as it is named.
        store: the URL of the store.
        files: source files that the application consists of, as far as they were loaded.
        report: what the code means for live runs; None where there is no store yet.
        trouble: why it cannot be run; None if it can.
    """

    app: str = ""
    store: str = ""
    files: tuple[str, ...] = ()
    report: CheckReport | None = None
    trouble: Trouble | None = None


def main(kind: str, order: Order) -> int:
    """Run one of the two; returns the exit code."""
    if order.lifeline is not None:
        os.set_inheritable(order.lifeline, False)
    return _look(order) if kind == "look" else _engine(order)


def _engine(order: Order) -> int:
    from perdure.cli.commands.run import limits_of
    from perdure.cli.connect import locate
    from perdure.cli.main import failed, open_streams
    from perdure.cli.serve import Limits, Supervised, run_engine

    open_streams()
    # What handlers print is seen at once, and line by line, also with PYTHONUNBUFFERED: the parent writes here as well.
    cast("io.TextIOWrapper", sys.stdout).reconfigure(line_buffering=True, write_through=False)
    try:
        limits = Limits(limits_of(order.concurrency, None).concurrency, order.drain_timeout_s)
        place = locate(order.app, order.store, needs_app=True)
        return run_engine(place, limits, until_idle=False, as_json=order.as_json, supervised=Supervised(order.lifeline))
    except Exception as error:
        return failed(error, as_json=order.as_json)


def _look(order: Order) -> int:
    """Load the code, compare it with the store, and answer on what was stdout.

    From here on stdout is nowhere: what modules print when they are imported, the engine's import will show.
    """
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    looked = msgspec.json.encode(_looked(order))
    with open(answer, "wb") as file:
        file.write(looked)
    os._exit(0)  # threads that the application may have started when it was imported do not keep us


def _looked(order: Order) -> Looked:
    from perdure.cli.connect import locate

    try:
        place = locate(order.app, order.store, needs_app=True)
        name = "" if place.app is None else place.app.target.text.strip()
        return Looked(name, place.url, _sources(), _report(place))
    except Exception as error:
        if os.environ.get("PERDURE_DEBUG", "") not in {"", "0"}:
            traceback.print_exc()
        return Looked(files=tuple({*_sources(), *_frames(error)}), trouble=_trouble(error))


def _report(place: Place) -> CheckReport | None:
    from perdure.cli.connect import sqlite_path
    from perdure.cli.evolution import Edit

    edit = Edit(place)
    edit.candidates()
    path = sqlite_path(place.url)
    if place.url.startswith("memory:") or (path is not None and not path.exists()):
        return None
    return edit.report()


def _trouble(error: Exception) -> Trouble:
    from perdure.cli.blame import user_line
    from perdure.cli.exits import Exit
    from perdure.cli.target import BrokenCode
    from perdure.errors import DefinitionError

    known = report(error)
    if known is None:
        return Trouble(Report("bug", f"{type(error).__name__}: {error}", "please report this", Exit.BUG), broken=False)
    broken = isinstance(error, BrokenCode | DefinitionError) or known.kind == "application"
    line = user_line(error, refused_by_us=True) if isinstance(error, DefinitionError) else ""
    if line:
        known = Report(known.kind, f"{known.message} ({line})", known.hint, known.code)
    return Trouble(known, broken)


def _sources() -> tuple[str, ...]:
    """Files of modules that are neither the language's, nor installed, nor ours."""
    from perdure.cli.blame import is_users

    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return tuple(sorted({file for file in files if isinstance(file, str) and file.endswith(".py") and is_users(file)}))


def _frames(error: BaseException) -> set[str]:
    """Files of the user in which an error came about."""
    from perdure.cli.blame import is_users

    found: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        names = [frame.filename for frame in traceback.extract_tb(cause.__traceback__)]
        if isinstance(cause, SyntaxError) and cause.filename:
            names.append(cause.filename)
        found |= {str(Path(name).resolve()) for name in names if is_users(name)}
        cause = cause.__cause__
    return found


if __name__ == "__main__":
    leave_ctrl_c_to_the_parent()
    sys.exit(main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Order)))
