"""Appends in a transaction of a caller's, on its own connection [I-1].

Nothing here spoils that transaction: what is refused is found out by looking, or undone to a savepoint. What the server
itself refuses, such as a serialization failure, comes to the caller as its driver says it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure.errors import InvalidArgument, StoreUnavailable
from perdure.ports.store import TERMINAL, Append, AppendResult, Committed, IndexState, LoadedRun, SubmissionKey
from perdure.storage.postgres import keys, mutexes, queries
from perdure.storage.postgres.foreign import statements_of
from perdure.storage.postgres.group import FLAG_OWNED, UPDATE_STATE, SlotMoved, submit, why_lost
from perdure.storage.postgres.inserts import FITS, NEXT_COLUMNS
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.rows import state_values
from perdure.storage.postgres.session import Statements

AGAIN = 10
"""How often a slot that was given back between two looks is asked for again."""
CALLER = "caller"
"""In whose name a commit is told: not in this store's, which knows of its own commits only."""

_TABLE = """
    SELECT c.oid IS NOT NULL, coalesce(has_schema_privilege(s.oid, 'USAGE'), false),
           coalesce(has_table_privilege(c.oid, 'SELECT, INSERT'), false),
           current_setting('transaction_read_only') = 'on', current_database()::text, current_user::text
    FROM (SELECT %s::text AS name) asked
    LEFT JOIN pg_namespace s ON s.nspname = asked.name
    LEFT JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = 'meta'
"""
_APPEND = f"""
    INSERT INTO @journal ({NEXT_COLUMNS})
    SELECT {NEXT_COLUMNS} FROM (VALUES (
        %s::bigint, %s::bigint, %s::bigint, %s::bigint, %s::bytea, %s::bytea, %s::text,
        %s::bigint, %s::bytea, %s::bigint
    )) s ({NEXT_COLUMNS}, prev_seq, prev_hash, token)
    WHERE {FITS} ON CONFLICT DO NOTHING RETURNING run
"""


async def join(
    connection: object, place: Place, store: str, keep_ledger: Callable[[IndexState], Awaitable[None]]
) -> JoinedTransaction:
    """The caller's open transaction, as something to append to.

    Args:
        store: the random name of the store.
        keep_ledger: keeps a ledger that a state comes with, in a transaction of its own: nobody else who has it is to
            wait for the caller.

    Raises:
        InvalidArgument: the connection is of no known kind, not in a transaction, or not in the store's database.
    """
    statements = await statements_of(connection, place.schema)
    found = await statements.one(_TABLE, (place.schema,))
    there, usable, writable, read_only, database, user = found or (False,) * 6
    if not there:
        raise InvalidArgument(
            f"the connection is to database {database!r}, which has no store in a schema {place.schema!r}; "
            f"this store is {place.shown}, and only its own database can take part in the transaction"
        )
    if not usable or not writable:
        raise InvalidArgument(
            f"the connection's user {user!r} may not write the tables of {place.shown}; grant it the rights that the "
            "store's own user has on that schema"
        )
    if read_only:
        raise InvalidArgument("the connection's transaction is read-only")
    name = await statements.one("SELECT store::text FROM @meta")
    if name is None or name[0] != store:
        raise InvalidArgument(
            f"the connection is to another store in database {database!r}, schema {place.schema!r}; this one is "
            f"{place.shown}: the same server and database are needed"
        )
    return JoinedTransaction(statements, place, keep_ledger)


class JoinedTransaction:
    """A `Journal` in a transaction that somebody else commits, or rolls back."""

    def __init__(
        self, statements: Statements, place: Place, keep_ledger: Callable[[IndexState], Awaitable[None]]
    ) -> None:
        self._statements = statements
        self._place = place
        self._keep_ledger = keep_ledger
        self._kept: set[bytes] = set()

    async def append(self, append: Append, /) -> AppendResult:
        state = append.index
        if state is not None and state.ledger and state.signature not in self._kept:
            await self._keep_ledger(state)
            self._kept.add(state.signature)
        for _ in range(AGAIN):
            try:
                result = await self._append(append)
            except SlotMoved:
                continue
            if isinstance(result, Committed):
                await self._statements.run("SELECT pg_notify(%s, %s)", (self._place.channel, CALLER))
            return result
        raise StoreUnavailable(f"{self._place.shown}: a slot changes hands all the time; try again")

    async def load(self, run_id: str, /) -> LoadedRun | None:
        return await queries.load(self._statements, run_id)

    async def load_all_rows(self, run_id: str, /) -> LoadedRun | None:
        return await queries.load(self._statements, run_id, snapshot=False)

    async def claim_key(self, key: SubmissionKey, now_us: int, /) -> SubmissionKey:
        return await keys.claim(self._statements, key, now_us)

    async def _append(self, append: Append) -> AppendResult:
        statements, state = self._statements, append.index
        if append.new is not None:
            await mutexes.lock(statements, (append.new,))
            return await submit(statements, append, append.new)
        if append.token or (state is not None and (state.awaits or state.status in TERMINAL)):
            raise InvalidArgument("only facts from outside that do not end a run join a caller's transaction")
        await statements.run("SELECT n FROM @run WHERE n = %s FOR NO KEY UPDATE", (append.locator,))
        first = (append.locator, append.first_seq, append.count, append.at_us, append.append_id, append.hash)
        rest = (append.facts.decode(), append.prev_seq, append.prev_hash, append.token)
        if not await statements.rows(_APPEND, (*first, *rest)):
            return await why_lost(statements, append)
        if not await statements.run(FLAG_OWNED, (append.locator,)) and state is not None:
            await statements.run(UPDATE_STATE, (*state_values(state), append.locator))
        return Committed(append.locator)
