"""Lists of runs: what they are filtered by, in which order they come, and how one page follows another.

A list has one order, which no write changes: by the time of submission, or by that of the end where the filter is about
ends; runs of one time by the store's number of them. So a page begins behind the last run of the page before, and what
is submitted, claimed or ended in between moves nothing.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

from perdure.ports.records import RunRow, RunStatus

WaitsFor: TypeAlias = Literal["slot", "run", "message", "time", "retry", "limit", "deployment"]
"""What a run that nobody owns waits for, as far as its index row tells.

`time`: a delayed start, a sleep, or the next look of a poll; `retry`: it backs off after a failure; `deployment`: it is
invalid.
"""

WAITS_FOR: tuple[WaitsFor, ...] = get_args(WaitsFor)
FOR_A_MESSAGE = "waits for message "
FOR_A_LIMIT = "waits for limit "
FOR_OTHERS = "waits for "
FOR_A_TIME = ("sleeping", "polling")
"""How `IndexState.reason` begins, or is, where a run waits."""


class RunFilter(msgspec.Struct, frozen=True, gc=False):
    """What `list_runs` shows: runs that fit all that is given. None, and (), fit everything.

    Attributes:
        statuses: any of these.
        submitted_after_us, submitted_before_us: from the first, inclusive, up to the second, exclusive.
        ended_after_us, ended_before_us: likewise; only runs that have ended.
        step: the step it stands at, or failed at, as the index row has it.
        worker: who owns it.
        waiting: any of these; see `waits_for`.
        annotations: all of these (key, value).
    """

    pipeline: str | None = None
    tenant: str | None = None
    resource: str | None = None
    statuses: tuple[RunStatus, ...] = ()
    submitted_after_us: int | None = None
    submitted_before_us: int | None = None
    ended_after_us: int | None = None
    ended_before_us: int | None = None
    step: str | None = None
    worker: str | None = None
    waiting: tuple[WaitsFor, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()

    @property
    def by_end(self) -> bool:
        """Whether the list is in the order of ends."""
        return self.ended_after_us is not None or self.ended_before_us is not None


class ListPlace(msgspec.Struct, frozen=True, gc=False):
    """A place in a list: behind the run of that time and number, whether it is still there or not."""

    at_us: int
    locator: int


class RunPage(msgspec.Struct, frozen=True, gc=False):
    """A page of a list.

    Attributes:
        rows: those that fit; each as it was at some moment of the call.
        next: where the next page begins; None if there is nothing more. A page may hold fewer rows than were asked for,
            even none, and have a next one: a store looks at a bounded number of runs for a page, whatever the filter.
    """

    rows: tuple[RunRow, ...]
    next: ListPlace | None = None


class RunCounts(msgspec.Struct, frozen=True, gc=False):
    """How many runs there are.

    Attributes:
        numbers: by (pipeline, status).
        at_least: those of them of which there may be more: the store stopped counting.
        complete: whether `numbers` names every pipeline and status of which there is a run.
    """

    numbers: dict[tuple[str, str], int]
    at_least: frozenset[tuple[str, str]] = frozenset()
    complete: bool = True

    @property
    def exact(self) -> bool:
        """Whether nothing was left uncounted."""
        return self.complete and not self.at_least


def waits_for(row: RunRow) -> WaitsFor | Literal[""]:
    """What a run waits for; "" for one that is owned, held, ended, or due as soon as somebody has time for it.

    The stores of tables have the same as an expression in SQL.
    """
    state, reason = row.state, row.state.reason
    if row.ended_us is not None or state.worker:
        return ""
    if row.waiting:
        return "slot"
    if state.status == "invalid":
        return "deployment"
    if state.status != "ready":
        return ""
    if row.left is not None:
        return "run"
    if reason.startswith(FOR_A_MESSAGE):
        return "message"
    if reason.startswith(FOR_A_LIMIT):
        return "limit"
    if reason.startswith(FOR_OTHERS):
        return "run"
    delayed = state.token == 0 and state.due_us is not None and state.due_us > row.run.submitted_us
    if delayed or reason in FOR_A_TIME:
        return "time"
    return "retry" if reason else ""


def fits(where: RunFilter, row: RunRow) -> bool:
    """Whether a run is to be shown."""
    run, state = row.run, row.state
    return (
        where.pipeline in (None, run.pipeline)
        and where.tenant in (None, run.tenant)
        and where.resource in (None, run.resource)
        and (not where.statuses or state.status in where.statuses)
        and _between(where.submitted_after_us, run.submitted_us, where.submitted_before_us)
        and (not where.by_end or _between(where.ended_after_us, row.ended_us, where.ended_before_us))
        and where.step in (None, state.step)
        and where.worker in (None, state.worker)
        and (not where.waiting or waits_for(row) in where.waiting)
        and set(where.annotations) <= set(run.annotations)
    )


def _between(first: int | None, at_us: int | None, end: int | None) -> bool:
    return at_us is not None and (first is None or at_us >= first) and (end is None or at_us < end)


def place_of(where: RunFilter, row: RunRow) -> ListPlace:
    """Where a run stands in the list of a filter that it fits."""
    return ListPlace((row.ended_us or 0) if where.by_end else row.run.submitted_us, row.locator)
