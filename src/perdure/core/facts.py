"""The facts of a run: immutable, tagged with their wire names, closed [J-1, J-13].

A fact's run, sequence number and time are those of the journal row and its place in it, so they are not repeated
inside. Payloads (input, states, output) stay encoded: a fact embeds them as JSON, so that the journal reads with
plain SQL, and nobody can change what was committed [M-2, M-7].
"""

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
    """

    step: str
    message: str
    phase: Phase = "forward"
    attempt: int = 0
    at_us: int = 0
    kind: FailureKind = "system"
    reason: str = "error"
    error: str = ""


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, forbid_unknown_fields=True, tag_field="fact"):
    """Base of all facts; the tag is the class name, which is the wire name.

    A field that a newer release added is refused, not dropped: its meaning is unknown here [J-13].
    """


# --- run


class RunSubmitted(_Fact, frozen=True, omit_defaults=True, gc=False, tag="RunSubmitted"):
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
    annotations: dict[str, str] = {}
    waits: WaitMode = ""
    priority: int = 0


class RunCancelRequested(_Fact, frozen=True, omit_defaults=True, gc=False, tag="RunCancelRequested"):
    """Somebody asked for the run to be canceled; the first request wins [R-12]."""

    actor: str
    reason: str = "canceled"


class RunHeld(_Fact, frozen=True, omit_defaults=True, gc=False, tag="RunHeld"):
    """No new attempt starts until `RunReleased` [R-17].

    Attributes:
        step: the operation whose policy held the run; such a hold ends with the operation. Empty: an operator's.
    """

    actor: str
    reason: str
    note: str = ""
    step: str = ""


class RunReleased(_Fact, frozen=True, omit_defaults=True, gc=False, tag="RunReleased"):
    """A hold ended, or a backoff was cut short; a bounded retry policy counts from zero again [R-17, M-5].

    Attributes:
        retry: whatever the run waits for, now: also a delayed start. Without it a run that never started keeps its
            `start_at`.
    """

    actor: str
    note: str = ""
    retry: bool = False


class RunAbandoned(_Fact, frozen=True, omit_defaults=True, gc=False, tag="RunAbandoned"):
    """An operator gave the run up; outcome and end follow in the same append [D-7].

    Attributes:
        failure: becomes the run's, of kind `abandoned`.
    """

    actor: str
    failure: Failure
    note: str = ""


class RunPrioritized(_Fact, frozen=True, omit_defaults=True, gc=False, tag="RunPrioritized"):
    """An operator gave the run another priority; it counts from the next time the run is due [R-1, R-17]."""

    actor: str
    priority: int
    note: str = ""


class OutcomeCommitted(_Fact, frozen=True, omit_defaults=True, gc=False, tag="OutcomeCommitted"):
    """The run's outcome and output are decided; no deployment and no cancel changes them [E-10, M-12]."""

    outcome: Outcome
    output: msgspec.Raw = NULL
    publications: tuple[str, ...] = ()


class RunSucceeded(_Fact, frozen=True, omit_defaults=True, gc=False, tag="RunSucceeded"):
    """Terminal. Steps that ended in doubt are named on success too [U-9]."""

    in_doubt: tuple[str, ...] = ()


class RunFailed(_Fact, frozen=True, omit_defaults=True, gc=False, tag="RunFailed"):
    """Terminal. Carries the failure, what unwinding could not do, and the four lists of U-9, sorted by id."""

    failure: Failure
    unwind_failures: tuple[Failure, ...] = ()
    in_doubt: tuple[str, ...] = ()
    half_unwound: tuple[str, ...] = ()
    uncompensated: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()


# --- segment


class SegmentAttemptStarted(_Fact, frozen=True, omit_defaults=True, gc=False, tag="SegmentAttemptStarted"):
    """A worker claimed the run; its fencing token is greater than all before it [R-3, J-7]."""

    token: int
    worker: str
    generation: int
    build: str = ""


class SegmentCompleted(_Fact, frozen=True, omit_defaults=True, gc=False, tag="SegmentCompleted"):
    """The last segment of the run ended: forward work or unwind is complete [J-16]."""


# --- operation


class OperationReserved(_Fact, frozen=True, omit_defaults=True, gc=False, tag="OperationReserved"):
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


class OperationProgress(_Fact, frozen=True, omit_defaults=True, gc=False, tag="OperationProgress"):
    """A value remembered inside an unresolved operation [M-15]."""

    step: str
    name: str
    value: msgspec.Raw
    phase: Phase = "forward"


class OperationSucceeded(_Fact, frozen=True, omit_defaults=True, gc=False, tag="OperationSucceeded"):
    """A handler returned; its value is the step's state, committed with the success [M-6]. Attempt 0: a sleep ended."""

    step: str
    attempt: int
    state: msgspec.Raw = NULL
    phase: Phase = "forward"


class OperationRetryScheduled(_Fact, frozen=True, omit_defaults=True, gc=False, tag="OperationRetryScheduled"):
    """An attempt ended and left the operation unresolved; the next one starts at `due_us` at the earliest [M-17]."""

    step: str
    attempt: int
    cause: RetryCause
    due_us: int
    failure: Failure | None = None
    phase: Phase = "forward"


class OperationFailed(_Fact, frozen=True, omit_defaults=True, gc=False, tag="OperationFailed"):
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


class OperationSkipped(_Fact, frozen=True, omit_defaults=True, gc=False, tag="OperationSkipped"):
    """The step's condition was false; it is never asked again [E-12]."""

    step: str
    passed: tuple[str, ...] = ()


class OperationParked(_Fact, frozen=True, omit_defaults=True, gc=False, tag="OperationParked"):
    """A sleep opened: without an attempt, for there is nothing to call, and never in doubt [B-15, B-20].

    Its end is an `OperationSucceeded` of attempt 0.

    Attributes:
        due_us: when it is over; fixed here, whatever is deployed meanwhile.
        passed: ids newly passed [E-7].
    """

    step: str
    due_us: int
    passed: tuple[str, ...] = ()


class OperationResolved(_Fact, frozen=True, omit_defaults=True, gc=False, tag="OperationResolved"):
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
    | OutcomeCommitted
    | RunSucceeded
    | RunFailed
    | SegmentAttemptStarted
    | SegmentCompleted
    | OperationReserved
    | OperationProgress
    | OperationSucceeded
    | OperationRetryScheduled
    | OperationFailed
    | OperationSkipped
    | OperationParked
    | OperationResolved
)
"""Every fact this release writes and reads. A new one breaks the type check of each reader until it handles it."""
