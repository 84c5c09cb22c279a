"""Limits: never more at once than declared, everybody's turn comes, and nothing is left taken [R-11]."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from perdure import AwaitMessage, Canceled, Engine, Fail, Limit, Retry, Run, Succeeded, UnwindInvocation, step
from perdure.define.limit import AnyLimit
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


async def results(runs: Sequence[Run[Any]]) -> None:
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


@SCOPES
@virtually
async def test_starts_per_second_are_spread(system: VirtualSystem, scope: Any) -> None:
    """R-11: each run is due when its turn comes, not all of them at once, again and again."""
    starts: list[int] = []

    @step("call/v1", limits=(Limit("api", scope=scope, per_second=4),))
    async def call(inv: Inv) -> None:
        starts.append(world.now_us())

    pipeline = line(call)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        runs = await submitted(engine, pipeline, [str(number) for number in range(9)])
        await results(runs)
        assert [late - early for early, late in pairwise(starts)] == [250_000] * 8
        assert world.stores[0].calls["load"] < 4 * len(runs)


@virtually
async def test_runs_in_flight_count_while_they_wait(system: VirtualSystem) -> None:
    """R-11: a run that waits for a message is in flight; the next one does not start its first step before it ends."""
    entered: list[str] = []

    @step("first/v1")
    async def first(inv: Inv) -> None:
        entered.append(inv.input)

    answer = AwaitMessage("answer/v1", name="answer", type=str)
    pipeline = line(first, answer, limits=(Limit("runs", in_flight=2),))
    async with World(system).engine(app(pipeline)) as engine:
        runs = await submitted(engine, pipeline, [str(number) for number in range(4)])
        await waits_for(runs[3], "limit 'runs'")
        await engine.idle()
        assert entered == ["0", "1"]
        await runs[1].send("answer", "yes")
        await results([runs[1]])
        await engine.idle()
        assert entered == ["0", "1", "2"]
        await runs[0].cancel()  # one that waits is in flight, too
        await runs[0].result()
        await engine.idle()
        assert entered == ["0", "1", "2", "3"]
        for run in runs[2:]:
            await run.send("answer", "yes")
        await results(runs[2:])
        assert (await engine.verify()).findings == ()


@virtually
async def test_starts_of_runs_per_second_and_places_at_once(system: VirtualSystem) -> None:
    """R-11: a rate of the pipeline, and a step with a limit: the runs begin one after the other, and all end."""
    bank = Bank()
    bank.gate.go.set()

    @step("pay/v1", limits=(Limit("bank", concurrency=1),))
    async def pay(inv: Inv) -> None:
        starts.append(world.now_us())
        await bank(inv.input)

    starts: list[int] = []
    pipeline = line(pay, limits=(Limit("begin", per_second=2), Limit("few", in_flight=3)))
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        await results(await submitted(engine, pipeline, [str(number) for number in range(6)]))
        assert [late - early for early, late in pairwise(starts)] == [500_000] * 5


@SCOPES
@virtually
async def test_a_crash_leaves_nothing_taken(system: VirtualSystem, scope: Any) -> None:
    """R-11, R-16: the next engine's runs find their own places; when all have ended, everything is free."""
    bank, again = Bank(), Bank()
    pipeline, later = (paying(place, Limit("bank", scope=scope, concurrency=2)) for place in (bank, again))
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        runs = await submitted(engine, pipeline, [str(number) for number in range(6)])
        await bank.gate.until(2)
        ids = [run.id for run in runs]
        engine.abort()
    async with world.engine(app(later)) as engine:
        await again.gate.until(2)
        again.gate.go.set()
        await results([await engine.run(run_id) for run_id in ids])
        assert again.most == 2
        assert [use.held + use.waiting for use in await world.stores[-1].limits()] == [0] * (scope == "store")


@virtually
async def test_a_deployment_changes_the_number(system: VirtualSystem) -> None:
    """R-11, D-4: more places are given at once to those who wait."""
    bank, again = Bank(), Bank()
    world = World(system)
    small, large = paying(bank, Limit("bank", concurrency=1)), paying(again, Limit("bank", concurrency=3))
    async with world.engine(app(small)) as engine:
        runs = await submitted(engine, small, ["1", "2", "3", "4"])
        await waits_for(runs[3], "limit 'bank'")
        ids = [run.id for run in runs]
        engine.abort()
    async with world.engine(app(large)) as engine:
        await again.gate.until(3)
        again.gate.go.set()
        await results([await engine.run(run_id) for run_id in ids])
        assert again.most == 3


@virtually
async def test_nobody_waits_in_a_circle(system: VirtualSystem) -> None:
    """R-11, R-16: a run that keeps a place for its next step gives it back while it waits for one that comes before."""
    gate = Gate()
    desk, till = Limit("desk", concurrency=1), Limit("till", concurrency=1)

    @step("first/v1", limits=(till,))
    async def first(inv: Inv) -> None:
        await gate()

    @step("both/v1", limits=(desk, till))
    async def both(inv: Inv) -> None:
        return None

    long, short = line(first, both, id="long"), line(both, id="short")
    async with World(system).engine(app(long, short)) as engine:
        one = await engine.submit(long, "has the till, and will want both")
        await gate.until(1)
        other = await engine.submit(short, "has the desk, and wants the till")
        await waits_for(other, "limit 'till'")
        gate.go.set()
        await results([one, other])


@virtually
async def test_who_is_canceled_before_it_began_is_never_in_flight(system: VirtualSystem) -> None:
    """R-11, R-12, R-17: a held run past its deadline is resolved as canceled at once, however full the limit is."""
    bank = Bank()

    @step("pay/v1")
    async def pay(inv: Inv) -> None:
        await bank(inv.input)

    pipeline = line(pay, limits=(Limit("few", in_flight=1),))
    async with World(system).engine(app(pipeline)) as engine:
        one = await engine.submit(pipeline, "one")
        await bank.gate.until(1)
        other = await engine.submit(pipeline, "other", deadline=timedelta(hours=1))
        await waits_for(other, "limit 'few'")
        await other.hold()
        await system.sleep(7200)
        assert "OperationFailed" in await names(other)
        assert [(use.held, use.waiting) for use in await engine.limits()] == [(1, 0)]
        await other.release()
        assert isinstance(await other.result(), Canceled)
        bank.gate.go.set()
        await results([one])
