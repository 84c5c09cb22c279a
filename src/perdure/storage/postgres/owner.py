"""One engine owns a store [R-2]: an advisory lock that ends with its session, however that ends.

The lock is of a transaction that stays open, because a pooler gives a session away between transactions. The
transaction has no number and no snapshot, so it holds nothing up. What a former owner still sends is refused by the
journal's own checks [J-3]; the lock only keeps two engines from taking each other's runs over for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from perdure.errors import StoreInUse, StoreUnavailable
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.readers import Readers
from perdure.storage.postgres.session import Session

PATIENCE_S = 0.5
"""How long the lock of an owner that is just going is waited for."""
RENEW_S = 2.0
"""How often an owner looks whether it still is one."""


class Ownership:
    """Ownership of one store, from `take` to `release`."""

    def __init__(self, place: Place, worker: str, session: Session) -> None:
        self._place = place
        self._worker = worker
        self._session: Session = session
        self._over = False
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def take(cls, place: Place, worker: str, other: Session) -> Ownership:
        """Become the owner, and say so with the session `other`.

        Raises:
            StoreInUse: another engine is; names it.
            StoreUnavailable: the server does not answer.
        """
        session = await _locked(place, other)
        try:
            await other.run("UPDATE @worker SET dead = true WHERE NOT dead")
            await other.run(
                "INSERT INTO @worker (id, host, process) VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE "
                "SET host = excluded.host, process = excluded.process, since = now(), beat = 0, dead = false",
                (worker, socket.gethostname(), os.getpid()),
            )
        except BaseException:
            session.drop()
            raise
        return cls(place, worker, session)

    def watch(self, lost: Callable[[StoreInUse], None]) -> None:
        """From now on look whether the lock is still held, and take it again where the connection was lost.

        Args:
            lost: called once, when another engine has taken it.
        """
        self._task = asyncio.get_running_loop().create_task(self._renew(lost))

    async def _renew(self, lost: Callable[[StoreInUse], None]) -> None:
        while not self._over:
            await asyncio.sleep(RENEW_S)
            try:
                await self._session.plain("SELECT 1")
                continue
            except Exception:
                self._session.drop()
            if self._over:
                return
            try:
                self._session = await _locked(self._place, None)
            except StoreInUse as error:
                lost(error)
                return
            except StoreUnavailable:
                continue  # nor can anybody else reach it, or they can and will have it

    async def release(self, readers: Readers) -> None:
        """Stop being the owner, and say so if that is possible."""
        with contextlib.suppress(Exception):
            await readers.read(lambda s: s.run("UPDATE @worker SET dead = true WHERE id = %s", (self._worker,)))
        self.drop()

    def ending(self) -> asyncio.Task[None] | None:
        """The task that is coming to its end."""
        return self._task

    def drop(self) -> None:
        """As a killed process would."""
        self._over = True
        if self._task is not None:
            self._session.end(self._task)
        self._session.drop()


async def _locked(place: Place, other: Session | None) -> Session:
    session = await Session.connect(place)
    try:
        await session.plain("BEGIN ISOLATION LEVEL READ COMMITTED")
        await session.plain("SET LOCAL idle_in_transaction_session_timeout = 0")
        give_up = asyncio.get_running_loop().time() + PATIENCE_S
        while await session.plain(f"SELECT 1 WHERE pg_try_advisory_xact_lock({place.key('owner')})") is None:
            if asyncio.get_running_loop().time() > give_up:
                raise StoreInUse(
                    f"{place.shown} is in use by {await _holder(other or session)}; "
                    "one engine owns a store, stop that one first"
                )
            await asyncio.sleep(0.02)
    except BaseException:
        session.drop()
        raise
    return session


async def _holder(session: Session) -> str:
    found = await session.one(
        "SELECT id, process, host, to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') "
        "FROM @worker WHERE NOT dead ORDER BY since DESC LIMIT 1"
    )
    if found is None:
        return "another engine"
    worker, process, host, since = found
    return f"worker {worker} (process {process} on {host}, since {since})"
