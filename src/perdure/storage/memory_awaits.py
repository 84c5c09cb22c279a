"""Which runs wait for which, in memory [R-13, R-16]."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class MemoryAwaits:
    """Waiters and what they wait for. A run that was waited for stays named until its waiter has looked.

    Args:
        is_live: whether a run exists and has not ended.
        exists: whether it exists.
        keeps_waiting: whether a waiter goes on waiting, unless somebody makes it do something else.
    """

    def __init__(
        self, is_live: Callable[[str], bool], exists: Callable[[str], bool], keeps_waiting: Callable[[str], bool]
    ) -> None:
        self._is_live = is_live
        self._exists = exists
        self._keeps_waiting = keeps_waiting
        self._targets: dict[str, set[str]] = {}
        self._waiters: dict[str, set[str]] = {}
        self._left: dict[str, int] = {}

    @property
    def any(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    def awaited(self, run_id: str) -> bool:
        """Whether somebody waits for it, or has yet to look how it ended."""
        return run_id in self._waiters

    def targets(self, run_id: str) -> set[str]:
        """What it waits for, or has yet to look at."""
        return set(self._targets.get(run_id, ()))

    def left(self, run_id: str) -> int | None:
        """How many more have to end before it is due; None: it waits for none."""
        return self._left.get(run_id)

    def clear(self) -> None:
        """Forget everything."""
        self._targets.clear()
        self._waiters.clear()
        self._left.clear()

    def put(self, waiter: str, awaits: Iterable[str], need: int) -> bool:
        """Replace what a run waits for; whether enough of that has ended already."""
        for target in self._targets.pop(waiter, ()):
            self._waiters[target].discard(waiter)
            if not self._waiters[target]:
                del self._waiters[target]
        self._left.pop(waiter, None)
        ids = dict.fromkeys(awaits)
        if not ids:
            return False
        existing = {target for target in ids if self._exists(target)}
        self._targets[waiter] = existing
        for target in existing:
            self._waiters.setdefault(target, set()).add(waiter)
        left = self._left[waiter] = need - sum(not self._is_live(target) for target in ids)
        return left <= 0

    def ended(self, run_id: str) -> list[str]:
        """A run ended; those for which that was enough."""
        enough: list[str] = []
        for waiter in sorted(self._waiters.get(run_id, ())):
            self._left[waiter] -= 1
            if self._left[waiter] <= 0:
                enough.append(waiter)
        return enough

    def closes_a_circle(self, run_id: str, awaits: Iterable[str]) -> bool:
        """Whether one of these runs waits for `run_id`, through however many others."""
        reached, ahead = set[str](), list(awaits)
        while ahead:
            at = ahead.pop()
            if at == run_id:
                return True
            if at not in reached and self._left.get(at, 0) > 0 and self._keeps_waiting(at):
                ahead += self._targets.get(at, ())
            reached.add(at)
        return False
