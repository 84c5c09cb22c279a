"""Places under limits, in memory: who has them, and who stands in line [R-11, R-16]."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from perdure.core.permits import LimitKind, Permit
from perdure.ports.limits import LimitUse
from perdure.ports.records import IndexState

Place: TypeAlias = tuple[str, str]
"""A limit's id, and a key."""


@dataclass(slots=True)
class Bound:
    """One limit for one key.

    Attributes:
        size: how many places; of a rate, the microseconds from one start to the next.
        holders: numbers of the runs that have a place.
        turns: of a rate, when runs may start that have to wait.
        next_us: of a rate, when the next may start.
        line: numbers of the runs that wait: their numbers in the line, and since when.
    """

    kind: LimitKind
    size: int
    holders: set[int] = field(default_factory=set[int])
    turns: dict[int, int] = field(default_factory=dict[int, int])
    next_us: int = 0
    line: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])


class MemoryLimits:
    """Everything by the number of a run.

    Args:
        may_start: whether a run that stands in line is ready, nobody's, and of a pipeline that is not held.
        granted: told that a run has got a place, and since when it waited.
    """

    def __init__(self, may_start: Callable[[int], bool], granted: Callable[[int, int], None]) -> None:
        self._may_start = may_start
        self._granted = granted
        self._bounds: dict[Place, Bound] = {}
        self._numbers = itertools.count(1)

    def clear(self) -> None:
        """Forget everything."""
        self._bounds.clear()

    def refused(self, run: int, permits: Iterable[Permit], now_us: int) -> Permit | None:
        """The first of these places that a run cannot have now; None: it can have all of them."""
        return next((permit for permit in permits if not self._is_free(run, permit, now_us)), None)

    def _is_free(self, run: int, permit: Permit, now_us: int) -> bool:
        bound = self._bounds.get((permit.limit, permit.key))
        if bound is None:
            return True
        if permit.kind == "rate":
            return bound.turns.get(run, bound.next_us) <= now_us
        return run in bound.holders or len(bound.holders) < permit.bound

    def take(self, run: int, permits: Sequence[Permit], now_us: int) -> None:
        """The run has these places from now on; of those for an operation, no others. They are free for it."""
        for permit in permits:
            self._take(run, permit, now_us)
        self._free(run, {(permit.limit, permit.key) for permit in permits}, ("concurrency",))

    def _bound(self, permit: Permit) -> Bound:
        bound = self._bounds.setdefault((permit.limit, permit.key), Bound(permit.kind, permit.bound))
        bound.kind, bound.size = permit.kind, permit.bound
        return bound

    def _take(self, run: int, permit: Permit, now_us: int) -> None:
        bound = self._bound(permit)
        if permit.kind == "rate":
            if bound.turns.pop(run, None) is None:
                bound.next_us = now_us + permit.bound
        else:
            bound.holders.add(run)
            bound.line.pop(run, None)

    def rests(self, run: int, permits: Sequence[Permit], at_us: int, *, begun: bool, ended: bool) -> int | None:
        """A run rests: it gives back what its operation had, keeps what it is about to need, and stands in line for
        the first place that is not free; when it is due, None: when that place is given to it.

        Args:
            permits: what it needs; empty if it waits for something else.
            begun: it was claimed once. ended: and has ended; whatever is written about it now.
        """
        if ended:
            self.ended(run)
            return None
        numbers = {place: bound.line.pop(run) for place, bound in self._bounds.items() if run in bound.line}
        needed = {(permit.limit, permit.key) for permit in permits}
        self._free(run, needed, ("concurrency",) if begun else ("concurrency", "in_flight"))
        due_us = at_us
        for number, permit in enumerate(permits):
            bound = self._bound(permit)
            if permit.kind == "rate":
                if run not in bound.turns:
                    bound.turns[run] = max(at_us, bound.next_us)
                    bound.next_us = bound.turns[run] + permit.bound
                due_us = max(due_us, bound.turns[run])
            elif self._is_free(run, permit, at_us):
                bound.holders.add(run)
            else:
                place = permit.limit, permit.key
                bound.line[run] = numbers.get(place, (next(self._numbers), at_us))
                before = {(permit.limit, permit.key) for permit in permits[:number]}
                others = needed - before
                for place, bound in sorted(self._bounds.items()):  # so that nobody waits in a circle
                    if place in others and run in bound.holders:
                        bound.holders.discard(run)
                        self._pass_on(bound)
                return None
        return due_us

    def ended(self, run: int) -> None:
        """A run has ended, or is gone: it has nothing, and waits for nothing."""
        for bound in self._bounds.values():
            bound.line.pop(run, None)
            bound.turns.pop(run, None)
        self._free(run, set(), ("concurrency", "in_flight"))

    def claimed(self, run: int, *, ended: bool) -> None:
        """A run is somebody's: it does not stand in line."""
        if ended:
            self.ended(run)
        for bound in self._bounds.values():
            bound.line.pop(run, None)

    def _free(self, run: int, but: set[Place], kinds: tuple[LimitKind, ...]) -> None:
        for place, bound in sorted(self._bounds.items()):
            if run in bound.holders and place not in but and bound.kind in kinds:
                bound.holders.discard(run)
                self._pass_on(bound)

    def _pass_on(self, bound: Bound) -> None:
        """As many places as are free go to those who have waited longest and may start."""
        for run, (_, since_us) in sorted(bound.line.items(), key=lambda entry: entry[1]):
            if len(bound.holders) >= bound.size:
                break
            if self._may_start(run):
                del bound.line[run]
                bound.holders.add(run)
                self._granted(run, since_us)

    def give_back(self, run: int, state: IndexState) -> None:
        """A run cannot start: if nobody owns it, what it was given goes to somebody else."""
        if not state.worker:
            self._free(run, set(), ("concurrency",) if state.token else ("concurrency", "in_flight"))

    def resize(self, bounds: Mapping[str, int]) -> None:
        """From now on these limits are so large."""
        for (limit, _), bound in self._bounds.items():
            bound.size = bounds.get(limit, bound.size)

    @property
    def waiting(self) -> int:
        """How many runs stand in line."""
        return sum(len(bound.line) for bound in self._bounds.values())

    def mend(self, now_us: int) -> None:
        """Pass on whatever is free, forget what nobody uses."""
        for _, bound in sorted(self._bounds.items()):
            self._pass_on(bound)
        unused = [
            place
            for place, bound in self._bounds.items()
            if not bound.holders and not bound.line and not bound.turns and bound.next_us <= now_us
        ]
        for place in unused:
            del self._bounds[place]

    def places(self, run: int) -> list[Place]:
        """Those that a run has; turns of rates are none."""
        return [place for place, bound in self._bounds.items() if run in bound.holders]

    def stands(self, run: int) -> Place | None:
        """For which place a run stands in line."""
        return next((place for place, bound in self._bounds.items() if run in bound.line), None)

    def in_line(self, run: int) -> bool:
        """Whether it stands in line for a place."""
        return any(run in bound.line for bound in self._bounds.values())

    def uses(self) -> list[LimitUse]:
        """See `Store.limits`."""
        return [
            LimitUse(
                limit,
                key,
                bound.kind,
                bound.size,
                len(bound.holders),
                len(bound.turns) + len(bound.line),
                min((since_us for _, since_us in bound.line.values()), default=None),
            )
            for (limit, key), bound in sorted(self._bounds.items())
        ]
