"""The flights of the month, as the example reads them from its CSV files. Nothing here knows perdure."""

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

DATA = Path(__file__).parent / "data"
LATE_MIN = 180
"""A flight that arrives this many minutes late, or later, is refunded as a canceled one is."""


@dataclass(frozen=True, order=True)
class CarrierDay:
    """One carrier on one day: what one run is about."""

    carrier: str
    day: date

    @property
    def name(self) -> str:
        """How reports, bank and people call it, for instance `UA-2013-01-31`."""
        return f"{self.carrier}-{self.day.isoformat()}"


@dataclass(frozen=True)
class Flight:
    """One departure. `arrival_delay_min` is None where it is not known (canceled, diverted)."""

    number: int
    origin: str
    dest: str
    distance_miles: int
    canceled: bool
    arrival_delay_min: int | None

    @property
    def refundable(self) -> bool:
        """Whether its passengers get money back: it never left, or came three hours late or more."""
        return self.canceled or (self.arrival_delay_min is not None and self.arrival_delay_min >= LATE_MIN)


def read_month(path: Path = DATA / "flights-2013-01.csv.gz") -> dict[CarrierDay, list[Flight]]:
    """All flights of the file by carrier and day, in the order of carrier, then day."""
    month: dict[CarrierDay, list[Flight]] = {}
    for row in _rows(path):
        day = date(int(row["year"]), int(row["month"]), int(row["day"]))
        month.setdefault(CarrierDay(row["carrier"], day), []).append(_flight(row))
    return dict(sorted(month.items()))


def read_names(path: Path, code: str) -> dict[str, str]:
    """A code book: the values of column `code` and the names beside them."""
    return {row[code]: row["name"] for row in _rows(path)}


def airline_names() -> dict[str, str]:
    """Names of the carriers by code."""
    return read_names(DATA / "airlines.csv", "carrier")


def airport_names() -> dict[str, str]:
    """Names of the airports by code; a few Caribbean destinations are missing from it."""
    return read_names(DATA / "airports.csv", "faa")


def _flight(row: Mapping[str, str]) -> Flight:
    return Flight(
        number=int(row["flight"]),
        origin=row["origin"],
        dest=row["dest"],
        distance_miles=int(row["distance"]),
        canceled=_number(row["dep_time"]) is None,
        arrival_delay_min=_number(row["arr_delay"]),
    )


def _number(text: str) -> int | None:
    return None if text in ("", "NA") else int(text)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    yield from csv.DictReader(text.splitlines())
