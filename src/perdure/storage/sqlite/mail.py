"""Results on their way from a thread to the loop: one wake-up of the loop carries many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Answer: TypeAlias = tuple["asyncio.Future[Any] | None", Any, BaseException | None]
"""A future of the loop with its result or, if that is not None, its exception."""


class Mailbox:
    """Delivers to one loop; after `shut`, or when the loop is gone, answers are dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._shut = False

    def send(self, answers: Sequence[Answer]) -> None:
        """Resolve futures on the loop, soon. From any thread."""
        self.call(lambda: self._resolve(answers))

    def call(self, function: Callable[[], None]) -> None:
        """Call something on the loop, soon. From any thread."""
        if self._shut:
            return
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop was closed without closing the store
            self._shut = True

    def shut(self) -> None:
        """Drop what has not been delivered yet. On the loop."""
        self._shut = True

    def _resolve(self, answers: Sequence[Answer]) -> None:
        for future, result, error in answers:
            if future is None or future.done():
                continue
            if self._shut:
                future.cancel()
            elif error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
