"""What an operator does through a client: to one run, to many by selector, to a pipeline [R-17, D-7]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import assert_never

from perdure.core import admission
from perdure.core.durations import Duration
from perdure.core.facts import RunCancelRequested, RunHeld, RunPrioritized, RunReleased
from perdure.core.projection import Projection
from perdure.core.topology import Topology
from perdure.define.pipeline import AnyPipeline
from perdure.errors import InvalidArgument, NotAllowed, NotFound, PerdureError, StoreUnavailable
from perdure.ports.clock import System
from perdure.ports.joining import CallerConnection
from perdure.ports.store import ANYTHING, Change, PipelineHold, RunFilter, RunPage, RunRow, RunStatus, Store
from perdure.runtime.arguments import check_annotations, check_duration, check_name, check_priority, check_text
from perdure.runtime.listing import check_waiting
from perdure.runtime.operations import (
    AbandonRun,
    CancelRun,
    HoldRun,
    PrioritizeRun,
    ReleaseRun,
    ResolveRun,
    RetryRun,
    RunOperation,
    RunVerdict,
    Selector,
    SendMessage,
)
from perdure.runtime.outside import Ask, Verdict, admit, resolution
from perdure.runtime.registry import current
from perdure.runtime.run import UNSET
from perdure.runtime.sending import check_message, received

UNENDED: tuple[RunStatus, ...] = ("ready", "running", "held", "invalid")
PAGE = 200


class Operator:
    """The operating half of `Client`."""

    _store: Store
    _system: System
    _pipelines: Mapping[str, AnyPipeline]
    _payload_limit: int | None

    # --- one run

    async def cancel(self, run_id: str, *, reason: str = "canceled", actor: str = "") -> None:
        """Ask for a run to be canceled; durable when this returns, the first request wins [R-12].

        Raises:
            NotFound: there is no such run.
            KeyTaken: the run has ended.
        """
        await self.apply(run_id, CancelRun(reason, actor))

    async def hold(self, run_id: str, *, reason: str = "operator", note: str = "", actor: str = "") -> None:
        """Start no new attempt of a run until it is released; a running attempt ends and is recorded [R-17]."""
        await self.apply(run_id, HoldRun(reason, note, actor))

    async def release(self, run_id: str, *, note: str = "", actor: str = "") -> None:
        """Let a held run go on; a bounded retry policy counts from zero again [R-17].

        Raises:
            NotAllowed: the run is not held.
        """
        await self.apply(run_id, ReleaseRun(note, actor))

    async def retry(self, run_id: str, *, note: str = "", actor: str = "") -> None:
        """Go on now, whatever the run waits for: a backoff, a hold, or another deployment [R-17, D-2]."""
        await self.apply(run_id, RetryRun(note, actor))

    async def resolve(
        self,
        run_id: str,
        step: str | None = None,
        *,
        value: object = UNSET,
        skip: bool = False,
        fail: str | None = None,
        note: str = "",
        actor: str = "",
    ) -> None:
        """Resolve the next operation of a run: with a value, as skipped, or as failed. A running attempt is fenced.

        Args:
            step: the step it must be of; None: whichever is next.
            value: the step's state (or, while unwinding, anything: the effect counts as undone); `msgspec.Raw` holds
                JSON that is decoded and checked first.
            fail: why.

        Raises:
            PayloadError: the value does not fit the step's state type.
            NotAllowed: nothing is left to resolve, or another step is next.
            KeyTaken: the run has ended.
        """
        await self.apply(run_id, ResolveRun(step, value, skip, fail, note, actor))

    async def abandon(self, run_id: str, *, note: str = "", actor: str = "", force: bool = False) -> None:
        """Give a run up that stays invalid: it ends as failed, of kind `abandoned`, and its slot is free [D-7].

        No handler is called, nothing is unwound. The result names what is left behind in the four lists of U-9.

        Args:
            force: also a run that is held or waits; one that an engine is executing is refused in any case.

        Raises:
            NotAllowed: the run is not invalid, or an engine is executing it.
            KeyTaken: the run has ended.
        """
        await self.apply(run_id, AbandonRun(note, actor, force))

    async def prioritize(self, run_id: str, priority: int, *, note: str = "", actor: str = "") -> None:
        """Give a run another priority, from -9 to 9; it counts from the next time the run is due [R-1, R-17].

        Raises:
            KeyTaken: the run has ended.
        """
        await self.apply(run_id, PrioritizeRun(priority, note, actor))

    async def send(
        self,
        run_id: str,
        name: str,
        payload: object = None,
        *,
        key: str = "",
        actor: str = "",
        connection: CallerConnection | None = None,
    ) -> bool:
        """Send a message to a run; durable when this returns. The first await of its name consumes it [B-24].

        Messages are kept in the order they came; one that comes before the run waits for it is not lost.

        Args:
            payload: fits the type of the `AwaitMessage` of that name; `msgspec.Raw` holds JSON that is checked first.
            key: say so if this may be sent again: an equal message of the same name and key is received once.
            actor: who sends it [M-16].
            connection: send it in the open transaction of this connection; see `submit` [I-1].

        Returns:
            False where it was received before.

        Raises:
            NotFound: there is no such run.
            PayloadError: the payload does not fit; names the path. Nothing was written.
            InvalidArgument: the pipeline awaits no message of that name.
            NotAllowed: the run has failed and unwinds: it waits for no message any more.
            KeyTaken: the run has ended, or the key was used for another payload.
        """
        message = SendMessage(name, payload, key, actor)
        if connection is None:
            return await self.apply(run_id, message)
        check(message)
        ask = await self._ask(check_name("run id", run_id), message)
        return await admit(await self._store.join(connection), self._system, run_id, ask, self._notify)

    async def apply(self, run_id: str, operation: RunOperation, *, dry_run: bool = False) -> bool:
        """Do to a run what an operation says; durable when this returns [J-4, J-6].

        Args:
            dry_run: write nothing.

        Returns:
            Whether anything was written, or would have been; False where it is recorded already.

        Raises:
            ConflictError, NotFound, PayloadError: as the method of that name.
        """
        check(operation)
        ask = await self._ask(check_name("run id", run_id), operation)
        permit = _permit_abandon(operation.force) if isinstance(operation, AbandonRun) else None
        return await admit(self._store, self._system, run_id, ask, self._notify, permit=permit, dry_run=dry_run)

    # --- many runs

    async def each(
        self,
        selector: Selector,
        operation: RunOperation,
        *,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[RunVerdict]:
        """Do the same to every run that a selector chooses, newest first; a verdict for each [R-17].

        A run that refuses hurts no other. Runs that are submitted meanwhile are left out.

        Args:
            dry_run: write nothing, and say what would become of each.
            progress: called with the number of runs done so far.

        Raises:
            InvalidArgument: the selector chooses everything, or the operation cannot be meant.
            StoreUnavailable: the store does not answer; what was done until then is done, and doing it again is safe.
        """
        chosen = _Chosen(selector, self._system.now_us())
        check(operation)
        verdicts: list[RunVerdict] = []
        page = RunPage(())
        while True:
            page = await self._store.list_runs(chosen.filter, after=page.next, limit=PAGE)
            found = [row for row in page.rows if chosen.fits(row)]
            verdicts += await asyncio.gather(*(self._verdict(row, operation, dry_run) for row in found))
            if progress is not None and found:
                progress(len(verdicts))
            if page.next is None:
                return verdicts

    async def _verdict(self, row: RunRow, operation: RunOperation, dry_run: bool) -> RunVerdict:
        run_id, pipeline, status = row.run.run_id, row.run.pipeline, row.state.status
        try:
            written = await self.apply(run_id, operation, dry_run=dry_run)
        except StoreUnavailable:
            raise
        except PerdureError as error:
            return RunVerdict(run_id, pipeline, status, "refused", str(error).removeprefix(f"run {run_id}: "))
        return RunVerdict(run_id, pipeline, status, "done" if written else "duplicate")

    # --- a pipeline

    async def hold_pipeline(self, pipeline: str, *, note: str = "", actor: str = "") -> bool:
        """Start no new attempt in a whole pipeline until it is released; survives restarts [R-17].

        Running attempts end and are recorded. Runs stay as they are and are not claimed, new ones are accepted and
        wait; a cancel or a deadline acts when the pipeline is released. Every engine of the store, in whatever
        process, takes note within 100 ms.

        Returns:
            Whether it was not held before.

        Raises:
            NotFound: the store and this client know no such pipeline.
        """
        check_name("pipeline", pipeline)
        if pipeline not in self._pipelines and not await self._store.deployments(pipeline):
            raise NotFound(f"no pipeline {pipeline!r} was ever deployed in this store")
        hold = PipelineHold(pipeline, check_text("actor", actor), check_text("note", note), self._system.now_us())
        try:
            new = await self._store.hold_pipeline(hold)
            await self._on_holds()
        except BaseException:  # it may be durable, and this caller is not there to tell
            self._on_change(ANYTHING)
            raise
        return new

    async def release_pipeline(self, pipeline: str, *, note: str = "", actor: str = "") -> None:
        """Let a held pipeline go on; runs that are held themselves stay so [R-17].

        Raises:
            NotAllowed: the pipeline is not held.
        """
        who, why = check_text("actor", actor), check_text("note", note)
        name, now_us = check_name("pipeline", pipeline), self._system.now_us()
        try:
            released = await self._store.release_pipeline(name, who, why, now_us)
            await self._on_holds()
        except BaseException:  # as above
            self._on_change(ANYTHING)
            raise
        if not released:
            raise NotAllowed(f"pipeline {pipeline!r} is not held")

    async def pipeline_holds(self, *, history: bool = False) -> list[PipelineHold]:
        """The pipelines that are held, since when and by whom; with `history` those that were, too."""
        return list(await self._store.pipeline_holds(history=history))

    def _on_change(self, change: Change) -> None:
        """Anything may have changed: look for it."""

    async def _on_holds(self) -> None:
        """A pipeline was held or released by this client."""

    # --- inside

    async def _ask(self, run_id: str, operation: RunOperation) -> Ask:
        match operation:
            case HoldRun(reason, note, actor):
                held = RunHeld(actor, reason, note)
                return lambda p: admission.admit_hold(p, held)
            case ReleaseRun(note, actor):
                released = RunReleased(actor, note)
                return lambda p: admission.admit_release(p, released)
            case RetryRun(note, actor):
                retried = RunReleased(actor, note, retry=True)
                return lambda p: admission.admit_retry(p, retried)
            case CancelRun(reason, actor):
                canceled = RunCancelRequested(actor, reason)
                return lambda p: admission.admit_cancel(p, canceled)
            case ResolveRun(step, value, skip, fail, note, actor):
                verdict = Verdict(step, value, skip, fail, note, actor)
                return await self._ask_resolve(run_id, verdict)
            case PrioritizeRun(priority, note, actor):
                prioritized = RunPrioritized(actor, priority, note)
                return lambda p: admission.admit_priority(p, prioritized)
            case AbandonRun(note, actor):
                return await self._ask_abandon(run_id, note, actor)
            case SendMessage():
                known, limit = self._pipelines, self._payload_limit
                return lambda p: admission.admit_message(p, lambda: received(p, known, operation, limit), operation.key)
            case _ as unreachable:
                assert_never(unreachable)

    async def _ask_resolve(self, run_id: str, verdict: Verdict) -> Ask:
        topology = await self._topology(await self._pipeline_of(run_id))
        known, limit = self._pipelines, self._payload_limit
        return lambda p: resolution(p, topology, known, verdict, self._system.now_us(), limit)

    async def _ask_abandon(self, run_id: str, note: str, actor: str) -> Ask:
        try:
            topology = await self._topology(await self._pipeline_of(run_id))
        except NotFound:
            if await self._store.load(run_id) is None:
                raise
            topology = Topology(())  # a pipeline that was never deployed: nothing can be undone

        def ask(p: Projection) -> admission.Admission:
            return admission.admit_abandon(p, topology, actor, note, self._system.now_us())

        return ask

    async def _pipeline_of(self, run_id: str) -> str:
        loaded = await self._store.load(run_id)
        if loaded is None:
            raise NotFound(f"there is no run {run_id!r}")
        return loaded.row.run.pipeline

    async def _topology(self, pipeline: str) -> Topology:
        found = await current(self._store, pipeline)
        known = self._pipelines.get(pipeline)
        if found is not None:
            return found[0]
        if known is not None:
            return known.topology
        raise NotFound(f"no topology of pipeline {pipeline!r} is registered in this store")

    def _notify(self, run_id: str) -> None:
        """Something about a run became durable by this client."""


def check(operation: RunOperation) -> None:
    """Refuse what cannot be meant or stored, before anything is asked of the store.

    Raises:
        InvalidArgument: see above.
    """
    if isinstance(operation, ResolveRun):
        Verdict(
            operation.step, operation.value, operation.skip, operation.fail, operation.note, operation.actor
        ).check()
        return
    if isinstance(operation, SendMessage):
        check_message(operation)
        return
    check_text("actor", operation.actor)
    if isinstance(operation, (HoldRun, CancelRun)):
        check_name("reason", operation.reason)
    if isinstance(operation, PrioritizeRun):
        check_priority(operation.priority)
    if not isinstance(operation, CancelRun):
        check_text("note", operation.note)


def _permit_abandon(force: bool) -> Callable[[RunRow], None]:
    """Only what stays invalid, or by force what nobody executes [D-7]."""

    def permit(row: RunRow) -> None:
        run_id, status = row.run.run_id, row.state.status
        if row.state.worker and status == "running":  # else it was picked only: nothing of it is executed
            raise NotAllowed(f"run {run_id}: an engine is executing it; hold it first, then abandon it by force")
        if status != "invalid" and not force and row.ended_us is None:
            raise NotAllowed(f"run {run_id}: it is {status}, not invalid; only by force is it given up nevertheless")

    return permit


class _Chosen:
    """A selector against a moment: what the store filters, and the rest."""

    def __init__(self, selector: Selector, now_us: int) -> None:
        s = selector
        if s == Selector():
            raise InvalidArgument("a selector that chooses every run of the store is refused; give at least one thing")
        names = (s.pipeline, s.tenant, s.resource, s.step, s.worker)
        for what, name in zip(("pipeline", "tenant", "resource", "step", "worker"), names, strict=True):
            if name is not None:
                check_name(what, name)
        self._reason = s.reason
        self.filter = RunFilter(
            s.pipeline,
            s.tenant,
            s.resource,
            s.statuses or UNENDED,
            submitted_before_us=None if s.older_than is None else now_us - _age_us(s.older_than),
            step=s.step,
            worker=s.worker,
            waiting=check_waiting(s.waiting),
            annotations=tuple(sorted(check_annotations(s.annotations).items())),
        )

    def fits(self, row: RunRow) -> bool:
        """Whether a row that the store found is chosen."""
        return self._reason in (None, row.state.reason.partition(": ")[0])


def _age_us(age: Duration) -> int:
    return check_duration("older_than", age)
