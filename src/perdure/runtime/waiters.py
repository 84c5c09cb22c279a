"""Who waits for which run: registered before it is read, woken after it is durable [R-16]."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from perdure.core.projection import Projection

_Waiting: TypeAlias = dict[str, "list[asyncio.Future[Projection | None]]"]


class Waiters:
    """Futures by run id. A wake-up carries the projection where the run ended in this process, else None.

    Who waits for a result is not woken by each step: a waiter's turn of the loop is a good part of what a step costs.
    """

    __slots__ = ("_loop", "_resting", "_stepping")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._resting: _Waiting = {}
        self._stepping: _Waiting = {}

    def register(self, run_id: str, *, every_step: bool = False) -> asyncio.Future[Projection | None]:
        """A future that is resolved when the run rests, ends, or may have changed from outside.

        Args:
            every_step: resolve it at any other change as well.
        """
        future: asyncio.Future[Projection | None] = self._loop.create_future()
        waiting = self._stepping if every_step else self._resting
        futures = waiting.get(run_id)
        if futures is None:
            waiting[run_id] = [future]
        else:
            futures.append(future)
        return future

    def forget(self, run_id: str, future: asyncio.Future[Projection | None]) -> None:
        """Stop waiting; call it in any case."""
        for waiting in (self._resting, self._stepping):
            futures = waiting.get(run_id)
            if futures is not None and future in futures:
                futures.remove(future)
                if not futures:
                    del waiting[run_id]

    def stepped(self, run_id: str) -> None:
        """The run went on to its next step."""
        if self._stepping:
            _resolve(self._stepping, run_id, None)

    def wake(self, run_id: str, ended: Projection | None = None) -> None:
        """The run rests or ended, or something about it changed."""
        _resolve(self._resting, run_id, ended)
        _resolve(self._stepping, run_id, ended)

    def wake_all(self) -> None:
        """Anything may have changed."""
        for run_id in [*self._resting, *self._stepping]:  # in order: a simulation has to be the same each time
            self.wake(run_id)


def _resolve(waiting: _Waiting, run_id: str, ended: Projection | None) -> None:
    for future in waiting.pop(run_id, ()):
        if not future.done():
            future.set_result(ended)
