"""Transactions in which handlers write: an effect and the success of its step in one commit [I-1].

Each has a connection for as long as its handler runs; a few of them are kept. The fact is appended on that connection,
by the statements of a group of one, so that fencing and the check of the predecessor hold for the effect as well.

A commit whose answer is lost cannot be sent again: the effect is gone with the connection. So the transaction has a
number before it is committed, and the server is asked what became of that [J-14]; what decides is the append's row,
looked for when that number is not in progress any more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from perdure.errors import InvalidArgument, StoreUnavailable, StoreUnusable
from perdure.ports.changes import change_of
from perdure.ports.joining import TransactionEnded, TransactionLost
from perdure.ports.store import Append, AppendResult, Committed, Trouble
from perdure.storage.postgres.group import apply_group
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.readers import Readers
from perdure.storage.postgres.session import Row, Session, explained
from perdure.storage.postgres.telling import written

MAX_TRANSACTIONS = 8
"""Handlers that write at the same time; further ones wait for their turn."""
ROLLBACK_S = 5.0
FIRST_LOOK_S = 0.02
LAST_LOOK_S = 2.0

_MARK = "SELECT pg_current_xact_id()::text, current_setting('perdure.attempt', true)"
_OWN = "SELECT 1 FROM @journal WHERE run = %s AND first_seq = %s AND append_id = %s"


class Transactions:
    """Gives transactions to handlers.

    Args:
        store: the random name of the store.
        teller: in whose name commits are told.

    Attributes:
        worker: the identity in which handlers write from now on; what was begun under another ends with that [R-3].
    """

    def __init__(
        self, place: Place, store: str, teller: str, readers: Readers, on_trouble: Callable[[Trouble], None]
    ) -> None:
        self.place = place
        self.readers = readers
        self.on_trouble = on_trouble
        self.teller = teller
        self.over = False
        self.worker = ""
        self._store = store
        self._room = asyncio.Semaphore(MAX_TRANSACTIONS)
        self._idle: list[Session] = []
        self._used: set[Session] = set()

    async def begin(self) -> HandlerTransaction:
        """A new transaction, on a connection of its own.

        Raises:
            StoreUnavailable: the server does not answer, or the store was closed.
        """
        await self._room.acquire()
        mark = os.urandom(8).hex()
        try:
            session = await self._begun(mark)
        except BaseException:
            self._room.release()
            raise
        self._used.add(session)
        return HandlerTransaction(self, session, mark)

    async def _begun(self, mark: str) -> Session:
        while True:
            kept = bool(self._idle)
            session = self._idle.pop() if kept else await self._connected()
            try:
                if self.over:
                    raise StoreUnavailable(f"the store {self.place.shown} was closed")
                begin = f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL perdure.attempt = '{mark}'"
                await session.plain(begin)
                session.worker = self.worker
                return session
            except BaseException as error:
                session.drop()
                if isinstance(error, psycopg.Error):
                    if kept:  # it was lost while nobody used it
                        continue
                    raise StoreUnavailable(explained(error, self.place)) from error
                raise

    async def _connected(self) -> Session:
        session = await Session.connect(self.place, for_handlers=True)
        try:
            found = await session.one("SELECT store::text FROM @meta")
        except BaseException as error:
            session.drop()
            if isinstance(error, psycopg.Error):
                raise StoreUnavailable(explained(error, self.place)) from error
            raise
        if found is None or found[0] != self._store:
            session.drop()
            raise StoreUnusable(f"{self.place.shown} is another store by now, perhaps restored from a backup")
        return session

    def ended(self, session: Session) -> None:
        """Take a connection back; one that is still inside of something is closed."""
        if session not in self._used:
            return
        self._used.discard(session)
        self._room.release()
        if self.over or session.lost or session.con.info.transaction_status != TransactionStatus.IDLE:
            session.busy = session.con.info.transaction_status == TransactionStatus.ACTIVE
            session.drop()
        else:
            self._idle.append(session)

    def abort(self) -> None:
        """Close everything at once."""
        self.over = True
        for session in list(self._used):
            self.ended(session)
        for session in self._idle:
            session.drop()
        self._idle = []


class HandlerTransaction:
    """See `OwnTransaction`."""

    def __init__(self, owner: Transactions, session: Session, mark: str) -> None:
        self._owner = owner
        self._session = session
        self._mark = mark
        self._done = False

    @property
    def connection(self) -> psycopg.AsyncConnection[Row]:
        return self._session.con

    async def commit(self, append: Append, /) -> AppendResult:
        session, owner = self._session, self._owner
        if session.con.info.transaction_status == TransactionStatus.IDLE and not session.lost:
            raise self._ended_by_handler()
        try:
            number, result = await self._append(append)
        except Exception as error:
            await self.rollback()
            if isinstance(error, TransactionEnded):
                raise
            raise TransactionLost(self._said(error)) from error
        if not isinstance(result, Committed):
            return result
        try:
            await session.plain("COMMIT")
        except Exception as error:
            if (
                not session.lost and session.con.info.transaction_status == TransactionStatus.IDLE
            ):  # the server has answered: a constraint that is checked at the end, for instance
                await self.rollback()
                raise TransactionLost(self._said(error)) from error
            self._end()
            return await self._decided(number, append, error)
        except BaseException:
            self._end()
            raise
        self._end()
        if owner.over:
            raise StoreUnavailable(f"the store {owner.place.shown} was closed")
        return result

    async def rollback(self) -> None:
        if self._done:
            return
        try:
            async with asyncio.timeout(ROLLBACK_S):
                await self._session.rolled_back()
        except TimeoutError:  # something that the handler left behind is still at it
            pass
        finally:
            self._end()

    def drop(self) -> None:
        self._end()

    # --- inside

    async def _append(self, append: Append) -> tuple[str, AppendResult]:
        """The transaction's number, and what becomes of the append in it."""
        session, owner = self._session, self._owner
        session.con.row_factory = tuple_row  # whatever the handler made of it
        session.con.cursor_factory = psycopg.AsyncCursor
        result = (await apply_group(session, owner.place, [append]))[0]
        if isinstance(result, bool):
            raise TypeError("an append answers with a result")
        if not isinstance(result, Committed):
            return "", result
        change = change_of(append)
        if change is not None:
            await session.run("SELECT pg_notify(%s, %s)", (owner.place.channel, written(owner.teller, change)))
        found = await session.one(_MARK)
        if found is None or found[1] != self._mark:
            raise self._ended_by_handler()
        return str(found[0]), result

    async def _decided(self, number: str, append: Append, error: Exception) -> AppendResult:
        """What has become of a commit whose answer was lost; asked until the server knows.

        Raises:
            TransactionLost: it was not committed, and will not be.
            StoreUnavailable: the store was closed before anybody knew.
        """
        owner = self._owner
        own = (append.locator, append.first_seq, append.append_id)
        delay_s = FIRST_LOOK_S
        while True:
            try:
                if not await self._is_open(number) and not owner.over:
                    if await owner.readers.read(lambda s: s.one(_OWN, own)) is not None:
                        return Committed(append.locator)
                    raise TransactionLost(self._said(error)) from error
            except StoreUnavailable as problem:
                if owner.over or isinstance(problem, StoreUnusable):
                    raise
                owner.on_trouble(Trouble(str(problem), delay_s, fatal=False))
            if owner.over:
                raise StoreUnavailable(f"the store {owner.place.shown} was closed")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, LAST_LOOK_S)

    async def _is_open(self, number: str) -> bool:
        """Whether a transaction may still be committed."""
        try:
            found = await self._owner.readers.read(
                lambda s: s.one("SELECT pg_xact_status(%s::text::xid8)::text", (number,))
            )
        except InvalidArgument:  # a number that this server never gave: it is another one, without that transaction
            return False
        return found is not None and found[0] == "in progress"

    def _ended_by_handler(self) -> TransactionEnded:
        return TransactionEnded("the handler itself ended the transaction that `inv.tx` gave it")

    def _said(self, error: Exception) -> str:
        return f"the transaction was not committed: {explained(error, self._owner.place)}"

    def _end(self) -> None:
        if not self._done:
            self._done = True
            self._owner.ended(self._session)
