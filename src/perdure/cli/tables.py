"""A table as data, and as aligned text without a frame: what a pipe gets."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Cell:
    """Text with a rich style; the style shows on a terminal only."""

    text: str
    style: str = ""


Line: TypeAlias = Sequence[str | Cell]


@dataclass
class Table:
    """Columns and rows; what is in the cells is never interpreted as markup.

    Attributes:
        columns: headings, each once; an empty list makes a table without a head.
        right: headings of columns that are aligned to the right.
        wraps: heading of the column that takes several lines where the terminal is narrow; default: the last.
        spare: headings of columns that a narrow terminal goes without, first to go first.
        least: width that the wrapping column should keep.
    """

    columns: Sequence[str]
    rows: list[Line] = field(default_factory=list[Line])
    right: frozenset[str] = frozenset()
    wraps: str | None = None
    spare: tuple[str, ...] = ()
    least: int = 20

    def add(self, *cells: str | Cell) -> None:
        """Append a row."""
        self.rows.append(cells)


def text_of(cell: str | Cell) -> str:
    """The text of a cell, on one line and without control characters."""
    return safe(cell if isinstance(cell, str) else cell.text)


def safe(text: str) -> str:
    r"""The text with everything that could steer a terminal written out: an escape shows as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def _written_out(char: str) -> str:
    code = ord(char)
    if char == "\n":
        return "\\n"
    if char == "\t":
        return "\\t"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def plain(table: Table) -> list[str]:
    """The table as lines of aligned text, two spaces between columns, nothing at the end of a line."""
    lines = [[text_of(cell) for cell in row] for row in table.rows]
    if table.columns:
        lines.insert(0, [name.upper() for name in table.columns])
    count = max((len(line) for line in lines), default=0)
    widths = [max((width(line[i]) for line in lines if i < len(line)), default=0) for i in range(count)]
    right = [i < len(table.columns) and table.columns[i] in table.right for i in range(count)]
    return ["  ".join(_padded(text, widths[i], right[i]) for i, text in enumerate(line)).rstrip() for line in lines]


def _padded(text: str, columns: int, right: bool) -> str:
    space = " " * (columns - width(text))
    return space + text if right else text + space


def fitting(table: Table, columns: int, *, gap: int = 2) -> Table:
    """The table without what a terminal of that width has no room for: empty columns, then spare ones.

    Args:
        table: a table with a head.
        columns: width of the terminal.
        gap: between two columns.
    """
    widths = {
        name: max([width(name), *(width(text_of(row[i])) for row in table.rows if i < len(row))])
        for i, name in enumerate(table.columns)
    }
    wraps = table.wraps or table.columns[-1]
    widths[wraps] = min(widths[wraps], table.least)
    empty = {
        name
        for i, name in enumerate(table.columns)
        if name in table.spare and not any(i < len(row) and text_of(row[i]) for row in table.rows)
    }
    kept = [name for name in table.columns if name not in empty]
    for name in table.spare:
        if sum(widths[n] for n in kept) + gap * (len(kept) - 1) <= columns:
            break
        kept = [n for n in kept if n != name]
    places = [table.columns.index(name) for name in kept]
    rows: list[Line] = [[row[i] for i in places if i < len(row)] for row in table.rows]
    return Table(kept, rows, table.right, table.wraps, table.spare, table.least)
