"""The store port: an append-only journal of facts per run, and index rows that are derived from it.

One append is one row: the facts of one decision of one run, in one JSON text, chained by hash [J-11]. The row's key
(run, first sequence) is the version check [J-2]: whoever appends second at a place collides. Index rows change only
together with the append that changes their content, or by `set_index`, and can be rebuilt from the facts.

Contract of every driver, proved by the public conformance suite:

- An append is atomic with its index change. It is committed when its future resolves to `Committed`.
- Appends of many runs may share one transaction (group commit); one that is refused never hurts its neighbours.
- No two appends of one run travel in one group; a driver may assume that its caller awaits one before the next.
- A driver answers *unknown* outcomes itself: it sends the identical append again until it is committed (recognised by
  `append_id`), or refused [J-14]. Cancelling a caller never cancels an append in flight.
- While the store cannot be reached, appends wait [R-8]; `on_trouble` is told, `close()` ends the waiting with
  `StoreUnavailable`. Those of a store without an owner, which clients open, may end so after a bounded time, too; they
  may have been committed all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from perdure.ports.changes import ANYTHING, Change
from perdure.ports.indexing import IndexStore, LostRun, Restored
from perdure.ports.joining import CallerConnection, Journal, OwnTransaction
from perdure.ports.limits import LimitStore
from perdure.ports.listing import ListPlace, RunCounts, RunFilter, RunPage, WaitsFor
from perdure.ports.notes import Notebook
from perdure.ports.places import Candidate, DueRun, Serving, Shared, Tenancy, share, share_served
from perdure.ports.records import (
    TERMINAL,
    Append,
    AppendResult,
    Committed,
    Conflict,
    Deployment,
    EndedRun,
    Fenced,
    Gone,
    IndexState,
    JournalRow,
    KeyUsed,
    LedgerCount,
    LimitReached,
    LoadedRun,
    MutexTaken,
    NewRun,
    PipelineHold,
    RunRow,
    RunStatus,
    RunTail,
    ScheduleState,
    SlotTaken,
    Snapshot,
    SubmissionKey,
    Trouble,
    WaitCycle,
    WaitingRuns,
    WorkerRow,
)
from perdure.ports.rests import RestStore

__all__ = [
    "ANYTHING",
    "TERMINAL",
    "Append",
    "AppendResult",
    "Candidate",
    "Change",
    "Committed",
    "Conflict",
    "Deployment",
    "DueRun",
    "EndedRun",
    "Fenced",
    "Gone",
    "IndexState",
    "JournalRow",
    "KeyUsed",
    "LedgerCount",
    "LimitReached",
    "LoadedRun",
    "LostRun",
    "MutexTaken",
    "NewRun",
    "PipelineHold",
    "ListPlace",
    "RunCounts",
    "RunFilter",
    "RunPage",
    "Restored",
    "RunRow",
    "RunStatus",
    "RunTail",
    "ScheduleState",
    "Serving",
    "Shared",
    "SlotTaken",
    "Snapshot",
    "SubmissionKey",
    "Tenancy",
    "Trouble",
    "WaitCycle",
    "WaitingRuns",
    "WaitsFor",
    "WorkerRow",
    "Store",
    "share",
    "share_served",
]


class Store(LimitStore, RestStore, IndexStore, Protocol):
    """What engine and clients need of a store. All coroutines may raise `StoreUnavailable`."""

    @property
    def shared(self) -> bool:
        """Whether any number of engines may work on it, as workers that are registered and renew their leases [R-2]."""
        ...

    @property
    def notes(self) -> Notebook:
        """What is noted of runs beside their index rows."""
        ...

    async def open(self, *, owner: str | None) -> None:
        """Open or create the store.

        Args:
            owner: worker id of an engine; None for a client. One engine owns a store that is not shared [R-2].

        Raises:
            StoreInUse: another engine owns it; names the holder.
            StoreUnusable: foreign, truncated, newer schema, read-only, missing directory, network file system.
        """
        ...

    async def close(self) -> None:
        """Finish appends in flight, release ownership. Idempotent."""
        ...

    def abort(self) -> None:
        """Drop memory and ownership at once, as a killed process would; appends in flight may be lost or not."""
        ...

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        """Queue an append for the next group; returns at once. Must be called on the loop that opened the store."""
        ...

    async def join(self, connection: CallerConnection, /) -> Journal:
        """Append in the open transaction of a caller's, on its own connection: whatever is appended is true, and told
        to whoever has to act on it, when the caller commits; a rollback leaves nothing [I-1].

        Neither the store nor what is appended commits, rolls back or fails that transaction.

        Raises:
            InvalidArgument: the store cannot, the connection is of no known kind, in no transaction, or of another
                database.
        """
        ...

    async def begin(self) -> OwnTransaction:
        """A transaction of the store's own in which a handler writes; its success is appended and committed with it
        [I-1]. It has a connection to itself: wait for it no longer than one would for the handler.

        Raises:
            InvalidArgument: the store has none.
        """
        ...

    def set_index(self, locator: int, state: IndexState, tail_seq: int, /) -> asyncio.Future[bool | WaitCycle]:
        """Write an index state without facts (an owner lets go, a run is judged invalid); same group commit.

        Resolves to False, and writes nothing, if the row is gone, or the run's last journal row does not begin at
        `tail_seq` or has another hash than `state.tail_hash`, if that is given: whoever appended since, or a history
        whose end was lost [J-2], must be read first. To `WaitCycle`, likewise, if the run would wait in a
        circle. Clears `attention`.
        """
        ...

    def put_snapshot(self, locator: int, snapshot: Snapshot, /) -> None:
        """Store a snapshot with the next group; best effort, never an error."""
        ...

    async def load(self, run_id: str, /) -> LoadedRun | None:
        """Index row, snapshot and rows after it in one consistent read; None if there is no such run."""
        ...

    async def load_all_rows(self, run_id: str, /) -> LoadedRun | None:
        """As `load`, but every journal row and no snapshot: for `verify` and `journal`."""
        ...

    async def load_many(self, run_ids: Sequence[str], /) -> Sequence[LoadedRun]:
        """As `load`, for all of these in one consistent read; those that are not there are left out."""
        ...

    async def due(self, now_us: int, limit: int, turn: int = 0, serving: Serving | None = None, /) -> Sequence[str]:
        """Ids of unowned runs due at or before `now_us`, at most `limit`, in the order in which they are to be claimed.

        Places are numbered; this is about `limit` of them from number `turn` on. Of every four, three are for runs that
        were claimed before, so that work begun is finished before more is begun, and the fourth is for a new one; one
        that its class does not need goes to the other class. Within a class the higher priority comes first, and within
        a priority whoever is due longest, but for the last four of every 16 places: those go to whoever of the class is
        due longest, whatever its priority [R-1].

        So nobody is passed over for ever. A caller that goes on with the number where it stopped gives a run, with k
        others of its class due longer, its place among the next 16 * (k + 1); three times as soon if it was begun.
        Costs what it returns, times the priorities that are in use: runs due later are never looked at [R-7].
        Runs of held pipelines are not due.

        With `serving` it is about runs of those pipelines alone, and of these about runs that no greater generation
        than the one served has advanced [D-4]. Within a class and a priority the pipelines then take turns, and within
        a pipeline whoever is due longest comes first. Of every 16 places, numbers 8 to 11 go to tenants in turn,
        whatever class and priority: to the run of the tenant of a pipeline that is due longest, where there is one.
        If P pipelines are served, the first run of each that has the highest priority of its class gets its place among
        the next 3 * P + 16 if it was begun, 8 * P + 16 if not. If T tenants of pipelines have runs that are due, the
        first run of each gets its place among the next 4 * T + 16. A store looks at a bounded number of tenants at a
        time, those that have nothing due included, and goes on with the next ones. All this costs what is returned,
        times the pipelines served, and the priorities and generations that their runs have; in a store that is not
        shared, what is due.
        """
        ...

    async def next_due_us(self, serving: Serving | None = None, /) -> int | None:
        """The earliest due time of any unowned run whose pipeline is not held; with `serving`, as in `due`."""
        ...

    async def pick(self, worker: str, now_us: int, limit: int, turn: int, serving: Serving, /) -> Sequence[str]:
        """As `due`, and makes each of these runs `worker`'s in one transaction: it is owned, and has no due time.

        Nobody else picks it then, and two that pick at once never get the same run: places are given as if the other's
        runs were not there. One waits for the other at most while the store works that out, never for a worker. Nothing
        else of the row changes, nor does its journal: the run is claimed when its owner appends [D-8]. One whose load
        shows another owner was lost meanwhile; what was read of it when it was picked may be what `load_many` answers
        the next time. A worker that dies leaves what it has picked, as what it has claimed, to `take_over`.

        The turn of tenants goes on where this store stopped when it last picked.
        """
        ...

    async def unpick(self, worker: str, run_ids: Sequence[str], due_us: int, /) -> int:
        """Give back runs that `worker` has picked and not claimed: they are due at `due_us`; returns how many.

        Those that are not its own any more, or that it has claimed, are left alone.
        """
        ...

    async def owned(self, worker: str, /) -> Sequence[str]:
        """Ids of the runs that the index calls a worker's own."""
        ...

    async def attention(self, worker: str, /) -> Sequence[str]:
        """Ids of a worker's own runs to which facts were appended from outside since their owner's last index write."""
        ...

    def on_change(self, listener: Callable[[Change], None], /) -> None:
        """Call `listener` on the loop soon (within 100 ms) after another process or client committed anything that
        somebody else has to act on.

        A store that can only look whether its server did anything may call for its own commits, too.
        """
        ...

    def attending(self) -> AbstractAsyncContextManager[None]:
        """While this is entered, runs that rest or end in other processes are told to `on_change`; otherwise a store
        may tell nobody of them. Whoever reads a run inside of it hears of what comes afterwards.
        """
        ...

    def on_trouble(self, listener: Callable[[Trouble], None], /) -> None:
        """Call `listener` on the loop when a commit fails and is tried again, or for good."""
        ...

    async def take_over(self, now_us: int, /) -> int:
        """Make every run due now whose owner is gone; returns how many [R-3].

        Where one engine owns the store these are all that have an owner; it calls this once, after `open`. In a shared
        store, those whose worker is dead or not registered.
        """
        ...

    async def clock_us(self) -> int | None:
        """The time of the store's own clock, by which its engines and clients go; None where they have one clock."""
        ...

    async def register(self, worker: WorkerRow, /) -> None:
        """Say that a worker works here from now on, or serves something else than it did; its `beat` stays.

        Rows of workers that died long ago may be removed.
        """
        ...

    async def renew(self, worker: str, now_us: int, /, *, draining: bool = False) -> bool:
        """Count a worker's `beat` up; False, and nothing is written, if it is dead or not registered [R-3]."""
        ...

    async def bury(self, worker: str, beat: int, /) -> bool:
        """Mark a worker dead for good, if its `beat` is still that; whether it was marked now [R-3].

        What it appends after this as an owner, or as the claim of a new run, is `Fenced`; index states of it are not
        written. Whose they are was settled when they were queued. The same holds once its row is gone.
        """
        ...

    async def retire(self, worker: str, /) -> None:
        """Remove a worker's row: it has stopped in good order."""
        ...

    async def workers(self) -> Sequence[WorkerRow]:
        """Who works here, the oldest first, and who died lately."""
        ...

    async def generations(self) -> dict[str, int]:
        """The newest generation of every pipeline in the registry [D-4]."""
        ...

    async def grant_slots(self, now_us: int, /) -> int:
        """Mend what waits for slots [R-16]: free ones go to the run that has waited longest, which is due now; whoever
        goes on waiting is due at its deadline only. Returns how many got one.

        An ending run passes its slot on by itself, in the append that ends it: it makes the next one due at that time.
        """
        ...

    async def anybody_waits(self) -> bool:
        """Whether any run waits for another: the end of a run may then make one due."""
        ...

    async def waiting_runs(self) -> WaitingRuns:
        """Who waits for slots, and who is to make place."""
        ...

    async def claim_key(self, key: SubmissionKey, now_us: int, /) -> SubmissionKey:
        """Take a key for a run that is there already; if it is taken and has not expired, who has it [R-5]."""
        ...

    async def forget_keys(self, now_us: int, /) -> int:
        """Remove submission keys that have expired; returns how many."""
        ...

    async def list_runs(
        self, where: RunFilter, /, *, after: ListPlace | None = None, oldest_first: bool = False, limit: int = 50
    ) -> RunPage:
        """A page of runs, the newest first unless it is asked for the oldest: see `ports.listing` for their order.

        Costs what it returns, also where few runs fit, as long as one thing is asked for, or pipeline, tenant and
        statuses together; of whatever else is combined, a bounded number of runs is looked at.
        """
        ...

    async def count_runs(self, where: RunFilter, /, *, cap: int | None = None) -> RunCounts:
        """Number of runs by (pipeline, status).

        Args:
            cap: stop at so many of one pipeline and status, or, where the filter asks for more than those, so many
                runs looked at; the answer says where it did. None: count all, however long it takes.
        """
        ...

    async def ids_from(self, prefix: str, limit: int, /) -> Sequence[str]:
        """Ids of runs that begin with `prefix`, at most `limit`, the greatest first."""
        ...

    async def deployments(self, pipeline: str | None = None, /) -> Sequence[Deployment]:
        """The registry, oldest first."""
        ...

    async def deploy(self, deployment: Deployment, /) -> bool:
        """Insert a deployment; False if that generation of the pipeline exists already."""
        ...

    async def hold_pipeline(self, hold: PipelineHold, /) -> bool:
        """Hold a pipeline from now on; False, and nothing is written, if it is held already [R-17]."""
        ...

    async def release_pipeline(self, pipeline: str, actor: str, note: str, at_us: int, /) -> bool:
        """End the hold of a pipeline; False if it has none. Who held and who released stays on record [M-16]."""
        ...

    async def pipeline_holds(self, *, history: bool = False) -> Sequence[PipelineHold]:
        """The holds in force, oldest first; with `history` those that ended, too."""
        ...

    async def schedules(self) -> Sequence[ScheduleState]:
        """How far every schedule has got that any app ever had here, by id [R-14]."""
        ...

    async def put_schedule(self, new: ScheduleState, known: ScheduleState | None, /) -> bool:
        """Write a schedule's state if it is still `known`, None if it is not there; otherwise write nothing.

        Returns:
            Whether it was written. If not, somebody else was faster: read it and think again [R-14].
        """
        ...

    async def count_ended(self, before_us: int, /) -> int:
        """How many runs `remove_ended` would remove."""
        ...

    async def remove_ended(self, before_us: int, limit: int, /) -> int:
        """Remove up to `limit` terminal runs ended before `before_us`, whole; returns how many [R-9].

        A run that holds its slot for ever stays: it is the record of that [R-5]; so does one that another waits for.
        """
        ...

    async def ended_runs(self, before_us: int, limit: int, /, *, after: EndedRun | None = None) -> Sequence[EndedRun]:
        """A page of the runs that `remove_ended` would remove, in an order of the store's own [R-9].

        Args:
            after: the last of the page before; it may be gone by now.
        """
        ...

    async def remove_runs(self, runs: Sequence[RunTail], /) -> int:
        """Remove those of the runs that `remove_ended` might remove, whatever their age, and that are as they were
        read; all in one transaction. Returns how many [R-9].
        """
        ...

    async def insert_ended(self, new: NewRun, state: IndexState, ended_us: int, rows: Sequence[JournalRow], /) -> bool:
        """Put back a run that has ended, whole and in one transaction, as it was removed; `state` is terminal [R-9].

        It gets a number of its own, and neither slot nor due time, nobody is told, and nobody waits for it. Returns
        False, and writes nothing, if a run or a journal of that id is there.
        """
        ...

    async def reclaim(self) -> int:
        """Forget ledgers that no run has, and give free space back to the file system; bytes given back."""
        ...

    async def info(self) -> dict[str, str | int]:
        """Facts for `doctor`: kind, location, schema version, size in bytes, runs, journal rows, settings."""
        ...
