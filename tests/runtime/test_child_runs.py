"""Child runs under the engine: submitted once, waited for, canceled along, whatever crashes [B-21, R-16]."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perdure import (
    DefinitionError,
    Fail,
    Failed,
    Invocation,
    Pipeline,
    Retry,
    Settled,
    Succeeded,
)
from perdure.core.facts import BoundaryInteractionCreated
from perdure.core.ids import child_id
from perdure.testing.clock import VirtualSystem
from tests.runtime.kinship import app, children, many, one, work
from tests.runtime.lab import Gate, World, facts, names, until, virtually

Inv = Invocation[str, object]
Texts = Pipeline[str, object, Any]

PROMPT = Retry(initial=0, cap=0, jitter=0)


# --- that it works


@virtually
async def test_a_child_is_submitted_once_and_its_output_is_the_state(system: VirtualSystem) -> None:
    """B-21, B-20, J-12: its id follows from the parent; the parent holds no place; three appends of the parent."""
    world, gate = World(system), Gate()

    async def body(inv: Inv) -> str:
        await gate()
        return f"{inv.input}!"

    child = work(body)
    parent = one(child)
    async with world.engine(app(parent, child, concurrency=1)) as engine:
        run = await engine.submit(parent, "x", priority=5)
        await gate.reached.wait()
        info = await run.info()
        assert (info.status, info.reason, info.worker) == ("ready", "waits for its child run", "")
        [sub] = await children(engine)
        opened_us = next(r.at_us for r in await run.journal() if isinstance(r.fact, BoundaryInteractionCreated))
        assert sub.id == child_id(opened_us, run.id, "sub/v1", 0)
        submitted = (await facts(sub))[0]
        assert (submitted.parent.run_id, submitted.priority) == (run.id, 5)  # type: ignore[union-attr]  # RunSubmitted
        gate.go.set()
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == "x!"
        assert (await names(run))[-6:] == [
            "BoundaryCompletionAdmitted",
            "ContinuationSegmentCreated",
            "BoundaryResolved",
            "SegmentCompleted",
            "OutcomeCommitted",
            "RunSucceeded",
        ]
        assert (await engine.verify()).findings == ()


@virtually
async def test_a_child_of_a_child(system: VirtualSystem) -> None:
    world = World(system)
    inner = work(id="inner")
    middle = one(inner, id="work", input=lambda inv: f"{inv.input}y")
    outer = one(middle, input=lambda inv: f"{inv.input}z")
    async with world.engine(app(outer, middle, inner, concurrency=1)) as engine:
        result = await (await engine.submit(outer, "x")).result()
        assert isinstance(result, Succeeded)
        assert result.output == "XZY"


@virtually
async def test_a_thousand_children_fifty_at_a_time(system: VirtualSystem) -> None:
    """B-21, R-16: never more than fifty live, each once, and all outputs in their order."""
    world = World(system)
    live = most = 0

    async def body(inv: Inv) -> str:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await system.sleep(1 + int(inv.input) % 7)
        live -= 1
        return inv.input

    child = work(body)
    parent = many(child, concurrency=50)
    words = [str(n) for n in range(1_000)]
    async with world.engine(app(parent, child)) as engine:
        run = await engine.submit(parent, " ".join(words))
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == words
        assert most == 50
        assert len(await children(engine)) == 1_000
        assert (await engine.verify(run.id)).findings == ()
        claims = (await names(run)).count("SegmentAttemptStarted")
        assert claims <= 2 * 1_000 / 25  # woken for half of what runs, not for each


@virtually
async def test_no_inputs_no_children(system: VirtualSystem) -> None:
    """B-10: an empty list of inputs is an empty list of outputs, at once."""
    world = World(system)
    child = work()
    parent = many(child)
    async with world.engine(app(parent, child)) as engine:
        result = await (await engine.submit(parent, "")).result()
        assert isinstance(result, Succeeded)
        assert (result.output, await children(engine)) == ([], [])


# --- how a child may fail


def _no(inv: Inv) -> str:
    if "no" in inv.input:
        raise Fail("no such thing", reason="no-such")
    return inv.input


@virtually
async def test_a_child_that_fails_fails_its_step_with_its_failure_as_the_cause(system: VirtualSystem) -> None:
    """B-21: and no other is submitted; those that run end first."""
    world = World(system)
    child = work(_no)
    parent = many(child, concurrency=2)
    async with world.engine(app(parent, child)) as engine:
        result = await (await engine.submit(parent, "a no c d e f")).result()
        assert isinstance(result, Failed)
        failure = result.failure
        assert (failure.step, failure.reason, failure.item) == ("subs/v1", "child-failed", 1)
        assert failure.cause is not None
        assert failure.kind == failure.cause.kind
        assert (failure.cause.step, failure.cause.reason, failure.cause.message) == (
            "do/v1",
            "no-such",
            "no such thing",
        )
        assert result.in_doubt == ("subs/v1",)
        (counts,) = result.item_counts  # U-12
        assert (counts.step, counts.items, counts.failed, counts.in_doubt) == ("subs/v1", 6, 1, 0)
        assert counts.completed + 1 == len(await children(engine)) == 6 - counts.not_started
        assert len(await children(engine)) < 6


@virtually
async def test_failures_may_be_values(system: VirtualSystem) -> None:
    """B-21: `collect=True`, for one and for many."""
    world = World(system)
    child = work(_no)
    single, several = one(child, collect=True, id="single"), many(child, collect=True)
    async with world.engine(app(single, several, child)) as engine:
        alone = await (await engine.submit(single, "no")).result()
        assert isinstance(alone, Succeeded)
        settled: Any = alone.output
        assert (type(settled), settled.failure.cause.reason) == (Settled, "no-such")
        together = await (await engine.submit(several, "a no c")).result()
        assert isinstance(together, Succeeded)
        assert [(each.value, each.failure is None) for each in together.output] == [
            ("a", True),
            (None, False),
            ("c", True),
        ]


def _the_one(_: str) -> str:
    return "the one"


@virtually
async def test_a_child_whose_slot_is_busy_waits_and_one_taken_for_ever_is_refused(system: VirtualSystem) -> None:
    """R-5, B-21."""
    world, gate = World(system), Gate()

    async def body(inv: Inv) -> str:
        await gate()
        return inv.input

    serial = work(body, resource=_the_one)
    once = work(id="once", resource=_the_one, slot="once")
    waits, refused = one(serial), one(once, id="refused")
    async with world.engine(app(waits, refused, serial, once)) as engine:
        first = await engine.submit(serial, "first")
        await gate.reached.wait()
        run = await engine.submit(waits, "second")
        await until(run, "ready")
        gate.go.set()
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert (result.output, (await first.info()).status) == ("second", "succeeded")
        assert isinstance(await (await engine.submit(refused, "a")).result(), Succeeded)
        again = await (await engine.submit(refused, "b")).result()
        assert isinstance(again, Failed)
        assert (again.failure.reason, again.failure.step) == ("child-refused", "sub/v1")
        assert again.failure.cause is not None
        assert "has its slot for ever" in again.failure.cause.message


@virtually
async def test_a_child_that_cannot_be_submitted_fails_the_step(system: VirtualSystem) -> None:
    """B-21: what the child's author wrote raises."""
    world = World(system)

    def resource(input: str) -> str:
        raise KeyError(input)

    child = work(resource=resource)
    parent = one(child)
    async with world.engine(app(parent, child)) as engine:
        result = await (await engine.submit(parent, "x")).result()
        assert isinstance(result, Failed)
        assert result.failure.reason == "child-refused"
        assert "KeyError: 'x'" in result.failure.message


def test_an_app_has_the_pipelines_of_its_child_runs() -> None:
    """B-21: refused when it is built, by the names of step and pipeline."""
    said = "pipeline 'outer', step 'sub/v1': pipeline 'work' of its child runs is not bound in this app"
    with pytest.raises(DefinitionError, match=re.escape(said)):
        app(one(work()))
