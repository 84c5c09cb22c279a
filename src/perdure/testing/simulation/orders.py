"""What the runs of a simulation are about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    """The input of every run."""

    number: int
    resource: str
