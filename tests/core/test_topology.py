"""E-1, D-4: steps and flags as a value."""

from __future__ import annotations

import msgspec
import pytest

from perdure.core.topology import StepSpec, decode_steps, encode_steps
from perdure.errors import DefinitionError
from tests.core.build import topology


def test_positions_follow_the_order() -> None:
    """E-1."""
    made = topology("A B C")
    assert made.ids == ("A", "B", "C")
    assert made.position == {"A": 0, "B": 1, "C": 2}
    assert len(made) == 3
    assert len(topology("")) == 0


def test_a_step_stands_in_a_pipeline_once() -> None:
    with pytest.raises(DefinitionError, match="step 'B' stands in the pipeline twice"):
        topology("A B C B")


@pytest.mark.parametrize("text", ["B A", "A", "A B C", "A* B", "A*? B", "A~ B", "A& B", "A! B", "A B*", "a B"])
def test_content_decides_the_digest(text: str) -> None:
    """D-4: every flag and the order count."""
    assert topology(text).digest != topology("A B").digest
    assert topology(text).digest == topology(text).digest


def test_former_declarations_are_no_content() -> None:
    """D-4, U-9: what earlier generations declared is known and does not make another topology."""
    first, second = topology("A* B*? C"), topology("B C*")
    third = topology("A B", first, second)
    assert third.ever_unwind == {"A", "B", "C"}
    assert third.ever_in_doubt == {"B"}
    assert third.digest == topology("A B").digest
    assert topology("A B", third).ever_unwind == {"A", "B", "C"}, "handed on from generation to generation"


@pytest.mark.parametrize("text", ["", "A", "A* B*? C~ D& E! F*?~&!"])
def test_stored_steps_read_back(text: str) -> None:
    steps = topology(text).steps
    assert decode_steps(encode_steps(steps)) == steps


def test_flags_that_are_off_take_no_room() -> None:
    """The digest of steps written by this release stays, whatever flags a later one adds."""
    assert encode_steps((StepSpec("A"), StepSpec("B", unwind=True))) == b'[{"id":"A"},{"id":"B","unwind":true}]'
    digest = topology("A* B*? C~ D& E!").digest
    assert digest == "91222255d0e4041076cc7360ce5fae0b73eb21a3b119140d9f7450d0cc9f4730"


def test_other_bytes_are_refused() -> None:
    for data in (b"", b"{}", b'[{"unwind":true}]', b'[{"id":1}]'):
        with pytest.raises(msgspec.DecodeError):
            decode_steps(data)
