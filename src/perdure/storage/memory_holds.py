"""Holds on pipelines in memory [R-17]."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.ports.store import PipelineHold


class MemoryHolds:
    """What a store in memory knows of them.

    Attributes:
        pipeline_holds: those in force and those that ended.
    """

    def __init__(self) -> None:
        self.pipeline_holds: list[PipelineHold] = []

    def hold(self, hold: PipelineHold) -> bool:
        """See `Store.hold_pipeline`."""
        if any(known.pipeline == hold.pipeline and not known.released_us for known in self.pipeline_holds):
            return False
        self.pipeline_holds.append(hold)
        return True

    def release_hold(self, pipeline: str, actor: str, note: str, at_us: int) -> bool:
        """See `Store.release_pipeline`."""
        for i, known in enumerate(self.pipeline_holds):
            if known.pipeline == pipeline and not known.released_us:
                self.pipeline_holds[i] = replace(known, released_us=at_us, released_by=actor, release_note=note)
                return True
        return False
