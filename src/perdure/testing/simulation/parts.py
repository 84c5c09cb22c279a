"""What the steps of a simulation that have items, turns, child runs or awaited runs are about; all of it plain values.

The shape of such a step hangs on its id, so that it is the same in every deployment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from perdure.core.facts import Shape
from perdure.core.waits import AwaitedRun
from perdure.define.items import Settled
from perdure.testing.simulation.orders import Order

CHILD_PIPELINE = "errands"


@dataclass(frozen=True)
class Kind:
    """How a step of a unit is carried on.

    Attributes:
        bound: how many items or child runs at once; 0: all.
        collect: failed ones are part of the state.
        most: turns before the run is held.
        leaves: a cancel of the run leaves its child runs, or what it waits for, alone.
        any: one of the awaited runs is enough.
    """

    shape: Shape
    bound: int = 0
    collect: bool = False
    most: int = 0
    leaves: bool = False
    any: bool = False


KINDS_OF_UNITS: Mapping[str, Kind] = {
    "f1": Kind("each", bound=2),
    "f2": Kind("each", bound=3, collect=True),
    "t1": Kind("loop", bound=1, most=2),
    "c1": Kind("child"),
    "c2": Kind("child", collect=True, leaves=True),
    "k1": Kind("children", bound=2),
    "k2": Kind("children", collect=True),
    "w1": Kind("runs", leaves=True),
    "w2": Kind("runs", any=True),
}
"""Steps of items, turns, child runs and awaited runs."""

WAITS = ("w1", "w2")
"""Those that wait for runs that others submitted; the first fails when it has waited too long."""

PARENTS = ("c1", "c2", "k1", "k2")
"""Those whose work is runs of `CHILD_PIPELINE`."""

ITEMS = ("f1", "f2", "t1")
"""Those that call a handler for each item or turn."""


def base(step: str) -> str:
    """The step of an item that is named as `part` does; any other name is returned as it is."""
    return step.partition("[")[0]


def part(step: str, index: int | None) -> str:
    """How an item of a step is named among operations."""
    return step if index is None else f"{step}[{index}]"


def index_of(step: str) -> int | None:
    """Which item a name made by `part` is of; None: it is of a step."""
    return int(step.partition("[")[2][:-1]) if "[" in step else None


def items_of(step: str, order: Order) -> list[str]:
    """The items of a step, or the first of a loop."""
    if KINDS_OF_UNITS[step].shape == "loop":
        return [f"{step} of {order.number}"]
    return [f"{step} {n} of {order.number}" for n in range((order.number + ord(step[1])) % 5)]


def turns_of(order: Order) -> int:
    """How many turns a loop takes."""
    return order.number % 4 + 1


def inputs_of(step: str, order: Order) -> list[Order]:
    """The inputs of the child runs of a step; some are about the same thing as other runs, most about their own."""
    many = 1 if KINDS_OF_UNITS[step].shape == "child" else order.number % 4
    number = CHILDREN * (PARENTS.index(step) + 1) + order.number
    return [
        Order(
            number + CHILDREN * 10 * n, order.resource if (order.number + n) % 2 else f"{order.resource}.{number}.{n}"
        )
        for n in range(many)
    ]


CHILDREN = 100_000
"""Numbers of orders of child runs begin here; the rest of such a number is that of the parent's."""


def named_by(step: str, order: Order) -> list[int]:
    """Numbers of the orders whose runs a step waits for: neighbours, or the parent; some wait for each other."""
    number = order.number
    if number >= CHILDREN and number % 2:
        return [number % CHILDREN]
    return [number ^ 1] if step == "w1" else [number - 1, number + 1, -1]


def said(value: object) -> str:
    """A state in a few characters: the same of what is decoded as of its JSON."""
    match value:
        case None:
            return "-"
        case str():
            return value
        case AwaitedRun():
            return value.status
        case Settled():
            settled = cast("Settled[object]", value)
            return "!" if settled.failure is not None else said(settled.value)
        case dict():
            known = cast("dict[str, object]", value)
            if "status" in known:
                return str(known["status"])
            return "!" if "failure" in known else said(known.get("value"))
        case list() | tuple():
            return "[" + ",".join(said(each) for each in cast("Sequence[object]", value)) + "]"
        case _:
            return str(value)
