"""What `perdure dev` says: to people line by line, to programs one JSON object for each step of the loop [I-2]."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli.output import Output
from perdure.cli.tables import Cell
from perdure.cli.text import count
from perdure.cli.times import iso_local, iso_utc, now_us

if TYPE_CHECKING:
    from perdure.cli.devchild import Looked
    from perdure.cli.problems import Report
    from perdure.core.check import CheckReport

SHOWN_FILES = 3
RESTORE = "such runs wait, and go on once the code has what they need again"


class Talk:
    """The loop's voice.

    Args:
        out: where to.
        here: what shown paths start from.
    """

    def __init__(self, out: Output, here: Path) -> None:
        self._out = out
        self._here = here

    def _line(self, text: str, style: str = "") -> None:
        self._out.line(f"{iso_local(now_us())}  ", Cell(text, style))

    def _value(self, event: str, **rest: object) -> None:
        self._out.value({"event": event, "at": iso_utc(now_us()), **rest})

    def watching(self, folders: Sequence[Path], files: int) -> None:
        """Before the first engine."""
        places = [self._name(folder) for folder in folders]
        if self._out.json:
            self._value("watching", paths=places, files=files)
        else:
            where = ", ".join("this folder" if place == "." else place for place in places)
            self._line(f"watching {where}, {count(files, 'file')} in all; a save restarts the engine")

    def saved(self, files: Collection[Path]) -> None:
        """Files were saved."""
        names = sorted(self._name(file) for file in files)
        if self._out.json:
            self._value("saved", files=names)
            return
        more = len(names) - SHOWN_FILES
        self._line(f"saved: {', '.join(names[:SHOWN_FILES])}" + (f" and {more} more" if more > 0 else ""))

    def _name(self, path: Path) -> str:
        try:
            return path.relative_to(self._here).as_posix()
        except ValueError:
            return str(path)

    def volatile(self, url: str) -> None:
        """Every restart forgets the runs."""
        if not self._out.json:
            self._line(f"{url} ends with each engine, and its runs with it: --store names one that stays", "yellow")

    def slow(self) -> None:
        """Loading takes so long that somebody may wonder."""
        if not self._out.json:
            self._line("the code is still being imported; another save begins anew", "yellow")

    def broken(self, report: Report, *, running: bool) -> None:
        """The code does not load."""
        if self._out.json:
            self._value("broken", running=running, **report.json())
            return
        first, *hints = report.lines()
        self._line(first, "bold red")
        for hint in hints:
            self._out.line("  ", hint)
        self._line(_meanwhile(running, "with the code from before, until this is mended"))

    def means(self, looked: Looked, *, first: bool) -> None:
        """What the code means for live runs."""
        report = looked.report
        if self._out.json:
            from perdure.cli.edits import check_json

            self._value("checked", **({"ok": True, "pipelines": []} if report is None else check_json(report)))
        elif report is None or _quiet(report, first=first):
            if not first:
                runs = 0 if report is None else sum(found.runs for found in report.pipelines)
                going = f"; {count(runs, 'live run')} {'goes' if runs == 1 else 'go'} on with the new code" * bool(runs)
                self._line(f"the steps are the same{going}")
        else:
            from perdure.cli.edits import print_check

            print_check(report, self._out, now_us(), every=False)

    def held_back(self, *, running: bool, asks: bool) -> None:
        """The code would make runs invalid, and is not run before somebody says so."""
        if self._out.json:
            self._value("held-back", running=running)
            return
        self._out.line("  ", RESTORE)
        if asks:
            if running:
                self._line(_meanwhile(running, "meanwhile"))
            self._line("run the new code anyway? [y/N], or save again", "bold")
        else:
            self._line(f"{_meanwhile(running, 'with the code from before')}; --yes would have run the new", "bold")

    def anyway(self) -> None:
        """--yes, or a person, said so."""
        if self._out.json:
            self._value("anyway")
        else:
            self._line(f"run anyway; {RESTORE}", "yellow")

    def kept(self, *, running: bool) -> None:
        """A person has decided against the new code."""
        if self._out.json:
            self._value("kept", running=running)
        else:
            self._line(_meanwhile(running, "with the code from before"))

    def unclear(self) -> None:
        """A person has typed something else than yes or no."""
        self._line("y runs the new code, n does not", "bold")

    def ended(self, code: int) -> None:
        """The engine has ended without being asked to."""
        if self._out.json:
            self._value("engine-ended", code=code)
        else:
            self._line(f"the engine has ended with exit code {code}; the next save starts another", "bold red")


def _meanwhile(running: bool, how: str) -> str:
    return f"the engine goes on {how}" if running else "no engine runs until the next save"


def _quiet(report: CheckReport, *, first: bool) -> bool:
    """Whether an edit does nothing to any run: handlers, but no steps. At the start new pipelines are no news."""
    return (
        report.ok
        and not report.leaks
        and not report.unreadable
        and all(
            (found.known or first) and not found.gone and found.unchanged == found.runs for found in report.pipelines
        )
        and not any(_changed(found.changes) for found in report.pipelines if found.known)
    )


def _changed(changes: object) -> bool:
    from perdure.core.diff import TopologyDiff

    return changes != TopologyDiff()
