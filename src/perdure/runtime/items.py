"""Running the items of one operation: many handlers at once, one append for all that ended meanwhile [B-10, R-1]."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from perdure.core.commit import plan_items
from perdure.core.facts import Failure
from perdure.core.operations import InvalidOp, InvalidReason, UnitOp
from perdure.core.outcomes import Interrupted, ItemOutcome, Outcome, Refused, Returned
from perdure.core.plan import Next
from perdure.core.units import items_due_us
from perdure.define.items import Done, ItemInvocation, ItemStep, More
from perdure.errors import PayloadError
from perdure.runtime.applying import Again, apply
from perdure.runtime.context import current_invocation
from perdure.runtime.executor import call, verdict
from perdure.runtime.host import Host
from perdure.runtime.live import Interrupt, LiveRun


async def run_items(host: Host, live: LiveRun, op: UnitOp) -> Next | None:
    """Run the reserved items of a unit, and those reserved as they end, until none is left that may start now.

    When it returns or raises, no handler runs any more, but for one that refuses to be cancelled and is waited for.

    Returns:
        The next operation; None where the run rests.
    """
    crew = Crew(host, live, op.step)
    live.crew = crew
    if live.interrupt != "abort":
        live.interrupt = None  # of the operation before
    following: Next | None = op
    try:
        if live.noticed:
            async with live.lock:
                await live.reload()
                live.act_on_notice()
        while isinstance(following, UnitOp) and following.step == op.step:  # the last may end during the append
            if following.start and not live.lease.holds:
                await live.lease.wait()
            crew.start(following)
            await crew.some_news(_next_us(host, live, crew))
            following = await _commit(host, live, following, crew)
        return following
    except GeneratorExit:  # the loop is gone: nothing can be awaited any more
        crew.abort()
        raise
    except BaseException:
        crew.abort()
        await crew.gone()
        raise
    finally:
        live.crew = None


def _next_us(host: Host, live: LiveRun, crew: Crew) -> int | None:
    """When there is an item to start though none ends; None: not before one does."""
    if crew.invalid is not None or live.p.pin != crew.step or crew.step not in live.p.units:
        return None
    return items_due_us(live.p, live.line.topology, crew.step, host.setting(live, host.system.now_us()))


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
                invalid=None if live.must_stop() else crew.invalid,  # whatever it did, it is canceled
            )
            try:
                return await apply(host, live, plan, now_us)
            except Again as again:
                again.tell(live)
                await live.reload()
                live.act_on_notice()


class Crew:
    """The handlers of items that run for one operation of one run.

    Attributes:
        step: the operation's.
        running: how many.
        invalid: a handler broke its contract: the run is invalid [D-1].
    """

    def __init__(self, host: Host, live: LiveRun, step: str) -> None:
        self.step = step
        self.running = 0
        self.invalid: InvalidOp | None = None
        self._host = host
        self._live = live
        self._definition: ItemStep[Any, Any, Any, Any, Any] = _item_step(live, step)
        self._attempts: dict[int, _Attempt] = {}
        self._ended: list[ItemOutcome] = []
        self._wake: asyncio.Future[None] | None = None
        self._nudged = False
        self._why: Interrupt | None = None
        self._bug: BaseException | None = None

    def start(self, op: UnitOp) -> None:
        """Begin the reserved attempts; while draining or after a stop they end as interrupted [R-6]."""
        host, found = self._host, self._live.p.units.get(self.step)
        if found is None:  # an operator resolved it: nothing is reserved any more
            return
        if self._why == "fenced" and op.start:  # our reservation was accepted: the run is ours after all
            self._why = None
        why = self._why if self._why is not None else "shutdown" if host.draining else None
        now_us = host.system.now_us() if op.start else 0
        for index, attempt in op.start:
            if why is not None:
                self._ended.append(ItemOutcome(index, attempt, Interrupted()))
                continue
            if host.observers:
                host.emit(
                    "attempt-started",
                    self._live.p,
                    step=self.step,
                    attempt=attempt,
                    detail=f"item {index}",
                    phase="forward",
                    item=index,
                )
            inv: ItemInvocation[Any, Any, Any] = ItemInvocation(
                self._live, self._definition, attempt, index, found.items[index]
            )
            one = _Attempt(index, attempt, inv, now_us)
            self._attempts[index] = one
            self.running += 1
            one.task = host.loop.create_task(self._run(one), context=host.context.copy())

    async def some_news(self, until_us: int | None = None) -> None:
        """Wait until at least one has ended, it is `until_us`, or something came from outside.

        Raises:
            BaseException: a bug in what surrounds the handlers.
        """
        if not self._ended and self.running and not self._nudged and self._bug is None:
            loop = self._host.loop
            self._wake = loop.create_future()
            timer: asyncio.TimerHandle | None = None
            if until_us is not None:
                delay_s = max(0, until_us - self._host.system.now_us()) / 1_000_000
                timer = loop.call_later(delay_s, self._woken)
            try:
                await self._wake
            finally:
                self._wake = None
                if timer is not None:
                    timer.cancel()
        self._nudged = False
        if self._bug is not None:
            raise self._bug

    def take_ended(self) -> list[ItemOutcome]:
        """Those that have ended and were not taken."""
        ended, self._ended = self._ended, []
        return ended

    def stop(self, why: Interrupt) -> None:
        """Cancel all that run, and start none any more."""
        if self._why is None:
            self._why = why
            for one in self._attempts.values():
                one.stop(why)
            self.nudge()

    def nudge(self) -> None:
        """Something came from outside: plan anew."""
        self._nudged = True
        self._woken()

    def abort(self) -> None:
        """Cancel all that run; nobody waits for what they do."""
        for one in self._attempts.values():
            one.stop("abort")

    async def gone(self) -> None:
        """Wait until none runs."""
        if tasks := [one.task for one in self._attempts.values() if one.task is not None]:
            await asyncio.wait(tasks)

    def item_of(self, task: object) -> int | None:
        """The item whose handler this task runs; None: it is of something else. Called in any thread [R-15]."""
        return next((one.index for one in list(self._attempts.values()) if one.task is task), None)

    def stuck(self, before_us: int) -> list[tuple[int, int, int]]:
        """Item, attempt and start of those that run since before then, each told once [R-15]."""
        found = [one for one in self._attempts.values() if one.started_us <= before_us and not one.told]
        for one in found:
            one.told = True
        return [(one.index, one.attempt, one.started_us) for one in found]

    def _woken(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self, one: _Attempt) -> None:
        found: _Found = None
        try:
            found = await self._attempt(one)
        except BaseException as error:
            if isinstance(error, GeneratorExit) or one.interrupt == "abort":
                raise
            self._bug = error
        finally:
            self._attempts.pop(one.index, None)
            self.running -= 1
            self._note(one, found)
            self._woken()

    def _note(self, one: _Attempt, found: _Found) -> None:
        if isinstance(found, InvalidOp):
            self.invalid = self.invalid or found
        elif isinstance(found, tuple):
            self._ended.append(ItemOutcome(one.index, one.attempt, found[0], found[1]))
        elif found is not None:
            self._ended.append(ItemOutcome(one.index, one.attempt, found))
        elif one.interrupt == "fenced" and self._host.observers:
            detail = f"item {one.index}"
            self._host.emit("late", self._live.p, step=self.step, attempt=one.attempt, detail=detail, item=one.index)

    async def _attempt(self, one: _Attempt) -> _Found:
        host, definition, inv = self._host, self._definition, one.inv
        timeout_s = self._live.line.timeouts_s.get(self.step)
        one.loop = host.loop
        value: object = None
        error: BaseException | None = None
        current_invocation.set(inv)
        try:
            one.begin()
            if timeout_s is not None:
                one.allow(timeout_s)
            value = await call(host, definition.handler, definition.is_async, (inv,), inv, timeout_s, one.allow)
        except BaseException as raised:  # whatever a handler raises is the end of its attempt
            if isinstance(raised, GeneratorExit) and not one.is_running():
                raise  # not the handler's: the loop is gone and this coroutine is being closed
            error = raised
        finally:
            one.allow(None)
        if one.interrupt == "abort":
            raise asyncio.CancelledError
        if error is None and inv.broken is None and one.interrupt != "fenced":
            return _made(host, definition, one, value)
        return verdict(self._live.line, one.interrupt, inv, "forward", one.attempt, error, host.system.now_us())


_Found: TypeAlias = Outcome | InvalidOp | tuple[Outcome, bool] | None


class _Attempt:
    """One attempt of one item, while it runs."""

    __slots__ = ("_begun", "_timer", "attempt", "index", "interrupt", "inv", "loop", "started_us", "task", "told")

    def __init__(self, index: int, attempt: int, inv: ItemInvocation[Any, Any, Any], started_us: int) -> None:
        self.index = index
        self.attempt = attempt
        self.inv = inv
        self.started_us = started_us
        self.told = False
        self.interrupt: Interrupt | None = None
        self.task: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._begun = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Its task runs.

        Raises:
            asyncio.CancelledError: it was stopped before.
        """
        self._begun = True
        if self.interrupt is not None:
            raise asyncio.CancelledError

    def stop(self, why: Interrupt) -> None:
        """Cancel it; the first reason stays. A task that does not run yet must run, to say that it has ended."""
        if self.interrupt is None and self.task is not None:
            self.interrupt = why
            self.inv.stopped = True
            if self._begun:
                self.task.cancel()

    def allow(self, timeout_s: float | None) -> None:
        """From now on it may take so long; None: any time [R-18]."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if timeout_s is not None and self.loop is not None:
            self._timer = self.loop.call_later(timeout_s, self.stop, "timeout")

    def is_running(self) -> bool:
        """Whether its task is what the loop executes now."""
        try:
            return self.task is not None and asyncio.current_task() is self.task
        except RuntimeError:
            return False


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
