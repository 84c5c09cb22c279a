"""Chance of one simulation: which faults a seed deals, and how often each kind happened.

Every seed switches some kinds off and others up, so that the seeds differ in what they stress, not only in when.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

CHANCES: dict[str, float] = {
    # what becomes of an append, and of a change of an index row
    "crash before an append": 0.008,
    "crash after an append, before it is acknowledged": 0.008,
    "append delayed": 0.10,
    "acknowledgement delayed": 0.10,
    "append lost, sent again": 0.03,
    "append applied, acknowledgement lost, sent again": 0.03,
    "append sent twice": 0.04,
    "old append sent again later": 0.03,
    "cancel while an append is in flight": 0.01,
    "change notice delayed": 0.30,
    # reads
    "read delayed": 0.10,
    "read failed": 0.02,
    "snapshot written early": 0.10,
    # handlers
    "crash before an effect": 0.01,
    "crash after an effect": 0.01,
    "handler slow": 0.30,
    "handler raised": 0.15,
    "unwind handler raised": 0.25,
    "handler failed": 0.04,
    "handler of an item failed": 0.10,
    "handler raised a never-retryable error": 0.03,
    "handler hung": 0.05,
    "handler swallowed its cancellation": 0.06,
    "handler kept a memo": 0.20,
    "handler returned too much": 0.02,
    "handler broke its contract": 0.01,
    "poll said later": 0.50,
    # callers
    "caller canceled at an await": 0.25,
    "caller canceled while its append is in flight": 0.25,
}
"""Chance of each kind at every opportunity, before the seed scales it."""

ACTIONS: dict[str, float] = {
    "submit": 12.0,
    "submit again": 4.0,
    "submit other input": 2.0,
    "submit with delay": 2.0,
    "submit with deadline": 2.0,
    "wait for a result": 4.0,
    "cancel": 3.0,
    "hold": 2.0,
    "release": 3.0,
    "retry": 2.0,
    "resolve": 3.0,
    "abandon": 1.0,
    "send": 5.0,
    "hold pipeline": 0.6,
    "release pipeline": 1.5,
    "submit to the queue": 2.0,
    "submit to replace": 1.5,
    "submit or be refused": 1.0,
    "submit under a key": 3.0,
    "crash": 2.0,
    "crash while starting": 0.7,
    "drain": 1.5,
    "redeploy": 4.0,
    "second owner": 1.0,
    "clock jumps ahead": 0.7,
    "clock jumps back": 0.7,
    "index lost": 0.5,
    "old runs collected": 0.7,
    "time passes": 4.0,
}
"""Weight of each thing that happens at a turn."""

SHARED_CHANCES: dict[str, float] = {
    "renewal lost": 0.06,
    "renewal slow": 0.06,
    "answer to a renewal lost": 0.04,
    "answer to a pick lost": 0.04,
    "counters read slowly": 0.05,
}
"""The same, where several workers share a store."""

SHARED_ACTIONS: dict[str, float] = {
    "worker joins": 2.0,
    "worker paused": 3.0,
    "renewals fail": 2.0,
    "all renewals fail": 0.7,
    "row of a worker deleted": 0.7,
    "notices lost": 1.0,
    "code deployed by hand": 0.7,
    "time passes": 6.0,
}
"""What happens in such a world besides, or more often."""

ALONE = frozenset({"crash while starting", "second owner", "clock jumps ahead", "clock jumps back", "index lost"})
"""What happens only where one engine owns the data."""

COUNTED: tuple[str, ...] = (
    # what came of it, read off the journals
    "attempt lost",
    "sleep began",
    "sleep ended",
    "sleep canceled",
    "wait began",
    "wait canceled",
    "wait timed out",
    "wait ended late",
    "message taken",
    "message came early",
    "message: known",
    "message: other content",
    "message: refused",
    "shape changed",
    # items, turns, child runs, awaited runs
    "opened: each",
    "opened: loop",
    "opened: child",
    "opened: children",
    "opened: runs",
    "done: each",
    "done: loop",
    "done: child",
    "done: children",
    "done: runs",
    "failed: items",
    "failed: child runs",
    "canceled: items",
    "canceled: child runs",
    "item done",
    "item failed",
    "turn done",
    "failures collected",
    "child submitted",
    "child waits for a slot",
    "child: succeeded",
    "child: failed",
    "child: canceled",
    "child: refused",
    "circle refused",
    "circle of waits",
    "wait for runs timed out",
    "given up: invalid",
    "given up: by force",
    "given up: in doubt",
    "given up: refused",
    "attempt interrupted",
    "attempt timed out",
    "retry bounded: held",
    "retry bounded: failed",
    "five lost attempts: held",
    "deadline passed",
    "canceled: never started",
    "canceled: in doubt",
    "canceled: the running handler succeeded",
    "canceled: settled first",
    "condition false",
    "condition raised",
    "output raised",
    "state missing",
    "step missing",
    "no safe frontier",
    "step passed",
    "retired step bypassed",
    "unwound",
    "unwound in doubt",
    "unwind failed",
    "half unwound",
    "uncompensated",
    "unavailable",
    "resolved with a value",
    "resolved as skipped",
    "resolved as failed",
    "slot: joined",
    "slot: conflict",
    "slot: waited for",
    "slot: replaced",
    "key: known",
    "key: other input",
    "held pipeline: released",
    "second owner refused",
    "snapshot used",
    "run succeeded",
    "run failed",
    "run canceled",
    "run abandoned",
    "result seen by a caller",
    "redeploy: insert",
    "redeploy: move",
    "redeploy: retire",
    "redeploy: restore",
    "redeploy: remove",
    "redeploy: toggle unwind",
    "redeploy: toggle unwind in doubt",
    "redeploy: toggle condition",
    "redeploy: toggle settle",
    "redeploy: toggle sleep",
    "redeploy: another duration",
    "redeploy: rollback",
    "redeploy: code only",
)
"""Kinds that are counted where they are seen, not where they are dealt."""

KINDS: tuple[str, ...] = (*CHANCES, *(f"action: {name}" for name in ACTIONS), *COUNTED)
"""Everything that has to happen at least once over a run of seeds; zero of a kind means that it is not tested."""

SHARED_KINDS: tuple[str, ...] = (
    *SHARED_CHANCES,
    *(f"action: {name}" for name in SHARED_ACTIONS),
    "worker found dead",
    "worker goes on under another name",
    "attempt lost",
    "attempt interrupted",
    "run succeeded",
    "run failed",
    "run canceled",
)
"""What has to happen at least once over a run of seeds of shared worlds."""

LIMITED_KINDS: tuple[str, ...] = (
    "limit: waited for",
    "queue full",
    "mutex taken",
    "redeploy: other limits",
)
"""What has to happen at least once over a run of seeds of worlds with limits."""

CRASHES = frozenset(kind for kind in CHANCES if kind.startswith("crash"))


class Dice:
    """Seeded chance, with a tally of what it dealt.

    Args:
        shared: several workers share the store.
        crash_at: instead of by chance, a process dies at exactly that opportunity, counted from 1; 0: at none.

    Attributes:
        tally: how often each kind happened.
        quiet: no fault is dealt any more.
        crash_points: opportunities for a crash so far.
    """

    def __init__(self, seed: int, crash_at: int | None = None, *, shared: bool = False) -> None:
        self.crash_points = 0
        self._crash_at = crash_at
        self._random = random.Random(f"shared simulation {seed}" if shared else f"simulation {seed}")
        self.tally: Counter[str] = Counter()
        self.quiet = False
        chances = CHANCES | SHARED_CHANCES if shared else CHANCES
        actions = {name: weight for name, weight in ACTIONS.items() if not shared or name not in ALONE}
        self._chances = {kind: min(0.9, chance * self._stress()) for kind, chance in chances.items()}
        actions |= SHARED_ACTIONS if shared else {}
        self._actions = {name: weight * self._stress() for name, weight in actions.items()}
        self._actions["submit"] = ACTIONS["submit"]

    def _stress(self) -> float:
        """How much of a kind this seed deals: none, some, as usual, or a lot."""
        return self._random.choice((0.0, 0.5, 1.0, 1.0, 1.0, 2.5))

    def hit(self, kind: str) -> bool:
        """Whether a fault of this kind happens here; counted if so."""
        if self.quiet:
            return False
        happens = self._random.random() < self._chances[kind]
        if kind in CRASHES:
            self.crash_points += 1
            happens = happens if self._crash_at is None else self.crash_points == self._crash_at
        if not happens:
            return False
        self.tally[kind] += 1
        return True

    def action(self) -> str:
        """What happens next; counted."""
        name = self._random.choices(tuple(self._actions), tuple(self._actions.values()))[0]
        self.tally[f"action: {name}"] += 1
        return name

    def count(self, kind: str) -> None:
        """Something was seen to happen."""
        self.tally[kind] += 1

    def maybe(self, chance: float) -> bool:
        """True with a chance; not a fault."""
        return self._random.random() < chance

    def choice(self, options: Sequence[T]) -> T:
        """One of several."""
        return self._random.choice(options)

    def number(self, least: int, most: int) -> int:
        """A whole number, both ends included."""
        return self._random.randint(least, most)

    def delay_s(self, mean_s: float) -> float:
        """A duration in whole microseconds: often short, sometimes several times the mean, sometimes nothing."""
        if self._random.random() < 0.15:
            return 0.0
        return round(min(self._random.expovariate(1.0 / mean_s), mean_s * 8), 6)
