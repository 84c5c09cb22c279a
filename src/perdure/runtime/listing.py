"""The listing half of `Client`: pages of runs, and how many there are."""

from __future__ import annotations

import base64
import binascii
import struct
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypedDict, Unpack

from perdure.errors import InvalidArgument
from perdure.ports.clock import System
from perdure.ports.listing import WAITS_FOR, ListPlace, RunCounts, RunFilter, WaitsFor
from perdure.ports.store import RunStatus, Store
from perdure.runtime.arguments import (
    check_annotations,
    check_count,
    check_name,
    check_statuses,
    check_text,
    check_time,
)
from perdure.runtime.info import RunInfo, info_of
from perdure.runtime.workforce import lacking

CAP = 10_000
"""So many runs of one pipeline and status are counted unless all are asked for."""


class Filters(TypedDict, total=False):
    """What lists and counts can ask for; all that is given has to fit.

    Attributes:
        status: any of these.
        submitted_after, ended_after: then or later.
        submitted_before, ended_before: earlier.
        step: the step a run stands at, or failed at.
        worker: who owns it.
        waiting: what it waits for, any of these.
        annotations: all of these, as they were submitted.
    """

    pipeline: str | None
    tenant: str | None
    resource: str | None
    status: RunStatus | Sequence[RunStatus]
    submitted_after: datetime | None
    submitted_before: datetime | None
    ended_after: datetime | None
    ended_before: datetime | None
    step: str | None
    worker: str | None
    waiting: WaitsFor | Sequence[WaitsFor]
    annotations: Mapping[str, str] | None


class Page(list[RunInfo]):
    """A page of runs, as a list.

    Attributes:
        next: what to give as `after` for the next page; None if there is nothing more. A page may be short, even empty,
            and have a next one: where few runs fit what was combined, a store looks at some thousands for one page.
    """

    next: str | None = None


class Counts(dict[tuple[str, str], int]):
    """Number of runs by (pipeline, status).

    Attributes:
        at_least: those of which there may be more: counting stopped.
        complete: whether every pipeline and status is here of which there is a run.
    """

    at_least: frozenset[tuple[str, str]] = frozenset()
    complete: bool = True

    @property
    def exact(self) -> bool:
        """Whether nothing was left uncounted."""
        return self.complete and not self.at_least


class Lister:
    """Lists and counts."""

    _store: Store
    _system: System

    async def list(
        self, *, oldest_first: bool = False, after: str | None = None, limit: int = 50, **filters: Unpack[Filters]
    ) -> Page:
        """A page of the runs that fit everything given, newest first; see `Filters`.

        The order is that of submission; of ends, if an end is asked for. Nothing that happens between two pages moves a
        run: none is shown twice, none that was there is left out. Costs what it shows, whatever the store holds; no
        payload is read.

        Args:
            after: `next` of the page before, with the same filters and order.

        Raises:
            InvalidArgument: a value that cannot be, or `after` is not of a list in this order.
        """
        where = filter_of(**filters)
        most = check_count("limit", limit, 1, 1000)
        return await self.page(where, oldest_first=oldest_first, after=after, limit=most)

    async def page(self, where: RunFilter, *, oldest_first: bool, after: str | None, limit: int) -> Page:
        """As `list`, of a filter that was checked."""
        place = None if after is None else decode_place(after, where, oldest_first)
        found = await self._store.list_runs(where, after=place, oldest_first=oldest_first, limit=limit)
        lacks = await lacking(self._store, found.rows, self._system.now_us())
        page = Page(info_of(row, lacks=lacks.get(row.run.run_id, "")) for row in found.rows)
        page.next = None if found.next is None else encode_place(found.next, where, oldest_first)
        return page

    async def counts(self, *, exact: bool = False, **filters: Unpack[Filters]) -> Counts:
        """Number of runs by (pipeline, status); see `Filters`.

        Args:
            exact: count all of them, which takes as long as there are many. Otherwise counting stops at 10,000 of each
                pipeline and status, and the answer says where.

        Raises:
            InvalidArgument: a value that cannot be.
        """
        return await self.count(filter_of(**filters), exact=exact)

    async def count(self, where: RunFilter, *, exact: bool, cap: int = CAP) -> Counts:
        """As `counts`, of a filter that was checked.

        Args:
            cap: where counting stops instead.
        """
        return _counts(await self._store.count_runs(where, cap=None if exact else cap))


def _counts(found: RunCounts) -> Counts:
    counts = Counts(found.numbers)
    counts.at_least, counts.complete = found.at_least, found.complete
    return counts


def filter_of(
    *,
    pipeline: str | None = None,
    tenant: str | None = None,
    resource: str | None = None,
    status: RunStatus | Sequence[RunStatus] = (),
    submitted_after: datetime | None = None,
    submitted_before: datetime | None = None,
    ended_after: datetime | None = None,
    ended_before: datetime | None = None,
    step: str | None = None,
    worker: str | None = None,
    waiting: WaitsFor | Sequence[WaitsFor] = (),
    annotations: Mapping[str, str] | None = None,
) -> RunFilter:
    """A filter of what callers give; see `Filters`.

    Raises:
        InvalidArgument: something that no run can have.
    """
    return RunFilter(
        None if pipeline is None else check_text("pipeline", pipeline),
        None if tenant is None else check_text("tenant", tenant),
        None if resource is None else check_text("resource", resource),
        check_statuses(status),
        None if submitted_after is None else check_time("submitted_after", submitted_after),
        None if submitted_before is None else check_time("submitted_before", submitted_before),
        None if ended_after is None else check_time("ended_after", ended_after),
        None if ended_before is None else check_time("ended_before", ended_before),
        None if step is None else check_name("step", step),
        None if worker is None else check_name("worker", worker),
        check_waiting(waiting),
        tuple(sorted(check_annotations(annotations).items())),
    )


def check_waiting(value: WaitsFor | Sequence[WaitsFor]) -> tuple[WaitsFor, ...]:
    """One or several things that runs wait for.

    Raises:
        InvalidArgument: nothing waits for that.
    """
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # what untyped code passes
        raise InvalidArgument(f"waiting must be a word or a sequence of words, not {type(given).__name__}")
    kinds = tuple(given)
    for kind in kinds:
        if kind not in WAITS_FOR:
            raise InvalidArgument(f"no run waits for {ascii(kind)[:80]}; runs wait for {', '.join(WAITS_FOR)}")
    return kinds


_PLACE = struct.Struct(">Bqq")
_SUM = struct.Struct(">H")


def encode_place(place: ListPlace, where: RunFilter, oldest_first: bool) -> str:
    """A place in a list, as opaque text that holds for ever: runs may come and go before and behind it."""
    packed = _PLACE.pack(_order(where, oldest_first), place.at_us, place.locator)
    return base64.b32encode(packed + _sum(packed)).decode().rstrip("=").lower()


def decode_place(text: str, where: RunFilter, oldest_first: bool) -> ListPlace:
    """The place of such a text.

    Raises:
        InvalidArgument: it is no such text, or one of a list in another order.
    """
    problem = f"after={ascii(text)[:80]} is no place in a list: give what the page before had as its next"
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # what untyped code passes
        raise InvalidArgument(problem)
    try:
        data = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
        order, at_us, locator = _PLACE.unpack(data[: _PLACE.size])
    except (binascii.Error, ValueError, struct.error):
        raise InvalidArgument(problem) from None
    if data[_PLACE.size :] != _sum(data[: _PLACE.size]) or not 0 <= locator <= sys.maxsize:
        raise InvalidArgument(problem)
    if order != _order(where, oldest_first):
        raise InvalidArgument(f"after={text} is a place in a list of another order: go on in the order you began with")
    return ListPlace(at_us, locator)


def _order(where: RunFilter, oldest_first: bool) -> int:
    return 1 + 2 * where.by_end + oldest_first


def _sum(packed: bytes) -> bytes:
    return _SUM.pack(zlib.crc32(packed) & 0xFFFF)
