"""Submitting: who joins, who conflicts, what is refused before anything is written [R-5, M-1, P-2]."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest

from perdure import (
    App,
    Canceled,
    InvalidArgument,
    Invocation,
    PayloadError,
    Pipeline,
    ScheduleConflict,
    Succeeded,
    nothing,
    step,
)
from perdure.core.facts import OperationReserved, RunSubmitted
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import SECOND_US, Gate, Inv, World, app, facts, line, names, virtually


def waiting(gate: Gate, **options: Any) -> Any:
    """A pipeline whose only step waits."""

    @step("wait/v1")
    async def wait(inv: Inv) -> None:
        await gate()

    return line(wait, **options)


def by_first_letter(input: str) -> str:
    return input[0]


@virtually
async def test_equal_input_joins_the_live_run(system: VirtualSystem) -> None:
    """R-5, M-1"""
    gate = Gate()
    pipeline = waiting(gate, resource=by_first_letter)
    async with World(system).engine(app(pipeline)) as engine:
        first = await engine.submit(pipeline, "abc")
        second = await engine.submit(pipeline, "abc", annotations={"who": "else"}, delay=5, actor="someone")
        assert (first.created, second.created) == (True, False)
        assert second.id == first.id
        gate.go.set()
        assert await second.result() == await first.result()
        assert gate.passes == 1
        third = await engine.submit(pipeline, "abc")
        assert third.created
        assert third.id > first.id
        assert isinstance(await third.result(), Succeeded)


@virtually
async def test_other_input_conflicts_and_names_the_run(system: VirtualSystem) -> None:
    """R-5"""
    gate = Gate()
    pipeline = waiting(gate, resource=by_first_letter)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abc")
        with pytest.raises(ScheduleConflict, match=run.id) as caught:
            await engine.submit(pipeline, "axe")
        assert caught.value.run_id == run.id
        assert [info.run_id for info in await engine.list()] == [run.id]
        gate.go.set()


@virtually
async def test_a_tenant_has_slots_of_its_own(system: VirtualSystem) -> None:
    """M-1"""
    gate = Gate()
    pipeline = waiting(gate, resource=by_first_letter)
    async with World(system).engine(app(pipeline)) as engine:
        first = await engine.submit(pipeline, "abc", tenant="one")
        second = await engine.submit(pipeline, "axe", tenant="two")
        other = await engine.submit(pipeline, "axe", tenant="one", resource="elsewhere")
        assert len({first.id, second.id, other.id}) == 3
        gate.go.set()


@virtually
async def test_a_slot_that_is_taken_once_stays_taken(system: VirtualSystem) -> None:
    """R-5, M-1"""
    gate = Gate()
    pipeline = waiting(gate, resource=by_first_letter, slot="once")
    gate.go.set()
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abc")
        result = await run.result()
        again = await engine.submit(pipeline, "abc")
        assert (again.id, again.created) == (run.id, False)
        assert await again.result() == result
    async with world.engine(app(pipeline)) as engine:
        with pytest.raises(ScheduleConflict, match="for ever"):
            await engine.submit(pipeline, "axe")


@virtually
async def test_without_a_slot_runs_of_one_resource_live_together(system: VirtualSystem) -> None:
    """M-1"""
    gate = Gate()
    pipeline = waiting(gate, resource=by_first_letter, slot="none")
    async with World(system).engine(app(pipeline)) as engine:
        runs = [await engine.submit(pipeline, "abc") for _ in range(3)]
        assert len({run.id for run in runs}) == 3
        assert all(run.created for run in runs)
        gate.go.set()


@virtually
async def test_without_a_resource_a_run_is_about_itself(system: VirtualSystem) -> None:
    """R-5: the default resource is the run id, so equal inputs do not meet."""
    gate = Gate()
    pipeline = waiting(gate)
    async with World(system).engine(app(pipeline)) as engine:
        runs = [await engine.submit(pipeline, "same") for _ in range(2)]
        assert [(await run.info()).resource for run in runs] == [run.id for run in runs]
        gate.go.set()


@virtually
async def test_the_slot_is_free_when_the_run_ends_canceled(system: VirtualSystem) -> None:
    """M-1, R-12"""
    pipeline = waiting(Gate(), resource=by_first_letter)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "abc")
        await run.cancel()
        assert isinstance(await run.result(), Canceled)
        other = await engine.submit(pipeline, "axe")
        assert other.created
        await other.cancel()


BAD_NAMES = {
    "empty": "",
    "blank": " \t",
    "long": "x" * 513,
    "long in bytes": "é" * 257,
    "with NUL": "a\x00b",
    "lone surrogate": "a\ud800",
    "not text": 7,
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
@pytest.mark.parametrize("argument", ["resource", "tenant"])
@virtually
async def test_odd_names_are_refused_and_nothing_is_written(system: VirtualSystem, argument: str, name: Any) -> None:
    """P-2: ids are never repaired, and no run comes of a call that is refused."""
    pipeline = waiting(Gate())
    world = World(system)
    async with world.engine(app(pipeline)) as engine, world.client(app(pipeline)) as client:
        for door in (engine, client):
            options: dict[str, Any] = {argument: name}
            with pytest.raises(InvalidArgument, match=argument):
                await door.submit(pipeline, "x", **options)
        assert await engine.list() == []
        assert (await engine.doctor())["journal_rows"] == 0


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
@virtually
async def test_a_derived_resource_is_checked_as_a_given_one(system: VirtualSystem, name: Any) -> None:
    """R-5, P-2"""

    def resource(input: str) -> str:
        return cast(str, name)

    pipeline = waiting(Gate(), resource=resource)
    async with World(system).engine(app(pipeline)) as engine:
        with pytest.raises(InvalidArgument, match="resource"):
            await engine.submit(pipeline, "x")
        assert await engine.list() == []


@pytest.mark.parametrize("name", [BAD_NAMES[key] for key in BAD_NAMES if key != "long"])
@virtually
async def test_odd_run_ids_are_refused_by_every_call(system: VirtualSystem, name: Any) -> None:
    """P-2: an empty id names no run, not any run."""
    async with World(system).engine(app(waiting(Gate()))) as engine:
        calls: list[Callable[[], Any]] = [
            lambda: engine.run(name),
            lambda: engine.info(name),
            lambda: engine.cancel(name),
            lambda: engine.hold(name),
            lambda: engine.release(name),
            lambda: engine.retry(name),
            lambda: engine.resolve(name, skip=True),
            lambda: engine.explain(name),
            lambda: engine.result(name),
        ]
        for call in calls:
            with pytest.raises(InvalidArgument, match="run id"):
                await call()


BAD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "delay NaN": {"delay": math.nan},
    "delay infinite": {"delay": math.inf},
    "delay negative": {"delay": -1},
    "delay negative timedelta": {"delay": timedelta(seconds=-1)},
    "delay text": {"delay": "5"},
    "delay bool": {"delay": True},
    "delay of ages": {"delay": 1e300},
    "start naive": {"start_at": datetime(2030, 1, 1)},  # noqa: DTZ001  a naive one is the point
    "start a number": {"start_at": 1e9},
    "both": {"delay": 1, "start_at": datetime(2030, 1, 1, tzinfo=UTC)},
    "deadline naive": {"deadline": datetime(2030, 1, 1)},  # noqa: DTZ001  a naive one is the point
    "deadline negative": {"deadline": timedelta(seconds=-1)},
    "deadline a number": {"deadline": 5.0},
    "deadline NaN": {"deadline": math.nan},
    "actor NUL": {"actor": "a\x00"},
    "actor long": {"actor": "a" * 5000},
    "annotation key empty": {"annotations": {"": "x"}},
    "annotation value surrogate": {"annotations": {"a": "\udfff"}},
    "annotation value not text": {"annotations": {"a": 1}},
    "annotations too many": {"annotations": {str(i): "" for i in range(33)}},
}


@pytest.mark.parametrize("options", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
@virtually
async def test_arguments_out_of_range_are_refused_and_nothing_is_written(
    system: VirtualSystem, options: dict[str, Any]
) -> None:
    """P-2, R-4"""
    pipeline = waiting(Gate())
    async with World(system).engine(app(pipeline)) as engine:
        with pytest.raises(InvalidArgument):
            await engine.submit(pipeline, "x", **options)
        assert await engine.list() == []
        assert (await engine.doctor())["journal_rows"] == 0


@dataclass
class Parcel:
    name: str
    weights: list[float]


@virtually
async def test_an_input_that_cannot_be_stored_is_refused_with_its_path(system: VirtualSystem) -> None:
    """P-2: before anything is written."""

    @step("weigh/v1")
    async def weigh(inv: Invocation[Parcel, object]) -> None:
        raise AssertionError("never started")

    pipeline: Pipeline[Parcel, object, None] = Pipeline(
        id="parcel", input=Parcel, deps=object, steps=(weigh,), output=nothing
    )
    async with World(system).engine(App(pipeline.bind())) as engine:
        for weights in ([1.0, math.nan], [1.0, object()]):
            with pytest.raises(PayloadError, match=r"weights\[1\]") as caught:
                await engine.submit(pipeline, Parcel("x", weights))  # type: ignore[arg-type]  # what untyped code passes
            assert caught.value.path.endswith("weights[1]")
        assert await engine.list() == []


@virtually
async def test_an_input_over_the_limit_is_refused_by_engine_and_client(system: VirtualSystem) -> None:
    """P-4: size and limit are named; nothing is written."""
    pipeline = waiting(Gate())
    world = World(system)
    small = app(pipeline, payload_limit=1000)
    async with world.engine(small) as engine, world.client(small) as client:
        for door in (engine, client):
            with pytest.raises(PayloadError, match=r"1,002 bytes.*1,000"):
                await door.submit(pipeline, "x" * 1000)
        assert await engine.list() == []


@virtually
async def test_a_delayed_run_starts_exactly_when_it_is_due(system: VirtualSystem) -> None:
    """R-4"""
    gate = Gate()
    gate.go.set()
    pipeline = waiting(gate)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        delays: list[Any] = [0, 0.000_001, 2.5, timedelta(days=3), 7]
        runs = [await engine.submit(pipeline, "x", delay=delay) for delay in delays]
        zone = timezone(timedelta(hours=5, minutes=45))
        start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=2)
        runs.append(await engine.submit(pipeline, "x", start_at=start.astimezone(zone)))
        runs.append(await engine.submit(pipeline, "x", start_at=datetime(1969, 1, 1, tzinfo=UTC)))
        info = await runs[3].info()
        assert (info.status, info.due_us) == ("ready", EPOCH_US + 3 * 86_400 * SECOND_US)
        starts: list[int] = []
        for run in runs:
            assert isinstance(await run.result(), Succeeded)
            starts += [f.at_us - EPOCH_US for f in await run.journal() if isinstance(f.fact, OperationReserved)]
        assert starts == [0, 1, 2_500_000, 3 * 86_400 * SECOND_US, 7 * SECOND_US, 2 * 86_400 * SECOND_US, 0]


@virtually
async def test_start_options_and_annotations_are_kept_as_given(system: VirtualSystem) -> None:
    """R-5, M-16"""
    gate = Gate()
    gate.go.set()
    pipeline = waiting(gate)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(
            pipeline, "x", delay=1, deadline=timedelta(seconds=9), annotations={"team": "ä"}, actor="me", resource="r"
        )
        first = (await facts(run))[0]
        assert isinstance(first, RunSubmitted)
        assert (first.start_at_us, first.deadline_us) == (EPOCH_US + SECOND_US, EPOCH_US + 9 * SECOND_US)
        assert (first.annotations, first.actor, first.resource) == ({"team": "ä"}, "me", "r")


@virtually
async def test_a_submission_to_a_free_engine_carries_claim_and_reservation(system: VirtualSystem) -> None:
    """J-12: one commit for all three, and the handler waits for it [M-8]."""
    gate = Gate()
    gate.go.set()
    pipeline = waiting(gate)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        before = world.data.commits
        run = await engine.submit(pipeline, "x")
        assert world.data.commits == before + 1
        assert (await names(run))[:3] == ["RunSubmitted", "SegmentAttemptStarted", "OperationReserved"]
        await run.result()
        assert world.data.commits == before + 2


@virtually
async def test_a_resource_function_that_raises_writes_nothing(system: VirtualSystem) -> None:
    """R-5: its error reaches the caller as it is."""

    def resource(input: str) -> str:
        raise LookupError(input)

    pipeline = waiting(Gate(), resource=resource)
    async with World(system).engine(app(pipeline)) as engine:
        with pytest.raises(LookupError, match="mine"):
            await engine.submit(pipeline, "mine")
        assert await engine.list() == []
