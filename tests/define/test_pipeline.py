"""What a pipeline keeps, and what it refuses when it is built [M-14]."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Pipeline, Retry, nothing, optional, retired, step
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
    is_large,
    no_approval,
    payout,
    release,
    reserve,
    send,
    stripped,
)


def test_a_pipeline_keeps_what_it_was_given() -> None:
    policy = Retry(max_attempts=3)
    built = build((reserve,), slot="once", deadline=timedelta(days=1), retry=policy, timeout=3)
    assert (built.id, built.slot, built.deadline_s, built.retry, built.timeout_s) == ("p", "once", 86_400, policy, 3)
    assert payout.topology.ids == ("reserve/v1", "approve/v1", "annotate/v1", "send/v1")
    assert list(payout.steps.values()) == [reserve, approve, annotate, send]
    assert payout.topology.steps[0].unwind
    assert payout.topology.steps[1].conditional
    assert payout.output_codec.type is Transfer
    assert payout.input_codec.type is PayoutInput


def test_the_topology_is_the_ids_and_flags_and_no_code() -> None:  # D-4
    async def other_code(inv: Inv) -> str:
        return "other"

    digest = build((reserve, approve)).topology.digest
    assert build((reserve, decorated("approve/v1", when=is_large, timeout=3)(other_code))).topology.digest == digest
    assert build((reserve, decorated("approve/v1")(other_code))).topology.digest != digest
    assert build((retired(reserve), approve)).topology.digest != digest
    assert build((approve, reserve)).topology.digest != digest


def test_steps_of_a_pipeline_cannot_be_changed() -> None:
    steps: Any = payout.steps
    with pytest.raises(TypeError):
        steps["new"] = reserve


def test_one_step_may_stand_in_several_pipelines() -> None:
    assert build((reserve,), id="a").steps["reserve/v1"] is build((reserve,), id="b").steps["reserve/v1"]


def test_a_retired_step_still_meets_the_need_of_a_later_one() -> None:  # E-9, M-14
    built = build((retired(reserve), approve, annotate, send))
    assert built.topology.steps[0].retired


@step("reserve/v1")
async def another_reserve(inv: Inv) -> Hold:
    return Hold("other")


@step("needs-approval/v1", needs=(approve,))
async def needs_approval(inv: Inv) -> None: ...


async def holds_path(inv: Inv) -> Path:
    return Path()


def undecorated(inv: Inv) -> None: ...


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ((), "pipeline 'p' has no steps"),
        (reserve, "steps must be a tuple of steps"),
        ("reserve/v1", "steps must be a tuple of steps"),
        (None, "steps must be a tuple of steps"),
        ((undecorated,), "not the function undecorated, which lacks @step"),
        ((optional(reserve),), "steps must hold steps"),
        (("reserve/v1",), "steps must hold steps, not 'reserve/v1'"),
        ((reserve, reserve), "step 'reserve/v1' stands in it twice"),
        ((reserve, retired(reserve)), "step 'reserve/v1' stands in it twice"),
        ((approve, annotate, send), "step 'send/v1' needs step 'reserve/v1', which is not in the pipeline"),
        ((approve, annotate, send, reserve), "step 'send/v1' needs step 'reserve/v1', which comes later"),
        ((another_reserve, approve, annotate, send), "'reserve/v1', which is another step than the one of that id"),
        ((approve, needs_approval), "needs step 'approve/v1', which is conditional: write needs=.optional"),
        ((decorated("x/v1")(holds_path),), "step 'x/v1': its state of type 'Path' cannot be a payload"),
    ],
    ids=map(str, range(14)),
)
def test_steps_that_cannot_work_are_refused(steps: Any, problem: str) -> None:  # M-14
    with pytest.raises(DefinitionError, match=problem):
        build(steps)


def test_a_conditional_step_with_a_substitute_is_a_need_like_any_other() -> None:  # M-14
    async def text(inv: Inv) -> str:
        return ""

    always_there = decorated("maybe/v1", when=is_large, if_skipped=no_approval)(text)
    build((always_there, decorated("reads/v1", needs=(always_there,))(text)))


async def async_output(inv: Inv) -> None: ...


def generator_output(inv: Inv) -> Generator[int]:
    yield 1


def unstorable_output(inv: Inv) -> Path:
    return Path()


@stripped
def unannotated_output(inv: Inv) -> str:
    return inv[reserve].hold_id


derived: Callable[[Any], Any] = lambda inv: inv[reserve].hold_id + "!"  # noqa: E731  # the point
constant: Callable[[Any], Any] = lambda inv: 3  # noqa: E731  # the point


async def async_resource(value: PayoutInput) -> str:
    return ""


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"output": async_output}, "output: async_output is async"),
        ({"output": generator_output}, "output: generator_output is a generator"),
        ({"output": unstorable_output}, "output: its type 'Path' cannot be a payload"),
        ({"output": unannotated_output}, "output: unannotated_output has no return annotation"),
        ({"output": derived}, "output: .*lambda.* has no return annotation"),
        ({"output": constant}, "output: .*lambda.* has no return annotation"),
        ({"output": None}, "output: expected a function, got None"),
        ({"output": reserve.handler}, "output: reserve is async"),
        ({"failure_output": async_output}, "failure_output: async_output is async"),
        ({"failure_output": derived}, "failure_output: .* has no return annotation"),
        ({"input": Path}, "its input of type 'Path' cannot be a payload"),
        ({"input": PayoutInput("7")}, "its input of type .* cannot be a payload"),
        ({"resource": "invoice_id"}, "resource: expected a function"),
        ({"resource": async_resource}, "resource: async_resource is async"),
        ({"priority": 10}, "priority must be a whole number from -9 to 9, not 10"),
        ({"slot": "twice"}, "slot must be 'live', 'serial', 'once' or 'none', not 'twice'"),
        ({"deadline": 0}, "deadline must not be zero"),
        ({"deadline": float("nan")}, "must be finite"),
        ({"timeout": -1}, "timeout must not be negative"),
        ({"retry": {"max_attempts": 3}}, "retry must be a Retry"),
    ],
    ids=map(str, range(19)),
)
def test_arguments_that_cannot_work_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError, match=f"pipeline 'p'.*{problem}"):
        build((reserve,), **changes)


OUTPUTS: list[tuple[Callable[[Any], Any], Any]] = [
    (nothing, type(None)),
    (lambda inv: inv[reserve], Hold),
    (lambda inv: inv.get(approve), str | None),
    (lambda inv: inv.input, PayoutInput),
    (lambda inv: None, None),
]


@pytest.mark.parametrize(("output", "kind"), OUTPUTS, ids=map(str, range(5)))
def test_what_an_output_function_returns_is_known(output: Any, kind: Any) -> None:  # M-13
    assert build((reserve, approve), output=output).output_codec.type == kind


# --- binding


@asynccontextmanager
async def opens() -> AsyncGenerator[Deps]:
    deps = Deps()
    deps.calls.append("open")
    yield deps
    deps.calls.append("closed")


@contextmanager
def opens_sync() -> Generator[Deps]:
    deps = Deps()
    deps.calls.append("open")
    yield deps
    deps.calls.append("closed")


@pytest.mark.parametrize("factory", [opens, opens_sync])
async def test_dependencies_are_opened_and_closed(factory: Any) -> None:
    async with payout.bind(factory).open() as deps:
        assert isinstance(deps, Deps)
        assert deps.calls == ["open"]
    assert deps.calls == ["open", "closed"]


async def test_a_pipeline_without_dependencies_needs_no_function() -> None:
    bare: Pipeline[PayoutInput, object, None] = build((reserve,), deps=object)
    async with bare.bind().open() as deps:
        assert deps is None


async def test_a_plain_value_is_wrapped_by_the_author() -> None:
    value = Deps()
    async with payout.bind(lambda: nullcontext(value)).open() as deps:
        assert deps is value


def not_decorated() -> Generator[Deps]:
    yield Deps()


async def not_decorated_async() -> AsyncIterator[Deps]:
    yield Deps()


async def awaited() -> Deps:
    return Deps()


@pytest.mark.parametrize(
    ("factory", "problem"),
    [
        (Deps(), "expected a function that opens them"),
        (not_decorated, "decorate not_decorated with @contextlib.asynccontextmanager"),
        (not_decorated_async, "decorate not_decorated_async with"),
        (awaited, "awaited must return a context manager"),
    ],
    ids=map(str, range(4)),
)
def test_functions_that_open_nothing_are_refused(factory: Any, problem: str) -> None:
    with pytest.raises(DefinitionError, match=f"pipeline 'payout': deps: {problem}"):
        payout.bind(factory)


async def test_what_cannot_be_entered_is_refused_when_it_is_opened() -> None:
    factory: Any = Deps
    with pytest.raises(DefinitionError, match=re.escape("returned a Deps, which is no context manager")):
        async with payout.bind(factory).open():
            pass


def test_values_read_well() -> None:
    assert (repr(payout), repr(reserve), repr(retired(reserve))) == (
        "<pipeline 'payout'>",
        "<step 'reserve/v1'>",
        "<retired step 'reserve/v1'>",
    )
    assert release.__name__ == "release"
