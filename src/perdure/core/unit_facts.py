"""The facts of units: items with a handler of their own, turns, child runs [B-1, B-2]. Part of `facts.Fact`."""

from __future__ import annotations

import msgspec

from perdure.core.words import NULL, AnyFact, EndStatus, Failure, RetryCause, UnitShape


class BoundaryOpened(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="BoundaryOpened"):
    """A unit opened. Its items are fixed here, whatever is deployed meanwhile [B-2, B-20].

    Attributes:
        items: the encoded items, the first of a loop, or the inputs of the child runs.
        pipeline: of the child runs.
        passed: ids newly passed [E-7].
    """

    step: str
    shape: UnitShape
    items: tuple[msgspec.Raw, ...]
    pipeline: str = ""
    passed: tuple[str, ...] = ()


class BoundaryInteractionCreated(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="BoundaryInteractionCreated"):
    """The child runs of these items are about to be submitted; their ids follow from the unit [B-1, B-21]."""

    step: str
    first: int
    count: int


class BoundaryInteractionDispatched(
    AnyFact, frozen=True, omit_defaults=True, gc=False, tag="BoundaryInteractionDispatched"
):
    """The child runs of these items are submitted, or were refused [B-1]."""

    step: str
    first: int
    count: int


class BoundaryDispatchCompleted(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="BoundaryDispatchCompleted"):
    """The child run of every item is submitted [B-1]."""

    step: str


class BoundaryCompletionAdmitted(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="BoundaryCompletionAdmitted"):
    """The child run of an item ended [B-21].

    Attributes:
        output: what it made, where it succeeded.
        failure: why it did not.
        in_doubt: it failed, and left effects behind [U-9].
    """

    step: str
    index: int
    status: EndStatus
    output: msgspec.Raw = NULL
    failure: Failure | None = None
    in_doubt: bool = False


class ItemReserved(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="ItemReserved"):
    """An attempt of an item may start; durable before its handler does [M-8]."""

    step: str
    index: int
    attempt: int


class ItemRetryScheduled(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="ItemRetryScheduled"):
    """An attempt of an item ended and left it unresolved; the next starts at `due_us` at the earliest [M-17]."""

    step: str
    index: int
    attempt: int
    cause: RetryCause
    due_us: int
    failure: Failure | None = None


class ItemOutputRecorded(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="ItemOutputRecorded"):
    """The handler of an item returned [B-10].

    Attributes:
        more: of a loop: the output is the item of the next turn; otherwise the loop is done [B-15].
    """

    step: str
    index: int
    attempt: int
    output: msgspec.Raw = NULL
    more: bool = False


class ItemFailed(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="ItemFailed"):
    """An item failed for good [B-22].

    Attributes:
        in_doubt: not by its handler's own word [U-9].
    """

    step: str
    index: int
    attempt: int
    failure: Failure
    in_doubt: bool = False


class BoundaryResolved(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="BoundaryResolved"):
    """The step of a unit succeeded. Its state follows from the outputs, in index order [B-10, M-6].

    Attributes:
        collect: failed items are part of the state, as failures [B-22].
    """

    step: str
    collect: bool = False
