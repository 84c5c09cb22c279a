"""What a step keeps, and what it refuses when it is made."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from perdure import AsyncStep, Retry, SyncStep, optional, retired, step
from perdure.core.topology import StepSpec
from perdure.errors import DefinitionError
from tests.define.sample import Hold, Inv, Undo, approve, build, is_large, no_approval, release, reserve, send, stripped

make: Any = step


async def plain(inv: Inv) -> Hold:
    """Its docstring."""
    return Hold("h")


async def release_in_doubt(inv: Undo) -> None: ...


def test_a_step_keeps_what_it_was_given() -> None:
    policy = Retry(max_attempts=3)
    made = step(
        "full/v1",
        unwind=release,
        unwind_in_doubt=release_in_doubt,
        timeout=timedelta(seconds=1.5),
        retry=policy,
        needs=(reserve, optional(approve)),
        on_cancel="settle",
        when=is_large,
    )(plain)
    assert isinstance(made, AsyncStep)
    assert (made.id, made.handler, made.is_async, made.doc) == ("full/v1", plain, True, "Its docstring.")
    assert (made.unwind, made.unwind_is_async, made.unwind_in_doubt) == (release, True, release_in_doubt)
    assert (made.timeout_s, made.retry, list(made.needs), made.when) == (
        1.5,
        policy,
        ["reserve/v1", "approve/v1"],
        is_large,
    )
    assert made.spec == StepSpec("full/v1", unwind=True, in_doubt=True, conditional=True, settle=True)
    assert made.codec.decode(made.codec.encode(Hold("x"))) == Hold("x")


def test_def_and_async_def_are_told_apart() -> None:
    assert isinstance(send, SyncStep)
    assert isinstance(reserve, AsyncStep)
    assert (send.is_async, reserve.is_async) == (False, True)


def test_methods_partials_and_callable_objects_are_handlers() -> None:
    class Worker:
        async def work(self, inv: Inv) -> Hold:
            return Hold("method")

        async def __call__(self, inv: Inv) -> Hold:
            return Hold("call")

    async def with_setting(setting: str, inv: Inv) -> Hold:
        return Hold(setting)

    for handler in (Worker().work, Worker(), functools.partial(with_setting, "s")):
        made = make("made/v1")(handler)
        assert made.is_async
        assert made.codec.type is Hold


def test_retired_is_the_same_step_with_a_flag() -> None:  # E-9
    other = retired(reserve)
    assert other is not reserve
    assert other.origin is reserve.origin
    assert (other.spec.retired, reserve.spec.retired) == (True, False)
    assert (other.handler, other.unwind, other.id) == (reserve.handler, reserve.unwind, reserve.id)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty or blank"),
        (" \t", "empty or blank"),
        (" a", "begin or end with white space"),
        ("a\n", "begin or end with white space"),
        ("a\x00b", "NUL"),
        ("a\ud800", "lone surrogate"),
        ("ü" * 257, "longer than 512 bytes"),
        (7, "must be a str, not int"),
        (None, "must be a str"),
    ],
)
def test_ids_that_are_no_names_are_refused(name: object, problem: str) -> None:
    with pytest.raises(DefinitionError, match=f"the id of a step .*{problem}"):
        make(name)
    with pytest.raises(DefinitionError, match=f"the id of a pipeline .*{problem}"):
        build((reserve,), id=name)


def test_the_longest_id_is_fine() -> None:
    assert step("ü" * 256)(plain).id == "ü" * 256


a_lambda: Callable[[Any], Any] = lambda inv: True  # noqa: E731  # the point


async def async_condition(inv: Inv) -> bool:
    return True


def generator_condition(inv: Inv) -> Iterator[bool]:
    yield True


REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"timeout": 0}, "timeout must not be zero"),
    ({"timeout": -1}, "timeout must not be negative"),
    ({"timeout": timedelta(seconds=-1)}, "timeout must not be negative"),
    ({"timeout": float("nan")}, "timeout must be finite, not nan"),
    ({"timeout": float("inf")}, "timeout must be finite, not inf"),
    ({"timeout": 1e300}, "timeout must not be longer than a thousand years"),
    ({"timeout": 10**400}, "timeout must not be longer than a thousand years"),
    ({"timeout": timedelta.max}, "timeout must not be longer than a thousand years"),
    ({"timeout": "30"}, "timeout must be seconds or a timedelta, not str"),
    ({"timeout": True}, "timeout must be seconds or a timedelta, not bool"),
    ({"retry": 3}, "retry must be a Retry, not 3"),
    ({"on_cancel": "ignore"}, "on_cancel must be 'cancel' or 'settle', not 'ignore'"),
    ({"needs": reserve}, "needs must be a tuple of steps"),
    ({"needs": "reserve/v1"}, "needs must be a tuple of steps"),
    ({"needs": ("reserve/v1",)}, "needs must hold steps, not 'reserve/v1'"),
    ({"needs": (release,)}, "needs must hold steps"),
    ({"needs": (reserve, reserve)}, "needs step 'reserve/v1' twice"),
    ({"needs": (reserve, optional(reserve))}, "needs step 'reserve/v1' twice"),
    ({"needs": (retired(step("x/v1")(plain)),)}, "cannot need itself"),
    ({"when": a_lambda}, "when: give the lambda a name"),
    ({"when": True}, "when: expected a function, got True"),
    ({"when": async_condition}, "when: async_condition is async"),
    ({"when": generator_condition}, "when: generator_condition is a generator"),
    ({"when": release}, "when: release is async"),
    ({"if_skipped": a_lambda}, "if_skipped: give the lambda a name"),
    ({"if_skipped": Hold("h")}, "if_skipped: expected a function"),
    ({"unwind_in_doubt": release_in_doubt}, "unwind_in_doubt needs unwind"),
    ({"unwind": "release"}, "unwind: expected a function, got 'release'"),
    ({"unwind": Hold}, "unwind: expected a function"),
    ({"unwind": release_in_doubt}, re.escape("must take (inv, state)")),
    ({"unwind": release, "unwind_in_doubt": release}, re.escape("must take (inv)")),
]


@pytest.mark.parametrize(("options", "problem"), REFUSED_OPTIONS, ids=map(str, range(len(REFUSED_OPTIONS))))
def test_options_that_cannot_work_are_refused_naming_the_step(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError, match=f"step 'x/v1'.*{problem}"):
        make("x/v1", **options)


@stripped
async def no_annotation(inv: Inv) -> Hold:
    return Hold("h")


async def unresolvable(inv: Inv) -> Hold:
    return Hold("h")


unresolvable.__annotations__["return"] = "Nowhere"


def returns_awaitable(inv: Inv) -> Awaitable[Hold]:
    raise NotImplementedError


async def generator(inv: Inv) -> AsyncIterator[Hold]:
    yield Hold("h")


def sync_generator(inv: Inv) -> Iterator[Hold]:
    yield Hold("h")


async def two(inv: Inv, more: int) -> Hold:
    return Hold("h")


async def none() -> Hold:
    return Hold("h")


@functools.wraps(plain)
def wrapper(*args: Any) -> Any:
    return plain(*args)


async def unsupported(inv: Inv) -> complex:
    return 1j


REFUSED_HANDLERS: list[tuple[Any, str]] = [
    (no_annotation, "no_annotation has no return annotation"),
    (unresolvable, "return annotation of unresolvable cannot be resolved.*Nowhere"),
    (returns_awaitable, "returns_awaitable is annotated to return Awaitable"),
    (generator, "generator is a generator"),
    (sync_generator, "sync_generator is a generator"),
    (two, re.escape("must take (inv)")),
    (none, re.escape("must take (inv)")),
    (wrapper, "plain function wrapped around an async one"),
    (unsupported, "its state of type 'complex' cannot be a payload"),
    (a_lambda, "no return annotation"),
    (Hold, "expected a function"),
    (3, "expected a function, got 3"),
    (reserve, "is a step already"),
]


@pytest.mark.parametrize(("handler", "problem"), REFUSED_HANDLERS, ids=map(str, range(len(REFUSED_HANDLERS))))
def test_handlers_that_cannot_work_are_refused_naming_the_step(handler: Any, problem: str) -> None:  # M-4
    with pytest.raises(DefinitionError, match=f"step 'x/v1'.*{problem}"):
        build((make("x/v1")(handler),))


def test_types_a_handler_closes_over_are_found() -> None:
    @dataclass
    class Local:
        a: int

    async def handler(inv: Inv) -> Local:
        return Local(1)

    assert make("x/v1")(handler).codec.type is Local


@pytest.mark.parametrize("wrong", ["reserve/v1", release, optional(reserve)], ids=["id", "function", "optional"])
def test_optional_and_retired_take_steps(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="takes a step"):
        optional(wrong)
    with pytest.raises(DefinitionError, match="takes a step"):
        retired(wrong)


def test_a_substitute_is_kept() -> None:
    assert make("x/v1", if_skipped=no_approval)(plain).if_skipped is no_approval
