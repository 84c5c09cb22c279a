"""Time and chance, passed in everywhere so that tests and simulations own them."""

from __future__ import annotations

from typing import Protocol


class System(Protocol):
    """What only the outside world can give: the time, new ids, and chance."""

    @property
    def follows_store(self) -> bool:
        """Whether a store's own clock, where it has one, counts instead of this one; not if a script moves the time."""
        ...

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC. May jump; it decides *when*, never *who* [R-3]."""
        ...

    def steady_s(self) -> float:
        """Seconds since any moment, by a clock that is never set, and that goes on while the machine sleeps [R-3]."""
        ...

    def run_id(self) -> str:
        """A new run id of `[0-9a-z]`, greater than those made before, as far as the clock allows."""
        ...

    def append_id(self) -> bytes:
        """16 bytes that no other append has [J-14]."""
        ...

    def worker_id(self) -> str:
        """A new worker id, random per process start [R-3]."""
        ...

    def chance(self) -> float:
        """A number in [0, 1), for jitter."""
        ...
