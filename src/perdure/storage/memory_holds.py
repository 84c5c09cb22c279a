"""Holds on pipelines in memory [R-17]."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.ports.store import PipelineHold


def hold(holds: list[PipelineHold], wanted: PipelineHold) -> bool:
    """See `Store.hold_pipeline`."""
    if any(known.pipeline == wanted.pipeline and not known.released_us for known in holds):
        return False
    holds.append(wanted)
    return True


def release(holds: list[PipelineHold], pipeline: str, actor: str, note: str, at_us: int) -> bool:
    """See `Store.release_pipeline`."""
    for i, known in enumerate(holds):
        if known.pipeline == pipeline and not known.released_us:
            holds[i] = replace(known, released_us=at_us, released_by=actor, release_note=note)
            return True
    return False
