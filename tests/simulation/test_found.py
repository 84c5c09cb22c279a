"""What seeds of the simulation found in the engine, each as the shortest play that showed it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from perdure import App, Canceled, Invocation, NotAllowed, Pipeline, Succeeded, step
from perdure.core.facts import OperationReserved, OperationRetryScheduled
from perdure.core.journal import decode_facts
from perdure.core.projection import Projection, dump
from perdure.ports.store import Append
from perdure.storage.memory import MemoryStore
from perdure.testing.clock import VirtualSystem, run_virtual
from tests.simulation.stage import PATIENCE, Play, Scripted, found


def test_a_read_that_fails_while_a_handler_runs_does_not_fence_it() -> None:
    """R-8: it was fenced for nothing, reserved anew over its open attempt, and the run was quarantined."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        async with play.on() as (engine, client):
            run = await engine.submit(found, "x")
            await play.stage.started.wait()
            play.store.silent = 3
            await client.retry(run.id, actor="op")
            await system.sleep(5)
            play.stage.go.set()
            assert isinstance(await run.result(), Succeeded)
            assert play.stage.attempts == [1]

    run_virtual(main, patience=PATIENCE)


def test_a_claim_in_flight_does_not_make_the_claim_loop_run_hot() -> None:
    """R-7: while the store took its time, the run was still called due, and looked for without a pause."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        play.store.late = lambda append: (5.0, 0.0) if append.new is None else (0.0, 0.0)
        play.stage.go.set()
        async with play.on() as (engine, _client):
            run = await engine.submit(found, "x", delay=1.0)
            assert isinstance(await run.result(), Succeeded)

    run_virtual(main, patience=PATIENCE)


def test_a_release_in_flight_does_not_make_the_claim_loop_run_hot() -> None:
    """R-7: a backoff was over before its own append was acknowledged: due in the store, owned in the engine."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)

        def late(append: Append) -> tuple[float, float]:
            facts = decode_facts(append.run_id, append.first_seq, append.facts)
            return (0.0, 20.0) if isinstance(facts[0], OperationRetryScheduled) else (0.0, 0.0)

        play.store.late = late
        play.stage.go.set()
        async with play.on() as (engine, client):
            run = await engine.submit(found, "flaky")
            await system.sleep(5)
            await client.submit(found, "x", resource="two")  # makes the engine look for what is due
            assert isinstance(await run.result(), Succeeded)
            assert sorted(play.stage.attempts) == [1, 1, 2]

    run_virtual(main, patience=PATIENCE)


@pytest.mark.parametrize("awaits", [1, 2, 3])
def test_a_caller_that_is_gone_has_asked_all_the_same(awaits: int) -> None:
    """J-14, R-16: the cancel was durable, and the handler was not told of it because the caller was."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        async with play.on() as (engine, _client):
            run = await engine.submit(found, "x")
            await play.stage.started.wait()
            play.store.late = lambda append: (0.5, 0.0)
            caller = asyncio.ensure_future(engine.cancel(run.id, actor="op"))
            for _ in range(awaits):
                await asyncio.sleep(0)
            caller.cancel()
            with suppress(asyncio.CancelledError):
                await caller
            play.store.late = lambda append: (0.0, 0.0)
            await system.sleep(2)
            asked = [f for f in await run.journal() if type(f.fact).__name__ == "RunCancelRequested"]
            assert len(play.stage.stopped_s) == len(asked)
            play.stage.go.set()
            assert isinstance(await run.result(), Canceled if asked else Succeeded)

    run_virtual(main, patience=PATIENCE)


def test_a_submitter_that_is_gone_has_submitted_all_the_same() -> None:
    """J-14, R-16: the run was durable and due, and nobody looked for it before the next sweep."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        play.stage.go.set()
        async with play.on() as (engine, _client):
            play.store.late = lambda append: (0.5, 0.0)
            caller = asyncio.ensure_future(engine.submit(found, "x", delay=1.0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            caller.cancel()
            with suppress(asyncio.CancelledError):
                await caller
            play.store.late = lambda append: (0.0, 0.0)
            await system.sleep(3)
            assert play.stage.attempts == [1]

    run_virtual(main, patience=PATIENCE)


def test_a_memo_that_meets_a_resolution_ends_its_attempt_and_nothing_else() -> None:
    """M-15, R-17: the end of the resolved attempt was recorded once more, and the run was quarantined."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        async with play.on() as (engine, client):
            run = await engine.submit(found, "memo")
            await play.stage.started.wait()
            play.store.silent = 1  # the notice is read late
            await client.resolve(run.id, value="given", actor="op")
            play.stage.go.set()
            result = await run.result()
            assert isinstance(result, Succeeded)
            assert sum(isinstance(f.fact, OperationReserved) for f in await run.journal()) == 2

    run_virtual(main, patience=PATIENCE)


def test_a_memo_that_meets_a_cancel_tells_the_handler() -> None:
    """M-15, R-12: the memo read the cancel, so the notice found nothing new, and the handler ran on."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        async with play.on() as (engine, client):
            run = await engine.submit(found, "memo, then wait")
            await play.stage.started.wait()
            await client.cancel(run.id, actor="op")
            play.stage.go.set()
            assert isinstance(await run.result(timeout=10), Canceled)

    run_virtual(main, patience=PATIENCE)


def test_equal_projections_have_equal_snapshots() -> None:
    """J-11: sets were written in any order, and `verify` called a good snapshot different."""
    names = [f"step-{n}/v1" for n in range(50)]
    one, other = Projection("r"), Projection("r")
    one.passed.update(names)
    for name in reversed(names):
        other.passed.add(name)
    extra = [f"extra-{n}" for n in range(1_000)]
    other.passed.update(extra)
    other.passed.difference_update(extra)  # the set stays large, and goes through its members in another order
    assert dump(one) == dump(other)


def test_a_slot_that_is_freed_by_retention_while_it_is_looked_at_is_taken() -> None:
    """R-5, R-9: the holder ended and was removed meanwhile; the submission failed over a run that was gone."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        async with play.on() as (engine, client):
            first = await engine.submit(found, "x")
            await play.stage.started.wait()

            async def ended_and_collected() -> None:
                play.stage.go.set()
                await first.result()
                await system.sleep(10)
                assert (await client.gc(1.0)).removed == 1

            play.store.before_load = ended_and_collected
            second = await engine.submit(found, "y")
            assert second.created
            assert isinstance(await second.result(), Succeeded)

    run_virtual(main, patience=PATIENCE)


def test_a_value_for_a_run_that_cannot_go_on_is_refused_with_the_reason() -> None:
    """R-17, D-1: the operator was told to name the app, which was named."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        async with play.on() as (engine, _client):
            run = await engine.submit(found, "x")
            await play.stage.started.wait()
        other: Pipeline[str, object, str] = Pipeline(
            id="found", input=str, deps=object, steps=(alone,), output=lambda inv: inv[alone]
        )
        app = App(other.bind(), store="memory://")
        async with app.engine(store=MemoryStore(play.data), system=system) as engine:
            await system.sleep(1)
            with pytest.raises(NotAllowed, match=r"step 'wait/v1' is unresolved"):
                await engine.resolve(run.id, value="given", actor="op")

    run_virtual(main, patience=PATIENCE)


@step("alone/v1")
async def alone(inv: Invocation[str, object]) -> str:
    return inv.input


def test_a_run_that_is_due_again_before_its_release_is_acknowledged_is_taken_after_it() -> None:
    """R-16: the engine passed it over as its own, and looked again a minute after it had let go."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        async with play.on() as (engine, client):
            run = await engine.submit(found, "x")
            await play.stage.started.wait()
            await client.hold(run.id, actor="op")
            await system.sleep(1)
            play.store.late = lambda append: (0.0, 10.0)
            play.stage.go.set()
            await system.sleep(5)
            play.store.late = lambda append: (0.0, 0.0)
            await client.release(run.id, actor="op")
            assert isinstance(await run.result(timeout=6), Succeeded)

    run_virtual(main, patience=PATIENCE)


def test_no_handler_starts_for_a_reservation_that_lands_while_the_engine_stops() -> None:
    """R-6: it started after the others had been interrupted, and nobody told it to stop."""

    async def main(system: VirtualSystem) -> None:
        play = Play(system)
        async with play.on() as (engine, _client):
            await engine.submit(found, "x", delay=1.0)
            play.store.late = lambda append: (3.0, 0.0)
            await system.sleep(2)
            await engine.drain(0)
        assert play.stage.attempts == []
        play.stage.go.set()
        play.store = Scripted(play.data)
        async with play.on() as (engine, _client):
            (run,) = await engine.list()
            assert isinstance(await engine.result(run.run_id), Succeeded)
            assert play.stage.attempts == [2]

    run_virtual(main, patience=PATIENCE)
