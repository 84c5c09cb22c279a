"""The words of the oracle and the sweep: steps, topologies, what can happen to a run, and what it must do next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

Shape: TypeAlias = Literal["handler", "wait", "unit"]
"""What a step is: one handler; a wait, in which nothing is called; or a unit, which has items."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a topology. `in_doubt` (a second handler for unwinding in doubt [U-12]) needs `unwind`."""

    id: str
    unwind: bool = False
    in_doubt: bool = False
    retired: bool = False
    shape: Shape = "handler"

    def __post_init__(self) -> None:
        if self.in_doubt and not self.unwind:
            raise ValueError(f"{self.id}: in doubt without unwind")

    def __str__(self) -> str:
        sign = {"handler": "", "wait": "!", "unit": "+"}[self.shape]
        return self.id + "*" * self.unwind + "?" * self.in_doubt + "~" * self.retired + sign


Topology: TypeAlias = tuple[Step, ...]


class What(Enum):
    """Everything that can happen to a run, as far as these rules look at it."""

    DEPLOYED = "deployed"  # the topology of this event is current from now on
    RESERVED = "reserved"  # a forward attempt
    OPENED = "opened"  # a wait or a unit; nothing is called [B-20]
    BEGUN = "begun"  # an attempt of the item of an open unit
    RETURNED = "returned"  # of a wait: what it waits for came; of a unit: its item has its output
    RAISED = "raised"  # an ordinary exception: unresolved, to be retried [M-5]
    LOST = "lost"  # the process died with the attempt
    FAILED = "failed"  # the handler's own `Fail` [M-9]
    GAVE_UP = "gave up"  # exhausted or never to be retried: failed, but not by the handler's own word [U-9]; timed out
    SKIPPED = "skipped"  # the condition was asked and is false [E-12]
    CANCEL_REQUESTED = "cancel requested"
    CANCEL_ACTED = "cancel acted"  # the selected operation is resolved as canceled without a call
    RESOLVED_VALUE = "resolved value"  # by an operator, forward or unwind, whatever is next
    RESOLVED_SKIP = "resolved skip"
    RESOLVED_FAIL = "resolved fail"
    OUTPUT_RETURNED = "output returned"
    OUTPUT_RAISED = "output raised"
    UNWIND_RESERVED = "unwind reserved"
    UNWIND_RETURNED = "unwind returned"
    UNWIND_RAISED = "unwind raised"
    UNWIND_LOST = "unwind lost"
    UNWIND_FAILED = "unwind failed"


FORWARD_ENDS = frozenset({What.RETURNED, What.RAISED, What.LOST, What.FAILED, What.GAVE_UP})
UNWIND_ENDS = frozenset({What.UNWIND_RETURNED, What.UNWIND_RAISED, What.UNWIND_LOST, What.UNWIND_FAILED})
RESOLUTIONS = frozenset({What.RESOLVED_VALUE, What.RESOLVED_SKIP, What.RESOLVED_FAIL})


@dataclass(frozen=True, slots=True)
class Event:
    what: What
    step: str = ""

    def __str__(self) -> str:
        return f"{self.what.value} {self.step}".rstrip()


@dataclass(frozen=True, slots=True)
class Happened:
    event: Event
    topology: Topology


World: TypeAlias = tuple[Happened, ...]


# What a run must do next ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lists:
    """The four lists of a failed run, ids sorted [U-9]."""

    in_doubt: tuple[str, ...] = ()
    half_unwound: tuple[str, ...] = ()
    uncompensated: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Call this step forward. Attempt 1: its condition is asked before [E-12]."""

    step: str
    attempt: int


@dataclass(frozen=True, slots=True)
class GoOn:
    """Go on with a wait or a unit that is open [B-15, B-20]."""

    step: str


@dataclass(frozen=True, slots=True)
class Unwind:
    step: str
    attempt: int
    in_doubt: bool


@dataclass(frozen=True, slots=True)
class CancelAt:
    """Resolve this forward operation as canceled without a call, then decide again [R-12]."""

    step: str


@dataclass(frozen=True, slots=True)
class Output:
    """Forward work is complete: call the output function."""

    in_doubt: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndSuccess:
    in_doubt: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndFailure:
    at: str
    lists: Lists


@dataclass(frozen=True, slots=True)
class EndCanceled:
    at: str
    lists: Lists


Why: TypeAlias = Literal[
    "unresolved step missing", "no safe frontier", "no safe unwind frontier", "output raised", "another shape"
]


@dataclass(frozen=True, slots=True)
class Invalid:
    why: Why


Decision: TypeAlias = Run | GoOn | Unwind | CancelAt | Output | EndSuccess | EndFailure | EndCanceled | Invalid
