"""Runs that wait for other runs: woken by a trigger in the transaction that ends one of those [R-13, R-16]."""

from __future__ import annotations

from perdure.ports.store import IndexState
from perdure.storage.postgres.session import Session

_EXISTING = """
    INSERT INTO @waiter (waiter, target) SELECT %s, id FROM @run WHERE id = ANY (%s) ON CONFLICT DO NOTHING
"""
_LIVE = "SELECT count(*) FROM @waiter w JOIN @run r ON r.id = w.target WHERE w.waiter = %s AND r.ended_us IS NULL"
_LEFT = """
    UPDATE @run SET awaiting = %(left)s,
        due_us = CASE WHEN %(left)s <= 0 AND status = 'ready' THEN %(at_us)s ELSE due_us END
    WHERE n = %(run)s
"""
_WAITS_BACK = """
    WITH RECURSIVE reached (id) AS (
        SELECT unnest(%s::text[]) COLLATE "C"
        UNION SELECT w.target FROM reached JOIN @run r ON r.id = reached.id AND r.awaiting > 0
              JOIN @waiter w ON w.waiter = r.n JOIN @run t ON t.id = w.target AND t.ended_us IS NULL
    )
    SELECT 1 FROM reached WHERE id = %s
"""


async def closes_a_circle(session: Session, run_id: str, awaits: tuple[str, ...]) -> bool:
    """Whether one of these runs waits for `run_id`, through however many others."""
    return await session.one(_WAITS_BACK, (list(awaits), run_id)) is not None


async def register(session: Session, locator: int, state: IndexState) -> None:
    """Note what a run waits for; it is due at once if enough of that has ended, or is not there."""
    if not state.awaits:
        return
    await session.run(_EXISTING, (locator, list(state.awaits)))
    live = await session.number(_LIVE, (locator,))
    left = state.need - (len(state.awaits) - live)
    await session.run(_LEFT, {"left": left, "at_us": state.at_us, "run": locator})


async def anybody_waits(session: Session) -> bool:
    """Whether the end of any run may make another due."""
    return await session.one("SELECT 1 FROM @waiter LIMIT 1") is not None
