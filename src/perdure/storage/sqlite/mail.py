"""Results on their way from a thread to the loop: one wake-up of the loop carries many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Answer: TypeAlias = tuple["asyncio.Future[Any] | None", Any, BaseException | None]
"""A future of the loop with its result or, if that is not None, its exception."""


class Mailbox:
    """Delivers to one loop, from any thread. When the loop is gone nobody waits, and letters are dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._shut = False

    def send(self, answers: Sequence[Answer]) -> None:
        """Resolve futures on the loop, soon."""
        self._post(lambda: self._resolve(answers))

    def call(self, function: Callable[[], None]) -> None:
        """Call something on the loop, soon; nothing after `shut`."""
        if not self._shut:
            self._post(function)

    def shut(self) -> None:
        """Answer nobody any more: whoever still waits is canceled. On the loop."""
        self._shut = True

    def _post(self, function: Callable[[], None]) -> None:
        # RuntimeError: the loop was closed without closing the store.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

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
