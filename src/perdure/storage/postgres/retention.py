"""Which runs may go, which go, and putting one back [R-9].

Whoever has a run locked keeps it for now, so that retention never waits for anybody, nor anybody for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.ports.store import EndedRun, IndexState, JournalRow, NewRun, RunTail
from perdure.storage.postgres.group import INSERT_RUN
from perdure.storage.postgres.packed import Byteas, Int8s, Texts
from perdure.storage.postgres.rows import new_values, state_values
from perdure.storage.postgres.session import Session

MAX_ROWS = 1_000
"""Journal rows that one transaction removes, if there are not more in the first of its runs alone."""

_FREE = "NOT slot_held AND NOT EXISTS (SELECT 1 FROM @waiter WHERE target = id)"
_REMOVABLE = f"ended_us < %(before)s AND {_FREE}"


async def count_ended(session: Session, before_us: int) -> int:
    """How many `remove_ended` would remove."""
    return await session.number(f"SELECT count(*) FROM @run WHERE {_REMOVABLE}", {"before": before_us})


async def ended_runs(session: Session, before_us: int, limit: int, after: EndedRun | None) -> list[EndedRun]:
    """See `Store.ended_runs`; those that ended first come first."""
    last = (-1, -1) if after is None else (after.ended_us, after.locator)
    found = await session.rows(
        f"SELECT ended_us, n, id FROM @run WHERE {_REMOVABLE} AND (ended_us, n) > (%(ended)s, %(n)s) "
        "ORDER BY ended_us, n LIMIT %(limit)s",
        {"before": before_us, "ended": last[0], "n": last[1], "limit": limit},
    )
    return [EndedRun(*row) for row in found]


_REMOVE = """
    WITH old AS ({chosen}),
    gone AS (DELETE FROM @run WHERE n IN (SELECT n FROM old) RETURNING n),
    rows AS (DELETE FROM @journal WHERE run IN (SELECT n FROM old)),
    folded AS (DELETE FROM @snapshot WHERE run IN (SELECT n FROM old))
    SELECT n FROM gone
"""
_OLDEST = f"""
    SELECT n FROM @run WHERE n IN (
        SELECT n FROM (
            SELECT n, ended_us, sum(size) OVER (ORDER BY ended_us, n) - size AS before FROM (
                SELECT n, ended_us, (SELECT count(*) FROM @journal WHERE run = n) AS size FROM @run
                WHERE {_REMOVABLE} ORDER BY ended_us, n LIMIT %(limit)s
            ) sized
        ) summed WHERE before < {MAX_ROWS}
    ) AND {_REMOVABLE} FOR UPDATE SKIP LOCKED
"""
_AS_READ = f"""
    SELECT n FROM @run JOIN unnest(%s, %s, %s) tail (run, seq, hash) ON n = run
    WHERE ended_us IS NOT NULL AND {_FREE}
    AND EXISTS (SELECT 1 FROM @journal j WHERE j.run = n AND j.first_seq = tail.seq AND j.hash = tail.hash)
    AND NOT EXISTS (SELECT 1 FROM @journal j WHERE j.run = n AND j.first_seq > tail.seq)
    FOR UPDATE OF run SKIP LOCKED
"""


async def remove_ended(session: Session, before_us: int, limit: int) -> int:
    """Remove up to `limit` runs that ended before, fewer where they are long; how many there were."""
    removed = await session.rows(_REMOVE.format(chosen=_OLDEST), {"before": before_us, "limit": limit})
    return await _gone(session, [row[0] for row in removed])


async def remove_runs(session: Session, tails: Sequence[RunTail]) -> int:
    """See `Store.remove_runs`."""
    columns = (Int8s(t.locator for t in tails), Int8s(t.seq for t in tails), Byteas(t.hash for t in tails))
    removed = await session.rows(_REMOVE.format(chosen=_AS_READ), columns)
    return await _gone(session, [row[0] for row in removed])


async def _gone(session: Session, numbers: Sequence[int]) -> int:
    """The trigger has noted them as stray; they are not, since their journals went with them."""
    if numbers:
        await session.run("DELETE FROM @stray WHERE run = ANY (%s)", (Int8s(numbers),))
    return len(numbers)


_STRAY = "SELECT 1 FROM @stray s WHERE s.id = %s AND EXISTS (SELECT 1 FROM @journal j WHERE j.run = s.run)"
_ROWS_AT_ONCE = 500


async def insert(session: Session, new: NewRun, state: IndexState, ended_us: int, rows: Sequence[JournalRow]) -> bool:
    """See `Store.insert_ended`."""
    if await session.one(_STRAY, (new.run_id,)) is not None:
        return False
    values = (*new_values(new, slot_held=False), ended_us, *state_values(replace(state, due_us=None)), True, "", "")
    found = await session.one(INSERT_RUN, values)
    if found is None:
        return False
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        await session.run(
            "INSERT INTO @journal (run, first_seq, count, at_us, append_id, hash, facts) "
            "SELECT %s, * FROM unnest(%s, %s, %s, %s, %s, %s)",
            (
                found[0],
                Int8s(row.first_seq for row in part),
                Int8s(row.count for row in part),
                Int8s(row.at_us for row in part),
                Byteas(row.append_id for row in part),
                Byteas(row.hash for row in part),
                Texts(row.facts for row in part),
            ),
        )
    return True
