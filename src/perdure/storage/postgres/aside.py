"""Jobs that wait for somebody else's open transaction, on connections beside the writer's [I-1].

A caller may write in a transaction of its own, for as long as it likes. Whoever wants the same slot or key, or appends
to the same run, has to wait for its end; nobody else has.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable

from perdure.errors import StoreUnavailable, StoreUnusable
from perdure.ports.store import Trouble
from perdure.storage.postgres.jobs import Blocked, Job, Subject, answer, do_alone, refuse, subjects
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.session import CLOSING_S, Session, TooManyConnections

MAX_ASIDE = 4
"""Jobs that wait at the same time, each on a connection; further ones take turns with them."""
TURN_MS = 1000
LAST_TURN_MS = 50
TOLD_AFTER = 10
"""Turns in vain after which somebody is told."""


class Aside:
    """Waits for what the writer must not wait for.

    Args:
        connect: gives a session on the same store.
        again: takes a job back that failed otherwise; the writer knows what to do.
        done: called when a job is off the list.
    """

    def __init__(
        self,
        place: Place,
        ident: str,
        connect: Callable[[], Awaitable[Session]],
        again: Callable[[Job], None],
        done: Callable[[], None],
        on_trouble: Callable[[Trouble], None],
    ) -> None:
        self._place = place
        self._ident = ident
        self._connect = connect
        self._again = again
        self._done = done
        self._on_trouble = on_trouble
        self._line: deque[tuple[Job, int]] = deque()
        self._subjects: Counter[Subject] = Counter()
        self._tasks: dict[asyncio.Task[None], Session | None] = {}
        self._jobs: dict[asyncio.Task[None], Job] = {}
        self._closing = False

    @property
    def busy(self) -> bool:
        """Whether any job waits here."""
        return bool(self._line or self._tasks)

    def concerns(self, job: Job) -> bool:
        """Whether a job wants what another one waits for already: it would only wait, too."""
        return bool(self._subjects) and any(subject in self._subjects for subject in subjects(job[1]))

    def put(self, job: Job) -> None:
        """Let a job wait here."""
        self._subjects.update(subjects(job[1]))
        self._line.append((job, 0))
        if len(self._tasks) < MAX_ASIDE:
            task = asyncio.get_running_loop().create_task(self._serve())
            self._tasks[task] = None
            task.add_done_callback(self._ended)

    def close(self) -> None:
        """From now on every job has one more turn."""
        self._closing = True
        for session in self._tasks.values():
            if session is not None:
                session.hasten(CLOSING_S)

    def abort(self) -> None:
        """Stop at once. Whoever still waits is canceled."""
        for future, *_ in [job for job, _ in self._line] + list(self._jobs.values()):
            if future is not None:
                future.cancel()
        self._line.clear()
        for task, session in self._tasks.items():
            if session is None:
                task.cancel()
            else:
                session.end(task)

    # --- a task of ours

    async def _serve(self) -> None:
        """Give one job after the other its turn."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("not in a task")
        session: Session | None = None
        try:
            while self._line:
                job, turns = self._line.popleft()
                self._jobs[task] = job
                try:
                    if session is None or session.lost:
                        self._tasks[task] = None
                        session = self._tasks[task] = await self._connect()
                    session.worker = job[2]
                    patience_ms = LAST_TURN_MS if self._closing else TURN_MS
                    answer(
                        job,
                        await do_alone(session, self._place, job[1], patience_ms=patience_ms, teller=self._ident),
                    )
                except Blocked:
                    if self._closing:
                        refuse([job], StoreUnavailable(f"closed before it could be written: {self._problem()}"))
                    else:
                        self._wait_on(job, turns + 1)
                        continue
                except StoreUnavailable as error:
                    if not isinstance(error, StoreUnusable) and not self._closing:
                        await asyncio.sleep(TURN_MS / 1000)
                        if isinstance(error, TooManyConnections):
                            self._wait_on(job, turns + 1)
                            continue
                    self._again(job)  # the writer knows for how long an outage is borne
                except Exception:
                    self._again(job)
                finally:
                    self._jobs.pop(task, None)
                self._subjects.subtract(subjects(job[1]))
                self._subjects = +self._subjects
                self._done()
        finally:
            if session is not None:
                session.drop()

    def _wait_on(self, job: Job, turns: int) -> None:
        if turns == TOLD_AFTER:
            self._on_trouble(Trouble(self._problem(), TURN_MS / 1000, fatal=False))
        self._line.append((job, turns))

    def _problem(self) -> str:
        return f"{self._place.shown}: an open transaction of somebody else holds a run, a slot or a key for long"

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # looked at; its job was given back
        self._done()
