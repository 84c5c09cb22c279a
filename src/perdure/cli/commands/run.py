"""`perdure run`."""

from __future__ import annotations


def run() -> int:
    """Work."""
    return 0
