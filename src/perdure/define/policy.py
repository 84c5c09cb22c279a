"""Which policy holds: what is said nearest to the step [M-5]."""

from __future__ import annotations

from perdure.core.retry import DEFAULT_RETRY, PolicySource, Retry


def effective_retry(step: Retry | None, pipeline: Retry | None, app: Retry | None) -> tuple[Retry, PolicySource]:
    """The policy of a step and who said it. A policy is taken whole; fields of two are never mixed."""
    if step is not None:
        return step, "step"
    if pipeline is not None:
        return pipeline, "pipeline"
    if app is not None:
        return app, "app"
    return DEFAULT_RETRY, "default"


def effective_timeout_s(
    step: float | None, pipeline: float | None, app: float | None
) -> tuple[float | None, PolicySource]:
    """The bound of one attempt in seconds, None for no bound, and who said it [R-18]."""
    if step is not None:
        return step, "step"
    if pipeline is not None:
        return pipeline, "pipeline"
    if app is not None:
        return app, "app"
    return None, "default"
