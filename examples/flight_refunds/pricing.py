"""What a flight that failed its passengers costs: a flat sum by distance. Nothing here knows perdure."""

from dataclasses import dataclass

from examples.flight_refunds.flights import CarrierDay, Flight

BANDS_CENTS = ((500, 12_500), (1_500, 25_000), (2_500, 40_000))
"""(up to this many miles, refund in cents), shortest first."""
LONGEST_CENTS = 60_000
"""Refund for every flight longer than the last band."""


@dataclass(frozen=True)
class Refund:
    """Money owed for one flight. `id` names the business case: it must never be paid twice."""

    id: str
    cents: int


def price(flight: Flight) -> int:
    """The refund for this flight, in cents."""
    for up_to_miles, cents in BANDS_CENTS:
        if flight.distance_miles <= up_to_miles:
            return cents
    return LONGEST_CENTS


def refund_for(day: CarrierDay, flight: Flight) -> Refund:
    """The refund for this flight. Number, day and origin name a flight: no two of the month share them."""
    return Refund(id=f"{day.name}/{flight.number}/{flight.origin}", cents=price(flight))
