"""What a run does next: the answers of the reconciler, a closed union."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.core.facts import ParkShape, UnitShape

InvalidReason: TypeAlias = Literal[
    "step-missing",
    "no-safe-frontier",
    "no-safe-unwind-frontier",
    "pipeline-missing",
    "condition-raised",
    "output-raised",
    "opening-raised",
    "limit-key-raised",
    "state-missing",
    "payload-unreadable",
    "payload-unserialisable",
    "contract-broken",
    "shape-changed",
]
"""Why the current deployment cannot continue a run [D-1]; stable words, for counting and for operators."""


class RunOp(msgspec.Struct, frozen=True, gc=False):
    """Run a forward step as attempt `attempt`; `started`: it was reserved before, so its condition is not asked."""

    step: str
    position: int
    attempt: int
    started: bool


class EvaluateOp(msgspec.Struct, frozen=True, gc=False):
    """Ask the condition of a step that was never started: false skips it, true runs it [E-12]."""

    step: str
    position: int


class WaitOp(msgspec.Struct, frozen=True, gc=False):
    """Open a wait, for a time, a message or other runs; or see whether one that is open is over [B-15, R-13]."""

    step: str
    position: int
    shape: ParkShape
    open: bool


class UnitOp(msgspec.Struct, frozen=True, gc=False):
    """Open a unit of items or child runs, or go on with it [B-2, B-21].

    Attributes:
        start: what is reserved by now and to be done: attempts of items by index; or child runs to submit.
    """

    step: str
    position: int
    shape: UnitShape
    open: bool
    start: tuple[tuple[int, int], ...] = ()


class UnwindOp(msgspec.Struct, frozen=True, gc=False):
    """Unwind a step as attempt `attempt`; `in_doubt`: by its second handler, which takes no state [U-12]."""

    step: str
    position: int
    attempt: int
    in_doubt: bool


class CancelOp(msgspec.Struct, frozen=True, gc=False):
    """Resolve a forward step as canceled, without a call [R-12]; `in_doubt`: an attempt had been reserved."""

    step: str
    position: int
    in_doubt: bool


class CompleteOp(msgspec.Struct, frozen=True, gc=False):
    """Forward work is complete: call the output function and commit the success [E-6, E-10]."""


class FailOp(msgspec.Struct, frozen=True, gc=False):
    """Nothing is left to unwind: commit the failure with its lists [U-9]."""


class HeldOp(msgspec.Struct, frozen=True, gc=False):
    """Nothing, until an operator releases the run [R-17]."""

    reason: str


class InvalidOp(msgspec.Struct, frozen=True, gc=False):
    """The current deployment cannot continue the run safely [D-1]."""

    reason: InvalidReason
    detail: str


class EndedOp(msgspec.Struct, frozen=True, gc=False):
    """The run has ended; nothing follows."""


Operation: TypeAlias = (
    RunOp | EvaluateOp | WaitOp | UnitOp | UnwindOp | CancelOp | CompleteOp | FailOp | HeldOp | InvalidOp | EndedOp
)
