"""Invalid runs: nothing is guessed, nobody waits for ever, and they go on once they can [D-1, D-2, D-3, D-8]."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any, cast

import pytest

from perdure import (
    Canceled,
    Fail,
    Failed,
    FailedInvocation,
    InvalidRun,
    Invocation,
    Pipeline,
    Succeeded,
    UnwindInvocation,
    nothing,
    step,
)
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import SECOND_US, Events, Gate, Inv, Line, World, app, line, names, until, virtually


class Switch:
    """Makes a pipeline work or not, as a new build would."""

    def __init__(self) -> None:
        self.works = False
        self.calls: list[str] = []


def contract(switch: Switch) -> Line:
    @step("one/v1")
    async def one(inv: Inv) -> str:
        switch.calls.append("one")
        return "state" if switch.works else cast(str, None)

    return line(one)


def unserialisable(switch: Switch) -> Line:
    @step("one/v1")
    async def one(inv: Inv) -> float:
        switch.calls.append("one")
        return 1.0 if switch.works else float("nan")

    return line(one)


def undeclared(switch: Switch) -> Line:
    @step("first/v1")
    async def first(inv: Inv) -> str:
        return "state"

    @step("one/v1")
    async def one(inv: Inv) -> None:
        switch.calls.append("one")
        if not switch.works:
            try:
                inv[first]
            except Exception:
                return  # swallowing it changes nothing

    return line(first, one)


def condition(switch: Switch) -> Line:
    def asked(inv: Inv) -> bool:
        switch.calls.append("one")
        if not switch.works:
            raise ZeroDivisionError("in the condition")
        return True

    @step("one/v1", when=asked)
    async def one(inv: Inv) -> None:
        pass

    return line(one)


def condition_type(switch: Switch) -> Line:
    def asked(inv: Inv) -> bool:
        switch.calls.append("one")
        return True if switch.works else cast(bool, "yes")

    @step("one/v1", when=asked)
    async def one(inv: Inv) -> None:
        pass

    return line(one)


def output(switch: Switch) -> Line:
    @step("one/v1")
    async def one(inv: Inv) -> None:
        pass

    def made(inv: Inv) -> None:
        switch.calls.append("one")
        if not switch.works:
            raise KeyError("in the output")

    pipeline: Line = Pipeline(id="line", input=str, deps=object, steps=(one,), output=made)
    return pipeline


def impure(switch: Switch) -> Line:
    def asked(inv: Inv) -> bool:
        switch.calls.append("one")
        return switch.works or inv.deps is None

    @step("one/v1", when=asked)
    async def one(inv: Inv) -> None:
        pass

    return line(one)


BREACHES = {
    "contract-broken": contract,
    "payload-unserialisable": unserialisable,
    "contract-broken undeclared": undeclared,
    "condition-raised": condition,
    "condition-raised type": condition_type,
    "output-raised": output,
    "contract-broken impure": impure,
}
BY_BACKOFF = ("condition-raised", "output-raised")


@pytest.mark.parametrize("name", BREACHES)
@pytest.mark.parametrize("mended_by", ["build", "retry"])
@virtually
async def test_what_cannot_go_on_is_invalid_says_why_and_goes_on_once_mended(
    system: VirtualSystem, name: str, mended_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D-1, D-2, D-3: no failure, no unwind; `result` raises; a new build or an operator has it tried again."""
    switch = Switch()
    pipeline = BREACHES[name](switch)
    reason = name.split(maxsplit=1)[0]
    world = World(system)
    async with world.engine(app(pipeline, build="one")) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidRun) as caught:
            await run.result()
        assert caught.value.reason == reason
        assert caught.value.detail
        info = await run.info()
        assert (info.status, info.build, info.generation, engine.running) == ("invalid", "one", 1, 0)
        assert info.reason.startswith(f"{reason}: ")
        assert "RunFailed" not in await names(run)
        if mended_by == "retry":
            switch.works = True
            await run.retry(actor="me")
            assert isinstance(await run.result(), Succeeded)
    if mended_by == "build":
        calls = len(switch.calls)
        async with world.engine(app(pipeline, build="one")) as engine:  # the same one: not woken by it
            assert (await engine.info(run.id)).status == "invalid"
            assert len(switch.calls) == calls
        switch.works = True
        async with world.engine(app(pipeline, build="two")) as engine:
            assert isinstance(await engine.result(run.id), Succeeded)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING and f"{run.id} is invalid" in r.getMessage()]
    assert len(warnings) <= 2  # once a judgement that is news: not each time it is asked again


@pytest.mark.parametrize("name", BREACHES)
@virtually
async def test_an_invalid_run_is_asked_again_with_backoff_or_not_at_all(system: VirtualSystem, name: str) -> None:
    """D-2, D-3, D-8: from a minute to an hour, writing nothing; what a handler broke is not called again by itself."""
    switch = Switch()
    pipeline = BREACHES[name](switch)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        info = await until(run, "invalid")
        times: list[int] = []
        before = await names(run)
        if name.split(maxsplit=1)[0] in BY_BACKOFF:
            assert info.due_us == EPOCH_US + 60 * SECOND_US
            for _ in range(9):
                info = await run.info()
                assert info.due_us is not None
                times.append((info.due_us - EPOCH_US) // SECOND_US)
                await system.sleep((info.due_us - system.now_us()) / SECOND_US)
                await engine.idle()
            waits = [later - sooner for sooner, later in zip([0, *times], times, strict=False)]
            assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
            switch.works = True
            await until(run, "succeeded")
        else:
            assert info.due_us is None
            await system.sleep(200_000)
            assert len(switch.calls) == 1
            assert await names(run) == before
            await run.cancel()
            assert isinstance(await run.result(), Canceled)  # a cancel acts on it


@virtually
async def test_re_asking_an_invalid_run_writes_nothing_to_its_journal(system: VirtualSystem) -> None:
    """D-8"""
    switch = Switch()
    pipeline = condition(switch)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await until(run, "invalid")
        before = await run.journal()
        await system.sleep(100_000)
        assert len(switch.calls) > 20
        assert await run.journal() == before


# --- deployments


def steps_of(*ids: str, effects: list[str], pipeline: str = "line") -> Line:
    """A pipeline of steps with these ids; the last one fails until it is asked a second time."""

    def make(id: str) -> Any:
        @step(id)
        async def one(inv: Inv) -> None:
            effects.append(id)
            if id == "gone/v1" and inv.attempt == 1:
                raise OSError("down")

        return one

    return line(*(make(id) for id in ids), id=pipeline)


@virtually
async def test_an_unresolved_step_that_is_gone_makes_the_run_invalid_until_it_is_back(system: VirtualSystem) -> None:
    """E-3, D-1, D-2: the generation that restores it wakes the run; attempt numbers go on."""
    effects: list[str] = []
    world = World(system)
    with_it = steps_of("one/v1", "gone/v1", effects=effects)
    without = steps_of("one/v1", effects=effects)
    async with world.engine(app(with_it)) as engine:
        run = await engine.submit(with_it, "x")
        await system.sleep(0)
        engine.abort()
    async with world.engine(app(without)) as engine:
        with pytest.raises(InvalidRun, match="gone/v1") as caught:
            await engine.result(run.id)
        assert caught.value.reason == "step-missing"
        assert (await engine.verify()).findings == ()
    async with world.engine(app(with_it)) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)
        assert [d.generation for d in await engine.deployments("line")] == [1, 2, 3]


@virtually
async def test_a_state_the_run_cannot_have_is_not_guessed(system: VirtualSystem) -> None:
    """M-14, D-1, D-2: a step inserted behind the run was passed; reading it is no retry, and `if_skipped` mends it."""
    gate = Gate()
    seen: list[str] = []

    @step("inserted/v1")
    async def inserted(inv: Inv) -> str:
        return "state"

    def substitute(inv: Inv) -> str:
        return f"substitute of {inv.input}"

    @step("inserted/v1", if_skipped=substitute)
    async def with_substitute(inv: Inv) -> str:
        return "state"

    def version(number: int) -> Line:
        first = inserted if number == 2 else with_substitute

        @step("one/v1", needs=() if number == 1 else (first,))
        async def one(inv: Inv) -> None:
            if number == 1:
                await gate()
            seen.append(f"called by {number}")
            seen.append(inv[first])

        return line(one) if number == 1 else line(first, one)

    world = World(system)
    async with world.engine(app(version(1), build="1")) as engine:
        run = await engine.submit(version(1), "x")
        await gate.until(1)
        engine.abort()
    async with world.engine(app(version(2), build="2")) as engine:
        with pytest.raises(InvalidRun, match="inserted/v1") as caught:
            await engine.result(run.id)
        assert caught.value.reason == "state-missing"
        await system.sleep(10_000)
        assert seen == ["called by 2"]
    async with world.engine(app(version(3), build="3")) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)
        assert seen == ["called by 2", "called by 3", "substitute of x"]


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), GeneratorExit(), SystemExit(3), StopIteration(), Fail("no")]
)
@pytest.mark.parametrize("where", ["condition", "output", "failure output"])
@virtually
async def test_whatever_a_pure_function_raises_makes_its_run_invalid_and_harms_no_other(
    system: VirtualSystem, where: str, error: BaseException
) -> None:
    """E-12, M-13, D-3: raised in the engine's own code, some of these would end more than the run."""

    def raises(asked: bool) -> bool:
        if asked:
            raise error
        return True

    def when(inv: Inv) -> bool:
        return raises(where == "condition" and inv.input == "bad")

    def output(inv: Inv) -> None:
        raises(where == "output" and inv.input == "bad")

    def failure_output(inv: FailedInvocation[str, object]) -> bool:
        return raises(where == "failure output" and inv.input == "bad")

    @step("one/v1", when=when)
    async def one(inv: Inv) -> None:
        if where == "failure output" and inv.input == "bad":
            raise Fail("as planned")

    pipeline: Line = Pipeline(
        id="line", input=str, deps=object, steps=(one,), output=output, failure_output=failure_output
    )
    async with World(system).engine(app(pipeline)) as engine:
        bad, good = await engine.submit(pipeline, "bad"), await engine.submit(pipeline, "good")
        with pytest.raises(InvalidRun) as caught:
            await bad.result()
        assert caught.value.reason == ("condition-raised" if where == "condition" else "output-raised")
        assert type(error).__name__ in caught.value.detail
        assert isinstance(await good.result(), Succeeded)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (ValueError("no substitute today"), "no substitute today"),
        (Fail("not for a substitute to say"), "not for a substitute to say"),
        (SystemExit(3), "SystemExit"),
        (3, "expected str, got int"),
        ("deps", "pure"),
    ],
    ids=str,
)
@virtually
async def test_a_substitute_that_cannot_be_had_is_no_answer_of_the_handler(
    system: VirtualSystem, broken: object, said: str
) -> None:
    """M-14, D-1: a pure function that raises, or makes no such state, is a mistake in the deployment."""

    def substitute(inv: Inv) -> str:
        if isinstance(broken, BaseException):
            raise broken
        return str(inv.deps) if broken == "deps" else cast(str, broken)

    def never(inv: Inv) -> bool:
        return False

    @step("maybe/v1", when=never, if_skipped=substitute)
    async def maybe(inv: Inv) -> str:
        return "state"

    calls: list[int] = []

    @step("one/v1", needs=(maybe,))
    async def one(inv: Inv) -> None:
        calls.append(inv.attempt)
        inv[maybe]

    pipeline = line(maybe, one)
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidRun, match="maybe/v1") as caught:
            await run.result()
        assert caught.value.reason == "contract-broken"
        assert said in caught.value.detail
        await system.sleep(10_000)
        assert calls == [1]


@virtually
async def test_a_run_of_a_pipeline_that_no_app_knows_waits_for_one(
    system: VirtualSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """D-1, D-2: visible, with a reason; woken when the pipeline is bound again, also under the very same build."""
    effects: list[str] = []
    pipeline = steps_of("one/v1", effects=effects)
    other = steps_of("other/v1", effects=effects, pipeline="other")
    world = World(system)
    async with world.client(app(pipeline)) as client:
        run = await client.submit(pipeline, "x")
    async with world.engine(app(other)) as engine:
        with pytest.raises(InvalidRun, match="line") as caught:
            await engine.result(run.id)
        assert caught.value.reason == "pipeline-missing"
        await system.sleep(10_000)
        assert effects == []
        assert isinstance(await (await engine.submit(other, "x")).result(), Succeeded)
    warnings = [record for record in caplog.records if run.id in record.getMessage()]
    assert len(warnings) == 1
    before_us = world.now_us()
    async with world.engine(app(other, pipeline)) as engine:
        assert isinstance(await engine.result(run.id), Succeeded)
        assert world.now_us() == before_us


@virtually
async def test_a_pipeline_that_was_missing_for_a_while_is_taken_up_at_once(system: VirtualSystem) -> None:
    """D-2: the run had been advanced by the generation that is back."""
    gate = Gate()

    @step("one/v1")
    async def one(inv: Inv) -> None:
        await gate()

    @step("two/v1")
    async def two(inv: Inv) -> None:
        pass

    pipeline = line(one)
    other = line(two, id="other")
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.until(1)
        engine.abort()
    gate.go.set()
    async with world.engine(app(other)) as engine:
        with pytest.raises(InvalidRun):
            await engine.result(run.id)
    async with world.engine(app(pipeline)) as engine:
        before_us = world.now_us()
        assert isinstance(await engine.result(run.id), Succeeded)
        assert world.now_us() == before_us


@pytest.mark.parametrize("kind", ["contract", "condition", "missing pipeline", "missing step"])
@virtually
async def test_a_deadline_acts_on_an_invalid_run_where_the_next_operation_is_known(
    system: VirtualSystem, kind: str
) -> None:
    """R-12: it is a cancel, and that waits only where the next operation is unknown or missing."""
    switch = Switch()
    effects: list[str] = []
    world = World(system)
    if kind in ("contract", "condition"):
        pipeline = contract(switch) if kind == "contract" else condition(switch)
        async with world.engine(app(pipeline)) as engine:
            run = await engine.submit(pipeline, "x", deadline=timedelta(seconds=500))
            await until(run, "invalid")
            info = await until(run, "canceled")
            assert info.ended_us == EPOCH_US + 500 * SECOND_US
        return
    with_it = steps_of("gone/v1", effects=effects)
    async with world.engine(app(with_it)) as engine:
        run = await engine.submit(with_it, "x", deadline=timedelta(seconds=500))
        engine.abort()
    without = steps_of("other/v1", effects=effects, pipeline="other" if "pipeline" in kind else "line")
    async with world.engine(app(without)) as engine:
        await until(await engine.run(run.id), "invalid")
        calls = world.stores[-1].calls
        await system.sleep(10_000)
        assert (await engine.info(run.id)).status == "invalid"
        assert calls["load"] < 40
    async with world.engine(app(with_it)) as engine:
        assert isinstance(await engine.result(run.id), Canceled)


@virtually
async def test_a_payload_that_the_current_type_cannot_read_makes_the_run_invalid(system: VirtualSystem) -> None:
    """P-3, D-1: input, state of a need, state of an unwind; each names what and where."""

    async def undo_text(inv: UnwindInvocation[str, object], state: str) -> None:
        raise OSError("not yet")

    async def undo_number(inv: UnwindInvocation[str, object], state: int) -> None:
        raise AssertionError("it cannot be read")

    def version(number: int) -> Line:
        text = number == 1
        gate = Gate()

        @step("one/v1", unwind=undo_text)
        async def one_text(inv: Inv) -> str:
            return "text"

        @step("one/v1", unwind=undo_number)
        async def one_number(inv: Inv) -> int:
            return 1

        first: Any = one_text if text else one_number

        @step("two/v1", needs=(first,))
        async def two(inv: Inv) -> None:
            if inv.input == "unwind":
                raise Fail("no")
            if text:
                await gate()
            inv[first]

        return line(first, two)

    world = World(system)
    async with world.engine(app(version(1), build="one")) as engine:
        pipeline = version(1)
        forward = await engine.submit(pipeline, "forward")
        unwind = await engine.submit(pipeline, "unwind")
        await asyncio.sleep(0)
        engine.abort()
    async with world.engine(app(version(2), build="two")) as engine:
        for run in (forward, unwind):
            with pytest.raises(InvalidRun, match="one/v1") as caught:
                await engine.result(run.id)
            assert caught.value.reason == "payload-unreadable"
            assert "expected `int`" in caught.value.detail.lower() or "int" in caught.value.detail


@virtually
async def test_an_input_that_cannot_be_read_any_more_makes_the_run_invalid(system: VirtualSystem) -> None:
    """P-3, D-1"""

    @step("one/v1")
    async def one(inv: Invocation[int, object]) -> None:
        assert inv.input

    @step("one/v1")
    async def text(inv: Inv) -> None:
        pass

    numbers: Any = Pipeline(id="line", input=int, deps=object, steps=(one,), output=nothing)
    world = World(system)
    async with world.client(app(line(text))) as client:
        run = await client.submit(line(text), "not a number")
    async with world.engine(app(numbers)) as engine:
        with pytest.raises(InvalidRun, match="input") as caught:
            await engine.result(run.id)
        assert caught.value.reason == "payload-unreadable"


# --- others go on


@virtually
async def test_one_invalid_run_among_many_stops_nobody(system: VirtualSystem) -> None:
    """D-3: counted, listed, told, and out of the way: it holds no place."""
    events = Events()

    def bad(inv: Inv) -> bool:
        if inv.input == "bad":
            raise ValueError("bad")
        return True

    @step("one/v1", when=bad)
    async def one(inv: Inv) -> None:
        pass

    pipeline = line(one)
    async with World(system).engine(app(pipeline), concurrency=1, observers=[events]) as engine:
        runs = [await engine.submit(pipeline, "bad" if n == 7 else "good") for n in range(20)]
        for n, run in enumerate(runs):
            if n == 7:
                with pytest.raises(InvalidRun):
                    await run.result()
            else:
                assert isinstance(await run.result(), Succeeded)
        assert await engine.counts() == {("line", "succeeded"): 19, ("line", "invalid"): 1}
        [info] = await engine.list(status="invalid")
        assert (info.run_id, info.reason) == (runs[7].id, (await runs[7].info()).reason)
        told = [event for event in events if event.kind == "invalid"]
        assert [event.run_id for event in told] == [runs[7].id]


@virtually
async def test_a_failure_output_that_raises_makes_the_run_invalid_after_it_has_unwound(system: VirtualSystem) -> None:
    """M-13"""
    works = False
    undone: list[str] = []

    async def undo(inv: UnwindInvocation[str, object], state: None) -> None:
        undone.append(inv.step_id)

    @step("one/v1", unwind=undo)
    async def one(inv: Inv) -> None:
        pass

    @step("two/v1")
    async def two(inv: Inv) -> None:
        raise Fail("no")

    def failed(inv: Any) -> str:
        if not works:
            raise ValueError("in the failure output")
        return f"{inv.failure.message} {inv.uncompensated}"

    pipeline: Line = Pipeline(
        id="line", input=str, deps=object, steps=(one, two), output=nothing, failure_output=failed
    )
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        with pytest.raises(InvalidRun, match="failure-output") as caught:
            await run.result()
        assert caught.value.reason == "output-raised"
        works = True
        await run.retry(actor="me")
        result = await run.result()
        assert isinstance(result, Failed)
        assert result.output_as(str) == "no ()"
        assert undone == ["one/v1"]
