"""The data of the main example say what its documentation says, by two computations that share no code."""

from __future__ import annotations

from datetime import date

import pytest

from examples.flight_refunds.audit import owed
from examples.flight_refunds.bank import FROZEN
from examples.flight_refunds.flights import CarrierDay, Flight, airline_names, airport_names, read_month
from examples.flight_refunds.pricing import price, refund_for


def flight(*, miles: int = 500, canceled: bool = False, delay_min: int | None = 0) -> Flight:
    return Flight(1, "JFK", "LAX", miles, canceled=canceled, arrival_delay_min=delay_min)


def test_the_month_has_the_size_everybody_quotes() -> None:
    month = read_month()
    failed = [len([each for each in flights if each.refundable]) for flights in month.values()]
    assert sum(map(len, month.values())) == 27_004
    assert len(month) == 460
    assert sum(failed) == 730
    assert sum(count > 0 for count in failed) == 183


def test_the_auditor_comes_to_the_same_sums_by_its_own_way() -> None:
    priced = {
        day.name: {refund_for(day, each).id: price(each) for each in flights if each.refundable}
        for day, flights in read_month().items()
    }
    assert owed() == {run: refunds for run, refunds in priced.items() if refunds}


def test_a_refund_id_names_one_flight_of_the_month() -> None:
    ids = [refund_for(day, each).id for day, flights in read_month().items() for each in flights]
    assert len(set(ids)) == len(ids)


def test_the_bank_refuses_only_runs_that_ask_it_for_money() -> None:
    assert len(set(FROZEN)) == 6
    assert set(FROZEN) <= owed().keys()


@pytest.mark.parametrize(
    ("one", "refundable"),
    [
        (flight(delay_min=179), False),
        (flight(delay_min=180), True),
        (flight(delay_min=None), False),  # diverted: it flew, and nobody knows how late it came
        (flight(canceled=True, delay_min=None), True),
        (flight(delay_min=-20), False),
    ],
)
def test_what_is_refunded(one: Flight, refundable: bool) -> None:
    assert one.refundable is refundable


@pytest.mark.parametrize(
    ("miles", "cents"),
    [
        (1, 12_500),
        (500, 12_500),
        (501, 25_000),
        (1_500, 25_000),
        (1_501, 40_000),
        (2_500, 40_000),
        (2_501, 60_000),
        (4_983, 60_000),
    ],
)
def test_prices_by_distance(miles: int, cents: int) -> None:
    assert price(flight(miles=miles)) == cents


def test_names_for_reports() -> None:
    assert airline_names()["UA"] == "United Air Lines Inc."
    assert airport_names()["JFK"] == "John F Kennedy Intl"
    assert CarrierDay("UA", date(2013, 1, 5)).name == "UA-2013-01-05"
