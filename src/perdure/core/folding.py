"""What several folds have in common: each changes a projection by one idea [J-8]."""

from __future__ import annotations

from typing import NoReturn

from perdure.core.facts import Fact, OperationFailed, OperationResolved
from perdure.core.projection import ForwardEntry, Projection
from perdure.errors import CorruptJournal


def corrupt(p: Projection, fact: Fact, problem: str) -> NoReturn:
    """The fact cannot follow what is before it."""
    raise CorruptJournal(p.run_id, p.version, f"{type(fact).__name__}: {problem}")


def check_startable(p: Projection, fact: Fact, step: str) -> None:
    """A worker owns the run, and the step may be the next that is started."""
    if p.token == 0:
        corrupt(p, fact, "no worker has claimed the run")
    if p.failure is not None or p.pin is not None or step in p.forward:
        corrupt(p, fact, "the step was started, or another operation is unresolved")


def mark_forward(p: Projection, step: str, passed: tuple[str, ...]) -> None:
    """The step was started or resolved, and with that others were passed [E-7]."""
    if passed:
        p.passed.update(passed)
    if p.view is not None:
        p.view.on_forward_mark(step)


def mark_unwind(p: Projection, step: str, crossed: tuple[str, ...]) -> None:
    """An unwind was started or resolved, and with that others were crossed [U-4]."""
    p.last_unwind = step
    p.crossed.update(crossed)
    if p.view is not None:
        p.view.on_crossed(crossed)
        p.view.on_unwind_mark(step)


def forward_progress(p: Projection, entry: ForwardEntry, step: str, state: bytes | None) -> None:
    """The step counts for the frontier from now on: as succeeded with a state, as skipped without one."""
    succeeded = state is not None
    entry.status = "succeeded" if succeeded else "skipped"
    entry.state = state
    p.pin = None
    p.successes += succeeded
    if p.view is not None:
        p.view.on_progress(step, succeeded=succeeded)


def end_operation(p: Projection, step: str) -> None:
    """An operation is resolved: what it waited for, and the hold of its policy, end with it."""
    p.due_us = 0
    if p.held is not None and p.held.step == step:
        p.held = None


def fail_forward(p: Projection, fact: OperationFailed | OperationResolved, *, in_doubt: bool) -> None:
    """A forward step failed for good: the run unwinds from here on [U-1]."""
    step = fact.step
    if fact.failure is None:
        corrupt(p, fact, "a failure is missing")
    if p.failure is not None or (p.pin is not None and p.pin != step):
        corrupt(p, fact, "another operation is unresolved or the run is unwinding")
    entry = p.forward.get(step)
    if entry is None:
        entry = p.forward[step] = ForwardEntry("failed")
    elif entry.status != "unresolved":
        corrupt(p, fact, f"the step is {entry.status} already")
    entry.status = "failed"
    entry.in_doubt = in_doubt
    p.pin = None
    p.failure = fact.failure
