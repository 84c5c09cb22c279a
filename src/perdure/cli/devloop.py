"""The developer's loop: an engine in a child process, and another one with the new code after each save [I-2, R-6].

The parent never imports the application. Of one file only one engine at a time can be the owner [R-2], so the next
starts when the former has ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perdure.cli.connect import sqlite_path
from perdure.cli.devchild import OPTIONS, Looked, Order, Trouble
from perdure.cli.devtalk import Talk
from perdure.cli.exits import Exit
from perdure.cli.output import Output, is_terminal
from perdure.cli.problems import Problem, Report
from perdure.cli.stopping import STOPS, ctrl_c_blocked, give_back, on_stop
from perdure.cli.watching import Saves, Stamp, Watch, forget_compiled

GRACE_S = 10.0
"""How much longer than its drain timeout an engine may take to end before it is killed: nothing is lost by that."""
AT_ONCE_S = 3.0
"""How long an engine that is to stop at once may take."""
SLOW_S = 5.0
"""After this time it is said that the code is still being loaded."""
LEAST_REST = 10
"""A look at the files is followed by a rest of at least so many times its own length."""


@dataclass(frozen=True)
class Loop:
    """What the command line says of the loop itself.

    Attributes:
        order: for the children.
        watch: what is watched.
        poll_s: how often.
        yes: also code that makes runs invalid is run, without a question.
    """

    order: Order
    watch: Watch
    poll_s: float
    yes: bool


async def develop(loop: Loop, out: Output) -> int:
    """Run the loop until a signal; returns the exit code.

    Raises:
        Problem: there is no such application, or its store cannot be used.
    """
    return await _Developing(loop, out).run()


class _Developing:
    def __init__(self, loop: Loop, out: Output) -> None:
        self._loop = loop
        self._talk = Talk(out, loop.watch.here)
        self._asks = out.terminal and is_terminal(sys.stdin) and sys.platform != "win32"
        self._news = asyncio.Event()
        self._saves = Saves({})
        self._loaded: set[Path] = set()
        self._store: Path | None = None
        self._saved: set[Path] = set()
        self._signals = 0
        self._engine: asyncio.subprocess.Process | None = None
        self._lifeline: int | None = None
        self._waiter: asyncio.Task[int] | None = None
        self._question = False
        self._typed = b""

    # --- from outside

    async def run(self) -> int:
        """See `develop`."""
        on_stop(STOPS, self._signal)
        self._saves = Saves(await self._look_at_files())
        eyes = asyncio.create_task(self._watch_files())
        try:
            return await self._run(eyes)
        finally:
            eyes.cancel()
            self._no_question()
            await self._end_engine()
            give_back(STOPS)

    def _signal(self) -> None:
        self._signals += 1
        self._news.set()

    async def _look_at_files(self) -> dict[Path, Stamp]:
        return await asyncio.to_thread(self._loop.watch.look, tuple(self._loaded), self._store)

    async def _watch_files(self) -> None:
        clock = asyncio.get_running_loop().time
        rest_s = self._loop.poll_s
        while True:
            await asyncio.sleep(rest_s)
            began_s = clock()
            changed = self._saves.see(await self._look_at_files())
            rest_s = max(self._loop.poll_s, LEAST_REST * (clock() - began_s))
            if changed:
                forget_compiled(changed)
                self._saved |= changed
                self._news.set()

    # --- the loop

    async def _run(self, eyes: asyncio.Task[None]) -> int:
        await self._first()
        while not self._signals:
            if eyes.done():
                eyes.result()
            if self._waiter is not None and self._waiter.done():
                self._lost(await self._end_engine())
            elif self._saved:
                await self._edited()
            elif self._question and b"\n" in self._typed:
                await self._answered()
            else:
                await self._news.wait()
                self._news.clear()
        code = await self._end_engine()
        if self._signals > 1:
            return Exit.INTERRUPTED
        return Exit.OK if code is None or code < 0 else code

    async def _first(self) -> None:
        looked = await self._look()
        if looked is None:
            return
        if looked.trouble is not None and not looked.trouble.broken:
            report = looked.trouble.report
            raise Problem(report.message, report.hint, report.code)
        self._talk.watching(self._loop.watch.roots, len(self._saves))
        if looked.store.startswith("memory:"):
            self._talk.volatile(looked.store)
        await self._decide(looked, first=True)

    async def _edited(self) -> None:
        self._no_question()
        files, self._saved = self._saved, set()
        self._talk.saved(files)
        looked = await self._look()
        if looked is not None:
            await self._decide(looked, first=False)

    async def _decide(self, looked: Looked, *, first: bool) -> None:
        running = self._engine is not None
        if looked.trouble is not None:
            self._talk.broken(looked.trouble.report, running=running)
            return
        self._talk.means(looked, first=first)
        if looked.report is not None and not looked.report.ok:
            if not self._loop.yes:
                self._talk.held_back(running=running, asks=self._asks)
                self._ask()
                return
            self._talk.anyway()
        await self._replace()

    async def _replace(self) -> None:
        await self._end_engine()
        if not self._signals and not self._saved:  # what was saved meanwhile is looked at first
            await self._start_engine()

    def _lost(self, code: int | None) -> None:
        if code == Exit.STORE:
            raise Problem("the engine cannot use its store, see above", code=Exit.STORE)
        self._talk.ended(0 if code is None else code)

    # --- the question

    def _ask(self) -> None:
        if self._asks:
            self._question = True
            self._typed = b""
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    def _read(self) -> None:
        data = b""
        with suppress(OSError):  # the terminal is gone
            data = os.read(sys.stdin.fileno(), 1024)
        self._typed += data if data else b"n\n"  # Ctrl-D
        self._news.set()

    def _no_question(self) -> None:
        if self._question:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._question = False

    async def _answered(self) -> None:
        line, _, self._typed = self._typed.partition(b"\n")
        match line.strip().lower():
            case b"y" | b"yes":
                self._no_question()
                self._talk.anyway()
                await self._replace()
            case b"" | b"n" | b"no":
                self._no_question()
                self._talk.kept(running=self._engine is not None)
            case _:
                self._talk.unclear()

    # --- children

    async def _look(self) -> Looked | None:
        """What the code of now means; None if a signal or another save made the question void."""
        with ctrl_c_blocked():
            looking = await asyncio.create_subprocess_exec(*self._command("look"), stdout=asyncio.subprocess.PIPE)
        answer = asyncio.create_task(looking.communicate())
        answer.add_done_callback(lambda _: self._news.set())
        slow = asyncio.get_running_loop().call_later(SLOW_S, self._talk.slow)
        while not (answer.done() or self._signals or self._saved):
            await self._news.wait()
            self._news.clear()
        slow.cancel()
        self._news.set()  # there may be more to see than the answer
        void = not answer.done()
        if void:
            _kill(looking)
        data, _ = await answer
        if void:
            return None
        if not data:
            return Looked(trouble=_died(looking.returncode))
        looked = msgspec.json.decode(data, type=Looked)
        self._loaded |= {Path(file) for file in looked.files}
        store = sqlite_path(looked.store)
        self._store = self._store if store is None else store.absolute()
        self._saves.admit(await self._look_at_files())
        return looked

    async def _start_engine(self) -> None:
        reader, writer = os.pipe()
        passed = () if sys.platform == "win32" else (reader,)
        command = self._command("engine", *passed)
        try:
            with ctrl_c_blocked():
                self._engine = await asyncio.create_subprocess_exec(*command, pass_fds=passed)
        finally:
            os.close(reader)
        self._lifeline = writer
        self._waiter = asyncio.create_task(self._engine.wait())
        self._waiter.add_done_callback(lambda _: self._news.set())

    def _command(self, kind: str, lifeline: int | None = None) -> list[str]:
        order = msgspec.structs.replace(self._loop.order, lifeline=lifeline)
        return [sys.executable, *OPTIONS, "-m", "perdure.cli.devchild", kind, msgspec.json.encode(order).decode()]

    async def _end_engine(self) -> int | None:
        """Let the engine drain and end, faster after a second signal; its exit code, None if there is none."""
        engine, waiter = self._engine, self._waiter
        if engine is None or waiter is None:
            return None
        told = 0
        loop = asyncio.get_running_loop()
        kills = [loop.call_later(self._loop.order.drain_timeout_s + GRACE_S, _kill, engine)]
        while not waiter.done():
            if told < max(1, self._signals):
                told = max(1, self._signals)
                with suppress(ProcessLookupError):
                    engine.terminate()
                if told > 1:  # at once, also where two signals that come together are one
                    kills.append(loop.call_later(AT_ONCE_S, _kill, engine))
            await self._news.wait()
            self._news.clear()
        for kill in kills:
            kill.cancel()
        self._news.set()
        self._engine = self._waiter = None
        if self._lifeline is not None:
            os.close(self._lifeline)
        self._lifeline = None
        return waiter.result()


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


def _died(code: int | None) -> Trouble:
    message = f"the process that imported the application ended with exit code {code}"
    return Trouble(Report("application", message, "", Exit.USAGE), broken=True)
