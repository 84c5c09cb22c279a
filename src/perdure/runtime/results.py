"""From the end of a run to the result its caller gets [M-11]."""

from __future__ import annotations

from perdure.core.facts import RunSucceeded
from perdure.core.projection import Projection
from perdure.define.pipeline import AnyPipeline
from perdure.define.result import Canceled, Failed, Result, Succeeded
from perdure.errors import CorruptJournal, InvalidRun, PayloadError


def result_of(p: Projection, pipeline: AnyPipeline | None) -> Result[object]:
    """The result of a run that ended.

    Raises:
        InvalidRun: the output does not decode as the pipeline declares it now [P-3].
        CorruptJournal: the run has not ended in these facts.
    """
    ended, outcome = p.ended, p.outcome
    if ended is None or outcome is None:
        raise CorruptJournal(p.run_id, p.version, "the index says that the run ended, the facts do not")
    if isinstance(ended, RunSucceeded):
        return Succeeded(p.run_id, _output(p, bytes(outcome.output), pipeline), ended.in_doubt)
    kind = Canceled if ended.failure.kind == "canceled" else Failed
    return kind(
        p.run_id,
        ended.failure,
        ended.unwind_failures,
        ended.in_doubt,
        ended.half_unwound,
        ended.uncompensated,
        ended.unavailable,
        bytes(outcome.output),
        ended.item_counts,
    )


def _output(p: Projection, data: bytes, pipeline: AnyPipeline | None) -> object:
    if pipeline is None:
        import msgspec

        return msgspec.json.decode(data)
    try:
        return pipeline.output_codec.decode(data)
    except PayloadError as error:
        raise InvalidRun(
            p.run_id, "payload-unreadable", f"its output is not what the pipeline returns now: {error}"
        ) from error
