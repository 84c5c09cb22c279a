"""What a run waits for, how far its items are, and whose child it is, in words and as JSON; pure [B-2, B-15, B-21]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.cli.tables import Cell
from perdure.cli.text import count
from perdure.cli.times import iso_utc, when
from perdure.core.explain import counts_words
from perdure.core.facts import (
    BoundaryCompletionAdmitted,
    BoundaryInteractionCreated,
    BoundaryOpened,
    ItemCounts,
)
from perdure.core.ids import child_id

if TYPE_CHECKING:
    from perdure.core.projection import Projection
    from perdure.runtime.info import RecordedFact, RunInfo, UnitProgress

SHOWN = 10
"""So many runs are named, of more the number is said."""

STYLES = {"succeeded": "green", "live": "cyan", "failed": "red", "canceled": "yellow", "missing": "red"}


@dataclass
class ChildRun:
    """A child run of a run; `status` is `live` until its end is known to the parent."""

    step: str
    index: int
    run_id: str
    status: str = "live"

    def json(self) -> dict[str, object]:
        """For programs."""
        return {"step": self.step, "index": self.index, "run_id": self.run_id, "status": self.status}


def children_of(run_id: str, facts: Sequence[RecordedFact]) -> list[ChildRun]:
    """All child runs that a run has or had, in the order in which they were created."""
    opened_us: dict[str, int] = {}
    children: dict[tuple[str, int], ChildRun] = {}
    for recorded in facts:
        match recorded.fact:
            case BoundaryOpened(step):
                opened_us[step] = recorded.at_us
            case BoundaryInteractionCreated(step, first, number):
                for index in range(first, first + number):
                    child = child_id(opened_us[step], run_id, step, index)
                    children[step, index] = ChildRun(step, index, child)
            case BoundaryCompletionAdmitted(step, index, status) if (step, index) in children:
                children[step, index].status = status
            case _:
                pass
    return list(children.values())


def children_rows(children: Sequence[ChildRun]) -> list[tuple[str, str | Cell]]:
    """For people: those that have not ended come first."""
    first = sorted(children, key=lambda child: child.status != "live")[:SHOWN]
    rows: list[tuple[str, str | Cell]] = [
        ("child run", Cell(f"{c.run_id}  {c.status}, {c.step} item {c.index}", STYLES.get(c.status, ""))) for c in first
    ]
    if len(children) > SHOWN:
        rows.append(("", Cell(f"and {len(children) - SHOWN:,} more; `--json` names all", "dim")))
    return rows


def wait_json(p: Projection) -> dict[str, object] | None:
    """What a parked run waits for, for programs; None where it waits for nothing from outside."""
    entry = p.parked()
    if entry is None:
        return None
    return {
        "step": p.pin,
        "for": {"sleep": "time", "message": "message"}.get(entry.shape, "runs"),
        "message": entry.awaits[0] if entry.shape == "message" else None,
        "runs": list(entry.awaits) if entry.shape == "runs" else [],
        "need": entry.need or None,
        "until": iso_utc(entry.until_us or None),
    }


def wait_rows(p: Projection, now_us: int) -> list[tuple[str, str | Cell]]:
    """The same for people."""
    entry = p.parked()
    if entry is None:
        return []
    until = f", until {when(entry.until_us, now_us)} at the latest" if entry.until_us else ""
    match entry.shape:
        case "sleep":
            return [("sleeps until", when(entry.until_us, now_us))]
        case "message":
            return [("waits for", f"message {entry.awaits[0]!r}{until}")]
        case _:
            of = f"{entry.need} of {count(len(entry.awaits), 'run')}"
            rows: list[tuple[str, str | Cell]] = [("waits for", f"{of}{until}")]
            rows += [("awaited run", run_id) for run_id in entry.awaits[:SHOWN]]
            if len(entry.awaits) > SHOWN:
                rows.append(("", Cell(f"and {len(entry.awaits) - SHOWN:,} more; `--json` names all", "dim")))
            return rows


def progress_json(progress: UnitProgress | None) -> dict[str, object] | None:
    """How far the open unit is, for programs."""
    if progress is None:
        return None
    return {
        "step": progress.step,
        "shape": progress.shape,
        "total": progress.total,
        "done": progress.done,
        "failed": progress.failed,
        "open": progress.open,
    }


def progress_words(progress: UnitProgress) -> str:
    """`3 of 10 items done, 1 failed, 2 running`; `7 turns done`."""
    child = progress.shape in ("child", "children")
    if progress.shape == "loop":
        parts = [f"{count(progress.done, 'turn')} done"]
    else:
        noun = "child run" if child else "item"
        parts = [f"{progress.done:,} of {count(progress.total or 0, noun)} {'succeeded' if child else 'done'}"]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.open:
        parts.append(f"{progress.open:,} {'not ended' if child else 'running'}")
    return ", ".join(parts)


def counts_json(counts: ItemCounts) -> dict[str, object]:
    """What became of the items of a step, for programs [U-12]."""
    return {
        "step": counts.step,
        "items": counts.items,
        "completed": counts.completed,
        "failed": counts.failed,
        "in_doubt": counts.in_doubt,
        "not_started": counts.not_started,
    }


def counts_rows(found: Sequence[ItemCounts]) -> list[tuple[str, str | Cell]]:
    """For people: a row for each step [U-12]."""
    return [("items", Cell(f"{counts.step}: {counts_words(counts)}", "yellow")) for counts in found]


def detail_json(info: RunInfo) -> dict[str, object]:
    """What `info` knows beyond the index row, for programs."""
    return {"parent": info.parent or None, "progress": progress_json(info.progress)}
