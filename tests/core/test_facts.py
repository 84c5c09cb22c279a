"""J-1, J-13: what a fact is, and what it is called."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import facts, unit_facts
from perdure.core.facts import NULL, Fact, OperationReserved, OperationSucceeded
from perdure.core.journal import KNOWN, decode_facts, encode_facts
from perdure.core.words import AnyFact
from tests.core.strategies import FACTS

WIRE_NAMES = """
    RunSubmitted RunCancelRequested RunHeld RunReleased RunAbandoned RunPrioritized MessageReceived OutcomeCommitted
    RunSucceeded RunFailed SegmentAttemptStarted SegmentSuspended ContinuationSegmentCreated SegmentCompleted
    OperationReserved OperationProgress OperationSucceeded OperationRetryScheduled OperationFailed OperationSkipped
    OperationParked OperationWoken OperationResolved
    BoundaryOpened BoundaryInteractionCreated BoundaryInteractionDispatched BoundaryDispatchCompleted
    BoundaryCompletionAdmitted ItemReserved ItemRetryScheduled ItemOutputRecorded ItemFailed BoundaryResolved
""".split()


def test_the_wire_names_stay_as_they_are() -> None:
    """J-13: a renamed class would make every stored journal unreadable."""
    assert [kind.__name__ for kind in get_args(Fact)] == WIRE_NAMES
    assert [msgspec.inspect.type_info(kind).tag for kind in get_args(Fact)] == WIRE_NAMES  # type: ignore[attr-defined] # all are structs
    assert list(KNOWN) == WIRE_NAMES


def test_every_fact_of_the_module_is_in_the_union() -> None:
    """No fact is written that a reader does not have to handle."""
    modules = (facts, unit_facts)
    made = {v for m in modules for v in vars(m).values() if isinstance(v, type) and issubclass(v, AnyFact)}
    assert made - {AnyFact} == set(get_args(Fact)) == set(FACTS)


@pytest.mark.parametrize("kind", FACTS, ids=lambda kind: kind.__name__)
def test_a_fact_cannot_be_changed(kind: type[Fact]) -> None:
    """J-1, M-2."""

    @given(FACTS[kind])
    def check(fact: Fact) -> None:
        for field in fact.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(fact, field, "other")

    check()


@given(st.lists(st.one_of(*FACTS.values()), max_size=4))
def test_every_fact_reads_back_as_it_was_written(written: list[Fact]) -> None:
    """J-13."""
    text = encode_facts(written)
    assert decode_facts("r", 1, text) == written
    assert encode_facts(decode_facts("r", 1, text)) == text


def test_the_text_is_plain_json_with_names_first() -> None:
    """J-11: journals are read with SQL; payloads are embedded as they were encoded, defaults take no room."""
    text = encode_facts([OperationSucceeded("A", 1, msgspec.Raw(b'{"seat": "12A"}')), OperationReserved("B", 1)])
    assert text == (
        b'[{"fact":"OperationSucceeded","step":"A","attempt":1,"state":{"seat": "12A"}},'
        b'{"fact":"OperationReserved","step":"B","attempt":1}]'
    )


def test_no_state_is_null() -> None:
    assert bytes(NULL) == b"null"
    read = decode_facts("r", 1, encode_facts([OperationSucceeded("A", 1)]))[0]
    assert isinstance(read, OperationSucceeded)
    assert bytes(read.state) == b"null"
