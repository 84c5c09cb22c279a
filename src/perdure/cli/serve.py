"""An engine in the foreground: signals, the live view, log lines, and a clean end [R-6]."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from perdure.cli.connect import Place, shown_url
from perdure.cli.exits import Exit
from perdure.cli.monitor import LogLines, Monitor, event_json
from perdure.cli.output import Output, rich_table
from perdure.cli.problems import Problem
from perdure.cli.stopping import STOPS, give_back, on_stop
from perdure.cli.tables import safe
from perdure.cli.text import count
from perdure.cli.times import iso_local, iso_utc, now_us
from perdure.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.live import Live

    from perdure.ports.observer import Event
    from perdure.runtime.engine import Engine

SOON_US = 45_000_000
"""What is due within this time is waited for by `--until-idle`: longer than a usual backoff."""
REDRAW_S = 0.25
COUNT_EVERY_S = 2.0
STOPPED_AT_ONCE = 130
STRAGGLERS_S = 1.0
TELL_EVERY_S = 0.5
AT_ONCE = b"!"


@dataclass(frozen=True)
class Limits:
    """What the command line says instead of the application; None: as the application says."""

    concurrency: int | None
    drain_timeout_s: float | None
    lease_s: float | None = None


@dataclass(frozen=True)
class Supervised:
    """Another process looks after this engine: Ctrl-C and the terminal are its business.

    Attributes:
        lifeline: a descriptor that can be read, at its end, once that process is gone; then the engine drains. So it
            does when anything can be read; `AT_ONCE` says that it is to stop at once.
        number: which of several it is, for its lines; 0 where it is alone.
        tell: called with the worker's identity, at first and whenever it has another [R-3].
    """

    lifeline: int | None
    number: int = 0
    tell: Callable[[str], None] | None = None


class View(Protocol):
    """Shows what the engine does."""

    def __call__(self, event: Event, /) -> None: ...

    def say(self, text: str) -> None:
        """Something about the engine itself."""
        ...

    async def keep_fresh(self, engine: Engine) -> None:
        """Redraw, count and sum up until canceled."""
        ...

    def close(self, *, started: bool) -> None:
        """Leave the terminal as it was, and sum up if the engine ever started."""
        ...


class JsonView:
    """One JSON object a line for every event; of one of several processes with its number."""

    def __init__(self, out: Output, number: int = 0) -> None:
        self._out = out
        self._of = numbered_json(number)

    def __call__(self, event: Event, /) -> None:
        self._out.value({**event_json(event), **self._of})

    def say(self, text: str) -> None:
        """Nothing: `started` and `stopped` are written by `serve`."""

    async def keep_fresh(self, engine: Engine) -> None:
        """Nothing to refresh."""

    def close(self, *, started: bool) -> None:
        """Nothing to close."""


class PlainView:
    """Log lines for a pipe, a file, or a service manager; of one of several processes with its number."""

    def __init__(self, out: Output, number: int = 0) -> None:
        self._out = out
        self._mark = numbered(number)
        self._log = LogLines()
        self.monitor = Monitor(now_us())

    def __call__(self, event: Event, /) -> None:
        self.monitor.see(event)
        self._print(self._log.lines(event))

    def _print(self, lines: list[str]) -> None:
        for line in lines:
            self._out.line(f"{self._mark}{line}")

    def say(self, text: str) -> None:
        """A line with the time."""
        self._print([f"{iso_local(now_us())}  {text}"])

    async def keep_fresh(self, engine: Engine) -> None:
        """Once a second say what was held back."""
        while True:
            await asyncio.sleep(1.0)
            self._print(self._log.tick(now_us()))

    def close(self, *, started: bool) -> None:
        """Sum up."""
        self._print(self._log.tick(now_us()))
        if started:
            self.say(self.monitor.summary(now_us()))


class LiveView:
    """A view that redraws in place, for a terminal."""

    def __init__(self, out: Output) -> None:
        from rich.live import Live

        self._out = out
        self.monitor = Monitor(now_us())
        self._said: list[str] = []
        self._live: Live = Live(console=out.console, auto_refresh=False, transient=True)
        self._live.start()

    def __call__(self, event: Event, /) -> None:
        self.monitor.see(event)

    def say(self, text: str) -> None:
        """A line above the view."""
        self._out.line(f"{iso_local(now_us())}  {text}")

    async def keep_fresh(self, engine: Engine) -> None:
        """Redraw four times a second; count runs seldom enough to cost nothing."""
        loop = asyncio.get_running_loop()
        next_count_s = 0.0
        while True:
            if loop.time() >= next_count_s:
                began_s = loop.time()
                with suppress(StoreUnavailable):
                    self.monitor.read(await engine.counts())
                next_count_s = loop.time() + max(COUNT_EVERY_S, 50 * (loop.time() - began_s))
            self._live.update(rich_table(self.monitor.table(now_us()), self._out.console.width), refresh=True)
            await asyncio.sleep(REDRAW_S)

    def close(self, *, started: bool) -> None:
        """Take the view away and sum up."""
        self._live.stop()
        if started:
            self.say(self.monitor.summary(now_us()))


def view_for(out: Output, *, live: bool = True, number: int = 0) -> View:
    """The view that fits whoever looks; lines rather than a live view where others write on the terminal as well."""
    if out.json:
        return JsonView(out, number)
    return LiveView(out) if out.terminal and live else PlainView(out, number)


def numbered(number: int) -> str:
    """The mark of a line of one of several processes; empty where there is one."""
    return f"[{number}] " if number else ""


def numbered_json(number: int) -> dict[str, int]:
    """The same for programs."""
    return {"process": number} if number else {}


class Stop:
    """What signals ask for.

    Attributes:
        drain: set by the first SIGINT or SIGTERM.
        at_once: set by the second.

    Args:
        supervised: by whom SIGINT is answered instead, and whose word and end drain, too. Its word is no signal: a
            service manager sends SIGTERM to all processes, and that and the supervisor's word are one wish.
    """

    def __init__(self, supervised: Supervised | None = None) -> None:
        self.drain = asyncio.Event()
        self.at_once = asyncio.Event()
        self._lifeline = None if supervised is None else supervised.lifeline
        self._numbers = STOPS if supervised is None else (signal.SIGTERM,)
        if self._lifeline is not None:
            asyncio.get_running_loop().add_reader(self._lifeline, self._told, self._lifeline)
        on_stop(self._numbers, self._signal)

    def _signal(self) -> None:
        if self.drain.is_set():
            self.at_once.set()
        self.drain.set()

    def _told(self, lifeline: int) -> None:
        """Who looks after this engine says something, or is gone."""
        said = b""
        with suppress(OSError):
            said = os.read(lifeline, 64)
        if not said:
            self._cut()
        if AT_ONCE in said:
            self.at_once.set()
        self.drain.set()

    def _cut(self) -> None:
        if self._lifeline is not None:
            asyncio.get_running_loop().remove_reader(self._lifeline)
        self._lifeline = None

    def close(self) -> None:
        """Give the signals back."""
        self._cut()
        give_back(self._numbers)


def run_engine(
    place: Place, limits: Limits, *, until_idle: bool, as_json: bool, supervised: Supervised | None = None
) -> int:
    """`serve` on an event loop of its own; what handlers leave behind does not keep the process.

    Raises:
        StoreUnavailable, Problem: see `serve`.
    """
    runner = asyncio.Runner(loop_factory=_loop_factory())
    try:
        return runner.run(serve(place, limits, until_idle=until_idle, as_json=as_json, supervised=supervised))
    finally:
        if not runner.run(leave_stragglers()):
            runner.close()


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; it makes the engine faster."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


async def serve(
    place: Place, limits: Limits, *, until_idle: bool, as_json: bool, supervised: Supervised | None = None
) -> int:
    """Run the engine until a signal, until it is idle if so asked, or until the store is gone; returns the exit code.

    Raises:
        StoreUnavailable: the store could not be opened.
        Problem: the store is gone for good.
    """
    if place.app is None:
        raise TypeError("an engine needs an application")
    out = Output(json=as_json, outlived=True)
    number = 0 if supervised is None else supervised.number
    log_to_stderr(numbered(number))
    stop = Stop(supervised)
    app = place.app.app
    view = view_for(out, live=supervised is None, number=number)
    started = False
    try:
        opened = app.engine(
            store=place.store,
            concurrency=limits.concurrency,
            drain_timeout=limits.drain_timeout_s,
            lease=limits.lease_s,
            observers=[view],
        )
        async with opened as engine:
            started = True
            _started(engine, place, out, view, number)
            tell = None if supervised is None else supervised.tell
            code = await _work(engine, stop, view, until_idle=until_idle, tell=tell)
        if out.json:
            out.value({"event": "stopped", "at": iso_utc(now_us()), **numbered_json(number)})
        return code
    finally:
        stop.close()
        view.close(started=started)


def _started(engine: Engine, place: Place, out: Output, view: View, number: int) -> None:
    name = place.app.target.text if place.app is not None else ""
    store = shown_url(place.url)
    if out.json:
        value = {"event": "started", "at": iso_utc(now_us()), "app": name, "store": store, "worker": engine.worker}
        out.value({**value, **numbered_json(number)})
    how = "" if number else "; Ctrl-C drains and stops it"
    view.say(f"engine {engine.worker} of {name} on {store} started{how}")


async def keep_told(engine: Engine, tell: Callable[[str], None]) -> None:
    """Say who this worker is: one that was found dead goes on as another [R-3]."""
    told = ""
    while True:
        if engine.worker != told:
            told = engine.worker
            tell(told)
        await asyncio.sleep(TELL_EVERY_S)


async def _work(engine: Engine, stop: Stop, view: View, *, until_idle: bool, tell: Callable[[str], None] | None) -> int:
    beside = [asyncio.ensure_future(view.keep_fresh(engine))]
    if tell is not None:
        beside.append(asyncio.ensure_future(keep_told(engine, tell)))
    try:
        failed = asyncio.ensure_future(engine.failed())
        ends: list[asyncio.Future[Any]] = [failed, asyncio.ensure_future(stop.drain.wait())]
        if until_idle:
            ends.append(asyncio.ensure_future(wait_until_idle(engine)))
        await _first(*ends)
        if failed.done() and not failed.cancelled():
            engine.abort()
            raise Problem(str(failed.result()), code=Exit.STORE)
        return await _drain(engine, stop, view)
    finally:
        for task in beside:
            task.cancel()
        for task in beside:
            with suppress(asyncio.CancelledError):
                await task


async def _first(*waiting: asyncio.Future[Any]) -> None:
    """Wait until one is done; the others are canceled."""
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for future in waiting:
        if future.done() and not future.cancelled() and future.exception() is not None:
            future.result()
        future.cancel()


async def _drain(engine: Engine, stop: Stop, view: View) -> int:
    """Let running attempts end; a second signal stops at once, as a crash would."""
    if stop.drain.is_set():
        running = engine.running
        view.say(f"draining: {running} running" if running else "stopping")
    draining = asyncio.ensure_future(engine.drain())
    await _first(draining, asyncio.ensure_future(stop.at_once.wait()))
    if stop.at_once.is_set() and engine.running:
        engine.abort()
        view.say("stopped at once; the next engine goes on where this one was")
        return STOPPED_AT_ONCE
    return Exit.OK


async def wait_until_idle(engine: Engine) -> None:
    """Wait until nothing is running, due, or due soon, such as a retry."""
    while True:
        await engine.idle()
        due_us = await engine.store.next_due_us()
        if due_us is None or due_us - now_us() > SOON_US:
            if engine.running == 0:
                return
            continue
        await asyncio.sleep(min(1.0, max(0.01, (due_us - now_us()) / 1e6)))


async def leave_stragglers() -> bool:
    """Cancel what is left of an engine that has stopped; whether something does not end by that.

    Then the loop must not be closed: that would wait for it.
    """
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=STRAGGLERS_S)
    if left:
        sys.stderr.write(f"{count(len(left), 'handler')} that cannot be canceled left behind\n")
        sys.stderr.flush()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # they die with the process
    return bool(left)


class _Stderr(logging.Handler):
    """Log records as lines on whatever stderr is at that moment: a live view puts them above itself."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            lines = [self._mark + safe(line) for line in text.splitlines()]
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def log_to_stderr(mark: str = "") -> None:
    """Show log records of level WARNING and above, unless the application has set up logging itself."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _Stderr(mark)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(levelname)s  %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S%z"))
    root.addHandler(handler)
