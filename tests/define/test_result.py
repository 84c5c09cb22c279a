"""How a run ended, as values [M-11]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import pytest

from perdure import Canceled, Failed, Result, Succeeded
from perdure.core.facts import Failure
from perdure.errors import PayloadError


@dataclass
class Report:
    lines: list[str]


def test_the_failure_output_is_read_as_plain_values_or_as_a_type() -> None:  # M-13
    failed = Failed("r", Failure("s", "m"), encoded_output=b'{"lines":["a"]}')
    assert failed.output == {"lines": ["a"]}
    assert failed.output is not failed.output  # M-7
    assert failed.output_as(Report) == Report(["a"])
    with pytest.raises(PayloadError):
        failed.output_as(int)


def test_without_a_failure_output_there_is_none() -> None:
    assert Canceled("r", Failure("s", "m", kind="canceled")).output is None


def test_results_are_values() -> None:
    assert Succeeded("r", 3, ("a",)) == Succeeded("r", 3, ("a",))
    failed: object = Failed("r", Failure("s", "m"))
    assert failed != Canceled("r", Failure("s", "m"))


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (Succeeded("r", 3), "succeeded"),
        (Failed("r", Failure("s", "m")), "failed"),
        (Canceled("r", Failure("s", "m")), "canceled"),
    ],
    ids=["succeeded", "failed", "canceled"],
)
def test_a_result_is_one_of_three(result: Result[int], word: str) -> None:  # M-11
    match result:
        case Succeeded():
            assert word == "succeeded"
        case Canceled():
            assert word == "canceled"
        case Failed():
            assert word == "failed"
        case _ as unreachable:
            assert_never(unreachable)
