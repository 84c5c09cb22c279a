"""Who gets which place: the order in which due runs are claimed, worked out from those that are due longest [R-1]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias, TypeVar

import msgspec

_T = TypeVar("_T")

Serving: TypeAlias = Mapping[str, int]
"""The pipelines that a worker serves, each with the generation that it deploys [D-4]."""

DueRun: TypeAlias = tuple[int, int, str]
"""A run that is due: since when; the store's number of it, which orders those of one time; its id."""

Levels: TypeAlias = Sequence[Sequence[DueRun]]
"""Runs of a class that are due: by priority, the highest first, and in each in the order in which they come."""

Tenancy: TypeAlias = tuple[str, str]
"""A tenant of a pipeline: pipeline and tenant."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A run that is due, and all that decides about its place.

    Attributes:
        due: see `DueRun`.
        begun: it was claimed before.
    """

    due: DueRun
    pipeline: str
    tenant: str
    priority: int
    begun: bool


class Shared(msgspec.Struct, frozen=True, gc=False):
    """Who got the places.

    Attributes:
        run_ids: in the order of the places.
        turns: whose turn it was, for those who got a place of tenants.
        more: tenants have runs left, or their turn did not come.
    """

    run_ids: list[str]
    turns: dict[str, Tenancy]
    more: bool

    def last(self, before: Tenancy, taken: int | None = None) -> Tenancy:
        """Whose turn was the last among the first `taken` places, or all; `before` if it was none's."""
        given = [self.turns[run_id] for run_id in self.run_ids[:taken] if run_id in self.turns]
        return given[-1] if given else before


def share(begun: Levels, new: Levels, limit: int, turn: int) -> list[str]:
    """Who gets the places `turn`, `turn + 1`, ... of `Store.due`, whatever pipelines there are.

    Args:
        begun, new: of every priority `limit` runs, longest due first, if there are so many.
    """
    lines = (_Line(begun), _Line(new))
    chosen: list[str] = []
    for place in range(turn, turn + limit):
        line = _line_of(place, lines)
        if line is None:
            break
        chosen.append(line.take(place))
    return chosen


def share_served(
    found: Iterable[Candidate],
    tenants: Sequence[Candidate],
    serving: Serving,
    last: Tenancy,
    limit: int,
    turn: int,
) -> Shared:
    """As `share`, for a worker that serves some pipelines: these take turns, and so do tenants.

    Args:
        found: of every pipeline, class and priority the `limit` runs that are due longest, if there are so many.
        tenants: those who take part in the turn of tenants, of each the runs that are due longest.
        serving: the pipelines that take turns, whether or not they have anything due: so none misses its turn where
            another has nothing left.
        last: whose turn among tenants was the last.
    """
    every = {run.due: run for run in (*found, *tenants)}.values()
    lines = (
        _Line(_levels((run for run in every if run.begun), serving, rounds(turn, begun=True)), mixed=True),
        _Line(_levels((run for run in every if not run.begun), serving, rounds(turn, begun=False)), mixed=True),
    )
    by_tenant = _by_tenant(tenants, last)
    chosen: list[str] = []
    turns: dict[str, Tenancy] = {}
    more = True
    for place in range(turn, turn + limit):
        line = _line_of(place, lines)
        if line is None:
            break
        run = _next_tenant(by_tenant, lines) if _is_of_tenants(place) else None
        if run is None:
            more = more and not _is_of_tenants(place)
            chosen.append(line.take(place))
            continue
        run_id = run.due[2]
        lines[not run.begun].remove(run_id)
        chosen.append(run_id)
        turns[run_id] = run.pipeline, run.tenant
    return Shared(chosen, turns, more)


def _is_of_tenants(place: int) -> bool:
    return place % 16 // 4 == 2


def _line_of(place: int, lines: tuple[_Line, _Line]) -> _Line | None:
    """Whose place it is: of every four three are for begun runs, unless there are none."""
    line = lines[place % 4 == 3]
    if not line.left:
        line = lines[place % 4 != 3]
    return line if line.left else None


def rounds(turn: int, *, begun: bool) -> int:
    """How many places before `turn` a class had for its pipelines in turn: those below 8 of every 16."""
    of_16, of_4 = (6, 3) if begun else (2, 1)
    whole, rest = divmod(turn, 16)
    fours, rest = divmod(min(rest, 8), 4)
    return whole * of_16 + fours * of_4 + (min(rest, 3) if begun else 0)


def _levels(runs: Iterable[Candidate], serving: Serving, start: int) -> list[list[DueRun]]:
    """Runs of one class by priority; in each the pipelines take turns, beginning with number `start` of them."""
    levels: dict[int, dict[str, list[DueRun]]] = {}
    for run in runs:
        levels.setdefault(-run.priority, {}).setdefault(run.pipeline, []).append(run.due)
    names = sorted(serving)
    first = start % max(len(names), 1)
    names = [*names[first:], *names[:first]]
    return [
        list(_in_turn([sorted(pipelines[name]) for name in names if name in pipelines]))
        for _, pipelines in sorted(levels.items())
    ]


def _by_tenant(runs: Iterable[Candidate], last: Tenancy) -> Iterator[Candidate]:
    """Tenants in turn, beginning with the one after `last`."""
    tenants: dict[Tenancy, list[Candidate]] = {}
    for run in runs:
        tenants.setdefault((run.pipeline, run.tenant), []).append(run)
    names = sorted(tenants, key=lambda tenancy: (tenancy <= last, tenancy))
    return _in_turn([sorted(tenants[name], key=lambda run: run.due) for name in names])


def _in_turn(queues: Sequence[Sequence[_T]]) -> Iterator[_T]:
    """One of each queue, then another of each that has more, and so on."""
    for rank in range(max(map(len, queues), default=0)):
        for queue in queues:
            if rank < len(queue):
                yield queue[rank]


def _next_tenant(by_tenant: Iterator[Candidate], lines: tuple[_Line, _Line]) -> Candidate | None:
    return next((run for run in by_tenant if not lines[not run.begun].has_taken(run.due[2])), None)


class _Line:
    """Runs of one class, in both orders.

    Args:
        mixed: runs of a level come in another order than that of their age, or may be removed.

    Attributes:
        left: how many nobody took.
    """

    def __init__(self, levels: Levels, *, mixed: bool = False) -> None:
        self.left = sum(map(len, levels))
        self._by_priority = chain.from_iterable(levels)
        self._by_age = iter(sorted(chain.from_iterable(levels))) if mixed or len(levels) > 1 else None
        self._taken: set[str] = set()

    def take(self, place: int) -> str:
        """The next in the order that counts for a place; there has to be one."""
        if self._by_age is None:
            self.left -= 1
            return next(self._by_priority)[2]
        oldest = place % 16 >= 12
        run_id = next(run[2] for run in (self._by_age if oldest else self._by_priority) if run[2] not in self._taken)
        self.remove(run_id)
        return run_id

    def has_taken(self, run_id: str) -> bool:
        """Whether a run has its place."""
        return run_id in self._taken

    def remove(self, run_id: str) -> None:
        """A run has got a place."""
        self.left -= 1
        self._taken.add(run_id)
