"""Which index of the table of runs answers a filter, and how a page is found along it: what all stores of tables share.

A path is one or more streams, each a range of an index that has the list's order; a page merges their heads, as many
rows of each as it may need. What the path does not decide is looked up for the rows of such a window; where few of them
fit, the window widens, and ends at `LOOKED_AT` rows whatever was found. What the index of a path tells besides costs no
look at the row: then windows are wide from the beginning.

In SQL texts `?` stands for a value, `@` before the name of a table of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from perdure.ports.listing import (
    FOR_A_LIMIT,
    FOR_A_MESSAGE,
    FOR_A_TIME,
    FOR_OTHERS,
    WAITS_FOR,
    ListPlace,
    RunCounts,
    RunFilter,
)

LOOKED_AT = 5_000
"""Rows that are looked at for one page, at most about."""
TOLD = 1_000
"""Rows in the first window where an index tells whether they fit."""
WIDER = 5

SqlValues: TypeAlias = "tuple[str | int, ...]"
LISTED = "worker IS NULL"
"""Rows of the index by pipeline and status: those nobody owns, so that a claim writes nothing there; others are few."""
_TIMES = ", ".join(f"'{reason}'" for reason in FOR_A_TIME)
STANDS = (
    "worker IS NULL AND (step <> '' OR ended_us IS NULL AND (status = 'invalid' OR waits <> '' "
    f"OR awaiting IS NOT NULL OR reason NOT IN ('', {_TIMES})))"
)
"""Rows of the index by what runs wait for, and where they stand. A delayed start is not worth a row: many wait so. In
columns as they are: PostgreSQL prepares such a condition anew for each statement that writes a run."""
LIVE_STATUS = "status NOT IN ('succeeded', 'failed', 'canceled', 'corrupt')"
LIVE = f"worker IS NULL AND {LIVE_STATUS}"
"""Rows of the index by ledger."""


def waits_for(waiting: str) -> str:
    """`ports.listing.waits_for` as an expression.

    Args:
        waiting: the condition of a run that waits for its slot.
    """
    return f"""
        CASE WHEN ended_us IS NOT NULL OR worker IS NOT NULL THEN ''
        WHEN {waiting} THEN 'slot'
        WHEN status = 'invalid' THEN 'deployment'
        WHEN status <> 'ready' THEN ''
        WHEN awaiting IS NOT NULL THEN 'run'
        WHEN {_begins(FOR_A_MESSAGE)} THEN 'message'
        WHEN {_begins(FOR_A_LIMIT)} THEN 'limit'
        WHEN {_begins(FOR_OTHERS)} THEN 'run'
        WHEN reason IN ({_TIMES}) OR (token = 0 AND due_us > submitted_us) THEN 'time'
        WHEN reason <> '' THEN 'retry' ELSE '' END
    """


def _begins(words: str) -> str:
    return f"substr(reason, 1, {len(words)}) = '{words}'"


class Dialect(msgspec.Struct, frozen=True):
    """Where the tables of two stores differ.

    Attributes:
        resource: the resource of a row.
        named: the same, as the index by resource has it.
        in_index: which rows are in that index: those with a resource that is not the run's own id, but for live ones
            that hold their slot, which the index of slots has.
        in_slots: the rest of those.
        itself: the run is its own resource.
        end_tells: the index by end has pipeline, tenant and status, too.
    """

    resource: str
    named: str
    in_index: str
    in_slots: str
    itself: str
    end_tells: bool


class Stream(msgspec.Struct, frozen=True):
    """Rows of a table that an index has in the list's order, or that are few."""

    where: str
    values: SqlValues = ()


class Groups(msgspec.Struct, frozen=True):
    """A stream for each combination of columns which follow `fixed` in the index.

    Attributes:
        walked: columns of which all values are wanted that are there; found by steps into their index.
        listed: a column of which some values are wanted, `only` those, whether they are there or not; empty for none.
    """

    fixed: str
    values: SqlValues
    walked: tuple[str, ...]
    listed: str = ""
    only: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All whose values tell a stream from the others."""
        return (*self.walked, self.listed) if self.listed else self.walked


class Path(msgspec.Struct, frozen=True):
    """How a filter is answered.

    Attributes:
        table: where the streams are ranges of an index.
        at, number: its columns of the list's order.
        decided: a row of a group fits, whatever else stands in it.
        told: a part of the filter that can be seen in the index.
    """

    streams: tuple[Stream, ...]
    groups: tuple[Groups, ...] = ()
    table: str = "@run"
    at: str = "submitted_us"
    number: str = "n"
    decided: bool = False
    told: RunFilter = RunFilter()


class Condition:
    """A condition on a row of `@run r`, and its values."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._values: list[str | int] = []

    def add(self, part: str, *values: str | int) -> None:
        """One thing more that has to hold."""
        self._parts.append(part)
        self._values += values

    @property
    def sql(self) -> str:
        return " AND ".join(self._parts) or "1 = 1"

    @property
    def values(self) -> SqlValues:
        return tuple(self._values)


_ANNOTATED = "SELECT 1 FROM @annotation a WHERE a.run = r.n AND a.key = ? AND a.value = ? LIMIT 1"
"""Not as EXISTS, which a planner may answer by reading the annotations of all runs first."""


def condition(where: RunFilter, d: Dialect) -> Condition:
    """All that a filter asks for."""
    found = Condition()
    for part, value in (
        ("pipeline = ?", where.pipeline),
        ("tenant = ?", where.tenant),
        (f"{d.resource} = ?", where.resource),
        ("r.submitted_us >= ?", where.submitted_after_us),
        ("r.submitted_us < ?", where.submitted_before_us),
        ("ended_us >= ?", where.ended_after_us),
        ("ended_us < ?", where.ended_before_us),
        ("step = ?", where.step),
        ("worker = ?", where.worker),
    ):
        if value is not None:
            found.add(part, value)
    for column, words in (("status", where.statuses), ("waits_for", where.waiting)):
        if words:
            found.add(f"{column} IN ({', '.join('?' * len(words))})", *words)
    for key, value in where.annotations:
        found.add(f"({_ANNOTATED}) IS NOT NULL", key, value)
    return found


def bounds(where: RunFilter, path: Path, after: ListPlace | None, oldest_first: bool) -> Condition:
    """Where the range of a stream begins and ends."""
    found = Condition()
    by_end = path.at == "ended_us"
    first, end = (
        (where.ended_after_us, where.ended_before_us)
        if by_end
        else (where.submitted_after_us, where.submitted_before_us)
    )
    if first is not None:
        found.add(f"{path.at} >= ?", first)
    if end is not None:
        found.add(f"{path.at} < ?", end)
    if after is not None:
        found.add(f"({path.at}, {path.number}) {'>' if oldest_first else '<'} (?, ?)", after.at_us, after.locator)
    return found


def path_of(where: RunFilter, d: Dialect) -> Path:
    """The index for a filter: the one that leaves least, as far as one can know without looking."""
    if where.by_end:
        told = RunFilter(pipeline=where.pipeline, tenant=where.tenant, statuses=where.statuses)
        return Path((Stream("ended_us IS NOT NULL"),), at="ended_us", told=told if d.end_tells else RunFilter())
    if where.resource is not None:
        return Path(
            (
                Stream(f"{d.named} = ? AND {d.in_index}", (where.resource,)),
                Stream(f"slot_key = ? AND {d.in_slots}", (where.resource,)),
                Stream(f"id = ? AND {d.itself}", (where.resource,)),
            )
        )
    if where.annotations:
        return Path((Stream("key = ? AND value = ?", where.annotations[0]),), table="@annotation", number="run")
    if where.worker is not None:
        return Path((_owned(where, d),))
    if where.step is not None:
        kinds: tuple[str, ...] = tuple(dict.fromkeys(where.waiting)) or ("", *WAITS_FOR)
        return Path((_owned(where, d),), (Groups(f"step = ? AND {STANDS}", (where.step,), (), "waits_for", kinds),))
    if where.waiting and "time" not in where.waiting:
        kinds = tuple(dict.fromkeys(where.waiting))
        return Path((), tuple(Groups(f"waits_for = ? AND {STANDS}", (kind,), ("step",)) for kind in kinds))
    groups = Condition()
    groups.add(LISTED)
    if where.tenant not in (None, "default"):
        groups.add("tenant <> 'default'")
        groups.add("tenant = ?", where.tenant or "")
    walked: tuple[str, ...] = ("pipeline",)
    if where.pipeline is not None:  # and no comparison of its column: that would be a walk through all that are equal
        groups.add("pipeline = ?", where.pipeline)
        walked = ()
    if where.statuses:
        found = Groups(groups.sql, groups.values, walked, "status", tuple(dict.fromkeys(where.statuses)))
    else:
        found = Groups(groups.sql, groups.values, (*walked, "status"))
    return Path((_owned(where, d),), (found,), decided=where.tenant != "default" and not where.waiting)


def _owned(where: RunFilter, d: Dialect) -> Stream:
    """Runs that somebody works on: as many as that takes."""
    wanted = condition(where, d)
    return Stream(f"worker IS NOT NULL AND {wanted.sql}", wanted.values)


class Window(msgspec.Struct, frozen=True):
    """A question for the store: so many rows along the path, from a place on."""

    after: ListPlace | None
    size: int


class Looked(msgspec.Struct, frozen=True):
    """What was in a window.

    Attributes:
        rows: how many there were.
        last: the last of them.
        fitting: those that fit, in order; after as many as a page needs, and one, some may be missing.
    """

    rows: int
    last: ListPlace | None
    fitting: Sequence[ListPlace]


class Search:
    """Finds a page, window by window.

    Attributes:
        window: what to ask of the store next; None when the page is found.
        numbers: the rows of the page, in order.
        next: where the next page begins.
    """

    def __init__(self, path: Path, after: ListPlace | None, limit: int) -> None:
        told = path.told != RunFilter()
        self.window: Window | None = Window(after, max(limit + 1, TOLD if told else 0))
        self.numbers: list[int] = []
        self.next: ListPlace | None = None
        self._limit = limit
        self._found: list[ListPlace] = []
        self._looked = 0

    def take(self, found: Looked) -> None:
        """What the store found in the window."""
        window = self.window
        if window is None:
            return
        self._looked += found.rows
        self._found += found.fitting
        if len(self._found) > self._limit:
            self._end(self._found[self._limit - 1])
        elif found.rows < window.size:
            self._end(None)
        elif self._looked >= LOOKED_AT:
            self._end(found.last)
        else:
            self.window = Window(found.last, min(window.size * WIDER, LOOKED_AT))

    def _end(self, next: ListPlace | None) -> None:
        self.window, self.next = None, next
        self.numbers = [place.locator for place in self._found[: self._limit]]


Counted: TypeAlias = "Iterable[tuple[str, str, int, int]]"
"""Of each pipeline and status in a stream: rows looked at, rows that fit."""


class Tally:
    """Adds up what streams held.

    Args:
        cap: rows of each stream that count; one more was looked at, to see whether there are more.
    """

    def __init__(self, cap: int | None) -> None:
        self._cap = cap
        self._numbers: dict[tuple[str, str], int] = {}
        self._more: set[tuple[str, str]] = set()
        self._complete = True

    def add(self, counted: Counted, *, group: bool) -> None:
        """What one stream held.

        Args:
            group: it is of one pipeline and status.
        """
        looked = 0
        keys: list[tuple[str, str]] = []
        for pipeline, status, rows, fitting in counted:
            looked += rows
            if fitting:
                keys.append((pipeline, status))
                self._numbers[pipeline, status] = self._numbers.get((pipeline, status), 0) + fitting
        if self._cap is not None and looked > self._cap:
            self._more.update(keys)
            self._complete = self._complete and group and bool(keys)

    def counts(self) -> RunCounts:
        """The sum."""
        cap = self._cap
        if cap is None:
            return RunCounts(self._numbers)
        more = self._more | {key for key, number in self._numbers.items() if number > cap}
        numbers = {key: min(number, cap) for key, number in self._numbers.items()}
        return RunCounts(numbers, frozenset(more), self._complete)
