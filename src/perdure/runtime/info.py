"""What clients show of a run, as plain values."""

from __future__ import annotations

import msgspec

from perdure.core.facts import Fact
from perdure.ports.store import TERMINAL, RunRow, RunStatus


class RunInfo(msgspec.Struct, frozen=True):
    """A run as its index row has it. Times are microseconds since the epoch, UTC.

    Attributes:
        due_us: when the run wants a worker; None while it is owned, held, or ended.
        reason: why it is held, invalid, failed or backing off.
        step: the step it stands at, as far as the index knows.
        attention: facts from outside wait to be seen by the owner.
        priority: higher comes first where more runs are due than there are places [R-1].
    """

    run_id: str
    pipeline: str
    tenant: str
    resource: str
    status: RunStatus
    submitted_us: int
    due_us: int | None
    ended_us: int | None
    deadline_us: int
    reason: str
    step: str
    generation: int
    build: str
    worker: str
    canceling: bool
    attention: bool
    priority: int = 0

    @property
    def ended(self) -> bool:
        """Whether the run is terminal."""
        return self.status in TERMINAL


def info_of(row: RunRow, step: str | None = None) -> RunInfo:
    """The row as a `RunInfo`; `step` where somebody knows better than the index."""
    run, state = row.run, row.state
    return RunInfo(
        run.run_id,
        run.pipeline,
        run.tenant,
        run.resource,
        state.status,
        run.submitted_us,
        state.due_us,
        row.ended_us,
        run.deadline_us,
        state.reason,
        state.step if step is None else step,
        state.generation,
        state.build,
        state.worker,
        state.canceling,
        row.attention,
        state.priority,
    )


class RecordedFact(msgspec.Struct, frozen=True):
    """One fact with its sequence number and time."""

    seq: int
    at_us: int
    fact: Fact


class Finding(msgspec.Struct, frozen=True):
    """Something that `verify` did not expect; `seq` is 0 where it concerns no fact."""

    run_id: str
    seq: int
    problem: str


class VerifyReport(msgspec.Struct, frozen=True):
    """What `verify` read and found [J-11]."""

    runs: int
    facts: int
    findings: tuple[Finding, ...]
    repaired: int = 0


class GcReport(msgspec.Struct, frozen=True):
    """What retention removed, and the bytes it gave back to the file system [R-9]."""

    removed: int
    bytes: int
    remaining: int
