"""A branch is laid out as steps, and refused when it could not work [E-12]."""

from __future__ import annotations

from enum import Enum, Flag
from typing import Any

import pytest

from perdure import Branch, Later, optional, poll, retired, step
from perdure.core.topology import StepSpec
from perdure.define.locking import candidate_of
from perdure.errors import DefinitionError
from tests.define.sample import Hold, Inv, build, is_large, release

make: Any = Branch


class Risk(Enum):
    LOW = "low"
    HIGH = "high"
    NONE = "low"  # noqa: PIE796  # an alias is no member of its own


async def assess(inv: Inv) -> Risk:
    """How risky it is."""
    return Risk.HIGH


@step("ask/v1", unwind=release)
async def ask(inv: Inv) -> Hold:
    return Hold("h")


@step("decide/v1", needs=(ask,), when=is_large)
async def decide(inv: Inv) -> str:
    return inv[ask].hold_id


@step("note/v1")
async def note(inv: Inv) -> None: ...


def branch(**options: Any) -> Branch[Any, Any, Risk]:
    made: Branch[Any, Any, Risk] = make(
        "risk/v1", **({"decide": assess, "arms": {Risk.LOW: (note,), Risk.HIGH: (ask, decide)}} | options)
    )
    return made


def test_it_stands_for_its_decision_and_the_steps_of_its_arms() -> None:
    pipeline = build((branch(),))
    assert pipeline.topology.steps == (
        StepSpec("risk/v1"),
        StepSpec("note/v1", conditional=True),
        StepSpec("ask/v1", unwind=True, conditional=True),
        StepSpec("decide/v1", conditional=True),
    )
    made = pipeline.steps["risk/v1"]
    assert (made.doc, made.codec.type) == ("How risky it is.", Risk)
    assert made.codec.decode(made.codec.encode(Risk.HIGH)) is Risk.HIGH
    assert pipeline.steps["decide/v1"].own_when is is_large
    assert (ask.when, ask.spec.conditional, ask.needs) == (None, False, {})  # the author's values stay as they are


def test_a_condition_of_the_branch_is_that_of_its_decision() -> None:
    assert build((branch(when=is_large),)).topology.steps[0] == StepSpec("risk/v1", conditional=True)


def test_it_may_be_retired_and_so_may_steps_in_arms() -> None:
    steps = build((retired(branch(arms={Risk.LOW: (retired(note),), Risk.HIGH: (ask,)})),)).topology.steps
    assert [spec.retired for spec in steps] == [True, True, False]


def test_branches_stand_in_arms_of_branches() -> None:
    inner: Any = make("inner/v1", decide=assess, arms={Risk.LOW: (ask,), Risk.HIGH: ()})

    @step("inside/v1", needs=(inner,))
    async def inside(inv: Inv) -> str:
        return str(inv[inner])

    pipeline = build((branch(arms={Risk.LOW: (inner, inside), Risk.HIGH: (note,)}),))
    assert list(pipeline.steps) == ["risk/v1", "inner/v1", "ask/v1", "inside/v1", "note/v1"]
    assert pipeline.steps["ask/v1"].arm == (("risk/v1", "LOW"), ("inner/v1", "LOW"))


def test_check_knows_that_arms_can_do_without_the_decision() -> None:
    """M-14, D-6."""
    reads = candidate_of(build((branch(),))).reads["decide/v1"]
    assert (reads.needs, reads.optional) == (("ask/v1",), ("risk/v1",))


def test_from_outside_an_arm_a_need_on_its_steps_is_optional() -> None:
    """M-14: whoever reads it must live without it."""

    @step("outside/v1", needs=(ask,))
    async def outside(inv: Inv) -> None: ...

    @step("other-arm/v1", needs=(ask,))
    async def other_arm(inv: Inv) -> None: ...

    @step("same-arm/v1", needs=(decide,))
    async def same_arm(inv: Inv) -> None: ...

    @step("tolerant/v1", needs=(optional(ask),))
    async def tolerant(inv: Inv) -> None: ...

    for wrong in (
        (branch(), outside),
        (branch(arms={Risk.HIGH: (ask,), Risk.LOW: (other_arm,)}),),
        (branch(arms={Risk.HIGH: (ask, decide, same_arm), Risk.LOW: ()}),),  # `decide` has a condition of its own
    ):
        with pytest.raises(DefinitionError, match="is conditional: write needs="):
            build(wrong)
    build((branch(), tolerant))


def test_the_decision_is_always_there_in_its_arms() -> None:
    conditional: Any = branch(when=is_large, arms={Risk.LOW: (), Risk.HIGH: ()})

    @step("inside/v1", needs=(conditional,))
    async def inside(inv: Inv) -> str:
        return str(inv[conditional])

    with pytest.raises(DefinitionError, match="is conditional"):
        build((conditional, inside))
    conditional.arms = {Risk.LOW: (inside,), Risk.HIGH: ()}
    assert "inside/v1" in build((conditional,)).steps


def test_an_id_stands_once_in_all_arms() -> None:
    with pytest.raises(DefinitionError, match="step 'note/v1' stands in it twice"):
        build((branch(arms={Risk.LOW: (note,), Risk.HIGH: (note,)}),))


def test_every_member_needs_an_arm() -> None:
    with pytest.raises(DefinitionError, match=r"branch 'risk/v1': no arm for Risk\.HIGH; write \(\)"):
        build((branch(arms={Risk.LOW: (note,)}),))


class Other(Enum):
    LOW = "low"


class Bits(Flag):
    A = 1
    B = 2


async def text(inv: Inv) -> str:
    return "low"


async def maybe(inv: Inv) -> Risk | None:
    return None


async def bits(inv: Inv) -> Bits:
    return Bits.A


async def later(inv: Inv) -> Risk | Later:
    return Risk.LOW


@pytest.mark.parametrize("wrong", [text, maybe, bits, later])
def test_a_decision_is_a_member_of_a_plain_enum(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="must be annotated to return a plain Enum"):
        build((branch(decide=wrong),))


def no_arguments() -> Risk:
    return Risk.LOW


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"arms": {}}, "arms must be a mapping"),
    ({"arms": [note]}, "arms must be a mapping"),
    ({"arms": {"low": (note,)}}, "is not a member of an Enum"),
    ({"arms": {Risk.LOW: note}}, "a tuple of one ends in a comma"),
    ({"arms": {Risk.LOW: (assess,)}}, "arm LOW must hold steps"),
    ({"decide": note}, "decide is a step already"),
    ({"decide": no_arguments}, r"must take \(inv\)"),
    ({"when": 7}, "expected a function"),
    ({"needs": note}, "needs must be a tuple"),
]


@pytest.mark.parametrize(("options", "problem"), WRONG)
def test_what_cannot_be_a_branch(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        branch(**options)


def test_an_arm_of_a_stranger_is_refused() -> None:
    arms = {Risk.LOW: (), Risk.HIGH: (), Other.LOW: (note,)}
    with pytest.raises(DefinitionError, match=r"arm <Other.LOW: 'low'> is not a member of Risk"):
        build((branch(arms=arms),))


def test_a_poll_may_stand_in_an_arm() -> None:
    @poll("polled/v1")
    async def polled(inv: Inv) -> int | Later:
        return 1

    assert build((branch(arms={Risk.LOW: (polled,), Risk.HIGH: ()}),)).steps["polled/v1"].polls
