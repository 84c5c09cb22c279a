"""What a handler may say besides returning, and what the engine is told when a handler breaks its contract."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from perdure.core.facts import FailureKind
from perdure.errors import PayloadError

BrokenReason: TypeAlias = Literal[
    "state-missing",
    "need-undeclared",
    "step-called",
    "memo-unusable",
    "transaction-unusable",
    "function-impure",
    "substitute-unusable",
    "payload-unreadable",
    "opening-unusable",
]


class FailureDetail:
    """Mixin for exceptions that know kind and reason of a failure [M-10].

    They are found anywhere in the cause chain of what a handler raised, nearest first, each on its own. Arguments
    given to `Fail` win over them.

    Attributes:
        kind: whose doing; None: says nothing.
        reason: a word of low cardinality; None: says nothing.
    """

    kind: FailureKind | None = None
    reason: str | None = None


class Fail(Exception):  # a decision, not an error
    """The handler's word that its operation failed for good [M-9].

    Raised forward it says: I have cleaned up what I had done, do not unwind me. Raised in unwind it is recorded as a
    permanent unwind failure, and the traversal goes on [U-8].

    Args:
        message: for people.
        reason: a word of low cardinality, for counting.
        kind: whose doing; it informs and never changes scheduling.
    """

    def __init__(self, message: str = "", *, reason: str | None = None, kind: FailureKind | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.kind = kind


class BrokenContract(Exception):
    """A handler, condition or output function did what it must not; the run is invalid, and nothing is retried [D-1].

    It is also kept in `Invocation.broken`, so that a handler that swallows it changes nothing.
    """

    reason: ClassVar[BrokenReason]


class MissingState(BrokenContract):
    """The state of a step was read that this run does not have, and that has no `if_skipped` [M-14]."""

    reason = "state-missing"

    def __init__(self, reader: str, step: str) -> None:
        super().__init__(
            f"{reader} reads the state of step {step!r}, which this run does not have: it "
            f"was past that step, or skipped it. Give the step `if_skipped`, or read it with `inv.get(...)`"
        )
        self.step = step


class UndeclaredNeed(BrokenContract):
    """A state was read that is not listed under `needs`, or with `inv[...]` though it is listed as optional [M-14]."""

    reason = "need-undeclared"

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step


class StepCalled(BrokenContract):
    """A step was called like a function with the engine's invocation; only the engine starts attempts [M-8]."""

    reason = "step-called"

    def __init__(self, caller: str, step: str) -> None:
        super().__init__(f"{caller} calls step {step!r} like a function; list it under `needs` and read `inv[...]`")


class UnusableMemo(BrokenContract):
    """A memo has no name, no type to decode its value with, or a value that does not fit it [M-15]."""

    reason = "memo-unusable"


class UnusableTransaction(BrokenContract):
    """There is no transaction for this handler, or it was ended by it [I-1]."""

    reason = "transaction-unusable"


class ImpureFunction(BrokenContract):
    """A condition, substitute or output function reached for something that only a handler has [E-12, M-13]."""

    reason = "function-impure"

    def __init__(self, reader: str, attribute: str) -> None:
        super().__init__(f"{reader}: conditions and outputs are pure; `inv.{attribute}` is for handlers only")


class UnusableSubstitute(BrokenContract):
    """The `if_skipped` of a step raised, or made what cannot be a state of that step [M-14]."""

    reason = "substitute-unusable"


class UnusableOpening(BrokenContract):
    """What the author's function says a step waits for, or what its items are, is of no use [B-2, B-20]."""

    reason = "opening-unusable"


class UnreadablePayload(BrokenContract):
    """Something stored does not fit its type as it is now [P-3]."""

    reason = "payload-unreadable"

    def __init__(self, what: str, error: PayloadError) -> None:
        super().__init__(f"{what} cannot be read: {error}")
        self.error = error
