"""A clock that a script moves: hours of sleep pass at once, on any store and in real time, too."""

from __future__ import annotations

from perdure.ports.clock import System
from perdure.runtime.system import RealSystem


class MovedSystem:
    """Another system, with its clock ahead by as much as the script let pass."""

    follows_store = False

    def __init__(self, system: System | None) -> None:
        self._system = RealSystem() if system is None else system
        self._ahead_us = 0

    def pass_until(self, now_us: int) -> None:
        """Let the time be `now_us`, unless it is later already. Nobody is woken by that."""
        self._ahead_us += max(0, now_us - self.now_us())

    def now_us(self) -> int:
        """See `System.now_us`."""
        return self._system.now_us() + self._ahead_us

    def steady_s(self) -> float:
        """See `System.steady_s`."""
        return self._system.steady_s() + self._ahead_us / 1_000_000

    def run_id(self) -> str:
        """See `System.run_id`."""
        return self._system.run_id()

    def append_id(self) -> bytes:
        """See `System.append_id`."""
        return self._system.append_id()

    def worker_id(self) -> str:
        """See `System.worker_id`."""
        return self._system.worker_id()

    def chance(self) -> float:
        """See `System.chance`."""
        return self._system.chance()
