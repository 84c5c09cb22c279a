"""Room under limits that bound their queues, in memory: who was submitted under them and has not ended [R-11]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from perdure.core.permits import Entrance
from perdure.ports.limits import LimitUse, NoRoom
from perdure.ports.records import NewRun

Place: TypeAlias = tuple[str, str]
"""A limit's id, and a key."""


@dataclass(slots=True)
class Room:
    """One limit for one key: how large it was when a run came in last, and the numbers of those inside."""

    size: Entrance
    runs: set[int] = field(default_factory=set[int])


class MemoryEntrances:
    """Who is inside."""

    def __init__(self) -> None:
        self._rooms: dict[Place, Room] = {}

    def clear(self) -> None:
        """Nobody is."""
        self._rooms.clear()

    def refused(self, new: NewRun) -> NoRoom | None:
        """The first that has no room for a new run."""
        for entrance in new.entrances:
            room = self._rooms.get((entrance.limit, entrance.key))
            if (len(room.runs) if room is not None else 0) >= entrance.room:
                return NoRoom(entrance.limit, entrance.key)
        return None

    def enter(self, run: int, new: NewRun) -> None:
        """It is inside until it leaves."""
        for entrance in new.entrances:
            room = self._rooms.setdefault((entrance.limit, entrance.key), Room(entrance))
            room.size = entrance
            room.runs.add(run)

    def places(self, run: int) -> list[Place]:
        """Where it is inside."""
        return [place for place, room in self._rooms.items() if run in room.runs]

    def leave(self, run: int) -> None:
        """A run has ended, or is gone."""
        for place, room in list(self._rooms.items()):
            room.runs.discard(run)
            if not room.runs:
                del self._rooms[place]

    def shown(self, uses: Sequence[LimitUse]) -> list[LimitUse]:
        """Limits in use, with what is known here of their queues."""
        found = {(use.limit, use.key): use for use in uses}
        for place, room in self._rooms.items():
            use = found.get(place) or LimitUse(*place, "in_flight", room.size.bound, 0, 0, None)
            waiting = max(use.waiting, len(room.runs) - use.held)
            found[place] = replace(use, waiting=waiting, queue=room.size.queue)
        return [use for _, use in sorted(found.items())]
