"""Pipelines of a simulation as plain values: designs, and how a seed mutates them from deployment to deployment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from perdure.core.facts import SlotMode
from perdure.core.retry import Retry
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.parts import CHILD_PIPELINE, KINDS_OF_UNITS, PARENTS, WAITS
from perdure.testing.simulation.world import Impossible

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

POOL = (*(f"s{n}" for n in range(9)), *NAPS, *MAIL, *KINDS_OF_UNITS)
"""Step ids; policies hang on the id, so that they are the same in every deployment."""

OFTEN = 0.5
SELDOM = 0.18
"""How often a step is there: one of a unit brings many handlers or runs with it."""

RETRIES: dict[str, Retry | None] = {
    "s1": Retry(max_attempts=2, then="hold"),
    "s2": Retry(max_attempts=3, then="fail", initial=1.0),
    "s3": Retry(never=(Impossible,)),
    "s4": Retry(max_attempts=4, then="fail", never=(Impossible,), unwind_max_attempts=2),
    "s5": Retry(initial=20.0, cap=200.0, jitter=0.5),
    "s7": Retry(max_attempts=1, then="hold", never=(Impossible,)),
    "f1": Retry(max_attempts=3, then="fail", initial=1.0),
    "f2": Retry(max_attempts=2, then="fail", never=(Impossible,)),
    "t1": Retry(max_attempts=4, then="hold", initial=2.0),
}
TIMEOUTS: dict[str, float] = {"s0": 2.0, "s2": 5.0, "s4": 1.0, "s6": 30.0, "f2": 4.0}


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

    @property
    def pool(self) -> Sequence[str]:
        """Ids of the steps that it may have.

        What may be a child has none itself; and where it may queue for a slot, it waits for no run: that one might in
        the end wait for it, as nobody sees.
        """
        if self.id != CHILD_PIPELINE:
            return POOL
        return [step for step in POOL if step not in PARENTS and (step not in WAITS or self.slot != "live")]


def condition_holds(step: str, number: int) -> bool:
    """What the conditions of all designs say, for the order of that number."""
    return (number * 7 + int(step[1:])) % 3 != 0


# --- evolution


def first_design(pipeline: str, slot: SlotMode, dice: Dice) -> Design:
    """The design that a simulation begins with."""
    design = Design(pipeline, slot, ())
    chosen = [step for step in design.pool if dice.maybe(SELDOM if step in KINDS_OF_UNITS else OFTEN)]
    ids = [step for step in chosen if step not in KINDS_OF_UNITS] or ["s0"]
    for step in chosen:
        if step in KINDS_OF_UNITS:  # anywhere: at the end, they would be reached when all faults are over
            ids.insert(dice.number(0, len(ids)), step)
    return replace(design, steps=tuple(_new_step(step, ids, dice) for step in ids))


def _new_step(step: str, others: list[str], dice: Dice) -> StepDesign:
    unwind = dice.maybe(0.6) and step not in (*MAIL, *WAITS)
    reads = step not in (*PARENTS, *WAITS)
    others = [other for other in others if reads and other not in (*NAPS, *MAIL, *WAITS)]
    return StepDesign(
        step,
        unwind=unwind,
        in_doubt=unwind and dice.maybe(0.4),
        conditional=dice.maybe(0.2),
        settle=dice.maybe(0.2),
        needs=dice.choice(others) if others and dice.maybe(0.6) else "",
        need_is_optional=dice.maybe(0.4),
        sleep_s=dice.choice(DURATIONS_S) if step in NAPS and dice.maybe(0.8) else 0.0,
        patience_s=_patience_s(step, dice),
    )


def _patience_s(step: str, dice: Dice) -> float:
    """How long a step waits for a message, or for runs, which as a rule end sooner than anybody writes; 0: for ever."""
    if step in WAITS:
        return dice.choice(PATIENCES_S) / 10
    return dice.choice(PATIENCES_S) if step in MAIL else 0.0


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


def _insert(past: Evolution, steps: list[StepDesign], _at: int, dice: Dice) -> list[StepDesign]:
    here = [step.id for step in steps]
    free = [step for step in past.now.pool if step not in here]
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
                steps[:] = [replace(one, patience_s=_patience_s(one.id, dice)) for one in steps]
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
