"""Hearing of other processes' commits: by LISTEN, and by looking where a pooler swallows notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.ports.store import ANYTHING, Change
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.readers import Readers
from perdure.storage.postgres.session import CONNECT_S, Session
from perdure.storage.postgres.telling import read

PROBE_S = 1.0
"""How long a notification to oneself may take before the way is taken to be deaf."""
FIRST_POLL_S = 0.02
LAST_POLL_S = 0.1
RETRY_S = 0.5


class Listener:
    """Calls back after commits of others.

    Args:
        ident: our own notifications carry it, and are no news.
        readers: one of these sends a notification to oneself.
        heard: called on the loop.
        back: called when it hears again, after it did not; before `heard`.
    """

    def __init__(
        self, place: Place, ident: str, readers: Readers, heard: Callable[[Change], None], back: Callable[[], None]
    ) -> None:
        self._place = place
        self._ident = ident
        self._readers = readers
        self._heard = heard
        self._back = back
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._over = False

    async def start(self) -> None:
        """Listen from now on; returns when nothing is missed any more."""
        self._task = asyncio.get_running_loop().create_task(self._main())
        up = asyncio.get_running_loop().create_task(self._up.wait())
        try:
            await asyncio.wait([self._task, up], timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        self._up.set()  # from now on something may be missed, if it is not up

    def stop(self) -> None:
        """Listen no more."""
        self._over = True
        if self._session is not None and self._task is not None:
            self._session.end(self._task)
        elif self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """After `stop`: let the task come to its end, and its connection with it."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _main(self) -> None:
        while not self._over:
            try:
                self._session = await Session.connect(self._place)
                if not self._place.pooler and await self._hears(self._session):
                    await self._listen(self._session)
                else:
                    await self._poll(self._session)
            except Exception:
                self._up.set()  # nobody waits for it: other ways lead to progress
                if not self._over:
                    await asyncio.sleep(RETRY_S)  # whoever writes or reads meets the same trouble and says so
            finally:
                session, self._session = self._session, None
                if session is not None:
                    session.drop()

    def _is_up(self) -> None:
        if self._up.is_set():
            self._back()
            self._heard(ANYTHING)  # back again: who knows what was missed
        self._up.set()

    async def _hears(self, session: Session) -> bool:
        """Whether a notification arrives at all."""
        await session.run(f'LISTEN "{self._place.channel}"')
        probe = f"probe {self._ident}"
        await self._readers.read(lambda s: s.run("SELECT pg_notify(%s, %s)", (self._place.channel, probe)))
        session.busy = True
        try:
            async with asyncio.timeout(PROBE_S):
                async for notification in session.con.notifies():
                    if notification.payload == probe:
                        return True
        except TimeoutError:
            return False
        finally:
            session.busy = False
        return False

    async def _listen(self, session: Session) -> None:
        """Hear, and ask now and then: a connection that something between has swallowed is as silent as nobody."""
        self._is_up()
        while True:
            session.busy = session.listening = True
            try:
                async for notification in session.con.notifies(timeout=self._place.answer_s):
                    change = read(notification.payload, self._ident)
                    if change is not None:
                        self._heard(change)
            finally:
                session.busy = session.listening = False
            await session.plain("SELECT")
            self._heard(ANYTHING)  # what came while that was answered

    async def _poll(self, session: Session) -> None:
        """Whether any transaction ended on the server. Ours are among them: then the look was for nothing."""
        seen = await session.one(_SEEN)
        self._is_up()
        pause_s = FIRST_POLL_S
        while True:
            await asyncio.sleep(pause_s)
            now = await session.one(_SEEN)
            pause_s = FIRST_POLL_S if now != seen else min(LAST_POLL_S, pause_s * 1.5)
            if now != seen:
                seen = now
                self._heard(ANYTHING)


_SEEN = "SELECT pg_current_snapshot()::text"
