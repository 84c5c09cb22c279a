"""Mistakes that type checkers must catch. It is never run, only checked (`test_types.py`).

`# E` marks a statement in which mypy and pyright both must report an error, `# E: mypy` or `# E: pyright` one in which
at least that checker must. A statement without a mark must have no error.
"""

# ruff: noqa: B018  # mistakes without consequences

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol, TypeVar, assert_type

from perdure import (
    AwaitMessage,
    AwaitRuns,
    Branch,
    Child,
    Done,
    Fail,
    FailedInvocation,
    ForEach,
    ForEachRun,
    Invocation,
    ItemInvocation,
    Later,
    Loop,
    More,
    Pipeline,
    Result,
    Retry,
    Run,
    Schedule,
    Sleep,
    Succeeded,
    UnwindInvocation,
    nothing,
    optional,
    poll,
    step,
)

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class PayoutInput:
    invoice_id: str


@dataclass(frozen=True)
class OtherInput:
    name: str


@dataclass(frozen=True)
class Hold:
    hold_id: str


@dataclass(frozen=True)
class Transfer:
    transfer_id: str


class Deps:
    bank: str = ""


class OtherDeps:
    queue: str = ""


Inv = Invocation[PayoutInput, Deps]
Undo = UnwindInvocation[PayoutInput, Deps]


def submit(pipeline: Pipeline[In, Any, Out], input: In) -> Result[Out]:
    raise NotImplementedError(pipeline, input)


# --- correct parts to build mistakes from


async def release(inv: Undo, hold: Hold) -> None: ...


def large(inv: Inv) -> bool:
    return True


def no_hold(inv: Inv) -> Hold:
    return Hold("")


@step("reserve/v1")
async def reserve(inv: Inv) -> Hold:
    return Hold("h")


@step("send/v1", needs=(reserve,))
async def send(inv: Inv) -> Transfer:
    return Transfer("t")


@step("foreign/v1")
async def foreign(inv: Invocation[OtherInput, Deps]) -> Hold:
    return Hold("h")


@step("needs-queue/v1")
async def needs_queue(inv: Invocation[PayoutInput, OtherDeps]) -> Hold:
    return Hold("h")


payout: Pipeline[PayoutInput, Deps, Transfer] = Pipeline(
    id="payout", input=PayoutInput, deps=Deps, steps=(reserve, send), output=lambda inv: inv[send]
)


# --- handlers


@step("no-inv/v1")  # E
async def no_inv() -> Hold:
    return Hold("h")


@step("two/v1")  # E
async def two(inv: Inv, more: int) -> Hold:
    return Hold("h")


@step("not-inv/v1")  # E
async def not_inv(inv: PayoutInput) -> Hold:
    return Hold("h")


@step("wrong-return/v1")
async def wrong_return(inv: Inv) -> Hold:
    return Transfer("t")  # E


@step("no-annotation/v1")
async def no_annotation(inv: Inv):  # E: mypy
    return Hold("h")


@step("wrong-input/v1")
async def wrong_input(inv: Inv) -> str:
    return inv.input.name  # E


@step("wrong-deps/v1")
async def wrong_deps(inv: Inv) -> str:
    return inv.deps.queue  # E


@step("write-input/v1")
async def write_input(inv: Inv) -> None:
    inv.input = PayoutInput("8")  # E


# --- options


@step("timeout/v1", timeout="30")  # E
async def timeout_text(inv: Inv) -> None: ...


@step("typo/v1", time_out=30)  # E
async def typo(inv: Inv) -> None: ...


@step(7)  # E
async def number_id(inv: Inv) -> None: ...


@step("on-cancel/v1", on_cancel="ignore")  # E
async def on_cancel(inv: Inv) -> None: ...


@step("retry/v1", retry=3)  # E
async def retry_number(inv: Inv) -> None: ...


@step("needs-one/v1", needs=(reserve))  # E
async def needs_one(inv: Inv) -> None: ...


@step("needs-text/v1", needs=("reserve/v1",))  # E
async def needs_text(inv: Inv) -> None: ...


@step("needs-function/v1", needs=(release,))  # E
async def needs_function(inv: Inv) -> None: ...


Retry(max_attempts="3")  # E
Retry(then="give-up")  # E
Retry(never=("ValueError",))  # E
Retry(never=ValueError)  # E
Retry(attempts=3)  # E
optional(optional(reserve))  # E
optional("reserve/v1")  # E
Fail("x", kind="customer")  # E
Fail("x", reason=3)  # E


# --- unwind, substitutes, conditions


@step("unwind-state/v1", unwind=release)  # E
async def unwind_state(inv: Inv) -> Transfer:
    return Transfer("t")


@step("unwind-maybe/v1", unwind=release)  # E
async def unwind_maybe(inv: Inv) -> Hold | None:
    return None


@step("unwind-sync/v1", unwind=release)  # E
def unwind_sync(inv: Inv) -> Transfer:
    return Transfer("t")


async def release_without_state(inv: Undo) -> None: ...


async def release_returns(inv: Undo, hold: Hold) -> int:
    return 1


async def release_foreign(inv: UnwindInvocation[OtherInput, Deps], hold: Hold) -> None: ...


@step("unwind-arity/v1", unwind=release_without_state)  # E
async def unwind_arity(inv: Inv) -> Hold:
    return Hold("h")


@step("unwind-returns/v1", unwind=release_returns)  # E
async def unwind_returns(inv: Inv) -> Hold:
    return Hold("h")


@step("unwind-foreign/v1", unwind=release_foreign)  # E
async def unwind_foreign(inv: Inv) -> Hold:
    return Hold("h")


@step("doubt-state/v1", unwind=release, unwind_in_doubt=release)  # E
async def doubt_state(inv: Inv) -> Hold:
    return Hold("h")


@step("doubt-alone/v1", unwind_in_doubt=release_without_state)  # E
async def doubt_alone(inv: Inv) -> Hold:
    return Hold("h")


@step("skipped-type/v1", if_skipped=no_hold)  # E
async def skipped_type(inv: Inv) -> Transfer:
    return Transfer("t")


@step("skipped-value/v1", if_skipped=Hold("h"))  # E
async def skipped_value(inv: Inv) -> Hold:
    return Hold("h")


@step("skipped-unwind/v1", unwind=release, if_skipped=lambda inv: Transfer("t"))  # E
async def skipped_unwind(inv: Inv) -> Hold:
    return Hold("h")


async def large_async(inv: Inv) -> bool:
    return True


def large_foreign(inv: Invocation[OtherInput, Deps]) -> bool:
    return True


def large_text(inv: Inv) -> str:
    return ""


@step("when-async/v1", when=large_async)  # E
async def when_async(inv: Inv) -> Hold:
    return Hold("h")


@step("when-foreign/v1", when=large_foreign)  # E
async def when_foreign(inv: Inv) -> Hold:
    return Hold("h")


@step("when-text/v1", when=large_text)  # E
async def when_text(inv: Inv) -> Hold:
    return Hold("h")


@step("when-value/v1", when=True)  # E
async def when_value(inv: Inv) -> Hold:
    return Hold("h")


@step("when-lambda/v1", when=lambda inv: inv.input.invoice_id == "7")  # E: pyright
async def when_lambda(inv: Inv) -> Hold:
    return Hold("h")


# --- polls


@poll("polled/v1")
async def polled(inv: Inv) -> Hold | Later:
    return Later(1)


@poll("poll-wrong/v1")
async def poll_wrong(inv: Inv) -> Hold | Later:
    return Transfer("t")  # E


@poll("poll-text/v1")
async def poll_text(inv: Inv) -> Hold | Later:
    return Later("5 minutes")  # E


@poll("poll-class/v1")
async def poll_class(inv: Inv) -> Hold | Later:
    return Later  # E


@poll("poll-unwind/v1", unwind=release)  # E
async def poll_unwind(inv: Inv) -> Transfer | Later:
    return Later(1)


@poll("poll-every/v1", every=5)  # E
async def poll_every(inv: Inv) -> Hold | Later:
    return Later(1)


@poll("poll-input/v1")  # E
async def poll_input(inv: PayoutInput) -> Hold | Later:
    return Later(1)


@step("poll-read/v1", needs=(polled,))
async def poll_read(inv: Inv) -> None:
    inv[polled].delay_us  # E
    wrong: Later = inv[polled]  # E
    assert_type(wrong, Later)


async def poll_alone(inv: Inv) -> Hold:
    return await polled(inv)  # E


# --- sleeps


Sleep("nap/v1", "5 minutes")  # E
Sleep("nap/v1")  # E
Sleep(timedelta(minutes=5))  # E
Sleep("nap/v1", 5, unwind=release)  # E
Sleep("nap/v1", 5, when=True)  # E
foreign_nap: Pipeline[OtherInput, Deps, None] = Pipeline(  # E
    id="p", input=OtherInput, deps=Deps, steps=(Sleep("nap/v1", 5, when=large),), output=nothing
)


# --- branches


class Route(Enum):
    FAST = "fast"
    SLOW = "slow"


class Other(Enum):
    FAST = "fast"


async def choose(inv: Inv) -> Route:
    return Route.FAST


async def choose_text(inv: Inv) -> str:
    return "fast"


Branch("b/v1", decide=choose, arms={Other.FAST: (reserve,)})  # E
Branch("b/v1", decide=choose, arms={Route.FAST: (foreign,)})  # E
Branch("b/v1", decide=choose, arms={Route.FAST: reserve})  # E
Branch("b/v1", decide=choose, arms={"fast": (reserve,)})  # E
Branch("b/v1", decide=choose, arms={Route.FAST: (release,)})  # E
Branch("b/v1", decide=choose_text, arms={"fast": (reserve,)})  # E
Branch("b/v1", decide=choose, arms={}, unwind=release)  # E
Branch("b/v1", arms={Route.FAST: (reserve,)})  # E
branch = Branch("b/v1", decide=choose, arms={Route.FAST: (reserve,), Route.SLOW: ()})


@step("reads-branch/v1", needs=(branch,))
async def reads_branch(inv: Inv) -> str:
    wrong: Other = inv[branch]  # E
    assert_type(wrong, Other)
    return inv[branch].hold_id  # E


foreign_branch: Pipeline[OtherInput, Deps, None] = Pipeline(  # E
    id="p", input=OtherInput, deps=Deps, steps=(branch,), output=nothing
)


# --- reading states


@step("reads/v1", needs=(reserve, send))
async def reads(inv: Inv) -> None:
    inv[foreign]  # E
    inv["reserve/v1"]  # E
    inv[release]  # E
    inv[reserve].transfer_id  # E
    inv.get(reserve).hold_id  # E
    inv.get(reserve, 0).hold_id  # E
    inv[needs_queue]  # E
    wrong: Transfer = inv[reserve]  # E
    inv[reserve] = Hold("h")  # E
    await inv.memo("number")  # E
    await inv.memo(7, lambda: 3, type=int)  # E
    text: str = await inv.memo("count", lambda: 3, type=int)  # E
    await inv.tx()  # E
    await inv.tx("psycopg")  # E
    number: int = await inv.tx(str)  # E
    inv.forward_key  # E
    inv.failure  # E
    await reserve  # E
    assert_type((wrong, text, number), tuple[Transfer, str, int])


# --- pipelines


annotated_foreign: Pipeline[PayoutInput, Deps, Hold] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(reserve, foreign), output=lambda inv: inv[reserve]
)

inferred_foreign = Pipeline(id="p", input=PayoutInput, deps=Deps, steps=(foreign,), output=nothing)  # E

subscripted_foreign = Pipeline[PayoutInput, Deps, None](  # E
    id="p", input=PayoutInput, deps=Deps, steps=[reserve, foreign], output=nothing
)

wrong_dependencies: Pipeline[PayoutInput, Deps, Hold] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(needs_queue,), output=lambda inv: inv[needs_queue]
)

wrong_output: Pipeline[PayoutInput, Deps, Transfer] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(reserve,), output=lambda inv: inv[reserve]
)

foreign_output: Pipeline[PayoutInput, Deps, Hold] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(reserve,), output=lambda inv: inv[foreign]
)

no_output = Pipeline(id="p", input=PayoutInput, deps=Deps, steps=(reserve,))  # E
Pipeline(id="p", input=PayoutInput, deps=Deps, steps=(reserve,), output=nothing, mutexes=(reserve,))  # E
Pipeline(id="p", input=PayoutInput, deps=Deps, steps=(reserve,), output=nothing, mutexes=("account",))

undecorated: Pipeline[PayoutInput, Deps, None] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(large,), output=nothing
)

one_step: Pipeline[PayoutInput, Deps, None] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(reserve), output=nothing
)

wrong_resource: Pipeline[PayoutInput, Deps, None] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(reserve,), output=nothing, resource=lambda i: i.name
)

number_resource: Pipeline[PayoutInput, Deps, None] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(reserve,), output=nothing, resource=lambda i: 7
)

wrong_slot: Pipeline[PayoutInput, Deps, None] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(reserve,), output=nothing, slot="twice"
)

input_value: Pipeline[PayoutInput, Deps, None] = Pipeline(  # E
    id="p", input=PayoutInput("7"), deps=Deps, steps=(reserve,), output=nothing
)


def failed_foreign(inv: FailedInvocation[OtherInput, Deps]) -> str:
    return ""


wrong_failure_output: Pipeline[PayoutInput, Deps, None] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(reserve,), output=nothing, failure_output=failed_foreign
)


# --- a shared step that asks for more than the pipeline has


class HasCurrency(Protocol):
    @property
    def currency(self) -> str: ...


@step("currency/v1")
async def currency(inv: Invocation[HasCurrency, object]) -> str:
    return inv.input.currency


asks_too_much: Pipeline[PayoutInput, Deps, None] = Pipeline(  # E
    id="p", input=PayoutInput, deps=Deps, steps=(currency,), output=nothing
)


# --- items and turns


One = ItemInvocation[PayoutInput, Deps, int]


def numbers(inv: Inv) -> list[int]:
    return [1]


def texts(inv: Inv) -> list[str]:
    return [""]


def other_numbers(inv: Invocation[OtherInput, Deps]) -> list[int]:
    return [1]


async def one(inv: One) -> Transfer:
    inv.item.upper()  # E
    inv.index.upper()  # E
    return Transfer("t")


async def other_deps(inv: ItemInvocation[PayoutInput, OtherDeps, int]) -> Transfer:
    return Transfer("t")


async def take_one(inv: Undo, made: Transfer) -> None: ...


async def take_all(inv: Undo, made: list[Transfer]) -> None: ...


def number(inv: Inv) -> int:
    return 1


def text(inv: Inv) -> str:
    return ""


async def turn(inv: One) -> More[int] | Done[str]:
    return Done("")


async def turn_of_text(inv: One) -> More[str] | Done[str]:
    return Done("")


async def no_turn(inv: One) -> int:
    return 1


ForEach("x/v1", items=texts, handler=one)  # E
ForEach("x/v1", items=other_numbers, handler=one)  # E: pyright
ForEach("x/v1", items=[1, 2], handler=one)  # E
ForEach("x/v1", items=number, handler=one)  # E
ForEach("x/v1", items=numbers, handler=other_deps)  # E: pyright
ForEach("x/v1", items=numbers, handler=numbers, collect="yes")  # E
ForEach("x/v1", items=numbers, handler=one, unwind=take_one)  # E
ForEach("x/v1", items=numbers, handler=one, unwind=take_all, collect=True)  # E
ForEach("x/v1", items=numbers, handler=one, concurrency="3")  # E
ForEach("x/v1", items=numbers)  # E
Loop("x/v1", first=text, turn=turn)  # E
Loop("x/v1", first=number, turn=turn_of_text)  # E
Loop("x/v1", first=number, turn=no_turn)  # E
Loop("x/v1", first=number, turn=turn, max="3")  # E

each = ForEach("each/v1", items=numbers, handler=one)
collected = ForEach("collected/v1", items=numbers, handler=one, collect=True)
looped = Loop("looped/v1", first=number, turn=turn)


@step("reads-items/v1", needs=(each, collected, looped))
async def reads_items(inv: Inv, undo: Undo) -> None:  # E: mypy
    inv[each].transfer_id  # E
    inv[collected][0].transfer_id  # E
    inv[looped].bit_length()  # E
    each.reports(inv)  # E
    each.reports(undo)[0].item.upper()  # E
    each.reports(undo)[0].value.transfer_id  # E


items: Pipeline[PayoutInput, Deps, None] = Pipeline(
    id="items", input=PayoutInput, deps=Deps, steps=(each, collected, looped), output=nothing
)
mixed = ForEach("x/v1", items=other_numbers, handler=one)  # E: pyright
Pipeline(id="items", input=PayoutInput, deps=Deps, steps=(mixed,), output=nothing)  # E: mypy
items.fake_item(each, item="text", input=PayoutInput("7"), deps=Deps())  # E
items.fake_item(each, item=1, input=OtherInput("7"), deps=Deps())  # E
items.fake_item(reserve, item=1, input=PayoutInput("7"), deps=Deps())  # E


# --- binding, running alone, results


@asynccontextmanager
async def open_other() -> AsyncGenerator[OtherDeps]:
    yield OtherDeps()


async def open_plain() -> Deps:
    return Deps()


payout.bind(open_other)  # E
payout.bind(open_plain)  # E
payout.bind(Deps())  # E
payout.bind()  # E
submit(payout, OtherInput("7"))  # E
submit(payout, "7")  # E
payout.fake(input=OtherInput("7"), deps=Deps())  # E
payout.fake(input=PayoutInput("7"), deps=OtherDeps())  # E
payout.fake(input=PayoutInput("7"), deps=Deps(), states=(foreign.given(Hold("h")),))  # E
reserve.given(Transfer("t"))  # E
payout.fake_unwind(foreign, input=PayoutInput("7"), deps=Deps())  # E


async def results(fake: Inv, other: Invocation[OtherInput, Deps]) -> None:
    transfer: Transfer = await reserve(fake)  # E
    await reserve(other)  # E
    reserve(fake).hold_id  # E
    result = submit(payout, PayoutInput("7"))
    result.output.transfer_id  # E
    if isinstance(result, Succeeded):
        result.output.hold_id  # E
        result.failure  # E
    else:
        result.output.hold_id  # E
        number: int = result.output_as(str)  # E
        assert_type((transfer, number), tuple[Transfer, int])


# --- messages, other runs, child runs


told = AwaitMessage("told/v1", name="hold", type=Hold)


def other_condition(inv: Invocation[OtherInput, Deps]) -> bool:
    return True


def run_numbers(inv: Inv) -> list[int]:
    return [1]


def other_input(inv: Inv) -> OtherInput:
    return OtherInput("x")


def undo_hold(inv: UnwindInvocation[PayoutInput, Deps], made: Hold) -> None: ...


AwaitMessage("w/v1", name="n")  # E
AwaitMessage("w/v1", type=Hold)  # E
AwaitMessage("w/v1", name=7, type=Hold)  # E
AwaitMessage("w/v1", name="n", type=Hold, timeout="5")  # E
AwaitMessage("w/v1", name="n", type=Hold, on_cancel="leave")  # E
AwaitRuns("r/v1", runs=run_numbers)  # E
AwaitRuns("r/v1", runs=["a"])  # E
Child("c/v1", pipeline=payout, input=other_input)  # E
Child("c/v1", pipeline=payout, input=lambda inv: inv.input, on_cancel="never")  # E
ForEachRun("f/v1", pipeline=payout, inputs=other_input)  # E


@step("reads-told/v1", needs=(told,))
async def reads_told(inv: Inv) -> None:
    inv[told].transfer_id  # E
    text: str = inv[told]  # E
    assert_type(text, str)


async def tell(run: Run[Hold]) -> None:
    await run.send()  # E
    await run.send("hold", Hold("h"), "k")  # E
    await run.send("hold", Hold("h"), key=7)  # E


# --- schedules


def day_of(tick: datetime) -> PayoutInput:
    return PayoutInput(tick.isoformat())


def other_of(tick: datetime) -> OtherInput:
    return OtherInput(tick.isoformat())


def of_text(tick: str) -> PayoutInput:
    return PayoutInput(tick)


async def soon(tick: datetime) -> PayoutInput:
    return PayoutInput(tick.isoformat())


Schedule("daily", payout, input=OtherInput("7"), cron="@daily")  # E
Schedule("daily", payout, input="7", cron="@daily")  # E
Schedule("daily", payout, input=other_of, cron="@daily")  # E
Schedule("daily", payout, input=of_text, cron="@daily")  # E
Schedule("daily", payout, input=soon, cron="@daily")  # E
Schedule("daily", payout, cron="@daily")  # E
Schedule("daily", reserve, input=day_of, cron="@daily")  # E
Schedule("daily", payout, input=day_of, cron="@daily", missed="some")  # E
Schedule("daily", payout, input=day_of, cron="@daily", on_busy="wait")  # E
Schedule("daily", payout, input=day_of, cron="@daily", resource=day_of)  # E
Schedule("daily", payout, input=day_of, every="1h")  # E
