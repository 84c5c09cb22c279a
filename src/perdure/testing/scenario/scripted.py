"""What a script says, told to the core: the author's functions, the ends of attempts; and what was chosen, in words."""

from __future__ import annotations

import json
from typing import assert_never

import msgspec

from perdure.core import outcomes
from perdure.core import plan as planning
from perdure.core.facts import Failure, Phase, RunFailed
from perdure.core.operations import InvalidOp, RunOp, UnitOp, UnwindOp
from perdure.testing.scenario.model import HOUR_US, Attempt, ItemResult, ScriptStep

_LATER_US = 1_000


class CoreScript:
    """The author's functions as the script has them: closed unless a line opens one."""

    def __init__(self) -> None:
        self.ask: str | None = None
        """The step whose condition is asked next; the answer is in `skip`."""
        self.skip = False
        self.may_end = False
        self.output_raises = False
        self.steps: dict[str, ScriptStep] = {}
        self.others: set[str] = set()
        """Ids of the runs that steps of some deployment wait for."""
        self.decided: dict[str, str] = {}
        """The arm by choice, as the run's ledger has it."""

    def condition(self, step: str) -> bool:
        if self.left_out(step):
            return False  # as the engine's branches: without asking the script
        if self.ask is None:
            raise planning.Unplannable("condition-raised", "the script is not there yet")
        answer = not (self.skip and step == self.ask)
        self.ask = None
        return answer

    def output(self) -> bytes:
        if not self.may_end or self.output_raises:
            raise planning.Unplannable("output-raised", "the script says so")
        return b"null"

    def left_out(self, step: str) -> bool:
        """The step stands in an arm that the run does not take."""
        arm = self.steps[step].arm
        return arm is not None and self.decided.get(arm[0]) != arm[1]

    def opening(self, step: str, /) -> planning.Opening:
        scripted = self.steps[step]
        items = tuple(str(index).encode() for index in range(scripted.number))
        match scripted.kind:
            case "sleep":
                return planning.Opening(scripted.hours * HOUR_US)
            case "message":
                return planning.Opening(scripted.hours * HOUR_US, (step,))
            case "runs":
                return planning.Opening(awaits=other_ids(scripted), need=scripted.number)
            case _:
                return planning.Opening(items=items, pipeline="other")

    def terms(self, step: str, /) -> planning.Terms:
        scripted = self.steps[step]
        bound = 1 if scripted.kind == "loop" else scripted.bound
        return planning.Terms(bound, scripted.kind == "collect")

    def timeout_state(self, _step: str, /) -> bytes | None:
        return None

    def message_state(self, _step: str, payload: bytes, /) -> bytes:
        return payload

    def failure_output(self, ended: RunFailed) -> bytes:
        if not self.may_end:
            raise planning.Unplannable("output-raised", "the script is not there yet")
        return b"null"


def other_ids(scripted: ScriptStep) -> tuple[str, ...]:
    """The runs that a step waits for."""
    return tuple(f"{scripted.id}/{index}" for index in range(scripted.number))


def outcome_of(entry: Attempt, op: RunOp | UnwindOp, at_us: int) -> outcomes.Outcome:
    phase: Phase = "forward" if isinstance(op, RunOp) else "unwind"
    failure = Failure(op.step, "scripted", phase, op.attempt, at_us)
    match entry.result:
        case "ok":
            return outcomes.Returned(json.dumps(entry.arm).encode())
        case "fail":
            return outcomes.Declined(failure)
        case "later":
            return outcomes.Postponed(_LATER_US)
        case "error" | "crash":
            return outcomes.Raised(failure)
        case _ as unreachable:
            assert_never(unreachable)


def describe(op: msgspec.Struct | None) -> str:
    match op:
        case RunOp():
            return f"run {op.step} #{op.attempt}"
        case UnwindOp():
            return f"unwind {op.step} #{op.attempt}"
        case InvalidOp():
            return f"invalid ({op.reason}: {op.detail})"
        case UnitOp():
            return " ".join([f"work {op.step}", *(f"{index}#{attempt}" for index, attempt in op.start)])
        case planning.Parked():
            return f"a run that {op.why}"
        case _:
            return type(op).__name__


def item_outcome(step: str, index: int, attempt: int, result: ItemResult) -> outcomes.ItemOutcome:
    """How an attempt of an item ends; `runs`: it is interrupted."""
    failure = Failure(step, "scripted", attempt=attempt)
    match result:
        case "ok" | "more":
            return outcomes.ItemOutcome(index, attempt, outcomes.Returned(str(index).encode()), result == "more")
        case "fail":
            return outcomes.ItemOutcome(index, attempt, outcomes.Declined(failure))
        case "error":
            return outcomes.ItemOutcome(index, attempt, outcomes.Raised(failure))
        case "runs":
            return outcomes.ItemOutcome(index, attempt, outcomes.Interrupted())
        case _ as unreachable:
            assert_never(unreachable)
