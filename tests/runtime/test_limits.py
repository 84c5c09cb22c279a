"""Limits: never more at once than declared, everybody's turn comes, and nothing is left taken [R-11]."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from perdure import Canceled, Engine, Fail, Retry, Run, Succeeded, UnwindInvocation, step
from perdure.define.limit import AnyLimit, Limit
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, Line, World, app, line, names, until, virtually

SCOPES = pytest.mark.parametrize("scope", ["worker", "store"])


class Bank:
    """Something that bears only so much at once.

    Attributes:
        most: how many were in it at once.
        entered: in which order they came.
    """

    def __init__(self) -> None:
        self.gate = Gate()
        self.inside = self.most = 0
        self.entered: list[str] = []

    async def __call__(self, who: str) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.append(who)
        try:
            await self.gate()
        finally:
            self.inside -= 1


def account(input: str) -> str:
    """The part of the input before the slash."""
    return input.partition("/")[0]


def paying(bank: Bank, *limits: AnyLimit) -> Line:
    """A pipeline of one step at the bank, and one after it."""

    @step("pay/v1", limits=limits)
    async def pay(inv: Inv) -> None:
        await bank(inv.input)

    @step("after/v1")
    async def after(inv: Inv) -> None:
        return None

    return line(pay, after)


async def submitted(engine: Engine, pipeline: Line, inputs: list[str]) -> list[Run[None]]:
    """Runs of these inputs, in their order."""
    return [run for run in await engine.submit_many(pipeline, inputs) if isinstance(run, Run)]


async def results(runs: list[Run[None]]) -> None:
    """Every run succeeds."""
    for run in runs:
        assert isinstance(await run.result(), Succeeded)


async def waits_for(run: Run[None], what: str) -> None:
    """The run rests, and says that it waits for this."""
    async for info in run.watch():
        if info.status == "ready" and info.reason == f"waits for {what}":
            return
    raise AssertionError(f"the run ended without waiting for {what}")


@SCOPES
@virtually
async def test_no_more_at_once_and_first_come_first_served(system: VirtualSystem, scope: Any) -> None:
    """R-11: of twelve runs never more than three are in the step; the others rest, and say what they wait for."""
    bank = Bank()
    pipeline = paying(bank, Limit("bank", scope=scope, concurrency=3))
    async with World(system).engine(app(pipeline)) as engine:
        runs = await submitted(engine, pipeline, [str(number) for number in range(12)])
        await bank.gate.until(3)
        await waits_for(runs[11], "limit 'bank'")
        assert engine.running == 3
        bank.gate.go.set()
        await results(runs)
        assert bank.most == 3
        assert bank.entered == [str(number) for number in range(12)]
        assert (await engine.verify()).findings == ()


@SCOPES
@virtually
async def test_each_key_is_counted_apart(system: VirtualSystem, scope: Any) -> None:
    """R-11: a full account keeps nobody of another account waiting."""
    bank = Bank()
    pipeline = paying(bank, Limit("account", scope=scope, key=account, concurrency=1))
    async with World(system).engine(app(pipeline)) as engine:
        runs = await submitted(engine, pipeline, ["a/1", "a/2", "b/1", "c/1"])
        await bank.gate.until(3)
        await waits_for(runs[1], "limit 'account' key 'a'")
        assert sorted(bank.entered) == ["a/1", "b/1", "c/1"]
        bank.gate.go.set()
        await results(runs)


@SCOPES
@virtually
async def test_a_success_before_the_limit_is_committed_alone(system: VirtualSystem, scope: Any) -> None:
    """J-12, R-11: what is done is durable although the next step has to wait; a free limit costs no append."""
    bank = Bank()
    limit = Limit("bank", scope=scope, concurrency=1)

    @step("before/v1")
    async def before(inv: Inv) -> None:
        return None

    @step("pay/v1", limits=(limit,))
    async def pay(inv: Inv) -> None:
        await bank(inv.input)

    pipeline = line(before, pay)
    async with World(system).engine(app(pipeline)) as engine:
        first = await engine.submit(pipeline, "first")
        await bank.gate.until(1)
        second = await engine.submit(pipeline, "second")
        await waits_for(second, "limit 'bank'")
        assert await names(second) == [
            "RunSubmitted",
            "SegmentAttemptStarted",
            "OperationReserved",
            "OperationSucceeded",
        ]
        bank.gate.go.set()
        await results([first, second])
        assert bank.most == 1


@SCOPES
@virtually
async def test_a_chain_of_limited_steps_costs_no_more_appends(system: VirtualSystem, scope: Any) -> None:
    """J-12, R-11: four steps with two limits, nobody else about: as many appends as without limits."""
    both = (Limit("one", scope=scope, concurrency=1), Limit("two", scope=scope, key=account, concurrency=2))
    counts: list[int] = []
    for limits in ((), both):

        def noop(number: int, limits: Any = limits) -> Any:
            @step(f"step-{number}/v1", limits=limits)
            async def nothing_done(inv: Inv) -> None:
                return None

            return nothing_done

        pipeline = line(*[noop(number) for number in range(4)])
        world = World(system)
        async with world.engine(app(pipeline)) as engine:
            await results([await engine.submit(pipeline, "a/1")])
            calls = world.stores[0].calls
            counts.append(calls["append"] + calls["set_index"])
    assert counts[0] == counts[1] == 5


@SCOPES
@virtually
async def test_a_waiting_run_is_canceled_at_once(system: VirtualSystem, scope: Any) -> None:
    """R-12, R-11: it needs no place to end, and the place goes to whoever is next."""
    bank = Bank()
    pipeline = paying(bank, Limit("bank", scope=scope, concurrency=1))
    async with World(system).engine(app(pipeline)) as engine:
        runs = await submitted(engine, pipeline, ["1", "2", "3"])
        await bank.gate.until(1)
        await waits_for(runs[1], "limit 'bank'")
        await runs[1].cancel()
        assert isinstance(await runs[1].result(), Canceled)
        assert bank.entered == ["1"]
        bank.gate.go.set()
        await results([runs[0], runs[2]])
        assert bank.entered == ["1", "3"]


@SCOPES
@virtually
async def test_places_come_back_however_an_operation_ends(system: VirtualSystem, scope: Any) -> None:
    """R-11: failure, retry that is due later, cancel of a running one; then everything is free again."""
    tries = 0
    limit = Limit("bank", scope=scope, concurrency=1)
    stuck = Gate()

    @step("pay/v1", limits=(limit,))
    async def pay(inv: Inv) -> None:
        nonlocal tries
        if inv.input == "fails":
            raise Fail("no")
        if inv.input == "retries" and inv.attempt == 1:
            tries += 1
            raise OSError
        if inv.input == "hangs":
            await stuck()

    pipeline = line(pay)
    async with World(system).engine(app(pipeline, retry=Retry())) as engine:
        failing = await engine.submit(pipeline, "fails")
        await failing.result()
        retrying = await engine.submit(pipeline, "retries")
        hanging = await engine.submit(pipeline, "hangs")
        await stuck.until(1)  # while the other one backs off
        await waits_for(retrying, "limit 'bank'")
        await hanging.cancel()
        await results([retrying])
        assert tries == 1
        assert isinstance(await hanging.result(), Canceled)
        await results([await engine.submit(pipeline, "last")])


@SCOPES
@virtually
async def test_unwind_takes_a_place_as_well(system: VirtualSystem, scope: Any) -> None:
    """R-11: the handler that takes back meets the same bank."""
    bank = Bank()
    limit = Limit("bank", scope=scope, concurrency=1)

    async def refund(inv: UnwindInvocation[str, object], paid: None) -> None:
        await bank(f"-{inv.input}")

    @step("pay/v1", unwind=refund, limits=(limit,))
    async def pay(inv: Inv) -> None:
        await bank(inv.input)

    @step("fail/v1")
    async def fail(inv: Inv) -> None:
        raise Fail("no")

    pipeline = line(pay, fail)
    async with World(system).engine(app(pipeline)) as engine:
        runs = await submitted(engine, pipeline, ["1", "2", "3"])
        bank.gate.go.set()
        for run in runs:
            await run.result()
        assert bank.most == 1
        assert sorted(bank.entered) == ["-1", "-2", "-3", "1", "2", "3"]


@SCOPES
@virtually
async def test_a_key_that_raises_makes_the_run_invalid(system: VirtualSystem, scope: Any) -> None:
    """D-1, R-11: as a condition that raises; nothing is begun."""

    def broken(input: str) -> str:
        raise ValueError(f"no account in {input}")

    pipeline = paying(Bank(), Limit("bank", scope=scope, key=broken, concurrency=1))
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        found = await until(run, "invalid")
        assert found.reason == "limit-key-raised: the key of limit 'bank' raised ValueError: no account in x"


@virtually
async def test_starts_per_second_are_spread(system: VirtualSystem) -> None:
    """R-11: each run is due when its turn comes, not all of them at once, again and again."""
    starts: list[int] = []

    @step("call/v1", limits=(Limit("api", scope="worker", per_second=4),))
    async def call(inv: Inv) -> None:
        starts.append(world.now_us())

    pipeline = line(call)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        runs = await submitted(engine, pipeline, [str(number) for number in range(9)])
        await results(runs)
        assert [late - early for early, late in pairwise(starts)] == [250_000] * 8
        assert world.stores[0].calls["load"] < 4 * len(runs)
