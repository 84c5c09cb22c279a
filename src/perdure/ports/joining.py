"""Writing in a transaction that is not the store's own: a caller's, or one of a handler's [I-1]."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeAlias

from perdure.ports.records import Append, AppendResult, LoadedRun, SubmissionKey


class EndsTransactions(Protocol):
    """A connection that ends its transaction itself: psycopg's, SQLAlchemy's connections and sessions."""

    def commit(self) -> object: ...
    def rollback(self) -> object: ...


class KnowsTransaction(Protocol):
    """A connection that says whether it is in a transaction: asyncpg's."""

    def is_in_transaction(self) -> bool: ...


CallerConnection: TypeAlias = EndsTransactions | KnowsTransaction
"""A connection of the caller's, in the database in which the store stands: of psycopg 3 (`Connection`,
`AsyncConnection`), of asyncpg, or of SQLAlchemy over one of them (`Connection`, `Session`, `AsyncConnection`,
`AsyncSession`)."""


class Journal(Protocol):
    """Where runs are read and appended to: a store, or one open transaction of its database.

    In a transaction whatever is written becomes true when that is committed, by whoever opened it, and reads see it
    before.
    """

    def append(self, append: Append, /) -> Awaitable[AppendResult]:
        """See `Store.append`. In a transaction it is `Committed` as far as that goes."""
        ...

    async def load(self, run_id: str, /) -> LoadedRun | None:
        """See `Store.load`."""
        ...

    async def load_all_rows(self, run_id: str, /) -> LoadedRun | None:
        """See `Store.load_all_rows`."""
        ...

    async def claim_key(self, key: SubmissionKey, now_us: int, /) -> SubmissionKey:
        """See `Store.claim_key`."""
        ...


class OwnTransaction(Protocol):
    """A transaction of the store's own, in which a handler may write [I-1].

    Attributes:
        connection: the driver's, inside the transaction. Whoever uses it neither commits nor rolls back.
    """

    @property
    def connection(self) -> object: ...

    async def commit(self, append: Append, /) -> AppendResult:
        """Append, and commit together with whatever was written on the connection.

        Returns:
            `Committed`; anything else leaves the transaction open, with nothing appended: another append may be tried.

        Raises:
            TransactionLost: nothing of it is committed, and nothing will be. What the server did not like is its cause.
            TransactionEnded: somebody else has committed or rolled back.
            StoreUnavailable: the store was closed before it could be found out [J-14].
        """
        ...

    async def rollback(self) -> None:
        """Undo everything. Idempotent, and nothing after a commit; never an error."""
        ...

    def drop(self) -> None:
        """As `rollback`, at once, by letting go of the connection where nothing else helps."""
        ...


class TransactionLost(Exception):  # a signal: the attempt that it was for has failed
    """Nothing that was written in a transaction is committed; says why, for people."""


class TransactionEnded(Exception):  # a signal: the handler broke its contract
    """A transaction was committed or rolled back by whoever was to leave that alone."""
