"""What a run takes when it is submitted and has until its end, in memory: mutexes for its resource [R-10], and room
under limits [R-11]."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from perdure.ports.limits import NoRoom
from perdure.ports.records import MutexTaken, NewRun
from perdure.storage.memory_entrances import MemoryEntrances

Mutex: TypeAlias = tuple[str, str, str]
"""Tenant, resource and name."""


def without(new: NewRun) -> NewRun:
    """What a row tells of a run."""
    return replace(new, mutexes=(), entrances=()) if new.mutexes or new.entrances else new


class MemoryMutexes:
    """Who has which.

    Attributes:
        entrances: room under limits.
    """

    def __init__(self) -> None:
        self.entrances = MemoryEntrances()
        self._holders: dict[Mutex, NewRun] = {}
        self._of_run: dict[int, list[Mutex]] = {}

    def clear(self) -> None:
        """Nobody has any."""
        self._holders.clear()
        self._of_run.clear()
        self.entrances.clear()

    def refused(self, new: NewRun) -> MutexTaken | NoRoom | None:
        """The first that the run needs and another has; or a limit without room."""
        for name in new.mutexes:
            holder = self._holders.get((new.tenant, new.resource, name))
            if holder is not None:
                return MutexTaken(name, holder.run_id, holder.pipeline)
        return self.entrances.refused(new)

    def take(self, locator: int, new: NewRun) -> None:
        """Those that nobody has, and room."""
        self.entrances.enter(locator, new)
        self._take(locator, new)

    def _take(self, locator: int, new: NewRun) -> None:
        for name in new.mutexes:
            mutex = (new.tenant, new.resource, name)
            if mutex not in self._holders:
                self._holders[mutex] = new
                self._of_run.setdefault(locator, []).append(mutex)

    def of(self, locator: int) -> list[Mutex]:
        """Those that the run has."""
        return list(self._of_run.get(locator, ()))

    def free(self, locator: int) -> None:
        """All that the run has."""
        self._free(locator)
        self.entrances.leave(locator)

    def restore(self, locator: int, new: NewRun, *, ended: bool) -> None:
        """As its first fact says; the room that it has, if any, it keeps until its end."""
        self._free(locator)
        if not ended:
            self._take(locator, new)

    def _free(self, locator: int) -> None:
        for mutex in self._of_run.pop(locator, ()):
            del self._holders[mutex]
