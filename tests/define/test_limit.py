"""Limits as values, and what is refused when they are built [R-11]."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import (
    App,
    DefinitionError,
    Done,
    ForEach,
    Invocation,
    ItemInvocation,
    Limit,
    Loop,
    More,
    Pipeline,
    nothing,
    poll,
    step,
)
from perdure.core.permits import Entrance, Permit


def account(input: str) -> str:
    """A key."""
    return input


async def asynchronous(input: str) -> str:
    """No key."""
    return input


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "give exactly one of concurrency, in_flight and per_second, not none"),
        ({"concurrency": 1, "per_second": 2}, "exactly one of .*, not concurrency and per_second"),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1, not 0"),
        ({"concurrency": True}, "concurrency must be a whole number of at least 1, not True"),
        (
            {"concurrency": 1 << 31},
            "concurrency must be a whole number of at least 1 and below 2,147,483,648, not 2147",
        ),
        ({"concurrency": 10**5000}, "concurrency must be a whole number of at least 1 and below .*, not this int"),
        ({"per_second": 10**5000}, "per_second must be a number from 0.000001 to 1,000,000, not this int"),
        ({"concurrency": 1, "key": lambda: "x"}, r"key: <lambda>\(\) must take \(input\)"),
        ({"in_flight": -1}, "in_flight must be a whole number of at least 1, not -1"),
        ({"in_flight": 1.5}, "in_flight must be a whole number"),
        ({"per_second": 0}, "per_second must be a number from 0.000001 to 1,000,000, not 0"),
        ({"per_second": float("nan")}, "per_second must be a number"),
        ({"per_second": float("inf")}, "per_second must be a number"),
        ({"per_second": "many"}, "per_second must be a number"),
        ({"in_flight": 1, "queue": -1}, "queue must be a whole number of at least 0, not -1"),
        ({"in_flight": 1, "queue": True}, "queue must be a whole number of at least 0, not True"),
        ({"in_flight": 1, "queue": float("nan")}, "queue must be a whole number"),
        (
            {"concurrency": 1, "queue": 2},
            "queue bounds the runs that wait to be in flight: give it together with in_flight",
        ),
        ({"per_second": 1, "queue": 2}, "give it together with in_flight"),
        ({"queue": 2}, "give exactly one of concurrency, in_flight and per_second, not none"),
        ({"concurrency": 1, "scope": "machine"}, "scope must be 'store' or 'worker', not 'machine'"),
        ({"in_flight": 1, "scope": "worker"}, "in_flight counts runs across the store"),
        ({"concurrency": 1, "key": "account"}, "key: expected a function"),
        ({"concurrency": 1, "key": asynchronous}, "key: asynchronous is async"),
    ],
)
def test_a_limit_that_could_not_work_is_refused(options: dict[str, Any], problem: str) -> None:
    """R-11: with the reason, when it is built."""
    with pytest.raises(DefinitionError, match=f"^limit 'bank': .*{problem}"):
        Limit("bank", **options)


def test_an_id_is_needed() -> None:
    """R-11."""
    with pytest.raises(DefinitionError, match="the id of a limit must not be empty"):
        Limit(" ", concurrency=1)


def test_a_limit_is_a_value() -> None:
    """R-11: equal ones mean the same, whatever number of times it is written down."""
    assert Limit("bank", key=account, concurrency=3) == Limit("bank", key=account, concurrency=3)
    assert Limit("bank", concurrency=3) != Limit("bank", concurrency=4)
    assert Limit("bank", in_flight=3) != Limit("bank", in_flight=3, queue=0)
    assert Limit("bank", in_flight=3).entrance("x") is None
    assert Limit("bank", in_flight=3, queue=4).entrance("x") == Entrance("bank", "x", 3, 4)
    assert len({Limit("bank", concurrency=3), Limit("bank", concurrency=3)}) == 1
    assert Limit("api", per_second=4).permit("x") == Permit("api", "x", "rate", 250_000)
    assert Limit("api", scope="worker", per_second=0.5).permit("") == Permit("api", "", "rate", 2_000_000, False)
    assert Limit("runs", in_flight=4).permit("") == Permit("runs", "", "in_flight", 4, True)
    assert Permit("api", "x", "rate", 1).words == "limit 'api' key 'x'"


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (Limit("bank", concurrency=1), "limits must be a tuple of limits, not .*; a tuple of one ends in a comma"),
        (("bank",), "limits must hold limits, not 'bank'"),
        ((Limit("bank", concurrency=1), Limit("bank", per_second=1)), "names <limit 'bank'> twice"),
        (
            (Limit("bank", concurrency=1), Limit("local", concurrency=1, scope="worker")),
            "names limits of what executes across all workers and of what executes in one; name limits of one scope",
        ),
        ((Limit("bank", in_flight=1),), "<limit 'bank'> bounds runs in flight; name it in a pipeline's limits"),
    ],
)
def test_what_a_step_may_name(limits: Any, problem: str) -> None:
    """R-11."""
    with pytest.raises(DefinitionError, match=f"^step 'pay/v1':? {problem}"):
        step("pay/v1", limits=limits)


def test_starts_a_second_may_be_of_another_scope() -> None:
    """R-11: who waits for one has no place that another waits for."""
    step("pay/v1", limits=(Limit("bank", concurrency=1), Limit("api", per_second=1, scope="worker")))


BANK, API = Limit("bank", concurrency=1), Limit("api", per_second=1)


@step("pay/v1", limits=(API, BANK))
async def pay(inv: Invocation[str, object]) -> None:
    """Pays."""


def pipeline(id: str, *limits: Limit[str], steps: Any = (pay,)) -> Pipeline[str, object, None]:
    """One of these steps."""
    return Pipeline(id=id, input=str, deps=object, steps=steps, output=nothing, limits=limits)


def test_what_a_pipeline_may_name() -> None:
    """R-11: runs, not operations."""
    assert pipeline("p", Limit("runs", in_flight=1), API).limits[1] == API
    problem = "^pipeline 'p': <limit 'bank'> bounds operations that execute; name it in a step's limits"
    with pytest.raises(DefinitionError, match=problem):
        pipeline("p", BANK)


def test_every_step_with_a_handler_may_name_limits() -> None:
    """R-11: places are taken in one order everywhere, a turn of a rate last."""

    async def each(inv: ItemInvocation[str, object, int]) -> None:
        """An item."""

    @poll("ask/v1", limits=(BANK,))
    async def ask(inv: Invocation[str, object]) -> int:
        return 1

    def items(inv: Invocation[str, object]) -> list[int]:
        return [1]

    def items_first(inv: Invocation[str, object]) -> int:
        return 1

    async def turn(inv: ItemInvocation[str, object, int]) -> More[int] | Done[int]:
        return Done(1)

    assert pay.limits == (BANK, API)
    assert ask.limits == (BANK,)
    assert ForEach("each/v1", items=items, handler=each, limits=(BANK,)).limits == (BANK,)
    with pytest.raises(DefinitionError, match="name it in a pipeline's limits"):
        Loop("turns/v1", first=items_first, turn=turn, limits=(Limit("x", in_flight=1),))


def test_one_id_means_one_limit_in_an_app() -> None:
    """R-11: two numbers under one name would be a riddle."""
    other = Limit("api", per_second=2)
    first, second = pipeline("first"), pipeline("second", other)
    with pytest.raises(
        DefinitionError, match="pipeline 'second' and pipeline 'first', step 'pay/v1' each have their own limit 'api'"
    ):
        App(first.bind(), second.bind(), store="memory://")
    App(first.bind(), pipeline("second", Limit("api", per_second=1)).bind(), store="memory://")
