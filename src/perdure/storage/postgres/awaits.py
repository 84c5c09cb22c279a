"""Runs that wait for other runs: woken by a trigger in the transaction that ends one of those [R-13, R-16]."""

from __future__ import annotations

from perdure.ports.store import TERMINAL, IndexState
from perdure.storage.postgres.session import Session, Statements

_EXISTING = """
    INSERT INTO @waiter (waiter, target) SELECT %(run)s, t FROM unnest(%(targets)s::text[]) t
    WHERE EXISTS (SELECT 1 FROM @run WHERE id = t) OR EXISTS (SELECT 1 FROM @stray WHERE id = t) ON CONFLICT DO NOTHING
"""
"""A run whose index row is lost is there, and may go on when it is rebuilt."""
_LIVE = """
    SELECT count(*) FROM @waiter w
    WHERE w.waiter = %s AND NOT EXISTS (SELECT 1 FROM @run r WHERE r.id = w.target AND r.ended_us IS NOT NULL)
"""
_LEFT = """
    UPDATE @run SET awaiting = %(left)s, due_us = CASE WHEN %(due)s THEN %(at_us)s ELSE due_us END WHERE n = %(run)s
"""
_WAITS_BACK = """
    WITH RECURSIVE reached (id) AS (
        SELECT unnest(%s::text[]) COLLATE "C"
        UNION SELECT w.target
              FROM reached JOIN @run r ON r.id = reached.id AND r.awaiting > 0 AND r.status IN ('ready', 'held')
              JOIN @waiter w ON w.waiter = r.n
    )
    SELECT 1 FROM reached WHERE id = %s
"""


async def closes_a_circle(session: Statements, run_id: str, awaits: tuple[str, ...]) -> bool:
    """Whether one of these runs waits for `run_id`, through however many others."""
    return await session.one(_WAITS_BACK, (list(awaits), run_id)) is not None


async def register(session: Statements, locator: int, state: IndexState, *, checked: bool = False) -> None:
    """Note what a run waits for; it is due at once if enough of that has ended, or is not there.

    Args:
        checked: it closes no circle. Otherwise it is due at once if it does: an owner is to look.
    """
    if not state.awaits or state.status in TERMINAL:
        return
    awaits = tuple(dict.fromkeys(state.awaits))
    await session.run(_EXISTING, {"run": locator, "targets": list(awaits)})
    left = state.need - (len(awaits) - await session.number(_LIVE, (locator,)))
    due = state.status == "ready" and (left <= 0 or (not checked and await _is_in_a_circle(session, locator, awaits)))
    await session.run(_LEFT, {"left": left, "due": due, "at_us": state.at_us, "run": locator})


async def _is_in_a_circle(session: Statements, locator: int, awaits: tuple[str, ...]) -> bool:
    waiter = await session.one("SELECT id FROM @run WHERE n = %s", (locator,))
    return waiter is not None and await closes_a_circle(session, waiter[0], awaits)


async def anybody_waits(session: Session) -> bool:
    """Whether the end of any run may make another due."""
    return await session.one("SELECT 1 FROM @waiter LIMIT 1") is not None
