"""Places under limits: taken with the appends that need them, passed on where one is freed [R-11, R-16].

A transaction that takes places, or stands in line for one, has the locks of those, and of what its runs have: whoever
takes the same waits for it, and nobody else does. Whoever frees a place has at least its row in `bound`, and so has
whoever stands in line for it: one of both sees the other. Sweeps have the lock of all limits to themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from itertools import chain

from perdure.core.permits import Permit
from perdure.ports.limits import LimitUse
from perdure.ports.store import Append, AppendResult, IndexState, LimitReached
from perdure.storage.postgres import entrances
from perdure.storage.postgres.entries import Entry, state_of
from perdure.storage.postgres.packed import Byteas, Int8s, Packed, Texts
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.session import Statements
from perdure.storage.postgres.workers import ALIVE

_TAKE = f"SELECT * FROM @take_places(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, {ALIVE})"
_GRANT = "SELECT @grant_place(%s, %s)"


def needed(state: IndexState | None) -> tuple[Permit, ...]:
    """The places that a run needs which rests for want of one."""
    return state.permits if state is not None and state.status == "ready" and not state.worker else ()


async def lock(session: Statements, place: Place, entries: Sequence[Entry]) -> None:
    """Keep others from taking the places that entries need until the transaction ends. Their runs' rows are locked."""
    limited = [entry for entry in entries if is_limited(entry, state_of(entry))]
    if not limited:
        return
    permits = [
        permit
        for entry in limited
        for permit in chain((entry.permits if isinstance(entry, Append) else None) or (), needed(state_of(entry)))
    ]
    runs = Int8s(entry.locator for entry in limited)
    limits, keys, *_ = _columns(permits)
    await session.run("SELECT @lock_places(%s, %s, %s, %s)", (place.key("limits"), runs, limits, keys))


async def _lock_all(session: Statements, place: Place) -> None:
    """Keep everybody from taking places, or standing in line for any, until the transaction ends."""
    await session.run("SELECT pg_advisory_xact_lock(%s)", (place.key("limits"),))


def _columns(permits: Sequence[Permit]) -> tuple[Packed, Packed, Packed, Packed]:
    return (
        Texts(permit.limit for permit in permits),
        Texts(permit.key for permit in permits),
        Texts(permit.kind for permit in permits),
        Int8s(permit.bound for permit in permits),
    )


def is_limited(entry: object, state: IndexState | None) -> bool:
    """Whether an entry takes places, gives some back that its owner knows of, or stands in line."""
    return (isinstance(entry, Append) and entry.permits is not None) or bool(needed(state))


async def with_places(
    session: Statements, sent: Sequence[tuple[int, Append]], results: MutableSequence[AppendResult | bool]
) -> list[tuple[int, Append]]:
    """Those of the appends that may start what they reserve; the others have their result."""
    refused = await take(session, [append for _, append in sent if append.permits is not None])
    for at, append in sent:
        if append.locator in refused:
            results[at] = refused[append.locator]
    return [(at, append) for at, append in sent if append.locator not in refused]


async def take(session: Statements, appends: Sequence[Append]) -> dict[int, LimitReached]:
    """Take what appends need that are about to be inserted; those that do not get it, by number of the run."""
    permits = list(chain.from_iterable(append.permits or () for append in appends))
    values = (
        Int8s(append.locator for append in appends),
        Int8s(append.first_seq for append in appends),
        Int8s(append.prev_seq for append in appends),
        Byteas(append.prev_hash for append in appends),
        Int8s(append.token for append in appends),
        Int8s(len(append.permits or ()) for append in appends),
        *_columns(permits),
        session.worker,
        session.worker,
    )
    return {run: LimitReached(limit, key) for run, limit, key in await session.rows(_TAKE, values)}


async def take_now(session: Statements, locator: int, permits: Sequence[Permit]) -> LimitReached | None:
    """The same for an append that has just been inserted."""
    nothing = Int8s([0])
    append = Int8s([locator]), nothing, nothing, Byteas([b""]), nothing, Int8s([len(permits)])
    nobody = "", ""  # whoever was found dead has been refused by then
    found = await session.one(_TAKE, (*append, *_columns(permits), *nobody))
    return None if found is None else LimitReached(found[1], found[2])


async def keep(session: Statements, locator: int, state: IndexState) -> None:
    """Before the row of a run is written that rests for want of a place."""
    if permits := needed(state):
        limits, keys, *_ = _columns(permits)
        await session.run("SELECT @keep_places(%s, %s, %s)", (locator, limits, keys))


async def keep_no_more(session: Statements, locator: int, state: IndexState) -> None:
    """It was not written after all."""
    if needed(state):
        await session.run("UPDATE @permit SET keep = false WHERE run = %s AND keep", (locator,))
        await session.run("UPDATE @queue SET keep = false WHERE run = %s AND keep", (locator,))


async def stand_in_line(session: Statements, locator: int, state: IndexState) -> None:
    """After it was written."""
    if permits := needed(state):
        values = (locator, *_columns(permits), state.at_us)
        await session.run("SELECT @stand_in_line(%s, %s, %s, %s, %s, %s)", values)


async def enter(session: Statements, locator: int, permits: Sequence[Permit], state: IndexState) -> LimitReached | None:
    """What a new run takes, and what it needs if it rests at once; the place that it does not get."""
    full = await take_now(session, locator, permits)
    if full is None:
        await keep(session, locator, state)
        await session.run("UPDATE @run SET limited = false WHERE n = %s", (locator,))
        await stand_in_line(session, locator, state)
    return full


# --- sweeps and reads


async def give_back(session: Statements, place: Place, pipeline: str) -> None:
    """A pipeline is held: what its runs were given that have not started yet goes to others."""
    await _lock_all(session, place)
    await session.run(f"{_GIVE_BACK} AND r.pipeline = %s", (pipeline,))


_GIVE_BACK = (
    "DELETE FROM @permit p USING @run r WHERE r.n = p.run AND r.limited AND r.worker IS NULL "
    "AND (p.kind = 'concurrency' OR (p.kind = 'in_flight' AND r.token = 0))"
)
_IN_LINE = "SELECT count(*) FROM @queue"
_STRANDED = """
    r.status = 'ready' AND r.due_us <= %s AND (
        EXISTS (SELECT 1 FROM @pipeline_hold h WHERE h.pipeline = r.pipeline AND h.released_us = 0)
        OR NOT EXISTS (
            SELECT 1 FROM @worker w WHERE NOT w.dead AND (w.serves::json ->> r.pipeline)::bigint >= r.generation))
"""
"""Nobody may take the run now, or nobody who is alive can [R-17, D-4]."""


async def resize(session: Statements, place: Place, bounds: Mapping[str, int]) -> None:
    """See the port."""
    await _lock_all(session, place)
    sizes = Texts(bounds), Int8s(bounds.values())
    await session.run("UPDATE @bound SET size = w.size FROM unnest(%s, %s) w (id, size) WHERE limit_id = w.id", sizes)


async def mend(session: Statements, place: Place, now_us: int) -> int:
    """See `Store.grant_permits`."""
    await _lock_all(session, place)
    await entrances.mend(session)
    for table in ("queue", "permit"):
        await session.run(
            f"DELETE FROM @{table} WHERE run IN (SELECT t.run FROM @{table} t LEFT JOIN @run r ON r.n = t.run "
            "WHERE r.n IS NULL OR r.ended_us IS NOT NULL)"
        )
    await session.run(
        "UPDATE @bound b SET held = c.held FROM (SELECT o.limit_id, o.key, count(p.run) AS held FROM @bound o "
        "LEFT JOIN @permit p ON p.limit_id = o.limit_id AND p.key = o.key AND p.kind <> 'rate' GROUP BY 1, 2) c "
        "WHERE c.limit_id = b.limit_id AND c.key = b.key AND c.held <> b.held"
    )
    in_line = await session.number(_IN_LINE)
    await session.run(f"{_GIVE_BACK} AND {_STRANDED}", (now_us,))  # whoever waits for one of them gets it at once
    for limit, key in await session.rows("SELECT DISTINCT limit_id, key FROM @queue ORDER BY 1, 2"):
        while await session.one(_GRANT, (limit, key)) == (True,):
            pass
    await session.run(
        "DELETE FROM @bound b WHERE held = 0 AND (kind <> 'rate' OR "
        "next_us <= greatest(%s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) "
        "AND NOT EXISTS (SELECT 1 FROM @queue q WHERE q.limit_id = b.limit_id AND q.key = b.key) "
        "AND NOT EXISTS (SELECT 1 FROM @permit p WHERE p.limit_id = b.limit_id AND p.key = b.key)",
        (now_us,),
    )
    return in_line - await session.number(_IN_LINE)


_USES = """
    SELECT p.limit_id, p.key, coalesce(b.kind, 'in_flight'), coalesce(b.size, e.size), coalesce(b.held, 0),
        greatest((SELECT count(*) FROM @queue q WHERE q.limit_id = p.limit_id AND q.key = p.key)
            + (SELECT count(*) FROM @permit t WHERE t.limit_id = p.limit_id AND t.key = p.key AND t.kind = 'rate'),
            coalesce(e.inside - coalesce(b.held, 0), 0)),
        (SELECT since_us FROM @queue q WHERE q.limit_id = p.limit_id AND q.key = p.key ORDER BY q.n LIMIT 1), e.queue
    FROM (SELECT limit_id, key FROM @bound UNION SELECT limit_id, key FROM @entrance) p
    LEFT JOIN @bound b ON b.limit_id = p.limit_id AND b.key = p.key
    LEFT JOIN (
        SELECT o.*, o.entered
            - (SELECT count(*) FROM @departed d WHERE d.limit_id = o.limit_id AND d.key = o.key) AS inside
        FROM @entrance o
    ) e ON e.limit_id = p.limit_id AND e.key = p.key AND e.inside > 0
    WHERE b.limit_id IS NOT NULL OR e.limit_id IS NOT NULL
    ORDER BY p.limit_id, p.key
"""


async def uses(session: Statements) -> list[LimitUse]:
    """See `Store.limits`."""
    return [LimitUse(*row) for row in await session.rows(_USES)]
