"""Being told to stop: signals as calls on the loop, where the platform and the thread can."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress

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


@contextmanager
def ctrl_c_blocked() -> Generator[None]:
    """A child that starts meanwhile gets no Ctrl-C before it can tell that it leaves that to us."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_ctrl_c_to_the_parent() -> None:
    """In such a child: Ctrl-C on the terminal reaches every process on it, and the parent answers it."""
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
