"""One clock for all who work on a store: the store's own [R-3, R-4].

Times in the journal decide when something happens. On machines whose clocks differ by an hour, a run that one of them
submits now would be due in an hour for the other. So engines and clients go by the store's clock, where it has one.
"""

from __future__ import annotations

import logging

from perdure.ports.clock import System
from perdure.ports.store import Store

logger = logging.getLogger("perdure")

NEGLIGIBLE_US = 100_000
"""A smaller difference is left alone: it is about what asking takes."""

WORTH_A_WORD_US = 5_000_000


class StoreTime:
    """A `System` whose time is that of a store, as it was asked last.

    Attributes:
        ahead_us: how far this machine's clock is ahead of the store's.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self.ahead_us = 0
        self.follows_store = True
        self.steady_s = system.steady_s
        self.run_id = system.run_id
        self.append_id = system.append_id
        self.worker_id = system.worker_id
        self.chance = system.chance

    def now_us(self) -> int:
        """See `System.now_us`."""
        return self._system.now_us() - self.ahead_us

    async def ask(self, store: Store) -> bool:
        """Compare the clocks; False where the store has none."""
        sent_us = self._system.now_us()
        there_us = await store.clock_us()
        if there_us is None:
            return False
        ahead_us = (sent_us + self._system.now_us()) // 2 - there_us
        before_us, self.ahead_us = self.ahead_us, ahead_us if abs(ahead_us) > NEGLIGIBLE_US else 0
        if abs(self.ahead_us - before_us) > WORTH_A_WORD_US:
            word = "ahead of" if ahead_us > 0 else "behind"
            logger.warning("this machine's clock is %.0f s %s the store's, which counts", abs(ahead_us) / 1e6, word)
        return True


async def store_time(system: System, store: Store) -> System:
    """The clock to go by for who opened a store: its own, if it has one."""
    time = StoreTime(system)
    return time if system.follows_store and await time.ask(store) else system
