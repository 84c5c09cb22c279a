"""Running the items of one operation: many handlers at once, one append for all that ended meanwhile [B-10, R-1]."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.core.commit import plan_items
from perdure.core.facts import Failure
from perdure.core.operations import InvalidOp, InvalidReason, UnitOp
from perdure.core.outcomes import ItemOutcome, Outcome, Refused, Returned
from perdure.core.plan import Next
from perdure.define.items import Done, ItemInvocation, ItemStep, More
from perdure.errors import PayloadError
from perdure.runtime.applying import Again, apply
from perdure.runtime.context import current_invocation
from perdure.runtime.executor import call, verdict
from perdure.runtime.host import Host
from perdure.runtime.live import Interrupt, LiveRun


async def run_items(host: Host, live: LiveRun, op: UnitOp) -> Next | None:
    """Run the reserved items of a unit, and those reserved as they end, until none is left that may start now.

    Returns:
        The next operation; None where the run rests.
    """
    crew = Crew(host, live, op.step)
    live.crew = crew
    following: Next | None = op
    try:
        if live.noticed:
            live.notice()
        while isinstance(following, UnitOp) and following.step == op.step:
            crew.start(following)
            await crew.some_ended()
            following = await _commit(host, live, following, crew)
        return following
    finally:
        live.crew = None
        crew.abort()


async def _commit(host: Host, live: LiveRun, op: UnitOp, crew: Crew) -> Next | None:
    """Record what has ended by now; re-planned on whatever was appended from outside [J-6]."""
    ended: list[ItemOutcome] = []
    async with live.lock:
        while True:
            ended += crew.take_ended()
            now_us = host.system.now_us()
            plan = plan_items(
                live.p,
                live.line.topology,
                op,
                ended,
                host.setting(live, now_us),
                running=crew.running > 0,
                invalid=crew.invalid,
            )
            try:
                return await apply(host, live, plan, now_us)
            except Again as again:
                live.cycle = again.cycle
                await live.reload()
                live.act_on_notice()


class Crew:
    """The handlers of items that run for one operation of one run.

    Attributes:
        running: how many.
        invalid: a handler broke its contract: the run is invalid [D-1].
    """

    def __init__(self, host: Host, live: LiveRun, step: str) -> None:
        self.running = 0
        self.invalid: InvalidOp | None = None
        self._host = host
        self._live = live
        self._step = step
        self._definition: ItemStep[Any, Any, Any, Any, Any] = _item_step(live, step)
        self._attempts: dict[int, _Attempt] = {}
        self._ended: list[ItemOutcome] = []
        self._wake: asyncio.Future[None] | None = None
        self._why: Interrupt | None = None

    def start(self, op: UnitOp) -> None:
        """Begin the reserved attempts."""
        host, items = self._host, self._live.p.units[self._step].items if op.start else []
        for index, attempt in op.start:
            if host.observers:
                host.emit("attempt-started", self._live.p, step=self._step, attempt=attempt, detail=f"item {index}")
            inv: ItemInvocation[Any, Any, Any] = ItemInvocation(
                self._live, self._definition, attempt, index, items[index]
            )
            one = _Attempt(index, attempt, inv)
            self._attempts[index] = one
            self.running += 1
            one.task = host.loop.create_task(self._run(one), context=host.context.copy())
            if self._why is not None:
                one.stop(self._why)

    async def some_ended(self) -> None:
        """Wait until at least one has ended, or none is left."""
        if not self._ended and self.running:
            self._wake = self._host.loop.create_future()
            await self._wake
            self._wake = None

    def take_ended(self) -> list[ItemOutcome]:
        """Those that have ended and were not taken."""
        ended, self._ended = self._ended, []
        return ended

    def stop(self, why: Interrupt) -> None:
        """Cancel all that run, and those that start from now on."""
        if self._why is None:
            self._why = why
            for one in self._attempts.values():
                one.stop(why)
            if not self.running and self._wake is not None and not self._wake.done():
                self._wake.set_result(None)

    def abort(self) -> None:
        """Nobody waits for them any more."""
        for one in self._attempts.values():
            one.stop("abort")

    async def _run(self, one: _Attempt) -> None:
        found: Outcome | InvalidOp | tuple[Outcome, bool] | None = None
        try:
            found = await self._attempt(one)
        finally:
            self._attempts.pop(one.index, None)
            self.running -= 1
            self._note(one, found)
            if self._wake is not None and not self._wake.done():
                self._wake.set_result(None)

    def _note(self, one: _Attempt, found: Outcome | InvalidOp | tuple[Outcome, bool] | None) -> None:
        if isinstance(found, InvalidOp):
            self.invalid = self.invalid or found
        elif isinstance(found, tuple):
            self._ended.append(ItemOutcome(one.index, one.attempt, found[0], found[1]))
        elif found is not None:
            self._ended.append(ItemOutcome(one.index, one.attempt, found))

    async def _attempt(self, one: _Attempt) -> Outcome | InvalidOp | tuple[Outcome, bool] | None:
        host, definition, inv = self._host, self._definition, one.inv
        timeout_s = self._live.line.timeouts_s.get(self._step)
        one.loop = host.loop
        value: object = None
        error: BaseException | None = None
        current_invocation.set(inv)
        try:
            if one.interrupt is not None:
                raise asyncio.CancelledError
            if timeout_s is not None:
                one.allow(timeout_s)
            value = await call(host, definition.handler, definition.is_async, (inv,), inv, timeout_s, one.allow)
        except BaseException as raised:  # whatever a handler raises is the end of its attempt
            if isinstance(raised, GeneratorExit):
                raise
            error = raised
        finally:
            one.allow(None)
        if one.interrupt == "abort":
            raise asyncio.CancelledError
        if error is None and inv.broken is None and one.interrupt != "fenced":
            return _made(host, definition, one, value)
        return verdict(self._live.line, one.interrupt, inv, "forward", one.attempt, error, host.system.now_us())


class _Attempt:
    """One attempt of one item, while it runs."""

    __slots__ = ("_timer", "attempt", "index", "interrupt", "inv", "loop", "task")

    def __init__(self, index: int, attempt: int, inv: ItemInvocation[Any, Any, Any]) -> None:
        self.index = index
        self.attempt = attempt
        self.inv = inv
        self.interrupt: Interrupt | None = None
        self.task: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def stop(self, why: Interrupt) -> None:
        """Cancel it; the first reason stays."""
        if self.interrupt is None and self.task is not None:
            self.interrupt = why
            self.task.cancel()

    def allow(self, timeout_s: float | None) -> None:
        """From now on it may take so long; None: any time [R-18]."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if timeout_s is not None and self.loop is not None:
            self._timer = self.loop.call_later(timeout_s, self.stop, "timeout")


def _item_step(live: LiveRun, step: str) -> ItemStep[Any, Any, Any, Any, Any]:
    definition: object = live.line.steps[step]
    if not isinstance(definition, ItemStep):
        raise TypeError(f"step {step!r} has no items")
    found: ItemStep[Any, Any, Any, Any, Any] = definition  # pyright: ignore[reportUnknownVariableType]  # the author's
    return found


def _made(
    host: Host, definition: ItemStep[Any, Any, Any, Any, Any], one: _Attempt, value: Any
) -> InvalidOp | tuple[Outcome, bool]:
    """What a handler of items returned, encoded; and whether the loop goes on with it."""
    more, codec, step = False, definition.output_codec, definition.id
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # the author's
    if definition.shape == "loop":
        if kind is More:
            value, more, codec = value.item, True, definition.item_codec
        elif kind is Done:
            value = value.value
        else:
            problem = f"a turn of step {step!r} returned {value!r}; it must return More(item) or Done(value)"
            return InvalidOp("contract-broken", problem[:1000])
    try:
        data = codec.encode(value)
    except PayloadError as error:
        reason: InvalidReason = "contract-broken" if value is None else "payload-unserialisable"
        return InvalidOp(reason, f"what step {step!r} made of item {one.index} cannot be stored: {error}")
    limit = host.options.payload_limit
    if len(data) > limit:
        message = f"step {step!r} made {len(data):,} bytes of item {one.index}, the limit is {limit:,}"
        at_us = host.system.now_us()
        failure = Failure(step, message, "forward", one.attempt, at_us, reason="payload-too-large")
        return Refused(failure), False
    return Returned(data), more
