"""Which retired steps may be removed: those without which every live run would do the same [D-6, E-9]."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.core.effects import compare
from perdure.core.future import Candidate, Future, future
from perdure.core.projection import Projection
from perdure.core.topology import Topology


class Drain(msgspec.Struct, frozen=True, gc=False):
    """One retired step.

    Attributes:
        drained: it may be removed.
        runs: live runs that would do something else without it, or be invalid.
        oldest_us: when the oldest of them was submitted; 0 if there is none.
        read_by: steps that read its state; they have to be edited first.
        fresh: the deployed topology does not have it as retired yet, so runs may still start it.
        unresolved: how many of `runs` stand at it: it has to go on being run for them.
    """

    step: str
    drained: bool
    runs: int
    oldest_us: int
    read_by: tuple[str, ...]
    fresh: bool
    unresolved: int


def drains(live: Iterable[tuple[int, int, Projection]], deployed: Topology, new: Candidate) -> tuple[Drain, ...]:
    """The retired steps of `new`, in order.

    Args:
        live: how many runs, when the oldest was submitted, and their projection, holds lifted.
        deployed: the current topology.
    """
    retired = [spec.id for spec in new.topology.steps if spec.retired]
    if not retired:
        return ()
    runs = [(count, oldest_us, p, future(p, new)) for count, oldest_us, p in live]
    return tuple(_drain(step, runs, deployed, new) for step in retired)


def _drain(step: str, live: list[tuple[int, int, Projection, Future]], deployed: Topology, new: Candidate) -> Drain:
    topology = new.topology
    without = new.over(Topology(s for s in topology.steps if s.id != step).after((topology,)))
    needed = [
        (count, oldest_us, p)
        for count, oldest_us, p, was in live
        if (step in p.forward or step in p.crossed) and not compare(was, future(p, without)).none
    ]
    runs = sum(count for count, _, _ in needed)
    read_by = tuple(s.id for s in topology.steps if s.id in new.reads and step in new.reads[s.id].all)
    position = deployed.position.get(step)
    fresh = position is None or not deployed.steps[position].retired
    return Drain(
        step,
        not (runs or read_by or fresh),
        runs,
        min((oldest_us for _, oldest_us, _ in needed), default=0),
        read_by,
        fresh,
        sum(count for count, _, p in needed if p.pin == step),
    )
