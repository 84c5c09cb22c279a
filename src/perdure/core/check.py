"""What a deployment will mean for the runs that are under way: one look per distinct ledger, nothing changed [D-6]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from perdure.core.check_words import STANDS, sentences
from perdure.core.diff import TopologyDiff, diff
from perdure.core.drain import Drain, drains
from perdure.core.effects import Effects, compare
from perdure.core.frontier import view_of
from perdure.core.future import Candidate, Future, future
from perdure.core.operations import InvalidOp
from perdure.core.projection import Projection
from perdure.core.signature import Ledger, projection_of
from perdure.core.topology import Topology


class LedgerRuns(msgspec.Struct, frozen=True, gc=False):
    """How many live runs have a ledger.

    Attributes:
        example_run: the id of one of them, the oldest.
        oldest_us: when that one was submitted; 0 if nobody knows.
    """

    ledger: Ledger
    count: int
    example_run: str
    oldest_us: int = 0


class Kind(msgspec.Struct, frozen=True, gc=False):
    """Live runs that stand at the same place and to which the same will happen.

    Attributes:
        stand: the place, for people: `not started`, `charge/v1 is unresolved`, `approve/v1 waits for a message`,
            `after reserve/v1`.
        count, example_run, oldest_us: as in `LedgerRuns`.
        effects: what changes for them.
    """

    stand: str
    count: int
    example_run: str
    oldest_us: int
    effects: Effects


class PipelineCheck(msgspec.Struct, frozen=True, gc=False):
    """What becomes of the live runs of one pipeline. All numbers count runs, and a run may count in several.

    Attributes:
        known: a topology of it is deployed already.
        gone: what is about to be deployed does not have it; its runs become invalid.
        changes: what the edit does to the topology.
        ledgers: distinct ledgers among its runs.
        unchanged: nothing changes for them.
        invalid: become invalid, those that miss a state included.
        still_invalid: are invalid now and stay so.
        mended: are invalid now and go on.
        missing: will ask in vain for a state of another step [M-14].
        leaking: an effect that can be undone today can be undone no more, or nothing at all if it fails soon.
        gaining, losing: get steps to run, or have fewer of them ahead.
        passing: are past a step and will never run it.
        retyped: have stored a state, or an input, whose type is another now, and may read it.
        kinds: most frequent first.
        sentences: the same for people, what is worst first.
        drains: the retired steps of the topology that is about to be deployed.
    """

    pipeline: str
    known: bool
    gone: bool
    changes: TopologyDiff
    runs: int
    ledgers: int
    unchanged: int
    invalid: int
    still_invalid: int
    mended: int
    missing: int
    leaking: int
    gaining: int
    losing: int
    passing: int
    retyped: int
    kinds: tuple[Kind, ...]
    sentences: tuple[str, ...]
    drains: tuple[Drain, ...]


class CheckReport(msgspec.Struct, frozen=True, gc=False):
    """The answer of `check`.

    Attributes:
        pipelines: by id.
        unreadable: ids of live runs whose journal cannot be read, so that nothing is said of them.
    """

    pipelines: tuple[PipelineCheck, ...]
    unreadable: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """No run would become invalid."""
        return not any(p.invalid for p in self.pipelines)

    @property
    def leaks(self) -> bool:
        """Some run would lose the means to undo an effect."""
        return any(p.leaking for p in self.pipelines)

    @property
    def retyped(self) -> bool:
        """Some run may read what it stored as another type."""
        return any(p.retyped for p in self.pipelines)


def check_pipeline(
    pipeline: str, runs: Sequence[LedgerRuns], current: Candidate | None, new: Candidate | None
) -> PipelineCheck:
    """Check the live runs of one pipeline.

    Args:
        runs: by ledger; ended ones are passed over.
        current: what is deployed now, knowing all former generations; None if nothing is.
        new: what is about to be deployed, knowing all generations; None if the pipeline is left out.
    """
    live = [(r, _released(r.ledger)) for r in runs if r.ledger.outcome is None]
    kinds: dict[tuple[str, Effects], Kind] = {}
    for entry, p in live:
        was = None if current is None else future(p, current)
        stand = stand_of(p, None if current is None else current.topology)
        effects = compare(was, _gone(pipeline) if new is None else future(p, new))
        _count(kinds, stand, effects, entry)
    found = tuple(sorted(kinds.values(), key=lambda kind: (-kind.count, kind.stand, kind.example_run)))
    former = current.topology if current is not None else Topology(())
    drained = () if new is None else drains(((r.count, r.oldest_us, p) for r, p in live), former, new)
    return PipelineCheck(
        pipeline,
        current is not None,
        new is None,
        diff(former, new.topology) if new is not None and current is not None else TopologyDiff(),
        sum(entry.count for entry, _ in live),
        len(live),
        _sum(found, lambda e: e.none),
        _sum(found, lambda e: e.breaks),
        _sum(found, lambda e: e.validity == "stays invalid"),
        _sum(found, lambda e: e.validity == "mended"),
        _sum(found, lambda e: bool(e.misses)),
        _sum(found, lambda e: bool(e.leaks) or e.brittle),
        _sum(found, lambda e: bool(e.gains)),
        _sum(found, lambda e: bool(e.loses)),
        _sum(found, lambda e: bool(e.passes)),
        _sum(found, lambda e: bool(e.retyped)),
        found,
        sentences([(kind.count, kind.effects) for kind in found]),
        drained,
    )


def _released(ledger: Ledger) -> Projection:
    """A hold says nothing about what comes after it."""
    p = projection_of(ledger)
    p.held = None
    return p


def _gone(pipeline: str) -> Future:
    return Future(InvalidOp("pipeline-missing", f"pipeline {pipeline!r} is left out"), end="invalid")


def _count(kinds: dict[tuple[str, Effects], Kind], stand: str, effects: Effects, entry: LedgerRuns) -> None:
    known = kinds.get((stand, effects))
    count, example, oldest_us = entry.count, entry.example_run, entry.oldest_us
    if known is not None:
        count += known.count
        if known.oldest_us <= oldest_us:
            example, oldest_us = known.example_run, known.oldest_us
    kinds[stand, effects] = Kind(stand, count, example, oldest_us, effects)


def _sum(kinds: Iterable[Kind], holds: Callable[[Effects], bool]) -> int:
    return sum(kind.count for kind in kinds if holds(kind.effects))


def stand_of(p: Projection, topology: Topology | None) -> str:
    """Where a run stands, for people; runs that differ only in what is behind them stand at the same place."""
    if p.failure is not None:
        begun = f", {p.last_unwind} was last" if p.last_unwind is not None else ""
        return f"unwinding since {p.failure.step} failed{begun}"
    canceling = ", being canceled" if p.cancel is not None else ""
    if p.pin is not None:
        return f"{p.pin} {STANDS[p.forward[p.pin].shape]}{canceling}"
    if not p.forward:
        return f"not started{canceling}"
    if topology is not None:
        frontier = view_of(p, topology).frontier
        if frontier >= 0:
            return f"after {topology.ids[frontier]}{canceling}"
    return f"after {max(p.forward)}{canceling}"
