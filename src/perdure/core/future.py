"""What a run will do under a topology if nothing more goes wrong: all of it, not only the next operation [D-6]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

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


_NOTHING = Reads()


class Candidate:
    """A topology that is, or may become, the current one, and what its steps read.

    Attributes:
        topology: it knows what former generations declared.
        reads: by step id; a step that is not there reads nothing.
    """

    __slots__ = ("reads", "topology")

    def __init__(self, topology: Topology, reads: Mapping[str, Reads] | None = None) -> None:
        self.topology = topology
        self.reads: Mapping[str, Reads] = {} if reads is None else reads


class Missing(msgspec.Struct, frozen=True, gc=False, order=True):
    """A step will ask for a state that this run does not have."""

    step: str
    need: str


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


def future(p: Projection, candidate: Candidate) -> Future:
    """The future of a run that nobody holds, under `candidate`. Pure; O(steps)."""
    topology = candidate.topology
    op = reconcile(p, topology)
    if type(op) is InvalidOp:
        return _stuck(p, op)
    if p.failure is not None:
        return _backward(p, topology, op)
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
            return _stuck(p, InvalidOp("no-safe-unwind-frontier", "none of the steps this run finished is left"))
        ahead = started if settles else []
        return Future(op, tuple(ahead), leaks=leaks, brittle=brittle, end="canceled" if canceled else "success")
    ahead = started + rest
    will = set(ahead)
    never = tuple(s.id for s in topology.steps if not (s.retired or s.id in p.forward or s.id in will))
    return Future(op, tuple(ahead), never, (), _missing(p, candidate, ahead), leaks, brittle)


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


def _backward(p: Projection, topology: Topology, op: Operation) -> Future:
    """Unwinding: the next one, and everything before it that is eligible [U-2, U-3, U-5]."""
    unwinds: list[str] = []
    frontier = view_of(p, topology).unwind_frontier
    if type(op) is UnwindOp:
        unwinds.append(op.step)
        frontier = min(frontier, op.position)
        unwinds += [s.id for s in reversed(topology.steps[:frontier]) if s.unwind and had_effect(p, s)]
    lost = {s.id for s in topology.steps if _remains(p, s)} - set(unwinds)
    return Future(op, unwinds=tuple(unwinds), leaks=_unavailable(p, topology) | lost, end="failure")


def _remains(p: Projection, spec: StepSpec) -> bool:
    if not spec.unwind or not had_effect(p, spec):
        return False
    entry = p.unwind.get(spec.id)
    return entry is None or entry.status != "succeeded"


def _unavailable(p: Projection, topology: Topology) -> frozenset[str]:
    return frozenset(s for s in p.forward if unavailable(p, topology, s))


def _stuck(p: Projection, op: InvalidOp) -> Future:
    return Future(op, end="invalid", why=_behind(p, op))


def _behind(p: Projection, op: InvalidOp) -> tuple[str, ...]:
    if p.pin is not None and not op.reason.startswith("no-safe"):  # it is the unresolved step that cannot go on
        return (p.pin,)
    if op.reason == "no-safe-frontier":
        return tuple(sorted(s for s, e in p.forward.items() if e.status in ("succeeded", "skipped")))
    succeeded = sorted(s for s, e in p.forward.items() if e.status == "succeeded")
    return tuple(sorted(p.crossed)) if p.crossed else tuple(succeeded)
