"""What a run's next operations depend on, without attempts, times and payloads: few runs differ in it [D-6].

A hundred thousand live runs of one pipeline stand at some dozens of places. `ledger_of` takes from a projection what
`reconcile` and the lists of U-9 look at; runs with equal ledgers have equal signatures, and do the same under every
topology. `projection_of` goes back, so that a deployment can be checked once per ledger instead of once per run.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

import msgspec

from perdure.core.facts import Failure, FailureKind, OutcomeCommitted, RunCancelRequested, RunHeld, Shape
from perdure.core.projection import ForwardEntry, ForwardStatus, Projection, UnwindEntry, UnwindStatus

SIGNATURE_BYTES = 16
MOST_ENTRIES = 512
"""A run with more steps than this behind it has no signature: its ledger is nearly its own, and costs as much to write
as its history is long, at every rest. It is folded from its facts instead."""

LedgerPhase: TypeAlias = Literal["forward", "unwind"]
LedgerOutcome: TypeAlias = Literal["success", "failure"]


class LedgerStep(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One step going forward.

    Attributes:
        started: an attempt was reserved; of a unit: of any of its items.
        in_doubt: it ended by another's word than the handler's [U-9].
    """

    status: ForwardStatus
    started: bool = True
    in_doubt: bool = False
    shape: Shape = "handler"


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The ledger of a run, as a value; equal ledgers encode to equal bytes.

    Attributes:
        phase: `unwind` from the first failed step on.
        pin: the unresolved forward step [E-2].
        forward: by step; what never started is not there.
        passed, crossed: sorted by id [E-7, U-4].
        last_unwind: the unwind reserved or resolved last [U-7].
        failed_step, failed_kind: what began the unwind.
        canceling: a cancel was requested.
        held: an operator or a policy holds it.
        outcome: committed; nothing follows.
    """

    phase: LedgerPhase = "forward"
    pin: str | None = None
    forward: dict[str, LedgerStep] = {}
    passed: tuple[str, ...] = ()
    unwind: dict[str, UnwindStatus] = {}
    crossed: tuple[str, ...] = ()
    last_unwind: str | None = None
    failed_step: str = ""
    failed_kind: FailureKind = "system"
    canceling: bool = False
    held: bool = False
    outcome: LedgerOutcome | None = None


_encode = msgspec.json.Encoder(order="deterministic").encode
_decoder = msgspec.json.Decoder(Ledger)


def ledger_of(p: Projection) -> Ledger:
    """The ledger of a run; O(steps)."""
    failure = p.failure
    return Ledger(
        "forward" if failure is None else "unwind",
        p.pin,
        {step: LedgerStep(e.status, e.attempts > 0, e.in_doubt, e.shape) for step, e in p.forward.items()},
        tuple(sorted(p.passed)),
        {step: e.status for step, e in p.unwind.items()},
        tuple(sorted(p.crossed)),
        p.last_unwind,
        "" if failure is None else failure.step,
        "system" if failure is None else failure.kind,
        p.cancel is not None,
        p.held is not None,
        None if p.outcome is None else p.outcome.outcome,
    )


def projection_of(ledger: Ledger) -> Projection:
    """A projection that `reconcile`, `explain` and `Lists` answer as for the run itself, but for attempt numbers."""
    p = Projection("")
    p.pin = ledger.pin
    p.passed = set(ledger.passed)
    p.crossed = set(ledger.crossed)
    p.last_unwind = ledger.last_unwind
    for step, entry in ledger.forward.items():
        succeeded = entry.status == "succeeded"
        state = b"null" if succeeded else None
        p.forward[step] = ForwardEntry(entry.status, int(entry.started), state, entry.in_doubt, entry.shape)
        p.successes += succeeded
    for step, status in ledger.unwind.items():
        p.unwind[step] = UnwindEntry(status, 1)
    if ledger.phase == "unwind":
        p.failure = Failure(ledger.failed_step, "", kind=ledger.failed_kind)
    if ledger.canceling:
        p.cancel = RunCancelRequested("")
    if ledger.held:
        p.held = RunHeld("", "")
    if ledger.outcome is not None:
        p.outcome = OutcomeCommitted(ledger.outcome)
    return p


def encode_ledger(ledger: Ledger) -> bytes:
    """The canonical JSON of a ledger: ids, statuses and flags, no payload."""
    return _encode(ledger)


def decode_ledger(data: bytes) -> Ledger:
    """A ledger as `encode_ledger` wrote it.

    Raises:
        msgspec.MsgspecError: the bytes are no ledger.
    """
    return _decoder.decode(data)


def signature_of(encoded: bytes) -> bytes:
    """The signature of an encoded ledger."""
    return hashlib.sha256(encoded).digest()[:SIGNATURE_BYTES]


NOT_STARTED = encode_ledger(Ledger())
NOT_STARTED_SIGNATURE = signature_of(NOT_STARTED)


def sign(p: Projection) -> tuple[bytes, bytes]:
    """Signature and encoded ledger of a run at rest; both empty once it has ended, or where it has too many steps."""
    if p.version == 1:
        return NOT_STARTED_SIGNATURE, NOT_STARTED
    if p.ended is not None or len(p.forward) + len(p.passed) > MOST_ENTRIES:
        return b"", b""
    encoded = encode_ledger(ledger_of(p))
    return signature_of(encoded), encoded
