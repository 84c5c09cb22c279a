"""The one place that reads the real clock and real chance."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import count

from perdure.core.ids import encode_run_id

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux's clock that counts the time of suspension, too."""

_steady_s: Callable[[], float] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)


class RealSystem:
    """Wall clock, process-unique append ids, time-ordered run ids.

    Run ids are 21 characters: 11 for the microseconds, 10 of chance. Ids of one process rise strictly, so
    that newest-first listings are stable; across processes they rise as far as the clocks agree.
    """

    follows_store = True

    def __init__(self) -> None:
        self._random = random.Random(os.urandom(16))
        self._prefix = os.urandom(8)
        self._numbers = count(1)
        self._last_us = 0
        self.steady_s = _steady_s  # asked before and after every step: no call of ours around it
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reseed)

    def _reseed(self) -> None:
        self._random.seed(os.urandom(16))
        self._prefix = os.urandom(8)

    def now_us(self) -> int:
        """See `System.now_us`."""
        return time.time_ns() // 1000

    def run_id(self) -> str:
        """See `System.run_id`."""
        now_us = max(time.time_ns() // 1000, self._last_us + 1)
        self._last_us = now_us
        return encode_run_id(now_us, self._random.getrandbits(50))

    def append_id(self) -> bytes:
        """See `System.append_id`."""
        return self._prefix + next(self._numbers).to_bytes(8, "big")

    def worker_id(self) -> str:
        """See `System.worker_id`."""
        return f"w{self._random.getrandbits(60):015x}"

    def chance(self) -> float:
        """See `System.chance`."""
        return self._random.random()
