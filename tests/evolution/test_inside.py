"""Every edit of steps that wait, of items, turns and child runs: the rows of edits-inside.md [B-20, E-9].

What was open goes on as it was opened, wherever it stands now, as long as its id and its kind are there.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.evolution.inside import PAGE, STATES, UNDONE, UNITS, WAITING, Row, carry_out, read, words

ROWS = read(PAGE.read_text("utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_page_says_what_happens(row: Row) -> None:
    assert words(carry_out(row)) == row.outcome, f"docs/reference/edits-inside.md:{row.line}"


def test_every_edit_has_every_state() -> None:
    """No row is forgotten, and none stands there twice."""
    edits = Counter(row.edit for row in ROWS)
    assert len({row.name for row in ROWS}) == len(ROWS)
    forward = {**WAITING, **UNITS}
    for edit in edits:
        states = {row.state for row in ROWS if row.edit == edit}
        if "unwind" not in edit:
            assert states == forward.keys()
        elif edit != "Switch unwind on":
            assert states == UNDONE.keys()
    assert len(edits) >= 16
    assert {state.kind for state in STATES.values()} == {
        "message", "runs", "sleep", "each", "loop", "child", "children"
    }  # fmt: skip


def test_a_page_that_is_wrong_is_found() -> None:
    """The words come from the run, not from the page."""
    row = next(row for row in ROWS if row.edit == "Remove it" and row.state.startswith("waiting for two"))
    assert words(carry_out(row)) == "calls nothing; **invalid**: `step-missing`"
