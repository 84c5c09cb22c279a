"""Groups that are one statement: that is a transaction by itself, and one round trip instead of five.

Most groups are: steps of owned runs, the end of one among them, or runs that begin with this engine as their owner.
No row is locked beforehand, as in other groups: whatever comes in between has either inserted the same journal key or
the same run, and then one of both has inserted nothing [J-2, J-3]; or it has changed an index row that this statement
writes, too, and then one waits for the other. A statement that writes one index row waits for nobody while it holds
another.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.ports.store import Append, AppendResult, Committed
from perdure.storage.postgres.entries import Entry, wakes_others
from perdure.storage.postgres.group import (
    FITS,
    NEXT_COLUMNS,
    append_values,
    insert_new,
    insert_steps,
    is_plain,
    why_lost,
)
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.session import Session
from perdure.storage.postgres.workers import ALIVE

_STEP = f"""
    INSERT INTO @journal ({NEXT_COLUMNS})
    SELECT {NEXT_COLUMNS} FROM (VALUES (
        %s::bigint, %s::bigint, %s::bigint, %s::bigint, %s::bytea, %s::bytea, %s::text,
        %s::bigint, %s::bytea, %s::bigint
    )) s ({NEXT_COLUMNS}, prev_seq, prev_hash, token)
    WHERE {FITS} AND {ALIVE} ON CONFLICT DO NOTHING RETURNING run
"""
"""One step alone: without arrays it costs both sides a fifth less."""


def is_one_statement(entries: Sequence[Entry]) -> bool:
    """Whether a group is one statement."""
    return _are_steps(entries) or _are_new(entries)


def _are_steps(entries: Sequence[Entry]) -> bool:
    """Steps of owned runs, each run once, and at most one that lets go of its run or ends it."""
    numbers: set[int] = set()
    released = 0
    for e in entries:
        if type(e) is not Append or not e.token or e.new is not None or e.permits is not None:
            return False
        numbers.add(e.locator)
        if e.index is not None:
            released += 1
            if released > 1 or e.index.ledger or e.index.awaits or e.index.permits:
                return False
    return len(numbers) == len(entries)


def _are_new(entries: Sequence[Entry]) -> bool:
    """New runs that nothing but their slots decides about, and that nobody else has to hear of."""
    ids: set[str] = set()
    for e in entries:
        if type(e) is not Append or e.new is None or e.index is None or e.index.ledger:
            return False
        if not is_plain(e, e.new) or e.new.entrances or wakes_others(e):
            return False
        ids.add(e.run_id)
    return len(ids) == len(entries)


async def apply_at_once(
    session: Session, place: Place, entries: Sequence[Entry], teller: str
) -> Sequence[AppendResult | None]:
    """Apply a group that is one statement, without a transaction around it.

    Args:
        teller: in whose name others are told, where they have to be.

    Returns:
        Results in the order of the entries; None for a new run that was not inserted, and has to be submitted in a
        transaction to learn why.
    """
    appends = [e for e in entries if type(e) is Append]
    if appends[0].new is not None:
        found = await insert_new(session, appends)
        return [None if (number := found.get(append.run_id)) is None else Committed(number) for append in appends]
    if len(appends) == 1 and appends[0].index is None:
        inserted = await _insert_step(session, appends[0])
    else:
        told = (place.channel, teller) if any(map(wakes_others, entries)) else ()
        inserted = await insert_steps(session, appends, append_values(session, appends), told)
    # Who inserted nothing is looked up afterwards: whatever came in between, it has lost.
    return [
        Committed(append.locator) if append.locator in inserted else await why_lost(session, append)
        for append in appends
    ]


async def _insert_step(session: Session, append: Append) -> set[int]:
    first = (append.locator, append.first_seq, append.count, append.at_us, append.append_id, append.hash)
    rest = (append.facts.decode(), append.prev_seq, append.prev_hash, append.token, session.worker, session.worker)
    return {row[0] for row in await session.rows(_STEP, (*first, *rest))}
