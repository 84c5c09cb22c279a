"""The crowd of the benchmarks on PostgreSQL is what an engine would have left, and the workload `claim` runs."""

from __future__ import annotations

from benchmarks.checking import line
from benchmarks.claiming import claiming
from benchmarks.million import Crowd, bound, fill, pipeline_id
from perdure import App
from tests.postgres import PostgresServer


async def test_a_crowd_is_checked_and_verified_and_goes_on(postgres: PostgresServer) -> None:
    """Each run is found by `check` with its ledger, its journal is whole, and those that are due end in an engine."""
    url = postgres.url()
    due = Crowd(3, 2, only=1, due_in_us=-7_200_000_000, held_every=0)
    await fill(url, Crowd(40, 2, held_every=0, annotated_every=5), due)
    async with App(*bound(2), store=url).client() as client:
        report = await client.check([line(edited=True, pipeline=pipeline_id(0))])
        assert [(entry.runs, entry.ledgers) for entry in report.pipelines] == [(20, 20), (23, 20)]
        assert (await client.verify()).findings == ()
    async with App(*bound(2), store=url).engine() as engine:
        await engine.idle()
        ended = await engine.list(status="succeeded")
        assert [run.pipeline for run in ended] == [pipeline_id(1)] * 3


async def test_claim_measures_what_it_says(postgres: PostgresServer) -> None:
    """Every due run is claimed once, and one alone as often as it is due."""
    everything, alone, beside = await claiming(postgres.url(), runs=200, due=90, singles=2)
    assert everything.extra["claimed"] == 90
    assert alone.p50_ms
    assert beside.p50_ms
