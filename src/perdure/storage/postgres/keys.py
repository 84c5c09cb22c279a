"""Idempotency keys of submissions: a table of their own, because they outlive runs [R-5]."""

from __future__ import annotations

from perdure.ports.store import SubmissionKey
from perdure.storage.postgres.session import Session, Statements

_COLUMNS = "tenant, pipeline, key, run, input_digest, expires_us"
_TAKE = f"""
    INSERT INTO @submission_key AS k ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (tenant, pipeline, key) DO UPDATE
    SET run = excluded.run, input_digest = excluded.input_digest, expires_us = excluded.expires_us
    WHERE k.expires_us <= %s
"""


async def take(session: Statements, key: SubmissionKey, now_us: int) -> SubmissionKey | None:
    """Take a key that is free or has expired; otherwise who has it. Of two at once, the second waits for the first."""
    values = (key.tenant, key.pipeline, key.key, key.run_id, key.input_digest, key.expires_us, now_us)
    if await session.run(_TAKE, values) == 1:
        return None
    found = await session.one(
        f"SELECT {_COLUMNS} FROM @submission_key WHERE tenant = %s AND pipeline = %s AND key = %s",
        (key.tenant, key.pipeline, key.key),
    )
    return SubmissionKey(*found) if found is not None else None


async def claim(session: Statements, key: SubmissionKey, now_us: int) -> SubmissionKey:
    """Take a key unless somebody has it; who has it now."""
    return await take(session, key, now_us) or key


async def forget(session: Session, now_us: int) -> int:
    """Remove what has expired."""
    return await session.run("DELETE FROM @submission_key WHERE expires_us <= %s", (now_us,))
