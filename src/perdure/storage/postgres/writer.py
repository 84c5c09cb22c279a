"""What writes for a store: everything queued so far goes together, in one transaction [J-14, R-8].

Most groups need one round trip, and are sent straight from the queue, a second one while the first is on its way. What
needs more than that is done by a task, one after the other, with nothing else on its way.

A commit whose answer is lost may have happened or not, and looking it up proves nothing while the server may still be
at it. So whatever goes wrong, the same appends are sent again: what was committed is recognised by its append ids, and
the journal's key makes whoever is second wait for whoever is first.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import psycopg
from psycopg.pq.abc import PGresult

from perdure.errors import InvalidArgument, PerdureError, StoreUnavailable, StoreUnusable
from perdure.ports.store import Append, AppendResult, Trouble
from perdure.storage.postgres.aside import Aside
from perdure.storage.postgres.entries import Entry, EntryResult, told
from perdure.storage.postgres.group import SlotMoved, apply_group
from perdure.storage.postgres.jobs import MAX_GROUP, Blocked, Job, Work, answer, parts, refuse, transaction
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.schema import prepare
from perdure.storage.postgres.session import CLOSING_S, Session, Silent, error_kind, explained
from perdure.storage.postgres.single import Single, divide, results, statements
from perdure.storage.postgres.telling import written
from perdure.storage.postgres.wire import Wire, prepared

T = TypeVar("T")

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0
PATIENCE_MS = 50
"""How long a group waits for a lock; after that it is sent one by one, and who waits still waits aside."""
PATIENCE_ALONE_MS = 10
AGAIN_AT_ONCE = 10
"""How often a group that met another one is sent again before that is trouble."""
ON_THE_WAY = 2
"""Groups at once: while the server does one, the next comes to be."""
HALVED_FROM = 16
"""Of a larger group, half is answered first where nothing else is on its way: the other half would only wait for it."""


class Writer:
    """Commits jobs one transaction after the other.

    Args:
        session: connected; the writer's from now on.
        store: the random name of the store; a server that answers with another is another store.
        ident: who notifies.
        patience_s: for how long of an outage what is asked for is tried: for ever for an engine, whose runs wait.

    Attributes:
        fatal: why nothing is written any more.
    """

    def __init__(
        self,
        place: Place,
        session: Session,
        store: str,
        ident: str,
        on_trouble: Callable[[Trouble], None],
        patience_s: float = math.inf,
    ) -> None:
        self.fatal: StoreUnavailable | None = None
        self._place = place
        self._session: Session | None = session
        self._store = store
        self._ident = ident
        self._on_trouble = on_trouble
        self._patience_s = patience_s
        self._trouble_s: float | None = None
        self._hopeless: StoreUnavailable | None = None
        self._jobs: list[Job] = []
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._closing = self._aborted = False
        self._serving: Sequence[Job] = ()
        self._returned: list[Job] = []
        self._wire: Wire | None = None
        self._loop = asyncio.get_running_loop()
        self._looks = self._has_connection = False
        self._aside = Aside(place, ident, self._new_session, self.put, self._wake.set, on_trouble)
        self._task = self._loop.create_task(self._main())

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)
        if not self._looks:
            self._looks = True
            self._loop.call_soon(self._look)

    async def close(self) -> None:
        """Finish what was put so far; a group in trouble gets one more chance, and after it nobody else does."""
        self._closing = True
        self._hurry.set()
        self._aside.close()
        if self._session is not None:
            self._session.hasten(CLOSING_S)
        self._wake.set()
        await asyncio.wait([self._task])

    def abort(self) -> None:
        """Stop at once. Whoever still waits is canceled."""
        self._closing = self._aborted = True
        if self._wire is not None:
            self._wire.abort()
        for future, *_ in (*self._returned, *self._serving, *self._jobs):
            if future is not None:
                future.cancel()
        self._returned, self._jobs = [], []
        self._aside.abort()
        if self._session is not None:
            self._session.end(self._task)
        else:
            self._task.cancel()

    def give_up(self, error: StoreUnavailable) -> None:
        """Write nothing any more, and say so."""
        if self.fatal is None:
            self.fatal = error
            self._aside.close()
            self._on_trouble(Trouble(str(error), 0.0, fatal=True))

    def _broke(self, error: Exception) -> None:
        """A bug of ours must not look like a store that never answers."""
        self.give_up(StoreUnusable(f"the writer of {self._place.shown} broke: {error!r}"))

    # --- straight from the queue

    def _look(self) -> None:
        """Send what is queued, if that is possible now; otherwise whoever is in the way looks again."""
        self._looks = False
        try:
            self._send_what_is_queued()
        except Exception as error:
            self._broke(error)
            self._wake.set()

    def _send_what_is_queued(self) -> None:
        while self._jobs and not self._has_connection and not self._closing:
            wire = self._wire_now()
            if wire is None:
                self._wake.set()
                return
            if wire.in_flight >= ON_THE_WAY:
                return
            quick, rest = divide(self._jobs[:MAX_GROUP], self._aside.concerns)
            if rest:
                self._wake.set()
            if not quick:
                return
            jobs = next(parts(quick))
            self._jobs = [*rest, *quick[len(jobs) :], *self._jobs[MAX_GROUP:]]
            self._send(wire, jobs)

    def _wire_now(self) -> Wire | None:
        """What sends on our connection; None if there is none, or nothing may be sent on it that way."""
        session = self._session
        if session is None or session.lost or self.fatal is not None or self._returned or self._place.pooler:
            return None
        if self._wire is None or self._wire.session is not session:
            self._wire = wire = Wire(session)
            wire.send(prepared([(f"SET lock_timeout = {PATIENCE_MS}", ())]), lambda said: self._is_set(wire, said))
        return self._wire

    def _is_set(self, wire: Wire, outcome: object) -> None:
        if isinstance(outcome, Exception):
            self._tell_loss(wire, outcome)

    def _send(self, wire: Wire, jobs: Sequence[Job]) -> None:
        try:
            group = Single.of(jobs)
            said = prepared(statements(group, jobs[0][2], self._place, self._ident))
        except Exception:  # something cannot be said to the server; alone it is found out what
            self._give_back(jobs)
        else:
            wire.send(said, partial(self._landed, wire, jobs, group))

    def _landed(self, wire: Wire, jobs: Sequence[Job], group: Single, outcome: list[PGresult] | Exception) -> None:
        if isinstance(outcome, Exception):
            committed: Mapping[str, AppendResult] = {}
            self._tell_loss(wire, outcome)
        else:
            committed = results(group, outcome)
        won: list[tuple[Job, AppendResult]] = []
        lost: list[Job] = []
        for job in jobs:
            result = committed.get(job[1].run_id) if isinstance(job[1], Append) else None
            if result is None:
                lost.append(job)
            else:
                won.append((job, result))
        if lost:
            self._give_back(lost)
        first = len(won) // 2 if len(won) >= HALVED_FROM and not wire.in_flight else len(won)
        _answer(won[:first])
        if first < len(won):
            self._loop.call_soon(_answer, won[first:])
        self._look()

    def _tell_loss(self, wire: Wire, error: Exception) -> None:
        """Tell once that a connection was lost, with whatever was on its way."""
        if wire.session.lost and wire is self._wire and not self._aborted:
            self._wire = None
            if self._trouble_s is None:
                self._trouble_s = self._loop.time() - (self._place.answer_s if isinstance(error, Silent) else 0.0)
            self._on_trouble(Trouble(self._problem(error), FIRST_RETRY_S, fatal=False))

    def _give_back(self, jobs: Sequence[Job]) -> None:
        """Let the task find out what is the matter with jobs that were not committed, or perhaps were."""
        self._returned += jobs
        self._wake.set()

    # --- the task

    async def _main(self) -> None:
        try:
            while self._has_work() or not self._closing:
                await self._wake.wait()
                self._wake.clear()
                self._has_connection = True
                if self._wire is not None:
                    await self._wire.leave()
                jobs, self._returned, self._jobs = [*self._returned, *self._jobs], [], []
                for part in parts([job for job in jobs if not self._waits_aside(job)]):
                    self._serving = part
                    try:
                        await self._serve(part)
                    except Exception as error:
                        self._broke(error)
                        refuse(part, self.fatal)
                    self._serving = ()
                self._has_connection = False
                self._look()
        finally:
            self._drop()

    def _has_work(self) -> bool:
        on_the_way = self._wire is not None and self._wire.in_flight > 0
        return bool(self._jobs or self._returned) or on_the_way or self._aside.busy

    def _waits_aside(self, job: Job) -> bool:
        """Whether what a job wants is waited for already; then it waits there, too."""
        waits = self._aside.concerns(job)
        if waits:
            self._aside.put(job)
        return waits

    async def _serve(self, jobs: Sequence[Job], patience_ms: int = PATIENCE_MS) -> None:
        if self.fatal is not None or self._hopeless is not None:
            refuse(jobs, self.fatal or self._hopeless)
            return
        _, entry, worker = jobs[0]
        try:
            if isinstance(entry, Work):
                results: Sequence[object] = [
                    await self._insist(lambda: self._transaction(entry.do, worker, self._ident, patience_ms))
                ]
            else:
                entries = [job[1] for job in jobs if not isinstance(job[1], Work)]
                results = await self._commit(entries, worker, patience_ms)
        except (InvalidArgument, Blocked) as error:
            if len(jobs) > 1:  # find out which one it is, without hurting the others
                for job in jobs:
                    await self._serve([job], PATIENCE_ALONE_MS)
            elif isinstance(error, InvalidArgument):
                refuse(jobs, error)
            else:
                self._aside.put(jobs[0])
            return
        except PerdureError as error:
            refuse(jobs, error)
            return
        for job, result in zip(jobs, results, strict=True):
            answer(job, result)

    async def _commit(self, entries: Sequence[Entry], worker: str, patience_ms: int) -> Sequence[object]:
        tells = written(self._ident, told(entries))

        async def apply(session: Session) -> list[EntryResult]:
            return await apply_group(session, self._place, entries)

        return await self._insist(lambda: self._transaction(apply, worker, tells, patience_ms))

    async def _transaction(
        self, work: Callable[[Session], Awaitable[T]], worker: str, tells: str, patience_ms: int
    ) -> T:
        session = await self._connected(worker)
        try:
            return await transaction(session, self._place, work, patience_ms=patience_ms, tells=tells)
        except BaseException:
            if session.lost:
                self._drop()
            raise

    async def _connected(self, worker: str) -> Session:
        if self._session is None or self._session.lost:
            self._session = await self._new_session()
        self._session.worker = worker
        return self._session

    async def _new_session(self) -> Session:
        session = await Session.connect(self._place)
        try:
            found = await prepare(session, self._place, known=True)
            if found != self._store:
                raise StoreUnusable(f"{self._place.shown} is another store by now, perhaps restored from a backup")
        except StoreUnusable as error:
            self.give_up(error)
            session.drop()
            raise
        except BaseException:
            session.drop()
            raise
        if self._closing:
            session.hasten(CLOSING_S)
        return session

    async def _insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat until it succeeds, telling of trouble.

        Raises:
            InvalidArgument: the data cannot be stored.
            StoreUnusable: the tables are lost.
            StoreUnavailable: the store was closed while in trouble, or trouble outlasts the patience.
        """
        loop = asyncio.get_running_loop()
        delay_s = FIRST_RETRY_S
        met = 0
        while True:
            last_chance, began_s = self._closing, loop.time()
            try:
                result = await attempt()
                self._trouble_s = None
                return result
            except Exception as error:
                if self.fatal is not None:
                    raise self.fatal from error
                if self._aborted:
                    raise StoreUnavailable("the store was aborted") from error
                if isinstance(error, Blocked):
                    raise
                kind = "again" if isinstance(error, SlotMoved) else error_kind(error)
                if kind == "data":
                    raise InvalidArgument(f"this cannot be stored: {error}") from error
                if kind == "fatal":
                    forbidden = isinstance(error, psycopg.errors.InsufficientPrivilege)
                    advice = "" if forbidden else "; restore it from a backup"
                    lost = StoreUnusable(f"{explained(error, self._place)}{advice}")
                    self.give_up(lost)
                    raise lost from error
                if kind == "again" and met < AGAIN_AT_ONCE:
                    met += 1
                    continue
                problem = self._problem(error)
                if not isinstance(error, (psycopg.Error, OSError, PerdureError, SlotMoved)):
                    raise  # ours
                if last_chance:
                    self._hopeless = StoreUnavailable(f"closed before it could be written: {problem}")
                    raise self._hopeless from error
                if self._trouble_s is None:
                    self._trouble_s = began_s
                if loop.time() - self._trouble_s >= self._patience_s:
                    raise StoreUnavailable(
                        f"given up after {self._patience_s:g} s, and it may have been written all the same: {problem}"
                    ) from error
                self._on_trouble(Trouble(problem, delay_s, fatal=False))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), delay_s)
            delay_s = min(LAST_RETRY_S, delay_s * 2)

    def _problem(self, error: Exception) -> str:
        return str(error) if isinstance(error, PerdureError) else explained(error, self._place)

    def _drop(self) -> None:
        if self._session is not None:
            self._session.drop()
            if self._session.con.closed:
                self._session = None


def _answer(results: Sequence[tuple[Job, AppendResult]]) -> None:
    for job, result in results:
        answer(job, result)
