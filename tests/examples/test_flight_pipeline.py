"""The steps of the main example, called without an engine, and the counting of facts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

from examples.flight_refunds.bank_client import BankClient, BankRefused, BankUnreachable, Payment
from examples.flight_refunds.flights import CarrierDay, Flight, airline_names
from examples.flight_refunds.pipeline import (
    Deps,
    Hold,
    Receipt,
    anything_owed,
    find_failed_flights,
    fraud_screen,
    load_day,
    pay_refunds,
    pay_refunds_v2,
    price_refunds,
    release_budget,
    reserve_budget,
    write_report,
    write_report_of_either,
)
from examples.flight_refunds.pricing import Refund
from examples.flight_refunds.stores import Archive, Reports
from examples.flight_refunds.summary import Tally, tally
from examples.flight_refunds.versions import V1, V4
from perdure import Fail, Later
from perdure.core.facts import (
    NULL,
    Fact,
    Failure,
    OperationRetryScheduled,
    OperationSucceeded,
    RunFailed,
    RunSucceeded,
    SegmentAttemptStarted,
)
from perdure.define.step import Given

DAY = CarrierDay("UA", date(2013, 1, 5))
ON_TIME = Flight(1, "EWR", "ORD", 700, canceled=False, arrival_delay_min=3)
CANCELED = Flight(2, "EWR", "ORD", 700, canceled=True, arrival_delay_min=None)
OWED = [Refund("UA-2013-01-05/2/EWR", 25_000)]
HOLD = Hold("hold-1", 25_000)


class RecordingBank(BankClient):
    """Notes the calls; pays unless it has something else to say."""

    def __init__(self, says: Exception | None = None, *, settled: bool = True) -> None:
        super().__init__(Path("nowhere"), 0.1)
        self.settled = settled
        self.calls: list[tuple[str, str, str, object]] = []
        self._says = says

    def reserve(self, key: str, run: str, cents: int) -> str:
        self.calls.append(("reserve", key, run, cents))
        return "hold-1"

    def pay(self, key: str, run: str, hold: str, refunds: Sequence[Refund]) -> Payment:
        self.calls.append(("pay", key, run, list(refunds)))
        if self._says:
            raise self._says
        return Payment(sum(refund.cents for refund in refunds), self.settled)

    def release(self, key: str, run: str, hold: str) -> None:
        self.calls.append(("release", key, run, hold))


def deps(folder: Path, bank: BankClient | None = None) -> Deps:
    month = {DAY: [ON_TIME, CANCELED]}
    return Deps(airline_names(), Archive(month, 0.0), bank or RecordingBank(), Reports(folder, 0.0), 2.0)


async def test_from_flights_to_refunds(tmp_path: Path) -> None:
    day = await load_day(V1.fake(input=DAY, deps=deps(tmp_path)))
    assert day == [ON_TIME, CANCELED]
    failed = await find_failed_flights(V1.fake(input=DAY, deps=deps(tmp_path), states=(load_day.given(day),)))
    assert failed == [CANCELED]
    given = (find_failed_flights.given(failed),)
    assert await price_refunds(V1.fake(input=DAY, deps=deps(tmp_path), states=given)) == OWED


@pytest.mark.parametrize(("priced", "owed"), [(OWED, True), ([], False)])
def test_money_moves_only_when_it_is_owed(priced: list[Refund], owed: bool, tmp_path: Path) -> None:
    inv = V1.fake(input=DAY, deps=deps(tmp_path), states=(price_refunds.given(priced),))
    assert anything_owed(inv) is owed


def test_every_call_of_the_bank_carries_the_key_of_its_operation(tmp_path: Path) -> None:
    """M-3: equal for all attempts of one operation, distinct per phase."""
    bank = RecordingBank()
    known = deps(tmp_path, bank)
    states = (price_refunds.given(OWED), reserve_budget.given(HOLD))
    inv = V1.fake(input=DAY, deps=known, states=states, run_id="run")
    assert reserve_budget(inv) == HOLD
    assert pay_refunds(inv) == 25_000
    assert pay_refunds(inv) == 25_000
    release_budget(V1.fake_unwind(reserve_budget, input=DAY, deps=known, states=states, run_id="run"), HOLD)
    assert bank.calls == [
        ("reserve", "run/do/reserve-budget/v1", DAY.name, 25_000),
        ("pay", "run/do/pay-refunds/v1", DAY.name, OWED),
        ("pay", "run/do/pay-refunds/v1", DAY.name, OWED),
        ("release", "run/undo/reserve-budget/v1", DAY.name, "hold-1"),
    ]


def test_a_refusal_ends_the_run_and_silence_does_not(tmp_path: Path) -> None:
    states = (price_refunds.given(OWED), reserve_budget.given(HOLD))
    refused = deps(tmp_path, RecordingBank(BankRefused("the account is frozen")))
    with pytest.raises(Fail, match="frozen") as failure:
        pay_refunds(V1.fake(input=DAY, deps=refused, states=states))
    assert (failure.value.reason, failure.value.kind) == ("bank-refused", "user")
    silent = deps(tmp_path, RecordingBank(BankUnreachable("no answer")))
    with pytest.raises(BankUnreachable):
        pay_refunds(V1.fake(input=DAY, deps=silent, states=states))


def test_a_payment_that_has_not_settled_is_asked_for_again(tmp_path: Path) -> None:
    """B-15: the money has moved, and the step is not over."""
    bank = RecordingBank(settled=False)
    states = (price_refunds.given(OWED), reserve_budget.given(HOLD))
    inv = V1.fake(input=DAY, deps=deps(tmp_path, bank), states=states, run_id="run")
    assert pay_refunds(inv) == Later(2.0)
    bank.settled = True
    assert pay_refunds(inv) == 25_000
    assert len({key for _, key, _, _ in bank.calls}) == 1


def test_the_second_version_of_the_payment_keeps_a_receipt(tmp_path: Path) -> None:
    bank = RecordingBank(settled=False)
    states = (price_refunds.given(OWED), reserve_budget.given(HOLD))
    inv = V4.fake(input=DAY, deps=deps(tmp_path, bank), states=states, run_id="run")
    assert pay_refunds_v2(inv) == Later(2.0)
    bank.settled = True
    assert pay_refunds_v2(inv) == Receipt("run/do/pay-refunds/v2", 25_000)


@pytest.mark.parametrize(
    ("paid", "cents"),
    [((pay_refunds.given(7),), 7), ((pay_refunds_v2.given(Receipt("key", 8)),), 8), ((), 0)],
)
def test_the_report_takes_either_payment(paid: tuple[Given[CarrierDay, Deps], ...], cents: int, tmp_path: Path) -> None:
    """M-14"""
    states = (load_day.given([CANCELED]), price_refunds.given(OWED), *paid)
    inv = V4.fake(input=DAY, deps=deps(tmp_path), states=states)
    assert write_report_of_either(inv).paid_cents == cents


async def test_the_screening_stops_a_day_with_a_flight_twice(tmp_path: Path) -> None:
    for refunds, stopped in ((OWED, False), (OWED + OWED, True)):
        inv = V4.fake(input=DAY, deps=deps(tmp_path), states=(price_refunds.given(refunds),))
        if stopped:
            with pytest.raises(Fail, match="twice"):
                await fraud_screen(inv)
        else:
            assert await fraud_screen(inv) == 1


def test_the_report_of_a_day_without_refunds(tmp_path: Path) -> None:
    states = (load_day.given([ON_TIME]), price_refunds.given([]))
    report = write_report(V1.fake(input=DAY, deps=deps(tmp_path), states=states))
    assert (report.airline, report.flights, report.refunds, report.paid_cents) == ("United Air Lines Inc.", 1, [], 0)
    assert [path.name for path in tmp_path.iterdir()] == ["UA-2013-01-05.json"]
    assert json.loads((tmp_path / "UA-2013-01-05.json").read_text())["run"] == DAY.name


def test_tally() -> None:
    clean: list[Fact] = [SegmentAttemptStarted(1, "a", 1), OperationSucceeded("load-day/v1", 1), RunSucceeded()]
    resumed: list[Fact] = [
        SegmentAttemptStarted(1, "a", 1),
        SegmentAttemptStarted(2, "b", 1),
        OperationRetryScheduled("pay", 1, "lost", 0),
        OperationRetryScheduled("pay", 2, "error", 0),
        OperationRetryScheduled("pay", 3, "timeout", 0),
        OperationSucceeded("pay", 4, NULL),
        RunSucceeded(),
    ]
    unwound: list[Fact] = [
        SegmentAttemptStarted(1, "a", 1),
        OperationSucceeded("reserve", 1),
        OperationSucceeded("reserve", 1, phase="unwind"),
        RunFailed(Failure("pay", "frozen")),
    ]
    assert tally([clean, resumed, unwound]) == Tally(runs=3, steps=4, resumed=1, retried=2, unwound=1)
