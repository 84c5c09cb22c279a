"""Folding the facts of units: items, turns, child runs [J-8, B-2]."""

from __future__ import annotations

from perdure.core.facts import (
    BoundaryCompletionAdmitted,
    BoundaryDispatchCompleted,
    BoundaryInteractionCreated,
    BoundaryInteractionDispatched,
    BoundaryOpened,
    BoundaryResolved,
    Fact,
    ItemFailed,
    ItemOutputRecorded,
    ItemReserved,
    ItemRetryScheduled,
)
from perdure.core.folding import check_startable, corrupt, end_operation, forward_progress, mark_forward
from perdure.core.projection import ForwardEntry, Projection
from perdure.core.unit import CHILD_SHAPES, Item, Unit


def opened(p: Projection, fact: BoundaryOpened, at_us: int) -> None:
    """A unit opens, and pins the run [E-2, B-20]."""
    check_startable(p, fact, fact.step)
    if fact.shape in ("child", "loop") and len(fact.items) != 1:
        corrupt(p, fact, f"a {fact.shape} begins with one item")
    p.forward[fact.step] = ForwardEntry("unresolved", shape=fact.shape)
    p.units[fact.step] = Unit(fact.shape, [bytes(item) for item in fact.items], at_us, fact.pipeline)
    p.pin = fact.step
    p.due_us = 0
    mark_forward(p, fact.step, fact.passed)


def _unit(p: Projection, fact: Fact, step: str, *, children: bool) -> Unit:
    unit = p.units.get(step)
    if unit is None or p.pin != step or (unit.shape in CHILD_SHAPES) is not children:
        corrupt(p, fact, f"no such unit of {step!r} is open")
    return unit


# --- items


def check_item_open(p: Projection, fact: Fact, step: str, index: int) -> None:
    """An attempt of the item is reserved, and nothing is recorded of its end."""
    if index not in _unit(p, fact, step, children=False).open:
        corrupt(p, fact, f"item {index} has no open attempt")


def reserved(p: Projection, fact: ItemReserved, _at_us: int) -> None:
    """An attempt of an item starts [M-8]."""
    unit = _unit(p, fact, fact.step, children=False)
    index = fact.index
    if index == unit.next and index < len(unit.items):
        unit.entries.append(Item())
    elif index in unit.waiting:
        unit.end_backoff(index)
    else:
        corrupt(p, fact, f"item {index} is not to be started")
    entry = unit.entries[index]
    if fact.attempt != entry.attempts + 1:
        corrupt(p, fact, f"attempt {fact.attempt} does not follow {entry.attempts}")
    entry.attempts = fact.attempt
    unit.open.add(index)
    p.forward[fact.step].attempts += 1


def _close(p: Projection, fact: ItemRetryScheduled | ItemOutputRecorded | ItemFailed) -> tuple[Unit, Item]:
    unit = _unit(p, fact, fact.step, children=False)
    entry = unit.entry(fact.index)
    if entry is None or fact.index not in unit.open or entry.attempts != fact.attempt:
        corrupt(p, fact, f"attempt {fact.attempt} of item {fact.index} is not open")
    unit.open.remove(fact.index)
    return unit, entry


def retry_scheduled(p: Projection, fact: ItemRetryScheduled, _at_us: int) -> None:
    """An attempt of an item ended and left it unresolved [M-17]."""
    unit, entry = _close(p, fact)
    entry.last_failure = fact.failure
    unit.back_off(fact.index, fact.due_us)
    if fact.cause == "lost":
        entry.lost += 1
        entry.failures += 1
    elif fact.cause == "error" or fact.cause == "timeout":
        entry.lost = 0
        entry.failures += 1
    elif fact.cause == "later":
        entry.lost = 0


def output_recorded(p: Projection, fact: ItemOutputRecorded, _at_us: int) -> None:
    """The handler of an item returned; of a loop that is the next item, or its end [B-10, B-15]."""
    unit, entry = _close(p, fact)
    entry.output = bytes(fact.output)
    unit.outputs += 1
    if unit.shape != "loop":
        return
    unit.turns += 1
    unit.done = not fact.more
    if fact.more:
        unit.items.append(entry.output)


def failed(p: Projection, fact: ItemFailed, _at_us: int) -> None:
    """An item failed for good [B-22]."""
    unit, entry = _close(p, fact)
    entry.failure = fact.failure
    entry.in_doubt = fact.in_doubt
    unit.failed.add(fact.index)


def release_items(p: Projection) -> None:
    """An operator released the run: items that back off are due, and bounds count from zero [R-17]."""
    unit = p.unit()
    if unit is None:
        return
    unit.turns = 0
    for index in unit.waiting | unit.open:
        entry = unit.entries[index]
        entry.due_us = entry.failures = entry.lost = 0
    unit.end_all_backoffs()


# --- child runs


def created(p: Projection, fact: BoundaryInteractionCreated, _at_us: int) -> None:
    """Child runs are about to be submitted [B-1]."""
    unit = _unit(p, fact, fact.step, children=True)
    if fact.first != unit.next or not 0 < fact.count <= len(unit.items) - unit.next:
        corrupt(p, fact, f"the next child is {unit.next} of {len(unit.items)}")
    for index in range(fact.first, fact.first + fact.count):
        unit.entries.append(Item(1))
        unit.open.add(index)
    p.forward[fact.step].attempts += fact.count


def dispatched(p: Projection, fact: BoundaryInteractionDispatched, _at_us: int) -> None:
    """Child runs are submitted [B-1]."""
    unit = _unit(p, fact, fact.step, children=True)
    if fact.first != unit.sent or not 0 < fact.count <= unit.next - unit.sent:
        corrupt(p, fact, f"children {unit.sent} to {unit.next} are on their way")
    unit.sent += fact.count


def dispatch_completed(p: Projection, fact: BoundaryDispatchCompleted, _at_us: int) -> None:
    """All child runs are submitted [B-1]."""
    unit = _unit(p, fact, fact.step, children=True)
    if unit.sent != len(unit.items):
        corrupt(p, fact, f"{unit.sent} of {len(unit.items)} are")


def completed(p: Projection, fact: BoundaryCompletionAdmitted, _at_us: int) -> None:
    """A child run ended [B-21]."""
    unit = _unit(p, fact, fact.step, children=True)
    if fact.index not in unit.open:
        corrupt(p, fact, f"child {fact.index} does not run")
    unit.open.remove(fact.index)
    entry = unit.entries[fact.index]
    entry.status = fact.status
    entry.in_doubt = fact.in_doubt
    if fact.status == "succeeded":
        entry.output = bytes(fact.output)
        unit.outputs += 1
    else:
        entry.failure = fact.failure
        unit.failed.add(fact.index)


# --- end


def resolved(p: Projection, fact: BoundaryResolved, _at_us: int) -> None:
    """The step of the unit succeeded; its state is made of the outputs, which are kept there only [M-6, B-10]."""
    unit = p.units.get(fact.step)
    if unit is None or p.pin != fact.step or unit.open or not unit.complete or (unit.failed and not fact.collect):
        corrupt(p, fact, "its items are not all done")
    forward_progress(p, p.forward[fact.step], fact.step, unit.state(collect=fact.collect))
    del p.units[fact.step]
    end_operation(p, fact.step)
