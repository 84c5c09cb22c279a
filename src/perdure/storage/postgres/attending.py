"""Who waits for runs to rest or to end that other processes have: only then is anybody told of that [R-2].

A notification makes its commit wait for all others that notify, so one that nobody waits for is not sent. Whoever waits
has a row that says until when, which the statement that ends a run looks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import psycopg

from perdure.errors import PerdureError
from perdure.ports.store import ANYTHING, Change
from perdure.storage.postgres.readers import Readers

LASTS_S = 30
"""So long a row says that somebody waits, by the server's clock; one whose process is gone says so no longer."""
RENEWED_S = 10.0
AGAIN_S = (0.05, 1.0, 4.0, 12.0)
"""Who ends a run at the moment when a row comes may not see it, and its commit may take long, as it waits for a disk or
for another server: whoever waits looks again."""
UNAVAILABLE_S = 1.0
UNHEARD_S = 0.2
"""So often whoever may not write a row looks instead."""

TABLE = 'CREATE UNLOGGED TABLE @attendant (id text COLLATE "C" PRIMARY KEY, until timestamptz NOT NULL)'
ANYBODY = "EXISTS (SELECT 1 FROM @attendant WHERE until > now())"
"""Somebody waits for runs that other processes have."""
_MAY_NOT = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)
_COME = f"""
    WITH gone AS (DELETE FROM @attendant WHERE until < now() AND id <> %(id)s)
    INSERT INTO @attendant VALUES (%(id)s, now() + interval '{LASTS_S} s')
    ON CONFLICT (id) DO UPDATE SET until = excluded.until
    RETURNING EXISTS (SELECT 1 FROM @attendant WHERE id = %(id)s AND until > now())
"""
"""Whether it was there already."""


class Attendance:
    """The row of one store.

    Args:
        ident: its name.
        changed: told when whoever waits has to look.
    """

    def __init__(self, ident: str, readers: Readers, changed: Callable[[Change], None]) -> None:
        self._ident = ident
        self._readers = readers
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._until_s = 0.0
        self._coming: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def attending(self) -> AsyncGenerator[None]:
        """Whatever ends meanwhile is told, or looked for."""
        self._waiting += 1
        try:
            if self._loop.time() >= self._until_s:
                await asyncio.wait([self._come()])
            elif self._timer is None:  # nobody waited when it was to be renewed; it lasts until it is
                self._renew()
            yield
        finally:
            self._waiting -= 1

    def forgotten(self) -> None:
        """The server may have lost the row."""
        self._until_s = 0.0
        self._renew()

    def stop(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._coming is not None:
            self._coming.cancel()

    def _come(self) -> asyncio.Task[None]:
        task = self._coming
        if task is None:
            task = self._coming = self._loop.create_task(self._write())
        return task

    async def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        again_s = RENEWED_S
        try:
            sent_s = self._loop.time()
            found = await self._readers.read(lambda s: s.one(_COME, {"id": self._ident}))
            lasted = found == (True,) and self._loop.time() < self._until_s
            self._until_s = sent_s + LASTS_S - RENEWED_S
        except PerdureError as error:
            self._until_s, again_s = 0.0, UNAVAILABLE_S  # whoever waits meets the same trouble
            if isinstance(error.__cause__, _MAY_NOT):
                self._until_s, again_s = self._loop.time() + UNHEARD_S, UNHEARD_S
                self._changed(ANYTHING)
        else:
            for delay_s in () if lasted else AGAIN_S:
                self._loop.call_later(delay_s, self._look)
        finally:
            self._coming = None
        self._timer = self._loop.call_later(again_s, self._renew)

    def _renew(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and self._coming is None:
            self._coming = self._loop.create_task(self._write())

    def _look(self) -> None:
        if self._waiting:
            self._changed(ANYTHING)
