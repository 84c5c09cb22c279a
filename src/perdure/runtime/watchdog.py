"""Notices a handler that keeps the event loop from running, and names it."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable


class Watchdog:
    """Asks the loop for a sign of life from a thread; when none comes for `limit_s`, reports once per blockage.

    Args:
        limit_s: how long the loop may be silent, in seconds.
        report: called in the watchdog's thread with the asyncio task that is running and the loop thread's stack.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit_s: float,
        report: Callable[[asyncio.Task[object] | None, str], None],
    ) -> None:
        self._loop = loop
        self._limit_s = limit_s
        self._report = report
        self._loop_thread = threading.get_ident()
        self._stop = threading.Event()
        self._alive = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="perdure-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End; does not wait for the thread."""
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._limit_s):
            self._alive.clear()
            try:
                self._loop.call_soon_threadsafe(self._alive.set)
            except RuntimeError:  # the loop is closed
                return
            if self._alive.wait(self._limit_s) or self._stop.is_set():
                continue
            task = asyncio.current_task(self._loop)
            frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] # the one way to see another thread
            frame = frames.get(self._loop_thread)
            stack = "".join(traceback.format_stack(frame)[-4:]) if frame is not None else ""
            self._report(task, stack)
            while not self._alive.wait(self._limit_s) and not self._stop.is_set():
                pass
