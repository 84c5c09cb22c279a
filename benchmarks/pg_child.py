"""What takes turns on a PostgreSQL server: an engine, the same appends without one, and bare inserts by the driver.

`python -m benchmarks.pg_child perdure|raw|bare URL STEPS`, started by `benchmarks.on_postgres`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import psycopg

from benchmarks.children import Part, serve
from benchmarks.limits import ROW, append_all, prebuilt
from benchmarks.pipelines import app_of, trivial
from benchmarks.process import run
from benchmarks.runs import Slice, measure_slice
from perdure.runtime.system import RealSystem
from perdure.storage import open_store
from perdure.storage.postgres.place import Place


async def _perdure(url: str, steps: int) -> None:
    pipeline = trivial(steps)
    async with app_of(pipeline, url).engine() as engine:

        async def measure(runs: int, concurrency: int) -> Part:
            return Part.of(await measure_slice(engine, pipeline, runs, concurrency), runs)

        await serve(measure)


async def _raw(url: str, steps: int) -> None:
    system, topology = RealSystem(), trivial(steps).topology
    store = open_store(url)
    await store.open(owner=system.worker_id())
    try:

        async def measure(runs: int, concurrency: int) -> Part:
            built = [prebuilt(system, topology) for _ in range(runs)]
            cpu_s = time.process_time()
            wall_s = await append_all(store, built, concurrency)
            return Part(runs, wall_s, time.process_time() - cpu_s, 0.0, 0.0)

        await serve(measure)
    finally:
        await store.close()


async def _bare(url: str) -> None:
    """Each run is one row in a transaction of its own, about as long as what a step writes."""
    place = Place.of(url)
    con = await psycopg.AsyncConnection[tuple[Any, ...]].connect(place.conninfo, autocommit=True, prepare_threshold=0)
    table = f'"{place.schema}".row'
    await con.execute(f'CREATE SCHEMA IF NOT EXISTS "{place.schema}"'.encode())
    columns = "n bigint PRIMARY KEY, run bigint NOT NULL, seq bigint NOT NULL, body text NOT NULL"
    await con.execute(f"CREATE TABLE {table} ({columns})".encode())
    insert = f"INSERT INTO {table} VALUES (%s, %s, %s, %s)".encode()
    number = 0

    async def measure(runs: int, concurrency: int) -> Part:
        nonlocal number
        if concurrency != 1:
            raise RuntimeError("bare inserts come one at a time")
        measured = Slice()
        cpu_s, began = time.process_time(), time.perf_counter()
        for _ in range(runs):
            number += 1
            started = time.perf_counter()
            await con.execute(insert, (number, 1, number, ROW))
            measured.latencies_ms.append((time.perf_counter() - started) * 1e3)
        measured.wall_s, measured.cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        return Part.of(measured, runs)

    await serve(measure)


def main() -> None:
    """See the module."""
    role, url, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "bare":
        run(_bare(url))
    else:
        run(_perdure(url, steps) if role == "perdure" else _raw(url, steps))


if __name__ == "__main__":
    main()
