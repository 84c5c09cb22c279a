"""Virtual time: a loop whose clock jumps to the next timer, and a `System` that reads it.

A run that waits three days passes at once, and every time in its journal is exact and the same in every run of the
test. Nothing of the engine is replaced: it waits with the loop's timers, and asks a `System` for the time [R-4].
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from datetime import timedelta
from typing import Any, TypeVar, TypeVarTuple, Unpack

from perdure.core.durations import Duration, duration_us
from perdure.core.ids import encode_run_id

T = TypeVar("T")
Args = TypeVarTuple("Args")

EPOCH_US = 1_767_225_600_000_000
"""When virtual time begins: the first of January 2026, UTC."""

DEFAULT_LIMIT = timedelta(days=366)
"""Virtual time after which a loop gives up: an engine that waits for somebody has timers for ever."""

DEFAULT_PATIENCE = 2_000_000
"""Turns of the loop without time passing after which it gives up: more than any honest burst of work."""

_MAX_LIMIT_US = 100 * 365 * 86_400_000_000


class Stuck(RuntimeError):
    """Nothing can happen any more: no callback is ready, no timer is set, no thread runs; or too much has happened.

    The message names the tasks and what they wait for.
    """


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while there is work, and jumps to the next timer when there is none.

    Times are whole microseconds since the loop was made. Callbacks run in the order of any asyncio loop.

    Work in threads takes no virtual time: while `def` handlers or executor jobs run, the loop waits for them for real,
    and a timer fires only if it is over by the real clock, too. Other I/O is not waited for.

    Args:
        limit: virtual time after which `Stuck` is raised; at most a hundred years, which is as far as the floats that
            asyncio counts in can tell microseconds apart.
        patience: turns of the loop without time passing after which `Stuck` is raised.
    """

    def __init__(self, *, limit: Duration = DEFAULT_LIMIT, patience: int = DEFAULT_PATIENCE) -> None:
        self._now_us = 0
        self._outside = 0
        self._limit_us = min(duration_us(limit), _MAX_LIMIT_US)
        self._patience = patience
        self._turns = 0
        super().__init__(_JumpingSelector(self._wait, self._turn))
        self._clock_resolution = 5e-7  # of BaseEventLoop: timers this close fire; floats of large times are no finer

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_us / 1_000_000

    @property
    def now_us(self) -> int:
        """Virtual microseconds since the loop was made."""
        return self._now_us

    def count_outside(self, change: int) -> None:
        """So many more (or fewer) things happen outside of the loop that will wake it; time waits for them."""
        self._outside += change

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Args]], T], *args: *Args
    ) -> asyncio.Future[T]:
        """As in any loop; virtual time waits for the job."""
        future = super().run_in_executor(executor, func, *args)
        self.count_outside(1)
        future.add_done_callback(lambda _: self.count_outside(-1))
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """As in any loop; virtual time waits for it."""
        self.count_outside(1)
        try:
            await super().shutdown_default_executor()
        finally:
            self.count_outside(-1)

    def _turn(self) -> None:
        """Callbacks are ready: the loop turns while time stands still."""
        self._turns += 1
        if self._turns > self._patience and not self._outside:
            self._turns = 0
            raise Stuck(f"time stands still, and callbacks wake each other for ever\n{self._waiting()}")

    def _wait(self, poll: Callable[[float | None], list[_Ready]], timeout_s: float | None) -> list[_Ready]:
        """What `select` does when no callback is ready: let time pass until a timer is due."""
        if self._outside:
            ready = poll(timeout_s)
            if not ready and timeout_s is not None:
                self._advance(timeout_s)
            return ready
        ready = poll(0)
        if ready:
            return ready
        if timeout_s is None:
            raise Stuck(
                f"nothing is ready, and no timer is set: everything waits for something else\n{self._waiting()}"
            )
        self._advance(timeout_s)
        return ready

    def _advance(self, timeout_s: float) -> None:
        self._turns = 0
        self._now_us += max(1, round(timeout_s * 1_000_000))
        if self._now_us > self._limit_us:
            limit_s = self._limit_us / 1_000_000
            self._limit_us = self._now_us + 86_400_000_000  # what cleans up needs some time, too
            raise Stuck(f"virtual time ran past its limit of {limit_s:g} s\n{self._waiting()}")

    def _waiting(self) -> str:
        lines: list[str] = []
        for task in sorted(asyncio.all_tasks(self), key=lambda task: task.get_name()):
            stack = task.get_stack(limit=1)
            where = f"{stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else "nowhere"
            lines.append(f"  {task.get_name()} at {where}")
        return "\n".join(lines) or "  no task is left"


_Ready = tuple[selectors.SelectorKey, int]


class _JumpingSelector(selectors.BaseSelector):
    """A selector that asks `wait` what to do where another would block."""

    def __init__(
        self,
        wait: Callable[[Callable[[float | None], list[_Ready]], float | None], list[_Ready]],
        turn: Callable[[], None],
    ) -> None:
        self._real = selectors.DefaultSelector()
        self._wait = wait
        self._turn = turn

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[_Ready]:
        if timeout is not None and timeout <= 0:
            self._turn()
            return self._real.select(timeout)
        return self._wait(self._real.select, timeout)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


class VirtualSystem:
    """A `System` of virtual time and seeded chance. Several may share a loop, as processes share a world.

    Attributes:
        loop: gives the time.

    Args:
        seed: decides ids and chance; systems of one loop need different seeds.
        skew_us: how far this process's clock is off, in microseconds. May be set at any time, as a clock may jump:
            timers of the loop do not notice, as those of a real one would not.
    """

    follows_store = True

    def __init__(self, loop: VirtualLoop, seed: int = 0, *, skew_us: int = 0) -> None:
        self.loop = loop
        self._random = random.Random(f"perdure {seed}")
        self._last_us = 0
        self.skew_us = skew_us

    def now_us(self) -> int:
        """See `System.now_us`."""
        return EPOCH_US + self.loop.now_us + self.skew_us

    def steady_s(self) -> float:
        """See `System.steady_s`."""
        return self.loop.now_us / 1_000_000

    def run_id(self) -> str:
        """See `System.run_id`."""
        self._last_us = max(self.now_us(), self._last_us + 1)
        return encode_run_id(self._last_us, self._random.getrandbits(50))

    def append_id(self) -> bytes:
        """See `System.append_id`."""
        return self._random.randbytes(16)

    def worker_id(self) -> str:
        """See `System.worker_id`."""
        return f"w{self._random.getrandbits(60):015x}"

    def chance(self) -> float:
        """See `System.chance`."""
        return self._random.random()

    async def sleep(self, duration: Duration) -> None:
        """Let virtual time pass, in seconds or as a `timedelta`."""
        await asyncio.sleep(duration_us(duration) / 1_000_000)


def run_virtual(
    main: Callable[[VirtualSystem], Coroutine[Any, Any, T]],
    *,
    seed: int = 0,
    limit: Duration = DEFAULT_LIMIT,
    patience: int = DEFAULT_PATIENCE,
) -> T:
    """Run `main` to its end in virtual time, as `asyncio.run` would in real time; call it where no loop runs.

    Args:
        main: an `async def` that takes the `VirtualSystem`; pass that on as `system=` to `App.engine` and others.
        seed: the same seed gives the same ids, and the same run.
        limit, patience: see `VirtualLoop`.

    Raises:
        Stuck: nothing can happen any more.
    """
    loop = VirtualLoop(limit=limit, patience=patience)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(VirtualSystem(loop, seed)))
