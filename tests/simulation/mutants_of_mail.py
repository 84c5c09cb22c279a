"""Engines that break a promise about messages, or to a run that waits for one [B-8, B-20, B-24]."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perdure.core import plan as planning
from perdure.core.facts import Fact, MessageReceived, OperationFailed, OperationParked
from perdure.core.plan import Rest
from perdure.core.projection import Projection
from perdure.core.units import resting
from perdure.core.waits import parked
from tests.simulation.mutants import Mutant, emits
from tests.simulation.mutants_at_rest import folds_otherwise


def takes_the_last_message(patch: pytest.MonkeyPatch) -> None:
    def turned(p: Projection) -> None:
        for unread in filter(None, p.messages.values()):
            unread.insert(0, unread.pop())

    folds_otherwise(patch, MessageReceived, turned)


def forgets_the_keys_of_messages(patch: pytest.MonkeyPatch) -> None:
    folds_otherwise(patch, MessageReceived, lambda p: p.message_keys.clear())


def waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    original = planning.emit

    def emit(p: Projection, facts: list[Fact], fact: Fact, at_us: int) -> None:
        if isinstance(fact, OperationParked) and fact.shape == "message":
            fact = replace(fact, due_us=0)
        original(p, facts, fact, at_us)

    emits(patch, emit)


def doubts_what_waited_too_long(patch: pytest.MonkeyPatch) -> None:
    original = planning.emit

    def emit(p: Projection, facts: list[Fact], fact: Fact, at_us: int) -> None:
        if isinstance(fact, OperationFailed) and fact.failure.reason == "await-timeout":
            fact = replace(fact, in_doubt=True)
        original(p, facts, fact, at_us)

    emits(patch, emit)


def wakes_nobody_for_a_message(patch: pytest.MonkeyPatch) -> None:
    def asleep(p: Projection) -> Rest | None:
        entry = p.pinned()
        return parked(entry) if entry is not None and entry.shape == "message" else resting(p)

    patch.setattr("perdure.runtime.indexing.resting", asleep)


OF_MAIL = (
    Mutant("takes the last message", ("B-24",), takes_the_last_message),
    Mutant("forgets the keys of messages", ("B-24",), forgets_the_keys_of_messages),
    Mutant("waits for ever", ("B-20",), waits_for_ever),
    Mutant("doubts what waited too long", ("U-9",), doubts_what_waited_too_long),
    Mutant("wakes nobody for a message", ("R-16",), wakes_nobody_for_a_message),
)
