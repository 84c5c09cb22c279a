"""Whose turn it is: runs that are due, and a worker's picks among them [R-1]."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from perdure.ports.store import Candidate, Serving, Shared, Tenancy, share, share_served
from perdure.storage.sqlite.holds import held, unless_held
from perdure.storage.sqlite.rows import SqlValue, one

LINES = ("due_us IS NOT NULL AND token > 0", "due_us IS NOT NULL AND token = 0")
"""Runs that were claimed before, and new ones; each has an index, by priority and due time."""
LEVELS = tuple(
    f"""
    WITH RECURSIVE level(p) AS (
        SELECT (SELECT max(priority) FROM run WHERE {line})
        UNION ALL SELECT (SELECT max(priority) FROM run WHERE {line} AND priority < p) FROM level WHERE p IS NOT NULL)
    SELECT p FROM level WHERE p IS NOT NULL
    """
    for line in LINES
)
"""The priorities that runs of a line have, each found by one step into its index."""
DUE = tuple(f"SELECT due_us, n, id FROM run WHERE {line} AND priority = ?" for line in LINES)
NEXT_DUE = tuple(
    levels.replace(
        "SELECT p FROM level",
        f"SELECT min((SELECT due_us FROM run WHERE {line} AND priority = p ORDER BY due_us LIMIT 1)) FROM level",
    )
    for line, levels in zip(LINES, LEVELS, strict=True)
)


def due(con: sqlite3.Connection, now_us: int, limit: int, turn: int) -> list[str]:
    """Unowned runs that are due; an owned one has no due time."""
    free, held = unless_held(con)
    begun, new = (
        [
            con.execute(
                f"{runs}{free} AND due_us <= ? ORDER BY due_us, n LIMIT ?", (level, *held, now_us, limit)
            ).fetchall()
            for (level,) in con.execute(levels).fetchall()
        ]
        for levels, runs in zip(LEVELS, DUE, strict=True)
    )
    return share(begun, new, limit, turn)


def next_due_us(con: sqlite3.Connection) -> int | None:
    """The earliest due time."""
    free, held = unless_held(con)
    found = [one(con, sql.replace(" ORDER BY", f"{free} ORDER BY"), held) for sql in NEXT_DUE]
    return min((int(row[0]) for row in found if row is not None and row[0] is not None), default=None)


# --- for who serves some pipelines; a file has one engine, so this may cost as much as there is due


def due_served(con: sqlite3.Connection, now_us: int, limit: int, turn: int, serving: Serving, last: Tenancy) -> Shared:
    """As `due`, in the order for a worker that serves some pipelines."""
    found = list(_candidates(con, now_us, serving))
    return share_served(found, found, serving, last, limit, turn)


def next_due_served_us(con: sqlite3.Connection, serving: Serving) -> int | None:
    """As `next_due_us`, of what is served."""
    served, values = _served(con, serving)
    found = [one(con, sql.replace(" ORDER BY", f"{served} ORDER BY"), values) for sql in NEXT_DUE]
    return min((int(row[0]) for row in found if row is not None and row[0] is not None), default=None)


def pick(
    con: sqlite3.Connection, worker: str, now_us: int, limit: int, turn: int, serving: Serving, last: Tenancy
) -> Shared:
    """As `due_served`, and makes them the worker's."""
    shared = due_served(con, now_us, limit, turn, serving, last)
    con.executemany(
        "UPDATE run SET worker = ?, due_us = NULL WHERE id = ?", [(worker, run_id) for run_id in shared.run_ids]
    )
    return shared


def unpick(con: sqlite3.Connection, worker: str, run_ids: Sequence[str], due_us: int) -> int:
    """Those that are still the worker's and were not claimed are due."""
    return sum(
        con.execute(
            "UPDATE run SET worker = NULL, due_us = ?, attention = 0 "
            "WHERE id = ? AND worker = ? AND status <> 'running'",
            (due_us, run_id, worker),
        ).rowcount
        for run_id in dict.fromkeys(run_ids)
    )


def _candidates(con: sqlite3.Connection, now_us: int, serving: Serving) -> Iterator[Candidate]:
    served, values = _served(con, serving)
    for begun, levels, line in zip((True, False), LEVELS, LINES, strict=True):
        for (level,) in con.execute(levels).fetchall():
            rows = con.execute(
                f"SELECT due_us, n, id, pipeline, tenant FROM run WHERE {line} AND priority = ?{served} "
                "AND due_us <= ? ORDER BY due_us, n",
                (level, *values, now_us),
            )
            for due_us, n, id_, pipeline, tenant in rows:
                yield Candidate((due_us, n, id_), pipeline, tenant, level, begun)


def _served(con: sqlite3.Connection, serving: Serving) -> tuple[str, list[SqlValue]]:
    """A condition on `run`, and its values: what is served and not held."""
    left_out = held(con)
    served = {pipeline: generation for pipeline, generation in serving.items() if pipeline not in left_out}
    if not served:
        return " AND 0", []
    cases = " ".join(["WHEN ? THEN ?"] * len(served))
    return f" AND generation <= CASE pipeline {cases} END", [value for pair in served.items() for value in pair]
