"""What a running engine is doing, gathered from its events: the model behind the live view and the log lines."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.cli.looks import STATUS_STYLES, status_cell
from perdure.cli.tables import Cell, Line, Table
from perdure.cli.text import count
from perdure.cli.times import clock_local, iso_local, iso_utc, span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.ports.observer import Event

ENDS = ("succeeded", "failed", "canceled")
LOUD = frozenset(
    "failed canceled held invalid corrupt uncompensated overdue stuck blocked store-trouble late tick-failed"
    " tick-skipped".split()
)
"""Kinds that are always news."""
LOGGED = frozenset({"store-trouble"})
"""Kinds of which the log of the engine says more, in the same place."""
QUIET = frozenset({"submitted", "succeeded", "retry-scheduled", "waiting", "unit-opened"})
"""Kinds that get a line of their own while there are few of them."""
RESTS = frozenset(
    {"attempt-succeeded", "attempt-failed", "retry-scheduled", "late", *ENDS, "held", "invalid", "released"}
)
"""Kinds after which nothing of the run is running."""
LINES_A_SECOND = 20
SHOWN_AT_WORK = 8
SHOWN_NEWS = 6
LONGEST_DETAIL = 300


def event_json(event: Event) -> dict[str, object]:
    """An event for programs."""
    return {
        "event": event.kind,
        "at": iso_utc(event.at_us),
        "run_id": event.run_id or None,
        "pipeline": event.pipeline or None,
        "step": event.step or None,
        "phase": event.phase or None,
        "attempt": event.attempt or None,
        "detail": event.detail or None,
        "item": event.item,
    }


def event_words(event: Event) -> str:
    """An event in a line, without its time."""
    about = f"run {event.run_id} of {event.pipeline}" if event.run_id else "engine"
    step = f", {event.step}" if event.step else ""
    undo = " (unwind)" if event.phase == "unwind" else ""
    attempt = f" attempt {event.attempt}" if event.attempt else ""
    detail = f": {event.detail[:LONGEST_DETAIL]}" if event.detail else ""
    return f"{about} {event.kind.replace('-', ' ')}{step}{undo}{attempt}{detail}"


class LogLines:
    """Which events become lines in a pipe: everything that matters, and of what is frequent a bounded number."""

    def __init__(self) -> None:
        self._second: int = 0
        self._lines = 0
        self._held_back: Counter[str] = Counter()

    def lines(self, event: Event) -> list[str]:
        """The lines that an event causes, with their times."""
        lines = self.tick(event.at_us)
        if event.kind in LOUD - LOGGED:
            return [*lines, f"{iso_local(event.at_us)}  {event_words(event)}"]
        if event.kind not in QUIET and not (event.kind == "attempt-failed" and event.item is not None):
            return lines
        if self._lines >= LINES_A_SECOND:
            self._held_back[event.kind] += 1
            return lines
        self._lines += 1
        return [*lines, f"{iso_local(event.at_us)}  {event_words(event)}"]

    def tick(self, now_us: int) -> list[str]:
        """The line that sums up what was held back, once its second is over."""
        second = now_us // 1_000_000
        if second == self._second:
            return []
        self._second, self._lines = second, 0
        held_back, self._held_back = self._held_back, Counter()
        if not held_back:
            return []
        summary = ", ".join(f"{number} more {kind.replace('-', ' ')}" for kind, number in sorted(held_back.items()))
        return [f"{iso_local(now_us)}  {summary}"]


@dataclass(frozen=True)
class AtWork:
    """An attempt that is running."""

    step: str
    phase: str
    attempt: int
    since_us: int


@dataclass
class Monitor:
    """The state behind the live view.

    Attributes:
        started_us: when the engine started.
        ended: runs that ended since then, by how.
        done: attempts that succeeded, and steps with items that have their state; `items`: those of items.
        retried: attempts that will be made again.
        at_work: running attempts by run and item, oldest first.
        news: the newest events worth a line.
        counts: runs in the store by status, as last read.
    """

    started_us: int
    ended: Counter[str] = field(default_factory=Counter[str])
    done: int = 0
    items: int = 0
    retried: int = 0
    at_work: dict[tuple[str, int | None], AtWork] = field(default_factory=dict[tuple[str, int | None], AtWork])
    news: deque[tuple[int, str, str]] = field(default_factory=lambda: deque[tuple[int, str, str]](maxlen=SHOWN_NEWS))
    counts: Counter[str] = field(default_factory=Counter[str])

    def see(self, event: Event) -> None:
        """Take note of an event."""
        if event.kind == "attempt-started":
            self.at_work[event.run_id, event.item] = AtWork(event.step, event.phase, event.attempt, event.at_us)
            return
        if event.item is not None:
            self.at_work.pop((event.run_id, event.item), None)
        elif event.kind in RESTS:
            for key in [key for key in self.at_work if key[0] == event.run_id]:
                del self.at_work[key]
        self.items += event.kind == "attempt-succeeded" and event.item is not None
        self.done += event.kind == "unit-resolved" or (event.kind == "attempt-succeeded" and event.item is None)
        self.retried += event.kind == "retry-scheduled"
        if event.kind in ENDS:
            self.ended[event.kind] += 1
        if event.kind in LOUD or event.kind == "retry-scheduled":
            self.news.append((event.at_us, event.kind, event_words(event)))

    def read(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Take note of how many runs there are."""
        self.counts = Counter()
        for (_, status), number in counts.items():
            self.counts[status] += number

    def table(self, now_us: int) -> Table:
        """The live view as names and values."""
        table = Table([])
        table.rows += [["runs", *self._runs()], ["steps", self._steps(now_us)]]
        oldest = list(self.at_work.items())[:SHOWN_AT_WORK]
        for i, ((run_id, item), work) in enumerate(oldest):
            undo = " (unwind)" if work.phase == "unwind" else ""
            again = f" attempt {work.attempt}" if work.attempt > 1 else ""
            of = "" if item is None else f" item {item}"
            line = f"{run_id}  {work.step}{of}{undo}{again}  {span(max(0, now_us - work.since_us))}"
            table.add("" if i else "now", Cell(line, "cyan"))
        if len(self.at_work) > SHOWN_AT_WORK:
            table.add("", Cell(f"and {len(self.at_work) - SHOWN_AT_WORK} more", "dim"))
        for i, (at_us, kind, words) in enumerate(self.news):
            table.add("" if i else "news", Cell(f"{clock_local(at_us)}  {words}", STATUS_STYLES.get(kind, "yellow")))
        return table

    def _runs(self) -> Line:
        text = ", ".join(f"{number:,} {status_cell(s).text}" for s in STATUS_STYLES if (number := self.counts[s]))
        return [text or "none yet"]

    def _steps(self, now_us: int) -> str:
        seconds = max(1e-6, (now_us - self.started_us) / 1e6)
        parts = [f"{count(self.done, 'step')} done ({self.done / seconds:,.1f}/s)"]
        if self.items:
            parts.append(f"{count(self.items, 'item')} done")
        if self.retried:
            parts.append(f"{self.retried:,} {'retry' if self.retried == 1 else 'retries'}")
        return ", ".join(parts)

    def summary(self, now_us: int) -> str:
        """What was done, in a line, at the end."""
        ends = [f"{count(self.ended[kind], 'run')} {kind}" for kind in ENDS if self.ended[kind]]
        return ", ".join([*(ends or ["no run ended"]), self._steps(now_us)])
