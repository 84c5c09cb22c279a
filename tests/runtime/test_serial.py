"""`slot="serial"`: runs of one resource one after the other, in the order in which they were submitted [R-5, M-1]."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from perdure import Canceled, KeyTaken, Run, ScheduleConflict, Succeeded, step
from perdure.core.facts import RunSubmitted
from perdure.storage.sqlite.store import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, Line, World, app, facts, line, virtually


def letter(text: str) -> str:
    return text[0]


class Queue:
    """A serial pipeline that notes who starts, and how many are inside at once."""

    def __init__(self, **options: Any) -> None:
        self.entered: list[str] = []
        self.most = self.inside = 0
        self.gate = Gate()

        @step("work/v1")
        async def work(inv: Inv) -> None:
            self.entered.append(inv.input)
            self.inside += 1
            self.most = max(self.most, self.inside)
            await self.gate()
            self.inside -= 1

        options = {"slot": "serial", "resource": letter, **options}
        self.pipeline: Line = line(work, **options)


@virtually
async def test_every_submission_is_a_run_of_its_own_and_has_its_turn(system: VirtualSystem) -> None:
    """R-5, M-1: other input does not conflict, equal input is not joined; a free slot is taken as ever [J-12]."""
    queue = Queue()
    async with World(system).engine(app(queue.pipeline)) as engine:
        runs = [await engine.submit(queue.pipeline, text) for text in ("a1", "a2", "a1", "a1", "a3")]
        other = await engine.submit(queue.pipeline, "b1")
        assert all(run.created for run in runs)
        assert len({run.id for run in runs}) == 5
        await queue.gate.until(2)
        assert queue.entered == ["a1", "b1"]
        waits = [[f.waits for f in await facts(run) if isinstance(f, RunSubmitted)] for run in (*runs, other)]
        assert waits == [[""], ["queue"], ["queue"], ["queue"], ["queue"], [""]]
        assert [type(f).__name__ for f in await facts(other)][:3] == [
            "RunSubmitted",
            "SegmentAttemptStarted",
            "OperationReserved",
        ]
        queue.gate.go.set()
        for run in (*runs, other):
            assert isinstance(await run.result(), Succeeded)
        assert [text for text in queue.entered if text[0] == "a"] == ["a1", "a2", "a1", "a1", "a3"]
        assert queue.most == 2
        assert (await engine.verify()).findings == ()


@virtually
async def test_what_the_caller_says_is_done(system: VirtualSystem) -> None:
    """R-5: a policy means on a serial slot what it means on any other."""
    queue = Queue()
    async with World(system).engine(app(queue.pipeline)) as engine:
        first = await engine.submit(queue.pipeline, "a1")
        second = await engine.submit(queue.pipeline, "a2")
        joined = await engine.submit(queue.pipeline, "a1", on_busy="join")
        assert (joined.id, joined.created) == (first.id, False)
        for text, policy in (("a2", "join"), ("a1", "reject")):
            with pytest.raises(ScheduleConflict, match=first.id):
                await engine.submit(queue.pipeline, text, on_busy=policy)  # type: ignore[arg-type]  # of the loop
        third = await engine.submit(queue.pipeline, "a3", on_busy="replace")
        assert isinstance(await first.result(), Canceled)
        assert isinstance(await second.result(), Canceled)
        queue.gate.go.set()
        assert isinstance(await third.result(), Succeeded)
        assert queue.entered == ["a1", "a3"]


@virtually
async def test_a_key_submits_once(system: VirtualSystem) -> None:
    """R-5: while the run waits, and after it has ended."""
    queue = Queue()
    async with World(system).engine(app(queue.pipeline)) as engine:
        await engine.submit(queue.pipeline, "a1")
        keyed = await engine.submit(queue.pipeline, "a2", idempotency_key="k")
        assert keyed.created
        assert (await engine.submit(queue.pipeline, "a2", idempotency_key="k")).id == keyed.id
        with pytest.raises(KeyTaken):
            await engine.submit(queue.pipeline, "a3", idempotency_key="k")
        queue.gate.go.set()
        await keyed.result()
        again = await engine.submit(queue.pipeline, "a2", idempotency_key="k")
        assert (again.id, again.created) == (keyed.id, False)
        assert queue.entered == ["a1", "a2"]


@virtually
async def test_many_have_their_turns_in_order(system: VirtualSystem) -> None:
    """R-5, R-16: by an engine and by a client beside it, behind a run that was there."""
    queue = Queue()
    world = World(system)
    async with world.engine(app(queue.pipeline)) as engine, world.client(app(queue.pipeline)) as client:
        await engine.submit(queue.pipeline, "a0")
        texts = [f"{resource}{n}" for n in range(1, 20) for resource in "abc"]
        random.Random(7).shuffle(texts)
        runs = [
            *await client.submit_many(queue.pipeline, texts[:30]),
            *await engine.submit_many(queue.pipeline, texts[30:]),
        ]
        (rejected,) = await engine.submit_many(queue.pipeline, ["a9"], on_busy="reject")
        assert isinstance(rejected, ScheduleConflict)
        queue.gate.go.set()
        for run in runs:
            assert isinstance(run, Run)
            assert run.created
            assert isinstance(await run.result(), Succeeded)
        for resource in "abc":
            expected = ["a0"] * (resource == "a") + [text for text in texts if text[0] == resource]
            assert [text for text in queue.entered if text[0] == resource] == expected
        assert queue.most == 3


@virtually
async def test_many_are_not_overtaken_by_the_next_while_the_slot_changes_hands(
    system: VirtualSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-5: runs end while the rest of the call is still on its way to the store."""
    monkeypatch.setattr("perdure.runtime.submitting.SLICE", 1)
    queue = Queue()
    queue.gate.go.set()
    async with World(system).engine(app(queue.pipeline)) as engine:
        texts = [f"a{n}" for n in range(60)]
        await engine.submit_many(queue.pipeline, texts)
        await engine.idle()
        assert queue.entered == texts


@virtually
async def test_many_without_a_resource_in_common_wait_for_nobody(system: VirtualSystem) -> None:
    """R-5: a run about itself alone queues behind nobody."""
    queue = Queue(resource=None)
    queue.gate.go.set()
    async with World(system).engine(app(queue.pipeline)) as engine:
        for run in await engine.submit_many(queue.pipeline, ["a", "a", "a"]):
            assert isinstance(run, Run)
            assert isinstance(await run.result(), Succeeded)
            assert [f.waits for f in await facts(run) if isinstance(f, RunSubmitted)] == [""]


async def test_the_queue_outlives_the_engine_in_a_file(tmp_path: Path) -> None:
    """R-5, R-16: on SQLite, through a kill of the engine."""
    queue = Queue()
    made = app(queue.pipeline)
    async with made.engine(store=SqliteStore(tmp_path / "runs.db")) as engine:
        await engine.submit_many(queue.pipeline, [f"a{n}" for n in range(10)])
        await engine.submit(queue.pipeline, "a10")
        await queue.gate.until(1)
        engine.abort()
    queue.gate.go.set()
    queue.inside = 0
    async with made.engine(store=SqliteStore(tmp_path / "runs.db")) as engine:
        await asyncio.wait_for(engine.idle(), 20)
        assert {info.status for info in await engine.list()} == {"succeeded"}
        assert (await engine.verify()).findings == ()
    assert queue.entered == ["a0", *(f"a{n}" for n in range(11))]
    assert queue.most == 1
