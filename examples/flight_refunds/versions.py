"""The deployments of the pipeline, side by side: read from one to the next to see what each edit is.

While the demo runs, the worker is restarted with the next one, and every run that is under way goes on under it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from examples.flight_refunds.bank_client import BankRefused
from examples.flight_refunds.flights import CarrierDay
from examples.flight_refunds.pipeline import (
    Deps,
    Inv,
    find_failed_flights,
    fraud_screen,
    load_day,
    pay_refunds,
    pay_refunds_v2,
    price_refunds,
    reserve_budget,
    write_report,
    write_report_of_either,
    write_report_v2_only,
)
from examples.flight_refunds.stores import Report
from perdure import AnyStep, Pipeline, Retry, Step, retired

PIPELINE = "refunds"


def version(*steps: AnyStep[CarrierDay, Deps], output: Callable[[Inv], Report]) -> Pipeline[CarrierDay, Deps, Report]:
    """What is the same in all of them."""
    return Pipeline(
        id=PIPELINE,
        input=CarrierDay,
        deps=Deps,
        resource=lambda day: day.name,
        slot="once",
        retry=Retry(never=(BankRefused,)),
        steps=steps,
        output=output,
    )


def state_of(step: Step[CarrierDay, Deps, Report]) -> Callable[[Inv], Report]:
    """An output function: the report."""

    def output(inv: Inv) -> Report:
        return inv[step]

    return output


V1 = version(
    load_day,
    find_failed_flights,
    price_refunds,
    reserve_budget,
    pay_refunds,
    write_report,
    output=state_of(write_report),
)

# A step is inserted.
V2 = version(
    load_day,
    find_failed_flights,
    price_refunds,
    reserve_budget,
    fraud_screen,
    pay_refunds,
    write_report,
    output=state_of(write_report),
)

# The payment gets a second version, and the first one is thrown out: runs that have begun it could never finish it.
# This one is checked, refused, and never deployed.
CARELESS = version(
    load_day,
    find_failed_flights,
    price_refunds,
    reserve_budget,
    fraud_screen,
    pay_refunds_v2,
    write_report_v2_only,
    output=state_of(write_report_v2_only),
)

# The same, done well: the first version stays, retired, *behind* the second. Who has begun it finishes it and is then
# past the second; who has not takes the second. The report takes what it finds.
V3 = version(
    load_day,
    find_failed_flights,
    price_refunds,
    reserve_budget,
    fraud_screen,
    pay_refunds_v2,
    retired(pay_refunds),
    write_report_of_either,
    output=state_of(write_report_of_either),
)

# A step is moved: screening needs no budget, so it comes first.
V4 = version(
    load_day,
    find_failed_flights,
    price_refunds,
    fraud_screen,
    reserve_budget,
    pay_refunds_v2,
    retired(pay_refunds),
    write_report_of_either,
    output=state_of(write_report_of_either),
)

VERSIONS = {"v1": V1, "v2": V2, "v3": V3, "v4": V4}
"""What is deployed, in this order."""


@dataclass(frozen=True)
class Edit:
    """One step from a version to the next.

    Attributes:
        name: the version it leads to.
        what: what it does, for people.
        step: the step that is inserted or moved, or takes the place of another.
        replaces: that other.
        moves: the step stood in the version before, elsewhere.
        share: it is deployed when this share of the month's runs has ended.
    """

    name: str
    what: str
    step: AnyStep[CarrierDay, Deps]
    replaces: AnyStep[CarrierDay, Deps] | None
    share: float
    moves: bool = False


EDITS = (
    Edit("v2", "fraud-screen/v1 was inserted", fraud_screen, None, 0.25),
    Edit("v3", "pay-refunds/v1 was replaced by v2", pay_refunds_v2, pay_refunds, 0.5),
    Edit("v4", "fraud-screen/v1 was moved ahead", fraud_screen, None, 0.75, moves=True),
)
