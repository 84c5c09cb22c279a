"""Runs that wait for a slot: passed on by triggers in the transaction that frees it, mended by a sweep [R-5, R-16]."""

from __future__ import annotations

from perdure.ports.store import WaitingRuns
from perdure.storage.postgres.listing import WAITING
from perdure.storage.postgres.schema import grant
from perdure.storage.postgres.session import Session, Statements, Value

_HOLDER = """
    SELECT n FROM @run WHERE slot_key = %(slot)s AND pipeline = %(pipeline)s AND tenant = %(tenant)s AND slot_held
"""
_GRANT = f"{grant('%(slot)s', '%(pipeline)s', '%(tenant)s', '%(now)s')} AND NOT EXISTS ({_HOLDER})"
_FREE = f"""
    SELECT DISTINCT slot_key, pipeline, tenant FROM @run w WHERE {WAITING} AND NOT EXISTS (
        SELECT 1 FROM @run h WHERE h.slot_key = w.slot_key AND h.pipeline = w.pipeline AND h.tenant = w.tenant
        AND h.slot_held)
    ORDER BY 1, 2, 3
"""
_SUPERSEDED = f"""
    WITH last AS (SELECT slot_key, pipeline, tenant, max(n) AS n FROM @run
                  WHERE {WAITING} AND waits = 'replace' AND NOT canceling GROUP BY 1, 2, 3)
    SELECT o.id FROM last l JOIN @run o ON o.slot_key = l.slot_key AND o.pipeline = l.pipeline
           AND o.tenant = l.tenant AND o.slot_held
    WHERE o.n < l.n AND NOT o.canceling AND o.ended_us IS NULL
    UNION SELECT id FROM @run r WHERE {WAITING} AND NOT canceling AND n < (SELECT n FROM last l
          WHERE l.slot_key = r.slot_key AND l.pipeline = r.pipeline AND l.tenant = r.tenant)
    ORDER BY 1
"""


async def grant_slot(session: Statements, slot_key: str, pipeline: str, tenant: str, now_us: int) -> bool:
    """Give one slot to whoever has waited longest for it, unless somebody has it.

    Whoever holds it is locked first: if that run is just ending, its slot is free afterwards; if it ends later, it
    sees who waits.
    """
    values: dict[str, Value] = {"slot": slot_key, "pipeline": pipeline, "tenant": tenant, "now": now_us}
    if await session.one(f"{_HOLDER} FOR NO KEY UPDATE", values) is not None:
        return False
    return await session.run(_GRANT, values) == 1


async def grant_slots(session: Session, now_us: int) -> int:
    """See the port.

    Slots that somebody holds are left alone, and their holders unlocked: whoever ends sees who waits.
    """
    granted = 0
    for slot_key, pipeline, tenant in await session.rows(_FREE):
        granted += await grant_slot(session, slot_key, pipeline, tenant, now_us)
    await session.run(
        f"UPDATE @run SET due_us = nullif(deadline_us, 0) WHERE {WAITING} AND due_us IS NOT NULL AND worker IS NULL "
        "AND NOT canceling AND (deadline_us = 0 OR deadline_us > %s)",
        (now_us,),
    )
    return granted


async def waiting_runs(session: Session) -> WaitingRuns:
    """See the port."""
    count = await session.number(f"SELECT count(*) FROM @run WHERE {WAITING}")
    return WaitingRuns(count, tuple([row[0] for row in await session.rows(_SUPERSEDED)]) if count else ())
