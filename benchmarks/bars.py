"""The bars that the SQLite store is held against, and whether a comparison reached them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measurement import median


@dataclass(frozen=True)
class Bar:
    """What is measured, the value it has to reach, and what was measured: a value for each repetition or slice."""

    what: str
    at_least: float | None
    at_most: float | None
    measured: Sequence[float]
    unit: str = ""

    @property
    def bar(self) -> str:
        """The bar in words."""
        if self.at_least is not None:
            return f"at least {self.at_least:,g}{self.unit}"
        return f"at most {self.at_most:,g}{self.unit}"

    @property
    def value(self) -> float:
        """The median."""
        return median(self.measured)

    @property
    def reached(self) -> bool:
        """Whether the median does."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.at_most is not None and self.value <= self.at_most

    @property
    def share(self) -> float:
        """The median by the bar; above 1 is better for `at_least`, below 1 for `at_most`."""
        bar = self.at_least if self.at_least is not None else self.at_most
        return self.value / bar if bar else 0.0


def at_least(what: str, bar: float, measured: Sequence[float], unit: str = "") -> Bar:
    """More is better."""
    return Bar(what, bar, None, measured, unit)


def at_most(what: str, bar: float, measured: Sequence[float], unit: str = "") -> Bar:
    """Less is better."""
    return Bar(what, None, bar, measured, unit)
