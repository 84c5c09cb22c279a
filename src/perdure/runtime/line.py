"""A bound pipeline as one engine runs it: its definition, the generation deployed now, and policies resolved once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.core.plan import RUN
from perdure.core.retry import DEFAULT_RETRY, Retry
from perdure.core.topology import Topology
from perdure.define.limit import AnyLimit
from perdure.define.pipeline import AnyPipeline
from perdure.define.policy import effective_retry, effective_timeout_s
from perdure.define.step import AnyStep


class Line:
    """See the module.

    Attributes:
        topology: of the deployed generation, knowing what earlier ones declared [U-9].
        generation: its number [D-4].
        deps: what the pipeline's dependencies opened.
        limits: of the steps that name any, and of the runs themselves under `RUN` [R-11]; limited: are there any.
    """

    __slots__ = (
        "_policies",
        "deps",
        "generation",
        "id",
        "limited",
        "limits",
        "pipeline",
        "steps",
        "timeouts_s",
        "topology",
    )

    def __init__(
        self,
        pipeline: AnyPipeline,
        topology: Topology,
        generation: int,
        deps: object,
        app_retry: Retry | None,
        app_timeout_s: float | None,
    ) -> None:
        self.pipeline = pipeline
        self.id = pipeline.id
        self.topology = topology
        self.generation = generation
        self.deps = deps
        self.steps: Mapping[str, AnyStep[Any, Any]] = pipeline.steps
        self._policies = {s.id: effective_retry(s.retry, pipeline.retry, app_retry)[0] for s in self.steps.values()}
        self.timeouts_s = {
            s.id: effective_timeout_s(s.timeout_s, pipeline.timeout_s, app_timeout_s)[0] for s in self.steps.values()
        }
        self.limits: dict[str, tuple[AnyLimit, ...]] = {s.id: s.limits for s in self.steps.values() if s.limits}
        if pipeline.limits:
            self.limits[RUN] = pipeline.limits
        self.limited = bool(self.limits)

    def policy(self, step: str) -> Retry:
        """The retry policy in force for a step; the default for one that is gone."""
        return self._policies.get(step, DEFAULT_RETRY)
