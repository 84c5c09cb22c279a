"""What a judge says of items and turns: each begun once, in order, and recorded once [B-2, B-10, B-15, B-22, B-23]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from perdure.core.facts import (
    BoundaryOpened,
    BoundaryResolved,
    Fact,
    ItemFailed,
    ItemOutputRecorded,
    ItemReserved,
    ItemRetryScheduled,
    OperationFailed,
)
from perdure.testing.simulation import pauses, retries
from perdure.testing.simulation.orders import Order
from perdure.testing.simulation.parts import (
    CHILD_PIPELINE,
    ITEMS,
    KINDS_OF_UNITS,
    Kind,
    inputs_of,
    items_of,
    part,
    turns_of,
)
from perdure.testing.simulation.unit import Unit

if TYPE_CHECKING:
    from perdure.testing.simulation.judge import Judge


def unit_at(judge: Judge, step: str, rule: str) -> tuple[Unit, Kind] | None:
    """The unit of a step that is open; blamed where it is not."""
    unit = judge.unit() if judge.pin == step else None
    if unit is None or step not in KINDS_OF_UNITS:
        judge.blame(rule, f"no unit of {step} is open")
        return None
    return unit, KINDS_OF_UNITS[step]


def judge_opened(judge: Judge, fact: BoundaryOpened) -> None:
    """A unit opens: of the next step, as deployed now, and its items are what the code says [B-2, B-20]."""
    step = fact.step
    pauses.judge_begins(judge, step, fact.passed, "open its unit")
    kind, order = KINDS_OF_UNITS.get(step), judge.order()
    if kind is None or order is None or fact.shape != kind.shape:
        judge.blame("B-20", f"{step} opened as {fact.shape}")
        return
    judge.law.count(f"opened: {kind.shape}")
    if step in ITEMS:
        found: list[object] = [msgspec.json.decode(item) for item in fact.items]
        expected: list[object] = list(items_of(step, order))
    else:
        found = [msgspec.json.decode(item, type=Order) for item in fact.items]
        expected = list(inputs_of(step, order))
        judge.demand(fact.pipeline == CHILD_PIPELINE, "B-20", f"children of {step} are of {fact.pipeline!r}")
    judge.demand(found == expected, "B-20", f"{step} opened with {found}, not {expected}")


def judge_reserved(judge: Judge, fact: ItemReserved) -> None:
    """An item starts: one that is next or is to be tried again, and not more at once than may be [B-10, M-8]."""
    step, index = fact.step, fact.index
    at = unit_at(judge, step, "B-2")
    if at is None:
        return
    unit, kind = at
    name, found = part(step, index), unit.part(index)
    judge.demand(judge.held is None, "R-17", f"{name} starts in a held run")
    judge.demand(judge.token > 0, "J-16", "no claim came before")
    spec = judge.spec(step)
    settles = spec is not None and spec.settle
    judge.demand(judge.cancel is None or settles, "R-12", f"{name} starts after the cancel")
    judge.demand(not unit.failed or kind.collect, "B-22", f"{name} starts, and {unit.failed} of {step} have failed")
    beside = len(unit.open)
    judge.demand(not kind.bound or beside < kind.bound, "B-10", f"{name} starts beside {beside} others")
    if found is None:
        judge.demand(index == len(unit.parts) < len(unit.items), "B-10", f"{name} is not the next item")
        judge.demand(fact.attempt == 1, "M-8", f"{name} begins with attempt {fact.attempt}")
    else:
        judge.demand(not found.open, "M-8", f"{name} starts while it runs")
        judge.demand(not found.done, "B-10", f"{name} has its output, and starts again")
        judge.demand(found.failure is None, "B-22", f"{name} has failed, and starts again")
        judge.demand(fact.attempt == found.attempts + 1, "M-8", f"{name}#{fact.attempt} follows {found.attempts}")
        judge.demand(found.due_us <= judge.now_us, "R-4", f"{name} starts {found.due_us - judge.now_us} us too early")
        retries.check_bound(judge, name, found.failures, found.lost)
    if kind.shape == "loop":
        before = all(one.done for one in unit.parts[:index])
        judge.demand(before and not unit.over, "B-23", f"turn {index} of {step} starts out of turn")
        judge.demand(unit.turns < kind.most, "B-23", f"turn {index} of {step} starts after {unit.turns} turns")


def judge_ended(judge: Judge, fact: ItemRetryScheduled | ItemOutputRecorded | ItemFailed, rest: list[Fact]) -> None:
    """An attempt of an item has ended, as the world saw it [M-4, M-5, M-9, M-17]."""
    at = unit_at(judge, fact.step, "B-2")
    if at is None:
        return
    unit, kind = at
    name, found = part(fact.step, fact.index), unit.part(fact.index)
    closes = found is not None and found.open and found.attempts == fact.attempt
    judge.demand(closes, "J-8", f"{name}#{fact.attempt} ended, and is not open: {found}")
    attempt = judge.law.attempt((judge.run_id, "forward", name, fact.attempt))
    match fact:
        case ItemOutputRecorded():
            made = attempt.value if attempt is not None and attempt.how == "returned" else None
            output = msgspec.json.decode(fact.output)
            judge.demand(output == made, "M-6", f"{name} has output {output!r}, its end was {attempt}")
            order = judge.order()
            if kind.shape == "loop" and order is not None:
                more = fact.index + 1 < turns_of(order)
                judge.demand(fact.more is more, "B-15", f"turn {fact.index} said more: {more}, and not {fact.more}")
                judge.law.count("turn done")
            else:
                judge.law.count("item done")
        case ItemRetryScheduled():
            retries.judge_item_retry(judge, fact, name, rest)
        case ItemFailed():
            _failed(judge, fact, name, unit)


def _failed(judge: Judge, fact: ItemFailed, name: str, unit: Unit) -> None:
    attempt = judge.law.attempt((judge.run_id, "forward", name, fact.attempt))
    policy, found = judge.law.policy(fact.step), unit.part(fact.index)
    exhausted = fact.failure.reason == "attempts-exhausted"
    own_word = attempt is not None and attempt.how == "failed" and not exhausted
    if exhausted:
        failures = found.failures + 1 if found is not None else 0
        judge.demand(failures == policy.max_attempts, "M-5", f"{name} failed after {failures} attempts")
    elif not own_word:
        never = attempt is not None and attempt.how == "never" and bool(policy.never)
        judge.demand(never, "M-9", f"{name} failed for good, its last attempt ended as {attempt}")
    judge.demand(fact.in_doubt is not own_word, "U-9", f"{name} failed, in doubt: {fact.in_doubt}")
    judge.demand(fact.failure.item == fact.index, "B-22", f"{name} failed as item {fact.failure.item}")
    judge.law.count("item failed")


def judge_resolved(judge: Judge, fact: BoundaryResolved) -> None:
    """The step has its state: nothing runs, and everything has its output, or a failure that is collected [B-10]."""
    at = unit_at(judge, fact.step, "B-10")
    if at is None:
        return
    unit, kind = at
    judge.demand(unit.complete and not unit.open, "B-10", f"{fact.step} is done, and its unit is not: {unit.fates()}")
    judge.demand(fact.collect is kind.collect, "B-22", f"{fact.step} collects failures: {fact.collect}")
    judge.demand(kind.collect or not unit.failed, "B-22", f"{fact.step} succeeded, and {unit.failed} failed")
    judge.law.count(f"done: {kind.shape}")
    if unit.failed:
        judge.law.count("failures collected")


def judge_failed(judge: Judge, fact: OperationFailed) -> None:
    """A unit fails with the least of those that failed, when nothing runs any more; begun, it is in doubt [U-12]."""
    at = unit_at(judge, fact.step, "E-2")
    if at is None:
        return
    unit, kind = at
    judge.demand(not unit.open, "B-22", f"{fact.step} failed while {unit.open} run")
    least = min(unit.failed, default=None)
    judge.demand(fact.failure.item == least, "B-22", f"{fact.step} failed by {fact.failure.item}, not by {least}")
    judge.demand(not kind.collect, "B-22", f"{fact.step} collects failures, and failed by one")
    begun = bool(unit.parts)
    judge.demand(fact.in_doubt is begun, "U-12", f"{fact.step} failed, in doubt: {fact.in_doubt}")
    judge.law.count("failed: items" if fact.step in ITEMS else "failed: child runs")
