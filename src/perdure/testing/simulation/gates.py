"""Limits and mutexes of a simulation: what the pipelines of a world name, and the judge of who had what [R-10, R-11].

Only worlds that are asked for have some. Which, is drawn apart from all other chance: the others are as they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from perdure.define.limit import AnyLimit, Limit
from perdure.ports.limits import NoRoom
from perdure.ports.records import AppendResult, MutexTaken, NewRun
from perdure.ports.store import IndexState
from perdure.storage.memory_data import MemoryData, MemoryRun
from perdure.testing.simulation.parts import CHILD_PIPELINE

if TYPE_CHECKING:
    from perdure.testing.simulation.history import History
    from perdure.testing.simulation.judge import Judge
    from perdure.testing.simulation.orders import Order
    from perdure.testing.simulation.world import Attempt

STEPS: dict[str, tuple[str, ...]] = {
    "s0": ("desk",),
    "s1": ("till",),
    "s2": ("desk", "till"),
    "s3": ("local",),
    "s5": ("desk", "till"),
    "s6": ("till",),
    "s8": ("local",),
}
"""Limits that steps name, of those that a world has; in the order in which places are taken. None names those of the
store and of the worker both, see the roadmap."""

MUTEX = "account"
PATIENCE_US = 20_000_000
"""How long a place may be free for a run that waits for it."""


def parity(order: Order) -> str:
    """A key that few runs share."""
    return str(order.number % 2)


@dataclass(frozen=True)
class Gates:
    """What the pipelines of one deployment name; 0 where they name no such limit.

    Attributes:
        desk: so many operations at once in the store; till: the same by key; local: in one process.
        runs: so many runs in flight by key, of all pipelines; queue: so many more may wait, -1 for any number.
        mutex: the pipelines exclude each other per resource.
    """

    desk: int = 0
    till: int = 0
    local: int = 0
    runs: int = 0
    queue: int = -1
    mutex: bool = False

    def of_step(self, step: str) -> tuple[AnyLimit, ...]:
        """The limits that a step names."""
        made: dict[str, AnyLimit] = {}
        if self.desk:
            made["desk"] = Limit("desk", concurrency=self.desk)
        if self.till:
            made["till"] = Limit("till", key=parity, concurrency=self.till)
        if self.local:
            made["local"] = Limit("local", scope="worker", concurrency=self.local)
        return tuple(made[name] for name in STEPS.get(step, ()) if name in made)

    def of_runs(self) -> tuple[AnyLimit, ...]:
        """The limits that pipelines name."""
        if not self.runs:
            return ()
        return (Limit("runs", key=parity, in_flight=self.runs, queue=None if self.queue < 0 else self.queue),)


class Gated(MemoryData):
    """The data of a store, whose gates are watched.

    Args:
        gates: the seed that they are drawn from; None: it has none.

    Attributes:
        doors: limits and mutexes.
    """

    def __init__(self, *, shared: bool, gates: int | None) -> None:
        super().__init__(shared=shared)
        self.doors = Doors(gates, self)

    def set_state(self, run: MemoryRun, state: IndexState) -> None:
        """See `MemoryData.set_state`."""
        super().set_state(run, state)
        self.doors.stood(run)

    def set_due(self, run: MemoryRun, due_us: int | None, reason: str) -> None:
        """See `MemoryData.set_due`; it got what it waits for."""
        super().set_due(run, due_us, reason)
        self.doors.granted(run)

    def lose_index(self) -> None:
        """See `MemoryData.lose_index`."""
        super().lose_index()
        self.doors.lost()

    def limited(self, step: str) -> bool:
        """Whether a step may have to wait for a place under a limit."""
        return self.doors.limited(step)


class Doors:
    """The gates of a world, first to last, and the judge of who comes through.

    Args:
        seed: of the play; None: it has no gates.

    Attributes:
        deployed: the gates of every deployment; empty numbers throughout where a world has none.
    """

    def __init__(self, seed: int | None, data: Gated) -> None:
        self._random = random.Random(f"gates {seed}")
        self._data = data
        self.deployed = [Gates() if seed is None else self._first()]
        self._entered: dict[str, tuple[str, str]] = {}
        self._begun: dict[str, bool] = {}
        self._line: dict[str, tuple[str, str]] = {}
        self._left_out_us: dict[str, int] = {}

    @property
    def _history(self) -> History:
        return cast("History", self._data)

    @property
    def now(self) -> Gates:
        """The gates deployed last."""
        return self.deployed[-1]

    def _first(self) -> Gates:
        chance = self._random
        return Gates(
            desk=chance.choice((0, 1, 1, 2)),
            till=chance.choice((0, 1, 1)),
            local=chance.choice((0, 1, 2)),
            runs=chance.choice((0, 1, 2, 3)),
            queue=chance.choice((-1, 0, 1, 3)),
            mutex=chance.random() < 0.4,
        )

    def redeploy(self) -> None:
        """Perhaps other numbers from now on."""
        last = self.now
        if any((last.desk, last.till, last.local, last.runs)) and self._random.random() < 0.5:
            self._history.count("redeploy: other limits")
            desk, till, local, runs = (self._other(size) for size in (last.desk, last.till, last.local, last.runs))
            last = replace(last, desk=desk, till=till, local=local, runs=runs)
        self.deployed.append(last)

    def _other(self, size: int) -> int:
        return self._random.randint(1, 3) if size else 0

    def lost(self) -> None:
        """All index rows are gone, and with them who is counted under which limit."""
        self._entered.clear()
        self._begun = dict.fromkeys(self._begun, False)
        self._line.clear()

    # --- told of appends

    def submits(self, new: NewRun, result: AppendResult, *, written: bool) -> None:
        """A run comes in, or is refused: truly, and only where it has to be [R-10, R-11]."""
        history = self._history
        for entrance in new.entrances:
            place = entrance.limit, entrance.key
            inside = sum(self._lives(run_id) for run_id, at in self._entered.items() if at == place)
            if written:
                self._demand(new.run_id, inside < entrance.room, "R-11", f"{inside} are inside, and one more comes in")
                self._entered[new.run_id] = place
            elif result == NoRoom(*place):
                history.count("queue full")
                self._demand(new.run_id, inside >= entrance.room, "R-11", f"{inside} are inside, and it is refused")
        others = [
            judge
            for judge in history.judges.values()
            if judge.run_id != new.run_id
            and judge.ended is None
            and judge.submitted is not None
            and (judge.submitted.tenant, judge.submitted.resource) == (new.tenant, new.resource)
            and set(judge.submitted.mutexes) & set(new.mutexes)
        ]
        if written:
            self._demand(new.run_id, not others, "R-10", "it has a mutex that another has")
        elif isinstance(result, MutexTaken):
            history.count("mutex taken")
            true = result.run_id in {judge.run_id for judge in others}
            self._demand(new.run_id, true, "R-10", f"{result.run_id} does not have mutex {result.name}")

    def written(self, judge: Judge) -> None:
        """A row was written: never more hold places than there are [R-11]."""
        run_id = judge.run_id
        if judge.token and run_id not in self._begun and judge.submitted is not None:
            self._begun[run_id] = judge.cancel is None and judge.submitted.pipeline != CHILD_PIPELINE
            self._bounded("runs", self._key(judge), sum(self._lives(one) for one in self._same_key(judge)), run_id)
        for name in STEPS.get(judge.open[1], ()) if judge.open is not None else ():
            if name != "local":
                key = self._key(judge) if name == "till" else ""
                self._bounded(name, key, self._executing(name, judge), run_id)

    def stood(self, run: MemoryRun) -> None:
        """A row was written: the run stands in line, or does not."""
        stands = self._history.limits.stands(run.locator)
        if stands != self._line.get(run.run_id):
            self._line.pop(run.run_id, None)
            if stands is not None:
                self._history.count("limit: waited for")
                self._line[run.run_id] = stands

    def granted(self, run: MemoryRun) -> None:
        """A run is given what it waits for: of those who could have that place it has waited longest [R-11]."""
        place = self._line.get(run.run_id)
        for other, at in self._line.items():
            if other == run.run_id:
                break
            passed_over = at == place and self.waits(other) and not self._history.held_lately(other, 0)
            self._demand(run.run_id, not passed_over, "R-11", f"it has a place under {place} before {other}")
        self._line.pop(run.run_id, None)
        if place is not None and run.run_id in self._history.judges:
            self._history.judges[run.run_id].told_us = self._history.now_us()

    def starts(self, judge: Judge, attempt: Attempt, step: str) -> None:
        """A handler starts: in its process no more run than there are places [R-11]."""
        world = self._history.world
        if "local" not in STEPS.get(step, ()) or world is None:
            return
        beside = sum(
            any("local" in STEPS.get(name[2], ()) and world.attempts[name].worker == attempt.worker for name in names)
            for names in world.running.values()
        )
        self._bounded("local", "", beside, judge.run_id)

    def _same_key(self, judge: Judge) -> Iterator[str]:
        judges = self._history.judges
        counted = (run_id for run_id, counts in self._begun.items() if counts)
        return (run_id for run_id in counted if self._key(judges[run_id]) == self._key(judge))

    def _executing(self, name: str, judge: Judge) -> int:
        """Owned runs whose operation is reserved, and counts together with that of this run."""
        count = 0
        for other in self._history.judges.values():
            if other.open is None or name not in STEPS.get(other.open[1], ()):
                continue
            run = self._history.run(other.run_id)
            owned = run is not None and run.state is not None and run.state.status == "running"
            count += owned and (name != "till" or self._key(other) == self._key(judge))
        return count

    def _bounded(self, name: str, key: str, count: int, run_id: str) -> None:
        most = max(getattr(gates, name) for gates in self.deployed)
        if most:
            self._demand(run_id, count <= most, "R-11", f"{count} have a place under {name} {key}, of {most}")

    def _lives(self, run_id: str) -> bool:
        judge = self._history.judges.get(run_id)
        return judge is not None and judge.ended is None

    @staticmethod
    def _key(judge: Judge) -> str:
        order = judge.order()
        return "" if order is None else parity(order)

    # --- asked

    def limited(self, step: str) -> bool:
        """Whether a step may have to wait for a place."""
        return bool(self.now.of_step(step))

    def waits(self, run_id: str) -> bool:
        """Whether a run rests, and stands in line for a place."""
        run = self._history.run(run_id)
        if run is None or run.state is None or run.state.worker or run.state.status != "ready":
            return False
        return self._history.limits.stands(run.locator) is not None

    # --- looked at again and again

    def inspect(self) -> None:
        """Whoever waits for a place gets one that is free; and nobody has one who cannot [R-11, R-16]."""
        history, now_us = self._history, self._history.now_us()
        waiting: dict[str, int] = {}
        uses = {(use.limit, use.key): use for use in history.limits.uses()}
        for run_id, judge in history.judges.items():
            run = history.run(run_id)
            place = history.limits.stands(run.locator) if run is not None and judge.ended is None else None
            if place is None or not self.waits(run_id) or history.held_lately(run_id, PATIENCE_US):
                continue
            if uses[place].held < uses[place].bound:
                since_us = waiting[run_id] = self._left_out_us.get(run_id, now_us)
                late = now_us - since_us > PATIENCE_US
                self._demand(run_id, not late, "R-16", f"a place under {place} is free for long, and it waits")
        self._left_out_us = waiting
        live = sum(judge.ended is None for judge in history.judges.values())
        for place, use in uses.items():
            self._demand("", use.held <= live, "R-11", f"{use.held} places under {place} are taken, {live} runs live")

    def check_end(self) -> None:
        """Every run has ended: nothing is taken, and nobody waits [R-11]."""
        history = self._history
        for use in history.mutexes.entrances.shown(history.limits.uses()):
            left = use.held or use.waiting
            self._demand("", not left, "R-11", f"at the end {use.held} places of {use.limit!r} are taken ({use})")

    def _demand(self, run_id: str, held: bool, rule: str, problem: str) -> None:
        if not held:
            self._history.blame(run_id, rule, problem)
