"""What a notification says, and how it is read [R-2]."""

from __future__ import annotations

import pytest

from perdure.ports.changes import ANYTHING, Change, all_of
from perdure.storage.postgres.telling import MOST, read, written

ME, OTHER = "e1", "e2"
SOME = Change(due=True, runs=('run 1\'s "own"', "run-2"))


@pytest.mark.parametrize("change", [ANYTHING, SOME, Change(outside=True, runs=("r",)), Change(due=True)])
def test_what_was_written_is_read(change: Change) -> None:
    assert read(written(OTHER, change), ME) == change


def test_our_own_and_probes_are_no_news() -> None:
    assert read(written(ME, SOME), ME) is None
    assert read(ME, ME) is None
    assert read("probe e2", ME) is None


@pytest.mark.parametrize("payload", ["", "e2", "caller", "e2 {", 'e2 {"due":1}', "e2 []"])
def test_what_says_nothing_that_we_understand_may_be_anything(payload: str) -> None:
    """Another release may say more, or less."""
    assert read(payload, ME) == ANYTHING


def test_one_that_is_too_long_for_the_server_says_less() -> None:
    many = Change(runs=tuple(f"run-{number}" for number in range(1_000)))
    assert len(written(OTHER, many)) < MOST
    assert read(written(OTHER, many), ME) == ANYTHING
    assert read(written(OTHER, Change(runs=("\u00e4" * 100,))), ME) == ANYTHING


def test_changes_add_up() -> None:
    assert all_of([None, None]) is None
    assert all_of([Change(due=True), None, Change(outside=True, runs=("a",)), Change(runs=("b",))]) == Change(
        due=True, outside=True, runs=("a", "b")
    )
    assert all_of([SOME, ANYTHING]) == ANYTHING
