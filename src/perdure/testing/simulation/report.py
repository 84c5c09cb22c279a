"""Playing one seed, and saying what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure.testing.clock import Stuck, VirtualLoop
from perdure.testing.simulation.crowd import Crowd
from perdure.testing.simulation.history import Violation
from perdure.testing.simulation.play import TURNS, Play

_EXPECTED_ERRORS = ("waits for the store", "could not be quarantined")
"""What the engine may log as an error when reads fail; everything else is a violation."""

PATIENCE = 20_000
"""Turns of the loop without time passing after which something runs hot."""


@dataclass(frozen=True)
class Report:
    """What came of one seed.

    Attributes:
        violations: rules that were broken; empty if all is well.
        tally: how often each kind of fault happened.
        trace: what happened, line by line.
        runs, facts: how much.
        crash_points: places where a process could have died.
    """

    seed: int
    violations: tuple[Violation, ...]
    tally: Counter[str]
    trace: tuple[str, ...]
    runs: int
    facts: int
    crash_points: int

    @property
    def digest(self) -> str:
        """Of the trace: equal if and only if the same happened."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]

    def check(self) -> None:
        """Raise if a rule was broken.

        Raises:
            SimulationFailed: names the rules, the way to play it again, and the end of the trace.
        """
        if self.violations:
            raise SimulationFailed(self)


class SimulationFailed(AssertionError):
    """A seed broke a rule."""

    def __init__(self, report: Report) -> None:
        lines = [f"seed {report.seed} broke {len(report.violations)} rules; again with: make sim SEED={report.seed}"]
        lines += [f"  {violation}" for violation in report.violations[:5]]
        first = report.violations[0].run_id
        about = [line for line in report.trace if first and first[-5:] in line]
        lines += [f"the trace of run {first}:", *about[-40:]] if first else []
        lines += ["the end of the trace:", *report.trace[-15:]]
        super().__init__("\n".join(lines))


def simulate(
    seed: int, *, turns: int = TURNS, crash_at: int | None = None, shared: bool = False, limited: bool = False
) -> Report:
    """Play one seed to its end in virtual time; never raises for a rule that was broken, see `Report.check`.

    Args:
        turns: so many things happen before everything comes to rest.
        shared: several workers share a store, instead of one engine that owns it.
        limited: there are limits and mutexes.
        crash_at: see `Dice`; with it, every append and effect can be tried as the place to die.
    """
    loop = VirtualLoop(limit=timedelta(days=30), patience=PATIENCE)
    play = (Crowd if shared else Play)(seed, loop, turns, crash_at, limited=limited)
    history = play.history
    loop.set_exception_handler(lambda _loop, context: history.blame("", "R-15", _text(context)))
    with _errors_are_violations(play), asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.run(play.run())
        except Stuck as stuck:
            history.blame("", "R-16", str(stuck))
    facts = sum(judge.seq for judge in history.judges.values())
    return Report(
        seed,
        tuple(history.violations),
        play.dice.tally,
        tuple(history.trace),
        len(history.judges),
        facts,
        play.dice.crash_points,
    )


def _text(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"


@contextmanager
def _errors_are_violations(play: Play) -> Generator[None]:
    """What the engine logs as an error is one: nothing here is outside of what it promises to bear."""
    logger = logging.getLogger("perdure")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                text = record.getMessage()
                if not any(expected in text for expected in _EXPECTED_ERRORS):
                    problem = f"{text}: {record.exc_info[1]!r}" if record.exc_info else text
                    play.history.blame("", "R-15", problem)

    handler = Handler()
    before = logger.propagate, logger.level
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before[0]
        logger.setLevel(before[1])
