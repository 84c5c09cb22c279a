"""What operators do to runs, as values: for one run, and for many at once [R-17]."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.core.durations import Duration
from perdure.ports.store import RunStatus, WaitsFor
from perdure.runtime.run import UNSET


class HoldRun(msgspec.Struct, frozen=True):
    """Start no new attempt until it is released; see `Client.hold`."""

    reason: str = "operator"
    note: str = ""
    actor: str = ""


class ReleaseRun(msgspec.Struct, frozen=True):
    """Let a held run go on; see `Client.release`."""

    note: str = ""
    actor: str = ""


class RetryRun(msgspec.Struct, frozen=True):
    """Go on now, whatever it waits for; see `Client.retry`."""

    note: str = ""
    actor: str = ""


class CancelRun(msgspec.Struct, frozen=True):
    """Ask for it to be canceled; see `Client.cancel`."""

    reason: str = "canceled"
    actor: str = ""


class ResolveRun(msgspec.Struct, frozen=True):
    """Say how its next operation ended: exactly one of `value`, `skip` and `fail`; see `Client.resolve`."""

    step: str | None = None
    value: object = UNSET
    skip: bool = False
    fail: str | None = None
    note: str = ""
    actor: str = ""


class AbandonRun(msgspec.Struct, frozen=True):
    """Give it up; see `Client.abandon`."""

    note: str = ""
    actor: str = ""
    force: bool = False


class PrioritizeRun(msgspec.Struct, frozen=True):
    """Give it another priority; see `Client.prioritize`."""

    priority: int
    note: str = ""
    actor: str = ""


class SendMessage(msgspec.Struct, frozen=True):
    """Send it a message; see `Client.send`."""

    name: str
    payload: object = None
    key: str = ""
    actor: str = ""


RunOperation: TypeAlias = (
    HoldRun | ReleaseRun | RetryRun | CancelRun | ResolveRun | AbandonRun | PrioritizeRun | SendMessage
)


class Selector(msgspec.Struct, frozen=True):
    """Which runs: all that fit everything given; at least one thing has to be.

    Attributes:
        statuses: any of these; if there are none, every run that has not ended and is not corrupt.
        step: the step a run stands at, as `list` shows it: a run between two steps stands at none.
        reason: the word for why it is held, invalid or backing off, such as `attempts-exhausted`.
        older_than: submitted longer ago than this, in seconds or as a `timedelta`.
        worker: who owns it.
        waiting: what it waits for, any of these; see `Client.list`.
        annotations: all of these.
    """

    pipeline: str | None = None
    tenant: str | None = None
    resource: str | None = None
    statuses: tuple[RunStatus, ...] = ()
    step: str | None = None
    reason: str | None = None
    older_than: Duration | None = None
    worker: str | None = None
    waiting: tuple[WaitsFor, ...] = ()
    annotations: dict[str, str] | None = None


class RunVerdict(msgspec.Struct, frozen=True):
    """What became of one run of many.

    Attributes:
        status: the run's before the operation.
        verdict: `done`: it is recorded (or, in a dry run, would be); `duplicate`: it was recorded before; `refused`:
            nothing was written, and `detail` says why.
    """

    run_id: str
    pipeline: str
    status: RunStatus
    verdict: Literal["done", "duplicate", "refused"]
    detail: str = ""
