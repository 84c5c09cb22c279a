"""The blocking client beside an engine [I-1]."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import App, AwaitMessage, Invocation, Pipeline, StoreUnusable, Succeeded, step
from perdure.sync import connect
from perdure.testing.clock import VirtualSystem, run_virtual


@step("double/v1")
async def double(inv: Invocation[int, object]) -> int:
    return inv.input * 2


doubling: Pipeline[int, object, int] = Pipeline(
    id="doubling", input=int, deps=object, steps=(double,), output=lambda inv: inv[double]
)

word = AwaitMessage("word/v1", name="word", type=str)
listening: Pipeline[str, object, str] = Pipeline(
    id="listening", input=str, deps=object, steps=(word,), output=lambda inv: inv[word]
)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(doubling.bind(), listening.bind(), store=f"sqlite:///{tmp_path / 'runs.db'}")
    up, down = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def engine() -> None:
        loops.append(asyncio.get_running_loop())
        async with app.engine():
            up.set()
            await down.wait()

    thread = threading.Thread(target=lambda: asyncio.run(engine()))
    thread.start()
    assert up.wait(20)
    yield app
    loops[0].call_soon_threadsafe(down.set)
    thread.join(20)


def test_a_blocking_program_submits_and_gets_the_result(app: App) -> None:
    with connect(app) as client:
        run = client.submit(doubling, 21)
        result = client.result(run.id, timeout=20)
        assert isinstance(result, Succeeded)
        assert result.output == 42
        assert client.info(run.id).status == "succeeded"


def test_it_sends_messages(app: App) -> None:
    """B-24."""
    with connect(app) as client:
        run = client.submit(listening, "x")
        assert client.send(run.id, "word", "hello", key="k")
        assert not client.send(run.id, "word", "hello", key="k")
        result = client.result(run.id, timeout=20)
        assert isinstance(result, Succeeded)
        assert result.output == "hello"


def test_an_unusable_store_is_said_and_no_thread_is_left(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(StoreUnusable), connect(f"sqlite:///{tmp_path / 'no' / 'such.db'}"):
        pass
    assert threading.active_count() == before


async def test_a_web_framework_gets_an_engine_for_its_lifetime(tmp_path: Path) -> None:
    app = App(doubling.bind(), store=f"sqlite:///{tmp_path / 'web.db'}")
    async with app.lifespan(object()) as state:
        run = await state["engine"].submit(doubling, 4)
        assert await run.result(20) == Succeeded(run.id, 8)


def test_a_release_leaves_a_delayed_start_alone_and_a_retry_does_not() -> None:
    """R-4, R-17: a hold that ends is no reason to start earlier than was asked; an operator's retry is."""

    async def play(system: VirtualSystem) -> None:
        app = App(doubling.bind(), store="memory://")
        async with app.engine(system=system) as engine:
            for retry in (False, True):
                run = await engine.submit(doubling, 1, delay=3600)
                submitted_us = (await run.info()).submitted_us
                await run.hold()
                await (run.retry() if retry else run.release())
                await run.result()
                ended_us = (await run.info()).ended_us
                assert ended_us is not None
                assert (ended_us - submitted_us >= 3_600_000_000) is not retry

    run_virtual(play)
