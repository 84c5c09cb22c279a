"""Colours and signs: one meaning, one look, in every command."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from perdure.cli.tables import Cell

STATUS_STYLES: dict[str, str] = {
    "ready": "cyan",
    "running": "bold cyan",
    "held": "bold yellow",
    "invalid": "bold magenta",
    "corrupt": "bold red",
    "succeeded": "green",
    "failed": "red",
    "canceled": "yellow",
}
"""Style of a run's status."""


@dataclass(frozen=True)
class Sign:
    """A sign in front of a step: for terminals that can, and in plain ASCII."""

    fine: str
    plain: str
    style: str


FATES: dict[str, Sign] = {
    "succeeded": Sign("✓", "+", "green"),
    "unresolved": Sign("◐", "~", "bold cyan"),
    "ahead": Sign("○", "o", "cyan"),
    "skipped": Sign("↷", "-", "dim"),
    "failed": Sign("✗", "x", "red"),
    "canceled": Sign("✗", "x", "yellow"),
    "passed": Sign("·", ".", "dim"),
    "retired": Sign("·", ".", "dim"),
    "unreached": Sign("·", ".", "dim"),
}
"""What became, or will become, of a step going forward."""

UNWINDS: dict[str, Sign] = {
    "unwound": Sign("↶", "<", "green"),
    "unwinding": Sign("◐", "~", "bold cyan"),
    "unwind-failed": Sign("✗", "x", "red"),
    "will-unwind": Sign("○", "o", "cyan"),
    "crossed": Sign("!", "!", "yellow"),
    "not-declared": Sign("·", ".", "dim"),
}
"""What became, or will become, of a step going backward."""

NEXT = Sign("▶", ">", "bold cyan")
RULE = Sign("──", "--", "bold blue")


def status_cell(status: str) -> Cell:
    """A run's status in its colour."""
    return Cell(status, STATUS_STYLES.get(status, ""))


def sign_cell(sign: Sign, *, fine: bool) -> Cell:
    """A sign as a cell; `fine` where the reader's terminal shows more than ASCII."""
    return Cell(sign.fine if fine else sign.plain, sign.style)


def unicode_terminal() -> bool:
    """Can stdout show signs outside of ASCII?"""
    return (sys.stdout.encoding or "").lower().replace("-", "") in {"utf8", "utf16", "utf32"}
