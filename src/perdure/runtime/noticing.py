"""Looking for what others committed [R-2, R-16]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine

from perdure.ports.changes import Change, all_of


class Noticer:
    """Looks once at a time, and once more for what was told meanwhile.

    Args:
        look: looks for what a change may be about; it does not raise.
        spawn: begins a task.
        over: whether nobody wants to know any more.
    """

    def __init__(
        self,
        look: Callable[[Change], Awaitable[None]],
        spawn: Callable[[Coroutine[object, object, None]], None],
        over: Callable[[], bool],
    ) -> None:
        self._look = look
        self._spawn = spawn
        self._over = over
        self._unseen: Change | None = None
        self._looking = False

    def tell(self, change: Change) -> None:
        """Others committed that."""
        self._unseen = all_of((self._unseen, change))
        if not self._looking:
            self._looking = True
            self._spawn(self._look_at_all())

    async def _look_at_all(self) -> None:
        try:
            while self._unseen is not None and not self._over():
                change, self._unseen = self._unseen, None
                await self._look(change)
        finally:
            self._looking = False
