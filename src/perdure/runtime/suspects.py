"""An operation that kills its worker takes along whatever runs beside it, and those would be held with it [M-5].

So operations whose attempts were lost several times in a row are suspects: they are started one after another, until
each has shown that it is not the one. Everything else goes on beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.core.projection import Projection
from perdure.core.retry import MAX_LOST_IN_A_ROW
from perdure.runtime.live import LiveRun

SUSPICIOUS_LOSSES = MAX_LOST_IN_A_ROW - 2
"""So many lost attempts in a row make a suspect; one more, and it has its last chance."""

HEAD_START_S = 30.0
"""A suspect that has run for so long, or has succeeded, lets the next one start. On its last chance it runs alone."""


class Suspects:
    """The suspects of one engine.

    Attributes:
        waiting: runs that were not admitted yet; they stay due.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, freed: Callable[[], None]) -> None:
        self._loop = loop
        self._freed = freed
        self._running: dict[str, LiveRun] = {}
        self._alone = False
        self._timer: asyncio.TimerHandle | None = None
        self.waiting: set[str] = set()

    def admits(self, live: LiveRun) -> bool:
        """Whether the run may be claimed now. If so, `cleared` or `gone` has to follow."""
        losses = _losses(live.p)
        if losses < SUSPICIOUS_LOSSES:
            return True
        alone = losses > SUSPICIOUS_LOSSES
        if self._alone or (self._running if alone else self._timer):
            self.waiting.add(live.p.run_id)
            return False
        self._running[live.p.run_id] = live
        self._alone = alone
        if not alone:
            self._timer = self._loop.call_later(HEAD_START_S, self._head_start_over)
        return True

    def cleared(self, live: LiveRun) -> None:
        """The run's operation has ended without killing anybody, or nobody runs it here any more."""
        if self._running.get(live.p.run_id) is live:
            del self._running[live.p.run_id]
            self._alone = False
            self._head_start_over()

    @property
    def any(self) -> bool:
        """Whether any suspect runs: for the hot path."""
        return bool(self._running)

    def _head_start_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.waiting:
            self.waiting.clear()
            self._freed()


def _losses(p: Projection) -> int:
    """Lost attempts in a row of the operation that is next, the open one included."""
    current = p.current
    return 0 if current is None else current.lost + current.open
