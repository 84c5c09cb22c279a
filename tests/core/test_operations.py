"""The closed unions of the core: what comes next, and how an attempt ended."""

from __future__ import annotations

from types import ModuleType
from typing import get_args

import msgspec
import pytest

from perdure.core import operations, outcomes
from perdure.core.operations import InvalidReason, Operation
from perdure.core.outcomes import ItemOutcome, Outcome


@pytest.mark.parametrize(
    ("module", "union"), [(operations, Operation), (outcomes, Outcome | ItemOutcome)], ids=["next", "ends"]
)
def test_every_member_is_in_the_union(module: ModuleType, union: object) -> None:
    """J-15: a reader that handles the union handles all there is."""
    made = {
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    }
    assert made == set(get_args(union))


def test_the_reasons_of_an_invalid_run_are_stable_words() -> None:
    """D-1: for counting and for operators; a renamed one breaks somebody's alert."""
    assert get_args(InvalidReason) == (
        "step-missing",
        "no-safe-frontier",
        "no-safe-unwind-frontier",
        "pipeline-missing",
        "condition-raised",
        "output-raised",
        "opening-raised",
        "limit-key-raised",
        "state-missing",
        "payload-unreadable",
        "payload-unserialisable",
        "contract-broken",
        "shape-changed",
    )
