"""Annotations as the stores of tables hold them: a JSON object in the run's row, and a row for each to find it by."""

from __future__ import annotations

import msgspec


def stored(annotations: tuple[tuple[str, str], ...]) -> str | None:
    """The text of the column; None where there are none."""
    return msgspec.json.encode(dict(annotations)).decode() if annotations else None


def read(text: str | None) -> tuple[tuple[str, str], ...]:
    """What the column holds; nothing where somebody damaged it, which `verify` finds [J-11]."""
    if text is None:
        return ()
    try:
        return tuple(sorted(msgspec.json.decode(text, type=dict[str, str]).items()))
    except msgspec.DecodeError:
        return ()
