"""The kit in the middle of waits, items, turns and child runs [I-6, B-15, B-20]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from perdure import (
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
    Settled,
    Sleep,
    Succeeded,
    nothing,
    retired,
    step,
)
from perdure.errors import InvalidArgument
from perdure.testing.evolve import Each, Evolution, Moment, evolve


@dataclass
class Desk:
    """What handlers leave behind."""

    done: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Answer:
    """A message."""

    yes: bool
    who: str = "Ada"


Inv = Invocation[list[int], Desk]
Line = Pipeline[list[int], Desk, None]


def plain(id: str) -> Any:
    async def handler(inv: Inv) -> None:
        inv.deps.done.append(id)

    return step(id)(handler)


first, last, extra = plain("first"), plain("last"), plain("extra")


def line(*steps: Any, id: str = "line") -> Line:
    return Pipeline(id=id, input=list[int], deps=Desk, steps=steps, output=nothing, retry=Retry(jitter=0))


def edit(old: Line, new: Line, at: Any, moment: Moment, **options: Any) -> Evolution[None]:
    return evolve(old, new, at=at, moment=moment, input=options.pop("input", [1, 2, 3]), deps=Desk(), **options)


def steps_of(story: Evolution[None]) -> list[str]:
    """Facts by name, the deployment and claims left out."""
    return [type(fact).__name__ for fact in story.facts]


# --- messages

approve = AwaitMessage[Any, Any, Answer]("approve", name="approval", type=Answer)
TALK = line(first, approve, last)


def test_a_message_that_comes_after_the_deployment() -> None:
    """The run rests in the wait; the author sends, and it goes on under the new version."""
    story = edit(TALK, line(first, approve, extra, last), approve, "waiting", messages={"approval": Answer(True)})
    assert (story.ran("old"), story.ran("new")) == (("first",), ("extra", "last"))
    assert story.succeeded
    names = steps_of(story)
    assert names.index("SegmentSuspended") < names.index("MessageReceived") < names.index("OperationWoken")


def test_a_message_that_never_comes() -> None:
    story = edit(TALK, TALK, approve, "waiting")
    assert (story.status, story.result) == ("ready", None)
    assert story.reason == "waits for message 'approval'"


def test_a_wait_that_is_over_by_its_time() -> None:
    """B-8: nobody sends, so virtual time passes. The time-out is that of the version under which it opened [B-20]."""
    short = AwaitMessage[Any, Any, Answer]("approve", name="approval", type=Answer, timeout=3600)
    story = edit(line(first, short, last), TALK, short, "waiting")
    assert story.status == "failed"
    assert story.reason == "await-timeout"


def test_a_step_behind_a_wait_comes_next_when_the_message_is_there() -> None:
    """The message is in the journal and nobody acted on it: the new version does."""
    story = edit(TALK, line(first, approve, extra, last), last, "before", messages={"approval": Answer(True)})
    names = steps_of(story)
    assert names.index("MessageReceived") < names.index("OperationWoken")
    assert story.ran("new") == ("extra", "last")
    after = edit(TALK, line(first, extra, approve, last), approve, "after", messages={"approval": Answer(True)})
    assert (after.ran("new"), after.passed) == (("last",), ("extra",))


def test_several_waits_for_one_name_take_one_message_each() -> None:
    second = AwaitMessage[Any, Any, Answer]("confirm", name="approval", type=Answer)
    old = line(first, approve, second, last)
    answers = {"approval": Each(Answer(True), Answer(False))}
    story = edit(old, old, second, "waiting", messages=answers)
    assert story.ran("new") == ("last",)
    assert edit(old, old, second, "waiting", messages={"approval": Answer(True)}).status == "ready"


def test_a_wait_held_or_canceled() -> None:
    held = edit(TALK, TALK, approve, "waiting", held=True, messages={"approval": Answer(True)})
    assert held.succeeded
    assert edit(TALK, TALK, approve, "waiting", canceled=True).status == "canceled"


def test_a_wait_that_is_gone_or_became_a_sleep() -> None:
    """E-3; nothing is sent to a run that cannot go on."""
    said: dict[str, object] = {"approval": Answer(True)}
    assert edit(TALK, line(first, last), approve, "waiting", messages=said).invalid == "step-missing"
    asleep = line(first, Sleep("approve", 60), last)
    assert edit(TALK, asleep, approve, "waiting", messages=said).invalid == "shape-changed"
    mended = edit(TALK, TALK, approve, "waiting", via=(asleep,), messages=said)
    assert mended.succeeded


def test_a_step_behind_a_sleep() -> None:
    old = line(first, Sleep("night", 8 * 3600), last)
    assert edit(old, line(first, Sleep("night", 1), extra, last), "night", "waiting").ran("new") == ("extra", "last")
    assert edit(old, line(first, Sleep("night", 1), extra, last), last, "before").ran("new") == ("extra", "last")


# --- items and turns


async def label(inv: ItemInvocation[list[int], Desk, int]) -> str:
    inv.deps.done.append(f"label {inv.item}")
    return f"#{inv.item}"


def numbers(inv: Inv) -> list[int]:
    return inv.input


labels = ForEach("labels", items=numbers, handler=label, concurrency=2)
SHOP = line(first, labels, last)


def test_items_of_which_one_is_done() -> None:
    """Those in flight are lost with the process; those that are done are never done again [B-10]."""
    story = edit(SHOP, SHOP, labels, "running", done=1)
    calls = [(c.version, c.item, c.attempt, c.outcome) for c in story.calls if c.step == "labels"]
    assert calls == [
        ("old", 0, 1, "returned"),
        ("old", 1, 1, "lost"),
        ("old", 2, 1, "lost"),
        ("new", 1, 2, "returned"),
        ("new", 2, 2, "returned"),
    ]
    assert story.succeeded
    assert "old: run labels[1] #1: lost" in str(story)


def test_items_that_back_off() -> None:
    story = edit(SHOP, SHOP, labels, "retrying", done=2)
    calls = [(c.version, c.item, c.attempt, c.outcome) for c in story.calls if c.step == "labels"]
    assert calls[2:] == [("old", 2, 1, "AttemptFailed"), ("new", 2, 2, "returned")]


def test_items_that_are_fixed() -> None:
    """B-20: what the items are was decided by the version under which the step was begun."""

    def fewer(inv: Inv) -> list[int]:
        return [7]

    new = line(first, ForEach("labels", items=fewer, handler=label), last)
    assert [c.item for c in edit(SHOP, new, labels, "running").calls if c.version == "new"] == [0, 1, 2, None]
    assert [c.item for c in edit(SHOP, new, labels, "before").calls if c.version == "new"] == [0, None]


def test_items_behind_which_a_step_comes_next() -> None:
    story = edit(SHOP, line(first, labels, extra, last), last, "before")
    assert (story.ran("old"), story.ran("new")) == (("first", *["labels"] * 3), ("extra", "last"))


def test_items_whose_results_are_scripted() -> None:
    story = edit(SHOP, SHOP, labels, "running", done=1, results={labels: Each("a", "b", Fail("no"))})
    assert story.status == "failed"


def test_more_items_than_patience() -> None:
    story = edit(SHOP, SHOP, labels, "before", input=list(range(50)))
    assert story.succeeded


async def turn(inv: ItemInvocation[list[int], Desk, int]) -> More[int] | Done[int]:
    return More(inv.item - 1) if inv.item > 0 else Done(7)


def begin(inv: Inv) -> int:
    return 3


count = Loop("count", first=begin, turn=turn)


@pytest.mark.parametrize(("moment", "done"), [("running", 0), ("running", 2), ("retrying", 3)])
def test_a_loop_after_some_turns(moment: Moment, done: int) -> None:
    old = line(first, count, last)
    story = edit(old, line(first, count, extra, last), count, moment, done=done)
    assert story.ran("old") == ("first", *["count"] * (done + 1))
    assert story.ran("new") == (*["count"] * (4 - done), "extra", "last")
    assert story.succeeded


# --- child runs, and others

Parcel = Pipeline[int, Desk, str]


@step("pack")
async def pack(inv: Invocation[int, Desk]) -> str:
    inv.deps.done.append(f"pack {inv.input}")
    return f"parcel {inv.input}"


def packed(inv: Invocation[int, Desk]) -> str:
    return inv[pack]


parcel: Parcel = Pipeline(id="parcel", input=int, deps=Desk, steps=(pack,), output=packed)


def one(inv: Inv) -> int:
    return inv.input[0]


ship = Child("ship", pipeline=parcel, input=one)
ships = ForEachRun("ship", pipeline=parcel, inputs=numbers, concurrency=2)


@pytest.mark.parametrize("step", [ship, ships])
def test_a_child_that_runs_as_it_is(step: Any) -> None:
    old = line(first, step, last)
    desk = Desk()
    story = evolve(old, line(first, step, extra, last), at=step, moment="waiting", input=[4], deps=desk)
    assert desk.done == ["first", "pack 4", "extra", "last"]
    assert story.ran("new") == ("extra", "last")


@pytest.mark.parametrize("step", [ship, ships])
def test_a_child_that_ends_as_the_test_says(step: Any) -> None:
    old = line(first, step, last)
    assert edit(old, old, step, "waiting", children={parcel: "done"}).succeeded
    failed = edit(old, old, step, "waiting", children={"parcel": Fail("no paper")})
    assert (failed.status, failed.reason) == ("failed", "child-failed")
    assert failed.ran("new") == ()


def test_a_step_behind_child_runs() -> None:
    for step_ in (ship, ships):
        story = edit(line(first, step_, last), line(first, step_, extra, last), last, "before")
        assert story.ran("new") == ("extra", "last")


def test_children_one_after_the_other() -> None:
    ends = {parcel: Each("a", Fail("no"), "c")}
    collected = ForEachRun("ship", pipeline=parcel, inputs=numbers, collect=True)

    def output(inv: Inv) -> list[Settled[str]]:
        return inv[collected]

    old: Pipeline[list[int], Desk, list[Settled[str]]] = Pipeline(
        id="line", input=list[int], deps=Desk, steps=(collected,), output=output
    )
    story = evolve(old, old, at=collected, moment="waiting", input=[1, 2, 3], deps=Desk(), children=ends)
    assert isinstance(story.result, Succeeded)
    assert sorted(settled.value or "" for settled in story.result.output) == ["", "a", "c"]


def test_a_retired_child_is_waited_for() -> None:
    """E-9."""
    story = edit(line(first, ship, last), line(first, retired(ship), last), ship, "waiting", children={parcel: "x"})
    assert story.ran("new") == ("last",)


def named(inv: Inv) -> list[str]:
    return ["run-a", "run-b"]


wait = AwaitRuns("wait", runs=named)
QUEUE = line(first, wait, last)


def test_other_runs_end_after_the_deployment() -> None:
    story = edit(QUEUE, line(first, wait, extra, last), wait, "waiting", runs={"run-a": 1, "run-b": Fail("no")})
    assert story.ran("new") == ("extra", "last")
    names = steps_of(story)
    assert names.index("SegmentSuspended") < names.index("OperationWoken")
    before = edit(QUEUE, line(first, wait, extra, last), last, "before", runs={"run-a": 1, "run-b": 2})
    assert before.ran("new") == ("extra", "last")


def test_an_attempt_behind_waits() -> None:
    """Whatever stands before the point is brought past, for moments inside a handler as well."""
    old = line(first, approve, ship, wait, Sleep("night", 60), labels, last)
    options: dict[str, Any] = {"messages": {"approval": Answer(True)}, "runs": {"run-a": 1, "run-b": 2}}
    story = edit(old, old, labels, "running", done=1, **options)
    assert story.ran("new") == ("labels", "labels", "last")
    assert edit(old, old, last, "retrying", **options).ran("new") == ("last",)
    with pytest.raises(InvalidArgument, match="which `messages` does not have"):
        edit(old, old, labels, "running")


# --- wrong uses


def test_what_cannot_be_meant_is_refused() -> None:
    uses: list[tuple[Any, Moment, dict[str, Any], str]] = [
        (approve, "running", {}, "calls no handler"),
        (first, "waiting", {}, "calls a handler"),
        (first, "running", {"done": 1}, "counts items"),
        (approve, "waiting", {"children": {"parcel": 1}}, "no child runs"),
        (last, "before", {}, "waits for message 'approval', which `messages` does not have"),
    ]
    for at, moment, options, words in uses:
        with pytest.raises(InvalidArgument, match=words):
            edit(TALK, TALK, at, moment, **options)
