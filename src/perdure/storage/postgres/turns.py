"""Runs that are due, asked for and picked: see `choosing` for whose turn it is [R-1, D-4]."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from perdure.ports.places import rounds
from perdure.ports.store import DueRun, LoadedRun, Serving, Tenancy, share
from perdure.storage.postgres.choosing import CHOSEN, DUE, NEXT_DUE, NEXT_DUE_SERVED, NO_MORE
from perdure.storage.postgres.packed import Int8s, Texts
from perdure.storage.postgres.queries import IN_ORDER, loaded_run, loading
from perdure.storage.postgres.session import Session, Value

DUE_SERVED = f"SELECT r.id FROM {CHOSEN} c JOIN @run r ON r.n = c.c_n ORDER BY c.c_place"
FEW = 16
"""So many are read in the statement that takes them. More would hold up others that pick until all of it is sent."""
_TAKEN = "c_place, c_pipeline, c_tenant, c_to_pipeline, c_to_tenant"
TAKE = f"""
    WITH c AS MATERIALIZED (SELECT * FROM {CHOSEN} c), chosen AS (
        SELECT c.* FROM c JOIN @run r ON r.n = c.c_n AND r.due_us = c.c_due_us
        WHERE (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
        ORDER BY c.c_place LIMIT %(want)s FOR NO KEY UPDATE OF r SKIP LOCKED
    ), taken AS (
        UPDATE @run r SET worker = %(worker)s, due_us = NULL FROM chosen c WHERE r.n = c.c_n RETURNING r.*, {_TAKEN}
    ), t AS (SELECT (SELECT count(*) FROM c) AS there, (SELECT count(*) FROM taken) <= {FEW} AS few)
    {loading("t LEFT JOIN taken r ON true", more=f"there, few, {_TAKEN}", snapshot="few", journal="few")}
    ORDER BY c_place, j.first_seq
"""
"""How many there are, those that were taken, and what has been written about each, if they are few; in a transaction
of its own, which does not wait for the disk."""
_INFO = 7
PICKED = """
    SELECT id FROM @run WHERE worker = %(worker)s AND status <> 'running'
    AND NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s AND state = 'active')
    UNION ALL SELECT NULL WHERE EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s AND state = 'active')
"""
"""What a worker has picked and not claimed; NULL while a process of the server is at a statement."""


class Taken(msgspec.Struct, gc=False):
    """What was picked.

    Attributes:
        run_ids: in the order of the places.
        loaded: all of them, or none if they are many.
        all_there: nobody else took any of those that could have been picked.
        last: whose turn among tenants was the last.
    """

    run_ids: list[str]
    loaded: list[LoadedRun]
    all_there: bool
    last: Tenancy


async def due(session: Session, now_us: int, limit: int, turn: int) -> list[str]:
    """Unowned runs that are due; an owned one has no due time."""
    levels: dict[bool, dict[int, list[DueRun]]] = {True: {}, False: {}}
    for begun, _, priority, due_us, n, id_, _ in await session.rows(DUE, {"now": now_us, "limit": limit}):
        levels[begun].setdefault(-priority, []).append((due_us, n, id_))
    begun, new = ([sorted(level) for _, level in sorted(found.items())] for found in levels.values())
    return share(begun, new, limit, turn)


def served(lock: int, now_us: int, limit: int, turn: int, serving: Serving, last: Tenancy) -> dict[str, Value]:
    """Values of `CHOSEN`."""
    pipelines = sorted(serving)
    names = sorted(serving, key=lambda name: (name < last[0], name))
    if last[0] in serving:
        names.append(last[0])  # whoever comes before the last is the last in turn
    return {
        "lock": lock,
        "now": now_us,
        "limit": limit,
        "turn": turn % 16,
        "pipelines": Texts(pipelines),
        "generations": Int8s(serving[name] for name in pipelines),
        "begun": rounds(turn, begun=True),
        "new": rounds(turn, begun=False),
        "names": Texts(names),
        "theirs": Int8s(serving[name] for name in names),
        "tenant": last[1] if last[0] in serving else "",
        "generation": NO_MORE if last[0] in serving else -1,
        "last_pipeline": last[0],
        "last_tenant": last[1],
    }


async def due_served(
    session: Session, now_us: int, limit: int, turn: int, serving: Serving, last: Tenancy
) -> list[str]:
    """As `due`, in the order for a worker that serves some pipelines."""
    return [row[0] for row in await session.rows(DUE_SERVED, served(0, now_us, limit, turn, serving, last))]


async def next_due_us(session: Session, serving: Serving | None) -> int | None:
    """The earliest due time."""
    if serving is None:
        row = await session.one(NEXT_DUE)
    else:
        values = {"pipelines": Texts(serving), "generations": Int8s(serving.values())}
        row = await session.one(NEXT_DUE_SERVED, values)
    return None if row is None or row[0] is None else int(row[0])


async def take(
    session: Session,
    lock: int,
    worker: str,
    now_us: int,
    want: int,
    limit: int,
    turn: int,
    serving: Serving,
    last: Tenancy,
) -> Taken:
    """Make up to `want` of the next `limit` the worker's, and read them.

    Whoever was taken meanwhile, or is just being taken, is passed over without waiting.
    """
    values = {**served(lock, now_us, limit, turn, serving, last), "want": want, "worker": worker}
    rows = await session.rows(TAKE, values)
    there, few = rows[0][:2]
    if rows[0][2] is None:
        return Taken([], [], not there, last)
    loaded = [loaded_run(list(found), _INFO) for _, found in groupby(rows, itemgetter(2))] if few else []
    run_ids = [run.row.run.run_id for run in loaded] or [row[_INFO + 1] for row in rows]
    turn_of = [(row[3], row[4]) for row in rows if row[3] is not None]
    to_pipeline, to_tenant = rows[0][5:_INFO]
    if to_pipeline is not None:
        last = to_pipeline, to_tenant
    elif turn_of:
        last = turn_of[-1]
    return Taken(run_ids, loaded, len(run_ids) == min(want, there), last)


async def picked(session: Session, worker: str, pid: int) -> list[str] | None:
    """What a worker has picked and not claimed; None while a process of the server may still be picking."""
    found = [row[0] for row in await session.rows(PICKED, {"worker": worker, "pid": pid})]
    return None if None in found else found


async def unpick(session: Session, worker: str, run_ids: Sequence[str], due_us: int) -> int:
    """Those that are still the worker's and were not claimed are due."""
    picked = "id = ANY (%(ids)s) AND worker = %(worker)s AND status <> 'running'"
    return await session.run(
        f"UPDATE @run SET worker = NULL, due_us = %(due)s, attention = false WHERE {IN_ORDER.format(picked)}",
        {"ids": Texts(run_ids), "worker": worker, "due": due_us},
    )
