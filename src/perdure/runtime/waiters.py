"""Who waits for which run: registered before it is read, woken after it is durable [R-16]."""

from __future__ import annotations

import asyncio

from perdure.core.projection import Projection


class Waiters:
    """Futures by run id. A wake-up carries the projection where the run ended in this process, else None."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, list[asyncio.Future[Projection | None]]] = {}

    def register(self, run_id: str) -> asyncio.Future[Projection | None]:
        """A future that is resolved at the next change of the run."""
        future: asyncio.Future[Projection | None] = self._loop.create_future()
        waiting = self._waiting.get(run_id)
        if waiting is None:
            self._waiting[run_id] = [future]
        else:
            waiting.append(future)
        return future

    def forget(self, run_id: str, future: asyncio.Future[Projection | None]) -> None:
        """Stop waiting; call it in any case."""
        waiting = self._waiting.get(run_id)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[run_id]

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._waiting

    def wake(self, run_id: str, ended: Projection | None = None) -> None:
        """The run changed."""
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_result(ended)

    def wake_all(self) -> None:
        """Anything may have changed."""
        for run_id in list(self._waiting):
            self.wake(run_id)
