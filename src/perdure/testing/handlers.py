"""A stand-in for authors whose pipelines have handlers only: what opens a wait or a unit is never asked of them."""

from __future__ import annotations

from perdure.core.plan import Opening, Terms


class HandlersOnly:
    """The part of an `Evaluator` that steps with handlers have no use for; being asked is a mistake of the planner."""

    def opening(self, step: str, /) -> Opening:
        """See `Evaluator`."""
        raise NotImplementedError(step)

    def terms(self, step: str, /) -> Terms:
        """See `Evaluator`."""
        raise NotImplementedError(step)

    def timeout_state(self, step: str, /) -> bytes | None:
        """See `Evaluator`."""
        raise NotImplementedError(step)

    def message_state(self, step: str, payload: bytes, /) -> bytes:
        """See `Evaluator`."""
        raise NotImplementedError(step)
