"""Every kind of edit in every state of a run: the rows of docs/reference/edits.md, carried out [E-7, E-9, U-2, U-9]."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.evolution.edits import PAGE, Row, carry_out, read, words

ROWS = read(PAGE.read_text("utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_page_says_what_happens(row: Row) -> None:
    assert words(carry_out(row)) == row.outcome, f"docs/reference/edits.md:{row.line}"


def test_every_edit_has_every_state() -> None:
    """No row is forgotten, and none stands there twice."""
    edits = Counter(row.edit.name for row in ROWS)
    assert len(edits) >= 17
    assert set(edits.values()) == {14}
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_a_page_that_is_wrong_is_found() -> None:
    """The words come from the run, not from the page."""
    row = next(row for row in ROWS if row.edit.name == "Remove a step" and row.state.startswith("running"))
    assert words(carry_out(row)) == "calls nothing; **invalid**: `step-missing`"
