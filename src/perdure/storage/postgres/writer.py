"""The one task of a store that writes: everything queued so far goes in one transaction [J-14, R-8].

A commit whose answer is lost may have happened or not, and looking it up proves nothing while the server may still be
at it. So whatever goes wrong, the same group is sent again: what was committed is recognised by its append ids, and the
journal's key makes whoever is second wait for whoever is first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
import psycopg

from perdure.errors import InvalidArgument, PerdureError, StoreUnavailable, StoreUnusable
from perdure.ports.store import Append, Trouble
from perdure.storage.postgres.group import Entry, SlotMoved, apply_group, apply_steps, is_one_statement, wakes_others
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.schema import prepare
from perdure.storage.postgres.session import Session, error_kind, explained

T = TypeVar("T")

MAX_GROUP = 1024
MAX_GROUP_BYTES = 4 << 20
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0
AGAIN_AT_ONCE = 10
"""How often a group that met another one is sent again before that is trouble."""


class Work(msgspec.Struct, gc=False):
    """Something that is not part of a group: it has a transaction of its own."""

    run: Callable[[Session], Awaitable[object]]


Job: TypeAlias = tuple["asyncio.Future[Any] | None", "Entry | Work"]


class Writer:
    """Commits jobs one transaction after the other.

    Args:
        session: connected; the writer's from now on.
        store: the random name of the store; a server that answers with another is another store.
        ident: who notifies.

    Attributes:
        fatal: why nothing is written any more.
    """

    def __init__(
        self, place: Place, session: Session, store: str, ident: str, on_trouble: Callable[[Trouble], None]
    ) -> None:
        self.fatal: StoreUnavailable | None = None
        self._place = place
        self._session: Session | None = session
        self._store = store
        self._ident = ident
        self._on_trouble = on_trouble
        self._jobs: list[Job] = []
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._closing = self._aborted = False
        self._serving: Sequence[Job] = ()
        self._task = asyncio.get_running_loop().create_task(self._main())

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)
        self._wake.set()

    async def close(self) -> None:
        """Finish what was put so far; a group in trouble gets one more chance."""
        self._closing = True
        self._hurry.set()
        self._wake.set()
        await asyncio.wait([self._task])

    def abort(self) -> None:
        """Stop at once. Whoever still waits is canceled."""
        self._closing = self._aborted = True
        for future, _ in (*self._serving, *self._jobs):
            if future is not None:
                future.cancel()
        self._jobs = []
        if self._session is not None:
            self._session.end(self._task)
        else:
            self._task.cancel()

    def give_up(self, error: StoreUnavailable) -> None:
        """Write nothing any more, and say so."""
        if self.fatal is None:
            self.fatal = error
            self._on_trouble(Trouble(str(error), 0.0, fatal=True))

    # --- the task

    async def _main(self) -> None:
        try:
            while self._jobs or not self._closing:
                await self._wake.wait()
                self._wake.clear()
                jobs, self._jobs = self._jobs, []
                for part in _parts(jobs):
                    self._serving = part
                    try:
                        await self._serve(part)
                    except Exception as error:  # a bug of ours must not look like a store that never answers
                        self.give_up(StoreUnusable(f"the writer of {self._place.shown} broke: {error!r}"))
                        _refuse(part, self.fatal)
                    self._serving = ()
        finally:
            self._drop()

    async def _serve(self, jobs: Sequence[Job]) -> None:
        if self.fatal is not None:
            _refuse(jobs, self.fatal)
            return
        future, entry = jobs[0]
        try:
            if isinstance(entry, Work):
                results: Sequence[object] = [await self._insist(lambda: self._transaction(entry.run, notify=True))]
            else:
                results = await self._commit([job[1] for job in jobs if not isinstance(job[1], Work)])
        except InvalidArgument as error:
            if len(jobs) == 1:
                _refuse(jobs, error)
            else:  # one of them cannot be stored at all: find out which, without hurting the others
                for job in jobs:
                    await self._serve([job])
            return
        except PerdureError as error:
            _refuse(jobs, error)
            return
        for (future, _), result in zip(jobs, results, strict=True):
            if future is not None and not future.done():
                future.set_result(result)

    async def _commit(self, entries: Sequence[Entry]) -> Sequence[object]:
        if is_one_statement(entries):
            return await self._insist(lambda: self._steps(entries))
        notify = any(map(wakes_others, entries))
        return await self._insist(
            lambda: self._transaction(lambda session: apply_group(session, self._place, entries), notify=notify)
        )

    async def _steps(self, entries: Sequence[Entry]) -> Sequence[object]:
        session = await self._connected()
        try:
            return await apply_steps(session, entries)
        except BaseException:
            if session.lost:
                self._drop()
            raise

    async def _transaction(self, work: Callable[[Session], Awaitable[T]], *, notify: bool) -> T:
        session = await self._connected()
        try:
            await session.plain("BEGIN ISOLATION LEVEL READ COMMITTED")
            result = await work(session)
            if notify:
                await session.run("SELECT pg_notify(%s, %s)", (self._place.channel, self._ident))
            await session.plain("COMMIT")
        except BaseException:
            if not await session.rolled_back():
                self._drop()
            raise
        return result

    async def _connected(self) -> Session:
        if self._session is None or self._session.lost:
            session = await Session.connect(self._place)
            try:
                found = await prepare(session, self._place)
                if found != self._store:
                    raise StoreUnusable(f"{self._place.shown} is another store by now, perhaps restored from a backup")
            except StoreUnusable as error:
                self.give_up(error)
                session.drop()
                raise
            except BaseException:
                session.drop()
                raise
            self._session = session
        return self._session

    async def _insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat until it succeeds, telling of trouble.

        Raises:
            InvalidArgument: the data cannot be stored.
            StoreUnusable: the tables are lost.
            StoreUnavailable: the store was closed while in trouble.
        """
        delay_s = FIRST_RETRY_S
        met = 0
        while True:
            last_chance = self._closing
            try:
                return await attempt()
            except Exception as error:
                if self.fatal is not None:
                    raise self.fatal from error
                if self._aborted:
                    raise StoreUnavailable("the store was aborted") from error
                kind = "again" if isinstance(error, SlotMoved) else error_kind(error)
                if kind == "data":
                    raise InvalidArgument(f"this cannot be stored: {error}") from error
                if kind == "fatal":
                    lost = StoreUnusable(f"{explained(error, self._place)}; restore it from a backup")
                    self.give_up(lost)
                    raise lost from error
                if kind == "again" and met < AGAIN_AT_ONCE:
                    met += 1
                    continue
                problem = str(error) if isinstance(error, PerdureError) else explained(error, self._place)
                if not isinstance(error, (psycopg.Error, OSError, PerdureError, SlotMoved)):
                    raise  # ours
                if last_chance:
                    raise StoreUnavailable(f"closed before it could be written: {problem}") from error
                self._on_trouble(Trouble(problem, delay_s, fatal=False))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), delay_s)
            delay_s = min(LAST_RETRY_S, delay_s * 2)

    def _drop(self) -> None:
        if self._session is not None:
            self._session.drop()
            if self._session.con.closed:
                self._session = None


def _refuse(jobs: Sequence[Job], error: PerdureError | None) -> None:
    for future, _ in jobs:
        if future is not None and not future.done():
            future.set_exception(error or StoreUnavailable("the store was closed"))


def _parts(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Groups of bounded size; works alone; order kept."""
    part: list[Job] = []
    size = 0
    for job in jobs:
        entry = job[1]
        alone = isinstance(entry, Work)
        if part and (alone or len(part) >= MAX_GROUP or size >= MAX_GROUP_BYTES):
            yield part
            part, size = [], 0
        if alone:
            yield [job]
            continue
        part.append(job)
        if type(entry) is Append:
            size += len(entry.facts)
    if part:
        yield part
