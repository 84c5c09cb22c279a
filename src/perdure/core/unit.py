"""A unit: the items of one step, or its child runs, and how each of them fares [B-2].

Fixed when it opens; what is in flight, what waits and what is done is kept apart, so that an append costs as much as
the items it is about, however many there are [J-12].
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

from perdure.core.facts import EndStatus, Failure, ItemCounts, UnitShape

CHILD_SHAPES: frozenset[str] = frozenset({"child", "children"})
"""Units whose items are runs of another pipeline [B-21]."""


class Item(msgspec.Struct, gc=False, omit_defaults=True):
    """One item of a unit.

    Attributes:
        attempts: reserved so far; of a child run: 1 from its submission on.
        output: the encoded output, there only after success.
        failure: why it failed for good.
        status: how the child run ended.
        in_doubt: it failed, but not by its handler's own word; or the child left effects behind [U-9].
        failures, lost, last_failure: as of an operation, since the first attempt or the last release [M-5].
        due_us: when an item that backs off may be tried again.
    """

    attempts: int = 0
    output: bytes | None = None
    failure: Failure | None = None
    status: EndStatus | None = None
    in_doubt: bool = False
    failures: int = 0
    lost: int = 0
    last_failure: Failure | None = None
    due_us: int = 0


class Unit(msgspec.Struct, omit_defaults=True, dict=True):
    """See the module.

    Attributes:
        items: encoded; of a loop those of the turns so far, of child runs their inputs.
        opened_us: when it opened; part of the ids of its child runs.
        pipeline: of the child runs.
        entries: of the items that were started, which happens in their order; of child runs: that are to be submitted.
        sent: of child runs: the first index that is not known to be submitted.
        open: indices with an attempt reserved and nothing recorded of its end; of child runs: not ended.
        waiting: indices of items that back off.
        outputs: how many items have an output.
        failed: indices of those that failed for good.
        turns: of a loop: done since it opened or was released [B-23].
        done: of a loop: a turn said so.
    """

    shape: UnitShape
    items: list[bytes]
    opened_us: int = 0
    pipeline: str = ""
    entries: list[Item] = []
    sent: int = 0
    open: set[int] = set()
    waiting: set[int] = set()
    outputs: int = 0
    failed: set[int] = set()
    turns: int = 0
    done: bool = False

    @property
    def next(self) -> int:
        """The first index that was never started; of child runs: that is not to be submitted yet."""
        return len(self.entries)

    def entry(self, index: int) -> Item | None:
        """What became of an item; None if it was never started."""
        return self.entries[index] if index < len(self.entries) else None

    @property
    def complete(self) -> bool:
        """Every item has its output or its failure, and a loop is done."""
        if self.shape == "loop":
            return self.done
        return self.outputs + len(self.failed) == len(self.items)

    def wake_us(self) -> int | None:
        """When there is an item to start: 0: now; None: none is left."""
        if self.next < len(self.items):
            return 0
        due = self._due
        return due[0][0] if due else None

    def startable(self, now_us: int, most: int) -> Iterator[int]:
        """Up to `most` indices that may be started now: those that were tried before, then new ones, in order."""
        if most <= 0:
            return
        due = self._earliest(now_us, most) if self.waiting else []
        yield from (*due, *range(self.next, min(len(self.items), self.next + most - len(due))))

    @property
    def _due(self) -> list[tuple[int, int]]:
        """A heap of due times and indices: its least is of an item that waits, others may be outdated.

        It follows from `waiting`, is made when it is first asked for, and is no part of what is stored.
        """
        found: list[tuple[int, int]] | None = vars(self).get("due")
        if found is None:
            found = vars(self)["due"] = sorted((self.entries[index].due_us, index) for index in self.waiting)
        return found

    def _earliest(self, now_us: int, most: int) -> list[int]:
        """Up to `most` of those that back off and are due, the longest due; their indices, in order."""
        due = self._due
        found: set[int] = set()
        least = [(due[0], 0)]
        while least and len(found) < most:
            (due_us, index), place = heappop(least)
            if due_us > now_us:
                break
            if self._waits_until(index, due_us):
                found.add(index)
            for child in range(2 * place + 1, min(2 * place + 3, len(due))):
                heappush(least, (due[child], child))
        return sorted(found)

    def _waits_until(self, index: int, due_us: int) -> bool:
        return index in self.waiting and self.entries[index].due_us == due_us

    def back_off(self, index: int, due_us: int) -> None:
        """An item waits until then; O(log items)."""
        due = self._due
        self.entries[index].due_us = due_us
        self.waiting.add(index)
        heappush(due, (due_us, index))

    def end_backoff(self, index: int) -> None:
        """An item waits no longer."""
        due = self._due
        self.waiting.remove(index)
        while due and not self._waits_until(due[0][1], due[0][0]):
            heappop(due)

    def end_all_backoffs(self) -> None:
        """All that wait are due."""
        for index in self.waiting:
            self.entries[index].due_us = 0
        vars(self).pop("due", None)

    def first_failure(self) -> tuple[int, Failure] | None:
        """The failed item of least index, and why."""
        if not self.failed:
            return None
        index = min(self.failed)
        failure = self.entries[index].failure
        return None if failure is None else (index, failure)

    def counts(self, step: str) -> ItemCounts:
        """How many completed, failed by their own word, and are in doubt; O(items) that were begun [U-12]."""
        failed = sum(not self.entries[index].in_doubt for index in self.failed)
        in_doubt = len(self.entries) - self.outputs - failed
        return ItemCounts(step, len(self.items), self.outputs, failed, in_doubt)

    def state(self, *, collect: bool) -> bytes:
        """What the outputs add up to, in index order, as JSON; O(items) [B-10]."""
        if self.shape == "loop":
            return self.entries[self.next - 1].output or b"null"
        made = [_settled(item) if collect else item.output or b"null" for item in self.entries]
        return made[0] if self.shape == "child" else b"[" + b",".join(made) + b"]"


def _settled(item: Item) -> bytes:
    if item.failure is not None:
        return b'{"failure":' + msgspec.json.encode(item.failure) + b"}"
    return b'{"value":' + (item.output or b"null") + b"}"
