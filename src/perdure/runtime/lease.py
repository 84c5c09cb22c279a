"""A worker's lease: the limit of what it may begin [R-3].

One identity has one lease. Once another worker has marked it dead, that lease is over for good, with everything that
was claimed under it; the process goes on with a new identity and a new lease.
"""

from __future__ import annotations

import asyncio
from math import inf

from perdure.ports.clock import System
from perdure.runtime.live import Lost


class Lease:
    """How long one identity may begin effects and append.

    Attributes:
        until_s: on this worker's steady clock; for ever where the store has one engine.
        over: somebody found this worker dead; nothing that hangs on this lease is this worker's any more.
    """

    __slots__ = ("_renewed", "_system", "over", "until_s")

    def __init__(self, system: System, until_s: float = inf) -> None:
        self._system = system
        self._renewed: asyncio.Event | None = None
        self.until_s = until_s
        self.over = False

    @property
    def holds(self) -> bool:
        """Whether this worker may begin something now."""
        return self.until_s == inf or self._system.steady_s() < self.until_s

    def renewed(self, until_s: float) -> None:
        """A renewal succeeded."""
        self.until_s = until_s
        self._wake()

    def end(self) -> None:
        """This worker was found dead."""
        self.over = True
        self.until_s = -inf
        self._wake()

    def _wake(self) -> None:
        if self._renewed is not None:
            self._renewed.set()

    async def wait(self) -> None:
        """Wait until something may be begun again.

        Raises:
            Lost: never again; whatever hangs on this lease belongs to others.
        """
        while not self.holds:
            if self.over:
                raise Lost
            if self._renewed is None or self._renewed.is_set():  # one for all who wait
                self._renewed = asyncio.Event()
            await self._renewed.wait()
