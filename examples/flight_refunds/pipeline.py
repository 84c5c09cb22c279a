"""The pipeline `refunds`: what one carrier owes for one day, from the flights to the money. Start reading here.

    load-day ─> find-failed-flights ─> price-refunds ─┬─> reserve-budget ─> pay-refunds ─┬─> write-report
                                                      └────── nothing owed: skipped ─────┘

A step is a function from the states of earlier steps to its own state. Any line below may be cut short by an exception
or by `kill -9`; the step is then called again, with the same `inv.idempotency_key`, by which the bank knows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from examples.flight_refunds.bank_client import BankClient, BankRefused
from examples.flight_refunds.flights import CarrierDay, Flight
from examples.flight_refunds.pricing import Refund, refund_for
from examples.flight_refunds.stores import Archive, Report, Reports
from perdure import Fail, Invocation, Pipeline, Retry, optional, step


@dataclass(frozen=True)
class Deps:
    """What the steps work with; the worker opens it once (`app.py`)."""

    airlines: Mapping[str, str]
    archive: Archive
    bank: BankClient
    reports: Reports


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


@step("pay-refunds/v1", needs=(price_refunds, optional(reserve_budget)), when=anything_owed)
def pay_refunds(inv: Inv) -> int:
    """Pays the refunds of the day, all of them or none, and asks as often as it takes to be sure.

    An exception is tried again; `Fail` is the last word: the run ends as failed and its budget is released.
    """
    owed, hold = inv[price_refunds], inv.get(reserve_budget)
    if hold is None:
        raise Fail("there is no budget to pay from", reason="no-budget")
    try:
        return inv.deps.bank.pay(inv.idempotency_key, inv.input.name, hold.id, owed)
    except BankRefused as refusal:
        raise Fail(str(refusal), reason="bank-refused", kind="user") from refusal


@step("write-report/v1", needs=(load_day, price_refunds, optional(pay_refunds)))
def write_report(inv: Inv) -> Report:
    """Writes the report of the day. The same file with the same content each time, so once more does no harm."""
    report = Report(
        run=inv.input.name,
        airline=inv.deps.airlines.get(inv.input.carrier, inv.input.carrier),
        flights=len(inv[load_day]),
        refunds=inv[price_refunds],
        paid_cents=inv.get(pay_refunds, 0),
    )
    inv.deps.reports.write(report)
    return report


def report_of(inv: Inv) -> Report:
    """The output of a run."""
    return inv[write_report]


refunds: Pipeline[CarrierDay, Deps, Report] = Pipeline(
    id="refunds",
    input=CarrierDay,
    deps=Deps,
    resource=lambda day: day.name,
    slot="once",
    retry=Retry(never=(BankRefused,)),
    steps=(load_day, find_failed_flights, price_refunds, reserve_budget, pay_refunds, write_report),
    output=report_of,
)
