"""What engine and clients need of a store for limits: reading, changing and mending them [R-11]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from perdure.ports.records import LimitUse


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
        what runs hold that are not there any more, have ended or cannot start is free. Returns how many got one.
        """
        ...
