"""What a judge says of a run that waits by itself: sleeps, and polls that are to be asked later [B-15, B-20].

And of a run that is given up [D-7].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.core.facts import (
    Fact,
    ItemRetryScheduled,
    OperationParked,
    OperationRetryScheduled,
    OperationSucceeded,
    OutcomeCommitted,
    RunAbandoned,
    RunFailed,
    SegmentSuspended,
)
from perdure.testing.simulation.world import Attempt

if TYPE_CHECKING:
    from perdure.testing.simulation.judge import Judge


def judge_begins(judge: Judge, step: str, passed: tuple[str, ...], what: str) -> None:
    """A step begins that calls no handler of its own: it is the next, and nothing stands against it [B-15, B-20]."""
    judge.check_forward(step, passed)
    judge.demand(judge.held is None, "R-17", f"{step} began to {what} in a held run")
    judge.demand(judge.cancel is None, "R-12", f"{step} began to {what} after the cancel")
    judge.demand(step not in judge.forward, "B-15", f"{step} began to {what}, and was begun before")
    judge.demand(judge.due_us <= judge.now_us, "R-4", f"{step} began to {what} before it was due")
    spec = judge.spec(step)
    if spec is not None and spec.conditional:
        judge.demand(judge.law.holds(step, judge.submitted), "E-12", f"{step} began although its condition is false")


def judge_parked(judge: Judge, fact: OperationParked) -> None:
    """A sleep begins: of the next step, which sleeps as deployed now, for as long as the code says [B-15, B-20]."""
    step = fact.step
    judge_begins(judge, step, fact.passed, "sleep")
    length_us = judge.sleep_us(step)
    judge.demand(length_us > 0, "B-15", f"{step} began to sleep, and does not sleep as deployed now")
    slept_us = fact.due_us - judge.now_us
    judge.demand(slept_us == length_us, "B-20", f"{step} is to sleep for {slept_us} us, not {length_us}")
    judge.law.count("sleep began")


def judge_woken(judge: Judge, fact: OperationSucceeded) -> None:
    """A sleep is over: one that is open, when its time has come, and not before [B-15, B-20, R-4]."""
    step, entry = fact.step, judge.asleep()
    judge.demand(entry is not None and judge.pin == step, "B-15", f"{step} ended a sleep that it had not begun")
    judge.demand(bytes(fact.state) == b"null" and fact.phase == "forward", "B-15", f"{step} slept and has a state")
    judge.demand(judge.held is None, "R-17", f"a sleep of {step} ended in a held run")
    judge.demand(judge.cancel is None, "R-12", f"a sleep of {step} ended as if there were no cancel")
    early_us = (entry.until_us if entry is not None else 0) - judge.now_us
    judge.demand(early_us <= 0, "R-4", f"a sleep of {step} ended {early_us} us before its time")
    judge.demand(judge.sleep_us(step) > 0, "D-1", f"a sleep of {step} ended where it is no sleep any more")
    judge.law.count("sleep ended")


def judge_suspended(judge: Judge, fact: SegmentSuspended) -> None:
    """The run rests at a step that waits, and its segment ends there, once [J-16]."""
    judge.demand(not judge.suspended, "J-16", "the segment had ended before")
    waits = judge.asleep() is not None or judge.waiting() is not None or judge.awaiting() is not None
    unit = judge.unit()
    waits = (waits or (unit is not None and bool(unit.open))) and judge.pin == fact.step
    judge.demand(waits, "J-16", f"the segment ended at {fact.step}, which does not wait")
    judge.suspended = True


def judge_later(judge: Judge, fact: OperationRetryScheduled | ItemRetryScheduled, attempt: Attempt | None) -> None:
    """A poll said later: it is no failure, and asks for exactly that much time [B-15, M-17]."""
    said = attempt is not None and attempt.how == "later"
    judge.demand(said, "M-17", f"{fact.step}#{fact.attempt} is to be called later, its end was {attempt}")
    judge.demand(fact.failure is None, "M-17", f"{fact.step}#{fact.attempt} said later, and has a failure")
    asked_us = attempt.later_us if attempt is not None else 0
    waits_us = fact.due_us - judge.now_us
    judge.demand(waits_us == asked_us, "R-4", f"{fact.step} asked for {asked_us} us, and is called after {waits_us}")


def judge_abandoned(judge: Judge, fact: RunAbandoned, rest: list[Fact]) -> None:
    """Nobody executes a run that is given up, and its end is in the same append [D-7]."""
    _status, owner = judge.law.reason(judge.run_id)
    judge.demand(not owner, "D-7", f"the run was given up while {owner} owns it")
    judge.demand(bool(fact.actor), "M-16", "somebody without a name gave the run up")
    ends = len(rest) == 2 and isinstance(rest[0], OutcomeCommitted) and isinstance(rest[1], RunFailed)
    judge.demand(ends, "D-7", f"the run was given up and goes on with {rest}")
    judge.demand(fact.failure.kind == "abandoned", "D-7", f"a run that is given up failed as {fact.failure.kind}")


def judge_given_up(judge: Judge, fact: RunFailed) -> None:
    """Nothing was unwound any more, and everything that is left behind is named, as deployed last [D-7, U-9]."""
    judge.demand(fact.failure == judge.failure, "M-10", "the end names another failure")
    judge.demand(list(fact.unwind_failures) == judge.unwind_failures, "U-8", "the end names other unwind failures")
    pipeline = judge.submitted.pipeline if judge.submitted is not None else ""
    lists = judge.lists(judge.law.newest(pipeline))
    said = [list(fact.in_doubt), list(fact.half_unwound), list(fact.uncompensated), list(fact.unavailable)]
    judge.demand(said == lists, "U-9", f"given up; lists are {said}, not {lists}")
    judge.check_counts(fact)
    judge.demand(judge.output() is None, "D-7", "a run that was given up has an output")
    judge.ended_line = judge.law.line()
    judge.law.count("run abandoned")
    if fact.in_doubt:
        judge.law.count("given up: in doubt")
