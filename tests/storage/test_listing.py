"""A page of a list costs its own size: which indexes SQLite and PostgreSQL take for every filter [R-7]."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

import pytest

from perdure.ports.listing import WAITS_FOR, ListPlace, RunFilter
from perdure.storage import open_store
from perdure.storage.listing import Looked, Path, Search, Stream, Window, path_of
from perdure.storage.postgres import listing as postgres_listing
from perdure.storage.postgres.store import PostgresStore
from perdure.storage.sqlite import listing as sqlite_listing
from perdure.storage.sqlite.schema import SCHEMA
from tests.postgres import PostgresServer

RUNS = 10_000
FILTERS = {
    "all": RunFilter(),
    "pipeline": RunFilter(pipeline="p3"),
    "status": RunFilter(statuses=("held",)),
    "several statuses": RunFilter(statuses=("held", "failed")),
    "pipeline and status": RunFilter(pipeline="p3", statuses=("ready",)),
    "tenant": RunFilter(tenant="t7"),
    "tenant and pipeline": RunFilter(tenant="t7", pipeline="p3"),
    "tenant and status": RunFilter(tenant="t7", statuses=("failed",)),
    "submitted": RunFilter(submitted_after_us=1_000, submitted_before_us=1_100),
    "submitted, of a pipeline": RunFilter(pipeline="p3", submitted_after_us=1_000),
    "ended": RunFilter(ended_after_us=1_000, ended_before_us=1_100),
    "ended, of a pipeline": RunFilter(ended_after_us=1_000, pipeline="p3"),
    "resource": RunFilter(resource="r17"),
    "resource and status": RunFilter(resource="r17", statuses=("failed",)),
    "annotation": RunFilter(annotations=(("team", "x"),)),
    "two annotations": RunFilter(annotations=(("team", "x"), ("other", "y"))),
    "waiting": RunFilter(waiting=("message",)),
    "waiting for anything": RunFilter(waiting=WAITS_FOR),
    "waiting, of a pipeline": RunFilter(waiting=("message",), pipeline="p3"),
    "step": RunFilter(step="s1"),
    "worker": RunFilter(worker="w1"),
}


class Plans:
    """A SQLite store of many runs, and the plans of what is asked of it."""

    def __init__(self, path: FilePath) -> None:
        self.con = sqlite3.connect(path)
        for statement in SCHEMA:
            self.con.execute(statement)
        self.con.executemany(
            "INSERT INTO run (id, tenant, pipeline, resource, slot_once, slot_held, submitted_us, deadline_us, status, "
            "token, generation, build, reason, canceling, step, version, tail_hash, signature, ended_us, annotations) "
            "VALUES (?, ?, ?, ?, 0, 0, ?, 0, ?, 1, 1, '', ?, 0, ?, 0, x'', x'', ?, ?)",
            (self.row(n) for n in range(RUNS)),
        )

    @staticmethod
    def row(n: int) -> tuple[object, ...]:
        ended = n % 10 != 0
        status = ("succeeded" if n % 21 else "failed") if ended else ("ready" if n % 40 else "held")
        reason = "" if ended else "waits for message 'a'" if n % 100 == 0 else "sleeping"
        step = "" if ended else f"s{n % 30 // 10}"
        labels = '{"team":"x","other":"y"}' if n % 500 == 0 else None
        return (
            *(f"run-{n:06}", f"t{n % 50}", f"p{n % 7}", f"r{n // 3}", n, status, reason, step),
            *(n + 5 if ended else None, labels),
        )

    def of(self, ask: Callable[[sqlite3.Connection], None]) -> list[str]:
        """The steps of the plans of all statements of a question."""
        asked: list[str] = []
        self.con.set_trace_callback(asked.append)
        ask(self.con)
        self.con.set_trace_callback(None)
        found: list[str] = []
        for statement in asked:
            found += [str(row[3]) for row in self.con.execute(f"EXPLAIN QUERY PLAN {statement}")]
        return found


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plans]:
    found = Plans(tmp_path_factory.mktemp("plans") / "store.db")
    yield found
    found.con.close()


def scans(steps: list[str]) -> list[str]:
    """Steps that walk through a table; `w` is a window, `value` of a list of numbers."""
    tables = ("SCAN run", "SCAN r ", "SCAN a ", "SCAN annotation", "SCAN journal")
    return [step for step in steps if f"{step} ".startswith(tables) and " USING " not in step]


@pytest.mark.parametrize("where", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest", "oldest"])
def test_sqlite_finds_a_page_by_an_index(plans: Plans, where: RunFilter, oldest_first: bool) -> None:
    """R-7"""

    def pages(con: sqlite3.Connection) -> None:
        for after in (None, ListPlace(1_050, 1_051)):
            sqlite_listing.list_runs(con, where, after, oldest_first, 20)

    def counts(con: sqlite3.Connection) -> None:
        sqlite_listing.count_runs(con, where, 100)

    assert scans(plans.of(pages)) == []
    assert scans(plans.of(counts)) == []


def test_sqlite_steps_of_a_page_do_not_grow_with_history(plans: Plans) -> None:
    """R-7: the machine of SQLite takes some thousand steps for a page, the first as one in the middle of all runs; a
    walk through the table alone would be ten times as many."""
    for name in ("all", "pipeline and status", "tenant", "submitted", "ended", "resource", "annotation", "step"):
        for after in (None, ListPlace(RUNS // 2, RUNS // 2)):
            steps = 0

            def count() -> None:
                nonlocal steps
                steps += 100

            plans.con.set_progress_handler(count, 100)
            sqlite_listing.list_runs(plans.con, FILTERS[name], after, False, 20)
            plans.con.set_progress_handler(None, 0)
            assert steps < 60_000, name


def test_a_search_ends_whatever_was_found() -> None:
    """R-7: rows that do not fit widen the window, and after some thousands the page ends, with a place to go on at."""
    told = RunFilter(pipeline="p3")
    for path, expected in (
        (Path((Stream("x"),)), [21, 105, 525, 2625, 5000]),
        (Path((Stream("x"),), told=told), [1000, 5000]),  # the index tells
    ):
        search = Search(path, None, 20)
        sizes: list[int] = []
        at_us = 10**9
        while search.window is not None:
            sizes.append(search.window.size)
            at_us -= search.window.size
            search.take(Looked(search.window.size, ListPlace(at_us, at_us), []))
        assert sizes == expected
        assert search.numbers == []
        assert search.next == ListPlace(at_us, at_us)


def test_a_page_ends_with_its_last_run_though_more_were_found() -> None:
    """R-7: the next page begins behind what is shown, not behind what was looked at."""
    search = Search(Path((Stream("x"),)), None, 2)
    search.take(Looked(3, ListPlace(7, 7), [ListPlace(9, 9)]))
    assert search.window == Window(ListPlace(7, 7), 15)
    search.take(Looked(15, ListPlace(1, 1), [ListPlace(6, 6), ListPlace(5, 5), ListPlace(4, 4)]))
    assert search.numbers == [9, 6]
    assert search.next == ListPlace(6, 6)


async def test_postgres_finds_a_page_by_an_index(postgres: PostgresServer) -> None:
    """R-7"""
    url = postgres.url(schema="listing")
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    await store.open(owner=None)
    await store.close()
    postgres.sql(_fill("listing"))
    postgres.sql("VACUUM ANALYZE listing.run")
    postgres.sql("ANALYZE listing.annotation")
    for name, where in FILTERS.items():
        asked: list[tuple[str, tuple[str | int, ...]]] = []
        path = path_of(where, postgres_listing.DIALECT)
        for after in (None, ListPlace(1_050, 1_051)):
            asked.append(postgres_listing.window_query(where, path, Window(after, 21), False, 21))
        asked += [(text, values) for text, values, _ in postgres_listing.count_queries(where, path, 100)]
        plans = postgres.sql("".join(f"EXPLAIN {_inlined(text, values)};" for text, values in asked))
        assert "Seq Scan" not in plans, f"{name}\n{plans}"
        if name == "ended, of a pipeline":  # no row is looked up of which the index tells that it does not fit
            assert "Index Only Scan Backward using run_ended" in plans, plans
            assert re.search(r"One-Time Filter: w\w*\.told_", plans), plans
            assert plans.count("run_pkey") == 2, plans  # for the two pages, none for the count


def _inlined(text: str, values: tuple[str | int, ...]) -> str:
    for value in values:
        text = text.replace("%s", str(value) if isinstance(value, int) else f"'{value}'", 1)
    return text.replace("@", "listing.")


def _fill(schema: str) -> str:
    return f"""
        INSERT INTO {schema}.run (id, tenant, pipeline, resource, slot_once, slot_held, input_digest, submitted_us,
            deadline_us, status, token, generation, build, reason, canceling, step, version, tail_hash, signature,
            ended_us, annotations)
        SELECT 'run-' || n, 't' || n % 50, 'p' || n % 7, 'r' || n / 3, false, false, '', n, 0,
            CASE WHEN n % 10 = 0 THEN CASE WHEN n % 40 = 0 THEN 'held' ELSE 'ready' END
                 WHEN n % 21 = 0 THEN 'failed' ELSE 'succeeded' END, 1, 1, '',
            CASE WHEN n % 100 = 0 THEN 'waits for message' WHEN n % 10 = 0 THEN 'sleeping' ELSE '' END, false,
            CASE WHEN n % 10 = 0 THEN 's' || n % 30 / 10 ELSE '' END, 0, '', '',
            CASE WHEN n % 10 <> 0 THEN n + 5 END,
            CASE WHEN n % 500 = 0 THEN '{{"team":"x","other":"y"}}' WHEN n % 2 = 0 THEN '{{"team":"z","other":"z"}}' END
        FROM generate_series(1, {RUNS}) n
    """
