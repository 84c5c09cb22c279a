"""The words that facts are made of: closed sets of wire values, failures, and the base of all facts."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Phase: TypeAlias = Literal["forward", "unwind"]
FailureKind: TypeAlias = Literal["system", "user", "canceled", "abandoned"]
RetryCause: TypeAlias = Literal["error", "timeout", "lost", "interrupted", "later"]
Resolution: TypeAlias = Literal["value", "skip", "fail"]
Outcome: TypeAlias = Literal["success", "failure"]
SlotMode: TypeAlias = Literal["live", "serial", "once", "none"]
WaitMode: TypeAlias = Literal["", "queue", "replace"]
ParkShape: TypeAlias = Literal["sleep", "message", "runs"]
UnitShape: TypeAlias = Literal["each", "loop", "child", "children"]
Shape: TypeAlias = Literal["handler"] | ParkShape | UnitShape
"""What a step is: one handler, a wait without a peer of its own, or a unit of items or child runs [B-2, B-15]."""

EndStatus: TypeAlias = Literal["succeeded", "failed", "canceled", "missing", "refused"]
"""How a run that another waits for ended; `missing`: there is none; `refused`: a child that could not be submitted."""

PRIORITIES = range(-9, 10)
"""The priorities there are: higher comes first, 0 is that of a run for which nothing is said [R-1]."""

NULL = msgspec.Raw(b"null")
"""The encoded `None`: the state of a step without one."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why an attempt or an operation ended without success [M-10].

    Attributes:
        step: the step that failed.
        message: for people, bounded in bytes, never with NUL or surrogates.
        phase: in which phase.
        attempt: the attempt, 0 where none was reserved.
        at_us: microseconds since the epoch.
        kind: whose doing; informs, never changes scheduling.
        reason: a word of low cardinality, for counting.
        error: the exception's type name, empty where there was none.
        item: of which item of the step, from 0; None where it has none.
        cause: the failure of the child run, where that is why [B-21].
    """

    step: str
    message: str
    phase: Phase = "forward"
    attempt: int = 0
    at_us: int = 0
    kind: FailureKind = "system"
    reason: str = "error"
    error: str = ""
    item: int | None = None
    cause: Failure | None = None


class ItemCounts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What became of the items, turns or child runs of a step that began one and did not succeed [U-12].

    Attributes:
        step: whose they are.
        items: how many there were; of a loop the turns that were due by then.
        completed: their handler returned, or their run succeeded.
        failed: by their own word, or their run's, and without doubt.
        in_doubt: begun, and what they did is not known from themselves.
    """

    step: str
    items: int
    completed: int = 0
    failed: int = 0
    in_doubt: int = 0

    @property
    def not_started(self) -> int:
        """Nothing was called or submitted for them."""
        return self.items - self.completed - self.failed - self.in_doubt


class Parent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Whose child a run is: a step of another run, and the index of its item [B-21]."""

    run_id: str
    step: str
    index: int = 0


class AnyFact(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, forbid_unknown_fields=True, tag_field="fact"):
    """Base of all facts; the tag is the class name, which is the wire name.

    A field that a newer release added is refused, not dropped: its meaning is unknown here [J-13].
    """
