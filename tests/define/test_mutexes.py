"""Mutexes of a pipeline, and what is refused when it is built [R-10]."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import DefinitionError, Invocation, Pipeline, nothing, step


@step("one/v1")
async def one(inv: Invocation[str, object]) -> None:
    return None


def built(mutexes: Any, **options: Any) -> Pipeline[str, object, None]:
    """A pipeline with these."""
    return Pipeline(id="p", input=str, deps=object, steps=(one,), output=nothing, mutexes=mutexes, **options)


def test_they_are_sorted() -> None:
    """R-10: in whatever order they are named, pipelines take them in one."""
    assert built(["zone", "account"]).mutexes == ("account", "zone")
    assert built(()).mutexes == ()


@pytest.mark.parametrize(
    ("mutexes", "options", "problem"),
    [
        ("account", {}, "a tuple of one ends in a comma"),
        (7, {}, "must be a tuple of names"),
        (("account", 7), {}, "mutex 7"),
        (("",), {}, "mutex ''"),
        (("x" * 600,), {}, "mutex 'xxx"),
        (("account", "account"), {}, "twice"),
        (("account",), {"slot": "serial"}, "slot='serial'"),
    ],
)
def test_what_cannot_work_is_refused(mutexes: Any, options: dict[str, Any], problem: str) -> None:
    """R-10"""
    with pytest.raises(DefinitionError, match=problem):
        built(mutexes, **options)
