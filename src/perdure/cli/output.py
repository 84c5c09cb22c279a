"""Where answers go: tables and colour on a terminal, aligned text in a pipe, JSON when asked for [I-2].

Answers go to stdout, everything else (notes, progress, errors) to stderr, so that a pipe gets answers only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TextIO

from perdure.cli.exits import Exit
from perdure.cli.problems import Problem
from perdure.cli.tables import Cell, Line, Table, fitting, plain, safe, text_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text


class Advance(Protocol):
    """Told how far long work has come."""

    def __call__(self, done: int, total: int | None, /) -> None:
        """`done` of `total` items; None if nobody knows how many there are."""
        ...


def is_terminal(stream: TextIO) -> bool:
    """May the stream get colour, frames and live views?"""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _to_nowhere(stream: TextIO) -> None:
    """From here on what is written to the stream is dropped, what waits in its buffers included."""
    with suppress(OSError, ValueError):  # not a file
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)


class Output:
    """How one command answers.

    Attributes:
        json: for programs: one JSON value a line, and nothing else on stdout.
        terminal: a person looks at stdout, live.

    Args:
        json: see attribute.
        outlived: what answers goes on when stdout cannot be written any more, and is silent from then on.
    """

    def __init__(self, *, json: bool = False, outlived: bool = False) -> None:
        self.json = json
        self.terminal = is_terminal(sys.stdout) and not json
        self._outlived = outlived
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """The terminal; only where `terminal` is true."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)
        return self._console

    def value(self, value: object) -> None:
        """One JSON value on a line of its own. Times in it are text already."""
        self._write(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n")

    def line(self, *parts: str | Cell) -> None:
        """A line for people, of parts that follow each other directly."""
        if self.terminal:
            self.console.print(_rich_line(parts))
        else:
            self._write("".join(text_of(part) for part in parts).rstrip() + "\n")

    def table(self, table: Table) -> None:
        """A table for people."""
        if self.terminal:
            self.console.print(rich_table(table, self.console.width), soft_wrap=False)
            return
        self._write("".join(line + "\n" for line in plain(table)))

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            if isinstance(error, BrokenPipeError) and not self._outlived:
                raise  # whoever read has read enough
            _to_nowhere(sys.stdout)
            problem = f"stdout cannot be written: {error.strerror}"
            if not self._outlived:
                raise Problem(problem, code=Exit.FINDING) from error
            self.note(f"{problem}; going on in silence")

    def note(self, text: str) -> None:
        """A remark beside the answer, such as what to do about an empty list; stderr, and nothing for programs."""
        if not self.json:
            sys.stderr.write(safe(text) + "\n")
            sys.stderr.flush()

    @contextmanager
    def progress(self, what: str) -> Generator[Advance]:
        """Show how long work goes on, on stderr: a bar on a terminal, nothing elsewhere."""
        if self.json or not is_terminal(sys.stderr):
            yield _silent
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
            task = bar.add_task(what, total=None)

            def advance(done: int, total: int | None, /) -> None:
                bar.update(task, completed=done, total=total)

            yield advance


def _silent(done: int, total: int | None, /) -> None:
    """Nobody looks."""


def rich_text(cell: str | Cell) -> Text:
    """A cell for the terminal; its text is data, never markup."""
    from rich.text import Text

    return Text(text_of(cell), style="" if isinstance(cell, str) else cell.style)


def _rich_line(parts: Sequence[str | Cell]) -> Text:
    from rich.text import Text

    return Text.assemble(*(rich_text(part) for part in parts))


def rich_table(table: Table, columns: int) -> RichTable:
    """A table for a terminal of that width."""
    from rich import box
    from rich.table import Table as RichTable

    if table.columns:
        table = fitting(table, columns)
    look = box.SIMPLE_HEAD if table.columns else None
    shown = RichTable(
        box=look, show_header=bool(table.columns), show_edge=False, pad_edge=False, padding=(0, 1 if look else 2, 0, 0)
    )
    wraps = table.wraps or (table.columns[-1] if table.columns else None)
    for name in table.columns or _headless(table.rows):
        whole = bool(table.columns) and name != wraps
        shown.add_column(name, justify="right" if name in table.right else "left", overflow="fold", no_wrap=whole)
    for row in table.rows:
        shown.add_row(*(rich_text(cell) for cell in row))
    return shown


def _headless(rows: Sequence[Line]) -> Sequence[str]:
    return [""] * max((len(row) for row in rows), default=0)
