"""Where a demo lives and how slow the world around the pipeline is. The engine never waits for the sake of the show."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Speed = Literal["watch", "fast"]


@dataclass(frozen=True)
class Pace:
    """Delays in seconds.

    Attributes:
        concurrency: steps the worker carries out at once.
        archive_s, report_s: how long the archive and the report store take for a call.
        bank_s, bank_slow_s: how long the bank takes for a call, usually and when it is slow.
        bank_hangs_s: how long it keeps a caller waiting to whom it will not answer.
        bank_timeout_s: how long we wait for an answer of the bank.
        settle_s: how long a payment takes to settle.
        day_s: how long a day of January lasts; its runs are submitted at its begin.
        look_every_s: pause between two looks at the runs.
        stay_dead_s: pause between the worker's death and its restart.
    """

    concurrency: int
    archive_s: float
    report_s: float
    bank_s: float
    bank_slow_s: float
    bank_hangs_s: float
    bank_timeout_s: float
    settle_s: float
    day_s: float
    look_every_s: float
    stay_dead_s: float


WATCH = Pace(
    concurrency=12,
    archive_s=0.2,
    report_s=0.1,
    bank_s=0.05,
    bank_slow_s=0.9,
    bank_hangs_s=2.0,
    bank_timeout_s=1.5,
    settle_s=2.0,
    day_s=1.1,
    look_every_s=0.2,
    stay_dead_s=1.5,
)
"""Half a minute to a minute for the month: slow enough to see what happens."""

FAST = Pace(
    concurrency=16,
    archive_s=0.02,
    report_s=0.0,
    bank_s=0.0,
    bank_slow_s=0.1,
    bank_hangs_s=1.2,
    bank_timeout_s=1.0,
    settle_s=0.3,
    day_s=0.03,
    look_every_s=0.02,
    stay_dead_s=0.0,
)
"""A few seconds, for tests."""


@dataclass(frozen=True)
class Settings:
    """One demo: its directory, its speed, whether it kills its worker half-way, and deploys edits on the way.

    `lock` is an open file that keeps other demos out of the directory. The processes of the demo inherit it, so that it
    is free only when the last of them has ended, whatever happened to the first.
    """

    directory: Path
    speed: Speed = "watch"
    kill: bool = True
    edit: bool = True
    lock: int | None = None

    @property
    def pace(self) -> Pace:
        """The delays that belong to the speed."""
        return FAST if self.speed == "fast" else WATCH

    @property
    def store(self) -> str:
        """Where the journal is."""
        return f"sqlite:///{self.directory / 'refunds.db'}"

    @property
    def bank_file(self) -> Path:
        """The bank's own books."""
        return self.directory / "bank.db"

    @property
    def bank_address(self) -> Path:
        """File that names the bank's address while it is open."""
        return self.directory / "bank.address"

    @property
    def reports(self) -> Path:
        """Folder of the reports."""
        return self.directory / "reports"
