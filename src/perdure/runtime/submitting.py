"""How runs enter: one or many, on a free slot or a busy one, once per key [R-5, M-1]."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Literal, Never, TypeVar

from msgspec.structs import replace

from perdure.core.durations import Duration
from perdure.core.facts import RunSubmitted
from perdure.core.projection import Projection
from perdure.core.reducer import fold
from perdure.define.pipeline import AnyPipeline, Pipeline
from perdure.errors import (
    ConflictError,
    InvalidArgument,
    KeyTaken,
    NotFound,
    PayloadError,
    QueueFull,
    ScheduleConflict,
)
from perdure.ports.joining import CallerConnection, Journal
from perdure.ports.limits import NoRoom
from perdure.ports.store import (
    Append,
    AppendResult,
    Committed,
    KeyUsed,
    MutexTaken,
    SlotTaken,
    SubmissionKey,
)
from perdure.runtime.appending import SlotFreed, append_and_tell, seal
from perdure.runtime.entering import Submission, SubmitOptions, submission
from perdure.runtime.indexing import new_run, submitted_state
from perdure.runtime.loading import projected
from perdure.runtime.operating import Operator
from perdure.runtime.outside import OUTSIDE
from perdure.runtime.refusing import (
    OnBusy,
    busy_slot,
    in_line,
    keeps_its_slot,
    mutex_taken,
    policy_of,
    queue_full,
    window_of,
)
from perdure.runtime.run import Run

In = TypeVar("In")
Out_co = TypeVar("Out_co", covariant=True)

SLICE = 512
"""Submissions that are prepared, and handed to the store, without giving anybody else a turn."""


class Submitter(Operator, ABC):
    """The submitting half of `Client`."""

    async def submit(
        self,
        pipeline: Pipeline[In, Never, Out_co],
        input: In,
        *,
        resource: str | None = None,
        tenant: str = "default",
        delay: Duration | None = None,
        start_at: datetime | None = None,
        deadline: datetime | timedelta | None = None,
        annotations: Mapping[str, str] | None = None,
        actor: str = "",
        on_busy: OnBusy | None = None,
        idempotency_key: str | None = None,
        key_window: Duration | None = None,
        priority: int | None = None,
        connection: CallerConnection | None = None,
    ) -> Run[Out_co]:
        """Submit a run; when this returns it is durable and will be executed.

        A live run of the same resource and equal input is returned instead, with `created=False`; a pipeline with
        `slot="serial"` makes every submission a run of its own, which starts when its turn comes [R-5].

        Args:
            resource: what the run is about; by default what the pipeline derives from the input, else the run id.
            delay: seconds or `timedelta` before the first step starts.
            start_at: the same as a point in time, with time zone.
            deadline: when the run is canceled, as a point in time or from now; default: the pipeline's.
            annotations: labels, for people and for listing; not part of the run's identity.
            actor: who asks.
            on_busy: if a live run has the slot: `join` it if its input is equal; `reject` the submission, also then;
                `queue`: be a run that starts when its turn comes, first come, first served; `replace`: the same, and
                cancel whoever has the slot or waits for it, so that it starts when they have ended and unwound.
                Default: `queue` where the pipeline has `slot="serial"`, else `join`.
            idempotency_key: say so if this may be sent again: with equal input it gives the same run, also after that
                has ended. Counts within the tenant and the pipeline.
            key_window: how long; default: a day.
            priority: from -9 to 9; where more runs are due than there are places, the higher comes first [R-1]. It
                stops nothing that is running, and does not change whose turn for a slot it is. Default: the pipeline's.
            connection: submit in the open transaction of this connection, to the same database: the run is there, and
                starts, when the caller commits; a rollback leaves nothing of it. Until then `result` and whatever else
                is asked of the handle raises `NotFound`, and whoever wants the same slot or key waits [I-1].

        Raises:
            PayloadError: the input cannot be stored; names the path. Nothing was written.
            InvalidArgument: another argument is out of range. Nothing was written.
            ScheduleConflict: a run occupies the slot, of other input if it may be joined; names it.
            MutexConflict: a run, of whatever pipeline, has a mutex of this one for the resource; names it [R-10].
            QueueFull: a limit of the pipeline bounds its queue, and has no room for another run of this key [R-11].
            KeyTaken: the key was used with other input.
            StoreUnavailable: the store has not answered for long. The run may be there all the same: submit it again,
                with the same key or for the same resource.

        With a connection, errors of its driver come as they are: a serialization failure asks the caller to begin its
        transaction anew. Errors of perdure leave the transaction as it was.
        """
        policy = policy_of(pipeline, on_busy)
        window_us = window_of(idempotency_key, key_window)
        options = SubmitOptions(resource, tenant, delay, start_at, deadline, annotations, actor, priority)
        one = submission(pipeline, input, options, self._system, self._payload_limit)
        journal = None if connection is None else await self._store.join(connection)
        while True:
            try:
                if idempotency_key is None and journal is None:
                    run_id, created = await self._enter(pipeline, one, policy)
                else:
                    key = self._key(one.submitted, idempotency_key, window_us)
                    run_id, created = await self._enter_by(one, policy, key, journal)
            except SlotFreed:
                continue
            return self._handle(run_id, pipeline, created=created)

    async def submit_many(
        self,
        pipeline: Pipeline[In, Never, Out_co],
        inputs: Iterable[In],
        *,
        tenant: str = "default",
        delay: Duration | None = None,
        start_at: datetime | None = None,
        deadline: datetime | timedelta | None = None,
        annotations: Mapping[str, str] | None = None,
        actor: str = "",
        on_busy: Literal["join", "reject"] | None = None,
        priority: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Run[Out_co] | ScheduleConflict | QueueFull]:
        """Submit a run for every input, in few transactions; when this returns all are durable.

        It is no transaction over all of them: every input fares as if it were submitted alone, in this order. All are
        checked first, and kept in memory until then; give some thousands at a time. For a pipeline with `slot="serial"`
        the runs of one resource have their turns in this order [R-5]. With a connection all are submitted in its open
        transaction, one after the other; see `submit`.

        Returns:
            For each input its run, or why there is none: a refused submission hurts no other.

        Raises:
            PayloadError: an input cannot be stored; its path begins with its number, like `$[7].amount`. Nothing was
                written.
            InvalidArgument: another argument is out of range. Nothing was written.
        """
        if on_busy not in ("join", "reject", None):
            raise InvalidArgument(f"on_busy of many must be join or reject, not {on_busy!r}")
        policy = policy_of(pipeline, on_busy)
        options = SubmitOptions(None, tenant, delay, start_at, deadline, annotations, actor, priority)
        found: list[Run[Out_co] | ScheduleConflict | QueueFull] = []
        sent: list[tuple[Submission, asyncio.Future[AppendResult]]] = []
        checked = await self._checked(pipeline, inputs, options)
        if policy == "queue":
            checked = in_line(checked)
        if connection is not None:
            journal = await self._store.join(connection)
            return [await self._one_within(pipeline, one, policy, journal) for one in checked]
        for first in range(0, len(checked), SLICE):
            part = checked[first : first + SLICE]
            sent += [(one, self._store.append(self._first_append(one, None))) for one in part]
            sent[-1][1].add_done_callback(lambda _: self._entered_many())  # whatever becomes of the caller
            if any(one.submitted.waits for one in part):
                sent[-1][1].add_done_callback(lambda _: self._on_waiting())
            await asyncio.sleep(0)
        if sent:
            await asyncio.wait([future for _, future in sent])
        for one, future in sent:
            if type(future.result()) is Committed:
                found.append(self._handle(one.submitted.run_id, pipeline, created=True))
            else:
                found.append(await self._refused(pipeline, one, future.result(), policy))
        return found

    async def _checked(
        self, pipeline: AnyPipeline, inputs: Iterable[object], options: SubmitOptions
    ) -> list[Submission]:
        found: list[Submission] = []
        for number, input in enumerate(inputs):
            if not number % SLICE:
                await asyncio.sleep(0)
            try:
                found.append(submission(pipeline, input, options, self._system, self._payload_limit))
            except PayloadError as error:
                raise PayloadError(f"$[{number}]{error.path.removeprefix('$')}", error.problem) from None
        return found

    async def _refused(
        self, pipeline: Pipeline[In, Never, Out_co], one: Submission, result: AppendResult, on_busy: OnBusy
    ) -> Run[Out_co] | ScheduleConflict | QueueFull:
        """What becomes of one of many whose slot is taken."""
        while True:
            try:
                run_id, created = await self._answered(one, result, on_busy, None)
                return self._handle(run_id, pipeline, created=created)
            except (ScheduleConflict, QueueFull) as refusal:
                return refusal
            except SlotFreed:
                result = await self._store.append(self._first_append(one, None))

    async def _one_within(
        self, pipeline: Pipeline[In, Never, Out_co], one: Submission, on_busy: OnBusy, journal: Journal
    ) -> Run[Out_co] | ScheduleConflict | QueueFull:
        """One of many that are submitted in a transaction of the caller's."""
        while True:
            try:
                run_id, created = await self._enter_by(one, on_busy, None, journal)
                return self._handle(run_id, pipeline, created=created)
            except (ScheduleConflict, QueueFull) as refusal:
                return refusal
            except SlotFreed:
                continue

    # --- entering

    async def _enter(self, pipeline: AnyPipeline, one: Submission, on_busy: OnBusy) -> tuple[str, bool]:
        """Append the submission, or do what the policy says; the run's id, and whether it is new."""
        return await self._enter_by(one, on_busy, None)

    async def _enter_by(
        self, one: Submission, on_busy: OnBusy, key: SubmissionKey | None, journal: Journal | None = None
    ) -> tuple[str, bool]:
        """As `_enter`, under a key, or in a transaction of the caller's: then nobody is told but by its commit."""
        result = await append_and_tell(journal or self._store, self._first_append(one, key), self._notify)
        return await self._answered(one, result, on_busy, key, journal)

    def _first_append(self, one: Submission, key: SubmissionKey | None) -> Append:
        submitted = one.submitted
        now_us = self._system.now_us()
        p = Projection(submitted.run_id)
        fold(p, submitted, now_us)
        append = seal(p, [submitted], now_us, self._system.append_id(), OUTSIDE)
        append.new = new_run(submitted, now_us, one.entrances)
        append.index = submitted_state(p, now_us)
        append.key = key
        return append

    async def _answered(
        self,
        one: Submission,
        result: AppendResult,
        on_busy: OnBusy,
        key: SubmissionKey | None,
        within: Journal | None = None,
    ) -> tuple[str, bool]:
        """What the store's answer to a submission means to the caller."""
        journal, submitted = within or self._store, one.submitted
        if isinstance(result, Committed):
            if within is None:
                self._entered(submitted)
            return submitted.run_id, True
        if isinstance(result, KeyUsed) and key is not None:
            return await self._under_key(submitted, key, result.run_id, result.input_digest, journal), False
        if isinstance(result, MutexTaken):
            raise mutex_taken(submitted, result)
        if isinstance(result, NoRoom):
            raise queue_full(submitted, result, one.entrances)
        if on_busy == "join" or not isinstance(result, SlotTaken):
            run_id = await self._joined(submitted, result, journal)
            return (run_id if key is None else await self._keyed(submitted, key, run_id, journal)), False
        if on_busy == "reject":
            raise busy_slot(submitted, result.run_id, "")
        return await self._enter_waiting(one, result, on_busy, key, within)

    async def _joined(self, submitted: RunSubmitted, result: AppendResult, journal: Journal) -> str:
        """The live run of equal input that occupies the slot [R-5]."""
        if not isinstance(result, SlotTaken):
            raise ScheduleConflict(f"run id {submitted.run_id} is taken", submitted.run_id)
        if await self._equal(submitted, result.run_id, result.input_digest, journal):
            return result.run_id
        raise busy_slot(submitted, result.run_id, " with other input")

    async def _equal(self, submitted: RunSubmitted, run_id: str, digest: bytes, journal: Journal) -> bool:
        """Whether the input of `run_id`, read as the pipeline declares it now, is the same: a new field with a default
        makes no other input [J-4, P-3]."""
        if digest.hex() == submitted.input_digest:
            return True
        pipeline = self._pipelines.get(submitted.pipeline)
        loaded = await journal.load(run_id)
        if loaded is None:
            raise SlotFreed
        stored = (await projected(journal, loaded)).submitted
        if pipeline is None or stored is None:
            return False
        try:
            return pipeline.input_codec.digest_of(stored.input).hex() == submitted.input_digest
        except PayloadError:
            return False

    # --- waiting for the slot

    async def _enter_waiting(
        self,
        one: Submission,
        taken: SlotTaken,
        on_busy: Literal["queue", "replace"],
        key: SubmissionKey | None,
        within: Journal | None,
    ) -> tuple[str, bool]:
        """A run that is there, and starts when it gets its slot: durable first, whoever is to make place after it, so
        that nothing is canceled for a run that is not there. The engine cancels what the caller could not [R-16]."""
        journal = within or self._store
        holder = await journal.load(taken.run_id)
        if holder is None:
            raise SlotFreed
        if keeps_its_slot(holder):
            raise busy_slot(one.submitted, taken.run_id, "", " for ever (slot='once')")
        waiting = one.waiting(on_busy)

        def tell(run_id: str) -> None:
            self._notify(run_id)
            self._on_waiting()

        result = await append_and_tell(journal, self._first_append(waiting, key), tell)
        if not isinstance(result, Committed) or within is not None:
            return await self._answered(waiting, result, "join", key, within)
        self._entered(waiting.submitted)
        if on_busy == "replace":
            await self._make_place(one.submitted.actor)
        return one.submitted.run_id, True

    async def _make_place(self, actor: str) -> None:
        """Cancel the runs that others wait to replace."""
        for run_id in (await self._store.waiting_runs()).superseded:
            with suppress(ConflictError, NotFound):
                await self.cancel(run_id, reason="replaced", actor=actor)

    # --- keys

    def _key(self, submitted: RunSubmitted, key: str | None, window_us: int) -> SubmissionKey | None:
        if key is None:
            return None
        expires_us = self._system.now_us() + window_us
        digest = bytes.fromhex(submitted.input_digest)
        return SubmissionKey(submitted.tenant, submitted.pipeline, key, submitted.run_id, digest, expires_us)

    async def _under_key(
        self, submitted: RunSubmitted, key: SubmissionKey, run_id: str, digest: bytes, journal: Journal
    ) -> str:
        """The run that was submitted under the key, if its input is equal."""
        with suppress(SlotFreed):  # removed by retention: its digest is all that is left of it
            if await self._equal(submitted, run_id, digest, journal):
                return run_id
        raise KeyTaken(
            f"idempotency key {key.key!r} of pipeline {key.pipeline!r} was used for run {run_id} with other input",
            key.key,
        )

    async def _keyed(self, submitted: RunSubmitted, key: SubmissionKey, run_id: str, journal: Journal) -> str:
        """The key stands for the run that was joined, unless somebody was faster."""
        taken = await journal.claim_key(replace(key, run_id=run_id), self._system.now_us())
        return (
            run_id
            if taken.run_id == run_id
            else await self._under_key(submitted, key, taken.run_id, taken.input_digest, journal)
        )

    # --- inside

    @abstractmethod
    def _handle(self, run_id: str, pipeline: Pipeline[In, Never, Out_co], *, created: bool) -> Run[Out_co]:
        """A handle on a run that was submitted or joined."""

    def _entered(self, submitted: RunSubmitted) -> None:
        """A run is durable that this client submitted."""

    def _entered_many(self) -> None:
        """Some are."""

    def _on_waiting(self) -> None:
        """A run waits for its slot."""
