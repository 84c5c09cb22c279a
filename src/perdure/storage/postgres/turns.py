"""Whose turn it is: runs that are due, found by pipeline, priority and generation, and by tenant [R-1, D-4].

Each combination that waiting runs have is one step into an index, and so is the first run that is due of each: what is
due later, or of a generation that is not served, is never looked at [R-7].
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.ports.store import Candidate, DueRun, Serving, Shared, Tenancy, share, share_served
from perdure.storage.postgres.packed import Int8s, Texts
from perdure.storage.postgres.queries import IN_ORDER
from perdure.storage.postgres.session import Session

LINES = ("due_us IS NOT NULL AND token > 0", "due_us IS NOT NULL AND token = 0")
"""Runs that were claimed before, and new ones; each has an index, by pipeline, priority, generation and due time."""
PROBES = 64
"""How many tenants are looked at in turn at a time, whether or not they have a run that is due."""
NO_MORE = 2**63 - 1
"""A generation behind all others."""

_KIND = "pipeline, priority, generation"
_HELD = "SELECT pipeline FROM @pipeline_hold WHERE released_us = 0"
_SERVED = "unnest(%(pipelines)s, %(generations)s) v (pipeline, served)"


def _kinds(line: str, *, served: bool) -> str:
    """Every (pipeline, priority, generation) that runs of a line have, each found by one step into its index, and
    since when the first run of it is due: from there on there are no entries of runs that are not due any more."""
    first = f"SELECT {_KIND}, due_us FROM @run WHERE {line}"
    order = f"ORDER BY {_KIND}, due_us LIMIT 1"
    if served:
        start = f"SELECT f.*, v.served FROM {_SERVED} CROSS JOIN LATERAL ({first} AND pipeline = v.pipeline {order}) f"
        step = "pipeline = k.pipeline AND (priority, generation) > (k.priority, k.generation)"
    else:
        start = f"SELECT f.*, {NO_MORE} AS served FROM ({first} {order}) f"
        step = f"({_KIND}) > (k.pipeline, k.priority, k.generation)"
    return f"""
        WITH RECURSIVE kind ({_KIND}, due_us, served) AS (
            {start}
            UNION ALL SELECT s.*, k.served FROM kind k CROSS JOIN LATERAL ({first} AND {step} {order}) s
        )
    """


_FREE = f"k.generation <= k.served AND k.pipeline <> ALL (ARRAY({_HELD}))"
"""Which kinds may be due: of a generation that is served, and not held."""
_NOW = "(SELECT %(now)s::bigint)"
"""As a value that the planner does not know: whatever it were, whoever is due is read in order, from the index."""


def _due(*, served: bool) -> str:
    return " UNION ALL ".join(
        f"""
        ({_kinds(line, served=served)}
        SELECT {begun} AS begun, k.pipeline, k.priority, d.due_us, d.n, d.id, d.tenant
        FROM kind k CROSS JOIN LATERAL (
            SELECT due_us, n, id, tenant FROM @run WHERE {line} AND pipeline = k.pipeline AND priority = k.priority
            AND generation = k.generation AND due_us >= k.due_us AND due_us <= {_NOW}
            ORDER BY due_us, n LIMIT %(limit)s
        ) d WHERE k.due_us <= {_NOW} AND {_FREE})
        """
        for line, begun in zip(LINES, ("true", "false"), strict=True)
    )


def _next_due(*, served: bool) -> str:
    parts = " UNION ALL ".join(
        f"({_kinds(line, served=served)} SELECT min(k.due_us) AS due_us FROM kind k WHERE {_FREE})" for line in LINES
    )
    return f"SELECT min(due_us) FROM ({parts}) f"


DUE = _due(served=False)
DUE_SERVED = f"""
    SELECT begun, pipeline, priority, due_us, n, id, tenant, max(rank) OVER () FROM (
        SELECT *, row_number() OVER (PARTITION BY begun ORDER BY due_us, n) AS age,
               row_number() OVER (PARTITION BY begun, priority ORDER BY rank, pipeline) AS place
        FROM (
            SELECT *, row_number() OVER (PARTITION BY begun, priority, pipeline ORDER BY due_us, n) AS rank
            FROM ({_due(served=True)}) d
        ) d
    ) d WHERE age <= %(limit)s OR place <= %(limit)s + cardinality(%(pipelines)s)
"""
"""Those that may get a place, by age or in turn; and how many a pipeline has at most, up to the limit."""
NEXT_DUE, NEXT_DUE_SERVED = _next_due(served=False), _next_due(served=True)

_NEXT_TENANT = """
    SELECT tenant, generation FROM @run WHERE due_us IS NOT NULL AND pipeline = t.pipeline
    AND (tenant, generation) > (t.tenant, t.generation) ORDER BY tenant, generation LIMIT 1
"""
TENANTS = f"""
    WITH RECURSIVE served AS MATERIALIZED (
        SELECT * FROM unnest(%(pipelines)s, %(generations)s) WITH ORDINALITY v (pipeline, served, place)
    ), t (probe, place, pipeline, served, tenant, generation) AS (
        SELECT 0, place, pipeline, served, %(tenant)s::text COLLATE "C", %(generation)s FROM served WHERE place = 1
        UNION ALL
        SELECT t.probe + 1, v.place, v.pipeline, v.served,
            coalesce(x.tenant, '' COLLATE "C"), coalesce(x.generation, -1)
        FROM t LEFT JOIN LATERAL ({_NEXT_TENANT}) x ON true
        JOIN served v ON v.place = t.place + CASE WHEN x.tenant IS NULL THEN 1 ELSE 0 END
        WHERE t.probe < {PROBES}
    )
    SELECT t.pipeline, t.tenant, d.due_us, d.n, d.id, d.priority, d.token > 0
    FROM t LEFT JOIN LATERAL (
        SELECT due_us, n, id, priority, token FROM @run WHERE due_us IS NOT NULL AND pipeline = t.pipeline
        AND tenant = t.tenant AND generation = t.generation AND due_us <= {_NOW}
        AND t.probe > 0 AND t.generation BETWEEN 0 AND t.served AND t.pipeline <> ALL (ARRAY({_HELD}))
        ORDER BY due_us, n LIMIT (SELECT %(places)s / count(*) + 1 FROM t WHERE generation >= 0)
    ) d ON true ORDER BY t.probe
"""
"""Tenants in turn, pipeline by pipeline, beginning behind one of the first; those with nothing due, too."""
TAKE = """
    WITH chosen AS (
        SELECT r.n FROM unnest(%(runs)s, %(due)s) WITH ORDINALITY c (n, due_us, place)
        JOIN @run r ON r.n = c.n AND r.due_us = c.due_us
        ORDER BY c.place LIMIT %(limit)s FOR NO KEY UPDATE OF r SKIP LOCKED
    )
    UPDATE @run r SET worker = %(worker)s, due_us = NULL FROM chosen WHERE r.n = chosen.n
    RETURNING r.id, pg_current_xact_id()::text
"""


class Turns(msgspec.Struct, gc=False):
    """Who is next.

    Attributes:
        shared: their order.
        due: time and number of each.
        probed: the last tenant that was looked at, if not all were.
    """

    shared: Shared
    due: dict[str, DueRun]
    probed: Tenancy | None

    def last(self, before: Tenancy, taken: int) -> Tenancy:
        """Whose turn was the last, when the first `taken` got their places."""
        if self.probed is not None and not self.shared.more:
            return self.probed
        return self.shared.last(before, taken)


async def due(session: Session, now_us: int, limit: int, turn: int) -> list[str]:
    """Unowned runs that are due; an owned one has no due time."""
    levels: dict[bool, dict[int, list[DueRun]]] = {True: {}, False: {}}
    for begun, _, priority, due_us, n, id_, _ in await session.rows(DUE, {"now": now_us, "limit": limit}):
        levels[begun].setdefault(-priority, []).append((due_us, n, id_))
    begun, new = ([sorted(level) for _, level in sorted(found.items())] for found in levels.values())
    return share(begun, new, limit, turn)


async def due_served(session: Session, now_us: int, limit: int, turn: int, serving: Serving, last: Tenancy) -> Turns:
    """As `due`, in the order for a worker that serves some pipelines."""
    served = {"pipelines": Texts(serving), "generations": Int8s(serving.values())}
    rows = await session.rows(DUE_SERVED, {**served, "now": now_us, "limit": limit})
    found = [
        Candidate((due_us, n, id_), pipeline, tenant, priority, begun)
        for begun, pipeline, priority, due_us, n, id_, tenant, _ in rows
    ]
    tenants, probed = found, None
    if rows and rows[0][-1] >= limit:  # more may be due than were found
        tenants, probed = await _tenants(session, now_us, limit, serving, last)
    shared = share_served(found, tenants, serving, last, limit, turn)
    return Turns(shared, {run.due[2]: run.due for run in (*found, *tenants)}, probed)


async def _tenants(
    session: Session, now_us: int, limit: int, serving: Serving, last: Tenancy
) -> tuple[list[Candidate], Tenancy | None]:
    names = sorted(serving, key=lambda name: (name < last[0], name))
    if last[0] in serving:
        names.append(last[0])  # whoever comes before the last is the last in turn
    rows = await session.rows(
        TENANTS,
        {
            "pipelines": Texts(names),
            "generations": Int8s(serving[name] for name in names),
            "tenant": last[1] if last[0] in serving else "",
            "generation": NO_MORE if last[0] in serving else -1,
            "now": now_us,
            "places": limit // 4 + 4,
        },
    )
    found = {
        n: Candidate((due_us, n, id_), pipeline, tenant, priority, begun)
        for pipeline, tenant, due_us, n, id_, priority, begun in rows
        if n is not None
    }
    return list(found.values()), (rows[-1][0], rows[-1][1])


async def next_due_us(session: Session, serving: Serving | None) -> int | None:
    """The earliest due time."""
    if serving is None:
        row = await session.one(NEXT_DUE)
    else:
        served = {"pipelines": Texts(serving), "generations": Int8s(serving.values())}
        row = await session.one(NEXT_DUE_SERVED, served)
    return None if row is None or row[0] is None else int(row[0])


async def take(session: Session, worker: str, turns: Turns, limit: int) -> tuple[list[str], str]:
    """Make up to `limit` of those who are next the worker's, and the number of this transaction.

    Whoever was taken meanwhile, or is just being taken, is passed over without waiting.
    """
    order = turns.shared.run_ids
    runs = [turns.due[run_id] for run_id in order]
    rows = await session.rows(
        TAKE,
        {
            "runs": Int8s(run[1] for run in runs),
            "due": Int8s(run[0] for run in runs),
            "limit": limit,
            "worker": worker,
        },
    )
    taken = {row[0] for row in rows}
    return [run_id for run_id in order if run_id in taken], rows[0][1] if rows else ""


async def unpick(session: Session, worker: str, run_ids: Sequence[str], due_us: int) -> int:
    """Those that are still the worker's and were not claimed are due."""
    picked = "id = ANY (%(ids)s) AND worker = %(worker)s AND status <> 'running'"
    return await session.run(
        f"UPDATE @run SET worker = NULL, due_us = %(due)s, attention = false WHERE {IN_ORDER.format(picked)}",
        {"ids": Texts(run_ids), "worker": worker, "due": due_us},
    )
