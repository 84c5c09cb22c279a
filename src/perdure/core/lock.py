"""The lock file: the topology of every pipeline as it was when its author last looked, committed beside the code [D-6].

It holds what a review needs to see: order, flags, needs, and the shape of every state type. It never holds runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from perdure.core.check_words import KINDS
from perdure.core.diff import TopologyDiff, diff
from perdure.core.facts import Shape
from perdure.core.future import INPUT, Candidate, Reads
from perdure.core.topology import StepSpec, Topology
from perdure.errors import DefinitionError, InvalidArgument

LOCK_VERSION = 1


class LockedType(msgspec.Struct, frozen=True):
    """A payload type.

    Attributes:
        type: its name, for people.
        shape: a digest of what can be stored in it; comments and the names of classes do not count.
    """

    type: str
    shape: str


class LockedStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step: its flags and `kind` (its shape) as in `StepSpec`, what it reads as in `Reads`, its state and items."""

    id: str
    state: LockedType
    unwind: bool = False
    in_doubt: bool = False
    retired: bool = False
    conditional: bool = False
    settle: bool = False
    needs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    if_skipped: bool = False
    kind: Shape = "handler"
    leaves: bool = False
    items: LockedType | None = None

    @property
    def spec(self) -> StepSpec:
        """What reconciliation needs to know."""
        flags = (self.unwind, self.in_doubt, self.retired, self.conditional, self.settle)
        return StepSpec(self.id, *flags, self.kind, self.leaves)

    @property
    def reads(self) -> Reads:
        """What it reads of others."""
        return Reads(self.needs, self.optional, self.if_skipped)


class LockedPipeline(msgspec.Struct, frozen=True):
    """One pipeline; `steps` in order."""

    input: LockedType
    steps: tuple[LockedStep, ...]

    def candidate(self) -> Candidate:
        """The topology and what its steps read.

        Raises:
            DefinitionError: a step stands in it twice, or there is none.
        """
        return self.since(None)

    def since(self, former: LockedPipeline | None) -> Candidate:
        """`candidate()`, knowing which types changed since a former lock.

        Raises:
            DefinitionError: as `candidate`.
        """
        if not self.steps:
            raise DefinitionError("it has no steps")
        topology = Topology(step.spec for step in self.steps)
        reads = {step.id: step.reads for step in self.steps}
        if former is None:
            return Candidate(topology, reads)
        return Candidate(topology, reads, retyped(former, self), reitemed(former, self))


class Lock(msgspec.Struct, frozen=True):
    """All pipelines of an application, by id."""

    pipelines: dict[str, LockedPipeline]
    perdure_lock: int = LOCK_VERSION

    def candidates(self, former: Lock | None = None) -> dict[str, Candidate]:
        """What would be deployed, and which types changed since a former lock.

        Raises:
            DefinitionError: a pipeline could not be; names it.
        """
        found: dict[str, Candidate] = {}
        for name, pipeline in self.pipelines.items():
            try:
                found[name] = pipeline.since(None if former is None else former.pipelines.get(name))
            except DefinitionError as error:
                raise DefinitionError(f"pipeline {name!r}: {error}") from None
        return found


class LockChange(msgspec.Struct, frozen=True):
    """What an edit did to one pipeline.

    Attributes:
        added, removed: the pipeline is on one side only.
        changes: of the topology.
        warnings: what runs under way may not survive, as sentences.
        notes: what they will survive and a reviewer should know.
    """

    pipeline: str
    added: bool
    removed: bool
    changes: TopologyDiff
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Nothing differs."""
        return not (self.added or self.removed or self.warnings or self.notes) and self.changes.empty


def encode_lock(lock: Lock) -> bytes:
    """The file: sorted, one field a line, the same for the same pipelines on every machine."""
    builtins = {"perdure_lock": lock.perdure_lock, "pipelines": dict(sorted(lock.pipelines.items()))}
    return msgspec.json.format(msgspec.json.encode(builtins), indent=2) + b"\n"


def decode_lock(data: bytes) -> Lock:
    """A lock file's content.

    Raises:
        InvalidArgument: it is none, or one of a newer release.
    """
    try:
        lock = msgspec.json.decode(data, type=Lock)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"this is no lock file: {error}") from None
    if lock.perdure_lock > LOCK_VERSION:
        raise InvalidArgument(f"a lock file of version {lock.perdure_lock}; this release reads up to {LOCK_VERSION}")
    return lock


def compare_locks(former: Lock, new: Lock) -> tuple[LockChange, ...]:
    """What changed between two locks, by pipeline id, unchanged ones included."""
    names = sorted(former.pipelines.keys() | new.pipelines.keys())
    return tuple(_change(name, former.pipelines.get(name), new.pipelines.get(name)) for name in names)


def _change(name: str, former: LockedPipeline | None, new: LockedPipeline | None) -> LockChange:
    if former is None or new is None:
        gone = () if new is not None else ("removed: its live runs become invalid; drain it first",)
        return LockChange(name, former is None, new is None, TopologyDiff(), gone, ())
    changes = diff(former.candidate().topology, new.candidate().topology)
    before, after = _by_id(former.steps), _by_id(new.steps)
    warnings = [*_removed(before, changes), *_kinds(before, after), *_types(former, new), *_unwinds(before, after)]
    warnings += _needs(after, changes)
    notes = [f"{step} is retired: runs that started it finish it, no other run starts it" for step in changes.retired]
    notes += [f"{step} was retired before it was removed: `perdure drain` says whether it is drained"
              for step in changes.removed if before[step].retired]  # fmt: skip
    notes += [f"{step} is new: runs that are past its place never run it" for step in changes.inserted]
    return LockChange(name, False, False, changes, tuple(warnings), tuple(notes))


def _by_id(steps: Iterable[LockedStep]) -> dict[str, LockedStep]:
    return {step.id: step for step in steps}


def _removed(before: Mapping[str, LockedStep], changes: TopologyDiff) -> list[str]:
    return [
        f"{step} is removed without retiring: runs that have started it become invalid; keep it as retired({step})"
        for step in changes.removed
        if not before[step].retired
    ]


def _kinds(before: Mapping[str, LockedStep], after: Mapping[str, LockedStep]) -> list[str]:
    return [
        f"{step} became {KINDS[now.kind]}, and was {KINDS[before[step].kind]}: runs that are at it become invalid; "
        f"give it another id, and keep the old step as retired"
        for step, now in after.items()
        if step in before and before[step].kind != now.kind
    ]


def retyped(former: LockedPipeline, new: LockedPipeline) -> dict[str, tuple[str, str]]:
    """Steps, and `INPUT`, whose type changed under the same id: the names of the types that were, and that are."""
    found = {INPUT: (former.input.type, new.input.type)} if former.input.shape != new.input.shape else {}
    before = _by_id(former.steps)
    for step in new.steps:
        was = before.get(step.id)
        if was is not None and was.state.shape != step.state.shape:
            found[step.id] = was.state.type, step.state.type
    return found


def reitemed(former: LockedPipeline, new: LockedPipeline) -> dict[str, tuple[str, str]]:
    """Steps the type of whose items changed under the same id."""
    before = {step.id: step.items for step in former.steps if step.items is not None}
    return {
        step.id: (before[step.id].type, step.items.type)
        for step in new.steps
        if step.items is not None and step.id in before and before[step.id].shape != step.items.shape
    }


def _types(former: LockedPipeline, new: LockedPipeline) -> list[str]:
    found: list[str] = []
    for step, (was, now) in retyped(former, new).items():
        if step == INPUT:
            found.append(f"the input type changed ({was} to {now}): {_READABLE}")
            continue
        types = f"{was} to {now}" if was != now else now
        found.append(f"the state type of {step} changed under the same id ({types}): {_READABLE}, or take a new id")
    for step, (was, now) in reitemed(former, new).items():
        types = f"{was} to {now}" if was != now else now
        found.append(f"the type of the items of {step} changed ({types}): {_READABLE} where items are open")
    return found


_READABLE = "what is stored must stay readable, so a new field needs a default"


def _unwinds(before: Mapping[str, LockedStep], after: Mapping[str, LockedStep]) -> list[str]:
    return [
        f"{step} declares no unwind any more: what runs did there can no longer be undone"
        for step, now in after.items()
        if step in before and before[step].unwind and not now.unwind
    ]


def _needs(after: Mapping[str, LockedStep], changes: TopologyDiff) -> list[str]:
    found: list[str] = []
    for step, now in after.items():
        for need in now.needs:
            other = after.get(need)
            if other is None or other.if_skipped:
                continue
            advice = f"give {need} an if_skipped, or make the need optional({need})"
            if need in changes.inserted or need in changes.moved:
                found.append(f"{step} needs {need}, which runs under way may have passed: {advice}")
            elif other.retired:
                found.append(f"{step} needs {need}, which is retired and which new runs never start: {advice}")
    return found
