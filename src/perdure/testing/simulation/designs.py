"""Pipelines of a simulation: designs as plain values that a seed mutates, and the pipelines built from them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from perdure.core.facts import SlotMode
from perdure.core.retry import Retry
from perdure.define.await_message import AwaitMessage
from perdure.define.invocation import FailedInvocation, Invocation, UnwindInvocation
from perdure.define.later import Later
from perdure.define.pipeline import Bound, Pipeline
from perdure.define.sleep import Sleep
from perdure.define.step import AsyncPoll, AsyncStep, Need, Step, optional, retired
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.world import Impossible, Order, Seat, Text

Inv = Invocation[Order, Seat]

NAPS = ("z9", "z8", "z7")
"""Steps that sleep in some deployments and are called in others; nobody reads them."""

POLLS = frozenset({"s6", "s8"})
"""Steps that may say `Later`."""

MAIL = ("m1", "m2")
"""Steps that wait for a message of their own name; of those that wait too long the first fails."""

LATE = {"m2": "late"}
"""The state of a wait that has lasted too long."""

PATIENCES_S = (0.0, 20.0, 200.0)

DURATIONS_S = (0.5, 5.0, 60.0, 300.0)

POOL = (*(f"s{n}" for n in range(9)), *NAPS, *MAIL)
"""Step ids; policies hang on the id, so that they are the same in every deployment."""

RETRIES: dict[str, Retry | None] = {
    "s1": Retry(max_attempts=2, then="hold"),
    "s2": Retry(max_attempts=3, then="fail", initial=1.0),
    "s3": Retry(never=(Impossible,)),
    "s4": Retry(max_attempts=4, then="fail", never=(Impossible,), unwind_max_attempts=2),
    "s5": Retry(initial=20.0, cap=200.0, jitter=0.5),
    "s7": Retry(max_attempts=1, then="hold", never=(Impossible,)),
}
TIMEOUTS: dict[str, float] = {"s0": 2.0, "s2": 5.0, "s4": 1.0, "s6": 30.0}


@dataclass(frozen=True)
class StepDesign:
    """One step of a design; the flags are what deployments change."""

    id: str
    unwind: bool = False
    in_doubt: bool = False
    retired: bool = False
    conditional: bool = False
    settle: bool = False
    needs: str = ""
    need_is_optional: bool = True
    sleep_s: float = 0.0
    patience_s: float = 0.0


@dataclass(frozen=True)
class Design:
    """One version of a pipeline. A broken function raises whenever it is asked."""

    id: str
    slot: SlotMode
    steps: tuple[StepDesign, ...]
    broken_output: bool = False
    broken_condition: bool = False
    deadline_s: float | None = None


def condition_holds(step: str, number: int) -> bool:
    """What the conditions of all designs say, for the order of that number."""
    return (number * 7 + int(step[1:])) % 3 != 0


async def forward(inv: Inv) -> str:
    """The handler of every step."""
    return await inv.deps.forward(inv)


async def forward_of_nap(inv: Inv) -> Text:
    """The handler of a step that sleeps in other deployments."""
    return await inv.deps.forward(inv)


async def asked(inv: Inv) -> str | Later:
    """The handler of every poll."""
    return await inv.deps.asked(inv)


async def backward(inv: UnwindInvocation[Order, Seat], state: Text) -> None:
    """The unwind handler of every step."""
    await inv.deps.backward(inv, state)


async def backward_in_doubt(inv: UnwindInvocation[Order, Seat]) -> None:
    """The handler of every step for unwinding in doubt."""
    await inv.deps.backward(inv, None)


def condition(inv: Inv) -> bool:
    """The condition of every conditional step."""
    return condition_holds(inv.step_id, inv.input.number)


def broken_condition(inv: Inv) -> bool:
    """A condition with a bug."""
    raise RuntimeError("the condition has a bug")


def _build_step(
    one: StepDesign, needed: Step[Order, Seat, Text] | None, condition: Callable[[Inv], bool]
) -> Step[Order, Seat, Text]:
    when = condition if one.conditional else None
    if one.sleep_s:
        slept = Sleep(one.id, one.sleep_s) if when is None else Sleep(one.id, one.sleep_s, when=when)
        return cast("Step[Order, Seat, Text]", slept)
    if one.id in MAIL:
        late = {"on_timeout": LATE[one.id]} if one.patience_s and one.id in LATE else {}
        options: dict[str, Any] = {"timeout": one.patience_s or None, "when": when, **late}
        return cast("Step[Order, Seat, Text]", AwaitMessage(one.id, name=one.id, type=str, **options))
    need: tuple[Need, ...] = ()
    if needed is not None:
        loose = one.need_is_optional or needed.when is not None
        need = (optional(needed),) if loose else (needed,)
    polls = one.id in POLLS
    handler = asked if polls else forward_of_nap if one.id in NAPS else forward
    kind = cast("type[AsyncStep[Order, Seat, Text]]", AsyncPoll if polls else AsyncStep)
    return kind(
        one.id,
        handler,
        True,
        unwind=backward if one.unwind else None,
        unwind_is_async=True,
        unwind_in_doubt=backward_in_doubt if one.unwind and one.in_doubt else None,
        unwind_in_doubt_is_async=True,
        timeout_s=TIMEOUTS.get(one.id),
        retry=RETRIES.get(one.id),
        needs=need,
        when=when,
        on_cancel="settle" if one.settle else "cancel",
        polls=polls,
    )


def build(design: Design, seat: Seat) -> Bound:
    """The pipeline of a design, bound to a seat of the world."""
    steps: dict[str, Step[Order, Seat, Text]] = {}
    for one in design.steps:
        needed = steps.get(one.needs)
        made = _build_step(one, needed, broken_condition if design.broken_condition else condition)
        steps[one.id] = retired(made) if one.retired else made
        if needed is not None:
            seat.reads[design.id, one.id] = (needed, one.need_is_optional or needed.when is not None)

    @asynccontextmanager
    async def deps() -> AsyncGenerator[Seat]:
        yield seat

    pipeline: Pipeline[Order, Seat, str] = Pipeline(
        id=design.id,
        input=Order,
        deps=Seat,
        steps=tuple(steps.values()),
        output=_output(steps, design.broken_output),
        failure_output=_failure_output,
        resource=lambda order: order.resource,
        slot=design.slot,
        deadline=design.deadline_s,
    )
    return pipeline.bind(deps)


def _output(steps: dict[str, Step[Order, Seat, Text]], broken: bool) -> Callable[[Inv], str]:
    def output(inv: Inv) -> str:
        if broken:
            raise RuntimeError("the output function has a bug")
        called = [
            step for step in steps.values() if step.shape != "sleep"
        ]  # what a nap was called for is no sleep's state
        states: list[Text] = [inv.get(step, None) for step in called]
        return "+".join(state or "-" for state in states)

    return output


def _failure_output(inv: FailedInvocation[Order, Seat]) -> list[list[str]]:
    return [list(inv.in_doubt), list(inv.half_unwound), list(inv.uncompensated), list(inv.unavailable)]


# --- evolution


def first_design(pipeline: str, slot: SlotMode, dice: Dice) -> Design:
    """The design that a simulation begins with."""
    ids = [step for step in POOL if dice.maybe(0.5)] or ["s0"]
    return Design(pipeline, slot, tuple(_new_step(step, ids, dice) for step in ids))


def _new_step(step: str, others: list[str], dice: Dice) -> StepDesign:
    unwind = dice.maybe(0.6) and step not in MAIL
    others = [other for other in others if other not in (*NAPS, *MAIL)]
    return StepDesign(
        step,
        unwind=unwind,
        in_doubt=unwind and dice.maybe(0.4),
        conditional=dice.maybe(0.2),
        settle=dice.maybe(0.2),
        needs=dice.choice(others) if others and dice.maybe(0.6) else "",
        need_is_optional=dice.maybe(0.4),
        sleep_s=dice.choice(DURATIONS_S) if step in NAPS and dice.maybe(0.8) else 0.0,
        patience_s=dice.choice(PATIENCES_S) if step in MAIL else 0.0,
    )


@dataclass
class Evolution:
    """The designs of one pipeline, first to last, and how the next one is made."""

    designs: list[Design]
    known: dict[str, StepDesign] = field(default_factory=dict[str, StepDesign])

    @property
    def now(self) -> Design:
        """The design deployed last."""
        return self.designs[-1]

    def mutate(self, dice: Dice, stands: Sequence[str], unwinding: Sequence[str]) -> str:
        """Make the next design by one change; returns the kind of change, which may have changed nothing.

        Args:
            stands: steps that runs stand at or have just passed; changes there hurt most, so many of them aim there.
            unwinding: steps whose unwind is under way, likewise.
        """
        kind = dice.choice(tuple(_MUTATIONS))
        if unwinding and dice.maybe(0.5):
            kind, stands = dice.choice(("remove", "toggle unwind")), unwinding
        napping = [step for step in stands if step in NAPS]
        if napping and dice.maybe(0.3):
            kind, stands = "toggle sleep", napping
        self.known.update({step.id: step for step in self.now.steps})
        steps = list(self.now.steps)
        for _ in range(dice.choice((2, 3, 4) if kind == "remove" else (1, 1, 2))):
            ids = [step.id for step in steps]
            aims = [step for step in stands if step in ids]
            at = ids.index(dice.choice(aims)) if aims and dice.maybe(0.6) else dice.number(0, len(ids) - 1)
            steps = _MUTATIONS[kind](self, steps, at, dice)
        self.designs.append(
            replace(
                self.now,
                steps=tuple(steps),
                broken_output=dice.maybe(0.08),
                broken_condition=dice.maybe(0.08),
            )
        )
        return kind

    def heal(self) -> None:
        """A last design that can continue every run: nothing broken, nothing read, every step that ever was [E-3]."""
        self.known.update({step.id: step for step in self.now.steps})
        here = {step.id for step in self.now.steps}
        gone = [replace(step, retired=True) for step in self.known.values() if step.id not in here]
        steps = tuple(replace(step, needs="") for step in (*self.now.steps, *gone))
        self.designs.append(replace(self.now, steps=steps, broken_output=False, broken_condition=False))


_Change = Callable[[Evolution, list[StepDesign], int, Dice], list[StepDesign]]


def _insert(_past: Evolution, steps: list[StepDesign], _at: int, dice: Dice) -> list[StepDesign]:
    here = [step.id for step in steps]
    free = [step for step in POOL if step not in here]
    if free:
        steps.insert(dice.number(0, len(steps)), _new_step(dice.choice(free), here, dice))
    return steps


def _move(_past: Evolution, steps: list[StepDesign], at: int, dice: Dice) -> list[StepDesign]:
    moved = steps.pop(at)
    steps.insert(dice.number(0, len(steps)), moved)
    return steps


def _remove(_past: Evolution, steps: list[StepDesign], at: int, _dice: Dice) -> list[StepDesign]:
    if len(steps) > 1:
        del steps[at]
    return steps


def _restore(past: Evolution, steps: list[StepDesign], _at: int, dice: Dice) -> list[StepDesign]:
    here = {step.id for step in steps}
    gone = [step for step in past.known.values() if step.id not in here]
    if gone:
        steps.insert(dice.number(0, len(steps)), replace(dice.choice(gone), retired=dice.maybe(0.5)))
    return steps


def _rollback(past: Evolution, _steps: list[StepDesign], _at: int, dice: Dice) -> list[StepDesign]:
    return list(dice.choice(past.designs).steps)


def _code_only(_past: Evolution, steps: list[StepDesign], _at: int, _dice: Dice) -> list[StepDesign]:
    return steps


def _flip(flag: str) -> _Change:
    def change(_past: Evolution, steps: list[StepDesign], at: int, dice: Dice) -> list[StepDesign]:
        step = steps[at]
        match flag:
            case "retired":
                steps[at] = replace(step, retired=not step.retired)
            case "unwind":
                steps[at] = replace(step, unwind=not step.unwind)
            case "in_doubt":
                steps[at] = replace(step, unwind=True, in_doubt=not step.in_doubt)
            case "conditional":
                steps[at] = replace(step, conditional=not step.conditional)
            case "sleep":
                naps = [at for at, one in enumerate(steps) if one.id in NAPS]
                if naps:
                    nap = at if at in naps else dice.choice(naps)
                    steps[nap] = replace(steps[nap], sleep_s=0.0 if steps[nap].sleep_s else dice.choice(DURATIONS_S))
            case "duration":
                steps[:] = [replace(one, sleep_s=dice.choice(DURATIONS_S)) if one.sleep_s else one for one in steps]
                steps[:] = [
                    replace(one, patience_s=dice.choice(PATIENCES_S)) if one.id in MAIL else one for one in steps
                ]
            case _:
                steps[at] = replace(step, settle=not step.settle)
        return steps

    return change


_MUTATIONS: dict[str, _Change] = {
    "insert": _insert,
    "move": _move,
    "retire": _flip("retired"),
    "restore": _restore,
    "remove": _remove,
    "toggle unwind": _flip("unwind"),
    "toggle unwind in doubt": _flip("in_doubt"),
    "toggle condition": _flip("conditional"),
    "toggle settle": _flip("settle"),
    "toggle sleep": _flip("sleep"),
    "another duration": _flip("duration"),
    "rollback": _rollback,
    "code only": _code_only,
}
