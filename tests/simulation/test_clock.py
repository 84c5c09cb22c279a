"""Virtual time: exact, immediate, the same every time; and the engine lives in it [R-4]."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from perdure import App, Invocation, Pipeline, Retry, Succeeded, step
from perdure.core.facts import OperationReserved, OperationRetryScheduled, OperationSucceeded
from perdure.runtime.info import RecordedFact
from perdure.storage.memory import MemoryStore
from perdure.testing.clock import EPOCH_US, Stuck, VirtualLoop, VirtualSystem, run_virtual

DAY_US = 86_400_000_000


@step("flaky/v1", retry=Retry(initial=10.0, factor=3.0, cap=3600.0, jitter=0.0))
async def flaky(inv: Invocation[str, object]) -> int:
    if inv.attempt < 4:
        raise OSError(f"not yet, {inv.input}")
    return inv.attempt


@step("threaded/v1")
def threaded(inv: Invocation[str, object]) -> str:
    return threading.current_thread().name


@step("slow/v1", timeout=timedelta(hours=2))
async def slow(inv: Invocation[str, object]) -> int:
    if inv.attempt == 1:
        await asyncio.get_running_loop().create_future()
    return inv.attempt


patient: Pipeline[str, object, int] = Pipeline(
    id="patient", input=str, deps=object, steps=(flaky, threaded, slow), output=lambda inv: inv[flaky]
)


async def patient_journal(system: VirtualSystem) -> list[RecordedFact]:
    async with App(patient.bind()).engine(store=MemoryStore(), system=system) as engine:
        run = await engine.submit(patient, "x", delay=timedelta(days=3))
        assert isinstance(await run.result(), Succeeded)
        return await run.journal()


def test_a_run_of_days_passes_at_once_at_exact_times() -> None:
    # delayed start, three backoffs of 10, 30 and 90 s, an attempt that times out after two hours.
    facts = run_virtual(patient_journal)
    reserved = [(f.fact.step, f.at_us - EPOCH_US) for f in facts if isinstance(f.fact, OperationReserved)]
    last = 3 * DAY_US + 130_000_000 + 7_200_000_000
    assert reserved[:6] == [
        ("flaky/v1", 3 * DAY_US),
        ("flaky/v1", 3 * DAY_US + 10_000_000),
        ("flaky/v1", 3 * DAY_US + 40_000_000),
        ("flaky/v1", 3 * DAY_US + 130_000_000),
        ("threaded/v1", 3 * DAY_US + 130_000_000),
        ("slow/v1", 3 * DAY_US + 130_000_000),
    ]
    retries = [f for f in facts if isinstance(f.fact, OperationRetryScheduled)]
    assert retries[-1].at_us - EPOCH_US == last
    assert isinstance(facts[-4].fact, OperationSucceeded)


def test_the_same_seed_gives_the_same_journal_and_another_seed_another() -> None:
    assert run_virtual(patient_journal, seed=1) == run_virtual(patient_journal, seed=1)
    assert run_virtual(patient_journal, seed=1) != run_virtual(patient_journal, seed=2)


def test_times_stay_exact_far_from_the_start() -> None:
    async def main(system: VirtualSystem) -> None:
        await system.sleep(timedelta(days=3_650))
        before_us = system.now_us()
        for _ in range(1000):
            await system.sleep(timedelta(microseconds=1))
        assert system.now_us() - before_us == 1000

    run_virtual(main, limit=timedelta(days=3_651))


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main(system: VirtualSystem) -> list[int]:
        order: list[int] = []
        loop = asyncio.get_running_loop()
        for delay in (5, 1, 4, 2, 3):
            loop.call_later(delay, order.append, delay)
        await system.sleep(6)
        return order

    assert run_virtual(main) == [1, 2, 3, 4, 5]


def test_a_deadlock_is_named_instead_of_hanging() -> None:
    async def waits_for_nobody(system: VirtualSystem) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck, match=r"no timer is set(?s:.)*test_clock\.py"):
        run_virtual(waits_for_nobody)


def test_an_engine_that_waits_for_ever_meets_the_limit() -> None:
    async def main(system: VirtualSystem) -> None:
        async with App(patient.bind()).engine(store=MemoryStore(), system=system) as engine:
            run = await engine.submit(patient, "x", delay=timedelta(days=30))
            await run.result()

    with pytest.raises(Stuck, match="ran past its limit of 864000 s"):
        run_virtual(main, limit=timedelta(days=10))


def test_callbacks_that_wake_each_other_for_ever_are_named() -> None:
    async def spins() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_soon(again)

        again()
        await loop.create_future()

    loop = VirtualLoop(patience=1_000)
    with (
        pytest.raises(Stuck, match=r"time stands still(?s:.)*test_clock\.py"),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        runner.run(spins())


def test_time_waits_for_threads() -> None:
    async def main(system: VirtualSystem) -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        gate = threading.Event()
        before_us = system.now_us()
        job = asyncio.ensure_future(asyncio.to_thread(gate.wait))
        loop.call_soon(gate.set)
        await job
        in_thread_us = system.now_us() - before_us
        await system.sleep(7)
        return in_thread_us, system.now_us() - before_us

    assert run_virtual(main) == (0, 7_000_000)


def test_a_clock_that_jumps_moves_the_wall_clock_and_no_timer() -> None:
    # times decide when, never who; timers of a process do not notice that its wall clock was set.
    async def main(system: VirtualSystem) -> tuple[int, int]:
        before_us = system.now_us()
        loop = asyncio.get_running_loop()
        started = loop.time()
        system.skew_us = 3_600_000_000
        await system.sleep(1)
        return system.now_us() - before_us, round((loop.time() - started) * 1_000_000)

    assert run_virtual(main) == (3_601_000_000, 1_000_000)


def test_ids_rise_and_differ_between_systems() -> None:
    loop = VirtualLoop()
    one, other = VirtualSystem(loop, 1), VirtualSystem(loop, 2)
    ids = [one.run_id() for _ in range(100)]
    assert sorted(set(ids)) == ids
    assert one.append_id() != other.append_id()
    assert one.worker_id() != other.worker_id()
    assert 0.0 <= one.chance() < 1.0
    loop.close()
