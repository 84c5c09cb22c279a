"""Which attempt a log record belongs to [I-5 comes later; this is the plain filter]."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from perdure import RunFilter, Succeeded, step
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Inv, World, app, line, virtually

logger = logging.getLogger("tests.runtime.context")


class Told(logging.Handler):
    """Keeps what a formatter would have seen."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str, str, int]] = []
        self.addFilter(RunFilter())

    def emit(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        self.told.append((record.getMessage(), fields["run_id"], fields["step_id"], fields["attempt"]))


@pytest.fixture
def told() -> Iterator[Told]:
    """A handler on the logger of this module."""
    handler = Told()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)


@virtually
async def test_records_carry_run_step_and_attempt_inside_handlers_and_nothing_outside(
    system: VirtualSystem, told: Told
) -> None:
    """I-1: in `async def` and `def` handlers, in tasks they start, and never after the end."""

    @step("async/v1")
    async def one(inv: Inv) -> None:
        logger.info("async")
        if inv.attempt == 1:
            raise OSError("down")

        async def child() -> None:
            logger.info("child")

        await asyncio.create_task(child())

    @step("sync/v1")
    def two(inv: Inv) -> None:
        logger.info("sync")

    pipeline = line(one, two)
    async with World(system).engine(app(pipeline)) as engine:
        logger.info("before")
        run = await engine.submit(pipeline, "x")
        other = await engine.submit(pipeline, "y")
        assert isinstance(await run.result(), Succeeded)
        assert isinstance(await other.result(), Succeeded)
        logger.info("after")
    assert (told.told[0], told.told[-1]) == (("before", "", "", 0), ("after", "", "", 0))
    assert [record for record in told.told if record[1] == run.id] == [
        ("async", run.id, "async/v1", 1),
        ("async", run.id, "async/v1", 2),
        ("child", run.id, "async/v1", 2),
        ("sync", run.id, "sync/v1", 1),
    ]
