"""What a `ForEach` keeps and refuses; running the handler of an item alone [B-10, B-20, D-4, I-6]."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import ForEach, ItemInvocation, Settled, UnwindInvocation, retired, step
from perdure.core.plan import Terms
from perdure.core.retry import Retry
from perdure.core.topology import StepSpec
from perdure.errors import DefinitionError, PayloadError
from tests.define.sample import Deps, Hold, Inv, PayoutInput, build, is_large, reserve

make: Any = ForEach

One = ItemInvocation[PayoutInput, Deps, int]
Undo = UnwindInvocation[PayoutInput, Deps]


def lengths(inv: Inv) -> list[int]:
    return [len(tag) for tag in inv.input.tags]


async def hold_one(inv: One) -> Hold:
    return Hold(f"{inv.index}: {inv.item} for {inv.input.invoice_id} under {inv.idempotency_key}")


def hold_one_sync(inv: One) -> Hold:
    return Hold(str(inv.item))


async def release_all(inv: Undo, holds: list[Hold]) -> None: ...


async def find_all(inv: Undo) -> None: ...


holds = ForEach("holds/v1", items=lengths, handler=hold_one)


def test_its_state_is_a_list_in_the_order_of_the_items() -> None:
    assert holds.spec == StepSpec("holds/v1", shape="each")
    assert (holds.is_async, holds.collect, holds.limit, holds.terms) == (True, False, 10_000, Terms(bound=16))
    assert holds.codec.decode(holds.codec.encode([Hold("x")])) == [Hold("x")]
    assert ForEach("holds/v1", items=lengths, handler=hold_one_sync).is_async is False
    assert retired(holds).spec == StepSpec("holds/v1", retired=True, shape="each")
    assert build((reserve, holds)).topology.ids == ("reserve/v1", "holds/v1")


def test_collected_its_state_says_what_became_of_each() -> None:
    collected = ForEach("holds/v1", items=lengths, handler=hold_one, collect=True)
    state = [Settled(value=Hold("x")), Settled[Hold]()]
    assert collected.codec.decode(collected.codec.encode(state)) == state


def test_how_many_at_once_is_no_part_of_the_topology() -> None:
    """D-4: neither is the code; a list instead of one handler is."""

    @step("holds/v1")
    async def handler(inv: Inv) -> list[Hold]:
        return []

    other = ForEach("holds/v1", items=lengths, handler=hold_one_sync, concurrency=3, collect=True, limit=7)
    assert other.terms == Terms(bound=3, collect=True)
    digest = build((holds,)).topology.digest
    assert build((other,)).topology.digest == digest != build((handler,)).topology.digest


def test_it_takes_what_a_step_takes() -> None:
    policy = Retry(max_attempts=2)
    made = ForEach(
        "full/v1",
        items=lengths,
        handler=hold_one,
        unwind=release_all,
        unwind_in_doubt=find_all,
        when=is_large,
        timeout=5,
        retry=policy,
        needs=(reserve,),
        on_cancel="settle",
    )
    assert (made.unwind, made.unwind_in_doubt, made.retry, made.timeout_s) == (release_all, find_all, policy, 5.0)
    assert made.spec == StepSpec("full/v1", unwind=True, in_doubt=True, settle=True, conditional=True, shape="each")


def no_parameter() -> None: ...


def bare(inv: Any) -> int:
    return 0


def plain(inv: Inv) -> int:
    return 0


def unsaid(inv: One) -> int:
    return 0


del unsaid.__annotations__["return"]


def unstorable(inv: ItemInvocation[PayoutInput, Deps, Deps]) -> int:
    return 0


def makes_unstorable(inv: One) -> Deps:
    return Deps()


async def async_items(inv: Inv) -> list[int]:
    return []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1, not 0"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"concurrency": 1.5}, "concurrency must be a whole number"),
        ({"limit": -1}, "limit must be a whole number of at least 1, not -1"),
        ({"handler": None}, "expected a function"),
        ({"handler": reserve}, r"is a step already; give the function without @step"),
        ({"handler": no_parameter}, r"must take \(inv\)"),
        ({"items": [1, 2]}, "items: expected a function"),
        ({"items": async_items}, "items: .*async_items"),
        ({"items": reserve}, "items: .*is a step; give a function"),
        ({"unwind_in_doubt": find_all}, "unwind_in_doubt needs unwind"),
        ({"timeout": 0}, "timeout must not be zero"),
        ({"retry": 3}, "retry must be a Retry"),
        ({"on_cancel": "leave"}, "on_cancel must be"),
        ({"needs": reserve}, "needs"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    """I-1: with the step in the message."""
    with pytest.raises(DefinitionError, match=f"step 'holds/v1'.*{said}"):
        make("holds/v1", **({"items": lengths, "handler": hold_one} | options))


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (bare, r"bare must annotate what it takes, `inv: ItemInvocation\[Input, Deps, Item\]`"),
        (plain, r"plain must annotate what it takes, `inv: ItemInvocation\[Input, Deps, Item\]`"),
        (unsaid, "unsaid has no return annotation"),
        (unstorable, "its items of"),
        (makes_unstorable, "its outputs of"),
    ],
)
def test_types_that_cannot_be_stored_are_refused_when_the_pipeline_is_built(handler: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=f"step 'holds/v1'.*{said}"):
        build((make("holds/v1", items=lengths, handler=handler),))


# --- running a handler alone


async def test_the_handler_of_an_item_is_tested_as_the_function_it_is() -> None:
    """I-6"""
    pipeline = build((holds,))
    inv = pipeline.fake_item(holds, item=7, index=3, input=PayoutInput("i"), deps=Deps(), run_id="r")
    assert await hold_one(inv) == Hold("3: 7 for i under r/item/3/holds/v1")
    assert (inv.attempt, inv.canceled) == (1, False)
    assert pipeline.fake_item(holds, item=7, attempt=2, input=PayoutInput("i"), deps=Deps()).attempt == 2


async def test_a_fake_item_reads_needs_and_keeps_memos() -> None:
    """I-6, M-14"""

    async def reads(inv: One) -> str:
        async def make() -> str:
            return inv[reserve].hold_id

        return await inv.memo("made", make) + await inv.memo("made", make)

    found = ForEach("reads/v1", items=lengths, handler=reads, needs=(reserve,))
    pipeline = build((reserve, found))
    states = (reserve.given(Hold("h")),)
    assert await reads(pipeline.fake_item(found, item=1, input=PayoutInput("i"), deps=Deps(), states=states)) == "hh"
    undeclared = ForEach("reads/v1", items=lengths, handler=reads)
    other = build((reserve, undeclared))
    inv = other.fake_item(undeclared, item=1, input=PayoutInput("i"), deps=Deps(), states=states)
    with pytest.raises(BaseException, match="is not in its needs"):
        await reads(inv)


def test_a_fake_item_is_of_a_step_of_items_in_the_pipeline() -> None:
    pipeline: Any = build((reserve,))
    for wrong in (holds, reserve):
        with pytest.raises(DefinitionError, match="is not a ForEach or Loop of pipeline"):
            pipeline.fake_item(wrong, item=1, input=PayoutInput("i"), deps=Deps())
    whole: Any = build((holds,))
    with pytest.raises(PayloadError):
        whole.fake_item(holds, item="text", input=PayoutInput("i"), deps=Deps())
