"""What a `Loop` keeps and refuses [B-15, B-23]."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Done, ItemInvocation, Loop, More, UnwindInvocation, retired
from perdure.core.plan import Terms
from perdure.core.topology import StepSpec
from perdure.errors import DefinitionError
from tests.define.sample import Deps, Hold, Inv, PayoutInput, build, reserve

make: Any = Loop

Turn = ItemInvocation[PayoutInput, Deps, int]


def zero(inv: Inv) -> int:
    return 0


async def turn(inv: Turn) -> More[int] | Done[Hold]:
    return More(inv.item + 1) if inv.item < 3 else Done(Hold(f"{inv.index}"))


async def undo(inv: UnwindInvocation[PayoutInput, Deps], hold: Hold) -> None: ...


pages = Loop("pages/v1", first=zero, turn=turn)


def test_its_state_is_what_the_last_turn_is_done_with() -> None:
    assert pages.spec == StepSpec("pages/v1", shape="loop")
    assert pages.terms == Terms(bound=1, most=1000)
    assert pages.codec.decode(pages.codec.encode(Hold("x"))) == Hold("x")
    assert pages.item_codec.encode(3) == b"3"
    assert retired(pages).spec == StepSpec("pages/v1", retired=True, shape="loop")
    assert Loop("pages/v1", first=zero, turn=turn, max=3, unwind=undo).terms == Terms(bound=1, most=3)


def test_how_many_turns_is_no_part_of_the_topology() -> None:
    """D-4"""
    assert build((pages,)).topology.digest == build((Loop("pages/v1", first=zero, turn=turn, max=3),)).topology.digest


def test_a_turn_may_be_done_with_one_of_several_types() -> None:
    async def either(inv: Turn) -> More[int] | Done[Hold] | Done[None]:
        return Done(None)

    found = make("pages/v1", first=zero, turn=either)
    assert found.codec.encode(None) == b"null"
    assert found.codec.decode(found.codec.encode(Hold("x"))) == Hold("x")


def test_more_and_done_may_be_given_their_type() -> None:
    """I-1: as authors do where a type checker infers too little."""
    assert (More[int](1), Done[str | None](None)) == (More(1), Done(None))


def never_done(inv: Turn) -> More[int]:
    return More(1)


def says_nothing(inv: Turn) -> int:
    return 1


def says_more(inv: Turn) -> More[int] | Done[int] | int:
    return 1


def unstorable(inv: Turn) -> Done[Deps]:
    return Done(Deps())


def of_a_step(inv: Inv) -> Done[int]:
    return Done(1)


async def async_first(inv: Inv) -> int:
    return 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max": 0}, "max must be a whole number of at least 1, not 0"),
        ({"max": "3"}, "max must be a whole number"),
        ({"first": 0}, "first: expected a function"),
        ({"first": async_first}, "first: .*async_first"),
        ({"first": reserve}, "first: .*is a step; give a function"),
        ({"turn": 0}, "expected a function"),
        ({"turn": reserve}, "is a step already"),
        ({"turn": lambda: None}, r"must take \(inv\)"),
        ({"on_cancel": 1}, "on_cancel must be"),
        ({"turn": never_done}, r"never_done must be annotated `-> More\[Item\] \| Done\[State\]`"),
        ({"turn": says_nothing}, r"says_nothing must be annotated `-> More\[Item\] \| Done\[State\]`"),
        ({"turn": says_more}, r"says_more must be annotated"),
        ({"turn": unstorable}, "its state of"),
        ({"turn": of_a_step}, r"of_a_step must annotate what it takes, `inv: ItemInvocation"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    """I-1: at the latest when the pipeline is built."""
    with pytest.raises(DefinitionError, match=f"step 'pages/v1'.*{said}"):
        build((make("pages/v1", **({"first": zero, "turn": turn} | options)),))


async def test_a_turn_is_tested_as_the_function_it_is() -> None:
    """I-6"""
    pipeline = build((pages,))
    assert await turn(pipeline.fake_item(pages, item=1, input=PayoutInput("i"), deps=Deps())) == More(2)
    last = pipeline.fake_item(pages, item=3, index=3, input=PayoutInput("i"), deps=Deps())
    assert await turn(last) == Done(Hold("3"))
