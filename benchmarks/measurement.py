"""What a measurement says, as JSON and as a line of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Number: TypeAlias = float | None
Extra: TypeAlias = Mapping[str, float | str | None]

KEYS = (
    "workload",
    "store",
    "concurrency",
    "runs",
    "steps_per_s",
    "runs_per_s",
    "p50_ms",
    "p99_ms",
    "commits_per_run",
    "bytes_per_run",
    "rss_mb",
)
"""Present in every object that `--json` prints; null where they do not apply."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measurement; None where a figure does not apply. `extra` holds what only this workload knows."""

    workload: str
    store: str
    concurrency: int | None = None
    runs: int | None = None
    steps_per_s: Number = None
    runs_per_s: Number = None
    p50_ms: Number = None
    p99_ms: Number = None
    commits_per_run: Number = None
    bytes_per_run: Number = None
    rss_mb: Number = None
    extra: Extra = field(default_factory=dict[str, float | str | None])

    def values(self) -> dict[str, float | str | None]:
        """All keys, in the documented order, then the extra ones."""
        return {key: _rounded(getattr(self, key)) for key in KEYS} | {k: _rounded(v) for k, v in self.extra.items()}

    def json(self) -> str:
        """One line."""
        return json.dumps(self.values())


def _rounded(value: float | str | None) -> float | str | None:
    if not isinstance(value, float):
        return value
    return round(value, 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 3)


def table(measurements: Sequence[Measurement]) -> str:
    """Measurements for people: a column for each key that any of them has."""
    rows = [m.values() for m in measurements]
    keys = [
        key for key in dict.fromkeys(key for row in rows for key in row) if any(r.get(key) is not None for r in rows)
    ]
    cells = [keys, *([_cell(row.get(key)) for key in keys] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(keys))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells)


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,g}" if abs(value) < 1000 else f"{value:,.0f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
