"""The kit for authors' own tests of edits [I-6]."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from perdure import Fail, Invocation, Later, Pipeline, Retry, Succeeded, UnwindInvocation, poll, retired, step
from perdure.core.operations import InvalidOp, RunOp
from perdure.errors import InvalidArgument, NotFound
from perdure.testing.evolve import Each, Moment, evolve


@dataclass
class Desk:
    """What the handlers leave behind."""

    done: list[str] = field(default_factory=list[str])


Inv = Invocation[str, Desk]


async def take_back(inv: UnwindInvocation[str, Desk], seat: str) -> None:
    inv.deps.done.append(f"-{seat}")


@step("book", unwind=take_back)
async def book(inv: Inv) -> str:
    inv.deps.done.append("book")
    return "seat 4"


@step("pay")
def pay(inv: Inv) -> int:
    inv.deps.done.append("pay")
    return 7


@step("mail")
async def mail(inv: Inv) -> None:
    inv.deps.done.append("mail")


@step("screen")
async def screen(inv: Inv) -> None:
    inv.deps.done.append("screen")


def no(inv: Invocation[str, Desk]) -> bool:
    return False


@step("gift", when=no)
async def gift(inv: Inv) -> None:
    inv.deps.done.append("gift")


def number(inv: Invocation[str, Desk]) -> int:
    return inv[pay]


def trip(*steps: object, id: str = "trip", retry: Retry | None = None) -> Pipeline[str, Desk, int]:
    return Pipeline(id=id, input=str, deps=Desk, steps=steps, output=number, retry=retry)  # type: ignore[arg-type]  # what tests hand in is steps


OLD = trip(book, pay, mail)


def test_real_handlers_run_and_the_story_is_told() -> None:
    desk = Desk()
    story = evolve(OLD, trip(book, screen, pay, mail), at=pay, input="x", deps=desk)
    assert desk.done == ["book", "screen", "pay", "mail"]
    assert story.ran("old") == ("book",)
    assert story.ran("new") == ("screen", "pay", "mail")
    assert story.result == Succeeded(story.run_id, 7)
    assert story.switch.next == RunOp("screen", 1, 1, started=False)
    assert story.fate(screen) == "succeeded"
    assert "new: run screen #1: returned" in str(story)


def test_a_lost_attempt_did_its_work_once_more() -> None:
    """The worst moment: the effect is there and its success is not [M-3]."""
    desk = Desk()
    story = evolve(OLD, trip(screen, book, pay, mail), at=book, moment="running", input="x", deps=desk)
    assert desk.done == ["book", "book", "pay", "mail"]
    assert story.attempts(book) == 2
    assert story.passed == ("screen",)
    assert story.calls[0].outcome == "lost"


def test_scripted_results_replace_handlers() -> None:
    desk = Desk()
    results = {pay: Each(OSError("down"), OSError("down"), 9)}
    story = evolve(OLD, OLD, at=pay, input="x", deps=desk, results=results)
    assert desk.done == ["book", "mail"]
    assert [call.outcome for call in story.calls if call.step == "pay"] == ["OSError", "OSError", "returned"]
    assert isinstance(story.result, Succeeded)
    assert story.result.output == 9


def test_a_failure_unwinds_through_the_new_pipeline() -> None:
    desk = Desk()
    story = evolve(
        OLD, trip(book, screen, pay, mail), at=book, moment="before-unwind", input="x", deps=desk,
        results={"pay": Fail("no money")},
    )  # fmt: skip
    assert desk.done == ["book", "-seat 4"]
    assert story.unwound == ("book",)
    assert story.ran("new", "unwind") == ("book",)
    assert story.status == "failed"


def test_an_unwind_can_be_scripted() -> None:
    story = evolve(
        OLD, OLD, at=book, moment="retrying-unwind", input="x", deps=Desk(), results={pay: Fail("no")},
        unwinds={book: Each(OSError(), Fail("gone"))},
    )  # fmt: skip
    assert story.unwound == ()
    assert [call.outcome for call in story.calls if call.phase == "unwind"] == ["OSError", "Fail"]


def test_a_poll_waits_across_the_deployment() -> None:
    """B-15, R-4: `Later` is no failure; the new version asks again when it is time."""

    @poll("ready")
    async def ready(inv: Inv) -> int | Later:
        return 5

    line = trip(book, ready, pay)
    said = {ready: Each(Later(3600), Later(60), 7)}
    story = evolve(
        line, trip(book, ready, screen, pay), at=ready, moment="retrying", input="x", deps=Desk(), results=said
    )
    assert [(call.version, call.outcome) for call in story.calls if call.step == "ready"] == [
        ("old", "returned"), ("new", "returned"), ("new", "returned")
    ]  # fmt: skip
    assert story.ran("new") == ("ready", "ready", "screen", "pay")
    assert story.succeeded


def test_an_invalid_run_says_why() -> None:
    story = evolve(OLD, trip(pay, mail), at=book, moment="retrying", input="x", deps=Desk())
    assert story.invalid == "step-missing"
    assert story.result is None
    assert isinstance(story.switch.next, InvalidOp)


def test_a_repair_is_tested_with_via() -> None:
    """D-2: the run is asked again by the next deployment."""
    story = evolve(
        OLD, trip(retired(book), pay, mail), via=(trip(pay, mail),), at=book, moment="running", input="x", deps=Desk()
    )
    assert story.succeeded
    assert story.ran("via") == ()
    assert story.ran("new") == ("book", "pay", "mail")


def test_a_held_run_stays_held_until_it_is_released() -> None:
    story = evolve(OLD, OLD, at=pay, input="x", deps=Desk(), held=True)
    names = [type(fact).__name__ for fact in story.facts]
    assert names.index("RunHeld") < names.index("RunReleased")
    assert story.succeeded


def test_a_conditional_step_before_the_point_is_not_asked_too_early() -> None:
    """E-12: the condition is asked together with the next reservation, so under the new version."""
    story = evolve(trip(book, gift, pay), trip(book, gift, screen, pay), at=pay, input="x", deps=Desk())
    assert story.ran("new") == ("screen", "pay")
    assert story.skipped == ("gift",)


def test_a_run_that_never_gets_on_is_left_as_it_is() -> None:
    for retry in (Retry(), Retry(initial=0, cap=0)):
        line = trip(book, pay, retry=retry)
        story = evolve(line, line, at=pay, input="x", deps=Desk(), results={pay: OSError("down")})
        assert story.status == "ready"
        assert story.result is None
        assert story.attempts(pay) == 20


@pytest.mark.parametrize("moment", ["before", "running", "retrying", "after"])
def test_a_moment_that_never_comes_is_said(moment: Moment) -> None:
    with pytest.raises(InvalidArgument, match="never comes"):
        evolve(OLD, OLD, at=mail, moment=moment, input="x", deps=Desk(), results={pay: Fail("no")})


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="one id"):
        evolve(OLD, trip(book, pay, id="other"), at=book, input="x")
    with pytest.raises(InvalidArgument, match="needs `at=`"):
        evolve(OLD, OLD, at=screen, input="x")
    with pytest.raises(InvalidArgument, match="leave out"):
        evolve(OLD, OLD, at=book, moment="ended", input="x")
    with pytest.raises(InvalidArgument, match="none of the pipelines"):
        evolve(OLD, OLD, at=book, input="x", results={screen: None})
    with pytest.raises(InvalidArgument, match="at least one"):
        Each()
    with pytest.raises(NotFound):
        evolve(OLD, OLD, moment="ended", input="x", deps=Desk()).fate("nowhere")


async def test_inside_a_loop_it_says_how_to_call_it() -> None:
    assert asyncio.get_running_loop()
    with pytest.raises(InvalidArgument, match="plain `def` test"):
        evolve(OLD, OLD, at=book, input="x")


def test_the_same_seed_tells_the_same_story() -> None:
    first, second = (str(evolve(OLD, OLD, at=pay, moment="retrying", input="x", deps=Desk(), seed=4)) for _ in "ab")
    assert first == second
