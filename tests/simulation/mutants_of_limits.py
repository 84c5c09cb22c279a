"""Engines and stores that break what limits and mutexes promise [R-10, R-11]."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from perdure.core.permits import Permit
from perdure.core.plan import Plan
from perdure.ports.limits import NoRoom
from perdure.ports.records import MutexTaken, NewRun
from perdure.ports.store import Append
from perdure.runtime import applying, driver, submission
from perdure.runtime.host import Host
from perdure.runtime.limits import Places, reserve
from perdure.runtime.live import LiveRun
from perdure.storage.memory_entrances import MemoryEntrances
from perdure.storage.memory_limits import Bound, MemoryLimits
from perdure.storage.memory_mutexes import MemoryMutexes
from tests.simulation.mutants import Mutant


def asks_for_no_place(patch: pytest.MonkeyPatch) -> None:
    """The engine: an append that reserves says nothing of places."""

    def none(
        host: Host, live: LiveRun, plan: Plan, append: Append, *, begins: bool = False, claims: bool = False
    ) -> None:
        reserve(host, live, plan, append, begins=begins, claims=claims)
        append.permits = () if append.permits else append.permits

    for module in (applying, driver, submission):
        patch.setattr(module, "reserve", none)


def has_one_place_more(patch: pytest.MonkeyPatch) -> None:
    """The store: it counts one short."""
    original = MemoryLimits.refused

    def refused(self: MemoryLimits, run: int, permits: Iterable[Permit], now_us: int) -> Permit | None:
        return original(self, run, [replace(permit, bound=permit.bound + 1) for permit in permits], now_us)

    patch.setattr(MemoryLimits, "refused", refused)


def passes_no_place_on(patch: pytest.MonkeyPatch) -> None:
    """The store: whoever waits is not told of a place that is free."""

    def nobody(self: MemoryLimits, bound: Bound) -> int:
        return 0

    patch.setattr(MemoryLimits, "_pass_on", nobody)


def gives_places_to_the_last(patch: pytest.MonkeyPatch) -> None:
    """The store: last come, first served."""
    original = getattr(MemoryLimits, "_pass_on")  # noqa: B009 # private

    def last(self: MemoryLimits, bound: Bound) -> int:
        bound.line = {run: (-number, since_us) for run, (number, since_us) in bound.line.items()}
        count: int = original(self, bound)
        bound.line = {run: (-number, since_us) for run, (number, since_us) in bound.line.items()}
        return count

    patch.setattr(MemoryLimits, "_pass_on", last)


def keeps_places_of_the_ended(patch: pytest.MonkeyPatch) -> None:
    """The store: the end of a run gives nothing back."""

    def ended(self: MemoryLimits, run: int) -> None:
        return None

    patch.setattr(MemoryLimits, "ended", ended)


def counts_nobody_in_its_process(patch: pytest.MonkeyPatch) -> None:
    """The engine: a limit of the worker lets everybody in."""

    def shut(self: Places, permit: Permit, run_id: str) -> None:
        return None

    patch.setattr(Places, "shut", shut)


def lets_everybody_into_the_queue(patch: pytest.MonkeyPatch) -> None:
    """The store: room is not looked at."""

    def refused(self: MemoryEntrances, new: NewRun) -> NoRoom | None:
        return None

    patch.setattr(MemoryEntrances, "refused", refused)


def lets_nobody_out_of_the_queue(patch: pytest.MonkeyPatch) -> None:
    """The store: room that was taken is taken for ever."""

    def leave(self: MemoryEntrances, run: int) -> None:
        return None

    patch.setattr(MemoryEntrances, "leave", leave)


def excludes_nobody(patch: pytest.MonkeyPatch) -> None:
    """The store: a mutex is never taken."""

    def refused(self: MemoryMutexes, new: NewRun) -> MutexTaken | NoRoom | None:
        return self.entrances.refused(new)

    patch.setattr(MemoryMutexes, "refused", refused)


def frees_no_mutex(patch: pytest.MonkeyPatch) -> None:
    """The store: who had a mutex has it for ever."""

    def free(self: MemoryMutexes, locator: int) -> None:
        self.entrances.leave(locator)

    patch.setattr(MemoryMutexes, "free", free)


OF_LIMITS = (
    Mutant("asks for no place", ("R-11",), asks_for_no_place, limited=True),
    Mutant("asks for no place among many", ("R-11",), asks_for_no_place, shared=True, limited=True),
    Mutant("has one place more", ("R-11",), has_one_place_more, limited=True),
    Mutant("passes no place on", ("R-16",), passes_no_place_on, limited=True),
    Mutant("gives places to the last", ("R-11",), gives_places_to_the_last, limited=True),
    Mutant("keeps places of the ended", ("R-11", "R-16"), keeps_places_of_the_ended, limited=True),
    Mutant("counts nobody in its process", ("R-11",), counts_nobody_in_its_process, limited=True),
    Mutant("lets everybody into the queue", ("R-11",), lets_everybody_into_the_queue, limited=True),
    Mutant("lets nobody out of the queue", ("R-11",), lets_nobody_out_of_the_queue, limited=True),
    Mutant("excludes nobody", ("R-10",), excludes_nobody, limited=True),
    Mutant("frees no mutex", ("R-10", "J-11"), frees_no_mutex, limited=True),
)
