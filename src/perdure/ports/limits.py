"""What engine and clients need of a store for limits: reading, changing and mending them [R-11]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from perdure.core.permits import LimitKind


class LimitUse(msgspec.Struct, frozen=True, gc=False):
    """A limit for one of its keys, and how much of it is in use [R-11].

    Attributes:
        bound: how many places; of a rate, the microseconds from one start to the next.
        held: places that are taken; 0 of a rate.
        waiting: runs that wait; where the queue is bounded, all that were submitted and have not begun.
        oldest_us: since when the first in line waits; None: nobody does, or it is a rate.
        queue: so many may wait; None: any number.
    """

    limit: str
    key: str
    kind: LimitKind
    bound: int
    held: int
    waiting: int
    oldest_us: int | None
    queue: int | None = None


class NoRoom(msgspec.Struct, frozen=True, gc=False):
    """As many runs have been submitted under a limit, and not ended, as it has room for; nothing was written [R-11]."""

    limit: str
    key: str


class LimitStore(Protocol):
    """Part of `Store`. Places are taken by `Append.permits` and `IndexState.permits`."""

    async def limits(self) -> Sequence[LimitUse]:
        """Every limit that is in use, for each of its keys; by limit, then key [R-11]."""
        ...

    async def resize_limits(self, bounds: Mapping[str, int], /) -> None:
        """From now on these limits are so large, until an append or a row says otherwise: a deployment changed them.

        Nobody loses a place: a limit that is smaller now is over its bound until enough have come back.
        """
        ...

    async def grant_permits(self, now_us: int, /) -> int:
        """Mend what waits for places under limits [R-16]: free ones go to those who have waited longest, who are due;
        what runs hold that are not there any more, have ended or cannot start is free. So is what a run holds that is
        due and whose pipeline is held, or that in a shared store no worker who is alive can take [D-4]. Returns how
        many got one.
        """
        ...
