"""Which attempt the current code runs for: for log records and nothing else."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any

from perdure.define.invocation import Invocation

current_invocation: ContextVar[Invocation[Any, Any] | None] = ContextVar("perdure_invocation", default=None)


class RunFilter(logging.Filter):
    """Adds `run_id`, `step_id` and `attempt` to every record, empty outside of handlers.

    Put it on a handler of the logging module, and name the fields in its format.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        inv = current_invocation.get()
        record.run_id = inv.run_id if inv is not None else ""
        record.step_id = inv.step_id if inv is not None else ""
        record.attempt = inv.attempt if inv is not None else 0
        return True
