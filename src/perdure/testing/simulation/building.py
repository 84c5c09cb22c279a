"""The pipelines of a simulation, built from their designs: what their steps are and do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from perdure.define.await_message import AwaitMessage
from perdure.define.await_runs import AwaitRuns
from perdure.define.child import Child, ForEachRun
from perdure.define.foreach import ForEach
from perdure.define.invocation import FailedInvocation, Invocation, UnwindInvocation
from perdure.define.items import Done, ItemInvocation, ItemStep, More
from perdure.define.later import Later
from perdure.define.loop import Loop
from perdure.define.pipeline import AnyPipeline, Bound, Pipeline
from perdure.define.sleep import Sleep
from perdure.define.step import AsyncPoll, AsyncStep, Need, Step, optional, retired
from perdure.testing.simulation.designs import (
    LATE,
    MAIL,
    NAPS,
    POLLS,
    RETRIES,
    TIMEOUTS,
    Design,
    StepDesign,
    condition_holds,
)
from perdure.testing.simulation.gates import MUTEX, Gates
from perdure.testing.simulation.orders import Order
from perdure.testing.simulation.parts import (
    CHILD_PIPELINE,
    ITEMS,
    KINDS_OF_UNITS,
    WAITS,
    Kind,
    inputs_of,
    items_of,
    named_by,
    said,
)
from perdure.testing.simulation.world import Seat, Text, World

Inv = Invocation[Order, Seat]
One = ItemInvocation[Order, Seat, str]


async def forward(inv: Inv) -> str:
    """The handler of every step."""
    return await inv.deps.forward(inv)


async def of_item(inv: One) -> str:
    """The handler of every item."""
    return await inv.deps.forward(inv)


async def turn(inv: One) -> More[str] | Done[str]:
    """Every turn of a loop."""
    return await inv.deps.turn(inv)


async def forward_of_nap(inv: Inv) -> Text:
    """The handler of a step that sleeps in other deployments."""
    return await inv.deps.forward(inv)


async def asked(inv: Inv) -> str | Later:
    """The handler of every poll."""
    return await inv.deps.asked(inv)


async def backward(inv: UnwindInvocation[Order, Seat], state: Text) -> None:
    """The unwind handler of every step."""
    await inv.deps.backward(inv, state)


async def backward_of_unit(inv: UnwindInvocation[Order, Seat], state: object) -> None:
    """The unwind handler of every step of items, turns or child runs."""
    await inv.deps.backward(inv, said(state))


async def backward_in_doubt(inv: UnwindInvocation[Order, Seat]) -> None:
    """The handler of every step for unwinding in doubt."""
    await inv.deps.backward(inv, None)


def condition(inv: Inv) -> bool:
    """The condition of every conditional step."""
    return condition_holds(inv.step_id, inv.input.number)


def broken_condition(inv: Inv) -> bool:
    """A condition with a bug."""
    raise RuntimeError("the condition has a bug")


def _build_step(
    one: StepDesign, needed: Step[Order, Seat, Text] | None, condition: Callable[[Inv], bool], gates: Gates
) -> Step[Order, Seat, Text]:
    when = condition if one.conditional else None
    if one.sleep_s:
        slept = Sleep(one.id, one.sleep_s) if when is None else Sleep(one.id, one.sleep_s, when=when)
        return cast("Step[Order, Seat, Text]", slept)
    if one.id in MAIL:
        late = {"on_timeout": LATE[one.id]} if one.patience_s and one.id in LATE else {}
        options: dict[str, Any] = {"timeout": one.patience_s or None, "when": when, **late}
        return cast("Step[Order, Seat, Text]", AwaitMessage(one.id, name=one.id, type=str, **options))
    need = _need(one, needed)
    polls = one.id in POLLS
    handler = asked if polls else forward_of_nap if one.id in NAPS else forward
    kind = cast("type[AsyncStep[Order, Seat, Text]]", AsyncPoll if polls else AsyncStep)
    return kind(
        one.id,
        handler,
        True,
        unwind=backward if one.unwind else None,
        unwind_is_async=True,
        unwind_in_doubt=backward_in_doubt if one.unwind and one.in_doubt else None,
        unwind_in_doubt_is_async=True,
        timeout_s=TIMEOUTS.get(one.id),
        retry=RETRIES.get(one.id),
        needs=need,
        when=when,
        on_cancel="settle" if one.settle else "cancel",
        polls=polls,
        limits=gates.of_step(one.id),
    )


def _need(one: StepDesign, needed: Step[Order, Seat, Text] | None) -> tuple[Need, ...]:
    if needed is None:
        return ()
    return (optional(needed),) if one.need_is_optional or needed.when is not None else (needed,)


_MAKE: Mapping[str, Callable[..., Any]] = {
    "each": ForEach,
    "loop": Loop,
    "child": Child,
    "children": ForEachRun,
    "runs": AwaitRuns,
}
"""What is made of a step by its shape; its arguments are put together below, where no overload could follow."""


def _build_unit(
    one: StepDesign,
    needed: Step[Order, Seat, Text] | None,
    condition: Callable[[Inv], bool],
    seat: Seat,
    children: AnyPipeline | None,
) -> Step[Order, Seat, Text]:
    """A step of items, turns, child runs or awaited runs."""
    kind, made = KINDS_OF_UNITS[one.id], list[Step[Order, Seat, Text]]()
    options: dict[str, object] = {"when": condition if one.conditional else None}
    if one.id in WAITS:
        options |= _of_waits(one, kind, seat.world)
    else:
        options |= _of_unwinding(one, made)
        options["on_cancel"] = "leave" if kind.leaves else "settle" if one.settle else "cancel"
        options |= _of_items(one, kind, needed) if one.id in ITEMS else _of_children(one, kind, children)
    made.append(cast("Step[Order, Seat, Text]", _MAKE[kind.shape](one.id, **options)))
    return made[0]


def _of_waits(one: StepDesign, kind: Kind, world: World) -> dict[str, object]:
    def runs(inv: Inv) -> list[str]:
        return world.awaited(inv.run_id, one.id, named_by(one.id, inv.input))

    return {
        "runs": runs,
        "mode": "any" if kind.any else "all",
        "timeout": one.patience_s or None,
        "on_timeout": "go-on" if kind.any else "fail",
        "on_cancel": "leave" if kind.leaves else "cancel",
    }


def _of_unwinding(one: StepDesign, made: list[Step[Order, Seat, Text]]) -> dict[str, object]:
    """The handlers that take it back; `made` holds the step when they are called."""

    async def in_doubt(inv: UnwindInvocation[Order, Seat]) -> None:
        step = made[0]
        if isinstance(step, ItemStep):
            found = cast("ItemStep[Order, Seat, Text, str, str]", step)
            inv.deps.reported(inv.run_id, one.id, found.reports(inv))
        await inv.deps.backward(inv, None)

    if not one.unwind:
        return {}
    return {"unwind": backward_of_unit, "unwind_in_doubt": in_doubt if one.in_doubt else None}


def _of_items(one: StepDesign, kind: Kind, needed: Step[Order, Seat, Text] | None) -> dict[str, object]:
    def items(inv: Inv) -> list[str]:
        return items_of(one.id, inv.input)

    def first(inv: Inv) -> str:
        return items_of(one.id, inv.input)[0]

    common = {"timeout": TIMEOUTS.get(one.id), "retry": RETRIES.get(one.id), "needs": _need(one, needed)}
    if kind.shape == "loop":
        return {**common, "first": first, "turn": turn, "max": kind.most}
    return {**common, "items": items, "handler": of_item, "concurrency": kind.bound, "collect": kind.collect}


def _of_children(one: StepDesign, kind: Kind, children: AnyPipeline | None) -> dict[str, object]:
    def inputs(inv: Inv) -> list[Order]:
        return inputs_of(one.id, inv.input)

    def only(inv: Inv) -> Order:
        return inputs_of(one.id, inv.input)[0]

    common: dict[str, object] = {"pipeline": children, "collect": kind.collect}
    if kind.shape == "child":
        return {**common, "input": only}
    return {**common, "inputs": inputs, "concurrency": kind.bound or None}


def build_all(designs: list[Design], seat: Seat, gates: Gates) -> list[Bound]:
    """The pipelines of these designs, bound to a seat of the world; that of child runs comes first."""
    built: dict[str, Bound] = {}
    for design in sorted(designs, key=lambda one: one.id != CHILD_PIPELINE):
        built[design.id] = build(design, seat, built, gates)
    return [built[design.id] for design in designs]


def build(design: Design, seat: Seat, others: Mapping[str, Bound], gates: Gates) -> Bound:
    """The pipeline of a design, bound to a seat of the world.

    Args:
        others: the pipelines whose runs its steps may be.
        gates: limits and mutexes. Where runs in flight are bounded, no step waits for a run: that might not begin for
            want of the place that this one has; and child runs are not counted, likewise.
    """
    children = others[CHILD_PIPELINE].pipeline if CHILD_PIPELINE in others else None
    steps: dict[str, Step[Order, Seat, Text]] = {}
    named = [one for one in design.steps if not gates.runs or one.id not in WAITS] or design.steps
    for one in named:
        needed = steps.get(one.needs)
        asks = broken_condition if design.broken_condition else condition
        if one.id in KINDS_OF_UNITS:
            made = _build_unit(one, needed, asks, seat, children)
        else:
            made = _build_step(one, needed, asks, gates)
        steps[one.id] = retired(made) if one.retired else made
        if needed is not None:
            seat.reads[design.id, one.id] = (needed, one.need_is_optional or needed.when is not None)

    @asynccontextmanager
    async def deps() -> AsyncGenerator[Seat]:
        yield seat

    pipeline: Pipeline[Order, Seat, str] = Pipeline(
        id=design.id,
        input=Order,
        deps=Seat,
        steps=tuple(steps.values()),
        output=_output(steps, design.broken_output),
        failure_output=_failure_output,
        resource=lambda order: order.resource,
        slot=design.slot,
        deadline=design.deadline_s,
        limits=gates.of_runs() if design.id != CHILD_PIPELINE else (),
        mutexes=(MUTEX,) if gates.mutex else (),
    )
    return pipeline.bind(deps)


def _output(steps: dict[str, Step[Order, Seat, Text]], broken: bool) -> Callable[[Inv], str]:
    def output(inv: Inv) -> str:
        if broken:
            raise RuntimeError("the output function has a bug")
        called = [
            step for step in steps.values() if step.shape != "sleep"
        ]  # what a nap was called for is no sleep's state
        return "+".join(said(inv.get(step, None)) for step in called)

    return output


def _failure_output(inv: FailedInvocation[Order, Seat]) -> list[list[str]]:
    return [list(inv.in_doubt), list(inv.half_unwound), list(inv.uncompensated), list(inv.unavailable)]
