"""How far a run has got in the current topology: both frontiers, kept up to date fact by fact [E-4, U-5].

A `View` hangs on a projection for one topology. Building it costs O(steps), once per topology; afterwards the reducer
tells it each change, so a step costs the same at position 10 and at position 10,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.core.topology import Topology

if TYPE_CHECKING:
    from perdure.core.projection import Projection


class View:
    """Positions of a run's ledger in one topology.

    Attributes:
        frontier: greatest position of a succeeded or skipped step; -1 if there is none [E-4].
        progressed: succeeded or skipped steps that are in the topology [E-5].
        succeeded: forward successes that are in the topology [U-6].
        crossed: crossed steps that are in the topology [U-6].
        unwind_frontier: least position of a crossed step; the number of steps if there is none [U-5].
        passed_to: every step before this position has a forward entry or is recorded as passed [E-7].
        crossed_from: every step at or after this position is recorded as crossed [U-4].
    """

    __slots__ = (
        "crossed",
        "crossed_from",
        "frontier",
        "passed_to",
        "progressed",
        "succeeded",
        "topology",
        "unwind_frontier",
    )

    def __init__(self, topology: Topology, p: Projection) -> None:
        self.topology = topology
        self.frontier = -1
        self.progressed = 0
        self.succeeded = 0
        self.crossed = 0
        self.unwind_frontier = len(topology)
        self.passed_to = 0
        self.crossed_from = len(topology)
        for step, entry in p.forward.items():
            if entry.status == "succeeded" or entry.status == "skipped":
                self.on_progress(step, succeeded=entry.status == "succeeded")
        self.on_crossed(p.crossed)

    def on_progress(self, step: str, *, succeeded: bool) -> None:
        """A step succeeded or was skipped."""
        position = self.topology.position.get(step)
        if position is None:
            return
        self.progressed += 1
        self.succeeded += succeeded
        self.frontier = max(self.frontier, position)

    def on_crossed(self, steps: set[str] | tuple[str, ...]) -> None:
        """Steps were recorded as crossed for the first time."""
        for step in steps:
            position = self.topology.position.get(step)
            if position is not None:
                self.crossed += 1
                self.unwind_frontier = min(self.unwind_frontier, position)

    def newly_passed(self, p: Projection, position: int) -> tuple[str, ...]:
        """Ids before `position` that have neither a forward entry nor a record of being passed [E-7]."""
        if position <= self.passed_to:
            return ()
        ids = self.topology.ids
        found = [s for s in ids[self.passed_to : position] if s not in p.forward and s not in p.passed]
        return tuple(found)

    def newly_crossed(self, p: Projection, position: int) -> tuple[str, ...]:
        """Ids at or after `position` that are not recorded as crossed yet [U-4]."""
        ids = self.topology.ids
        return tuple(s for s in ids[position : self.crossed_from] if s not in p.crossed)

    def on_forward_mark(self, step: str) -> None:
        """A forward reservation, skip or resolution of `step` recorded what it passed; the step itself has an entry."""
        position = self.topology.position.get(step)
        if position is not None and position >= self.passed_to:
            self.passed_to = position + 1

    def on_unwind_mark(self, step: str) -> None:
        """An unwind reservation or resolution of `step` recorded what it crossed."""
        position = self.topology.position.get(step)
        if position is not None and position < self.crossed_from:
            self.crossed_from = position


def view_of(p: Projection, topology: Topology) -> View:
    """The projection's view of `topology`; built anew only where the topology is another one."""
    view = p.view
    if view is None or view.topology is not topology:
        view = p.view = View(topology, p)
    return view
