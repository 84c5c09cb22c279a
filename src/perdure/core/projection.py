"""What the facts of one run add up to: the result of folding them, owned by whoever folds [J-8].

A projection is mutable on purpose: one owner folds facts into it in place, so that a step costs the same at the start
and at the end of a long run. Pure functions read it and keep no alias.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.core.facts import (
    Failure,
    OutcomeCommitted,
    Phase,
    RunCancelRequested,
    RunFailed,
    RunHeld,
    RunSubmitted,
    RunSucceeded,
    Shape,
)
from perdure.core.frontier import View
from perdure.core.unit import Unit

ForwardStatus: TypeAlias = Literal["unresolved", "succeeded", "skipped", "failed"]
UnwindStatus: TypeAlias = Literal["unresolved", "succeeded", "failed"]

PARKS: frozenset[Shape] = frozenset({"sleep", "message", "runs"})
REDUCER_VERSION = 2
"""Rises whenever the meaning of a stored projection changes; older snapshots are then ignored."""


class ForwardEntry(msgspec.Struct, gc=False, omit_defaults=True):
    """The forward ledger of one step; a step without an entry never started.

    Attributes:
        attempts: reserved so far; only rises [M-8]. Of a unit: attempts of its items, or child runs submitted.
        state: the encoded state, there only after success [M-6].
        in_doubt: it ended, but not by the handler's own word [U-9].
        shape: what it was when it was started.
        until_us: when its sleep is over, or when it has waited too long; 0: never.
        awaits, need: the name of the message it waits for; or the ids of runs, and how many have to end.
    """

    status: ForwardStatus
    attempts: int = 0
    state: bytes | None = None
    in_doubt: bool = False
    shape: Shape = "handler"
    until_us: int = 0
    awaits: tuple[str, ...] = ()
    need: int = 0


class UnwindEntry(msgspec.Struct, gc=False, omit_defaults=True):
    """The unwind ledger of one step."""

    status: UnwindStatus
    attempts: int = 0


class Current(msgspec.Struct, gc=False, omit_defaults=True):
    """The operation reserved last, and how its attempts have gone.

    Attributes:
        open: an attempt is reserved and nothing is recorded of its end.
        failures: errors, time-outs and losses since the first attempt or the last release [M-5].
        lost: attempts lost in a row.
        last_failure: why the last recorded attempt did not succeed.
        later: the last recorded attempt asked to be called again later [B-15].
    """

    step: str
    phase: Phase = "forward"
    attempt: int = 0
    open: bool = False
    failures: int = 0
    lost: int = 0
    last_failure: Failure | None = None
    later: bool = False


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A message that nobody has consumed yet [B-24]."""

    payload: bytes
    key: str = ""


class Projection:
    """One run, folded. Every field is derived from facts; `view` is derived from the rest and a topology.

    Attributes:
        run_id, locator: the run; the locator is the store's own number of it.
        version: sequence number of the last fact folded; 0 before the first.
        row_seq, row_hash: first sequence and hash of the last row folded: the predecessor of the next append [J-2].
        token, worker, generation, build: of the newest claim [J-7].
        due_us: no attempt before this time; 0: none is waiting [R-4].
        pin: the unresolved forward step [E-2].
        last_unwind: the unwind reserved or resolved last; only it can pin [U-7].
        successes: number of forward successes.
        memos: values remembered by (phase, step), then name [M-15].
        priority: as submitted, or as an operator last said [R-1].
        units: of the steps that have items or child runs; gone once the state is made of them [B-2].
        messages: unread ones by name, in order of arrival [B-24].
        message_keys: digests of all messages with a key, by name and key.
        suspended: the segment ended at a wait, and none has begun since [J-16].
    """

    __slots__ = (
        "build",
        "cancel",
        "crossed",
        "current",
        "due_us",
        "ended",
        "ended_us",
        "failure",
        "forward",
        "generation",
        "held",
        "last_unwind",
        "locator",
        "memos",
        "message_keys",
        "messages",
        "outcome",
        "passed",
        "pin",
        "priority",
        "row_hash",
        "row_seq",
        "run_id",
        "submitted",
        "submitted_us",
        "successes",
        "suspended",
        "token",
        "units",
        "unwind",
        "unwind_failures",
        "version",
        "view",
        "worker",
    )

    def __init__(self, run_id: str, locator: int = 0) -> None:
        self.run_id = run_id
        self.locator = locator
        self.version = 0
        self.row_seq = 0
        self.row_hash = b""
        self.submitted: RunSubmitted | None = None
        self.submitted_us = 0
        self.priority = 0
        self.token = 0
        self.worker = ""
        self.generation = 0
        self.build = ""
        self.due_us = 0
        self.forward: dict[str, ForwardEntry] = {}
        self.unwind: dict[str, UnwindEntry] = {}
        self.passed: set[str] = set()
        self.crossed: set[str] = set()
        self.pin: str | None = None
        self.last_unwind: str | None = None
        self.successes = 0
        self.current: Current | None = None
        self.memos: dict[str, dict[str, bytes]] = {}
        self.cancel: RunCancelRequested | None = None
        self.held: RunHeld | None = None
        self.failure: Failure | None = None
        self.unwind_failures: list[Failure] = []
        self.outcome: OutcomeCommitted | None = None
        self.ended: RunSucceeded | RunFailed | None = None
        self.ended_us = 0
        self.units: dict[str, Unit] = {}
        self.messages: dict[str, list[Message]] = {}
        self.message_keys: dict[str, dict[str, str]] = {}
        self.suspended = False
        self.view: View | None = None

    def attempts(self, phase: Phase, step: str) -> int:
        """Attempts reserved so far of a step's operation."""
        entry = self.forward.get(step) if phase == "forward" else self.unwind.get(step)
        return 0 if entry is None else entry.attempts

    def pinned(self) -> ForwardEntry | None:
        """The entry of the unresolved forward step, else None [E-2]."""
        return self.forward[self.pin] if self.pin is not None else None

    def parked(self) -> ForwardEntry | None:
        """The entry of the step that waits without a handler, items or child runs of its own, else None [B-15]."""
        entry = self.pinned()
        return entry if entry is not None and entry.shape in PARKS else None

    def unit(self) -> Unit | None:
        """The unit that is open, else None [B-2]."""
        return self.units.get(self.pin) if self.pin is not None else None

    def state(self, step: str) -> bytes | None:
        """The encoded state of a step that succeeded, else None."""
        entry = self.forward.get(step)
        return None if entry is None else entry.state

    def memo(self, phase: Phase, step: str, name: str, item: int | None = None) -> bytes | None:
        """A value remembered inside an operation, or inside one of its items, else None [M-15, B-23]."""
        values = self.memos.get(memo_key(phase, step, item))
        return None if values is None else values.get(name)


def memo_key(phase: Phase, step: str, item: int | None = None) -> str:
    """The key of an operation's or an item's memos in `Projection.memos`."""
    return f"{phase}:{step}" if item is None else f"{phase}:{item}:{step}"


class Stored(msgspec.Struct, omit_defaults=True):
    """A projection as a snapshot holds it; tails and locator come from the store's row."""

    run_id: str
    version: int
    submitted: RunSubmitted
    submitted_us: int
    token: int
    worker: str
    generation: int
    build: str
    due_us: int
    forward: dict[str, ForwardEntry]
    unwind: dict[str, UnwindEntry]
    passed: set[str]
    crossed: set[str]
    pin: str | None
    last_unwind: str | None
    successes: int
    current: Current | None
    memos: dict[str, dict[str, bytes]]
    cancel: RunCancelRequested | None
    held: RunHeld | None
    failure: Failure | None
    unwind_failures: list[Failure]
    outcome: OutcomeCommitted | None
    ended: RunSucceeded | RunFailed | None
    ended_us: int
    priority: int = 0
    units: dict[str, Unit] = {}
    messages: dict[str, list[Message]] = {}
    message_keys: dict[str, dict[str, str]] = {}
    suspended: bool = False


_FIELDS = tuple(Stored.__struct_fields__)
_encoder = msgspec.json.Encoder(order="deterministic")  # equal projections give equal bytes, whatever a set's order
_decoder = msgspec.json.Decoder(Stored)


def dump(p: Projection) -> bytes:
    """The projection as bytes for a snapshot; O(steps)."""
    return _encoder.encode({name: getattr(p, name) for name in _FIELDS})


def restore(data: bytes, locator: int, row_seq: int, row_hash: bytes) -> Projection:
    """A projection from `dump`, standing at the given row.

    Raises:
        msgspec.DecodeError: the bytes are not a snapshot of this release; the caller folds from the start instead.
    """
    stored = _decoder.decode(data)
    p = Projection(stored.run_id, locator)
    for name in _FIELDS:
        setattr(p, name, getattr(stored, name))
    p.row_seq, p.row_hash = row_seq, row_hash
    return p
