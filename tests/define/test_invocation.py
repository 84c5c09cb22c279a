"""What a handler sees, and what it must not do."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Invocation, PureInvocation, UnwindInvocation, optional, retired, step
from perdure.core.facts import Failure, RunFailed
from perdure.define.fake import FakeRun
from perdure.define.invocation import FailedInvocation
from perdure.define.signals import (
    BrokenContract,
    ImpureFunction,
    MissingState,
    StepCalled,
    UndeclaredNeed,
    UnreadablePayload,
    UnusableMemo,
)
from perdure.define.step import AnyStep, Given
from perdure.errors import DefinitionError
from tests.define.sample import (
    Deps,
    Hold,
    Inv,
    PayoutInput,
    Transfer,
    annotate,
    approve,
    build,
    decorated,
    payout,
    reserve,
    send,
    stripped,
)


def run_of(*states: Given[Any, Any], input: PayoutInput | None = None, failure: Failure | None = None) -> FakeRun:
    return FakeRun(payout, input or PayoutInput("7"), Deps(), states, run_id="r1", failure=failure)


def invocation(step: AnyStep[Any, Any], *states: Given[Any, Any]) -> Invocation[Any, Any]:
    """As the engine makes it."""
    return Invocation(run_of(*states), step, 3)


# --- what it says


def test_an_attempt_knows_where_it_belongs() -> None:
    inv = invocation(send)
    assert (inv.run_id, inv.pipeline_id, inv.step_id, inv.tenant, inv.resource) == (
        "r1",
        "payout",
        "send/v1",
        "default",
        "r1",
    )
    assert (inv.attempt, inv.phase, inv.canceled) == (3, "forward", False)


def test_keys_are_equal_for_all_attempts_and_distinct_otherwise() -> None:  # M-3
    run = run_of(failure=Failure("send/v1", "x"))
    odd = "do/send/v1"  # a step id that tries to look like a phase
    keys = [
        Invocation(run, send, 1).idempotency_key,
        Invocation(run, send, 2).idempotency_key,
        Invocation(run, reserve, 1).idempotency_key,
        UnwindInvocation(run, send, 1).idempotency_key,
        UnwindInvocation(run, reserve, 1).idempotency_key,
        Invocation(run, decorated(odd)(reserve.handler), 1).idempotency_key,
        UnwindInvocation(run, decorated(odd)(reserve.handler), 1).idempotency_key,
    ]
    assert keys[0] == keys[1] == "r1/do/send/v1"
    assert len(set(keys)) == len(keys) - 1
    assert UnwindInvocation(run, send, 9).forward_key == keys[0]


def test_input_is_the_handlers_own() -> None:  # M-7
    run = run_of()
    first, second = Invocation[PayoutInput, Deps](run, send, 1), Invocation[PayoutInput, Deps](run, send, 2)
    first.input.tags.append("changed")
    assert first.input.tags == ["changed"]
    assert second.input.tags == []


def test_states_are_the_handlers_own() -> None:  # M-7
    @decorated("list/v1")
    def numbers(inv: Inv) -> list[int]:
        return [1]

    @decorated("reads/v1", needs=(numbers,))
    def reads(inv: Inv) -> None: ...

    pipeline = build((numbers, reads))
    run = FakeRun(pipeline, PayoutInput("7"), Deps(), (numbers.given([1]),))
    first, second = Invocation[Any, Any](run, reads, 1), Invocation[Any, Any](run, reads, 1)
    first[numbers].append(2)
    assert first[numbers] == [1, 2]
    assert second[numbers] == [1]


def test_an_unwind_handler_sees_why() -> None:  # U-10
    failure = Failure("send/v1", "refused")
    run = run_of(reserve.given(Hold("h")), failure=failure)
    run.unwind_failures = (Failure("annotate/v1", "cannot"),)
    inv: UnwindInvocation[PayoutInput, Deps] = UnwindInvocation(run, send, 1)
    assert (inv.failure, inv.unwind_failures, inv.phase) == (failure, run.unwind_failures, "unwind")
    assert inv[reserve] == Hold("h")


def test_an_unwind_handler_may_read_its_own_state() -> None:  # U-10
    inv: UnwindInvocation[PayoutInput, Deps] = UnwindInvocation(run_of(reserve.given(Hold("h"))), reserve, 1)
    assert inv[reserve] == Hold("h")


def test_a_failure_output_sees_the_end() -> None:  # M-13
    end = RunFailed(Failure("send/v1", "x"), (Failure("reserve/v1", "y"),), ("a",), ("b",), ("c",), ("d",))
    inv: FailedInvocation[PayoutInput, Deps] = FailedInvocation(run_of(reserve.given(Hold("h"))), end)
    assert (inv.failure.message, inv.unwind_failures[0].message) == ("x", "y")
    assert (inv.in_doubt, inv.half_unwound, inv.uncompensated, inv.unavailable) == (("a",), ("b",), ("c",), ("d",))
    assert inv[reserve] == Hold("h")
    assert inv.get(approve) is None


# --- needs


def test_needs_are_read_by_the_step() -> None:  # M-14
    inv = invocation(send, reserve.given(Hold("h")), approve.given("ada"), annotate.given("n"))
    assert inv[reserve] == Hold("h")
    assert inv.get(approve) == "ada"
    assert inv.get(approve, "nobody") == "ada"
    assert inv[annotate] == "n"


def test_an_absent_state_is_a_default_or_a_substitute() -> None:  # M-14
    inv = invocation(send)
    assert inv.get(approve) is None
    assert inv.get(approve, "nobody") == "nobody"
    assert inv[annotate] == "nobody asked about 7"
    assert inv.get(annotate) is None


def test_a_none_that_was_committed_is_no_absence() -> None:  # M-4
    @decorated("maybe/v1")
    async def maybe(inv: Inv) -> Hold | None: ...

    @decorated("reads/v1", needs=(maybe,))
    async def reads(inv: Inv) -> None: ...

    pipeline = build((maybe, reads))
    committed = FakeRun(pipeline, PayoutInput("7"), Deps(), (maybe.given(None),))
    assert Invocation[Any, Any](committed, reads, 1).get(maybe, "default") is None
    absent = FakeRun(pipeline, PayoutInput("7"), Deps(), ())
    assert Invocation[Any, Any](absent, reads, 1).get(maybe, "default") == "default"


def test_a_retired_step_is_read_by_either_value() -> None:
    pipeline = build((retired(reserve), approve, annotate, send))
    run = FakeRun(pipeline, PayoutInput("7"), Deps(), (reserve.given(Hold("h")),))
    assert Invocation[PayoutInput, Deps](run, send, 1)[retired(reserve)] == Hold("h")
    assert PureInvocation[PayoutInput, Deps](run, None)[reserve] == Hold("h")


@step("reserve/v1")
async def another_reserve(inv: Inv) -> Hold:
    return Hold("other")


@step("stranger/v1")
async def stranger(inv: Inv) -> Hold:
    return Hold("other")


BREACHES: list[tuple[Callable[[], Invocation[Any, Any]], Callable[[Any], object], type[BrokenContract], str]] = [
    (
        lambda: invocation(send),
        lambda inv: inv[reserve],
        MissingState,
        "step 'send/v1' reads the state of step 'reserve/v1'",
    ),
    (lambda: invocation(reserve), lambda inv: inv[annotate], UndeclaredNeed, "is not in its needs"),
    (lambda: invocation(reserve), lambda inv: inv.get(annotate), UndeclaredNeed, "is not in its needs"),
    (lambda: invocation(send), lambda inv: inv[another_reserve], UndeclaredNeed, "is not in its needs"),
    (lambda: invocation(send, approve.given("a")), lambda inv: inv[approve], UndeclaredNeed, "read it with `inv.get"),
    (lambda: PureInvocation(run_of(), None), lambda inv: inv[stranger], UndeclaredNeed, "not in pipeline 'payout'"),
    (lambda: PureInvocation(run_of(), None), lambda inv: inv[another_reserve], UndeclaredNeed, "not in pipeline"),
    (lambda: PureInvocation(run_of(), None), lambda inv: inv[reserve], MissingState, "a function of pipeline 'payout'"),
    (lambda: PureInvocation(run_of(), send), lambda inv: inv.deps, ImpureFunction, "`inv.deps` is for handlers"),
    (lambda: PureInvocation(run_of(), None), lambda inv: inv.idempotency_key, ImpureFunction, "idempotency_key"),
    (lambda: PureInvocation(run_of(), None), lambda inv: inv.memo("a", list), ImpureFunction, "memo"),
    (lambda: invocation(send), reserve, StepCalled, "step 'send/v1' calls step 'reserve/v1'"),
    (lambda: invocation(send), annotate, StepCalled, "list it under `needs`"),
]


@pytest.mark.parametrize(("inv", "act", "kind", "message"), BREACHES, ids=map(str, range(len(BREACHES))))
def test_a_breach_of_contract_is_raised_and_remembered(
    inv: Callable[[], Invocation[Any, Any]], act: Callable[[Any], object], kind: type[BrokenContract], message: str
) -> None:  # M-14, D-1
    made = inv()
    assert not made.broken
    with pytest.raises(kind, match=message.replace("(", r"\(")) as caught:
        act(made)
    assert made.broken is caught.value
    with pytest.raises(BrokenContract):
        act(made)
    assert made.broken is caught.value  # the first one stays


READS: list[Callable[[Any], object]] = [lambda inv: inv.input, lambda inv: inv[reserve]]


@pytest.mark.parametrize("act", READS, ids=["input", "state"])
def test_what_cannot_be_read_any_more_is_a_breach(act: Callable[[Any], object]) -> None:  # P-3
    class Changed(FakeRun):
        def input_bytes(self) -> bytes:
            return b'{"invoice_id":7}'

        def state_bytes(self, step_id: str, /) -> bytes:
            return b'{"hold_id":7}'

    inv: Invocation[Any, Any] = Invocation(Changed(payout, PayoutInput("7"), Deps(), ()), send, 1)
    with pytest.raises(UnreadablePayload, match=r"cannot be read: \$\.(invoice|hold)_id: Expected `str`, got `int`"):
        act(inv)
    assert inv.broken is not None
    assert inv.broken.reason == "payload-unreadable"


# --- memos


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    async def ask(self) -> Hold:
        self.calls += 1
        return Hold(str(self.calls))

    def number(self) -> int:
        self.calls += 1
        return self.calls


async def test_a_memo_is_made_once_and_given_to_later_attempts() -> None:  # M-15
    run, counter = run_of(), Counter()
    first = Invocation[PayoutInput, Deps](run, send, 1)
    assert await first.memo("asked", counter.ask) == Hold("1")
    assert await first.memo("asked", counter.ask) == Hold("1")
    assert await Invocation[PayoutInput, Deps](run, send, 2).memo("asked", counter.ask) == Hold("1")
    assert await first.memo("other", counter.number) == 2
    assert await Invocation[PayoutInput, Deps](run, reserve, 1).memo("asked", counter.ask) == Hold("3")


async def test_unwind_sees_forward_memos_and_keeps_its_own() -> None:  # M-15, U-10
    run, counter = run_of(failure=Failure("send/v1", "x")), Counter()
    assert await Invocation[PayoutInput, Deps](run, send, 1).memo("asked", counter.number) == 1
    undo = UnwindInvocation[PayoutInput, Deps](run, send, 1)
    assert await undo.memo("asked", counter.number) == 1
    assert await undo.memo("void", counter.number) == 2
    assert set(run.memos) == {("send/v1", "forward", "asked", None), ("send/v1", "unwind", "void", None)}


async def test_memos_of_one_name_that_run_together_are_one() -> None:  # M-15
    run, started = run_of(), 0
    release = asyncio.Event()

    async def slow() -> int:
        nonlocal started
        started += 1
        await release.wait()
        return started

    inv = Invocation[PayoutInput, Deps](run, send, 1)
    tasks = [asyncio.create_task(inv.memo("slow", slow)) for _ in range(3)]
    await asyncio.wait(tasks, timeout=0)
    release.set()
    assert await asyncio.gather(*tasks) == [1, 1, 1]


async def test_a_memo_that_asks_for_itself_is_a_breach_and_not_a_deadlock() -> None:  # M-15
    inv = invocation(send)

    async def itself() -> int:
        return await inv.memo("number", itself)

    with pytest.raises(UnusableMemo, match="'number' .* itself"):
        await inv.memo("number", itself)
    assert isinstance(inv.broken, UnusableMemo)

    async def through_another() -> int:
        return await inv.memo("other", Counter().number)

    assert await inv.memo("outer", through_another) == 1


async def test_a_memo_belongs_to_the_handler() -> None:  # M-7
    run, made = run_of(), [1]

    def numbers() -> list[int]:
        return made

    inv = Invocation[PayoutInput, Deps](run, send, 1)
    found = await inv.memo("numbers", numbers)
    found.append(2)
    assert await inv.memo("numbers", numbers) == [1]
    assert made == [1]


async def test_a_memo_function_that_raises_records_nothing() -> None:  # M-15
    run = run_of()

    async def broken() -> int:
        raise ValueError("not now")

    inv = Invocation[PayoutInput, Deps](run, send, 1)
    with pytest.raises(ValueError, match="not now"):
        await inv.memo("number", broken)
    assert inv.broken is None
    assert await inv.memo("number", Counter().number) == 1


def test_a_handler_in_a_thread_cannot_remember() -> None:  # M-15
    inv = Invocation[PayoutInput, Deps](run_of(), annotate, 1)
    with pytest.raises(UnusableMemo, match="must be `async def`"):
        inv.memo("number", Counter().number).close()
    assert inv.broken is not None


async def test_the_type_of_a_memo_may_be_given() -> None:  # M-15
    inv = Invocation[PayoutInput, Deps](run_of(), send, 1)
    assert await inv.memo("lambda", lambda: {1, 2}, type=set[int]) == {1, 2}
    assert await inv.memo("partial", functools.partial(Counter.number, Counter())) == 1


@stripped
def unannotated() -> int:
    return 3


def wrong_value() -> int:
    return "3"  # type: ignore[return-value]  # the mistake


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("", Counter().number, "must not be empty"),
        (7, Counter().number, "must be a str"),
        ("a\x00", Counter().number, "NUL"),
        ("a", lambda: 3, "no return annotation; pass `type=`"),
        ("a", unannotated, "unannotated has no return annotation"),
        ("a", wrong_value, "expected int, got str"),
        ("a", 3, "expected a function"),
    ],
    ids=map(str, range(7)),
)
async def test_memos_that_cannot_work_are_a_breach(name: Any, function: Any, message: str) -> None:  # M-15
    inv = Invocation[Any, Any](run_of(), send, 1)
    with pytest.raises(UnusableMemo, match=message):
        await inv.memo(name, function)
    assert isinstance(inv.broken, UnusableMemo)


# --- fakes


async def test_a_handler_runs_without_an_engine() -> None:  # I-6
    fake = payout.fake(
        input=PayoutInput("7"),
        deps=Deps(),
        states=(reserve.given(Hold("h")), approve.given("ada"), annotate.given("n")),
        run_id="r9",
    )
    assert await reserve(fake) == Hold("r9/do/reserve/v1")
    assert send(fake) == Transfer("h ada n")
    assert fake[reserve] == Hold("h")


async def test_an_unwind_handler_runs_without_an_engine() -> None:  # I-6
    deps = Deps()
    undo = payout.fake_unwind(reserve, input=PayoutInput("7"), deps=deps, failure=Failure("send/v1", "no"))
    assert reserve.unwind is not None
    await reserve.unwind(undo, Hold("h"))  # type: ignore[misc]  # erased
    assert deps.calls == ["release h of fake/do/reserve/v1 with fake/undo/reserve/v1"]
    assert undo.failure.message == "no"


@step("reads/v1", needs=(optional(reserve),))
def reads_too_much(inv: Inv) -> str:
    return inv[annotate]


def test_a_fake_holds_a_handler_to_its_needs() -> None:  # M-14
    fake = build((reserve, annotate, reads_too_much)).fake(input=PayoutInput("7"), deps=Deps())
    with pytest.raises(UndeclaredNeed, match=r"step 'reads/v1' reads .* which is not in its needs"):
        reads_too_much(fake)


def test_a_fake_refuses_strangers() -> None:
    with pytest.raises(Exception, match="is not in pipeline 'payout'; its state cannot be given"):
        payout.fake(input=PayoutInput("7"), deps=Deps(), states=(stranger.given(Hold("h")),))
    with pytest.raises(Exception, match="is not in pipeline 'payout'"):
        stranger(payout.fake(input=PayoutInput("7"), deps=Deps())).close()


@pytest.mark.parametrize("states", [(Hold("h"),), {"reserve/v1": Hold("h")}, "text", Hold("h"), None])
def test_a_fake_says_how_a_state_is_given(states: Any) -> None:
    """Handing over the state itself is what everybody tries first."""
    with pytest.raises(DefinitionError, match=r"`step\.given\(state\)`"):
        payout.fake(input=PayoutInput("7"), deps=Deps(), states=states)


def test_states_that_could_not_be_stored_cannot_be_given() -> None:  # P-2
    wrong: Any = "text"
    with pytest.raises(ValueError, match="expected Hold, got str"):
        reserve.given(wrong)


# --- cost


def test_making_an_invocation_reads_nothing() -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was read")

    source: Any = Untouchable()
    inv: Invocation[Any, Any] = Invocation(source, reserve, 1)
    assert not gc.is_tracked(inv.attempt)
    assert not hasattr(inv, "__dict__")
