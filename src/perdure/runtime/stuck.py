"""Naming handlers that run for very long, or that keep the event loop from running [R-15]."""

from __future__ import annotations

import logging

from perdure.core.operations import UnitOp
from perdure.runtime.host import Host
from perdure.runtime.live import LiveRun

logger = logging.getLogger("perdure")

STUCK_US = 600_000_000
"""An attempt that runs longer than this, ten minutes, is reported once."""


def report_stuck(host: Host) -> None:
    """Name attempts, of steps and of items, that have been running for very long, once each."""
    now_us = host.system.now_us()
    before_us = now_us - STUCK_US
    for live in list(host.live.values()):
        op = live.op
        if op is None:
            continue
        if isinstance(op, UnitOp):
            for index, attempt, started_us in live.crew.stuck(before_us) if live.crew is not None else ():
                _tell(host, live, f"item {index} of step {op.step!r}", op.step, attempt, now_us - started_us, index)
        elif live.in_handler and not live.stuck and live.started_us <= before_us:
            live.stuck = True
            _tell(host, live, f"step {op.step!r}", op.step, op.attempt, now_us - live.started_us)


def _tell(
    host: Host, live: LiveRun, what: str, step: str, attempt: int, lasted_us: int, item: int | None = None
) -> None:
    minutes = lasted_us // 60_000_000
    logger.warning("%s of run %s has been running for %d minutes", what, live.p.run_id, minutes)
    if host.observers:
        detail = f"{minutes} minutes" if item is None else f"item {item}: {minutes} minutes"
        host.emit("stuck", live.p, step=step, attempt=attempt, detail=detail)


def report_blocked(host: Host, task: object, stack: str) -> None:
    """Name the handler that this task runs, which blocks the loop; called in the watchdog's thread."""
    limit_s = host.options.block_limit_s
    for live in list(host.live.values()):
        op, crew = live.op, live.crew
        item = None if crew is None or task is None else crew.item_of(task)
        if op is None or task is None or (item is None and live.task is not task):
            continue
        what = f"step {op.step!r}" if item is None else f"item {item} of step {op.step!r}"
        logger.warning(
            "%s of run %s has blocked the event loop for more than %.1f s; write it as `def` to run it in a thread, "
            "or await\n%s",
            what,
            live.p.run_id,
            limit_s,
            stack,
        )
        if host.observers:
            detail = "" if item is None else f"item {item}"
            host.loop.call_soon_threadsafe(_emit_blocked, host, live, op.step, detail)
        return
    logger.warning("something has blocked the event loop for more than %.1f s\n%s", limit_s, stack)


def _emit_blocked(host: Host, live: LiveRun, step: str, detail: str) -> None:
    host.emit("blocked", live.p, step=step, detail=detail)
