"""`explain` in a picture and in words: pure, from an explanation to rows [E-11]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from perdure.cli.looks import FATES, NEXT, RULE, UNWINDS, sign_cell
from perdure.cli.tables import Cell, Line, Table
from perdure.cli.times import ago, iso_utc
from perdure.core.operations import (
    CancelOp,
    CompleteOp,
    EndedOp,
    EvaluateOp,
    FailOp,
    HeldOp,
    InvalidOp,
    Operation,
    RunOp,
    UnitOp,
    UnwindOp,
    WaitOp,
)

if TYPE_CHECKING:
    from perdure.core.explain import Explanation, StepExplanation


@dataclass(frozen=True)
class Picture:
    """The parts of a drawing, in order: the steps, those that are gone, and what comes next."""

    steps: Table
    gone: Table
    next: str


def draw(e: Explanation, now_us: int, *, fine: bool) -> Picture:
    """Draw an explanation.

    Args:
        e: the run in the current topology.
        now_us: for what lies ahead.
        fine: with signs outside of ASCII.
    """
    steps = Table(["", "step", "forward", *_unwind_heading(e), "why"])
    for step in e.steps:
        if e.unwind_frontier is not None and step.position == e.unwind_frontier:
            steps.rows.append(_rule("unwind frontier", e, fine=fine))
        steps.rows.append(_step_row(step, e, fine=fine))
        if step.position == e.frontier and not _has_unwind(e):
            steps.rows.append(_rule("frontier", e, fine=fine))
    gone = Table(steps.columns, [_step_row(step, e, fine=fine) for step in e.gone])
    return Picture(steps, gone, next_sentence(e.next, e.due_us, now_us))


def _has_unwind(e: Explanation) -> bool:
    return e.unwind_frontier is not None or any(step.unwind is not None for step in (*e.steps, *e.gone))


def _unwind_heading(e: Explanation) -> list[str]:
    return ["unwind"] if _has_unwind(e) else []


def _rule(name: str, e: Explanation, *, fine: bool) -> Line:
    blank = [""] * (3 if _has_unwind(e) else 2)
    return [sign_cell(RULE, fine=fine), Cell(name, RULE.style), *blank]


def _step_row(step: StepExplanation, e: Explanation, *, fine: bool) -> Line:
    sign = UNWINDS[step.unwind] if step.unwind is not None else FATES[step.fate]
    if step.position is not None and step.step == _step_of(e.next):
        sign = NEXT
    fate = FATES[step.fate]
    forward = Cell(_counted(step.fate, step.attempts, step) + (", in doubt" if step.in_doubt else ""), fate.style)
    row: list[str | Cell] = [sign_cell(sign, fine=fine), Cell(step.step, "bold" if sign is NEXT else ""), forward]
    if _has_unwind(e):
        word = "" if step.unwind is None else _counted(step.unwind, step.unwind_attempts, step)
        row.append(Cell(word, "" if step.unwind is None else UNWINDS[step.unwind].style))
    return [*row, Cell(step.why, "dim")]


def _counted(word: str, attempts: int, step: StepExplanation) -> str:
    """With the number of the attempt or, of a step that has many things under way, how many there were of all."""
    if attempts < 2:
        return word
    match step.shape:
        case "each" | "loop":
            return f"{word} ({attempts} attempts)"
        case "child" | "children":
            return f"{word} ({attempts} child runs)"
        case "handler" | "sleep" | "message" | "runs":
            return f"{word} (attempt {attempts})"
        case _ as unreachable:
            assert_never(unreachable)


def _step_of(op: Operation) -> str | None:
    match op:
        case RunOp() | EvaluateOp() | WaitOp() | UnitOp() | UnwindOp() | CancelOp():
            return op.step
        case CompleteOp() | FailOp() | HeldOp() | InvalidOp() | EndedOp():
            return None
        case _ as unreachable:
            assert_never(unreachable)


def next_sentence(op: Operation, due_us: int, now_us: int) -> str:
    """What the run does next, as the end of the sentence that begins with `next:`."""
    later = f", {ago(due_us, now_us)}" if due_us > now_us else ""
    match op:
        case RunOp():
            return f"run {op.step} as attempt {op.attempt}{later}"
        case EvaluateOp():
            return f"ask the condition of {op.step}, and run it if that holds{later}"
        case WaitOp(shape="sleep"):
            return f"{'end' if op.open else 'begin'} the sleep {op.step}{later}"
        case WaitOp():
            what = "a message" if op.shape == "message" else "other runs"
            latest = f"{later} at the latest" if later else ""
            return f"{'go on waiting' if op.open else 'wait'} for {what} at {op.step}{latest}"
        case UnitOp():
            what = "child runs" if op.shape in ("child", "children") else "turns" if op.shape == "loop" else "items"
            return f"{'go on with' if op.open else 'begin'} the {what} of {op.step}{later}"
        case UnwindOp():
            how = ", in doubt" if op.in_doubt else ""
            return f"unwind {op.step} as attempt {op.attempt}{how}{later}"
        case CancelOp():
            return f"end {op.step} as canceled, without a call, and unwind"
        case CompleteOp():
            return "compute the output and succeed"
        case FailOp():
            return "nothing is left to unwind: end as failed"
        case HeldOp():
            return f"nothing: held ({op.reason}); `perdure release`, `retry` or `resolve` goes on"
        case InvalidOp():
            return f"nothing: invalid ({op.reason}): {op.detail}"
        case EndedOp():
            return "nothing: the run has ended"
        case _ as unreachable:
            assert_never(unreachable)


def operation_json(op: Operation) -> dict[str, object]:
    """The next operation for programs; `op` names its kind, as the classes do without their ending."""
    match op:
        case RunOp() | UnwindOp():
            word = "run" if isinstance(op, RunOp) else "unwind"
            return {"op": word, "step": op.step, "attempt": op.attempt}
        case EvaluateOp():
            return {"op": "evaluate", "step": op.step}
        case WaitOp() | UnitOp():
            return {"op": op.shape, "step": op.step, "open": op.open}
        case CancelOp():
            return {"op": "cancel", "step": op.step}
        case CompleteOp():
            return {"op": "complete"}
        case FailOp():
            return {"op": "fail"}
        case HeldOp():
            return {"op": "held", "reason": op.reason}
        case InvalidOp():
            return {"op": "invalid", "reason": op.reason, "detail": op.detail}
        case EndedOp():
            return {"op": "ended"}
        case _ as unreachable:
            assert_never(unreachable)


def explanation_json(e: Explanation) -> dict[str, object]:
    """The explanation for programs."""
    return {
        "run_id": e.run_id,
        "frontier": e.frontier,
        "unwind_frontier": e.unwind_frontier,
        "next": operation_json(e.next),
        "due_at": iso_utc(e.due_us or None),
        "steps": [_step_json(step) for step in e.steps],
        "gone": [_step_json(step) for step in e.gone],
    }


def _step_json(step: StepExplanation) -> dict[str, object]:
    return {
        "step": step.step,
        "position": step.position,
        "fate": step.fate,
        "unwind": step.unwind,
        "shape": step.shape,
        "attempts": step.attempts,
        "unwind_attempts": step.unwind_attempts,
        "in_doubt": step.in_doubt,
        "why": step.why,
    }
