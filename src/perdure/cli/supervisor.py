"""The supervisor of `perdure worker`: processes that work on one store, started again when they crash [R-2, R-3, R-6].

It never imports the application, so nothing of it can hurt the supervisor. The first process starts alone: what is
wrong with the application, or with the store, is said once and ends the command. A process that died is known to be
dead: its row is marked so at once, and its runs need not wait for the end of its lease.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable
from contextlib import suppress
from typing import assert_never

import msgspec

from perdure.cli.connect import shown_url
from perdure.cli.exits import Exit
from perdure.cli.output import Output
from perdure.cli.problems import Problem, one_line
from perdure.cli.serve import AT_ONCE, STOPPED_AT_ONCE, numbered
from perdure.cli.stopping import STOPS, ctrl_c_blocked, give_back, on_stop
from perdure.cli.text import count
from perdure.cli.times import iso_local, iso_utc, now_us
from perdure.cli.workerchild import DRAIN, GO, OPTIONS, Loaded, Order, Refused, Said, Works

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
STEADY_S = 10.0
"""A process that worked for so long is started again at once when it ends."""
ROUNDS_IN_VAIN = 5
"""So often every process is started in vain, while none works, before the command gives up."""
GRACE_S = 15.0
"""How much longer than its drain time a process may take to end before it is killed: nothing is lost by that."""
AT_ONCE_S = 3.0
"""How long a process that is to stop at once may take."""
BURY_S = 5.0
LAST_WORDS_S = 1.0


class Restarts:
    """How long to wait before a process that ended is started again."""

    def __init__(self) -> None:
        self._hasty = 0

    def after(self, worked_s: float) -> float:
        """Seconds to wait.

        Args:
            worked_s: how long it has worked; 0 if it never came so far.
        """
        if worked_s >= STEADY_S:
            self._hasty = 0
            return 0.0
        self._hasty += 1
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._hasty - 1, 20))


class _Child:
    """A process, from its start to its end.

    Attributes:
        worker: under which identity it works; empty before.
        works_since_s: on the loop's clock; None before.
        refused: the exit code of an error that it has said.
        ended: it has ended.
    """

    def __init__(self, number: int, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self.number = number
        self.process = process
        self.worker = ""
        self.works_since_s: float | None = None
        self.refused: int | None = None
        self.ended = False
        self._channel = channel

    def order(self, what: bytes) -> None:
        """Say what to do."""
        with suppress(OSError):
            self._channel.send(what)

    def stop(self, *, at_once: bool) -> None:
        """Let it drain, or stop at once. One that does not work yet has nothing to drain."""
        self.order(AT_ONCE if at_once else DRAIN)
        if not self.worker and not self.ended:
            with suppress(ProcessLookupError):
                self.process.terminate()

    def kill(self) -> None:
        """End it, whatever it does."""
        if not self.ended:
            with suppress(ProcessLookupError):
                self.process.kill()

    def worked_s(self) -> float:
        """How long it has worked."""
        return 0.0 if self.works_since_s is None else asyncio.get_running_loop().time() - self.works_since_s


async def supervise(order: Order, processes: int, out: Output) -> int:
    """Keep so many processes working until a signal; returns the exit code.

    Args:
        order: for the processes, but for number and channel.

    Raises:
        Problem: the store is not one for several processes, or they ended as they started.
    """
    return await _Supervisor(order, processes, out).run()


class _Supervisor:
    def __init__(self, order: Order, processes: int, out: Output) -> None:
        self._order = order
        self._processes = processes
        self._out = out
        self._loop = asyncio.get_running_loop()
        self._children: set[_Child] = set()
        self._starting = asyncio.Lock()
        self._signals = 0
        self._stopping = asyncio.Event()
        self._worked = asyncio.Event()
        self._loaded: Loaded | None = None
        self._in_vain = 0
        self._unclean = 0
        self._code: int = Exit.OK
        self._problem: Problem | None = None
        self._kills: list[asyncio.TimerHandle] = []

    async def run(self) -> int:
        """See `supervise`."""
        on_stop(STOPS, self._signal)
        keepers = [self._loop.create_task(self._keep(number)) for number in range(1, self._processes + 1)]
        try:
            await asyncio.gather(*keepers)
        finally:
            for keeper in keepers:
                keeper.cancel()
            for timer in self._kills:
                timer.cancel()
            for child in self._children:
                child.kill()
            give_back(STOPS)
        if self._problem is not None:
            raise self._problem
        if self._code != Exit.OK:
            return self._code
        if self._signals > 1:
            return STOPPED_AT_ONCE
        return Exit.FINDING if self._unclean else Exit.OK

    # --- being told to stop

    def _signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._say(f"draining {_processes(len(self._children))}", {"event": "draining"})
        self._stop(at_once=self._signals > 1)

    def _stop(self, *, at_once: bool) -> None:
        """Begin to end, or hurry."""
        drain_s = 0.0 if self._loaded is None else self._loaded.drain_timeout_s
        self._stopping.set()
        for child in self._children:
            child.stop(at_once=at_once)
        self._kills.append(self._loop.call_later(AT_ONCE_S if at_once else drain_s + GRACE_S, self._kill))

    def _kill(self) -> None:
        for child in self._children:
            if not child.ended:
                self._say(f"process {child.process.pid} does not end; it is killed", number=child.number)
                child.kill()

    def _give_up(self, child: _Child, code: int) -> None:
        """No process works, and starting them is in vain."""
        if child.refused is not None:
            self._code = child.refused
        else:
            problem = f"worker process {child.process.pid} {how_ended(code)} before it could work"
            self._problem = Problem(problem, "what it printed stands above", Exit.FINDING)
        self._stop(at_once=False)

    # --- one place

    async def _keep(self, number: int) -> None:
        """Keep one process working; the first alone at first."""
        if number > 1:
            await self._first(self._worked.wait())
        restarts = Restarts()
        while not self._stopping.is_set():
            child, talk = await self._start(number)
            code = await child.process.wait()
            worked_s = child.worked_s()
            await asyncio.wait([talk], timeout=LAST_WORDS_S)
            talk.cancel()
            child.ended = True
            self._children.discard(child)
            if code != Exit.OK:
                await self._bury(child)
            if self._stopping.is_set():
                self._unclean += bool(child.worker) and code != Exit.OK
                return
            self._in_vain = 0 if child.worker else self._in_vain + 1
            if self._is_hopeless():
                self._give_up(child, code)
                return
            delay_s = restarts.after(worked_s)
            self._say_ended(child, code, delay_s)
            await self._first(asyncio.sleep(delay_s))

    async def _first(self, waiting: Awaitable[object]) -> None:
        """Wait for this, or until all is to end."""
        stopping: Awaitable[object] = self._stopping.wait()
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(stopping)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    def _is_hopeless(self) -> bool:
        if self._in_vain == 0 or any(child.worker for child in self._children):
            return False
        return not self._worked.is_set() or self._in_vain >= ROUNDS_IN_VAIN * self._processes

    async def _start(self, number: int) -> tuple[_Child, asyncio.Task[None]]:
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        order = msgspec.structs.replace(self._order, number=number, channel=theirs.fileno())
        command = [sys.executable, *OPTIONS, "-m", "perdure.cli.workerchild", msgspec.json.encode(order).decode()]
        try:
            async with self._starting:  # or the signal mask of one start would be that of another
                with ctrl_c_blocked():
                    process = await asyncio.create_subprocess_exec(
                        *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
                    )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child = _Child(number, process, ours)
        self._children.add(child)
        if self._stopping.is_set():
            child.stop(at_once=self._signals > 1)
        return child, self._loop.create_task(self._listen(child, ours))

    # --- what children say

    async def _listen(self, child: _Child, channel: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=channel)
        try:
            while line := await reader.readline():
                self._told(child, msgspec.json.decode(line, type=Said))
        except OSError:
            return  # it died in the middle of a word
        finally:
            writer.close()

    def _told(self, child: _Child, said: Said) -> None:
        match said:
            case Loaded():
                self._admit(child, said)
            case Works(worker):
                if not child.worker:
                    child.works_since_s = self._loop.time()
                    self._in_vain = 0
                child.worker = worker
                self._worked.set()
            case Refused(code):
                child.refused = code
            case _ as unreachable:
                assert_never(unreachable)

    def _admit(self, child: _Child, loaded: Loaded) -> None:
        """Let it begin, if this store takes so many."""
        if self._loaded is None:
            if not loaded.shared and self._processes > 1:
                self._problem = Problem(
                    f"{shown_url(loaded.store)} is a store for one engine, not for {self._processes} processes",
                    "run it with --processes 1 and more --concurrency, or use a store in PostgreSQL",
                )
                self._stop(at_once=False)
                return
            value = {"event": "supervising", "app": loaded.app, "store": shown_url(loaded.store)}
            self._say(
                f"{_processes(self._processes)} of {loaded.app} on {shown_url(loaded.store)}; Ctrl-C drains and stops",
                {**value, "processes": self._processes},
            )
        self._loaded = loaded
        if not self._stopping.is_set():
            child.order(GO)

    # --- its end

    async def _bury(self, child: _Child) -> None:
        """It is dead for certain: nobody has to wait for the end of its lease [R-3]."""
        if not child.worker or self._loaded is None or not self._loaded.shared:
            return
        from perdure.app import connect
        from perdure.runtime.workforce import bury_known_dead

        try:
            async with asyncio.timeout(BURY_S), connect(self._loaded.store) as client:
                runs = await bury_known_dead(client.store, child.worker)
        except Exception as error:
            why = one_line(str(error)) or type(error).__name__
            self._say(
                f"worker {child.worker} could not be marked dead, so the others wait for the end of its lease: {why}",
                number=child.number,
            )
            return
        if runs is not None:
            self._say(
                f"worker {child.worker} is dead, and what it had is due: {count(runs, 'run')}",
                {"event": "buried", "process": child.number, "worker": child.worker, "runs": runs},
                number=child.number,
            )

    def _say_ended(self, child: _Child, code: int, delay_s: float) -> None:
        again = f"in {delay_s:g} s" if delay_s else "at once"
        ended = {"event": "process-ended", "process": child.number, "pid": child.process.pid, "code": code}
        self._say(
            f"process {child.process.pid} {how_ended(code)}; it is started again {again}",
            {**ended, "again_in_s": delay_s},
            number=child.number,
        )

    def _say(self, text: str, value: dict[str, object] | None = None, *, number: int = 0) -> None:
        """A line with the time, and the number of the process that it is about; for programs what has a value."""
        if not self._out.json:
            self._out.line(f"{numbered(number)}{iso_local(now_us())}  {text}")
        elif value is not None:
            self._out.value({**value, "at": iso_utc(now_us())})


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def how_ended(code: int) -> str:
    """How a process came to its end, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
