"""What a judge says of child runs, and of a run that waits for others [B-1, B-21, R-13]."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from perdure.core.facts import (
    BoundaryCompletionAdmitted,
    BoundaryDispatchCompleted,
    BoundaryInteractionCreated,
    BoundaryInteractionDispatched,
    EndStatus,
    Fact,
    OperationFailed,
    OperationParked,
    OperationSucceeded,
    OperationWoken,
    RunFailed,
    RunSubmitted,
    RunSucceeded,
)
from perdure.core.ids import child_id
from perdure.core.waits import AwaitedRun
from perdure.testing.simulation import pauses
from perdure.testing.simulation.items import unit_at
from perdure.testing.simulation.law import Law
from perdure.testing.simulation.parts import KINDS_OF_UNITS, PARENTS, WAITS
from perdure.testing.simulation.unit import Unit

if TYPE_CHECKING:
    from perdure.testing.simulation.judge import Judge

TOLD_US = 120_000_000
"""So long after the cancel of its parent a child may end without having been told, whatever crashes meanwhile."""


def child_of(judge: Judge, step: str, unit: Unit, index: int) -> str:
    """The id of a child run."""
    return child_id(unit.opened_us, judge.run_id, step, index)


def targets(judge: Judge) -> list[str]:
    """The runs that a run waits for, as far as it knows."""
    awaiting, unit, step = judge.awaiting(), judge.unit(), judge.pin
    if awaiting is not None:
        return list(awaiting.runs or ())
    if unit is None or step is None or unit.shape not in ("child", "children"):
        return []
    return [child_of(judge, step, unit, index) for index in unit.open]


def waits(judge: Judge) -> bool:
    """Whether a run waits for runs of which too few have ended."""
    found, awaiting = targets(judge), judge.awaiting()
    if judge.ended is not None or not found:
        return False
    over = sum(end_of(judge.law, run_id) is not None for run_id in found)
    return over < (len(found) if awaiting is None else awaiting.need)


def end_of(law: Law, run_id: str) -> EndStatus | None:
    """How a run ended; None where it has not."""
    judge = law.judge(run_id)
    if judge is None or law.is_removed(run_id):
        return "missing"
    if judge.ended is None:
        return None
    if isinstance(judge.ended, RunSucceeded):
        return "succeeded"
    return "canceled" if judge.ended.failure.kind == "canceled" else "failed"


def needs_all(judge: Judge) -> bool:
    """Whether a run waits for each of its runs, and for nothing else."""
    awaiting = judge.awaiting()
    return judge.held is None and (awaiting is None or awaiting.need == len(targets(judge)))


def reaches(law: Law, run_id: str, first: list[str], through: Callable[[Judge], bool] = lambda _: True) -> bool:
    """Whether one of these runs waits for that one, through however many others; of those only some may count."""
    reached, ahead = set[str](), list(first)
    while ahead:
        at = ahead.pop()
        if at == run_id:
            return True
        judge = law.judge(at)
        if at not in reached and judge is not None and judge.ended is None and through(judge):
            ahead += [one for one in targets(judge) if end_of(law, one) is None]
        reached.add(at)
    return False


# --- child runs


def check_submitted(judge: Judge, fact: RunSubmitted) -> None:
    """A child run begins: one that its parent has recorded, as the parent's unit has it, and not told of yet [B-21]."""
    parent = fact.parent
    if parent is None:
        return
    judge.law.count("child submitted")
    found = judge.law.judge(parent.run_id)
    entry = None if found is None else found.forward.get(parent.step)
    unit = None if entry is None else entry.unit or entry.former
    if found is None or unit is None:
        judge.blame("B-21", f"it is a child of {parent}, which has no such unit")
        return
    index = parent.index
    given = ("forward", parent.step) in found.resolved_at_us or found.abandoned is not None  # while it was on its way
    part = unit.part(index)
    if part is None:
        judge.blame("B-1", f"it was submitted before its parent had recorded that, as {index} of {parent.step}")
        return
    expected = child_of(found, parent.step, unit, index)
    judge.demand(judge.run_id == expected, "B-21", f"it is child {index} of {parent.step}, whose id is {expected}")
    known = index < unit.sent or not (part.open or given)
    judge.demand(not known, "B-21", f"its parent knew already what became of child {index} of {parent.step}")
    judge.demand(bytes(fact.input) == unit.items[index], "B-20", f"its input is not what {parent.step} opened with")
    judge.demand(fact.pipeline == unit.pipeline, "B-20", f"it is of {fact.pipeline}")
    if fact.waits:
        judge.law.count("child waits for a slot")


def judge_created(judge: Judge, fact: BoundaryInteractionCreated) -> None:
    """Child runs are about to be submitted: the next ones, as many as may be under way [B-1]."""
    at = unit_at(judge, fact.step, "B-1")
    if at is None:
        return
    unit, kind = at
    first, last = fact.first, fact.first + fact.count
    fits = first == len(unit.parts) == unit.sent and first < last <= len(unit.items)
    judge.demand(fits, "B-1", f"children {first} to {last} of {fact.step} were created, {len(unit.parts)} were before")
    many = len(unit.open) + fact.count
    judge.demand(not kind.bound or many <= kind.bound, "B-2", f"{fact.step} has {many} child runs at once")
    judge.demand(judge.held is None, "R-17", f"children of {fact.step} were created in a held run")
    spec = judge.spec(fact.step)
    settles = spec is not None and spec.settle
    judge.demand(judge.cancel is None or settles, "R-12", f"children of {fact.step} were created after the cancel")
    judge.demand(kind.collect or not unit.failed, "B-22", f"children of {fact.step} were created after one had failed")


def judge_dispatched(judge: Judge, fact: BoundaryInteractionDispatched, rest: list[Fact]) -> None:
    """Child runs are submitted: they are there, or were refused [B-1]."""
    at = unit_at(judge, fact.step, "B-1")
    if at is None:
        return
    unit, _kind = at
    judge.demand(fact.first == unit.sent, "B-1", f"{fact.step} sent child {fact.first}, {unit.sent} were sent before")
    refused = {
        one.index for one in rest if isinstance(one, BoundaryCompletionAdmitted) and one.status == "refused"
    }  # in this very append
    for index in range(fact.first, fact.first + fact.count):
        there = judge.law.judge(child_of(judge, fact.step, unit, index)) is not None
        judge.demand(there or index in refused, "B-1", f"child {index} of {fact.step} was submitted, and is not there")


def judge_all_dispatched(judge: Judge, fact: BoundaryDispatchCompleted) -> None:
    """All child runs are submitted [B-1]."""
    at = unit_at(judge, fact.step, "B-1")
    if at is not None:
        judge.demand(at[0].sent == len(at[0].items), "B-1", f"{at[0].sent} of {len(at[0].items)} are submitted")


def judge_admitted(judge: Judge, fact: BoundaryCompletionAdmitted) -> None:
    """A child run has ended, as its own journal says; that is told once [B-21, R-13]."""
    step, index = fact.step, fact.index
    at = unit_at(judge, step, "B-21")
    if at is None:
        return
    unit, _kind = at
    part = unit.part(index)
    judge.demand(part is not None and part.open, "B-21", f"the end of child {index} of {step} was told before")
    law, run_id = judge.law, child_of(judge, step, unit, index)
    true, child = end_of(law, run_id), law.judge(run_id)
    expected = "missing" if fact.status == "refused" else fact.status
    judge.demand(true == expected, "R-13", f"child {index} of {step} is called {fact.status}, and is {true}")
    law.count(f"child: {fact.status}")
    if child is None or child.ended is None or true == "missing":
        return
    if isinstance(child.ended, RunFailed):
        left = child.ended
        doubt = bool(left.in_doubt or left.half_unwound or left.uncompensated or left.unavailable)
        judge.demand(fact.in_doubt is doubt, "U-9", f"child {index} of {step} failed, in doubt: {fact.in_doubt}")
        cause = fact.failure.cause if fact.failure is not None else None
        judge.demand(cause == left.failure, "B-21", f"child {index} of {step} failed by {left.failure}, not {cause}")
    else:
        output = msgspec.json.decode(fact.output)
        judge.demand(output == child.output(), "B-21", f"child {index} of {step} made {child.output()}, not {output}")
    _check_told(judge, step, child)


def _check_told(judge: Judge, step: str, child: Judge) -> None:
    """A cancel reaches the child, unless it is to be left alone [B-21]."""
    since, spec = judge.canceled_at_us, judge.spec(step)
    excused = (spec is not None and spec.settle) or KINDS_OF_UNITS[step].leaves or judge.was_invalid
    if since is None or excused or judge.law.held_lately(judge.run_id, TOLD_US):
        return
    late = child.told_us > since + TOLD_US and child.cancel is None
    judge.demand(not late, "B-21", f"{child.run_id} ended long after the cancel of its parent, and was not told")


def check_at_rest(judge: Judge) -> None:
    """A run that is canceled and waits for its child runs has handed that on [B-21]."""
    unit, step = judge.unit(), judge.pin
    if judge.cancel is None or unit is None or step not in PARENTS or KINDS_OF_UNITS[step].leaves:
        return
    spec = judge.spec(step)
    for index in [] if spec is None or spec.settle else unit.open:
        child = judge.law.judge(child_of(judge, step, unit, index))
        told = child is None or child.ended is not None or child.cancel is not None
        judge.demand(told, "B-21", f"child {index} of {step} was not told of the cancel")


def judge_canceled(judge: Judge, step: str) -> None:
    """A canceled unit ends when its child runs have, unless they are left alone [B-21]."""
    entry = judge.forward.get(step)
    if entry is None or entry.unit is None:
        return
    left = KINDS_OF_UNITS[step].leaves and step in PARENTS
    judge.demand(left or not entry.unit.open, "B-21", f"{step} was canceled while {entry.unit.open} go on")
    judge.law.count("canceled: child runs" if step in PARENTS else "canceled: items")


# --- awaited runs


def judge_parked(judge: Judge, fact: OperationParked) -> None:
    """A wait for runs begins: for those that the code names, as long as it says [R-13, B-20]."""
    step = fact.step
    pauses.judge_begins(judge, step, fact.passed, "wait for runs")
    named = judge.law.named(judge.run_id, step)
    judge.demand(step in WAITS and list(fact.awaits) == list(dict.fromkeys(named)), "B-20", f"{step} awaits {named}")
    need = min(1, len(fact.awaits)) if step in KINDS_OF_UNITS and KINDS_OF_UNITS[step].any else len(fact.awaits)
    judge.demand(fact.need == need, "R-13", f"{step} waits for {fact.need} of {len(fact.awaits)} runs")
    patience_us = judge.patience_us(step)
    until_us = judge.now_us + patience_us if patience_us else 0
    judge.demand(fact.due_us == until_us, "B-20", f"{step} waits until {fact.due_us}, not {until_us}")
    judge.law.count("opened: runs")


def judge_woken(judge: Judge, fact: OperationWoken) -> None:
    """The wait is over: enough of the runs have ended, or its time has come [R-13, B-8]."""
    entry = judge.awaiting()
    if entry is None or judge.pin != fact.step:
        judge.blame("R-13", f"{fact.step} was woken and does not wait")
        return
    judge.demand(judge.held is None, "R-17", f"{fact.step} was woken in a held run")
    judge.demand(judge.cancel is None, "R-12", f"{fact.step} was woken as if there were no cancel")
    judge.demand(fact.by in ("runs", "time"), "R-13", f"{fact.step} was woken by {fact.by}")
    if fact.by == "time":
        _too_late(judge, fact.step, entry.until_us)


def judge_over(judge: Judge, fact: OperationSucceeded) -> None:
    """The state says truly how the runs ended that were waited for [R-13]."""
    entry, woken = judge.awaiting(), judge.woken
    if entry is None or woken is None or woken[0].step != fact.step:
        judge.blame("R-13", f"{fact.step} ended its wait, and nothing woke it")
        return
    states = msgspec.json.decode(fact.state, type=list[AwaitedRun])
    judge.demand([one.run_id for one in states] == list(entry.runs or ()), "R-13", f"{fact.step} tells of {states}")
    for one in states:
        true = end_of(judge.law, one.run_id)
        lies = one.status != "live" and one.status != true
        judge.demand(not lies, "R-13", f"{fact.step} says that {one.run_id} is {one.status}, and it is {true}")
        other = judge.law.judge(one.run_id)
        if one.status == "succeeded" and other is not None:
            same = one.output == other.output()
            judge.demand(same, "R-13", f"{fact.step} says that {one.run_id} made {one.output!r}")
    over = sum(one.status != "live" for one in states)
    enough = over >= entry.need or woken[0].by == "time"
    judge.demand(enough, "R-13", f"{fact.step} went on when {over} of {entry.need} had ended")
    judge.law.count("done: runs")


def judge_wait_failed(judge: Judge, fact: OperationFailed) -> None:
    """A wait fails for its time, or because it would close a circle; without doubt [B-8, R-13]."""
    entry = judge.awaiting()
    judge.demand(judge.cancel is None and judge.held is None, "R-12", f"{fact.step} failed in spite of that")
    judge.demand(not fact.in_doubt, "U-9", f"{fact.step} waited for runs, and is in doubt")
    if fact.failure.reason == "await-timeout":
        _too_late(judge, fact.step, entry.until_us if entry is not None else 0)
        judge.demand(fact.step == "w1", "B-8", f"{fact.step} goes on without what did not come in time")
        judge.law.count("wait for runs timed out")
    else:
        judge_cycle(judge, fact)


def judge_cycle(judge: Judge, fact: OperationFailed) -> None:
    """A wait fails for a circle only where the store saw one [R-13]."""
    known = fact.failure.reason == "await-cycle" and judge.law.told_of_circle(judge.run_id)
    judge.demand(known, "R-13", f"{fact.step} failed as {fact.failure.reason}, and there was no circle")
    judge.law.count("circle of waits")


def _too_late(judge: Judge, step: str, until_us: int) -> None:
    judge.demand(0 < until_us <= judge.now_us, "B-8", f"{step} waited too long at {judge.now_us}, until {until_us}")
