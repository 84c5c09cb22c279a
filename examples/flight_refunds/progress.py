"""What one sees while the demo runs: a calendar on a terminal, lines of text elsewhere, nothing for `--json`."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.flight_refunds.flights import CarrierDay


class Cell(Enum):
    """How one run stands: (sign, style, what it means)."""

    WAITING = ("·", "dim", "waiting")
    RUNNING = ("▶", "cyan", "running")
    RETRYING = ("↻", "yellow", "trying again")
    SETTLING = ("○", "cyan", "settling")
    QUIET = ("–", "green", "nothing owed")
    PAID = ("■", "bold green", "paid")
    UNWOUND = ("✗", "bold red", "unwound")
    STUCK = ("!", "bold magenta", "needs an operator")

    @property
    def sign(self) -> str:
        """One character."""
        return self.value[0]

    @property
    def style(self) -> str:
        """Its colour, for rich."""
        return self.value[1]

    @property
    def meaning(self) -> str:
        """For people."""
        return self.value[2]


WIDE = 92
"""Columns a terminal needs for a calendar with gaps between the days."""
ENDED = frozenset({Cell.QUIET, Cell.PAID, Cell.UNWOUND})


@dataclass(frozen=True)
class Snapshot:
    """One look at all runs and at the bank.

    Attributes:
        seconds: since the demo began.
        cells: every run of the month, also those not submitted yet.
        paid, paid_cents: refunds that have left the bank, and their sum.
        worker: what the worker process is doing.
    """

    seconds: float
    cells: Mapping[CarrierDay, Cell]
    paid: int = 0
    paid_cents: int = 0
    worker: str = ""
    counts: Counter[Cell] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", Counter(self.cells.values()))

    @property
    def total(self) -> int:
        """All runs."""
        return len(self.cells)

    @property
    def ended(self) -> int:
        """Those that need no more work."""
        return sum(self.counts[cell] for cell in ENDED)


def dollars(cents: int) -> str:
    """`$1,234.50`."""
    return f"${cents / 100:,.2f}"


class View(Protocol):
    """Shows snapshots and announcements, between `__enter__` and `__exit__`."""

    def show(self, snapshot: Snapshot) -> None:
        """The newest state."""
        ...

    def say(self, text: str) -> None:
        """Something happened that one should not miss."""
        ...

    def show_command(self, command: str, output: str) -> None:
        """A command was carried out, and printed this."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class SilentView:
    """Shows nothing."""

    def show(self, snapshot: Snapshot) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def show_command(self, command: str, output: str) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing."""


class PlainView(SilentView):
    """Lines of text for pipes, logs and CI: one every `every_s` seconds at most, and every announcement.

    Args:
        write: prints one line.
        every_s: pause between two lines of progress.
    """

    def __init__(self, write: Callable[[str], None], every_s: float = 2.0) -> None:
        self._write = write
        self._every_s = every_s
        self._next_s = 0.0
        self._now_s = 0.0

    def show(self, snapshot: Snapshot) -> None:
        """Prints a line if one is due."""
        self._now_s = snapshot.seconds
        if snapshot.seconds < self._next_s and snapshot.ended < snapshot.total:
            return
        self._next_s = snapshot.seconds + self._every_s
        self._line(
            f"{snapshot.ended} of {snapshot.total} runs ended, {snapshot.counts[Cell.UNWOUND]} unwound, "
            f"{snapshot.paid} refunds paid ({dollars(snapshot.paid_cents)})"
        )

    def say(self, text: str) -> None:
        """Prints it at once."""
        self._line(text)

    def show_command(self, command: str, output: str) -> None:
        """Prints both, indented."""
        self._line(f"$ {command}")
        for line in output.splitlines():
            self._write(f"          {line}".rstrip())

    def _line(self, text: str) -> None:
        self._write(f"{self._now_s:6.1f} s  {text}")


class LiveView:
    """A calendar on the terminal, carriers down, days across, redrawn in place.

    Args:
        console: where.
        airlines: names of the carriers.
    """

    def __init__(self, console: Console, airlines: Mapping[str, str]) -> None:
        self._console = console
        self._airlines = airlines
        self._newest = Snapshot(0.0, {})
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._draw)

    def show(self, snapshot: Snapshot) -> None:
        """Drawn at the next refresh."""
        self._newest = snapshot

    def say(self, text: str) -> None:
        """Above the calendar, where it scrolls away."""
        self._console.print(Text(f"{self._newest.seconds:5.1f} s  {text}", style="bold yellow"))

    def show_command(self, command: str, output: str) -> None:
        """Likewise."""
        self._console.print(Text(f"{self._newest.seconds:5.1f} s  $ {command}", style="bold"))
        self._console.print(Text(output.rstrip("\n") + "\n"))

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def _draw(self) -> RenderableType:
        now = self._newest
        bar = Table.grid(padding=(0, 2, 0, 0))
        share = f"{now.ended} of {now.total} runs ended"
        bar.add_row("runs  ", ProgressBar(total=max(now.total, 1), completed=now.ended, width=40), share)
        worker = Text(f"worker    {now.worker}")
        bank = Text(f"bank      {now.paid} refunds paid, {dollars(now.paid_cents)}")
        gap = " " if self._console.width >= WIDE else ""
        return Group(bar, worker, bank, calendar(now, self._airlines, gap), _legend(now))


def calendar(snapshot: Snapshot, airlines: Mapping[str, str], gap: str = " ") -> Table:
    """The runs of the month, one row a carrier, one column a day, with `gap` between the days."""
    days = sorted({run.day for run in snapshot.cells})
    table = Table.grid(padding=(0, 1, 0, 0))
    ruler = "".join(f"{day.day:<{5 * (1 + len(gap))}}" for day in days if day.day % 5 == 1)
    table.add_row(Text("day of January 2013", style="dim"), Text(ruler.rstrip(), style="dim"))
    for carrier in sorted({run.carrier for run in snapshot.cells}):
        line = Text()
        for day in days:
            cell = snapshot.cells.get(CarrierDay(carrier, day))
            line.append((cell.sign if cell else " ") + gap, style=cell.style if cell else "")
        table.add_row(Text(airlines.get(carrier, carrier)), line)
    return table


def _legend(snapshot: Snapshot) -> Text:
    legend = Text()
    for cell in Cell:
        if cell is not Cell.STUCK or snapshot.counts[cell]:
            legend.append(f"{cell.sign} ", style=cell.style)
            legend.append(f"{cell.meaning} {snapshot.counts[cell]}   ", style="dim")
    return legend
