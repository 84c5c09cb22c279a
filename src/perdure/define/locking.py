"""From pipelines as authors write them to what `check` and the lock file hold [D-6]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.codec.digest import shape_digest, shape_name
from perdure.codec.json import AnyCodec
from perdure.core.future import Candidate, Reads
from perdure.core.lock import Lock, LockedPipeline, LockedStep, LockedType
from perdure.define.items import ItemStep
from perdure.define.pipeline import AnyPipeline
from perdure.define.step import ErasedStep, Optional


def candidate_of(pipeline: AnyPipeline) -> Candidate:
    """The topology of a pipeline and what its steps read."""
    return Candidate(pipeline.topology, {step.id: _reads(step) for step in pipeline.steps.values()})


def lock_of(pipelines: Iterable[AnyPipeline]) -> Lock:
    """The lock of an application's pipelines."""
    return Lock({pipeline.id: _locked(pipeline) for pipeline in pipelines})


def candidates_of(pipelines: Mapping[str, AnyPipeline]) -> dict[str, Candidate]:
    """`candidate_of` each, by id."""
    return {name: candidate_of(pipeline) for name, pipeline in pipelines.items()}


def _locked(pipeline: AnyPipeline) -> LockedPipeline:
    return LockedPipeline(_type(pipeline.input_codec), tuple(_step(step) for step in pipeline.steps.values()))


def _step(step: ErasedStep) -> LockedStep:
    spec, reads = step.spec, _reads(step)
    return LockedStep(
        step.id,
        _type(step.codec),
        spec.unwind,
        spec.in_doubt,
        spec.retired,
        spec.conditional,
        spec.settle,
        reads.needs,
        reads.optional,
        reads.substitute,
        spec.shape,
        spec.leaves,
        _type(step.item_codec) if isinstance(step, ItemStep) else None,
    )


def _reads(step: ErasedStep) -> Reads:
    needs = step.needs.values()
    return Reads(
        tuple(need.id for need in needs if not isinstance(need, Optional)),
        tuple(need.id for need in needs if isinstance(need, Optional)),
        step.if_skipped is not None,
    )


def _type(codec: AnyCodec) -> LockedType:
    return LockedType(shape_name(codec), shape_digest(codec))
