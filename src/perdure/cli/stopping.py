"""Being told to stop: signals as calls on the loop, where the platform and the thread can; Ctrl-C at any moment."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

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


def run_to_end(work: Coroutine[None, None, T]) -> T:
    """`asyncio.run` for a command that waits: Ctrl-C ends it also when nothing else would ever wake its loop.

    Raises:
        KeyboardInterrupt: it was pressed.
    """

    async def awake() -> T:
        with _woken_by_signals():
            return await work

    return asyncio.run(awake())


@contextmanager
def _woken_by_signals() -> Generator[None]:
    """Each signal makes the loop look at what is there. Python notes one down and handles it between two of its own
    instructions, so one that comes just before the loop goes to sleep in the kernel would wait for its next event.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield  # the loop of Windows does it itself; other threads get no signals
        return
    loop = asyncio.get_running_loop()
    heard, told = socket.socketpair()
    with heard, told:
        heard.setblocking(False)
        told.setblocking(False)
        loop.add_reader(heard, heard.recv, 4096)
        before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(heard)


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
