"""An app whose runs wait and have items in every way there is, for workers that are killed: `crowd:app`.

Each call of a handler leaves a line in the file named by PERDURE_TEST_EFFECTS: its idempotency key.
"""

from __future__ import annotations

import asyncio
import os
import random

from perdure import (
    App,
    AwaitMessage,
    AwaitRuns,
    Child,
    Done,
    Fail,
    ForEach,
    ForEachRun,
    Invocation,
    ItemInvocation,
    Loop,
    More,
    Pipeline,
    Retry,
    Sleep,
    UnwindInvocation,
    step,
)

Inv = Invocation[int, object]
Item = ItemInvocation[int, object, int]

PROMPT = Retry(initial=0.02, cap=0.2)
ITEMS, TURNS, LEGS = 7, 5, 6


def effect(key: str) -> None:
    """Something outside of the store that cannot be taken back."""
    file = os.open(os.environ["PERDURE_TEST_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{key}\n".encode())
    os.close(file)


async def handle(inv: Item) -> int:
    effect(inv.idempotency_key)
    await inv.memo("chance", random.random, type=float)
    if random.random() < 0.1:
        raise OSError("try again")
    return inv.item * 2


async def undo_items(inv: UnwindInvocation[int, object], state: list[int]) -> None:
    effect(inv.idempotency_key)


async def undo_some(inv: UnwindInvocation[int, object]) -> None:
    assert len(items.reports(inv)) == inv.input % ITEMS
    effect(inv.idempotency_key)


items = ForEach(
    "items/v1",
    items=lambda inv: list(range(inv.input % ITEMS)),
    handler=handle,
    concurrency=3,
    unwind=undo_items,
    unwind_in_doubt=undo_some,
)


async def turn(inv: Item) -> More[int] | Done[int]:
    effect(inv.idempotency_key)
    await asyncio.sleep(0)
    if random.random() < 0.1:
        raise OSError("try again")
    return More(inv.item + 1) if inv.index < inv.input % TURNS else Done(inv.item)


loop = Loop("loop/v1", first=lambda inv: 0, turn=turn)
message = AwaitMessage("message/v1", name="go", type=int)


@step("leg/v1")
async def leg(inv: Inv) -> int:
    effect(inv.idempotency_key)
    if inv.input % 11 == 0:
        raise Fail("no such leg", reason="no-leg")
    return inv.input


legs: Pipeline[int, object, int] = Pipeline(
    id="legs", input=int, deps=object, steps=(Sleep("nap/v1", 0.03), leg), output=lambda inv: inv[leg], retry=PROMPT
)


def one_leg(inv: Inv) -> int:
    return inv.input


def many_legs(inv: Inv) -> list[int]:
    return [n + 1 for n in range(inv.input % LEGS)]


one = Child("one/v1", pipeline=legs, input=one_leg)
many = ForEachRun("many/v1", pipeline=legs, inputs=many_legs, concurrency=2)


def nobody(inv: Inv) -> list[str]:
    return ["no-such-run"]


others = AwaitRuns("others/v1", runs=nobody)


@step("end/v1", needs=(items, loop, message, one, many, others))
async def end(inv: Inv) -> int:
    effect(inv.idempotency_key)
    n = inv.input
    expected = [k * 2 for k in range(n % ITEMS)], n % TURNS, n, [k + 1 for k in range(n % LEGS)], "missing"
    found = inv[items], inv[loop], inv[one], inv[many], inv[others][0].status
    if found != expected:
        raise Fail(f"{found} is not {expected}", reason="wrong-states")
    if n % 13 == 0:
        raise Fail("unlucky", reason="unlucky")
    return inv[message]


crowd: Pipeline[int, object, int] = Pipeline(
    id="crowd",
    input=int,
    deps=object,
    steps=(items, loop, message, one, many, others, end),
    output=lambda inv: inv[end],
    retry=PROMPT,
)

app = App(crowd.bind(), legs.bind(), store="sqlite:///crowd.db", concurrency=24)
