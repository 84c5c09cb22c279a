"""A run that this engine owns: its projection, and what its handlers see of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

from msgspec import Raw

from perdure.core.facts import Failure, OperationProgress, Phase, RunFailed, RunSubmitted
from perdure.core.operations import InvalidReason, RunOp, UnitOp, UnwindOp
from perdure.core.permits import Limited, Permit
from perdure.core.plan import Next, Opening, RunEnd, Terms, Unplannable
from perdure.core.projection import Projection
from perdure.core.reducer import fold
from perdure.core.unit import Unit
from perdure.define.invocation import FailedInvocation, PureInvocation
from perdure.define.signals import BrokenContract
from perdure.errors import PayloadError, PerdureError, StoreUnavailable
from perdure.ports.joining import OwnTransaction
from perdure.ports.store import AppendResult, Committed
from perdure.runtime.appending import seal
from perdure.runtime.limits import Place, gate
from perdure.runtime.loading import projected

if TYPE_CHECKING:
    from perdure.define.payload import Codec
    from perdure.define.pipeline import AnyPipeline
    from perdure.runtime.host import Host
    from perdure.runtime.line import Line

logger = logging.getLogger("perdure")

Interrupt: TypeAlias = Literal["timeout", "cancel", "shutdown", "fenced", "abort"]

_BROKEN: dict[str, InvalidReason] = {"state-missing": "state-missing", "payload-unreadable": "payload-unreadable"}


class Lost(Exception):  # a signal: this engine no longer owns the run
    """The run was taken over or removed; drop it."""


NO_ENDS: Mapping[str, RunEnd] = {}


class Stoppable(Protocol):
    """Handlers that run, of one operation."""

    def stop(self, why: Interrupt) -> None:
        """Cancel them; the first reason stays."""
        ...

    def nudge(self) -> None:
        """Something came from outside: plan anew."""
        ...

    def item_of(self, task: object) -> int | None:
        """The item whose handler this task runs, if it does; called in any thread [R-15]."""
        ...

    def stuck(self, before_us: int) -> list[tuple[int, int, int]]:
        """Item, attempt and start of those that run since before then, each told once [R-15]."""
        ...


class LiveRun:
    """One owned run. It is the `RunView` of its handlers and the `Evaluator` of its planning.

    Attributes:
        op: the operation whose attempt is reserved, while there is one.
        in_handler: a handler is being awaited: only then may the task be cancelled.
        interrupt: why the handler was cancelled, None if it was not.
        noticed: somebody appended from outside; read it before starting a handler.
        snapshot_version: version of the newest snapshot.
        deadline: the timer that watches the run's deadline, while it is owned here.
        timer: bounds the attempt that runs, if anything does [R-18].
        lease: under which it was claimed [R-3].
        token: fencing token of this engine's claim; 0 before it is durable [J-7].
        crew: the handlers of items that run, while the operation is a unit.
        ends: of runs that this one waits for, as far as they are known here [R-13].
        cycle: the wait that was planned last was refused: those runs wait for this one.
        told: a cancel was handed on to them.
        inv: what the handler that runs was given; tx: the transaction in which it writes, if it does [I-1].
        held: places of the store's limits that the running operation has [R-11]; at: its step, as far as limits go.
        shut: a limit of the store that was found full, and its key. keys: those of limits, by limit.
        started_us: when the attempt that runs was started; stuck: that it runs for very long was reported.
    """

    __slots__ = (
        "_lock",
        "at",
        "crew",
        "cycle",
        "deadline",
        "ends",
        "held",
        "host",
        "in_handler",
        "interrupt",
        "inv",
        "keys",
        "lease",
        "line",
        "noticed",
        "op",
        "p",
        "shut",
        "snapshot_version",
        "started_us",
        "stuck",
        "submitted",
        "task",
        "timer",
        "token",
        "told",
        "tx",
    )

    def __init__(self, host: Host, line: Line, p: Projection, submitted: RunSubmitted) -> None:
        self.host = host
        self.line = line
        self.lease = host.lease
        self.p = p
        self.submitted = submitted
        self.op: Next | None = None
        self.crew: Stoppable | None = None
        self.ends: Mapping[str, RunEnd] = NO_ENDS
        self.cycle = self.told = False
        self.inv: object = None
        self.tx: OwnTransaction | None = None
        self.task: asyncio.Task[None] | None = None
        self.at = ""
        self.held: tuple[Permit, ...] = ()
        self.shut: Place | None = None
        self.keys: dict[str, str] = {}
        self.token = 0
        self.in_handler = False
        self.interrupt: Interrupt | None = None
        self.noticed = False
        self.snapshot_version = 0
        self.started_us = 0
        self.stuck = False
        self.deadline: asyncio.TimerHandle | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._lock: asyncio.Lock | None = None

    # --- what handlers see (define.invocation.RunView)

    @property
    def run_id(self) -> str:
        return self.p.run_id

    @property
    def tenant(self) -> str:
        return self.submitted.tenant

    @property
    def resource(self) -> str:
        return self.submitted.resource

    @property
    def pipeline(self) -> AnyPipeline:
        return self.line.pipeline

    @property
    def deps(self) -> object:
        return self.line.deps

    @property
    def canceled(self) -> bool:
        return self.interrupt is not None or (self.p.cancel is not None and self.p.failure is None)

    @property
    def failure(self) -> Failure | None:
        return self.p.failure

    @property
    def unwind_failures(self) -> tuple[Failure, ...]:
        return tuple(self.p.unwind_failures)

    def input_bytes(self) -> Raw:
        """The encoded input."""
        return self.submitted.input

    def state_bytes(self, step_id: str, /) -> bytes | None:
        """The encoded state of a step, None where it has none."""
        return self.p.state(step_id)

    def memo_bytes(self, step_id: str, phase: Phase, name: str, item: int | None = None, /) -> bytes | None:
        """A recorded memo, None where there is none."""
        return self.p.memo(phase, step_id, name, item)

    def unit_of(self, step_id: str, /) -> Unit | None:
        """The items of a step that did not succeed."""
        return self.p.units.get(step_id)

    async def memo(self, step_id: str, phase: Phase, name: str, value: bytes, item: int | None = None, /) -> None:
        """Record a memo of the running attempt; resolves when it is durable [M-15].

        Cancelling the caller does not cancel the append; nothing else of the run is appended before it is known [J-14].

        Raises:
            PayloadError: the value is over the limit [P-4].
        """
        limit = self.host.options.payload_limit
        if len(value) > limit:
            raise PayloadError("$", f"it has {len(value):,} bytes, the limit is {limit:,}")
        lock = self.lock
        await lock.acquire()
        appended: asyncio.Future[AppendResult] | None = None
        try:
            while self.p.memo(phase, step_id, name, item) is None:
                if not (self.attempt_is_open() if item is None else self._item_is_open(step_id, item)):
                    raise asyncio.CancelledError("the attempt was ended from outside")
                if not self.lease.holds:
                    await self.lease.wait()
                fact = OperationProgress(step_id, name, Raw(value), phase, item)
                now_us = self.host.system.now_us()
                fold(self.p, fact, now_us)
                append = seal(self.p, [fact], now_us, self.host.system.append_id(), self.p.token)
                appended = self.host.store.append(append)
                if type(await asyncio.shield(appended)) is not Committed:
                    await self.reload()
                    self.act_on_notice()
        finally:
            if appended is None or appended.done():
                lock.release()
            else:
                appended.add_done_callback(lambda _: lock.release())

    async def transaction(self, inv: object, /) -> object:
        """The connection of the running attempt's transaction, which is begun when it is first asked for [I-1]."""
        if self.tx is None and self.inv is inv:
            tx = await self.host.store.begin()
            if self.inv is inv:
                self.tx = tx
            else:
                tx.drop()
        if self.inv is not inv or self.tx is None:
            raise asyncio.CancelledError("the attempt is over")
        return self.tx.connection

    # --- the author's pure functions (core.plan.Evaluator)

    def condition(self, step: str, /) -> bool:
        """Ask a step's condition [E-12]."""
        definition = self.line.steps[step]
        inv: PureInvocation[Any, Any] = PureInvocation(self, definition)
        when = definition.when
        answer = True if when is None else self._pure(when, inv, "condition-raised", f"the condition of step {step!r}")
        if not isinstance(answer, bool):
            raise Unplannable(
                "condition-raised", f"the condition of step {step!r} returned {type(answer).__name__}, not bool"
            )
        return answer

    def opening(self, step: str, /) -> Opening:
        """Ask what a wait or a unit is about [B-20]."""
        definition = self.line.steps[step]
        inv: PureInvocation[Any, Any] = PureInvocation(self, definition)
        opening = self._pure(definition.opening, inv, "opening-raised", f"what step {step!r} begins with")
        limit, size = self.host.options.payload_limit, sum(map(len, opening.items))
        if size > limit:
            what = f"the items of step {step!r} have {size:,} bytes, the limit is {limit:,}"
            raise Unplannable("payload-unserialisable", what)
        return cast("Opening", opening)

    def terms(self, step: str, /) -> Terms:
        """How the waits and units of the current code are carried on."""
        return self.line.steps[step].terms

    def timeout_state(self, step: str, /) -> bytes | None:
        """The declared state of a wait that has lasted too long [B-8]."""
        return self.line.steps[step].timeout_state()

    def message_state(self, step: str, payload: bytes, /) -> bytes:
        """A message, read as the current code declares it [B-4]."""
        try:
            self.line.steps[step].codec.decode(payload)
        except PayloadError as error:
            raise Unplannable("payload-unreadable", f"the message of step {step!r} cannot be read: {error}") from error
        return payload

    def gate(self, step: str, /) -> Limited | None:
        """The limit that has no place for a step [R-11]."""
        return gate(self, step)

    def output(self) -> bytes:
        """Call the output function and encode what it returns [M-13]."""
        inv: PureInvocation[Any, Any] = PureInvocation(self, None)
        value = self._pure(self.line.pipeline.output, inv, "output-raised", "the output function")
        return self._encoded(self.line.pipeline.output_codec, value)

    def failure_output(self, ended: RunFailed, /) -> bytes:
        """Call the failure-output function, where there is one [M-13]."""
        function = self.line.pipeline.failure_output
        if function is None:
            return b"null"
        inv: FailedInvocation[Any, Any] = FailedInvocation(self, ended)
        value = self._pure(function, inv, "output-raised", "the failure-output function")
        return self._encoded(self.line.pipeline.failure_output_codec, value)

    def _pure(self, function: Any, inv: PureInvocation[Any, Any], reason: InvalidReason, what: str) -> Any:
        value: Any = None
        try:
            value = function(inv)
        except BaseException as error:  # a pure function that raises makes the run invalid, whatever it raises
            if isinstance(error, KeyboardInterrupt):
                raise
            if inv.broken is None:
                raise Unplannable(reason, f"{what} raised {type(error).__name__}: {error}"[:1000]) from error
        if inv.broken is not None:
            raise broken(inv.broken) from inv.broken
        return value

    def _encoded(self, codec: Codec[Any], value: object) -> bytes:
        try:
            data = codec.encode(value)
        except PayloadError as error:
            raise Unplannable("payload-unserialisable", f"the output cannot be stored: {error}") from error
        if len(data) > self.host.options.payload_limit:
            raise Unplannable(
                "payload-unserialisable",
                f"the output has {len(data):,} bytes, the limit is {self.host.options.payload_limit:,}",
            )
        return data

    # --- being told and being stopped

    @property
    def lock(self) -> asyncio.Lock:
        """Serialises appends and re-reads inside one attempt."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    @property
    def busy(self) -> bool:
        """A memo or a re-read of this attempt is in flight."""
        return self._lock is not None and self._lock.locked()

    async def calm(self) -> None:
        """Wait until nothing of this attempt is in flight."""
        async with self.lock:
            pass

    def attempt_is_open(self) -> bool:
        """The reserved attempt is still this engine's to end [J-7, R-17]."""
        current, op = self.p.current, self.op
        if isinstance(op, UnitOp):
            return self.p.pin == op.step and op.step in self.p.units
        return (
            op is not None
            and current is not None
            and current.open
            and current.step == op.step
            and current.attempt == op.attempt
            and current.phase == ("forward" if type(op) is RunOp else "unwind")
        )

    def _item_is_open(self, step: str, index: int) -> bool:
        unit = self.p.unit()
        return self.p.pin == step and unit is not None and index in unit.open

    def stop_handler(self, why: Interrupt) -> None:
        """Cancel the handler that is being awaited, if one is; the first reason stays."""
        if self.crew is not None:
            self.crew.stop(why)
        elif self.in_handler and self.interrupt is None and self.task is not None:
            self.interrupt = why
            self.task.cancel()

    def allow(self, timeout_s: float | None) -> None:
        """From now on the attempt may take so long; None: any time [R-18]."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if timeout_s is not None:
            self.timer = self.host.loop.call_later(timeout_s, self.stop_handler, "timeout")

    def notice(self) -> None:
        """Facts came from outside: read them now if a handler runs, else before the next one starts [J-6]."""
        self.noticed = True
        if self.in_handler or self.crew is not None:
            task = self.host.loop.create_task(self._look())
            task.add_done_callback(_log_failure)

    async def _look(self) -> None:
        async with self.lock:
            if not (self.in_handler or self.crew is not None) or not self.noticed:
                return
            op = self.op
            try:
                await self.reload()
            except StoreUnavailable:  # the engine has stopped; what the handler does is recorded, or is lost with it
                return
            except (Lost, PerdureError):
                self.stop_handler("fenced")
                return
            if self.op is op and (self.in_handler or self.crew is not None):
                self.act_on_notice()

    def act_on_notice(self) -> None:
        """Stop the handler if what was read says so [R-12, R-17]."""
        if not self.attempt_is_open():
            self.stop_handler("fenced")
        elif self.must_stop():
            self.stop_handler("cancel")
        elif self.crew is not None:
            self.crew.nudge()

    def must_stop(self) -> bool:
        """A cancel is to end the running forward attempt, unless its step settles first [R-12]."""
        if self.p.cancel is None or self.op is None or type(self.op) is UnwindOp:
            return False
        definition = self.line.steps.get(self.op.step)
        return definition is None or not definition.spec.settle

    async def reload(self) -> None:
        """Read the run again; what was folded in vain is gone.

        Raises:
            Lost: somebody else owns the run, or it was removed [J-3].
            CorruptJournal: see `project`.
            StoreUnavailable: see `Host.load`.
        """
        self.noticed = False
        loaded = await self.host.load(self.p.run_id)
        if loaded is None:
            raise Lost
        p = await projected(self.host.store, loaded)
        if p.token != self.token:
            raise Lost
        self.p = p


def broken(breach: BrokenContract) -> Unplannable:
    """A breach of contract as the reason for an invalid run [D-1]."""
    return Unplannable(_BROKEN.get(breach.reason, "contract-broken"), str(breach))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("reading facts from outside failed", exc_info=task.exception())
