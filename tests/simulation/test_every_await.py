"""Callers are cancelled at every one of their awaits: what they asked for happens whole or not at all [J-14, R-16]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial

import pytest

from perdure import Canceled, Client, Succeeded
from perdure.core.facts import OperationResolved, RunCancelRequested, RunHeld, RunReleased, RunSubmitted
from perdure.testing.clock import VirtualSystem, run_virtual
from perdure.testing.simulation.calls import cancelled_at
from tests.simulation.stage import PATIENCE, Play, found

Ask = Callable[[Client, str], Coroutine[object, object, object]]

ASKED: dict[str, tuple[Ask, type]] = {
    "cancel": (lambda client, run: client.cancel(run, actor="op"), RunCancelRequested),
    "hold": (lambda client, run: client.hold(run, actor="op"), RunHeld),
    "retry": (lambda client, run: client.retry(run, actor="op"), RunReleased),
    "resolve": (lambda client, run: client.resolve(run, value="given", actor="op"), OperationResolved),
    "submit": (lambda client, run: client.submit(found, "x", resource="two"), RunSubmitted),
    "submit later": (lambda client, run: client.submit(found, "x", resource="two", delay=1.0), RunSubmitted),
    "result": (lambda client, run: client.result(run, timeout=1), type(None)),
    "info": (lambda client, run: client.info(run), type(None)),
}
AWAITS = 8
"""More than any of them has."""


@pytest.mark.parametrize("through", ["engine", "client"])
@pytest.mark.parametrize("what", list(ASKED))
def test_a_caller_is_cancelled_at_any_await(what: str, through: str) -> None:
    """The append in flight lands, the engine hears of it in time, and the journal is as if the caller had stayed."""
    ask, fact = ASKED[what]
    landed = [
        run_virtual(partial(cut, ask=ask, fact=fact, through=through, awaits=nth), patience=PATIENCE)
        for nth in range(1, AWAITS + 1)
    ]
    if fact is not type(None):
        assert landed[-1], "the last is not cut short at all"


async def cut(system: VirtualSystem, ask: Ask, fact: type, through: str, awaits: int) -> bool:
    """Ask, be cancelled at the nth await, and see that all is well; whether the fact is in a journal."""
    play = Play(system)
    async with play.on() as (engine, client):
        run = await engine.submit(found, "x")
        await play.stage.started.wait()
        play.store.late = lambda append: (0.2, 0.2)
        with suppress(asyncio.CancelledError, TimeoutError):
            await cancelled_at(ask(engine if through == "engine" else client, run.id), awaits)
        await system.sleep(3)
        runs = [info.run_id for info in await engine.list()]
        facts = [recorded.fact for one in runs for recorded in await engine.journal(one)]
        asked = [one for one in facts if type(one) is fact and getattr(one, "resource", "two") == "two"]
        assert len(asked) <= 1
        ends_at_once = fact in (RunCancelRequested, OperationResolved)
        assert bool(play.stage.stopped_s) is bool(asked and ends_at_once)
        if fact is RunSubmitted:
            assert len(play.stage.attempts) == 1 + len(asked)
        play.stage.go.set()
        for info in await engine.list(status="held"):
            await system.sleep(1)
            await engine.release(info.run_id, actor="op")
        await system.sleep(3)
        for one in await engine.list(status="held"):
            await engine.release(one.run_id, actor="op")
        wanted = Canceled if asked and fact is RunCancelRequested else Succeeded
        assert isinstance(await run.result(timeout=30), wanted)
        return bool(asked)
