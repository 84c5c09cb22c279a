"""How slow the world around the pipeline is. The engine itself never waits for the sake of the show."""

from dataclasses import dataclass
from typing import Literal

Speed = Literal["watch", "fast"]


@dataclass(frozen=True)
class Pace:
    """Delays in seconds of the archive, the report store and the bank; runs the worker executes at once."""

    concurrency: int
    archive_s: float
    report_s: float
    bank_s: float
    bank_slow_s: float
    bank_hangs_s: float
    bank_timeout_s: float


PACES: dict[Speed, Pace] = {
    "watch": Pace(
        concurrency=8,
        archive_s=0.3,
        report_s=0.15,
        bank_s=0.05,
        bank_slow_s=0.9,
        bank_hangs_s=2.0,
        bank_timeout_s=1.5,
    ),
    "fast": Pace(
        concurrency=32,
        archive_s=0.0,
        report_s=0.0,
        bank_s=0.0,
        bank_slow_s=0.1,
        bank_hangs_s=1.2,
        bank_timeout_s=1.0,
    ),
}
