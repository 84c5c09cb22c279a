"""Operators: holding pipelines, giving runs up, many runs at once, and all that they cannot mean [R-17, D-7]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    Fail,
    Failed,
    InvalidArgument,
    KeyTaken,
    NotAllowed,
    NotFound,
    PayloadError,
    Retry,
    Run,
    Succeeded,
    UnwindInvocation,
    step,
)
from perdure.core.facts import RunAbandoned
from perdure.runtime.operations import (
    AbandonRun,
    CancelRun,
    HoldRun,
    ReleaseRun,
    ResolveRun,
    RetryRun,
    RunOperation,
    Selector,
)
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Events, Gate, Inv, World, app, facts, line, names, until, virtually

ONCE = Retry(max_attempts=1)


def itself(text: str) -> str:
    return text


@step("work")
async def work(inv: Inv) -> None:
    """Works."""


@step("more")
async def more(inv: Inv) -> None:
    """Works."""


async def undo(inv: UnwindInvocation[str, object], state: str) -> None:
    """Undoes."""


@step("book", unwind=undo)
async def book(inv: Inv) -> str:
    return "seat"


@step("breaks", retry=ONCE)
async def breaks(inv: Inv) -> int:
    raise OSError("no line")


# --- pipelines --------------------------------------------------------------------------------------------------------


@virtually
async def test_a_held_pipeline_starts_nothing_and_goes_on_when_released(system: VirtualSystem) -> None:
    """R-17: what runs ends, the next attempt does not start, new runs are accepted and wait; others go on."""
    gate = Gate()

    @step("first")
    async def first(inv: Inv) -> None:
        await gate()

    held, free = line(first, more), line(work, id="free")
    world = World(system)
    async with world.engine(app(held, free)) as engine:
        running = await engine.submit(held, "a")
        await gate.reached.wait()
        assert await engine.hold_pipeline("line", note="bank down", actor="ada")
        assert not await engine.hold_pipeline("line", actor="bob")
        gate.go.set()
        await until(running, "ready")
        waiting = await engine.submit(held, "b")
        await engine.idle()
        assert "OperationSucceeded" in await names(running)
        assert await names(waiting) == ["RunSubmitted"]
        assert isinstance(await (await engine.submit(free, "c")).result(), Succeeded)
        (hold,) = await engine.pipeline_holds()
        assert (hold.pipeline, hold.actor, hold.note) == ("line", "ada", "bank down")
        await engine.release_pipeline("line", actor="eve", note="bank up")
        assert isinstance(await running.result(), Succeeded)
        assert isinstance(await waiting.result(), Succeeded)
        assert await engine.pipeline_holds() == []
        (record,) = await engine.pipeline_holds(history=True)
        assert (record.released_by, record.release_note) == ("eve", "bank up")
        assert await names(running) == [
            "RunSubmitted", "SegmentAttemptStarted", "OperationReserved", "OperationSucceeded",
            "SegmentAttemptStarted", "OperationReserved", "OperationSucceeded",
            "SegmentCompleted", "OutcomeCommitted", "RunSucceeded",
        ]  # fmt: skip


@virtually
async def test_a_hold_outlives_the_engine(system: VirtualSystem) -> None:
    """R-17: durable; an engine that starts claims nothing of a held pipeline, and does not spin."""
    pipeline, world = line(work), World(system)
    async with world.engine(app(pipeline)) as engine:
        await engine.hold_pipeline("line")
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "a")
        await engine.idle()
        await system.sleep(3600)
        assert await names(run) == ["RunSubmitted"]
        assert world.stores[-1].calls["due"] < 100
    async with world.client(app(pipeline)) as client:
        await client.release_pipeline("line")
    async with world.engine(app(pipeline)) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)


@virtually
async def test_a_client_beside_holds_a_pipeline(system: VirtualSystem) -> None:
    """R-17, R-2: the engine is told by the store; the running attempt is its last."""
    gate = Gate()

    @step("first")
    async def first(inv: Inv) -> None:
        await gate()

    pipeline, world = line(first, more), World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        run = await engine.submit(pipeline, "a")
        await gate.reached.wait()
        await client.hold_pipeline("line")
        await system.sleep(0.1)
        gate.go.set()
        await until(run, "ready")
        await engine.idle()
        assert (await names(run))[-1] == "OperationSucceeded"
        await client.release_pipeline("line")
        assert isinstance(await run.result(), Succeeded)


async def test_another_process_holds_within_a_moment(tmp_path: Path) -> None:
    """R-17 on SQLite: two connections to one file, real time."""
    gate = Gate()

    @step("first")
    async def first(inv: Inv) -> None:
        await gate()

    pipeline = line(first, more)
    application = App(pipeline.bind(), store=f"sqlite:///{tmp_path}/store.db")
    async with application.engine() as engine, application.client() as client:
        run = await engine.submit(pipeline, "a")
        await gate.reached.wait()
        changed = asyncio.Event()
        engine.store.on_change(lambda change: changed.set())
        await client.hold_pipeline("line")
        await asyncio.wait_for(changed.wait(), 60)
        await engine.store.pipeline_holds()  # read behind the engine's own look
        gate.go.set()
        await until(run, "ready")
        assert (await names(run))[-1] == "OperationSucceeded"
        await client.release_pipeline("line")
        assert isinstance(await run.result(60), Succeeded)


@virtually
async def test_a_cancel_in_a_held_pipeline_acts_at_its_release(system: VirtualSystem) -> None:
    pipeline, world = line(work), World(system)
    async with world.engine(app(pipeline)) as engine:
        await engine.hold_pipeline("line")
        run = await engine.submit(pipeline, "a")
        await run.cancel()
        await engine.idle()
        assert not (await run.info()).ended
        await engine.release_pipeline("line")
        result = await run.result()
        assert not isinstance(result, Succeeded)
        assert result.failure.kind == "canceled"


@virtually
async def test_pipelines_that_are_not_there_are_not_held(system: VirtualSystem) -> None:
    world = World(system)
    async with world.engine(app(line(work))) as engine:
        with pytest.raises(NotFound, match="was ever deployed"):
            await engine.hold_pipeline("lien")
        with pytest.raises(NotAllowed, match="not held"):
            await engine.release_pipeline("line")
        with pytest.raises(InvalidArgument):
            await engine.hold_pipeline("")


# --- abandon ----------------------------------------------------------------------------------------------------------


async def invalid_run(world: World, *, resource: str = "r") -> Run[Any]:
    """A run whose started step is gone."""
    old = line(book, breaks, resource=itself)
    async with world.engine(app(old)) as engine:
        run = await engine.submit(old, resource)
        await until(run, "held")
        await run.retry()
        await until(run, "held")
    return run


@virtually
async def test_a_run_that_stays_invalid_is_given_up(system: VirtualSystem) -> None:
    """D-7: failed, kind abandoned, nothing called, the lists filled, the slot free, who and why in the journal."""
    world = World(system)
    old = await invalid_run(world)
    new, events = line(book, more, resource=itself), Events()
    async with world.engine(app(new), observers=[events]) as engine:
        run = await engine.run(old.id)
        await run.retry()
        await until(run, "invalid")
        await run.abandon(note="nobody needs it", actor="ada")
        result = await run.result()
        assert isinstance(result, Failed)
        assert (result.failure.kind, result.failure.step) == ("abandoned", "breaks")
        assert (result.in_doubt, result.uncompensated) == (("breaks",), ("book",))
        info = await run.info()
        assert (info.status, info.reason, info.due_us) == ("failed", "abandoned", None)
        (abandoned,) = [fact for fact in await facts(run) if isinstance(fact, RunAbandoned)]
        assert (abandoned.actor, abandoned.note) == ("ada", "nobody needs it")
        assert (await engine.submit(new, "r")).created
        with pytest.raises(KeyTaken):
            await run.abandon()
        assert (await engine.verify()).findings == ()
        assert (events.kinds().count("failed"), events.kinds().count("uncompensated")) == (1, 1)


@virtually
async def test_only_invalid_runs_are_given_up_unless_forced(system: VirtualSystem) -> None:
    gate = Gate()

    @step("slow")
    async def slow(inv: Inv) -> None:
        await gate()

    pipeline, world = line(slow), World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "a")
        await gate.reached.wait()
        for force in (False, True):
            with pytest.raises(NotAllowed, match="is executing it"):
                await run.abandon(force=force)
        later = await engine.submit(pipeline, "b", delay=60)
        with pytest.raises(NotAllowed, match="not invalid"):
            await later.abandon()
        await later.abandon(force=True)
        assert (await later.info()).reason == "abandoned"
        gate.go.set()
        assert isinstance(await run.result(), Succeeded)
        with pytest.raises(NotFound):
            await engine.abandon("nowhere")


@virtually
async def test_a_run_of_a_pipeline_nobody_has_is_given_up(system: VirtualSystem) -> None:
    """D-1, D-7: submitted, and the pipeline was never deployed here."""
    world, gone = World(system), line(work, id="gone")
    async with world.client(app(gone)) as client:
        run = await client.submit(gone, "a")
    async with world.engine(app(line(work))) as engine:
        found = await engine.run(run.id)
        await until(found, "invalid")
        await found.abandon(actor="ada")
        assert (await found.info()).status == "failed"


# --- many runs --------------------------------------------------------------------------------------------------------


async def crowd(engine: Client, system: VirtualSystem) -> dict[str, Run[Any]]:
    """Held, waiting, and ended runs of two pipelines."""
    runs: dict[str, Run[Any]] = {}
    for name in ("h1", "h2"):
        runs[name] = await engine.submit(LINE, name)
        await until(runs[name], "held")
    runs["w1"] = await engine.submit(OTHER, "w1", delay=3600)
    runs["done"] = await engine.submit(OTHER, "done")
    await runs["done"].result()
    return runs


LINE, OTHER = line(book, breaks, resource=itself), line(work, id="other", resource=itself)


@virtually
async def test_a_selector_chooses_by_everything_given(system: VirtualSystem) -> None:
    async with World(system).engine(app(LINE, OTHER)) as engine:
        runs = await crowd(engine, system)
        await system.sleep(100)
        runs["h3"] = await engine.submit(LINE, "h3")
        await until(runs["h3"], "held")
        by_id = {run.id: name for name, run in runs.items()}

        async def chosen(selector: Selector) -> set[str]:
            return {by_id[v.run_id] for v in await engine.each(selector, RetryRun(), dry_run=True)}

        assert await chosen(Selector(pipeline="line")) == {"h1", "h2", "h3"}
        assert await chosen(Selector(pipeline="other")) == {"w1"}
        assert await chosen(Selector(statuses=("held",), step="breaks")) == {"h1", "h2", "h3"}
        assert await chosen(Selector(step="book")) == set()
        assert await chosen(Selector(reason="attempts-exhausted")) == {"h1", "h2", "h3"}
        assert await chosen(Selector(pipeline="line", older_than=99)) == {"h1", "h2"}
        assert await chosen(Selector(resource="h2")) == {"h2"}
        assert await chosen(Selector(statuses=("succeeded",))) == {"done"}
        assert await chosen(Selector(tenant="acme")) == set()


@virtually
async def test_a_dry_run_writes_nothing_and_says_what_would_be(system: VirtualSystem) -> None:
    async with World(system).engine(app(LINE, OTHER)) as engine:
        runs = await crowd(engine, system)
        before = {name: await names(run) for name, run in runs.items()}
        selector = Selector(statuses=("held", "ready", "succeeded"))
        dry = {v.run_id: v.verdict for v in await engine.each(selector, ReleaseRun(), dry_run=True)}
        assert {name: await names(run) for name, run in runs.items()} == before
        assert {name: dry[run.id] for name, run in runs.items()} == {
            "h1": "done", "h2": "done", "w1": "refused", "done": "refused"
        }  # fmt: skip


@virtually
async def test_each_run_has_a_verdict_and_none_hurts_another(system: VirtualSystem) -> None:
    """R-17: done, duplicate, refused with the reason; actor and note in every journal."""
    async with World(system).engine(app(LINE, OTHER)) as engine:
        runs = await crowd(engine, system)
        await runs["w1"].hold(actor="bob")
        seen: list[int] = []
        verdicts = await engine.each(
            Selector(statuses=("held", "succeeded")), HoldRun("audit", "as told", "ada"), progress=seen.append
        )
        said = {v.run_id: (v.verdict, v.detail) for v in verdicts}
        assert said[runs["h1"].id] == said[runs["h2"].id] == ("done", "")
        assert said[runs["w1"].id] == ("duplicate", "")
        assert said[runs["done"].id] == ("refused", "the run has ended")
        assert seen == [4]
        assert [v.status for v in verdicts if v.run_id == runs["done"].id] == ["succeeded"]
        held = (await facts(runs["h1"]))[-1]
        assert (getattr(held, "actor", ""), getattr(held, "note", "")) == ("ada", "as told")


@virtually
async def test_many_are_resolved_canceled_and_given_up(system: VirtualSystem) -> None:
    async with World(system).engine(app(LINE, OTHER)) as engine:
        runs = await crowd(engine, system)
        one = await engine.each(Selector(resource="h1"), ResolveRun(value=7, note="by telephone", actor="ada"))
        assert [v.verdict for v in one] == ["done"]
        assert isinstance(await runs["h1"].result(), Succeeded)
        (wrong,) = await engine.each(Selector(resource="h2"), ResolveRun(value="seven"))
        assert (wrong.verdict, "int" in wrong.detail) == ("refused", True)
        (refused,) = await engine.each(Selector(resource="h2"), AbandonRun())
        assert "not invalid" in refused.detail
        (given_up,) = await engine.each(Selector(resource="h2"), AbandonRun(force=True))
        assert given_up.verdict == "done"
        await engine.each(Selector(pipeline="other"), CancelRun("closing", "ada"))
        result = await runs["w1"].result()
        assert isinstance(result, Succeeded) is False
        assert (await runs["w1"].info()).reason == "closing"


@virtually
async def test_more_than_a_page_of_runs(system: VirtualSystem) -> None:
    async with World(system).engine(app(OTHER)) as engine:
        await asyncio.gather(*(engine.submit(OTHER, f"r{n}", delay=3600) for n in range(450)))
        seen: list[int] = []
        verdicts = await engine.each(Selector(pipeline="other"), HoldRun(), progress=seen.append)
        assert len({v.run_id for v in verdicts}) == 450
        assert seen == [200, 400, 450]
        assert len(await engine.each(Selector(statuses=("held",)), ReleaseRun())) == 450


@pytest.mark.parametrize(
    "operation",
    [
        HoldRun("no word\x00"),
        ReleaseRun("x" * 5000),
        RetryRun(actor="\x00"),
        ResolveRun(),
        ResolveRun(skip=True, fail="x"),
    ],
    ids=lambda operation: type(operation).__name__,
)
@virtually
async def test_what_cannot_be_meant_is_refused_before_anything(system: VirtualSystem, operation: RunOperation) -> None:
    async with World(system).engine(app(OTHER)) as engine:
        run = await engine.submit(OTHER, "a", delay=60)
        with pytest.raises(InvalidArgument):
            await engine.each(Selector(pipeline="other"), operation)
        with pytest.raises(InvalidArgument, match="every run"):
            await engine.each(Selector(), HoldRun())
        assert await names(run) == ["RunSubmitted"]


# --- what operators get wrong -----------------------------------------------------------------------------------------


@virtually
async def test_resolving_with_a_value_of_the_wrong_type(system: VirtualSystem) -> None:
    async with World(system).engine(app(LINE)) as engine:
        run = await engine.submit(LINE, "a")
        await until(run, "held")
        before = await names(run)
        with pytest.raises(PayloadError, match="int"):
            await run.resolve("breaks", value="seven")
        assert await names(run) == before


@virtually
async def test_resolving_a_running_attempt_fences_it(system: VirtualSystem) -> None:
    """R-17: what the handler returns no longer counts."""
    gate = Gate()

    @step("slow")
    async def slow(inv: Inv) -> int:
        await gate()
        return 1

    pipeline = line(slow)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "a")
        await gate.reached.wait()
        await run.resolve("slow", value=2, actor="ada")
        assert isinstance(await run.result(), Succeeded)
        assert [name for name in await names(run) if name.startswith("Operation")] == [
            "OperationReserved", "OperationResolved"
        ]  # fmt: skip


@virtually
async def test_resolving_what_has_ended(system: VirtualSystem) -> None:
    async with World(system).engine(app(OTHER)) as engine:
        run = await engine.submit(OTHER, "a")
        await run.result()
        with pytest.raises(KeyTaken):
            await run.resolve(value=None)


@virtually
async def test_a_hold_while_unwinding(system: VirtualSystem) -> None:
    """R-17, U-11: the unwind attempt that runs ends, the next does not start before the release."""
    gate = Gate()

    async def slowly(inv: UnwindInvocation[str, object], state: None) -> None:
        await gate()

    @step("second", unwind=slowly)
    async def second(inv: Inv) -> None:
        """Works."""

    @step("fails")
    async def fails(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(book, second, fails)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "a")
        await gate.reached.wait()
        await run.hold(actor="ada")
        gate.go.set()
        await until(run, "held")
        await engine.idle()
        assert (await names(run)).count("OperationSucceeded") == 3
        await run.release()
        result = await run.result()
        assert isinstance(result, Failed)
        assert result.uncompensated == ()


@virtually
async def test_two_operators_at_once(system: VirtualSystem) -> None:
    """J-5, J-6: one word counts; the other is told, whichever comes first, and nothing is half done."""
    world = World(system)
    async with world.engine(app(LINE)) as engine, world.client(app(LINE)) as other:
        run = await engine.submit(LINE, "a")
        await until(run, "held")
        answers = await asyncio.gather(
            run.resolve("breaks", value=1, actor="ada"),
            other.resolve(run.id, "breaks", skip=True, actor="bob"),
            other.resolve(run.id, "breaks", fail="no", actor="eve"),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers].count(type(None)) == 1
        assert {type(answer) for answer in answers} <= {type(None), NotAllowed, KeyTaken}
        await run.result()
        assert (await names(run)).count("OperationResolved") == 1
        again = await engine.submit(LINE, "b")
        await until(again, "held")
        both = await asyncio.gather(
            again.abandon(force=True), other.abandon(again.id, force=True), return_exceptions=True
        )
        assert sorted(type(answer).__name__ for answer in both) == ["KeyTaken", "NoneType"]
        assert (await names(again)).count("RunAbandoned") == 1


@virtually
async def test_giving_a_run_up_lets_the_next_of_its_slot_go(system: VirtualSystem) -> None:
    """D-7, R-5: the slot is free, for who waits in its queue, too; and who waits there can be given up."""
    async with World(system).engine(app(LINE, OTHER)) as engine:
        first = await engine.submit(LINE, "a", resource="r")
        await until(first, "held")
        second = await engine.submit(LINE, "b", resource="r", on_busy="queue")
        third = await engine.submit(LINE, "c", resource="r", on_busy="queue")
        await engine.idle()
        await second.abandon(force=True)
        await first.abandon(force=True)
        await until(third, "held")
        assert (await names(second)) == ["RunSubmitted", "RunAbandoned", "OutcomeCommitted", "RunFailed"]
        assert (await engine.verify()).findings == ()
