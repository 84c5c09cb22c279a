"""The steps of the pipeline `refunds`: what one carrier owes for one day, from the flights to the money. Start here.

    load-day ─> find-failed-flights ─> price-refunds ─┬─> reserve-budget ─> pay-refunds ─┬─> write-report
                                                      └────── nothing owed: skipped ─────┘

A step is a function from the states of earlier steps to its own state. Any line below may be cut short by an exception
or by `kill -9`; the step is then called again, with the same `inv.idempotency_key`, by which the bank knows it.

Which steps make up the pipeline, and in which order, is in `versions.py`: that changes while the demo runs. The first
six are there from the beginning; the last four come with an edit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from examples.flight_refunds.bank_client import BankClient, BankRefused, Payment
from examples.flight_refunds.flights import CarrierDay, Flight
from examples.flight_refunds.pricing import Refund, refund_for
from examples.flight_refunds.stores import Archive, Report, Reports
from perdure import Fail, Invocation, Later, optional, poll, step


@dataclass(frozen=True)
class Deps:
    """What the steps work with; the worker opens it once (`app.py`)."""

    airlines: Mapping[str, str]
    archive: Archive
    bank: BankClient
    reports: Reports
    settle_s: float


@dataclass(frozen=True)
class Hold:
    """Money the bank has put aside for a run."""

    id: str
    cents: int


Inv = Invocation[CarrierDay, Deps]


@step("load-day/v1")
async def load_day(inv: Inv) -> list[Flight]:
    """All departures of the carrier on that day."""
    return await inv.deps.archive.flights(inv.input)


@step("find-failed-flights/v1", needs=(load_day,))
async def find_failed_flights(inv: Inv) -> list[Flight]:
    """Those that were canceled or came three hours late or more."""
    return [flight for flight in inv[load_day] if flight.refundable]


@step("price-refunds/v1", needs=(find_failed_flights,))
async def price_refunds(inv: Inv) -> list[Refund]:
    """One refund for each of them, priced by distance."""
    return [refund_for(inv.input, flight) for flight in inv[find_failed_flights]]


def anything_owed(inv: Inv) -> bool:
    """On most days nothing is: those runs skip the steps about money."""
    return bool(inv[price_refunds])


def release_budget(inv: Inv, hold: Hold) -> None:
    """Undoes `reserve_budget` in a run that fails after it."""
    inv.deps.bank.release(inv.idempotency_key, inv.input.name, hold.id)


@step("reserve-budget/v1", needs=(price_refunds,), when=anything_owed, unwind=release_budget)
def reserve_budget(inv: Inv) -> Hold:
    """Puts the money aside. A plain `def`, since the bank client blocks: perdure runs it in a thread."""
    cents = sum(refund.cents for refund in inv[price_refunds])
    return Hold(inv.deps.bank.reserve(inv.idempotency_key, inv.input.name, cents), cents)


def pay(inv: Inv) -> Payment:
    """Pays the refunds of the day, all of them or none.

    An exception is tried again; `Fail` is the last word: the run ends as failed and its budget is released.
    """
    owed, hold = inv[price_refunds], inv.get(reserve_budget)
    if hold is None:
        raise Fail("there is no budget to pay from", reason="no-budget")
    try:
        return inv.deps.bank.pay(inv.idempotency_key, inv.input.name, hold.id, owed)
    except BankRefused as refusal:
        raise Fail(str(refusal), reason="bank-refused", kind="user") from refusal


@poll("pay-refunds/v1", needs=(price_refunds, optional(reserve_budget)), when=anything_owed)
def pay_refunds(inv: Inv) -> int | Later:
    """Pays, and asks as often as it takes until the payment has settled. Its state is the sum.

    A run that waits here has moved its money and is not done with the step.
    """
    payment = pay(inv)
    return payment.cents if payment.settled else Later(inv.deps.settle_s)


def report(inv: Inv, paid_cents: int) -> Report:
    """Writes the report of the day. The same file with the same content each time, so once more does no harm."""
    written = Report(
        run=inv.input.name,
        airline=inv.deps.airlines.get(inv.input.carrier, inv.input.carrier),
        flights=len(inv[load_day]),
        refunds=inv[price_refunds],
        paid_cents=paid_cents,
    )
    inv.deps.reports.write(written)
    return written


@step("write-report/v1", needs=(load_day, price_refunds, optional(pay_refunds)))
def write_report(inv: Inv) -> Report:
    """The report; nothing was paid where the payment was skipped."""
    return report(inv, inv.get(pay_refunds, 0))


# --- what the edits bring


@step("fraud-screen/v1", needs=(price_refunds,))
async def fraud_screen(inv: Inv) -> int:
    """Stops a day on whose list a flight stands twice. Its state is how many refunds it looked at."""
    ids = [refund.id for refund in inv[price_refunds]]
    if len(ids) != len(set(ids)):
        raise Fail("a flight stands twice on the list", reason="suspicious", kind="user")
    return len(ids)


@dataclass(frozen=True)
class Receipt:
    """What the second version of the payment keeps: the sum, and the key under which the bank knows it."""

    key: str
    cents: int


@poll("pay-refunds/v2", needs=(price_refunds, optional(reserve_budget)), when=anything_owed)
def pay_refunds_v2(inv: Inv) -> Receipt | Later:
    """As the first version, but with another state: an incompatible change, so it is another step with another key."""
    payment = pay(inv)
    return Receipt(inv.idempotency_key, payment.cents) if payment.settled else Later(inv.deps.settle_s)


def paid_by_v2(inv: Inv) -> int:
    """The sum on the receipt; 0 without one."""
    receipt = inv.get(pay_refunds_v2)
    return 0 if receipt is None else receipt.cents


@step("write-report/v1", needs=(load_day, price_refunds, optional(pay_refunds_v2)))
def write_report_v2_only(inv: Inv) -> Report:
    """The report of somebody who forgets that runs are under way."""
    return report(inv, paid_by_v2(inv))


@step("write-report/v1", needs=(load_day, price_refunds, optional(pay_refunds_v2), optional(pay_refunds)))
def write_report_of_either(inv: Inv) -> Report:
    """The report of a run that has paid in the one way or in the other."""
    return report(inv, paid_by_v2(inv) or inv.get(pay_refunds, 0))
