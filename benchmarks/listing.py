"""`list`: pages and counts of a million runs, of which four of five have ended; before that `check` on all, alive."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg
from msgspec.structs import replace

from benchmarks.checking import past, pasts, resting
from benchmarks.measurement import Measurement, percentile
from benchmarks.million import DIGEST, SPREAD_US, Crowd, bound, fill, pipeline_id
from benchmarks.process import rss_mb
from perdure import App, Client
from perdure.cli.commands.listing import FEW
from perdure.core.ids import encode_run_id
from perdure.ports.store import NewRun, RunFilter
from perdure.runtime.listing import Filters
from perdure.runtime.system import RealSystem
from perdure.storage.postgres.place import Place
from perdure.storage.sqlite.rows import INSERT_LEDGER, INSERT_RUN, new_run_values

PAGES = 20
LEDGERS = 174
ANNOTATED_EVERY = 97

_HISTORY = """
    UPDATE run SET status = CASE WHEN n % 211 = 0 THEN 'failed' ELSE 'succeeded' END, ended_us = submitted_us + 3000000,
        due_us = NULL, reason = '', step = CASE WHEN n % 211 = 0 THEN 'step-03/v1' ELSE '' END,
        signature = {nothing}
    WHERE n % 5 <> 0
"""
_MESSAGES = "UPDATE run SET due_us = NULL, reason = 'waits for message ''approval''' WHERE n % 5000 = 0"


async def listing(url: str, *, runs: int) -> list[Measurement]:
    """Fill, check, make history of four of five runs, and list."""
    sqlite = url.startswith("sqlite:")
    began = time.perf_counter()
    if sqlite:
        await _fill_sqlite(url, runs)
    else:
        await fill(url, Crowd(runs, ledgers=LEDGERS, annotated_every=ANNOTATED_EVERY))
    filled_s = time.perf_counter() - began
    app = App(*bound(), store=url)
    found: list[Measurement] = []
    async with app.client() as client:
        edited = [each.pipeline for each in bound(edited=True)]
        for what, ask in (("check of all, alive", lambda: client.check(edited)), ("ledgers", client.store.ledgers)):
            found.append(await _timed(url, runs, what, ask, 3, fill_s=filled_s))
    await asyncio.to_thread(_history_sqlite if sqlite else _history_postgres, url)
    async with app.client() as client:
        for what, where in _filters(await _some(client)).items():
            found.append(await _pages(client, url, runs, what, where))
        for what, counts in (
            ("count, capped", client.counts),
            ("count below a page", lambda: client.count(RunFilter(), exact=False, cap=FEW)),
            ("count of a pipeline, capped", lambda: client.counts(pipeline=pipeline_id(3))),
            ("count of a tenant, capped", lambda: client.counts(tenant="tenant-00007")),
            ("count, exact", lambda: client.counts(exact=True)),
            ("check", lambda: client.check(edited)),
        ):
            found.append(await _timed(url, runs, what, counts, 5))
    return found


async def _some(client: Client) -> str:
    """A run in the middle of all."""
    page = await client.list(submitted_before=datetime.now(UTC) - timedelta(microseconds=SPREAD_US / 2), limit=1)
    return page[0].run_id


def _filters(run_id: str) -> dict[str, Filters]:
    middle = datetime.now(UTC) - timedelta(microseconds=SPREAD_US / 2)
    day = timedelta(days=1)
    return {
        "all": {},
        "pipeline": {"pipeline": pipeline_id(3)},
        "status, rare": {"status": "held"},
        "status, common": {"status": "succeeded"},
        "two statuses": {"status": ("failed", "held")},
        "pipeline and status": {"pipeline": pipeline_id(3), "status": "failed"},
        "tenant": {"tenant": "tenant-00007"},
        "tenant and status": {"tenant": "tenant-00007", "status": "failed"},
        "tenant, pipeline and status": {"tenant": "tenant-00007", "pipeline": pipeline_id(3), "status": "succeeded"},
        "resource": {"resource": run_id},
        "annotation": {"annotations": {"customer": "c5"}},
        "annotation and status": {"annotations": {"customer": "c5"}, "status": "failed"},
        "submitted on a day": {"submitted_after": middle, "submitted_before": middle + day},
        "ended on a day": {"ended_after": middle, "ended_before": middle + day},
        "ended on a day, pipeline": {"ended_after": middle, "ended_before": middle + day, "pipeline": pipeline_id(3)},
        "waiting, rare": {"waiting": "message"},
        "waiting, common": {"waiting": "retry"},
        "step": {"step": "step-03/v1"},
        "step and status": {"step": "step-03/v1", "status": "failed"},
        "worker": {"worker": "w0123456789abcde"},
    }


async def _pages(client: Client, url: str, runs: int, what: str, where: Filters) -> Measurement:
    """The first pages of 50, one after the other, and from the first again where there are no more."""
    took: list[float] = []
    rows = 0
    after: str | None = None
    for _ in range(PAGES):
        began = time.perf_counter()
        page = await client.list(limit=50, after=after, **where)
        took.append((time.perf_counter() - began) * 1e3)
        rows += len(page)
        after = page.next
    return _measured(url, runs, f"list: {what}", took, rows=rows)


async def _timed(
    url: str, runs: int, what: str, ask: Callable[[], Awaitable[object]], times: int, **extra: float
) -> Measurement:
    took: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        await ask()
        took.append((time.perf_counter() - began) * 1e3)
    return _measured(url, runs, what, took, **extra)


def _measured(url: str, runs: int, what: str, took: list[float], **extra: float) -> Measurement:
    return Measurement(
        workload="list",
        store=url.partition(":")[0],
        runs=runs,
        p50_ms=percentile(took, 0.5),
        p99_ms=percentile(took, 0.99),
        rss_mb=rss_mb(),
        extra={"what": what, "first_ms": took[0], "least_ms": min(took), **extra},
    )


def _history_postgres(url: str) -> None:
    place = Place.of(url)
    with psycopg.Connection[tuple[int]].connect(place.conninfo, autocommit=True) as con:
        con.execute(f'SET search_path = "{place.schema}"'.encode())
        con.execute("SET session_replication_role = replica")  # nobody waits for any of these
        con.execute("SET synchronous_commit = off")
        con.execute(_HISTORY.format(nothing="''").encode())
        con.execute(_MESSAGES.encode())
        con.execute("VACUUM FULL ANALYZE run")
        con.execute("VACUUM ANALYZE run")


def _history_sqlite(url: str) -> None:
    with sqlite3.connect(_path(url)) as con:
        con.execute(_HISTORY.format(nothing="x''"))
        con.execute(_MESSAGES)
    con.close()


def _path(url: str) -> str:
    return url.partition("?")[0].removeprefix("sqlite:///")


async def _fill_sqlite(url: str, runs: int) -> None:
    """As `fill`, index rows alone: neither lists nor `check` look at anything else."""
    async with App(*bound(), store=url).client() as client:
        await client.deploy()
    await asyncio.to_thread(_insert, url, runs)


def _insert(url: str, runs: int) -> None:
    with sqlite3.connect(_path(url)) as con:
        rows, ledgers = _rows(runs)
        con.executemany(INSERT_LEDGER, ledgers)
        con.executemany(INSERT_RUN, rows)
    con.close()


def _rows(runs: int) -> tuple[Iterator[tuple[str | bytes | int | None, ...]], list[tuple[bytes, str]]]:
    system = RealSystem()
    now_us = system.now_us()
    states = [
        append.index
        for append in (
            resting(system, past(stop, skipped, now_us), now_us) for stop, skipped in itertools.islice(pasts(), LEDGERS)
        )
        if append.index is not None
    ]
    begin_us = now_us - SPREAD_US

    def rows() -> Iterator[tuple[str | bytes | int | None, ...]]:
        for number in range(runs):
            at_us = begin_us + number * SPREAD_US // runs
            run_id = encode_run_id(at_us, number)
            state = states[number // 10 % len(states)]
            if number % 997 == 996:
                state = replace(state, status="held", due_us=None)
            labels = (("customer", f"c{number % 997}"),) if number % ANNOTATED_EVERY == 0 else ()
            tenant = f"tenant-{number // 10 % 1_000:05}"
            new = NewRun(
                *(run_id, tenant, pipeline_id(number % 10), run_id, None, False, bytes.fromhex(DIGEST), at_us),
                annotations=labels,
            )
            yield new_run_values(new, state, at_us, b"")

    return rows(), [(state.signature, state.ledger.decode()) for state in states]
