"""Runs with a past, and what they do next, for the tables of the reconciler."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perdure.core.facts import Resolution
from perdure.core.operations import CancelOp, EvaluateOp, InvalidOp, Operation, RunOp, UnwindOp, WaitOp
from tests.core.build import Life


def brief(op: Operation) -> str:
    """An operation in a word or two: `run A 2`, `invalid step-missing`."""
    match op:
        case RunOp(step, _, attempt, _):
            return f"run {step} {attempt}"
        case EvaluateOp(step, _):
            return f"ask {step}"
        case UnwindOp(step, _, attempt, doubt):
            return f"unwind {step} {attempt}" + " in doubt" * doubt
        case CancelOp(step, _, doubt):
            return f"cancel {step}" + " in doubt" * doubt
        case WaitOp(step, _, _, is_open):
            return f"{'wake' if is_open else 'sleep'} {step}"
        case InvalidOp(reason, _):
            return f"invalid {reason}"
        case _:
            return type(op).__name__.removesuffix("Op").lower()


def past(text: str, acts: str) -> Life:
    """A run under the topology of `text` that lived through `acts`: `ok ok raises`, `skip:A` before the claim."""
    life = Life(text)
    life.author.false.update(s.removeprefix("skip:") for s in acts.split() if s.startswith("skip:"))
    life.claim()
    for act in acts.split():
        if act.startswith("skip:"):
            continue
        if act.startswith("resolve:"):
            life.resolve(HOW[act.removeprefix("resolve:")])
            life.goes_on()
        elif act == "dies":
            life.restart()
        else:
            ACTS[act](life)
    return life


HOW: Mapping[str, Resolution] = {"value": "value", "skip": "skip", "fail": "fail"}
ACTS: Mapping[str, Callable[[Life], object]] = {
    "ok": Life.ok,
    "fails": Life.fails,
    "raises": Life.raises,
    "never": lambda life: life.raises(never=True),
    "cancel": Life.cancel,
    "hold": Life.hold,
    "claim": Life.claim,
    "late": Life.times_out,
}


def then(life: Life, text: str) -> str:
    """What the run does next if that is deployed now."""
    life.deploy(text)
    return brief(life.next)


def stopped(text: str, done: int) -> Life:
    """The first `done` steps succeeded, and nothing is reserved: a hold was known when the last one returned."""
    life = Life(text)
    if not done:
        return life
    life.claim()
    for _ in range(done - 1):
        life.ok()
    life.hold()
    life.ok()
    life.release()
    return life


def failed(text: str, ok: int, skips: str = "") -> Life:
    """The first `ok` steps succeeded and the next one failed by its own word; nothing is reserved for unwinding."""
    life = Life(text)
    life.author.false.update(skips.split())
    life.claim()
    for _ in range(ok):
        life.ok()
    life.hold()
    life.fails()
    life.release()
    return life


def unwound(text: str, ok: int, times: int) -> Life:
    """As `failed`, then so many unwinds succeeded, and nothing is reserved."""
    life = failed(text, ok)
    life.claim()
    for _ in range(times - 1):
        life.ok()
    life.hold()
    life.ok()
    life.release()
    return life


def resolved_with_a_value(life: Life) -> None:
    """An operator supplies the value of the next operation, and the run goes on."""
    life.resolve("value")
    life.goes_on()
