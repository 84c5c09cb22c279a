"""A shop: every step that waits, in one pipeline.

python -m examples.orders.app           # four orders: one goes through, one is declined, one sells out, one is canceled

An order reserves each of its lines, several at once. A large one waits for a person, for two days at most. Then every
parcel travels as a run of its own, and the shop asks the bank again and again whether the money is there.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path

from perdure import (
    App,
    AwaitMessage,
    Branch,
    Engine,
    Fail,
    ForEach,
    ForEachRun,
    Invocation,
    ItemInvocation,
    Later,
    Pipeline,
    Retry,
    Run,
    Sleep,
    UnwindInvocation,
    poll,
    step,
)


@dataclass(frozen=True)
class Line:
    article: str
    count: int
    cents: int


@dataclass(frozen=True)
class Order:
    customer: str
    lines: list[Line]


@dataclass(frozen=True)
class Approval:
    granted: bool
    by: str


@dataclass(frozen=True)
class Parcel:
    order: str
    article: str


@dataclass
class Shop:
    """The world outside: what is in stock, and who has paid. Its calls are idempotent by key, as a real one's are."""

    stock: dict[str, int]
    reserved: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    asked: int = 0

    def reserve(self, article: str, count: int, key: str) -> str:
        if key not in self.reserved:
            if self.stock.get(article, 0) < count:
                raise Fail(f"{article} is sold out", reason="sold-out", kind="user")
            self.stock[article] -= count
            self.reserved[key] = article, count
        return key

    def release(self, key: str) -> None:
        article, count = self.reserved.pop(key, ("", 0))
        if article:
            self.stock[article] += count


Inv = Invocation[Order, Shop]


# --- the lines of an order


def lines(inv: Inv) -> list[Line]:
    return inv.input.lines


async def reserve(inv: ItemInvocation[Order, Shop, Line]) -> str:
    return inv.deps.reserve(inv.item.article, inv.item.count, inv.idempotency_key)


async def release_all(inv: UnwindInvocation[Order, Shop], keys: list[str]) -> None:
    for key in keys:
        inv.deps.release(key)


async def release_some(inv: UnwindInvocation[Order, Shop]) -> None:
    """Only some lines were reserved, or nobody knows: releasing one that is not does no harm."""
    for line in reserve_lines.reports(inv):
        inv.deps.release(line.idempotency_key)


reserve_lines = ForEach(
    "reserve-lines/v1",
    items=lines,
    handler=reserve,
    concurrency=4,
    unwind=release_all,
    unwind_in_doubt=release_some,
    retry=Retry(initial=0.05),
)


# --- a person, for large orders


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


async def how_large(inv: Inv) -> Size:
    total = sum(line.count * line.cents for line in inv.input.lines)
    return Size.LARGE if total >= 100_000 else Size.SMALL


approval = AwaitMessage("approve/v1", name="approval", type=Approval, timeout=timedelta(days=2))


@step("check-approval/v1", needs=(approval,))
async def check_approval(inv: Inv) -> str:
    answer = inv[approval]
    if not answer.granted:
        raise Fail(f"{answer.by} declined", reason="declined", kind="user")
    return answer.by


size = Branch("size/v1", decide=how_large, arms={Size.SMALL: (), Size.LARGE: (approval, check_approval)})


# --- money


@poll("await-payment/v1", timeout=30)
async def await_payment(inv: Inv) -> int | Later:
    inv.deps.asked += 1
    if inv.attempt < 3:
        return Later(0.05)
    return sum(line.count * line.cents for line in inv.input.lines)


# --- parcels: runs of another pipeline


@step("drive/v1")
async def drive(inv: Invocation[Parcel, object]) -> str:
    return f"{inv.input.article} is on its way"


delivery: Pipeline[Parcel, object, str] = Pipeline(
    id="delivery",
    input=Parcel,
    deps=object,
    steps=(Sleep("load/v1", 0.05), drive),
    output=lambda inv: inv[drive],
)


def parcels(inv: Inv) -> Sequence[Parcel]:
    return [Parcel(inv.run_id, line.article) for line in inv.input.lines]


deliver = ForEachRun("deliver/v1", pipeline=delivery, inputs=parcels)


# --- all of it


@dataclass(frozen=True)
class Receipt:
    cents: int
    approved_by: str
    parcels: list[str]


def receipt(inv: Inv) -> Receipt:
    return Receipt(inv[await_payment], inv.get(check_approval, "nobody"), inv[deliver])


order: Pipeline[Order, Shop, Receipt] = Pipeline(
    id="order",
    input=Order,
    deps=Shop,
    steps=(reserve_lines, size, await_payment, deliver),
    output=receipt,
)


async def stands_at(run: Run[Receipt], step_id: str) -> None:
    """Wait until a run has come to a step."""
    async for info in run.watch():
        if info.step == step_id and info.status == "ready":
            return


async def serve(engine: Engine) -> list[Run[Receipt]]:
    """What customers, and the person who approves, do on a busy morning."""
    ada = await engine.submit(order, Order("Ada", [Line("lamp", 2, 4_900), Line("table", 1, 120_000)]))
    ben = await engine.submit(order, Order("Ben", [Line("table", 1, 120_000)]))
    eve = await engine.submit(order, Order("Eve", [Line("lamp", 1, 4_900), Line("moon", 1, 99)]))
    dan = await engine.submit(order, Order("Dan", [Line("table", 1, 120_000)]))
    await stands_at(ada, approval.id)
    await ada.send("approval", Approval(granted=True, by="Kim"), key="form-17")
    await ada.send("approval", Approval(granted=True, by="Kim"), key="form-17")  # clicked twice: received once
    await ben.send("approval", Approval(granted=False, by="Kim"))
    await stands_at(dan, approval.id)
    await dan.cancel(reason="changed-my-mind")
    return [ada, ben, eve, dan]


async def main(folder: Path) -> None:
    shop = Shop({"lamp": 10, "table": 3})
    app = App(order.bind(lambda: nullcontext(shop)), delivery.bind(), store=f"sqlite:///{folder / 'orders.db'}")
    async with app.engine() as engine:
        for run in await serve(engine):
            print(await run.result())
    print("in stock:", shop.stock)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(Path(folder)))
