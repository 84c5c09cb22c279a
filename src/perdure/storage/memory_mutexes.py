"""Mutexes in memory: which run has which, for which resource [R-10]."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from perdure.ports.records import MutexTaken, NewRun

Mutex: TypeAlias = tuple[str, str, str]
"""Tenant, resource and name."""


def without(new: NewRun) -> NewRun:
    """What a row tells of a run."""
    return replace(new, mutexes=()) if new.mutexes else new


class MemoryMutexes:
    """Who has which."""

    def __init__(self) -> None:
        self._holders: dict[Mutex, NewRun] = {}
        self._of_run: dict[int, list[Mutex]] = {}

    def clear(self) -> None:
        """Nobody has any."""
        self._holders.clear()
        self._of_run.clear()

    def refused(self, new: NewRun) -> MutexTaken | None:
        """The first that the run needs and another has."""
        for name in new.mutexes:
            holder = self._holders.get((new.tenant, new.resource, name))
            if holder is not None:
                return MutexTaken(name, holder.run_id, holder.pipeline)
        return None

    def take(self, locator: int, new: NewRun) -> None:
        """Those that nobody has."""
        for name in new.mutexes:
            mutex = (new.tenant, new.resource, name)
            if mutex not in self._holders:
                self._holders[mutex] = new
                self._of_run.setdefault(locator, []).append(mutex)

    def free(self, locator: int) -> None:
        """All that the run has."""
        for mutex in self._of_run.pop(locator, ()):
            del self._holders[mutex]
