"""Reading connections: as many as are wanted at once, up to a few."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from perdure.errors import InvalidArgument, PerdureError, StoreUnavailable, StoreUnusable
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.session import (
    CLOSING_S,
    MAX_READERS,
    Session,
    Silent,
    TooManyConnections,
    error_kind,
    explained,
)

T = TypeVar("T")

ATTEMPTS = 3
"""A connection that was lost while idle is found out by its next query: another one is tried; once where it was lost
without a word, since that took long."""


class Readers:
    """Runs queries. Whoever stops waiting for an answer does not disturb the connection."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._idle: list[Session] = []
        self._busy: set[Session] = set()
        self._room = asyncio.Semaphore(MAX_READERS)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._freed = asyncio.Event()
        self._coming = 0
        self._over = False

    async def read(self, query: Callable[[Session], Awaitable[T]]) -> T:
        """Run a query on a connection that is free.

        Raises:
            StoreUnavailable: the server does not answer, or the store was closed meanwhile.
        """
        task = asyncio.get_running_loop().create_task(self._attempts(query))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def hasten(self) -> None:
        """What is asked has to be answered soon."""
        for session in self._busy:
            session.hasten(CLOSING_S)

    async def close(self) -> None:
        """Wait for what is running, and close everything."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.abort()

    def abort(self) -> None:
        """Close everything at once; whoever waits meets `StoreUnavailable`."""
        self._over = True
        for session in (*self._idle, *self._busy):
            session.drop()
        self._idle = []

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that a caller who left early leaves no complaint

    async def _attempts(self, query: Callable[[Session], Awaitable[T]]) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._turn()
                try:
                    return await self._attempt(query)
                finally:
                    self._room.release()
            except Silent:
                if attempt > 1:
                    raise
                self._doubt()
            except PerdureError:
                raise
            except Exception as error:
                kind = error_kind(error)
                if self._over:
                    raise StoreUnavailable(f"the store {self._place.shown} was closed") from error
                if kind == "data":
                    raise InvalidArgument(f"this cannot be looked for: {error}") from error
                if kind == "fatal":
                    raise StoreUnusable(explained(error, self._place)) from error
                if attempt == ATTEMPTS:
                    raise StoreUnavailable(explained(error, self._place)) from error
                self._doubt()
        raise AssertionError("unreachable")

    def _doubt(self) -> None:
        """One was lost; those that nobody uses may be, too, and nobody has noticed."""
        for session in self._idle:
            session.drop()
        self._idle = []

    async def _turn(self) -> None:
        """Wait for one of the connections; not for ever, if those before get no answers."""
        if not self._room.locked():
            await self._room.acquire()
            return
        try:
            async with asyncio.timeout(self._place.answer_s):
                await self._room.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._place.shown}: all {MAX_READERS} connections that read have been waiting for answers for "
                f"{self._place.answer_s:g} s"
            ) from error

    async def _attempt(self, query: Callable[[Session], Awaitable[T]]) -> T:
        session = await self._session()
        self._busy.add(session)
        try:
            if self._over:
                raise StoreUnavailable(f"the store {self._place.shown} was closed")
            return await query(session)
        finally:
            self._busy.discard(session)
            self._freed.set()
            if self._over or session.lost:
                session.drop()
            else:
                self._idle.append(session)

    async def _session(self) -> Session:
        """One that is free, or a new one; where the server admits no more, the next that becomes free."""
        while not self._idle:
            self._coming += 1
            try:
                return await Session.connect(self._place)
            except TooManyConnections:
                self._freed.set()  # who waits for this one tries, too
                if not self._busy and not self._idle and self._coming == 1:
                    raise
            finally:
                self._coming -= 1
            if not self._idle:
                self._freed.clear()
                await self._freed.wait()
        return self._idle.pop()
