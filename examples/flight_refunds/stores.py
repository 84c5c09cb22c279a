"""The other neighbours of the pipeline: a slow flight archive and a folder of reports. Nothing here knows perdure."""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.flight_refunds.flights import CarrierDay, Flight
from examples.flight_refunds.pricing import Refund


class Archive:
    """The flights of the month. `delay_s` plays the far-away system that such an archive would be.

    Args:
        month: flights by carrier and day.
        delay_s: how long each look-up takes.
    """

    def __init__(self, month: Mapping[CarrierDay, Sequence[Flight]], delay_s: float) -> None:
        self._month = month
        self._delay_s = delay_s

    async def flights(self, day: CarrierDay) -> list[Flight]:
        """The carrier's departures of the day; none if it did not fly."""
        await asyncio.sleep(self._delay_s)
        return list(self._month.get(day, ()))


@dataclass(frozen=True)
class Report:
    """What a run leaves behind for people."""

    run: str
    airline: str
    flights: int
    refunds: list[Refund]
    paid_cents: int


class Reports:
    """One file per run, `<run>.json`.

    Args:
        folder: where; it has to exist.
        delay_s: how long each write takes, again for a system that is far away.
    """

    def __init__(self, folder: Path, delay_s: float) -> None:
        self._folder = folder
        self._delay_s = delay_s

    def write(self, report: Report) -> None:
        """Writes the file or replaces it. Atomic: a reader sees a whole report or none, whenever we are killed."""
        time.sleep(self._delay_s)
        draft = self._folder / f".{report.run}.new"
        draft.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self._folder / f"{report.run}.json")
