"""Many workers on one store: leases, deaths that others find, claims that never meet [R-2, R-3, R-16]."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

import pytest

from perdure import Engine, StoreUnavailable, Succeeded, step
from perdure.core.facts import SegmentAttemptStarted
from perdure.ports.store import Append, AppendResult, LoadedRun, Serving, WaitingRuns, WorkerRow
from perdure.runtime.membership import DEFAULT_LEASE_S, RENEWALS
from perdure.storage.memory import MemoryData
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import SECOND_US, Gate, Inv, Line, Watched, World, app, facts, line, names, until, virtually

LEASE_S = DEFAULT_LEASE_S
BEAT_S = LEASE_S / RENEWALS


class Shared(World):
    """Memory on which any number of engines work, as on a server."""

    def __init__(self, system: VirtualSystem) -> None:
        super().__init__(system)
        self.data = MemoryData(shared=True)


class Mute(Watched):
    """Renewals do not reach the store while it is mute."""

    mute = False

    async def renew(self, worker: str, now_us: int, /, *, draining: bool = False) -> bool:
        if self.mute:
            raise StoreUnavailable("no answer")
        return await super().renew(worker, now_us, draining=draining)


class Blind(Watched):
    """Reads of other workers fail while it is blind."""

    blind = False

    async def workers(self) -> Sequence[WorkerRow]:
        if self.blind:
            raise StoreUnavailable("no answer")
        return await super().workers()


def mute(world: World, which: int) -> Mute:
    """The store of an engine."""
    store = world.stores[which]
    assert isinstance(store, Mute)
    return store


def gated(gate: Gate, done: list[str] | None = None) -> Line:
    """Two steps; the first waits at the gate, the second notes the run."""

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()

    @step("two/v1")
    async def two(inv: Inv) -> None:
        if done is not None:
            done.append(inv.run_id)

    return line(one, two)


async def nothing_done(inv: Inv) -> None:
    """A step of another app."""


def owners(journal: Sequence[object]) -> list[str]:
    """Who claimed a run, in order."""
    return [fact.worker for fact in journal if isinstance(fact, SegmentAttemptStarted)]


@virtually
async def test_two_workers_share_the_work_and_do_nothing_twice(system: VirtualSystem) -> None:
    """Each run has one owner at a time, whoever picks it [R-1, R-2]."""
    effects: Counter[str] = Counter()
    workers: Counter[str] = Counter()

    @step("one/v1")
    async def one(inv: Inv) -> None:
        effects[inv.run_id] += 1
        await system.sleep(0.05)

    pipeline = line(one)
    world = Shared(system)
    async with (
        world.engine(app(pipeline), concurrency=4),
        world.engine(app(pipeline), concurrency=4),
        world.client(app(pipeline)) as client,
    ):
        runs = [await client.submit(pipeline, str(n)) for n in range(60)]
        for run in runs:
            assert isinstance(await run.result(timeout=60), Succeeded)
            workers.update(owners(await facts(run)))
        assert (await client.verify()).findings == ()
    assert set(effects.values()) == {1}
    assert len(workers) == 2
    assert min(workers.values()) > 15
    assert world.data.workers == {}


@virtually
async def test_what_a_killed_worker_had_goes_on_within_two_leases(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease ends, another buries it and takes over; the attempt was lost [R-3, M-17]."""
    gate = Gate()
    pipeline = gated(gate)
    world = Shared(system)
    async with world.engine(app(pipeline)) as first:
        run = await first.submit(pipeline, "x")
        await gate.reached.wait()
        async with world.engine(app(pipeline)) as second:
            killed_us = system.now_us()
            first.abort()
            gate.go.set()
            async with world.client(app(pipeline)) as client:
                assert isinstance(await (await client.run(run.id)).result(timeout=60), Succeeded)
                assert owners(await facts(await client.run(run.id))) == [first.worker, second.worker]
                assert LEASE_S * SECOND_US <= system.now_us() - killed_us <= 2 * LEASE_S * SECOND_US
            assert [row.dead for row in await world.stores[-1].workers()] == [True, False]
    assert any("has been silent for 15 s" in record.getMessage() for record in caplog.records)


@virtually
async def test_a_worker_that_stops_leaves_at_once(system: VirtualSystem) -> None:
    """In good order it takes its row away, and what it had is due: nobody waits for its lease [R-6, R-16]."""
    gate = Gate()
    pipeline = gated(gate)
    world = Shared(system)
    async with world.engine(app(pipeline)) as second:
        async with world.engine(app(pipeline), drain_timeout=0) as first:
            run = await first.submit(pipeline, "x")
            await gate.reached.wait()
            before_us = system.now_us()
        gate.go.set()
        async with world.client(app(pipeline)) as client:
            assert isinstance(await (await client.run(run.id)).result(timeout=60), Succeeded)
        assert system.now_us() - before_us < 2 * SECOND_US
        assert [row.id for row in await world.stores[0].workers()] == [second.worker]


@virtually
async def test_a_silent_worker_begins_nothing_and_commits_nothing(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """Its renewals fail while it runs: past its lease no effect starts; found dead, it is another worker, and what it
    had is others' [R-3, J-3].
    """
    gate, started = Gate(), list[tuple[str, str]]()

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()

    @step("two/v1")
    async def two(inv: Inv) -> None:
        started.append((inv.run_id, "two"))

    pipeline = line(one, two)
    world = Shared(system)
    async with world.engine(app(pipeline), around=Mute) as first, world.engine(app(pipeline), concurrency=1) as second:
        former = first.worker
        runs = [await first.submit(pipeline, str(n)) for n in range(5)]
        await gate.until(5)
        mute(world, 0).mute = True
        await system.sleep(LEASE_S * 0.9)  # over for the worker, and nobody has buried it yet
        commits = world.data.commits
        gate.go.set()
        await system.sleep(BEAT_S / 10)
        assert started == []
        assert world.data.commits == commits
        await system.sleep(LEASE_S)
        mute(world, 0).mute = False
        for run in runs:
            assert isinstance(await run.result(timeout=600), Succeeded)
            claims = owners(await facts(run))
            assert claims[0] == former
            assert len(claims) == 2
        assert first.worker != former
        assert second.worker in {owners(await facts(run))[-1] for run in runs}
        assert (await first.verify()).findings == ()
    assert Counter(started) == {(run.id, "two"): 1 for run in runs}
    assert any("was found dead by another" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("many", [1, 3])
@virtually
async def test_a_late_success_of_a_silent_worker_counts_if_nobody_buried_it(system: VirtualSystem, many: int) -> None:
    """It waits for a renewal; as soon as that succeeds what it did is recorded, and nothing is done again [R-3].

    So it is for every run of it, whoever waited last.
    """
    gate = Gate()
    pipeline = gated(gate)
    world = Shared(system)
    async with world.engine(app(pipeline), around=Mute) as only:
        runs = [await only.submit(pipeline, str(n)) for n in range(many)]
        await gate.until(many)
        mute(world, 0).mute = True
        await system.sleep(2 * LEASE_S)
        gate.go.set()
        await system.sleep(LEASE_S)
        assert {(await run.info()).status for run in runs} == {"running"}
        mute(world, 0).mute = False
        for run in runs:
            assert isinstance(await run.result(timeout=60), Succeeded)
            assert len(owners(await facts(run))) == 1
    assert gate.passes == many


@virtually
async def test_a_store_that_stalls_kills_nobody(system: VirtualSystem, caplog: pytest.LogCaptureFixture) -> None:
    """Where nobody can renew, everybody looks silent; only time in which one's own renewals succeeded counts [R-3]."""
    gate = Gate()
    pipeline = gated(gate)
    world = Shared(system)
    async with world.engine(app(pipeline), around=Mute) as first, world.engine(app(pipeline), around=Mute):
        run = await first.submit(pipeline, "x")
        await gate.reached.wait()
        for which in (0, 1):
            mute(world, which).mute = True
        await system.sleep(10 * LEASE_S)
        for which in (1, 0):
            mute(world, which).mute = False
        gate.go.set()
        assert isinstance(await run.result(timeout=60), Succeeded)
        await system.sleep(10 * LEASE_S)
        assert not any(row.dead for row in world.data.workers.values())
    assert not any("dead" in record.getMessage() for record in caplog.records)


@virtually
async def test_a_store_that_does_not_answer_is_told_of_once_a_minute(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked several times a second; the log says so once, and again when it happens anew [R-3]."""
    world = Shared(system)
    async with world.engine(app(gated(Gate())), around=Mute):
        for _ in range(2):
            mute(world, 0).mute = True
            await system.sleep(90)
            mute(world, 0).mute = False
            await system.sleep(LEASE_S)
    assert sum("could not renew" in record.getMessage() for record in caplog.records) == 4


@virtually
async def test_who_has_renewed_its_lease_does_not_say_otherwise(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """The renewal succeeded, and what comes after it failed: the worker works on, and says what failed [R-3]."""
    world = Shared(system)
    gate = Gate()
    gate.go.set()
    pipeline = gated(gate)
    async with world.engine(app(pipeline), around=Blind) as engine:
        store = world.stores[0]
        assert isinstance(store, Blind)
        store.blind = True
        await system.sleep(2 * LEASE_S)
        assert isinstance(await (await engine.submit(pipeline, "x")).result(timeout=60), Succeeded)
    said = [text for record in caplog.records if (text := record.getMessage()).startswith("worker")]
    assert [f"worker {engine.worker} renewed its lease, but could not look after the others: no answer"] == said


@virtually
async def test_a_run_that_was_picked_and_is_not_claimed_yet_is_in_order(system: VirtualSystem) -> None:
    """Its worker claims it, or dies and leaves it to others: `verify` finds nothing in it [J-11, R-3]."""
    pipeline = gated(Gate())
    world = Shared(system)
    async with world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x")
        world.data.pick(run.id, "w1")
        assert (await client.verify()).findings == ()


@virtually
async def test_a_row_deleted_by_hand_is_a_death(system: VirtualSystem) -> None:
    """The worker goes on with a new identity, and its runs are done once more from where they were [R-3]."""
    gate = Gate()
    pipeline = gated(gate)
    world = Shared(system)
    async with world.engine(app(pipeline)) as engine:
        former = engine.worker
        run = await engine.submit(pipeline, "x")
        await gate.reached.wait()
        del world.data.workers[former]
        await gate.until(2)
        gate.go.set()
        assert isinstance(await run.result(timeout=60), Succeeded)
        assert engine.worker != former
        assert list(world.data.workers) == [engine.worker]
        assert owners(await facts(run)) == [former, engine.worker]


@virtually
async def test_what_is_submitted_by_the_dead_is_anybodys(system: VirtualSystem) -> None:
    """Until it hears of its death, a worker begins nothing of what it submits, and the submission counts: nobody does
    beside it what others may take from it at any moment [R-3, R-1].
    """
    started: list[str] = []

    @step("one/v1")
    async def one(inv: Inv) -> None:
        started.append(inv.run_id)
        await system.sleep(30)

    pipeline = line(one)
    world = Shared(system)
    async with world.engine(app(pipeline)) as first, world.engine(app(pipeline)) as second:
        former = first.worker
        del world.data.workers[former]
        run = await first.submit(pipeline, "x")
        assert run.created
        assert isinstance(await run.result(timeout=600), Succeeded)
        (owner,) = owners(await facts(run))
        assert owner != former
        assert owner in (first.worker, second.worker)
    assert started == [run.id]


@virtually
async def test_a_worker_that_is_refused_looks_whether_it_lives(system: VirtualSystem) -> None:
    """It does not wait for its next renewal to hear of its death, nor for another to make due what it had [R-3, R-16].

    The runs: one is submitted by it, one by another and picked by it, one was begun.
    """
    gate = Gate()
    pipeline = gated(gate)
    world = Shared(system)
    for submits in (True, False):
        async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
            await system.sleep(BEAT_S / 2)
            gate.go.clear()
            begun = await engine.submit(pipeline, "x")
            await gate.reached.wait()
            former, before_us = engine.worker, system.now_us()
            del world.data.workers[former]
            gate.go.set()
            run = await (engine if submits else client).submit(pipeline, "y")
            for each in (run, begun):
                assert isinstance(await each.result(timeout=600), Succeeded)
            assert system.now_us() - before_us < 2 * SECOND_US
            assert engine.worker != former
            assert owners(await facts(run)) == [engine.worker]


@virtually
async def test_a_worker_whose_judgement_is_refused_looks_whether_it_lives(system: VirtualSystem) -> None:
    """It does not judge the same run again and again until its next renewal [R-3, D-2]."""

    def broken(_inv: Inv) -> bool:
        raise ValueError("no")

    @step("one/v1", when=broken)
    async def one(inv: Inv) -> None: ...

    pipeline = line(one)
    world = Shared(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x")
        await until(run, "invalid")
        former, before = engine.worker, world.data.commits
        del world.data.workers[former]
        await client.retry(run.id, actor="ada")
        await system.sleep(SECOND_US / 1_000_000)
        assert engine.worker != former
        assert (await run.info()).status == "invalid"
        assert world.data.commits - before < 20


class Buggy(Watched):
    """Does not take what an owner appends while it has its bug."""

    bug = False

    def append(self, append: Append, /) -> asyncio.Future[AppendResult]:
        if self.bug and append.token:
            raise RuntimeError("a bug")
        return super().append(append)


@virtually
async def test_a_worker_that_may_not_let_go_of_a_run_looks_whether_it_lives(system: VirtualSystem) -> None:
    """Something unexpected happened to the run, and the worker was found dead meanwhile [R-3, R-16]."""
    gate = Gate()
    pipeline = gated(gate)
    world = Shared(system)
    async with world.engine(app(pipeline), around=Buggy) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.reached.wait()
        former, store = engine.worker, world.stores[0]
        assert isinstance(store, Buggy)
        del world.data.workers[former]
        store.bug = True
        gate.go.set()
        await system.sleep(1)
        assert engine.worker != former
        store.bug = False
        assert isinstance(await run.result(timeout=60), Succeeded)


class Forgetful(Watched):
    """The answers to the first picks are lost."""

    lost = 2

    async def pick(self, worker: str, now_us: int, limit: int, turn: int, serving: Serving, /) -> Sequence[str]:
        picked = await super().pick(worker, now_us, limit, turn, serving)
        if picked and self.lost:
            self.lost -= 1
            raise StoreUnavailable("the answer was lost")
        return picked

    async def load_many(self, run_ids: Sequence[str], /) -> Sequence[LoadedRun]:
        if self.lost:
            self.lost -= 1
            raise StoreUnavailable("no answer")
        return await super().load_many(run_ids)


@virtually
async def test_what_was_picked_and_not_heard_of_is_given_back(system: VirtualSystem) -> None:
    """A run that the store calls this worker's and that it does not know is due again within a lease [R-16]."""
    pipeline = gated(opened := Gate())
    opened.go.set()
    world = Shared(system)
    async with world.engine(app(pipeline), around=Forgetful) as engine:
        run = await engine.submit(pipeline, "x", delay=1)
        assert isinstance(await run.result(timeout=1 + LEASE_S), Succeeded)
        assert await names(run) == [
            "RunSubmitted",
            "SegmentAttemptStarted",
            "OperationReserved",
            "OperationSucceeded",
            "OperationReserved",
            "OperationSucceeded",
            "SegmentCompleted",
            "OutcomeCommitted",
            "RunSucceeded",
        ]


@virtually
async def test_what_is_being_picked_is_not_given_back(system: VirtualSystem, caplog: pytest.LogCaptureFixture) -> None:
    """However long a pick lasts: its runs are this worker's, which will know them when it has ended [R-16]."""

    class Slow(Watched):
        """What was picked is read for so long that its worker renews its lease several times meanwhile."""

        async def load_many(self, run_ids: Sequence[str], /) -> Sequence[LoadedRun]:
            await system.sleep(LEASE_S)
            return await super().load_many(run_ids)

    pipeline = gated(opened := Gate())
    opened.go.set()
    world = Shared(system)
    async with world.engine(app(pipeline), around=Slow) as engine:
        run = await engine.submit(pipeline, "x", delay=1)
        assert isinstance(await run.result(timeout=4 * LEASE_S), Succeeded)
    assert [text for record in caplog.records if "unknown" in (text := record.getMessage())] == []


@virtually
async def test_a_run_of_another_apps_pipeline_waits_for_a_worker_that_has_it(system: VirtualSystem) -> None:
    """It is nobody's to judge here: another worker may come [D-1, R-16]."""
    gate = Gate()
    gate.go.set()
    there = gated(gate)
    here = line(step("nothing/v1")(nothing_done), id="here")
    world = Shared(system)
    async with world.engine(app(here)), world.client(app(there)) as client:
        run = await client.submit(there, "x")
        await system.sleep(100)
        assert (await run.info()).status == "ready"
        async with world.engine(app(there)):
            assert isinstance(await run.result(timeout=60), Succeeded)


@virtually
async def test_facts_from_outside_reach_the_worker_that_owns_the_run(system: VirtualSystem) -> None:
    """A cancel by a client stops the handler of whichever worker has it [R-12, J-6]."""
    gate = Gate()
    pipeline = gated(gate)
    world = Shared(system)
    async with world.engine(app(pipeline)) as first, world.engine(app(pipeline)):
        run = await first.submit(pipeline, "x")
        await gate.reached.wait()
        async with world.client(app(pipeline)) as client:
            await client.cancel(run.id)
            await until((await client.run(run.id)), "canceled")


@pytest.mark.parametrize("many", [1, 3])
@virtually
async def test_an_engine_is_idle_beside_others(system: VirtualSystem, many: int) -> None:
    """`idle` waits for what this worker serves, and for nothing else."""
    gate = Gate()
    gate.go.set()
    pipeline = gated(gate)
    world = Shared(system)
    engines: list[Engine] = []

    async def another(left: int) -> None:
        async with world.engine(app(pipeline)) as engine:
            engines.append(engine)
            if left:
                await another(left - 1)
                return
            run = await engine.submit(pipeline, "x")
            for one in engines:
                await one.idle()
            assert (await run.info()).status == "succeeded"

    await another(many - 1)


def test_rows_of_workers_say_who_they_are() -> None:
    """The record's own text names host and process, for whoever prints it."""
    assert "process=7" in repr(WorkerRow("w1", "host", 7, 0))


assert logging


@virtually
async def test_what_is_looked_after_as_the_engine_stops_is_no_trouble(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is closed under a look at those who wait: nobody is told that it is tried again [R-6]."""
    started, looking, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Closing(Watched):
        async def waiting_runs(self) -> WaitingRuns:
            if not started.is_set():
                return await super().waiting_runs()
            looking.set()
            await closed.wait()
            raise StoreUnavailable("the store is closed")

        async def close(self) -> None:
            closed.set()
            await system.sleep(0.01)
            await super().close()

    world = Shared(system)
    async with world.engine(app(gated(Gate())), around=Closing):
        started.set()
        while not looking.is_set():
            await system.sleep(1)
    assert [text for record in caplog.records if "again" in (text := record.getMessage())] == []
