"""A pipeline that is held by a caller who is cancelled meanwhile is held for the engine, too [R-16, R-17]."""

from __future__ import annotations

import pytest

from perdure.app import App
from perdure.define.decorator import step
from perdure.define.invocation import Invocation
from perdure.define.pipeline import Pipeline
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.clock import VirtualSystem, run_virtual


class _NobodyWaits(MemoryStore):
    """Holds a pipeline, and then its caller is gone."""

    async def hold_pipeline(self, hold: object, /) -> bool:
        await super().hold_pipeline(hold)  # type: ignore[arg-type]  # passed on as it came
        raise ConnectionError("the caller is gone")


@step("s")
async def work(inv: Invocation[None, object]) -> None:
    pass


def test_a_hold_whose_caller_is_gone_is_noticed_by_the_engine() -> None:
    async def play(system: VirtualSystem) -> str:
        pipeline = Pipeline(id="held", input=None, deps=object, steps=(work,), output=lambda inv: None)
        async with App(pipeline.bind(), store="memory://").engine(
            store=_NobodyWaits(MemoryData()), system=system
        ) as engine:
            with pytest.raises(ConnectionError):
                await engine.hold_pipeline("held", actor="somebody")
            await engine.idle()
            run = await engine.submit(pipeline, None)
            with pytest.raises(TimeoutError):
                await engine.result(run.id, timeout=2.0)
            return (await engine.info(run.id)).status

    assert run_virtual(play) == "ready"
