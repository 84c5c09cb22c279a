"""Correct uses of the authoring API. Both type checkers accept this file, and it runs (`test_types.py`)."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol, TypedDict, TypeVar, assert_type

import psycopg
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from psycopg import AsyncConnection

from perdure import (
    AsyncPoll,
    AsyncStep,
    AwaitedRun,
    AwaitMessage,
    AwaitRuns,
    Bound,
    Branch,
    CallerConnection,
    Canceled,
    Child,
    Client,
    Done,
    Fail,
    Failed,
    FailedInvocation,
    FailureDetail,
    ForEach,
    ForEachRun,
    Invocation,
    ItemInvocation,
    ItemReport,
    Later,
    Loop,
    More,
    Pipeline,
    Result,
    Retry,
    Run,
    Schedule,
    Settled,
    Sleep,
    Succeeded,
    SyncPoll,
    SyncStep,
    UnwindInvocation,
    nothing,
    optional,
    poll,
    retired,
    step,
)

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class PayoutInput:
    invoice_id: str
    amount_cents: int


@dataclass(frozen=True)
class OtherInput:
    name: str


@dataclass(frozen=True)
class Hold:
    hold_id: str


@dataclass(frozen=True)
class Transfer:
    transfer_id: str


class Bank:
    async def hold(self, cents: int, *, key: str) -> str:
        return f"{cents}:{key}"


class Deps:
    bank = Bank()


class Extra(TypedDict):
    note: str


Inv = Invocation[PayoutInput, Deps]
Undo = UnwindInvocation[PayoutInput, Deps]


# --- handlers, async and not, with and without state


@step("plain-async/v1")
async def plain_async(inv: Inv) -> Hold:
    assert_type(inv.input, PayoutInput)
    assert_type(inv.deps, Deps)
    assert_type(inv.idempotency_key, str)
    assert_type(inv.attempt, int)
    assert_type(inv.canceled, bool)
    return Hold(await inv.deps.bank.hold(inv.input.amount_cents, key=inv.idempotency_key))


@step("plain-sync/v1")
def plain_sync(inv: Inv) -> Hold:
    return Hold("h")


@step("none-async/v1", timeout=30, retry=Retry(max_attempts=3, never=(ValueError,), then="fail"))
async def none_async(inv: Inv) -> None:
    return None


@step("none-sync/v1", timeout=timedelta(minutes=1), on_cancel="settle")
def none_sync(inv: Inv) -> None:
    return None


@step("maybe/v1")
async def maybe(inv: Inv) -> Hold | None:
    return None


@step("typed-dict/v1")
async def typed_dict(inv: Inv) -> Extra:
    return {"note": "n"}


@step("list/v1")
def a_list(inv: Inv) -> list[Hold]:
    return [Hold("h")]


assert_type(plain_async, AsyncStep[PayoutInput, Deps, Hold])
assert_type(plain_sync, SyncStep[PayoutInput, Deps, Hold])
assert_type(none_async, AsyncStep[PayoutInput, Deps, None])
assert_type(none_sync, SyncStep[PayoutInput, Deps, None])
assert_type(maybe, AsyncStep[PayoutInput, Deps, Hold | None])
assert_type(typed_dict, AsyncStep[PayoutInput, Deps, Extra])
assert_type(a_list, SyncStep[PayoutInput, Deps, list[Hold]])


# --- unwind, in doubt, substitutes, conditions


async def release(inv: Undo, hold: Hold) -> None:
    assert_type(inv.forward_key, str)
    assert_type(hold, Hold)


def release_sync(inv: Inv, hold: Hold) -> None:
    """An unwind handler may ask for no more than an `Invocation`."""


async def release_by_key(inv: Undo) -> None:
    return None


def no_hold(inv: Inv) -> Hold:
    return Hold("")


def is_large(inv: Inv) -> bool:
    return inv.input.amount_cents > 100


@step("reserve/v1", unwind=release, unwind_in_doubt=release_by_key)
async def reserve(inv: Inv) -> Hold:
    return Hold("h")


@step("reserve-sync/v1", unwind=release_sync)
def reserve_sync(inv: Inv) -> Hold:
    return Hold("h")


@step("reserve-when/v1", unwind=release, when=is_large, if_skipped=no_hold)
async def reserve_when(inv: Inv) -> Hold:
    return Hold("h")


@step("skippable/v1", if_skipped=no_hold)
def skippable(inv: Inv) -> Hold:
    return Hold("h")


@step("conditional/v1", when=is_large)
async def conditional(inv: Inv) -> Hold:
    return Hold("h")


@step("conditional-sync/v1", when=is_large)
def conditional_sync(inv: Inv) -> Hold:
    return Hold("h")


assert_type(reserve, AsyncStep[PayoutInput, Deps, Hold])
assert_type(reserve_sync, SyncStep[PayoutInput, Deps, Hold])
assert_type(reserve_when, AsyncStep[PayoutInput, Deps, Hold])
assert_type(skippable, SyncStep[PayoutInput, Deps, Hold])
assert_type(conditional, AsyncStep[PayoutInput, Deps, Hold])
assert_type(conditional_sync, SyncStep[PayoutInput, Deps, Hold])


# --- polls


@poll("poll/v1")
async def polled(inv: Inv) -> Hold | Later:
    return Later(timedelta(minutes=5))


@poll("poll-sync/v1", timeout=5)
def polled_sync(inv: Inv) -> Hold | Later:
    return Later(0.5)


@poll("poll-none/v1")
async def polled_none(inv: Inv) -> Later | None:
    return None


@poll("poll-unwind/v1", unwind=release, when=is_large)
async def polled_unwind(inv: Inv) -> Hold | Later:
    return Hold("h")


@poll("poll-when/v1", when=is_large)
async def polled_when(inv: Inv) -> Hold | Later:
    return Hold("h")


@poll("poll-skipped/v1", if_skipped=no_hold)
def polled_skipped(inv: Inv) -> Hold | Later:
    return Hold("h")


@poll("poll-never/v1")
async def polled_at_once(inv: Inv) -> Hold:
    return Hold("h")


assert_type(polled, AsyncPoll[PayoutInput, Deps, Hold])
assert_type(polled_sync, SyncPoll[PayoutInput, Deps, Hold])
assert_type(polled_none, AsyncPoll[PayoutInput, Deps, None])
assert_type(polled_unwind, AsyncPoll[PayoutInput, Deps, Hold])
assert_type(polled_when, AsyncPoll[PayoutInput, Deps, Hold])
assert_type(polled_skipped, SyncPoll[PayoutInput, Deps, Hold])
assert_type(polled_at_once, AsyncPoll[PayoutInput, Deps, Hold])


@step("after-poll/v1", needs=(polled, polled_none))
async def after_poll(inv: Inv) -> str:
    assert_type(inv[polled], Hold)
    assert_type(inv[polled_none], None)
    return inv[polled].hold_id


# --- sleeps


nap = Sleep("nap/v1", timedelta(days=1))
nap_when = Sleep("nap-when/v1", 5, when=is_large, needs=(polled,))
assert_type(nap, Sleep[object, object])
assert_type(nap_when, Sleep[PayoutInput, Deps])


@step("after-nap/v1", needs=(nap,))
async def after_nap(inv: Inv) -> None:
    assert_type(inv.get(nap_when), None)


# --- branches


class Route(Enum):
    FAST = "fast"
    SLOW = "slow"


async def choose(inv: Inv) -> Route:
    return Route.FAST


def choose_sync(inv: Inv) -> Route:
    return Route.SLOW


routed = Branch(
    "routed/v1", decide=choose, arms={Route.FAST: (plain_async, nap), Route.SLOW: [plain_sync]}, when=is_large
)
routed_sync = Branch("routed-sync/v1", decide=choose_sync, arms={Route.FAST: (), Route.SLOW: (maybe,)})
assert_type(routed, Branch[PayoutInput, Deps, Route])
assert_type(routed_sync, Branch[PayoutInput, Deps, Route])


@step("after-branch/v1", needs=(optional(routed), routed_sync, optional(plain_sync)))
async def after_branch(inv: Inv) -> str:
    assert_type(inv[routed_sync], Route)
    assert_type(inv.get(routed), Route | None)
    assert_type(inv.get(plain_sync), Hold | None)
    return inv[routed_sync].value


# --- items and turns


One = ItemInvocation[PayoutInput, Deps, int]
Page = ItemInvocation[PayoutInput, Deps, str]


def cents(inv: Inv) -> list[int]:
    return [inv.input.amount_cents, len(inv[plain_async].hold_id)]


async def pay_one(inv: One) -> Transfer:
    assert_type(inv.item, int)
    assert_type(inv.index, int)
    assert_type(inv.input, PayoutInput)
    assert_type(inv.deps, Deps)
    return Transfer(f"{inv.index}: {inv.item}")


def pay_one_sync(inv: One) -> Transfer:
    return Transfer(f"{inv.item}")


async def take_all(inv: Undo, made: list[Transfer]) -> None: ...


async def take_settled(inv: Undo, made: list[Settled[Transfer]]) -> None: ...


async def find_paid(inv: Undo) -> None:
    assert_type(paid_full.reports(inv), tuple[ItemReport[int, Transfer], ...])
    for report_ in paid_full.reports(inv):
        assert_type(report_.item, int)
        assert_type(report_.value, Transfer | None)


paid = ForEach("paid/v1", items=cents, handler=pay_one, needs=(plain_async,))
paid_sync = ForEach("paid-sync/v1", items=cents, handler=pay_one_sync, concurrency=2, needs=(plain_async,))
paid_some = ForEach("paid-some/v1", items=cents, handler=pay_one, collect=True, needs=(plain_async,))
paid_full: ForEach[PayoutInput, Deps, list[Transfer], int, Transfer] = ForEach(
    "paid-full/v1",
    items=cents,
    handler=pay_one,
    unwind=take_all,
    unwind_in_doubt=find_paid,
    when=is_large,
    timeout=5,
    retry=Retry(),
    needs=(plain_async,),
    on_cancel="settle",
)
paid_settled = ForEach(
    "paid-settled/v1", items=cents, handler=pay_one, collect=True, unwind=take_settled, needs=(plain_async,)
)
assert_type(paid, ForEach[PayoutInput, Deps, list[Transfer], int, Transfer])
assert_type(paid_sync, ForEach[PayoutInput, Deps, list[Transfer], int, Transfer])
assert_type(paid_some, ForEach[PayoutInput, Deps, list[Settled[Transfer]], int, Transfer])


def first_page(inv: Inv) -> str:
    return ""


async def read_page(inv: Page) -> More[str] | Done[int]:
    assert_type(inv.item, str)
    return More(inv.item + "x") if inv.index < 3 else Done(inv.index)


def read_page_sync(inv: Page) -> More[str] | Done[int]:
    return Done[int](3)


pages = Loop("pages/v1", first=first_page, turn=read_page, max=10)
pages_sync = Loop("pages-sync/v1", first=first_page, turn=read_page_sync)
assert_type(pages, Loop[PayoutInput, Deps, int, str])
assert_type(pages_sync, Loop[PayoutInput, Deps, int, str])


@step("after-items/v1", needs=(paid, paid_some, optional(paid_full), pages))
async def after_items(inv: Inv) -> int:
    assert_type(inv[paid], list[Transfer])
    assert_type(inv[paid_some], list[Settled[Transfer]])
    assert_type(inv[paid_some][0].value, Transfer | None)
    assert_type(inv.get(paid_full), list[Transfer] | None)
    assert_type(inv[pages], int)
    return inv[pages]


itemizing: Pipeline[PayoutInput, Deps, int] = Pipeline(
    id="itemizing",
    input=PayoutInput,
    deps=Deps,
    steps=(plain_async, paid, paid_sync, paid_some, paid_full, paid_settled, pages, pages_sync, after_items),
    output=lambda inv: inv[after_items],
)


# --- reading states


def count(inv: Inv) -> int:
    return 1


@step("send/v1", needs=(reserve, optional(conditional), maybe, none_async))
async def send(inv: Inv) -> Transfer:
    assert_type(inv[reserve], Hold)
    assert_type(inv[maybe], Hold | None)
    assert_type(inv.get(conditional), Hold | None)
    assert_type(inv.get(conditional, Hold("d")), Hold)
    assert_type(inv.get(conditional, 0), Hold | int)
    if inv.get(conditional) is not None:
        raise Fail("large ones are refused", reason="large", kind="user")

    async def ask() -> Transfer:
        return Transfer(inv[reserve].hold_id)

    assert_type(await inv.memo("asked", ask), Transfer)
    assert_type(await inv.memo("count", functools.partial(count, inv)), int)
    assert_type(await inv.memo("lambda", lambda: 3, type=int), int)
    return await inv.memo("typed", ask, type=Transfer)


class Known(Exception, FailureDetail):
    kind = "user"
    reason = "known"


# --- pipelines


def transfer_of(inv: Inv) -> Transfer:
    return inv[send]


def report(inv: FailedInvocation[PayoutInput, Deps]) -> str:
    assert_type(inv.in_doubt, tuple[str, ...])
    assert_type(inv.input, PayoutInput)
    return inv.failure.message


payout: Pipeline[PayoutInput, Deps, Transfer] = Pipeline(
    id="payout",
    input=PayoutInput,
    deps=Deps,
    steps=(maybe, none_async, reserve, conditional, send, retired(plain_sync)),
    output=lambda inv: inv[send],
    failure_output=report,
    resource=lambda i: i.invoice_id,
    slot="once",
    deadline=timedelta(days=1),
    retry=Retry(),
)

subscripted = Pipeline[PayoutInput, Deps, Transfer](
    id="subscripted",
    input=PayoutInput,
    deps=Deps,
    steps=[maybe, none_async, reserve, conditional, send],
    output=transfer_of,
    slot="serial",
    priority=-3,
)

inferred = Pipeline(
    id="inferred", input=PayoutInput, deps=Deps, steps=(plain_async,), output=lambda inv: inv[plain_async]
)
without_output = Pipeline(id="no-output", input=PayoutInput, deps=Deps, steps=(plain_sync,), output=nothing)

branching: Pipeline[PayoutInput, Deps, str] = Pipeline(
    id="branching",
    input=PayoutInput,
    deps=Deps,
    steps=(routed, routed_sync, after_branch),
    output=lambda inv: inv[after_branch],
)
assert_type(retired(routed), Branch[PayoutInput, Deps, Route])

polling: Pipeline[PayoutInput, Deps, str] = Pipeline(
    id="polling",
    input=PayoutInput,
    deps=Deps,
    steps=(polled, polled_sync, polled_none, nap, nap_when, after_poll),
    output=lambda inv: inv[after_poll],
)

assert_type(payout, Pipeline[PayoutInput, Deps, Transfer])
assert_type(subscripted, Pipeline[PayoutInput, Deps, Transfer])
assert_type(inferred, Pipeline[PayoutInput, Deps, Hold])
assert_type(without_output, Pipeline[PayoutInput, Deps, None])
assert_type(retired(plain_sync), SyncStep[PayoutInput, Deps, Hold])


# --- a step shared by pipelines, written against what it needs


class HasInvoice(Protocol):
    @property
    def invoice_id(self) -> str: ...


class HasBank(Protocol):
    @property
    def bank(self) -> Bank: ...


@step("shared/v1")
async def shared(inv: Invocation[HasInvoice, HasBank]) -> str:
    return inv.input.invoice_id


def shared_output(inv: Inv) -> str:
    return inv[shared]


sharing: Pipeline[PayoutInput, Deps, str] = Pipeline(
    id="sharing", input=PayoutInput, deps=Deps, steps=(shared, plain_async), output=shared_output
)


# --- plain values as inputs and states, pipelines without dependencies


@step("double/v1")
def double(inv: Invocation[int, object]) -> int:
    return inv.input * 2


def doubled(inv: Invocation[int, object]) -> int:
    return inv[double]


doubling: Pipeline[int, object, int] = Pipeline(id="doubling", input=int, deps=object, steps=(double,), output=doubled)


@step("union/v1")
def union(inv: Invocation[int | str, object]) -> list[int]:
    return [1]


unions: Pipeline[int | str, object, None] = Pipeline(
    id="unions", input=int | str, deps=object, steps=(union,), output=nothing
)


# --- binding


@asynccontextmanager
async def open_deps() -> AsyncGenerator[Deps]:
    yield Deps()


@contextmanager
def open_deps_sync() -> Generator[Deps]:
    yield Deps()


def open_by_hand() -> AbstractAsyncContextManager[Deps]:
    return open_deps()


assert_type(payout.bind(open_deps), Bound)
assert_type(payout.bind(open_deps_sync), Bound)
assert_type(payout.bind(open_by_hand), Bound)
assert_type(payout.bind(lambda: nullcontext(Deps())), Bound)
assert_type(doubling.bind(), Bound)


# --- running a handler alone


async def run_alone() -> None:
    fake = payout.fake(
        input=PayoutInput("7", 12_500), deps=Deps(), states=(reserve.given(Hold("h")), maybe.given(None))
    )
    assert_type(fake, Invocation[PayoutInput, Deps])
    assert_type(await send(fake), Transfer)
    assert_type(plain_sync(fake), Hold)
    assert_type(double(doubling.fake(input=1, deps=None)), int)
    undo = payout.fake_unwind(reserve, input=PayoutInput("7", 1), deps=Deps())
    assert_type(undo, UnwindInvocation[PayoutInput, Deps])
    await release(undo, Hold("h"))
    waiting = polling.fake(input=PayoutInput("7", 1), deps=Deps())
    assert_type(await polled(waiting), Hold | Later)
    assert_type(polled_sync(waiting), Hold | Later)
    one = itemizing.fake_item(paid, item=3, index=1, input=PayoutInput("7", 1), deps=Deps())
    assert_type(one, ItemInvocation[PayoutInput, Deps, int])
    assert_type(await pay_one(one), Transfer)
    turn = itemizing.fake_item(pages, item="", input=PayoutInput("7", 1), deps=Deps())
    assert_type(turn, ItemInvocation[PayoutInput, Deps, str])
    assert_type(await read_page(turn), More[str] | Done[int])


# --- results


def submit(pipeline: Pipeline[In, Any, Out], input: In) -> Result[Out]:
    """Stands for `Client.submit(...).result()`."""
    raise NotImplementedError(pipeline, input)


def read(result: Result[Transfer]) -> str:
    match result:
        case Succeeded():
            assert_type(result.output, Transfer)
            return result.output.transfer_id
        case Failed() | Canceled():
            assert_type(result.output, object)
            assert_type(result.output_as(str), str)
            assert_type(result.output_as(list[int]), list[int])
            assert_type(result.in_doubt, tuple[str, ...])
            return result.failure.reason


def submit_all() -> Sequence[object]:
    result = submit(payout, PayoutInput("7", 1))
    assert_type(result, Result[Transfer])
    assert_type(submit(doubling, 3), Result[int])
    return [result]


# --- messages, other runs, child runs


told = AwaitMessage("told/v1", name="hold", type=Hold)
told_when = AwaitMessage("told-when/v1", name="hold", type=Hold, timeout=5, on_timeout=Hold("late"), when=is_large)
told_texts = AwaitMessage("told-texts/v1", name="texts", type=list[str], timeout=timedelta(days=1))
assert_type(told, AwaitMessage[object, object, Hold])
assert_type(told_when, AwaitMessage[PayoutInput, Deps, Hold])
assert_type(told_texts, AwaitMessage[object, object, list[str]])


def named(inv: Inv) -> list[str]:
    return inv[told_texts]


def child_input(inv: Inv) -> PayoutInput:
    return inv.input


def child_inputs(inv: Inv) -> list[PayoutInput]:
    return [inv.input]


def undo_transfer(inv: Undo, made: Transfer) -> None: ...


others = AwaitRuns("others/v1", runs=named, mode="any", timeout=60, on_timeout="go-on", on_cancel="cancel")
child = Child("child/v1", pipeline=payout, input=child_input, unwind=undo_transfer)
child_settled = Child("child-settled/v1", pipeline=payout, input=child_input, collect=True, on_cancel="leave")
children = ForEachRun("children/v1", pipeline=payout, inputs=child_inputs, concurrency=4)
children_settled = ForEachRun("children-settled/v1", pipeline=payout, inputs=child_inputs, collect=True)
assert_type(others, AwaitRuns[PayoutInput, Deps])


@step(
    "after-waits/v1",
    needs=(told, optional(told_when), told_texts, others, child, child_settled, children, children_settled),
)
async def after_waits(inv: Inv) -> None:
    assert_type(inv[told], Hold)
    assert_type(inv.get(told_when), Hold | None)
    assert_type(inv[told_texts], list[str])
    assert_type(inv[others], tuple[AwaitedRun, ...])
    assert_type(inv[child], Transfer)
    assert_type(inv[child_settled], Settled[Transfer])
    assert_type(inv[children], list[Transfer])
    assert_type(inv[children_settled], list[Settled[Transfer]])


waiting_line: Pipeline[PayoutInput, Deps, Hold] = Pipeline(
    id="waiting-line",
    input=PayoutInput,
    deps=Deps,
    steps=(told, told_when, told_texts, others, child, child_settled, children, children_settled, after_waits),
    output=lambda inv: inv[told],
)


async def tell(client: Client, run: Run[Hold]) -> None:
    assert_type(await run.send("hold", Hold("h"), key="k", actor="ada"), bool)
    assert_type(await client.send(run.id, "texts", ["a"]), bool)


# --- schedules


def day_of(tick: datetime) -> PayoutInput:
    return PayoutInput(tick.date().isoformat(), 1)


daily = Schedule("daily", payout, input=day_of, cron="0 3 * * *", tz="Europe/Berlin", resource=lambda tick: f"{tick}")
assert_type(daily, Schedule[PayoutInput])
assert_type(daily.input_at(0), PayoutInput)
hourly = Schedule("hourly", payout, input=PayoutInput("7", 1), every=timedelta(hours=1), missed="all", on_busy="join")
assert_type(hourly, Schedule[PayoutInput])
of_lambda: Schedule[PayoutInput] = Schedule("other", payout, input=lambda tick: PayoutInput(f"{tick}", 1), every=60)
schedules = (daily, hourly, Schedule("double", doubling, input=3, every=60))


# --- transactions


@step("transactional/v1")
async def transactional(inv: Inv) -> int:
    con = await inv.tx(AsyncConnection)
    await con.execute("INSERT INTO orders VALUES (%s)", (inv.run_id,))
    async with con.cursor() as cursor:
        assert_type(cursor.rowcount, int)
    return assert_type((await inv.tx(sqlite3.Connection)).total_changes, int)


async def untransactional(inv: Undo, made: Transfer) -> None:
    await (await inv.tx(AsyncConnection)).execute("DELETE FROM orders")


async def joins(
    client: Client,
    run: Run[Hold],
    blocking: psycopg.Connection[tuple[int, str]],
    awaited: AsyncConnection[tuple[int, str]],
    session: sqlalchemy.orm.Session,
    core: sqlalchemy.Connection,
    async_session: sqlalchemy.ext.asyncio.AsyncSession,
    async_core: sqlalchemy.ext.asyncio.AsyncConnection,
) -> None:
    connections: list[CallerConnection] = [blocking, awaited, session, core, async_session, async_core]
    for connection in connections:
        await client.submit(payout, PayoutInput("7", 1), connection=connection)
    assert_type(await client.submit(payout, PayoutInput("7", 1), connection=awaited), Run[Transfer])
    assert_type(await run.send("hold", Hold("h"), connection=blocking), bool)
