"""What the handlers of a simulation act on: an outside world that remembers every effect and every attempt.

The world knows what the journal cannot: which handlers really ran, when, in which process, and what they saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from perdure.core.facts import Phase
from perdure.define.invocation import Invocation, UnwindInvocation
from perdure.define.items import Done, ItemInvocation, ItemReport, More
from perdure.define.later import Later
from perdure.define.signals import Fail
from perdure.define.step import Step
from perdure.testing.simulation import handlers
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.orders import Order
from perdure.testing.simulation.parts import base, index_of, part, said, turns_of

if TYPE_CHECKING:
    from perdure.testing.simulation.history import History

AttemptKey: TypeAlias = tuple[str, Phase, str, int]
"""Run, phase, step or item as `parts.part` names it, number."""

How: TypeAlias = Literal["running", "returned", "later", "raised", "never", "failed", "canceled", "died"]

Text: TypeAlias = "str | None"
"""State of a step: of a nap that is called, perhaps of one that slept."""

BIG = 3_000
"""Characters of a state that is over the limit of `PAYLOAD_LIMIT`."""

PAYLOAD_LIMIT = 2_000


class Impossible(Exception):
    """An error that some policies list as never retryable."""


@dataclass
class Attempt:
    """One call of a handler.

    Attributes:
        process: number of the process it ran in.
        worker: as whom that process had the run.
        how: how it ended, from the handler's own point of view.
        value: what it returned.
        later_us: how much later it asked to be called again.
        stopped: it saw its cancellation.
    """

    process: int
    worker: str
    started_us: int
    how: How = "running"
    value: str | None = None
    later_us: int = 0
    ended_us: int = 0
    stopped: bool = False


@dataclass
class Effect:
    """Everything that was done under one idempotency key."""

    run_id: str
    phase: Phase
    step: str
    times: int = 0


@dataclass
class World:
    """See the module.

    Attributes:
        healed: set when handlers are to do no more harm.
        poison: (run resource, step) of a handler that kills its process every time.
        running: attempts under way, by run: one, or those of items of one step.
        named: by run and step, the runs that it was last told to wait for.
    """

    dice: Dice
    history: History
    attempts: dict[AttemptKey, Attempt] = field(default_factory=dict[AttemptKey, Attempt])
    effects: dict[str, Effect] = field(default_factory=dict[str, Effect])
    running: dict[str, dict[AttemptKey, None]] = field(default_factory=dict[str, "dict[AttemptKey, None]"])
    healed: asyncio.Event = field(default_factory=asyncio.Event)
    poison: tuple[str, str] | None = None
    serial: int = 0
    named: dict[tuple[str, str], list[str]] = field(default_factory=dict[tuple[str, str], "list[str]"])

    def awaited(self, run_id: str, step: str, numbers: list[int]) -> list[str]:
        """The runs that a step waits for: those of these orders that wait for no slot, and perhaps one of nobody.

        A run in a queue may come after this one there, and then neither would ever go on.
        """
        known = self.history.by_number
        found = [known.get(number, f"nobody-{number}" if number < 0 else "") for number in numbers]
        self.named[run_id, step] = [one for one in found if one and one != run_id]
        return self.named[run_id, step]

    def value(self, step: str) -> str:
        """A state that no other attempt returns."""
        self.serial += 1
        return f"{step}.{self.serial}"

    def effect(self, key: str, run_id: str, phase: Phase, step: str) -> None:
        """Do something under a key; a key belongs to one operation [M-3]."""
        known = self.effects.setdefault(key, Effect(run_id, phase, step))
        if (known.run_id, known.phase, known.step) != (run_id, phase, step):
            self.history.blame(run_id, "M-3", f"key {key!r} of {phase} {step} was used by {known}")
        known.times += 1


@dataclass
class Seat:
    """One process's place in the world: the dependencies of its handlers.

    Attributes:
        alive: whether the process still lives; what a dead one does has no effect.
        died_us: when it died.
        worker: as whom the process works now.
        crash: ends the process at once.
        reads: by pipeline and step, the step whose state the handler reads, and whether that may be absent.
    """

    world: World
    process: int
    crash: Callable[[str], None]
    now_us: Callable[[], int]
    worker: Callable[[], str]
    alive: bool = True
    died_us: int = 0
    reads: dict[tuple[str, str], tuple[Step[Order, Seat, Text], bool]] = field(
        default_factory=dict[tuple[str, str], "tuple[Step[Order, Seat, Text], bool]"]
    )

    async def forward(self, inv: Invocation[Order, Seat]) -> str:
        """What every step does."""
        return await self._attempt(inv, "forward", inv.idempotency_key)

    async def asked(self, inv: Invocation[Order, Seat]) -> str | Later:
        """What every poll does: later, or what every step does [B-15]."""
        dice = self.world.dice
        if not dice.hit("poll said later"):
            return await self.forward(inv)
        name: AttemptKey = (inv.run_id, "forward", inv.step_id, inv.attempt)
        attempt = self._started(name)
        later = Later(max(dice.delay_s(10.0), 0.001))
        attempt.how, attempt.later_us, attempt.ended_us = "later", later.delay_us, self.now_us()
        self.world.running[inv.run_id].pop(name, None)
        self.world.history.note(f"p{self.process} {_text(name)} later {later.delay_us}")
        return later

    async def turn(self, inv: ItemInvocation[Order, Seat, str]) -> More[str] | Done[str]:
        """What every turn of a loop does [B-15]."""
        made = await self.forward(inv)
        if cast("str | None", made) is None:
            return cast("Done[str]", made)
        return More(made) if inv.index + 1 < turns_of(inv.input) else Done(made)

    def reported(self, run_id: str, step: str, reports: tuple[ItemReport[str, str], ...]) -> None:
        """An unwind handler in doubt is shown what became of each item [U-12, B-22]."""
        shown = [report.status for report in reports]
        true = self.world.history.judges[run_id].fates(step)
        if shown != true:
            self.world.history.blame(run_id, "U-12", f"unwind of {step} is shown {shown}, its items are {true}")

    async def backward(self, inv: UnwindInvocation[Order, Seat], state: str | None) -> None:
        """What every unwind handler does; it is given the state that was committed [U-2], or none in doubt [U-12]."""
        judge = self.world.history.judges[inv.run_id]
        if judge.state_text(inv.step_id) != state:
            self.world.history.blame(
                inv.run_id, "U-2", f"unwind of {inv.step_id} saw {state!r}, not {judge.state_text(inv.step_id)!r}"
            )
        seen = list(inv.unwind_failures)
        if judge.open is None:  # resolved a moment ago, and the handler is not told yet
            recorded = judge.unwind_failures[: len(seen)]
        else:
            recorded = judge.unwind_failures
        if inv.failure != judge.failure or seen != recorded:
            self.world.history.blame(inv.run_id, "U-10", f"unwind of {inv.step_id} saw another failure")
        await self._attempt(inv, "unwind", inv.idempotency_key)

    async def _attempt(self, inv: Invocation[Order, Seat], phase: Phase, key: str) -> str:
        world = self.world
        name: AttemptKey = (inv.run_id, phase, _operation(inv), inv.attempt)
        attempt = self._started(name)
        try:
            value = await self._behave(inv, phase, key)
        except asyncio.CancelledError:
            attempt.how, attempt.stopped = "canceled", True
            raise
        except Fail:
            attempt.how = "failed"
            raise
        except Impossible:
            attempt.how = "never"
            raise
        except BaseException:
            attempt.how = "raised"
            raise
        else:
            attempt.how, attempt.value = "returned", value
            return value
        finally:
            if not self.alive:
                attempt.how = "died"
            attempt.ended_us = self.now_us()
            handlers.check_end(world.history.judges[inv.run_id], name, attempt)
            world.running[inv.run_id].pop(name, None)
            world.history.note(f"p{self.process} {_text(name)} {attempt.how} {str(attempt.value)[:20]}")

    def _started(self, name: AttemptKey) -> Attempt:
        """An attempt is durable before its handler starts [M-8], and the only one of its run [R-1]."""
        world, (run_id, phase, step, number) = self.world, name
        history = world.history
        if not self.alive and index_of(step) is not None and self.died_us == self.now_us():
            raise asyncio.CancelledError  # its task was there when the process died, at this very instant
        if not self.alive:
            history.blame(run_id, "R-6", f"a handler of {step} started in a process that is dead")
        history.note(f"p{self.process} {_text(name)} starts")
        if name in world.attempts:
            history.blame(run_id, "M-8", f"attempt {number} of {phase} {step} was used before")
        worker = self.worker()
        running = world.running.setdefault(run_id, {})
        for other in running:
            beside = world.attempts[other]
            siblings = index_of(step) is not None and base(step) == base(other[2]) and other[2] != step
            if history.lives(beside.worker) and not (siblings and beside.worker == worker):
                history.blame(run_id, "R-1", f"{_text(name)} started while {_text(other)} runs")
        running[name] = None
        attempt = world.attempts[name] = Attempt(self.process, worker, self.now_us())
        handlers.check_start(history.judges[run_id], name, worker)
        history.doors.starts(history.judges[run_id], attempt, step)
        return attempt

    # --- behaviour

    async def _behave(self, inv: Invocation[Order, Seat], phase: Phase, key: str) -> str:
        dice, world = self.world.dice, self.world
        self._read(inv, phase)
        if dice.hit("handler kept a memo"):
            await self._memo(inv, phase)
        if dice.hit("handler swallowed its cancellation"):
            return await self._stubborn(inv, phase, key)
        if dice.hit("handler slow"):
            await asyncio.sleep(dice.delay_s(3.0))
        if phase == "forward" and world.poison == (inv.input.resource, inv.step_id) and not world.healed.is_set():
            self.crash("poison")
            await asyncio.sleep(0)
        if dice.hit("handler raised" if phase == "forward" else "unwind handler raised"):
            raise OSError("the world does not answer")
        if dice.hit("crash before an effect"):
            self.crash("before an effect")
            await asyncio.sleep(0)
        self._effect(inv, phase, key)
        if dice.hit("crash after an effect"):
            self.crash("after an effect")
            await asyncio.sleep(0)
        if dice.hit("handler hung"):
            await world.healed.wait()
        return self._end(inv, phase)

    def _end(self, inv: Invocation[Order, Seat], phase: Phase) -> str:
        """The handler's last word."""
        dice, world = self.world.dice, self.world
        if dice.hit("handler of an item failed" if isinstance(inv, ItemInvocation) else "handler failed"):
            raise Fail(f"{inv.step_id} is not possible", reason="declined", kind="user")
        if dice.hit("handler raised a never-retryable error"):
            raise Impossible(inv.step_id)
        if phase == "forward" and dice.hit("handler returned too much"):
            return "x" * BIG
        if phase == "forward" and dice.hit("handler broke its contract"):
            return cast(str, None)
        return world.value(inv.step_id)

    def _effect(self, inv: Invocation[Order, Seat], phase: Phase, key: str) -> None:
        if self.alive:
            self.world.effect(key, inv.run_id, phase, _operation(inv))

    def _read(self, inv: Invocation[Order, Seat], phase: Phase) -> None:
        """Read the state of an earlier step: what is committed, or nothing [M-14]."""
        needed = self.reads.get((inv.pipeline_id, inv.step_id))
        if needed is None or phase == "unwind":
            return
        step, may_be_absent = needed
        found = inv.get(step) if may_be_absent else inv[step]
        committed = self.world.history.judges[inv.run_id].state_text(step.id)
        if (None if found is None else said(found)) != committed:
            self.world.history.blame(inv.run_id, "M-14", f"{inv.step_id} read {found!r}, committed is {committed!r}")

    async def _memo(self, inv: Invocation[Order, Seat], phase: Phase) -> None:
        """A memo is recorded once, and seen by every later attempt [M-15]."""
        history = self.world.history
        before = history.judges[inv.run_id].memo_text(phase, _operation(inv), "note")
        made, worker = self.world.value("memo"), self.worker()
        found = await inv.memo("note", lambda: made, type=str)
        recorded = history.judges[inv.run_id].memo_text(phase, _operation(inv), "note")
        if self.alive and history.lives(worker) and (found != recorded or (before is not None and found != before)):
            history.blame(inv.run_id, "M-15", f"memo of {inv.step_id} is {found!r}, recorded is {recorded!r}")

    async def _stubborn(self, inv: Invocation[Order, Seat], phase: Phase, key: str) -> str:
        """A handler that is told to stop and has its own idea of how to end, as a thread would."""
        dice = self.world.dice
        try:
            await asyncio.sleep(dice.delay_s(10.0))
        except asyncio.CancelledError:
            if not self.alive or dice.maybe(0.2):
                raise
            self.world.attempts[inv.run_id, phase, _operation(inv), inv.attempt].stopped = True
            if dice.maybe(0.3):
                raise OSError("stopped half-way") from None
            if dice.maybe(0.3):
                raise Fail("stopped, and all is undone") from None
        self._effect(inv, phase, key)
        return self.world.value(inv.step_id)


def _operation(inv: Invocation[Order, Seat]) -> str:
    """The step or item that an invocation is of."""
    return part(inv.step_id, inv.index if isinstance(inv, ItemInvocation) else None)


def _text(name: AttemptKey) -> str:
    run_id, phase, step, number = name
    return f"{run_id[-5:]} {phase} {step}#{number}"
