"""What a poll keeps, and where `Later` is refused [B-15]."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure import AsyncPoll, Later, SyncPoll, poll, step
from perdure.core.retry import Retry
from perdure.core.topology import StepSpec
from perdure.errors import DefinitionError
from tests.define.sample import Deps, Hold, Inv, PayoutInput, build, is_large, no_approval, release, reserve

make: Any = poll

PollAnswer = Hold | Later


@poll("ask/v1", timeout=5)
async def ask(inv: Inv) -> Hold | Later:
    """Its docstring."""
    return Later(1) if inv.attempt == 1 else Hold("h")


@poll("ask-sync/v1", when=is_large)
def ask_sync(inv: Inv) -> Later | None:
    return None


def test_a_poll_is_a_step_whose_state_is_what_is_left_beside_later() -> None:
    assert isinstance(ask, AsyncPoll)
    assert isinstance(ask_sync, SyncPoll)
    assert (ask.polls, ask.timeout_s, ask.doc, reserve.polls) == (True, 5.0, "Its docstring.", False)
    assert ask.codec.type is Hold
    assert ask.codec.decode(ask.codec.encode(Hold("x"))) == Hold("x")
    assert ask_sync.codec.encode(None) == b"null"
    assert ask.spec == StepSpec("ask/v1")  # a poll is no other topology than a step [D-4]
    assert ask_sync.spec == StepSpec("ask-sync/v1", conditional=True)


def test_a_poll_takes_what_a_step_takes() -> None:
    async def handler(inv: Inv) -> PollAnswer:
        return Hold("h")

    policy = Retry(max_attempts=2)
    made = make("full/v1", unwind=release, retry=policy, needs=(reserve,), on_cancel="settle")(handler)
    assert (made.unwind, made.retry, list(made.needs), made.spec.settle) == (release, policy, ["reserve/v1"], True)
    assert made.codec.type is Hold
    with pytest.raises(DefinitionError, match="on_cancel"):
        make("x/v1", on_cancel="never")
    with pytest.raises(DefinitionError, match="is a step already"):
        make("x/v1")(reserve)


def test_three_types_leave_a_union_of_two() -> None:
    @poll("two/v1")
    async def two(inv: Inv) -> Hold | Later | None:
        return None

    assert two.codec.encode(None) == b"null"
    assert two.codec.decode(two.codec.encode(Hold("x"))) == Hold("x")


async def test_alone_it_returns_what_its_handler_returns() -> None:
    pipeline = build((ask,))
    assert await ask(pipeline.fake(input=PayoutInput("7"), deps=Deps())) == Later(1)


def test_later_in_a_plain_step_is_refused_when_the_pipeline_is_built() -> None:
    """TYPING 2: no type checker sees it before somebody reads the state."""

    @step("plain/v1")
    async def plain(inv: Inv) -> Hold | Later:
        return Later(1)

    @step("only/v1")
    async def only(inv: Inv) -> Later:
        return Later(1)

    for wrong in (plain, only):
        with pytest.raises(DefinitionError, match=rf"step '{wrong.id}': only a @poll may return Later"):
            build((wrong,))


def test_a_poll_without_a_state_is_refused() -> None:
    async def never(inv: Inv) -> Later:
        return Later(1)

    with pytest.raises(DefinitionError, match="never returns a state"):
        build((make("never/v1")(never),))


def test_a_substitute_serves_polls_too() -> None:
    @poll("asked/v1", if_skipped=no_approval)
    def asked(inv: Inv) -> str | Later:
        return "x"

    assert build((asked,)).steps["asked/v1"].if_skipped is no_approval


def test_delays_are_seconds_or_timedelta() -> None:
    assert Later(1.5) == Later(timedelta(milliseconds=1_500)) != Later(2)
    assert len({Later(1), Later(1.0)}) == 1
    assert Later(timedelta(hours=1)).delay_us == 3_600_000_000
    assert repr(Later(2.5)) == "Later(2.5)"


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), timedelta(days=-1), "5", None, True, 1e12])
def test_delays_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"Later\(delay\) must"):
        Later(wrong)
