"""Runs that wait for a slot: passed on by triggers in the transaction that frees it, mended by a sweep [R-5, R-16]."""

from __future__ import annotations

import sqlite3

from perdure.ports.store import WaitingRuns

WAITING = "waits IS NOT NULL AND slot_held = 0 AND ended_us IS NULL"
"""Which rows of `run` wait for their slot."""


def grant(slot_key: str, pipeline: str, tenant: str, now_us: str) -> str:
    """The statement that gives a slot to whoever has waited longest for it. Arguments are SQL; nobody may have it."""
    return f"""
        UPDATE run SET slot_held = 1,
            due_us = CASE WHEN worker IS NULL AND status IN ('ready', 'invalid') THEN {now_us} ELSE due_us END,
            reason = CASE WHEN worker IS NULL AND status IN ('ready', 'invalid') THEN '' ELSE reason END
        WHERE n = (SELECT min(n) FROM run WHERE {WAITING}
                   AND slot_key = {slot_key} AND pipeline = {pipeline} AND tenant = {tenant})
    """


_FREE = "NOT EXISTS (SELECT 1 FROM run WHERE slot_key = ?1 AND pipeline = ?2 AND tenant = ?3 AND slot_held = 1)"
_GRANT = f"{grant('?1', '?2', '?3', '?4')} AND {_FREE}"
_SUPERSEDED = f"""
    WITH last AS (SELECT slot_key, pipeline, tenant, max(n) AS n FROM run
                  WHERE {WAITING} AND waits = 'replace' AND canceling = 0 GROUP BY 1, 2, 3)
    SELECT o.id FROM last l CROSS JOIN run o ON o.slot_key = l.slot_key AND o.pipeline = l.pipeline
           AND o.tenant = l.tenant AND o.slot_held = 1
    WHERE o.n < l.n AND o.canceling = 0 AND o.ended_us IS NULL
    UNION SELECT id FROM run r WHERE {WAITING} AND canceling = 0 AND n < (SELECT n FROM last l
          WHERE l.slot_key = r.slot_key AND l.pipeline = r.pipeline AND l.tenant = r.tenant)
    ORDER BY 1
"""


def grant_slot(con: sqlite3.Connection, slot_key: str, pipeline: str, tenant: str, now_us: int) -> bool:
    """Give one slot to whoever has waited longest for it, unless somebody has it."""
    return con.execute(_GRANT, (slot_key, pipeline, tenant, now_us)).rowcount == 1


def grant_slots(con: sqlite3.Connection, now_us: int) -> int:
    """See the port."""
    waited_for = con.execute(f"SELECT DISTINCT slot_key, pipeline, tenant FROM run WHERE {WAITING}").fetchall()
    granted = sum(grant_slot(con, key, pipeline, tenant, now_us) for key, pipeline, tenant in waited_for)
    con.execute(
        f"UPDATE run SET due_us = nullif(deadline_us, 0) WHERE {WAITING} AND due_us IS NOT NULL AND worker IS NULL "
        "AND canceling = 0 AND (deadline_us = 0 OR deadline_us > ?)",
        (now_us,),
    )
    return granted


def waiting_runs(con: sqlite3.Connection) -> WaitingRuns:
    """See the port."""
    count: int = con.execute(f"SELECT count(*) FROM run WHERE {WAITING}").fetchone()[0]
    return WaitingRuns(count, tuple(row[0] for row in con.execute(_SUPERSEDED)) if count else ())
