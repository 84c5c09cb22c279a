"""Being told to stop: signals as calls on the loop, where the platform and the thread can."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress

STOPS = (signal.SIGINT, signal.SIGTERM)

_CANNOT = (NotImplementedError, ValueError, RuntimeError)
"""Windows has no such signals on a loop, and other threads than the main one may not ask for them: Python's own
handling stays, which raises KeyboardInterrupt, and that is answered too."""


def on_stop(numbers: Iterable[signal.Signals], told: Callable[[], None]) -> None:
    """Call `told` on the running loop for each of these signals from now on."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        with suppress(*_CANNOT):
            loop.add_signal_handler(number, told)


def give_back(numbers: Iterable[signal.Signals]) -> None:
    """These signals do again what they did before."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        with suppress(*_CANNOT):
            loop.remove_signal_handler(number)
