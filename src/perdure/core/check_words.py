"""What a deployment means for runs, in sentences for whoever deploys it [D-6]. What is worst comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar, assert_never

from perdure.core.effects import Effects
from perdure.core.facts import Shape
from perdure.core.future import INPUT, Retyped
from perdure.core.operations import InvalidReason

Counted: TypeAlias = Sequence[tuple[int, Effects]]
K = TypeVar("K")

STANDS: dict[Shape, str] = {
    "handler": "is unresolved",
    "sleep": "sleeps",
    "message": "waits for a message",
    "runs": "waits for other runs",
    "each": "has open items",
    "loop": "is in a loop",
    "child": "waits for a child run",
    "children": "waits for child runs",
}
"""What an unresolved step does, for people."""

KINDS: dict[Shape, str] = {
    "handler": "a step with a handler",
    "sleep": "a sleep",
    "message": "a wait for a message",
    "runs": "a wait for other runs",
    "each": "a step of items",
    "loop": "a loop",
    "child": "a child run",
    "children": "a step of child runs",
}
"""What a step is, for people."""

Invalid: TypeAlias = tuple[InvalidReason | str, tuple[str, ...], Shape | Literal[""], Shape | Literal[""]]
"""Why runs are invalid: reason and steps, as what the unresolved one was started, and what it is now."""


def sentences(counted: Counted) -> tuple[str, ...]:
    """Sentences about the runs of a pipeline, given how many there are of each kind."""
    if not counted:
        return ("no live runs",)
    found = [
        *_by(counted, lambda e: [_invalid(e)] if e.validity == "becomes invalid" else [], _becomes_invalid),
        *_by(counted, lambda e: [(m.step, m.need) for m in e.misses], _misses),
        *_by(counted, lambda e: [_invalid(e)] if e.validity == "stays invalid" else [], _stays_invalid),
        *_by(counted, lambda e: list(e.retyped), _retyped),
        *_by(counted, lambda e: list(e.leaks), _leaks),
        *_by(counted, lambda e: [True] if e.brittle else [], _brittle),
        *_by(counted, lambda e: [e.ends] if e.ends else [], _ends),
        *_by(counted, lambda e: list(e.passes), _passes),
        *_by(counted, lambda e: list(e.gains), _gains),
        *_by(counted, lambda e: list(e.loses), _loses),
        *_by(counted, lambda e: list(e.undoes), _undoes),
        *_by(counted, lambda e: [True] if e.reordered else [], _reordered),
        *_by(counted, lambda e: [True] if e.validity == "mended" else [], _mended),
        *_by(counted, lambda e: [True] if e.none else [], _unchanged),
    ]
    return tuple(found)


def runs(number: int) -> str:
    """`1 run`, `38,796 runs`."""
    return f"{number:,} run{'' if number == 1 else 's'}"


def _by(counted: Counted, keys: Callable[[Effects], Iterable[K]], say: Callable[[int, K], str]) -> list[str]:
    """One sentence per key, most runs first, with the number of runs it is true of."""
    totals: dict[K, int] = {}
    for number, effects in counted:
        for key in keys(effects):
            totals[key] = totals.get(key, 0) + number
    return [say(number, key) for key, number in sorted(totals.items(), key=lambda item: -item[1])]


def _invalid(effects: Effects) -> Invalid:
    return effects.reason, effects.steps, effects.shape, effects.became


def _becomes_invalid(number: int, key: Invalid) -> str:
    return f"{runs(number)} would become invalid because {_why(number, *key)}"


def _stays_invalid(number: int, key: Invalid) -> str:
    return f"{runs(number)} {_is(number)} invalid already and {_would_stay(number)} so, because {_why(number, *key)}"


def _why(
    number: int, reason: str, steps: tuple[str, ...], shape: Shape | Literal[""], became: Shape | Literal[""]
) -> str:
    their = "its" if number == 1 else "their"
    match reason:
        case "step-missing":
            return f"{_inside(number, steps[0], shape)} is gone: keep it as retired"
        case "shape-changed":
            now = f"is {KINDS[became]} now" if became else "is of another kind now"
            return f"{_inside(number, steps[0], shape)} {now}: give that another id, and keep the old step as retired"
        case "no-safe-frontier" | "no-safe-unwind-frontier":
            return f"none of the steps behind {'it' if number == 1 else 'them'} is left: keep {_some(steps)} as retired"
        case "pipeline-missing":
            return f"{their} pipeline is not in the application: bind it as well"
        case _:
            return reason.replace("-", " ")


def _inside(number: int, step: str, shape: Shape | Literal[""]) -> str:
    """The unresolved step, and what the runs do in it."""
    one = number == 1
    it = "it" if one else "they"
    match shape:
        case "" | "handler":
            return f"{'its' if one else 'their'} unresolved step {step}"
        case "sleep":
            return f"{it} {'sleeps' if one else 'sleep'} in {step}, which"
        case "message":
            return f"{it} {'waits' if one else 'wait'} for a message in {step}, which"
        case "runs":
            return f"{it} {'waits' if one else 'wait'} for other runs in {step}, which"
        case "each":
            return f"{it} {_have(number)} open items in {step}, which"
        case "loop":
            return f"{it} {_is(number)} in the loop {step}, which"
        case "child":
            return f"{it} {'waits' if one else 'wait'} for a child run in {step}, which"
        case "children":
            return f"{it} {'waits' if one else 'wait'} for child runs in {step}, which"
        case _ as unreachable:
            assert_never(unreachable)


def _some(steps: tuple[str, ...]) -> str:
    return steps[0] if len(steps) == 1 else f"one of {', '.join(steps[:5])}{' ...' if len(steps) > 5 else ''}"


def _misses(number: int, key: tuple[str, str]) -> str:
    step, need = key
    return (
        f"{runs(number)} would become invalid at {step}, which needs the state of {need}, and {_has(number)} none: "
        f"give {need} an if_skipped, or make the need optional({need})"
    )


def _leaks(number: int, step: str) -> str:
    return f"{runs(number)} could no longer undo {step} if {_it_fails(number)}: keep it in place, with its unwind"


def _brittle(number: int, _: bool) -> str:
    return (
        f"{runs(number)} would become invalid if {_it_fails(number)} before another step is finished, because nothing "
        f"of what {'it' if number == 1 else 'they'} finished is left: keep one step of it as retired"
    )


def _retyped(number: int, found: Retyped) -> str:
    types = f"{found.was} to {found.now}" if found.was != found.now else found.now
    readers = [f"the unwind of {step}" if step == found.step else step for step in found.readers]
    if found.step == INPUT:
        return (
            f"{runs(number)} {_have(number)} an input whose type changed since the lock file was written ({types}): "
            f"what is stored must stay readable, so a new field needs a default"
        )
    reads = (
        f"{', '.join(readers)} {'reads' if len(readers) == 1 else 'read'} it" if readers else "an output may read it"
    )
    if found.open:
        return (
            f"{runs(number)} {_have(number)} open items in {found.step}, and the type of these, or of what is made of "
            f"them, changed since the lock file was written ({types}): what is stored must stay readable, so a new "
            f"field needs a default; or take a new id"
        )
    return (
        f"{runs(number)} {_have(number)} a state of {found.step}, whose type changed since the lock file was written "
        f"({types}), and {reads}: what is stored must stay readable, so a new field needs a default; or take a new id"
    )


def _ends(number: int, ends: tuple[str, ...]) -> str:
    was, new = ends
    words = {"success": "succeed", "failure": "fail", "canceled": "end as canceled", "invalid": "be invalid"}
    return f"{runs(number)} would {words[new]} instead of: {words[was]}"


def _passes(number: int, step: str) -> str:
    return f"{runs(number)} {_is(number)} past {step} and will never run it"


def _gains(number: int, step: str) -> str:
    return f"{runs(number)} will run {step} as well"


def _loses(number: int, step: str) -> str:
    return f"{runs(number)} will not run {step} any more"


def _undoes(number: int, step: str) -> str:
    return f"{runs(number)} will undo {step} as well"


def _reordered(number: int, _: bool) -> str:
    return f"{runs(number)} will run what is ahead in another order"


def _mended(number: int, _: bool) -> str:
    return f"{runs(number)} that {_is(number)} invalid now will go on"


def _unchanged(number: int, _: bool) -> str:
    return f"{runs(number)} {'goes' if number == 1 else 'go'} on unchanged"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _has(number: int) -> str:
    return "it has" if number == 1 else "they have"


def _it_fails(number: int) -> str:
    return "it fails" if number == 1 else "they fail"


def _would_stay(number: int) -> str:
    return "stays" if number == 1 else "stay"
