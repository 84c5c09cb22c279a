"""Ties the versions of the pipeline to a store and to their neighbours.

Nothing is opened when this is imported, so the command line can point at `examples.flight_refunds.app:v3`, or any other
version, while the demo runs; `FLIGHT_REFUNDS_DIR` names its directory if it is not the default one.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from examples.flight_refunds.bank_client import BankClient
from examples.flight_refunds.flights import CarrierDay, airline_names, read_month
from examples.flight_refunds.pipeline import Deps
from examples.flight_refunds.settings import Settings
from examples.flight_refunds.stores import Archive, Report, Reports
from examples.flight_refunds.versions import CARELESS, VERSIONS
from perdure import App, Pipeline

DEFAULT_DIRECTORY = Path("flight-refunds-demo")


def app_for(settings: Settings, version: Pipeline[CarrierDay, Deps, Report]) -> App:
    """The application of one demo: `.engine()` in its worker, `.client()` elsewhere."""
    pace = settings.pace

    @asynccontextmanager
    async def deps() -> AsyncGenerator[Deps]:
        settings.reports.mkdir(exist_ok=True)
        yield Deps(
            airlines=airline_names(),
            archive=Archive(read_month(), pace.archive_s),
            bank=BankClient(settings.bank_address, pace.bank_timeout_s),
            reports=Reports(settings.reports, pace.report_s),
            settle_s=pace.settle_s,
        )

    return App(version.bind(deps), store=settings.store, concurrency=pace.concurrency)


_here = Settings(Path(os.environ.get("FLIGHT_REFUNDS_DIR", DEFAULT_DIRECTORY)))
v1, v2, v3, v4 = (app_for(_here, version) for version in VERSIONS.values())
careless = app_for(_here, CARELESS)
app = v4
