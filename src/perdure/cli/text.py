"""Small things said the same way everywhere."""

from __future__ import annotations


def size(count: int) -> str:
    """Bytes as people read them: `3.4 MB`."""
    amount = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(amount) < 1_000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:.1f} TB"


def count(number: int, noun: str) -> str:
    """`1 run`, `1,204 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
