"""What a handler is given. One object per attempt, made by the engine; everything in it is read when asked for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast, overload

from perdure.codec.json import AnyCodec, Encoded, codec_of
from perdure.core.facts import Failure, ItemCounts, Phase, RunFailed
from perdure.core.unit import Unit
from perdure.define.functions import AnyFunction
from perdure.define.memo import codec_of_function
from perdure.define.names import name_problem
from perdure.define.signals import (
    BrokenContract,
    ImpureFunction,
    MissingState,
    StepCalled,
    UndeclaredNeed,
    UnreadablePayload,
    UnusableMemo,
    UnusableSubstitute,
    UnusableTransaction,
)
from perdure.define.step import ErasedStep, Optional, Step
from perdure.define.views import RunView
from perdure.errors import DefinitionError, InvalidArgument, PayloadError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

In_co = TypeVar("In_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")

_UNREAD: Any = object()


def forward_key(run_id: str, step_id: str) -> str:
    """The idempotency key of a step's forward operation; run ids hold no slash, so keys cannot collide [M-3]."""
    return f"{run_id}/do/{step_id}"


def unwind_key(run_id: str, step_id: str) -> str:
    """The idempotency key of a step's unwind operation [M-3]."""
    return f"{run_id}/undo/{step_id}"


class _MemoLock(asyncio.Lock):
    """Held while a memo is made, by the task that makes it: one of its own that asks for it would wait for itself."""

    owner: asyncio.Task[Any] | None = None


class Invocation(Generic[In_co, D_co]):
    """One attempt, as its handler sees it. What it hands out belongs to the handler alone [M-7].

    Attributes:
        attempt: number of this attempt, from 1, rising, with gaps [M-8].
        broken: the first breach of contract, kept even if the handler swallowed the exception.
    """

    __slots__ = ("_input", "_locks", "_source", "_states", "_step", "attempt", "broken")

    phase: Phase = "forward"

    def __init__(self, source: RunView, step: ErasedStep | None, attempt: int) -> None:
        self._source = source
        self._step = step
        self.attempt = attempt
        self._input: Any = _UNREAD
        self._states: dict[str, Any] | None = None
        self._locks: dict[str, _MemoLock] | None = None
        self.broken: BrokenContract | None = None

    @property
    def input(self) -> In_co:
        """The run's input; decoded once for this handler."""
        if self._input is _UNREAD:
            self._input = self._decode(self._source.pipeline.input_codec, self._source.input_bytes(), "input")
        return cast(In_co, self._input)

    @property
    def deps(self) -> D_co:
        """What the app opened for its handlers; shared by all of them."""
        return cast(D_co, self._source.deps)

    @property
    def run_id(self) -> str:
        """The run's id; time-ordered and opaque."""
        return self._source.run_id

    @property
    def pipeline_id(self) -> str:
        """The id of the run's pipeline."""
        return self._source.pipeline.id

    @property
    def tenant(self) -> str:
        """Whose run it is; `default` where nobody said."""
        return self._source.tenant

    @property
    def resource(self) -> str:
        """What the run is about."""
        return self._source.resource

    @property
    def step_id(self) -> str:
        """The step this invocation is for; empty in an output function."""
        return self._step.id if self._step is not None else ""

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts of this operation, and for no other operation [M-3]."""
        return forward_key(self._source.run_id, self.step_id)

    @property
    def canceled(self) -> bool:
        """Whether somebody asked for the run to be canceled; a `def` handler polls it and raises or returns [R-12]."""
        return self._source.canceled

    def __getitem__(self, step: Step[In_co, D_co, S], /) -> S:
        """The committed state of a step that is listed under `needs` [M-14].

        A state that is absent is made by the step's `if_skipped`. Without one, and for a step not listed, the run
        becomes invalid: no attempt could do better.
        """
        found = self._read(step, required=True)
        if found is not _UNREAD:
            return cast(S, found)
        if step.if_skipped is None:
            raise self._broken(MissingState(self._reader(), step.id))
        return cast(S, self._substitute(step, step.if_skipped))

    @overload
    def get(self, step: Step[In_co, D_co, S], /) -> S | None: ...
    @overload
    def get(self, step: Step[In_co, D_co, S], default: T, /) -> S | T: ...
    def get(self, step: Step[In_co, D_co, S], default: object = None, /) -> object:
        """The committed state of a step that is listed under `needs`, or `default`; `if_skipped` is not asked."""
        found = self._read(step, required=False)
        return default if found is _UNREAD else found

    @overload
    def memo(
        self, name: str, function: Callable[[], Coroutine[Any, Any, T]], /, *, type: TypeForm[T] = ...
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def memo(self, name: str, function: Callable[[], T], /, *, type: TypeForm[T] = ...) -> Coroutine[Any, Any, T]: ...
    def memo(self, name: str, function: AnyFunction, /, *, type: object = _UNREAD) -> Coroutine[Any, Any, object]:
        """The value recorded under `name` in this operation; the first time that of `function`, then durable [M-15].

        `await` it, in an `async def` handler. Later attempts get the recorded value, and so does the step's unwind
        handler for a name of the forward operation. A crash between the function's return and the record calls it
        again.

        Args:
            name: any name, unique inside the handler.
            function: `async def` or `def`, without arguments.
            type: the type of the value; by default the function's return annotation.
        """
        codec = self._memo_codec(name, function, type)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise self._broken(
                UnusableMemo(f"memo {name!r} of {self._reader()}: a handler that remembers must be `async def`")
            ) from None
        return self._memo(name, function, codec)

    def tx(self, kind: type[T], /) -> Coroutine[Any, Any, T]:
        """A connection in an open transaction of the store's database: what is written on it is committed together with
        the success of this attempt, or not at all [I-1].

        `await` it, in an `async def` handler, as often as wanted: an attempt has one transaction. Whatever ends the
        attempt but its return rolls it back, also `Fail`, `Later`, a time-out or a lost worker. Neither commit nor roll
        back yourself; savepoints are fine. A store without transactions makes the run invalid.

        Args:
            kind: the class of the connection; for a store in PostgreSQL `psycopg.AsyncConnection`.

        Raises:
            StoreUnavailable: the server does not answer; the attempt fails, and is tried again.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise self._no_tx("a handler that writes in a transaction must be `async def`") from None
        return self._tx(kind)

    async def _tx(self, kind: type[T]) -> T:
        if self._locks is None:
            self._locks = {}
        try:
            async with self._locks.setdefault("", _MemoLock()):  # no memo has an empty name
                connection = await self._source.transaction(self)
        except InvalidArgument as error:
            raise self._no_tx(str(error)) from error
        if isinstance(connection, kind):
            return connection
        found = type(connection)
        raise self._no_tx(f"its connection is a {found.__module__}.{found.__qualname__}, not a {kind!r}")

    def _no_tx(self, problem: str) -> BrokenContract:
        return self._broken(UnusableTransaction(f"`inv.tx` of {self._reader()}: {problem}"))

    async def _memo(self, name: str, function: AnyFunction, codec: AnyCodec) -> object:
        if self._locks is None:
            self._locks = {}
        lock = self._locks.setdefault(name, _MemoLock())
        if lock.owner is not None and lock.owner is asyncio.current_task():
            raise self._broken(UnusableMemo(f"memo {name!r} of {self._reader()} asks for itself"))
        async with lock:
            lock.owner = asyncio.current_task()
            try:
                return await self._remembered(name, function, codec)
            finally:
                lock.owner = None

    async def _remembered(self, name: str, function: AnyFunction, codec: AnyCodec) -> object:
        recorded = self._recorded(name)
        if recorded is None:
            value = function()
            if inspect.isawaitable(value):
                value = await value
            try:
                recorded = codec.encode(value)
                await self._source.memo(self.step_id, self.phase, name, recorded, self._item)
            except PayloadError as error:
                raise self._broken(UnusableMemo(f"memo {name!r} of {self._reader()}: {error}")) from error
        return self._decode(codec, recorded, f"memo {name!r}")

    @property
    def _item(self) -> int | None:
        """The index of the item this is for; None: it is for the whole step."""
        return None

    def of_step_called(self, step: ErasedStep, /) -> AnyFunction:
        """What a call of a step does; only a fake invocation lets it run."""
        raise self._broken(StepCalled(self._reader(), step.id))

    def _substitute(self, step: Step[Any, Any, Any], if_skipped: AnyFunction) -> object:
        """What `if_skipped` makes for a step without state; a copy of its own, as a committed state would be [M-7]."""
        pure: PureInvocation[Any, Any] = PureInvocation(self._source, step)
        try:
            value = step.codec.decode(step.codec.encode(if_skipped(pure)))
        except BaseException as error:  # whatever it raises, the handler is not to blame
            if isinstance(error, KeyboardInterrupt):
                raise
            said = str(error) if isinstance(error, PayloadError) else f"it raised {type(error).__name__}: {error}"
            problem = f"the `if_skipped` of step {step.id!r} makes no state for {self._reader()}: {said}"[:1000]
            raise self._broken(pure.broken or UnusableSubstitute(problem)) from error
        if pure.broken is not None:
            raise self._broken(pure.broken)
        return value

    def _recorded(self, name: str) -> Encoded | None:
        return self._source.memo_bytes(self.step_id, "forward", name, self._item)

    def _read(self, step: Step[Any, Any, Any], *, required: bool) -> Any:
        """The state, `_UNREAD` where there is none."""
        self._check_need(step, required)
        states = self._states
        if states is None:
            states = self._states = {}
        elif step.id in states:
            return states[step.id]
        encoded = self._source.state_bytes(step.id)
        if encoded is None:
            return _UNREAD
        state = states[step.id] = self._decode(step.codec, encoded, f"the state of step {step.id!r}")
        return state

    def _check_need(self, step: Step[Any, Any, Any], required: bool) -> None:
        if self._step is None:
            if self._source.pipeline.steps.get(step.id) is not step:
                self._check_member(step)
            return
        need = self._step.needs.get(step.id)
        if need is step:
            return
        if need is None or need.origin is not step.origin:
            raise self._broken(UndeclaredNeed(f"{self._reader()} reads {step!r}, which is not in its needs", step.id))
        if required and isinstance(need, Optional):
            raise self._broken(
                UndeclaredNeed(f"{self._reader()} lists {step!r} as optional: read it with `inv.get(...)`", step.id)
            )

    def _check_member(self, step: Step[Any, Any, Any]) -> None:
        own = self._source.pipeline.steps.get(step.id)
        if own is None or own.origin is not step.origin:
            raise self._broken(
                UndeclaredNeed(
                    f"{self._reader()} reads {step!r}, which is not in pipeline {self.pipeline_id!r}", step.id
                )
            )

    def _memo_codec(self, name: object, function: AnyFunction, type: object) -> AnyCodec:
        problem = name_problem(name)
        if problem is not None:
            raise self._broken(UnusableMemo(f"a memo of {self._reader()} {problem}: {ascii(name)[:80]}"))
        try:
            return codec_of(type) if type is not _UNREAD else codec_of_function(function)
        except DefinitionError as error:
            raise self._broken(UnusableMemo(f"memo {name!r} of {self._reader()}: {error}")) from error

    def _decode(self, codec: AnyCodec, encoded: Encoded, what: str) -> Any:
        try:
            return codec.decode(encoded)
        except PayloadError as error:
            raise self._broken(UnreadablePayload(what, error)) from error

    def _broken(self, breach: BrokenContract) -> BrokenContract:
        if self.broken is None:
            self.broken = breach
        return breach

    def _reader(self) -> str:
        return f"step {self._step.id!r}" if self._step is not None else f"a function of pipeline {self.pipeline_id!r}"


class UnwindInvocation(Invocation[In_co, D_co]):
    """One attempt to take a step's effect back. It sees why the run failed, states and memos [U-10]."""

    __slots__ = ()

    phase: Phase = "unwind"

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts to unwind this step, and not the key of its forward operation [M-3]."""
        return unwind_key(self._source.run_id, self.step_id)

    @property
    def forward_key(self) -> str:
        """The key under which the effect was made, to find or void it [M-3]."""
        return forward_key(self._source.run_id, self.step_id)

    @property
    def failure(self) -> Failure:
        """Why the run unwinds."""
        failure = self._source.failure
        if failure is None:
            raise RuntimeError("an unwind handler was called in a run that has not failed")
        return failure

    @property
    def unwind_failures(self) -> tuple[Failure, ...]:
        """The permanent failures of unwind handlers so far."""
        return self._source.unwind_failures

    def unit_of(self, step: ErasedStep, /) -> Unit | None:
        """The items of this very step, if it did not succeed; read them with `step.reports(inv)` [U-12]."""
        if self._step is None or step.origin is not self._step.origin:
            raise self._broken(UndeclaredNeed(f"{self._reader()} reads the items of {step!r}, another step", step.id))
        return self._source.unit_of(step.id)

    def _check_need(self, step: Step[Any, Any, Any], required: bool) -> None:
        if self._step is None or step.origin is not self._step.origin:  # its own state it may read as well
            super()._check_need(step, required)

    def _recorded(self, name: str) -> Encoded | None:
        own = self._source.memo_bytes(self.step_id, "unwind", name)
        return own if own is not None else super()._recorded(name)


class PureInvocation(Invocation[In_co, D_co]):
    """What conditions, substitutes and output functions are given: input and states, nothing to act with [M-13]."""

    __slots__ = ()

    def __init__(self, source: RunView, step: ErasedStep | None) -> None:
        super().__init__(source, step, 0)

    @property
    def deps(self) -> D_co:
        """Not for pure functions; reading it makes the run invalid."""
        raise self._broken(ImpureFunction(self._reader(), "deps"))

    @property
    def idempotency_key(self) -> str:
        """Not for pure functions; reading it makes the run invalid."""
        raise self._broken(ImpureFunction(self._reader(), "idempotency_key"))

    def _memo_codec(self, name: object, function: AnyFunction, type: object) -> AnyCodec:
        raise self._broken(ImpureFunction(self._reader(), "memo"))

    def tx(self, kind: type[T], /) -> Coroutine[Any, Any, T]:
        """Not for pure functions; calling it makes the run invalid."""
        raise self._broken(ImpureFunction(self._reader(), "tx"))

    def unusable(self, breach: BrokenContract) -> BrokenContract:
        """Note what makes the run invalid, to be raised; kept even if the function swallows it [D-1]."""
        return self._broken(breach)


class FailedInvocation(PureInvocation[In_co, D_co]):
    """What a failure-output function is given: the failure and the lists of U-9 besides [M-13]."""

    __slots__ = ("_end",)

    def __init__(self, source: RunView, end: RunFailed) -> None:
        super().__init__(source, None)
        self._end = end

    @property
    def failure(self) -> Failure:
        """Why the run failed."""
        return self._end.failure

    @property
    def unwind_failures(self) -> tuple[Failure, ...]:
        """The permanent failures of unwind handlers, in order."""
        return self._end.unwind_failures

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """Steps whose effect is not known from their handler, sorted [U-9]."""
        return self._end.in_doubt

    @property
    def half_unwound(self) -> tuple[str, ...]:
        """Steps whose unwind was started and never resolved, sorted."""
        return self._end.half_unwound

    @property
    def uncompensated(self) -> tuple[str, ...]:
        """Steps that had their effect, can unwind, and were not unwound, sorted."""
        return self._end.uncompensated

    @property
    def unavailable(self) -> tuple[str, ...]:
        """Steps that had their effect and can no longer unwind, sorted."""
        return self._end.unavailable

    @property
    def item_counts(self) -> tuple[ItemCounts, ...]:
        """What became of the items of steps that began one and did not succeed, sorted by step [U-12]."""
        return self._end.item_counts


AnyInvocation: TypeAlias = Invocation[Any, Any]
"""An invocation whose types nobody asks for."""
