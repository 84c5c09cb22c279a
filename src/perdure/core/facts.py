"""The facts of a run: immutable, tagged with their wire names, closed [J-1, J-13].

A fact's run, sequence number and time are those of the journal row and its place in it, so they are not repeated
inside. Payloads (input, states, output) stay encoded: a fact embeds them as JSON, so that the journal reads with
plain SQL, and nobody can change what was committed [M-2, M-7].
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.core.unit_facts import (
    BoundaryCompletionAdmitted,
    BoundaryDispatchCompleted,
    BoundaryInteractionCreated,
    BoundaryInteractionDispatched,
    BoundaryOpened,
    BoundaryResolved,
    ItemFailed,
    ItemOutputRecorded,
    ItemReserved,
    ItemRetryScheduled,
)
from perdure.core.words import (
    NULL,
    PRIORITIES,
    AnyFact,
    EndStatus,
    Failure,
    FailureKind,
    ItemCounts,
    Outcome,
    Parent,
    ParkShape,
    Phase,
    Resolution,
    RetryCause,
    Shape,
    SlotMode,
    UnitShape,
    WaitMode,
)

__all__ = (  # what stands elsewhere and belongs here; the facts below are exported as they stand
    "NULL",
    "PRIORITIES",
    "EndStatus",
    "Failure",
    "FailureKind",
    "ItemCounts",
    "Outcome",
    "Parent",
    "ParkShape",
    "Phase",
    "Resolution",
    "RetryCause",
    "Shape",
    "SlotMode",
    "UnitShape",
    "WaitMode",
    "BoundaryOpened",
    "BoundaryInteractionCreated",
    "BoundaryInteractionDispatched",
    "BoundaryDispatchCompleted",
    "BoundaryCompletionAdmitted",
    "ItemReserved",
    "ItemRetryScheduled",
    "ItemOutputRecorded",
    "ItemFailed",
    "BoundaryResolved",
)

# --- run


class RunSubmitted(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="RunSubmitted"):
    """A run exists. The first fact of every journal; its input never changes [M-2].

    Attributes:
        run_id: the run's id, time-ordered and opaque.
        pipeline: the pipeline's id.
        input: the encoded input.
        input_digest: SHA-256 of the input's canonical encoding, in hex; equality of inputs is equality of these [J-4].
        resource: what the run is about; the run id by default.
        slot: how runs of one resource exclude each other [M-1].
        start_at_us: not before this time; 0: at once.
        deadline_us: canceled with reason `deadline` at this time; 0: never [R-12].
        waits: the slot was busy: it waits for its turn, or for the end of those before it, which it replaces [R-5].
        priority: which runs come first where more are due than there are places, see `PRIORITIES` [R-1].
        parent: the run that waits for this one; None: nobody's child.
        mutexes: names that at most one run has for the resource, of whatever pipeline [R-10].
    """

    run_id: str
    pipeline: str
    input: msgspec.Raw
    input_digest: str
    resource: str
    tenant: str = "default"
    slot: SlotMode = "live"
    start_at_us: int = 0
    deadline_us: int = 0
    actor: str = ""
    annotations: dict[str, str] = {}  # noqa: RUF012  # msgspec copies it; no other empty default is left out of the text
    waits: WaitMode = ""
    priority: int = 0
    parent: Parent | None = None
    mutexes: tuple[str, ...] = ()


class RunCancelRequested(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="RunCancelRequested"):
    """Somebody asked for the run to be canceled; the first request wins [R-12]."""

    actor: str
    reason: str = "canceled"


class RunHeld(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="RunHeld"):
    """No new attempt starts until `RunReleased` [R-17].

    Attributes:
        step: the operation whose policy held the run; such a hold ends with the operation. Empty: an operator's.
    """

    actor: str
    reason: str
    note: str = ""
    step: str = ""


class RunReleased(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="RunReleased"):
    """A hold ended, or a backoff was cut short; a bounded retry policy counts from zero again [R-17, M-5].

    Attributes:
        retry: whatever the run waits for, now: also a delayed start. Without it a run that never started keeps its
            `start_at`.
    """

    actor: str
    note: str = ""
    retry: bool = False


class RunAbandoned(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="RunAbandoned"):
    """An operator gave the run up; outcome and end follow in the same append [D-7].

    Attributes:
        failure: becomes the run's, of kind `abandoned`.
    """

    actor: str
    failure: Failure
    note: str = ""


class RunPrioritized(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="RunPrioritized"):
    """An operator gave the run another priority; it counts from the next time the run is due [R-1, R-17]."""

    actor: str
    priority: int
    note: str = ""


class MessageReceived(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="MessageReceived"):
    """A message came; kept in order of arrival, and consumed once by an await that names it [B-24].

    Attributes:
        key: makes it idempotent among messages of its name; empty: it is a message of its own.
        digest: SHA-256 of the payload's canonical encoding, in hex: equal messages are equal in it [J-4].
    """

    name: str
    payload: msgspec.Raw
    digest: str
    actor: str
    key: str = ""


class OutcomeCommitted(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OutcomeCommitted"):
    """The run's outcome and output are decided; no deployment and no cancel changes them [E-10, M-12]."""

    outcome: Outcome
    output: msgspec.Raw = NULL
    publications: tuple[str, ...] = ()


class RunSucceeded(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="RunSucceeded"):
    """Terminal. Steps that ended in doubt are named on success too [U-9]."""

    in_doubt: tuple[str, ...] = ()


class RunFailed(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="RunFailed"):
    """Terminal. Carries the failure, what unwinding could not do, and the four lists of U-9, sorted by id.

    Attributes:
        item_counts: of the steps of items, turns or child runs that did not succeed, sorted by id [U-12].
    """

    failure: Failure
    unwind_failures: tuple[Failure, ...] = ()
    in_doubt: tuple[str, ...] = ()
    half_unwound: tuple[str, ...] = ()
    uncompensated: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    item_counts: tuple[ItemCounts, ...] = ()


# --- segment


class SegmentAttemptStarted(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="SegmentAttemptStarted"):
    """A worker claimed the run; its fencing token is greater than all before it [R-3, J-7]."""

    token: int
    worker: str
    generation: int
    build: str = ""


class SegmentSuspended(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="SegmentSuspended"):
    """The segment ended at a step that waits; the run holds no worker until that is resolved [J-16, B-12]."""

    step: str


class ContinuationSegmentCreated(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="ContinuationSegmentCreated"):
    """What the last segment waited for is resolved; the next one begins [J-16]."""


class SegmentCompleted(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="SegmentCompleted"):
    """The last segment of the run ended: forward work or unwind is complete [J-16]."""


# --- operation


class OperationReserved(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OperationReserved"):
    """An attempt of an operation may start; durable before its handler does [M-8].

    Attributes:
        passed: forward: ids newly passed, which never run for this run [E-7].
        crossed: unwind: ids newly crossed, which never unwind any more [U-4].
    """

    step: str
    attempt: int
    phase: Phase = "forward"
    passed: tuple[str, ...] = ()
    crossed: tuple[str, ...] = ()


class OperationProgress(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OperationProgress"):
    """A value remembered inside an unresolved operation, or inside one of its items [M-15, B-23]."""

    step: str
    name: str
    value: msgspec.Raw
    phase: Phase = "forward"
    item: int | None = None


class OperationSucceeded(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OperationSucceeded"):
    """A handler returned; its value is the step's state, committed with the success [M-6]. Attempt 0: a wait ended."""

    step: str
    attempt: int
    state: msgspec.Raw = NULL
    phase: Phase = "forward"


class OperationRetryScheduled(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OperationRetryScheduled"):
    """An attempt ended and left the operation unresolved; the next one starts at `due_us` at the earliest [M-17]."""

    step: str
    attempt: int
    cause: RetryCause
    due_us: int
    failure: Failure | None = None
    phase: Phase = "forward"


class OperationFailed(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OperationFailed"):
    """An operation ended without success: by `Fail`, by policy, or by a cancel without a call.

    Attributes:
        in_doubt: forward: an attempt was reserved and the end was not the handler's own word [U-9].
        passed: ids newly passed, where no reservation recorded them.
    """

    step: str
    failure: Failure
    phase: Phase = "forward"
    in_doubt: bool = False
    passed: tuple[str, ...] = ()


class OperationSkipped(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OperationSkipped"):
    """The step's condition was false; it is never asked again [E-12]."""

    step: str
    passed: tuple[str, ...] = ()


class OperationParked(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OperationParked"):
    """A wait opened: without an attempt, for there is nothing to call, and never in doubt [B-15, B-20].

    Its end is an `OperationSucceeded` of attempt 0, or an `OperationFailed`. All of it is fixed here, whatever is
    deployed meanwhile.

    Attributes:
        shape: what it waits for.
        due_us: when a sleep is over, and when another wait has lasted too long; 0: never.
        awaits: the name of the message, or the ids of the runs.
        need: how many of the runs have to end.
        passed: ids newly passed [E-7].
    """

    step: str
    due_us: int = 0
    shape: ParkShape = "sleep"
    awaits: tuple[str, ...] = ()
    need: int = 0
    passed: tuple[str, ...] = ()


class OperationWoken(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OperationWoken"):
    """What a parked step waited for has come; by a message: the first unread one of the name, consumed by this [B-24].

    Attributes:
        key: of the message.
    """

    step: str
    by: Literal["message", "runs", "time"]
    key: str = ""


class OperationResolved(AnyFact, frozen=True, omit_defaults=True, gc=False, tag="OperationResolved"):
    """An operator resolved the operation: with a value, as skipped, or as failed [R-17]."""

    step: str
    how: Resolution
    actor: str
    phase: Phase = "forward"
    state: msgspec.Raw = NULL
    note: str = ""
    passed: tuple[str, ...] = ()
    crossed: tuple[str, ...] = ()
    failure: Failure | None = None


Fact: TypeAlias = (
    RunSubmitted
    | RunCancelRequested
    | RunHeld
    | RunReleased
    | RunAbandoned
    | RunPrioritized
    | MessageReceived
    | OutcomeCommitted
    | RunSucceeded
    | RunFailed
    | SegmentAttemptStarted
    | SegmentSuspended
    | ContinuationSegmentCreated
    | SegmentCompleted
    | OperationReserved
    | OperationProgress
    | OperationSucceeded
    | OperationRetryScheduled
    | OperationFailed
    | OperationSkipped
    | OperationParked
    | OperationWoken
    | OperationResolved
    | BoundaryOpened
    | BoundaryInteractionCreated
    | BoundaryInteractionDispatched
    | BoundaryDispatchCompleted
    | BoundaryCompletionAdmitted
    | ItemReserved
    | ItemRetryScheduled
    | ItemOutputRecorded
    | ItemFailed
    | BoundaryResolved
)
"""Every fact this release writes and reads. A new one breaks the type check of each reader until it handles it."""
