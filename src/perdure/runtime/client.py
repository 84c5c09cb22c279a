"""The client: submit, watch, operate and read, in any process beside the engine or inside it [I-1]."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Never, TypeAlias, TypeVar, assert_never

from perdure.core.check import CheckReport
from perdure.core.durations import Duration
from perdure.core.explain import Explanation, explain
from perdure.core.future import Candidate
from perdure.core.journal import decode_facts
from perdure.core.lock import Lock
from perdure.define.locking import candidates_of
from perdure.define.pipeline import AnyPipeline, Pipeline
from perdure.define.result import Result
from perdure.errors import (
    CorruptJournal,
    InvalidArgument,
    InvalidRun,
    NotFound,
)
from perdure.ports.archive import Archive
from perdure.ports.clock import System
from perdure.ports.limits import LimitUse
from perdure.ports.store import (
    Change,
    Deployment,
    IndexState,
    LoadedRun,
    Store,
)
from perdure.runtime.arguments import check_count, check_duration, check_name, check_text, check_time
from perdure.runtime.census import Census, check, take_census
from perdure.runtime.deploying import Deploy, deploy_all, roll_back
from perdure.runtime.info import GcReport, RecordedFact, RestoreReport, RunInfo, VerifyReport, info_of
from perdure.runtime.listing import Lister
from perdure.runtime.loading import projected
from perdure.runtime.parts import slug
from perdure.runtime.restoring import restore
from perdure.runtime.results import result_of
from perdure.runtime.retention import gc
from perdure.runtime.run import Run
from perdure.runtime.scheduling import Schedules
from perdure.runtime.submitting import Submitter
from perdure.runtime.waiters import Waiters
from perdure.runtime.workforce import WorkerInfo, lacking, lacking_owner, workers_of

In = TypeVar("In")
Out_co = TypeVar("Out_co", covariant=True)
Facts: TypeAlias = list[RecordedFact]
Deployments: TypeAlias = list[Deployment]
Deploys: TypeAlias = list[Deploy]
Workers: TypeAlias = list[WorkerInfo]


class Client(Submitter, Schedules, Lister):
    """Everything one can do with runs but execute them. Made by `App.client`, `App.engine` or `connect`.

    All methods may raise `StoreUnavailable`: try again, nothing was lost.
    """

    def __init__(
        self,
        store: Store,
        system: System,
        pipelines: Mapping[str, AnyPipeline],
        *,
        payload_limit: int | None = None,
    ) -> None:
        self._store = store
        self._system = system
        self._pipelines = dict(pipelines)
        self._payload_limit = payload_limit
        self._waiters = Waiters(asyncio.get_running_loop())
        store.on_change(self._on_change)

    @property
    def store(self) -> Store:
        """The open store, for tools."""
        return self._store

    def release_waiters(self) -> None:
        """The store is closed: whoever waits for a run looks once more, and learns that."""
        self._waiters.wake_all()

    # --- read

    async def run(self, run_id: str) -> Run[object]:
        """A handle on a run.

        Raises:
            NotFound: there is no such run.
        """
        row = (await self._load(run_id)).row
        return Run(self, run_id, row.run.pipeline)

    async def info(self, run_id: str) -> RunInfo:
        """Where a run stands, from its facts and its index row."""
        loaded = await self._load(run_id)
        if loaded.row.state.status == "corrupt":
            return info_of(loaded.row)
        now_us = self._system.now_us()
        lacks = (await lacking(self._store, [loaded.row], now_us)).get(run_id, "")
        lacks = lacks or await lacking_owner(self._store, loaded.row, now_us)
        return info_of(loaded.row, await projected(self._store, loaded), lacks=lacks)

    async def workers(self, *, all: bool = False) -> Workers:
        """Who works on the store, the oldest first [R-2]; of a store with one engine, that engine.

        Args:
            all: also workers that were found dead lately, as far as their rows are kept.
        """
        found = await workers_of(self._store, self._system.now_us())
        return [worker for worker in found if all or worker.state != "dead"]

    async def limits(self) -> Sequence[LimitUse]:
        """The limits of the store that are in use, for each of their keys: what is taken, and who waits [R-11]."""
        return await self._store.limits()

    async def deployments(self, pipeline: str | None = None) -> Deployments:
        """The registry of topologies, oldest first [D-4]."""
        return list(await self._store.deployments(None if pipeline is None else check_text("pipeline", pipeline)))

    async def explain(self, run_id: str) -> Explanation:
        """Why each step of the current topology ran, will run, or never will [E-11]."""
        loaded = await self._load(run_id)
        topology = await self._topology(loaded.row.run.pipeline)
        return explain(await projected(self._store, loaded), topology)

    async def journal(self, run_id: str) -> Facts:
        """Every fact of a run, in order, checked against the chain as far as it reads."""
        found = await self._store.journal_of(check_name("run id", run_id))
        if found is None:
            raise NotFound(f"there is no run {run_id!r}")
        facts: list[RecordedFact] = []
        for row in found[1]:
            decoded = decode_facts(run_id, row.first_seq, row.facts)
            facts += [RecordedFact(row.first_seq + i, row.at_us, fact) for i, fact in enumerate(decoded)]
        return facts

    async def result(self, run_id: str, timeout: Duration | None = None) -> Result[object]:
        """See `Run.result`."""
        check_name("run id", run_id)
        if timeout is None:
            return await self._wait(run_id)
        seconds = check_duration("timeout", timeout) / 1_000_000
        try:
            async with asyncio.timeout(seconds):
                return await self._wait(run_id)
        except TimeoutError:
            raise TimeoutError(f"run {run_id} has not ended after {seconds:g} s; it goes on") from None

    async def _wait(self, run_id: str) -> Result[object]:
        while True:
            waiter = self._waiters.register(run_id)
            try:
                if self._is_live(run_id):
                    ended = await waiter
                else:
                    async with self._store.attending():
                        result = await self._result_now(run_id)
                        if result is not None:
                            return result
                        ended = await waiter
            finally:
                self._waiters.forget(run_id, waiter)
            if ended is not None and ended.submitted is not None:
                return result_of(ended, self._pipelines.get(ended.submitted.pipeline))

    async def _result_now(self, run_id: str) -> Result[object] | None:
        loaded = await self._load(run_id)
        state = loaded.row.state
        match state.status:
            case "succeeded" | "failed" | "canceled":
                p = await projected(self._store, loaded)
                return result_of(p, self._pipelines.get(loaded.row.run.pipeline))
            case "invalid":
                if self._is_judging(state):
                    return None
                reason, _, detail = state.reason.partition(": ")
                raise InvalidRun(run_id, reason, detail)
            case "corrupt":
                raise CorruptJournal(run_id, 0, state.reason)
            case "ready" | "running" | "held":
                return None
            case _ as unreachable:
                assert_never(unreachable)

    def _is_judging(self, state: IndexState) -> bool:
        """Whether an invalid run is about to be judged anew, here [D-2]."""
        return False

    async def watch(self, run_id: str) -> AsyncIterator[RunInfo]:
        """Where a run stands, now and after every change that is noticed, to the end."""
        last: RunInfo | None = None
        check_name("run id", run_id)
        while True:
            waiter = self._waiters.register(run_id, every_step=True)
            try:
                async with self._store.attending():
                    info = await self.info(run_id)
                    if info != last:
                        yield info
                    last = info
                    if info.ended:
                        return
                    await waiter
            finally:
                self._waiters.forget(run_id, waiter)

    # --- deploy

    async def check(self, pipelines: Sequence[AnyPipeline] | Lock | None = None) -> CheckReport:
        """What deploying would mean for every live run; changes nothing. Costs grow with distinct ledgers [D-6].

        Args:
            pipelines: what is about to be deployed, or a lock file of it; default: what this client knows. A pipeline
                that has live runs and is left out counts as gone.

        Raises:
            DefinitionError: the lock holds a pipeline that cannot be.
        """
        return check(await self.census(), self._candidates(pipelines))

    async def census(self) -> Census:
        """All live runs by what they have behind them, without payloads: what `check` works on [D-6]."""
        return await take_census(self._store, self._system.now_us())

    async def deploy(
        self, pipelines: Sequence[AnyPipeline] | Lock | None = None, *, actor: str = "", force: bool = False
    ) -> Deploys:
        """Make topologies current, each as a new generation unless it is current already [D-5].

        A running engine goes on with what it started with; one that starts deploys its own topologies.

        Args:
            pipelines: as for `check`.
            force: even though runs become invalid, or nothing of it is known in this store.

        Raises:
            InvalidArgument: there are no pipelines.
            NotAllowed: see `force`; nothing was deployed.
        """
        candidates = self._candidates(pipelines)
        return await deploy_all(self._store, self._system, candidates, check_text("actor", actor), force=force)

    async def roll_back(self, pipeline: str, generation: int, *, actor: str = "", force: bool = False) -> Deploy:
        """Make the topology of a former generation current again, as a new generation [D-5].

        Raises:
            NotFound: there is no such generation.
            NotAllowed: a run would become invalid, and it is not forced; nothing was deployed.
        """
        who = check_text("actor", actor)
        return await roll_back(self._store, self._system, pipeline, generation, who, force=force)

    def _candidates(self, pipelines: Sequence[AnyPipeline] | Lock | None) -> dict[str, Candidate]:
        if isinstance(pipelines, Lock):
            return pipelines.candidates()
        return candidates_of(self._pipelines if pipelines is None else {each.id: each for each in pipelines})

    # --- keep

    async def verify(
        self, run_id: str | None = None, *, repair: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> VerifyReport:
        """Recompute projections and index rows from the facts and report every difference [J-11].

        Args:
            run_id: one run; None: all.
            repair: write index rows anew where they are missing, and what is noted wrongly beside them: slots, mutexes,
                places under limits, waits. The findings are those from before.
            progress: called with (runs done, runs in all).
        """
        from perdure.runtime.verifying import verify

        if run_id is not None:
            check_name("run id", run_id)
        return await verify(self._store, run_id, repair=repair, progress=progress, now_us=self._system.now_us())

    async def gc(
        self,
        older_than: Duration,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        archive: Archive | None = None,
        label: str = "store",
        progress: Callable[[int], None] | None = None,
    ) -> GcReport:
        """Remove terminal runs that ended longer ago than `older_than`, whole, in bounded batches [R-9].

        Idempotency keys whose window is over go, too; others stay, also when their run does not. Runs of a pipeline
        with `slot="once"` stay: each is the record that its resource had its one run [R-5].

        Args:
            older_than: seconds or `timedelta`.
            limit: remove no more than so many.
            dry_run: count only.
            archive: an open archive; every run is durably there before it is removed. One whose journal is damaged
                stays, and is named in the report.
            label: what this store is called in the archive; small letters, digits and hyphens.
            progress: called with the number removed so far.

        Raises:
            ArchiveUnavailable: what was removed until then is archived.
        """
        now_us = self._system.now_us()
        before_us = now_us - check_duration("older_than", older_than)
        if limit is not None:
            check_count("limit", limit, 1, sys.maxsize)
        if not label or slug(label) != label:
            raise InvalidArgument(f"label must be small letters, digits and hyphens, not {ascii(label)[:80]}")
        if dry_run:
            return GcReport(0, 0, await self._store.count_ended(before_us))
        return await gc(self._store, now_us, before_us, limit=limit, archive=archive, label=label, progress=progress)

    async def restore(
        self,
        archive: Archive,
        run_id: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> RestoreReport:
        """Put archived runs into this client's store, to look at [R-9]. They have ended: nothing executes them.

        What is damaged, or of a newer release, is named in the report and not restored; a run that is here already
        stays as it is.

        Args:
            archive: an open archive.
            run_id: one run; None: all.
            since, until: only runs that ended from then on, and before then.
            progress: called with (parts done, parts in all).

        Raises:
            NotFound: the archive has no such run.
            ArchiveUnavailable: it cannot be listed.
        """
        return await restore(
            archive,
            self._store,
            run_id=None if run_id is None else check_name("run id", run_id),
            since_us=None if since is None else check_time("since", since),
            until_us=None if until is None else check_time("until", until),
            now_us=self._system.now_us(),
            progress=progress,
        )

    async def doctor(self) -> dict[str, str | int]:
        """What the store says of itself."""
        return await self._store.info()

    # --- inside

    def _handle(self, run_id: str, pipeline: Pipeline[In, Never, Out_co], *, created: bool) -> Run[Out_co]:
        return Run(self, run_id, pipeline.id, created=created)

    async def _load(self, run_id: str) -> LoadedRun:
        loaded = await self._store.load(check_name("run id", run_id))
        if loaded is None:
            raise NotFound(f"there is no run {run_id!r}")
        return loaded

    def _is_live(self, run_id: str) -> bool:
        """Whether the run is owned in this process, so that its end will be told."""
        return False

    def _notify(self, run_id: str) -> None:
        """Something about a run became durable by this client."""
        self._waiters.wake(run_id)

    def _on_change(self, change: Change) -> None:
        """Another process committed: whoever waits for one of these runs looks."""
        if change.anything:
            self._waiters.wake_all()
        for run_id in change.runs:
            self._waiters.wake(run_id)
