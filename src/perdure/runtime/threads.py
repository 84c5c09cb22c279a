"""A small pool for `def` handlers: one hop there, completions of many brought back in one wake-up of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import TypeAlias

_Job: TypeAlias = tuple[Callable[[], object], "asyncio.Future[object]", Callable[[], None] | None]
_Done: TypeAlias = tuple["asyncio.Future[object]", object, BaseException | None]


class Threads:
    """Starts a thread when a job finds none idle, up to `limit`; threads are daemons and end with `close`.

    A loop of virtual time has a method `count_outside`: it is told of the jobs, so that it waits for them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._count_outside: Callable[[int], None] | None = getattr(loop, "count_outside", None)
        self._limit = limit
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: list[_Done] = []
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0

    def run(
        self, function: Callable[[], object], queued: Callable[[bool], None] | None = None
    ) -> asyncio.Future[object]:
        """Call `function` in a thread, with the caller's context variables; not at all if the future is done before.

        Args:
            queued: told True if no thread is free, and False when one has become so, unless the future is done by then.
        """
        future: asyncio.Future[object] = self._loop.create_future()
        context = copy_context()
        starts: Callable[[], None] | None = None
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._started < self._limit:
                self._started += 1
                threading.Thread(target=self._work, name="perdure-handler", daemon=True).start()
            elif queued is not None:
                queued(True)
                told = queued
                starts = lambda: None if future.done() else told(False)  # noqa: E731  one line says it
        if self._count_outside is not None:
            self._count_outside(1)
        self._jobs.put((lambda: context.run(function), future, starts))
        return future

    def close(self) -> None:
        """Let the threads end after the jobs they have; a job that runs on is not waited for."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future, starts = job
            try:
                if starts is not None:
                    self._loop.call_soon_threadsafe(starts)
                # Its attempt may have ended while it waited for a thread: then it must not begin.
                result: _Done = (future, None if future.done() else function(), None)
            except BaseException as error:  # whatever a handler raises is its attempt's end
                result = (future, None, error)
            del function, starts, job
            with self._lock:
                self._idle += 1
                first = not self._done
                self._done.append(result)
            if first:
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:  # the loop is closed: nobody waits
                    return
            del result

    def _deliver(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        if self._count_outside is not None:
            self._count_outside(-len(done))
        for future, value, error in done:
            if future.done():
                continue  # its attempt was ended otherwise; the late return is dropped
            if error is None:
                future.set_result(value)
            elif isinstance(error, (StopIteration, GeneratorExit)):  # a future cannot carry it through coroutines
                future.set_exception(RuntimeError(f"the handler raised {type(error).__name__}: {error}"))
            else:
                future.set_exception(error)
