"""What is noted of runs beside their rows: read for `verify`, and written anew [J-11]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from perdure.ports.notes import Astray, Notes
from perdure.ports.records import NewRun
from perdure.storage.notes import ASTRAY, FORGET
from perdure.storage.postgres import limits, mutexes
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.session import Session, Statements

T = TypeVar("T")


class Run(Protocol):
    """Runs something on a connection of the store's."""

    def __call__(self, do: Callable[[Session], Awaitable[T]], /) -> Awaitable[T]: ...


_NOTES = """
    SELECT r.slot_held,
        ARRAY(SELECT ARRAY[tenant, resource, name] FROM @mutex m WHERE m.run = r.n),
        ARRAY(SELECT target FROM @waiter w WHERE w.waiter = r.n),
        ARRAY(SELECT ARRAY[limit_id, key] FROM @permit p WHERE p.run = r.n AND kind <> 'rate'
              UNION ALL SELECT ARRAY[limit_id, key] FROM @entered e WHERE e.run = r.n),
        EXISTS (SELECT 1 FROM @queue q WHERE q.run = r.n)
    FROM @run r WHERE r.id = %s
"""
_FREE_SLOT = "UPDATE @run SET slot_held = false WHERE n = %s AND slot_held AND ended_us IS NOT NULL AND NOT slot_once"
"""And a trigger passes it on."""
_TAKE_SLOT = """
    UPDATE @run r SET slot_held = true WHERE n = %s AND NOT slot_held AND ended_us IS NULL AND waits = ''
    AND slot_key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @run o WHERE o.slot_key = r.slot_key
        AND o.pipeline = r.pipeline AND o.tenant = r.tenant AND o.slot_held)
"""


class PostgresNotebook:
    """A `Notebook`.

    Args:
        read, write: run something on a connection that reads, or in a transaction of the writer.
    """

    def __init__(self, read: Run, write: Run, place: Place) -> None:
        self._read = read
        self._write = write
        self._place = place

    async def of(self, run_id: str, /) -> Notes | None:
        return await self._read(lambda session: _notes(session, run_id))

    async def astray(self, limit: int, /) -> Sequence[Astray]:
        return await self._read(lambda session: _astray(session, limit))

    async def note_anew(self, locator: int, new: NewRun, /) -> None:
        await self._write(lambda session: _note_anew(session, locator, new))

    async def forget_astray(self) -> None:
        await self._write(lambda session: _forget(session, self._place))


def _sql(text: str) -> str:
    return text.replace("?", "%s")


async def _notes(session: Session, run_id: str) -> Notes | None:
    row = await session.one(_NOTES, (run_id,))
    if row is None:
        return None
    slot, held, awaits, places, in_line = row
    return Notes(
        slot,
        frozenset([(tenant, resource, name) for tenant, resource, name in held]),
        frozenset(awaits),
        frozenset([(limit, key) for limit, key in places]),
        in_line,
    )


async def _astray(session: Statements, limit: int) -> list[Astray]:
    return [
        Astray(kind, name) for kind, query in ASTRAY.items() for (name,) in await session.rows(_sql(query), (limit,))
    ]


async def _note_anew(session: Session, locator: int, new: NewRun) -> None:
    row = await session.one("SELECT ended_us FROM @run WHERE n = %s FOR NO KEY UPDATE", (locator,))
    if row is not None:
        await mutexes.restore(session, locator, new, row[0])
        await session.run(_FREE_SLOT, (locator,))
        await session.run(_TAKE_SLOT, (locator,))


async def _forget(session: Session, place: Place) -> None:
    for statement in FORGET:
        await session.run(statement)
    await limits.mend(session, place, 0)
