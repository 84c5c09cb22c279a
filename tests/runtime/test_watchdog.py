"""A handler that blocks the event loop is noticed and named while it does; nothing here measures time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from perdure import DefinitionError, ForEach, ItemInvocation, Succeeded, step
from tests.runtime.lab import Events, Gate, Inv, app, line


class Heard(logging.Handler):
    """Tells, in whatever thread, that a record with a word in it was logged."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word
        self.records: list[str] = []
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.word in record.getMessage():
            self.records.append(record.getMessage())
            self.heard.set()


@contextmanager
def hearing(word: str) -> Generator[Heard]:
    """Listens to the engine's log."""
    handler = Heard(word)
    logging.getLogger("perdure").addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger("perdure").removeHandler(handler)


async def test_a_blocking_handler_is_named_while_it_blocks() -> None:
    """R-15: the log says which step of which run, and where; observers are told once the loop can."""
    events = Events()
    with hearing("step 'rude/v1' of run") as log:

        @step("rude/v1")
        async def rude(inv: Inv) -> None:
            assert log.heard.wait(5)  # blocks the loop until somebody said so

        pipeline = line(rude)
        async with app(pipeline, block_limit=0.02).engine(observers=[events]) as engine:
            run = await engine.submit(pipeline, "x")
            assert isinstance(await run.result(timeout=60), Succeeded)
            blocked = await events.until("blocked")
        [told, *_] = log.records
        assert "rude/v1" in told
        assert run.id in told
        assert "log.heard.wait(5)" in told
        assert (blocked.run_id, blocked.step) == (run.id, "rude/v1")


async def test_a_blocking_handler_of_an_item_is_named_with_its_item() -> None:
    """R-15"""
    events = Events()
    with hearing("item 1 of step 'rude/v1' of run") as log:

        async def rude(inv: ItemInvocation[str, object, int]) -> None:
            if inv.index == 1:
                assert log.heard.wait(5)

        pipeline = line(ForEach("rude/v1", items=_three, handler=rude))
        async with app(pipeline, block_limit=0.02).engine(observers=[events]) as engine:
            run = await engine.submit(pipeline, "x")
            assert isinstance(await run.result(timeout=60), Succeeded)
            blocked = await events.until("blocked")
        assert "log.heard.wait(5)" in log.records[0]
        assert (blocked.run_id, blocked.step, blocked.detail) == (run.id, "rude/v1", "item 1")


def _three(inv: Inv) -> list[int]:
    return [1, 2, 3]


async def test_one_blockage_is_told_once_and_the_next_again() -> None:
    """R-15"""
    with hearing("step 'rude/v1' of run") as log:

        @step("rude/v1")
        async def rude(inv: Inv) -> None:
            assert log.heard.wait(5)

        pipeline = line(rude)
        async with app(pipeline, block_limit=0.02).engine() as engine:
            for _ in range(2):
                log.heard.clear()  # not in the handler, which a slow machine may have told of by then
                assert isinstance(await (await engine.submit(pipeline, "x")).result(timeout=60), Succeeded)
        assert len(log.records) == 2


async def test_whatever_else_blocks_the_loop_is_told_with_its_place() -> None:
    """R-15: no handler is blamed for it."""
    gate = Gate()
    with hearing("blocked the event loop") as log:

        @step("polite/v1")
        async def polite(inv: Inv) -> None:
            await gate()

        pipeline = line(polite)
        async with app(pipeline, block_limit=0.02).engine() as engine:
            await engine.submit(pipeline, "x")
            await gate.until(1)
            for _ in range(5):  # a slow machine may have blocked the loop just before, which is told once
                await asyncio.sleep(0)
                log.heard.clear()
                if log.heard.wait(5):  # this test is what blocks
                    break
            gate.go.set()
        [told, *_] = [record for record in log.records if "this test is what blocks" in record]
        assert "something has blocked" in told
        assert "polite/v1" not in told


async def test_a_def_handler_may_block_its_thread() -> None:
    """I-1: the loop goes on meanwhile."""
    with hearing("blocked the event loop") as log:
        go = threading.Event()

        @step("thread/v1")
        def blocking(inv: Inv) -> None:
            assert go.wait(30)

        pipeline = line(blocking)
        async with app(pipeline, block_limit=30).engine() as engine:
            run = await engine.submit(pipeline, "x")
            for _ in range(1000):
                await asyncio.sleep(0)
            go.set()
            assert isinstance(await run.result(timeout=60), Succeeded)
        assert log.records == []


@pytest.mark.parametrize("limit", [0, -1, float("nan"), "1"])
def test_the_limit_is_a_duration(limit: float) -> None:
    """P-2"""
    with pytest.raises(DefinitionError, match="block_limit"):
        app(block_limit=limit)
