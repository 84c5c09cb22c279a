"""What a store notes of runs beside their index rows, to be compared with what they should have: for `verify` [J-11].

A store keeps these notes itself, in the transactions that change what they are about. They are wrong only where a hand,
or a backup that was put back in part, changed them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from perdure.ports.records import NewRun

NoteKind: TypeAlias = Literal["mutex", "wait", "place", "line", "room", "count"]
"""A mutex [R-10], a run waited for [R-16], a place under a limit, one in the line for it, room in its queue, or how
many places of it are taken [R-11]."""


class Notes(msgspec.Struct, frozen=True):
    """What is noted of one run.

    Attributes:
        slot: it has its slot.
        mutexes: that it has, as (tenant, resource, name).
        awaits: ids of runs that wake it with their end.
        places: under limits, as (limit, key), with room in their queues; turns of rates are none.
        in_line: it stands in a line for a place.
    """

    slot: bool
    mutexes: frozenset[tuple[str, str, str]] = frozenset()
    awaits: frozenset[str] = frozenset()
    places: frozenset[tuple[str, str]] = frozenset()
    in_line: bool = False


class Astray(msgspec.Struct, frozen=True):
    """A note of a run that is not there, or a count of places that is not how many there are.

    Attributes:
        name: of a mutex with tenant and resource, of a limit with its key, the id of the run that is waited for.
    """

    kind: NoteKind
    name: str


class Notebook(Protocol):
    """All that a store has noted."""

    async def of(self, run_id: str, /) -> Notes | None:
        """What is noted of a run, in one consistent read; None if there is no such run."""
        ...

    async def astray(self, limit: int, /) -> Sequence[Astray]:
        """Notes of nobody, at most so many of each kind."""
        ...

    async def note_anew(self, locator: int, new: NewRun, /) -> None:
        """Write the mutexes of a run as `new` has them, none if it has ended, and its slot: that of a run that has
        ended and does not keep it for good goes to whoever waits for it, and one that lives and waits for none has it
        again. What another run has by now stays with that.
        """
        ...

    async def forget_astray(self) -> None:
        """Remove the notes of nobody, those of waits that runs do not wait and of places that they cannot have any
        more, and count places anew."""
        ...
