"""What clients show of a run, as plain values."""

from __future__ import annotations

import msgspec

from perdure.core.facts import Fact, UnitShape
from perdure.core.projection import Projection
from perdure.ports.store import TERMINAL, RunRow, RunStatus
from perdure.runtime.indexing import standing_at


class UnitProgress(msgspec.Struct, frozen=True):
    """How far the items, turns or child runs of the step are at which a run stands [B-2].

    Attributes:
        total: items, or child runs; None of a loop, which does not know how many turns there will be.
        done: items with an output, turns that are over, child runs that succeeded.
        failed: for good.
        open: with an attempt that is running, or was when its worker was lost; of child runs: that have not ended.
    """

    step: str
    shape: UnitShape
    total: int | None
    done: int
    failed: int
    open: int


class RunInfo(msgspec.Struct, frozen=True):
    """A run as its index row has it. Times are microseconds since the epoch, UTC.

    Attributes:
        due_us: when the run wants a worker; None while it is owned, held, or ended.
        reason: why it is held, invalid, failed or backing off.
        step: the step it stands at, as far as the index knows.
        attention: facts from outside wait to be seen by the owner.
        priority: higher comes first where more runs are due than there are places [R-1].
        parent: the run whose child this is, empty if it is nobody's [B-21]; only `info` and `watch` look for it.
        progress: of the items at which it stands, where there are any; only `info` and `watch` look for it.
        annotations: labels that it was submitted with.
        waits_for_worker: in words, what worker it waits for, where nobody who works on the store now can take it
            [D-4], or what becomes of it where its own does not answer, for which only `info` and `watch` look; empty
            otherwise, and where one engine owns the store. Nothing of it is stored.
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
    parent: str = ""
    progress: UnitProgress | None = None
    annotations: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    waits_for_worker: str = ""

    @property
    def ended(self) -> bool:
        """Whether the run is terminal."""
        return self.status in TERMINAL


def info_of(row: RunRow, p: Projection | None = None, *, lacks: str = "") -> RunInfo:
    """The row as a `RunInfo`; with the run's facts, what they know better, or alone.

    Args:
        lacks: see `RunInfo.waits_for_worker`.
    """
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
        state.step if p is None else standing_at(p),
        state.generation,
        state.build,
        state.worker,
        state.canceling,
        row.attention,
        state.priority,
        "" if p is None or p.submitted is None or p.submitted.parent is None else p.submitted.parent.run_id,
        None if p is None else progress_of(p),
        dict(run.annotations),
        lacks,
    )


def progress_of(p: Projection) -> UnitProgress | None:
    """How far the open unit is; None where none is open."""
    unit = p.unit()
    if unit is None or p.pin is None:
        return None
    total = None if unit.shape == "loop" else len(unit.items)
    return UnitProgress(p.pin, unit.shape, total, unit.outputs, len(unit.failed), len(unit.open))


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
    """What retention did [R-9].

    Attributes:
        removed: runs.
        bytes: given back to the file system.
        remaining: runs old enough that are still there.
        archived: runs that were written to an archive, and removed then.
        parts: names of the parts they are in; one that was there already counts, too.
        findings: runs that stay because they would not come back from an archive as they were: damaged ones.
    """

    removed: int
    bytes: int
    remaining: int
    archived: int = 0
    parts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


class PartInfo(msgspec.Struct, frozen=True):
    """A part of an archive, as its name tells.

    Attributes:
        store: what the store is called there.
        from_us, to_us: its runs ended in between; whole seconds.
    """

    name: str
    store: str
    from_us: int
    to_us: int
    runs: int


class PartFinding(msgspec.Struct, frozen=True):
    """Something in an archive that is not as it was written; `run_id` is empty where no run can be named."""

    part: str
    run_id: str
    problem: str


class RestoreReport(msgspec.Struct, frozen=True):
    """What was read from an archive [R-9].

    Attributes:
        parts: that were read.
        runs, facts: that were asked for and are as they were written. A run that two parts have counts twice.
        restored: runs that were put into the store.
        known: runs that were there already.
        findings: what could not be read or does not fit; none of that was restored.
    """

    parts: int
    runs: int
    facts: int
    restored: int
    known: int
    findings: tuple[PartFinding, ...] = ()
