"""What a run will do under a topology if nothing more goes wrong: all of it, not only the next operation [D-6]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from perdure.core.facts import Shape
from perdure.core.frontier import view_of
from perdure.core.operations import InvalidOp, Operation, UnwindOp
from perdure.core.projection import Projection
from perdure.core.reconciler import had_effect, reconcile, unavailable
from perdure.core.topology import StepSpec, Topology

End: TypeAlias = Literal["success", "failure", "canceled", "invalid"]


class Reads(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a step reads of other steps, and what is read where it has no state [M-14].

    Attributes:
        needs: ids whose state it reads; without one, and without a substitute, the run becomes invalid.
        optional: ids whose state it can do without.
        substitute: the step itself declares `if_skipped`: whoever needs it always finds something.
    """

    needs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    substitute: bool = False

    @property
    def all(self) -> tuple[str, ...]:
        """Everything it may read."""
        return (*self.needs, *self.optional)


_NOTHING = Reads()
_ITEMS: frozenset[Shape] = frozenset({"each", "loop"})
INPUT = ""
"""Stands for the run's input where states are named by their steps."""


class Candidate:
    """A topology that is, or may become, the current one, and what its steps read.

    Attributes:
        topology: it knows what former generations declared.
        reads: by step id; a step that is not there reads nothing.
        retyped: by step id the names of the types its state had and has; `INPUT` stands for the run's input. Nothing is
            known of types where it is empty.
        reitemed: the same of the items of a step.
    """

    __slots__ = ("reads", "reitemed", "retyped", "topology")

    def __init__(
        self,
        topology: Topology,
        reads: Mapping[str, Reads] | None = None,
        retyped: Mapping[str, tuple[str, str]] | None = None,
        reitemed: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self.topology = topology
        self.reads: Mapping[str, Reads] = {} if reads is None else reads
        self.retyped: Mapping[str, tuple[str, str]] = {} if retyped is None else retyped
        self.reitemed: Mapping[str, tuple[str, str]] = {} if reitemed is None else reitemed

    def over(self, topology: Topology) -> Candidate:
        """The same steps, read in the same way, in another topology."""
        return Candidate(topology, self.reads, self.retyped, self.reitemed)


class Missing(msgspec.Struct, frozen=True, gc=False, order=True):
    """A step will ask for a state that this run does not have."""

    step: str
    need: str


class Retyped(msgspec.Struct, frozen=True, gc=False, order=True):
    """What this run has stored is of a type that changed under the same id, and will be read [P-3].

    Attributes:
        step: whose state it is; `INPUT` for the run's input.
        was, now: names of types.
        readers: steps ahead that read it; the step itself where its unwind would.
        open: it is no state, but items of a step that is open, or what was made of some of them.
    """

    step: str
    was: str
    now: str
    readers: tuple[str, ...] = ()
    open: bool = False


class Future(msgspec.Struct, frozen=True, gc=False):
    """The rest of a run's life.

    Attributes:
        op: the next operation.
        ahead: forward steps it will still call or evaluate, in order; the unresolved one first.
        never: steps that are not retired and that it will never call, though it has not failed.
        unwinds: steps it will unwind, in order; empty while it has not failed.
        missing: states that steps ahead will ask for in vain [M-14].
        leaks: effects that would remain if it failed now: what U-9 calls uncompensated and unavailable.
        brittle: nothing that it finished is left in the topology: if it fails before it has finished another step, it
            cannot unwind and becomes invalid [U-6].
        end: how it ends.
        why: for an invalid run the steps it stumbles over: the unresolved one, or those it has behind it.
        shape: of an invalid run: as what its unresolved step was started, if that is no handler.
        became: of an invalid run: what that step is now, where it is something else.
        retyped: states that will be read as another type than they were stored as.
    """

    op: Operation
    ahead: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    unwinds: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    leaks: frozenset[str] = frozenset()
    brittle: bool = False
    end: End = "success"
    why: tuple[str, ...] = ()
    shape: Shape | Literal[""] = ""
    became: Shape | Literal[""] = ""
    retyped: tuple[Retyped, ...] = ()


def future(p: Projection, candidate: Candidate) -> Future:
    """The future of a run that nobody holds, under `candidate`. Pure; O(steps)."""
    topology = candidate.topology
    op = reconcile(p, topology)
    if type(op) is InvalidOp:
        return _stuck(p, op, topology)
    if p.failure is not None:
        return _backward(p, candidate, op)
    return _forward(p, candidate, op)


def _forward(p: Projection, candidate: Candidate, op: Operation) -> Future:
    topology = candidate.topology
    view = view_of(p, topology)
    frontier, brittle = view.frontier, p.successes > 0 and not view.succeeded
    pinned = settles = False
    started: list[str] = []
    if p.pin is not None:
        position = topology.position[p.pin]  # else the run is invalid [E-3]
        frontier = max(frontier, position)
        pinned, settles, started = True, topology.steps[position].settle, [p.pin]
    rest = [s.id for s in topology.steps[frontier + 1 :] if not s.retired and s.id not in p.passed]
    leaks = _unavailable(p, topology)
    if p.cancel is not None:  # it acts on the next operation that is selected
        canceled = (pinned and not settles) or bool(rest)
        if canceled and brittle and not settles:
            lost = InvalidOp("no-safe-unwind-frontier", "none of the steps this run finished is left")
            return _stuck(p, lost, topology)
        ahead = started if settles else []
        end: End = "canceled" if canceled else "success"
        return Future(
            op, tuple(ahead), leaks=leaks, brittle=brittle, end=end, retyped=_retyped(p, candidate, ahead, None)
        )
    ahead = started + rest
    will = set(ahead)
    never = tuple(s.id for s in topology.steps if not (s.retired or s.id in p.forward or s.id in will))
    missing, retyped = _missing(p, candidate, ahead), _retyped(p, candidate, ahead, None)
    return Future(op, tuple(ahead), never, (), missing, leaks, brittle, retyped=retyped)


def _missing(p: Projection, candidate: Candidate, ahead: list[str]) -> tuple[Missing, ...]:
    reads = candidate.reads
    done: set[str] = set()
    found: list[Missing] = []
    for step in ahead:
        for need in reads.get(step, _NOTHING).needs:
            if need not in done and p.state(need) is None and not reads.get(need, _NOTHING).substitute:
                found.append(Missing(step, need))
        done.add(step)
    return tuple(found)


def _retyped(
    p: Projection, candidate: Candidate, ahead: Sequence[str], unwinds: Sequence[str] | None
) -> tuple[Retyped, ...]:
    """`unwinds` None: it has not failed, so everything may yet be undone."""
    found: list[Retyped] = []
    entry, pin = p.pinned(), p.pin
    if entry is not None and pin is not None and entry.shape in _ITEMS:
        changed = (candidate.reitemed.get(pin), candidate.retyped.get(pin))
        found += [Retyped(pin, *types, open=True) for types in changed if types is not None]
    for step, (was, now) in candidate.retyped.items():
        if step != INPUT and p.state(step) is None:
            continue
        readers = tuple(s for s in ahead if step in candidate.reads.get(s, _NOTHING).all)
        position = candidate.topology.position.get(step)
        if unwinds is None:
            undone = position is not None and candidate.topology.steps[position].unwind
        else:
            undone = step in unwinds
            if not undone and step != INPUT:
                continue
        found.append(Retyped(step, was, now, (*readers, step) if undone else readers))
    return tuple(found)


def _backward(p: Projection, candidate: Candidate, op: Operation) -> Future:
    """Unwinding: the next one, and everything before it that is eligible [U-2, U-3, U-5]."""
    topology = candidate.topology
    unwinds: list[str] = []
    frontier = view_of(p, topology).unwind_frontier
    if type(op) is UnwindOp:
        unwinds.append(op.step)
        frontier = min(frontier, op.position)
        unwinds += [s.id for s in reversed(topology.steps[:frontier]) if s.unwind and had_effect(p, s)]
    lost = {s.id for s in topology.steps if _remains(p, s)} - set(unwinds)
    leaks, retyped = _unavailable(p, topology) | lost, _retyped(p, candidate, (), unwinds)
    return Future(op, unwinds=tuple(unwinds), leaks=leaks, end="failure", retyped=retyped)


def _remains(p: Projection, spec: StepSpec) -> bool:
    if not spec.unwind or not had_effect(p, spec):
        return False
    entry = p.unwind.get(spec.id)
    return entry is None or entry.status != "succeeded"


def _unavailable(p: Projection, topology: Topology) -> frozenset[str]:
    return frozenset(s for s in p.forward if unavailable(p, topology, s))


def _stuck(p: Projection, op: InvalidOp, topology: Topology) -> Future:
    entry = p.pinned()
    if entry is None or p.pin is None or op.reason.startswith("no-safe"):
        return Future(op, end="invalid", why=_behind(p, op))
    shape = "" if entry.shape == "handler" else entry.shape
    position = topology.position.get(p.pin)
    became = "" if position is None else topology.steps[position].shape
    return Future(op, end="invalid", why=_behind(p, op), shape=shape, became="" if became == entry.shape else became)


def _behind(p: Projection, op: InvalidOp) -> tuple[str, ...]:
    if p.pin is not None and not op.reason.startswith("no-safe"):  # it is the unresolved step that cannot go on
        return (p.pin,)
    if op.reason == "no-safe-frontier":
        return tuple(sorted(s for s, e in p.forward.items() if e.status in ("succeeded", "skipped")))
    succeeded = sorted(s for s, e in p.forward.items() if e.status == "succeeded")
    return tuple(sorted(p.crossed)) if p.crossed else tuple(succeeded)
