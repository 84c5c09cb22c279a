"""Every edit of a branch, and what it does to runs before, at and after the decision [E-1..E-9, E-12].

`docs/howto/branch.md` has these rules as a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import pytest

from perdure import Branch, Fail, Invocation, Pipeline, Succeeded, UnwindInvocation, nothing, optional, retired, step
from perdure.testing.evolve import Evolution, Moment, evolve

Inv = Invocation[str, object]
Line = Pipeline[str, object, None]


class Risk(Enum):
    LOW = "low"
    HIGH = "high"


class Wider(Enum):
    """`Risk` with one more member."""

    LOW = "low"
    HIGH = "high"
    EXTREME = "extreme"


class Narrower(Enum):
    """`Risk` without a member that was chosen."""

    LOW = "low"


async def assess(inv: Inv) -> Risk:
    return Risk(inv.input)


async def assess_wider(inv: Inv) -> Wider:
    return Wider.EXTREME


async def assess_narrower(inv: Inv) -> Narrower:
    return Narrower.LOW


async def undo(inv: UnwindInvocation[str, object], state: None) -> None: ...


def plain(id: str, **options: Any) -> Any:
    async def handler(inv: Inv) -> None: ...

    decorate: Any = step
    return decorate(id, **options)(handler)


first, last = plain("first"), plain("last")
mail = plain("mail")
ask, review = plain("ask", unwind=undo), plain("review")
extra, freeze = plain("extra"), plain("freeze")


def line(arms: Mapping[Any, Sequence[Any]], decide: Any = assess, around: Any = None) -> Line:
    made: Any = Branch
    branch: Any = made("risk", decide=decide, arms=arms)
    pipeline: Line = Pipeline(
        id="line",
        input=str,
        deps=object,
        steps=(first, branch if around is None else around(branch), last),
        output=nothing,
    )
    return pipeline


@step("counted")
async def counted(inv: Inv) -> int:
    return 7


OLD = line({Risk.LOW: (mail,), Risk.HIGH: (ask, review)})


def edit(
    new: Line, at: str = "risk", moment: Moment = "before", input: str = "high", **options: Any
) -> Evolution[None]:
    return evolve(OLD, new, at=at, moment=moment, input=input, **options)


def whole(pipeline: Pipeline[str, object, Any], input: str, **options: Any) -> Evolution[Any]:
    """A run from its start to its end under one pipeline."""
    return evolve(pipeline, pipeline, input=input, moment="delayed", **options)


def test_a_run_takes_one_arm_and_skips_the_others() -> None:
    """E-12."""
    high = whole(OLD, input="high")
    assert high.ran() == ("first", "risk", "ask", "review", "last")
    assert high.skipped == ("mail",)
    low = whole(OLD, input="low")
    assert low.ran() == ("first", "risk", "mail", "last")
    assert low.skipped == ("ask", "review")


def test_only_the_arm_that_was_taken_unwinds() -> None:
    """U-2: what was skipped had no effect."""
    story = whole(OLD, input="low", results={"last": Fail("no")})
    assert story.unwound == ()
    story = whole(OLD, input="high", results={"last": Fail("no")})
    assert story.unwound == ("ask",)


def test_a_decision_is_a_fact_whatever_the_new_code_decides() -> None:
    """E-12: a decision once taken is never asked again; one that was not taken is the new code's."""

    async def opposite(inv: Inv) -> Risk:
        return Risk.LOW

    new = line({Risk.LOW: (mail,), Risk.HIGH: (ask, review)}, opposite)
    assert edit(new, "risk", "after").ran("new") == ("ask", "review", "last")
    assert edit(new, "risk", "before").ran("new") == ("risk", "mail", "last")


@pytest.mark.parametrize(
    ("at", "moment", "ran", "passed"),
    [
        ("risk", "before", ("risk", "extra", "ask", "review", "last"), ()),
        ("ask", "before", ("extra", "ask", "review", "last"), ()),
        ("ask", "retrying", ("ask", "review", "last"), ("extra",)),
        ("ask", "after", ("review", "last"), ("extra",)),
        ("last", "before", ("last",), ("extra",)),
    ],
)
def test_a_step_inserted_in_the_arm_runs_where_it_is_ahead(
    at: str, moment: Moment, ran: tuple[str, ...], passed: tuple[str, ...]
) -> None:
    """E-6, E-7."""
    story = edit(line({Risk.LOW: (mail,), Risk.HIGH: (extra, ask, review)}), at, moment)
    assert (story.ran("new"), story.passed) == (ran, passed)


def test_a_step_inserted_in_another_arm_is_skipped() -> None:
    """E-12."""
    story = edit(line({Risk.LOW: (mail,), Risk.HIGH: (ask, extra, review)}), "risk", "after", "low")
    assert story.ran("new") == ("mail", "last")
    assert "extra" in story.skipped


@pytest.mark.parametrize(
    ("moment", "ran", "passed"),
    [
        ("before", ("review", "last"), ("ask",)),
        ("retrying", ("ask", "review", "last"), ()),
        ("after", ("review", "last"), ()),
    ],
)
def test_a_step_retired_in_its_arm(moment: Moment, ran: tuple[str, ...], passed: tuple[str, ...]) -> None:
    """E-9."""
    story = edit(line({Risk.LOW: (mail,), Risk.HIGH: (retired(ask), review)}), "ask", moment)
    assert (story.ran("new"), story.passed) == (ran, passed)


def test_steps_change_places_in_their_arm() -> None:
    """E-8: only what is ahead is reordered."""
    new = line({Risk.LOW: (mail,), Risk.HIGH: (review, ask)})
    assert edit(new, "ask", "before").ran("new") == ("review", "ask", "last")
    assert edit(new, "ask", "after").ran("new") == ("last",)
    assert edit(new, "ask", "retrying").ran("new") == ("ask", "last")


def test_a_step_moved_to_another_arm_takes_the_condition_of_that_arm() -> None:
    """E-12: unless it was started, or skipped, before."""
    new = line({Risk.LOW: (mail, review), Risk.HIGH: (ask,)})
    assert edit(new, "risk", "after", "low").ran("new") == ("mail", "review", "last")
    assert edit(new, "ask", "after").ran("new") == ("last",)
    assert edit(new, "review", "retrying").ran("new") == ("review", "last")


def test_an_arm_with_a_new_member_is_for_runs_that_have_not_decided() -> None:
    """E-12."""
    new = line({Wider.LOW: (mail,), Wider.HIGH: (ask, review), Wider.EXTREME: (freeze,)}, assess_wider)
    assert edit(new, "risk", "before").ran("new") == ("risk", "freeze", "last")
    decided = edit(new, "risk", "after")
    assert decided.ran("new") == ("ask", "review", "last")
    assert "freeze" in decided.skipped


def test_a_member_that_was_chosen_and_is_gone_makes_the_run_invalid() -> None:
    """P-3, D-1: the decision cannot be read; a run that chose another member does not notice."""
    new = line({Narrower.LOW: (mail, ask)}, assess_narrower)
    assert edit(new, "risk", "after", "high").invalid == "payload-unreadable"
    assert edit(new, "risk", "after", "low").succeeded


def test_a_retired_decision_leaves_runs_in_their_arms_and_takes_no_new_ones_there() -> None:
    """E-9: who has not decided never does, and skips every arm."""
    new = line({Risk.LOW: (mail,), Risk.HIGH: (ask, review)}, around=retired)
    assert edit(new, "risk", "after").ran("new") == ("ask", "review", "last")
    asking = edit(new, "risk", "retrying")
    assert asking.ran("new") == ("risk", "ask", "review", "last")
    late = edit(new, "risk", "before")
    assert (late.ran("new"), late.passed) == (("last",), ("risk",))
    assert late.skipped == ("mail", "ask", "review")


def test_a_branch_around_steps_that_runs_are_past() -> None:
    """E-7: they are past the decision, too; steps ahead of them in an arm are skipped, for nothing was decided."""
    old: Line = Pipeline(id="line", input=str, deps=object, steps=(first, ask, review, last), output=nothing)
    assert evolve(old, OLD, input="high", at="ask", moment="before").ran("new") == ("risk", "ask", "review", "last")
    inside = evolve(old, OLD, input="high", at="ask", moment="after")
    assert (inside.ran("new"), inside.passed) == (("last",), ("risk", "mail"))
    assert inside.skipped == ("review",)


def test_a_removed_branch_whose_steps_stay_runs_them_for_everybody_ahead_of_them() -> None:
    """E-6: without a condition they are steps like any others; retire what must not run."""
    new: Line = Pipeline(id="line", input=str, deps=object, steps=(first, mail, ask, review, last), output=nothing)
    assert edit(new, "risk", "before", "low").ran("new") == ("mail", "ask", "review", "last")
    assert edit(new, "mail", "after", "low").ran("new") == ("ask", "review", "last")


def test_a_removed_decision_that_is_unresolved_makes_the_run_invalid() -> None:
    """E-3: retire it first."""
    new: Line = Pipeline(id="line", input=str, deps=object, steps=(first, last), output=nothing)
    assert edit(new, "risk", "retrying").invalid == "step-missing"


def test_readers_behind_the_branch_find_what_the_arm_left() -> None:
    """M-14."""

    @step("report", needs=(optional(counted),))
    async def report(inv: Inv) -> str:
        found = inv.get(counted)
        return str(found)

    branch = Branch("risk", decide=assess, arms={Risk.LOW: (), Risk.HIGH: (counted,)})

    def output(inv: Inv) -> str:
        return f"{inv[branch].name} {inv[report]}"

    pipeline: Pipeline[str, object, str] = Pipeline(
        id="line", input=str, deps=object, steps=(branch, report), output=output
    )
    for input, expected in (("high", "HIGH 7"), ("low", "LOW None")):
        result = whole(pipeline, input).result
        assert isinstance(result, Succeeded)
        assert result.output == expected


def test_a_cancel_before_the_decision_asks_nobody() -> None:
    """E-12, R-12."""
    story = evolve(OLD, OLD, input="high", at="risk", moment="before", canceled=True)
    assert story.ran("new") == ()
    assert story.fate("risk") == "canceled"
