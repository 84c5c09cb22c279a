"""Messages and what an author or an operator changes meanwhile [B-20, B-24, E-3, E-9, P-3]."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

import msgspec
import pytest

from perdure import (
    AwaitMessage,
    Branch,
    Canceled,
    InvalidArgument,
    InvalidRun,
    PayloadError,
    Pipeline,
    Selector,
    SendMessage,
    Sleep,
    Succeeded,
    retired,
    step,
)
from perdure.core.operations import InvalidOp
from perdure.testing.clock import EPOCH_US, VirtualSystem
from tests.runtime.lab import SECOND_US, Inv, World, app, names, until, virtually
from tests.runtime.test_messages import (
    Approval,
    Approved,
    after,
    approval,
    approved,
    awaiting,
    before,
    kept,
    senders,
    waiting,
)


class Way(Enum):
    ASK = "ask"
    GO = "go"


@dataclass
class Signed:
    by: str
    signature: str


async def parked(world: World, pipeline: Approved) -> str:
    """The id of a run that waits; its engine is gone."""
    async with world.engine(app(pipeline)) as engine:
        return (await waiting(engine, pipeline)).id


@virtually
async def test_what_it_waits_for_is_fixed_when_it_opens(system: VirtualSystem) -> None:
    """B-20: another name and another time-out are for waits that open later, and what is waited for can be sent."""
    world = World(system)
    run_id = await parked(world, awaiting(timeout=100))
    new = awaiting("consent", timeout=5)
    async with world.engine(app(new, build="next")) as engine:
        run = await engine.run(run_id)
        info = await run.info()
        assert (info.reason, info.due_us) == ("waits for message 'approval'", EPOCH_US + 100 * SECOND_US)
        await system.sleep(50)
        assert (await run.info()).status == "ready"
        with pytest.raises(PayloadError):  # the type is the deployed one
            await run.send("approval", "no approval")
        await run.send("consent", Approval("kept for nobody"))
        assert (await run.info()).reason == "waits for message 'approval'"
        await run.send("approval", Approval("ada"))
        result = await run.result()
        assert isinstance(result, Succeeded)
        assert result.output == Approval("ada")
        later = await engine.submit(new, "later")
        assert (await until(later, "ready")).reason == "waits for message 'consent'"
        await later.send("consent", Approval("bob"))
        assert isinstance(await later.result(), Succeeded)


@virtually
async def test_its_type_is_that_of_the_deployed_code(system: VirtualSystem) -> None:
    """B-4, P-3."""
    world = World(system)
    run_id = await parked(world, awaiting())
    async with world.engine(app(awaiting(type=Signed), build="next")) as engine:
        with pytest.raises(PayloadError, match="signature"):
            await engine.send(run_id, "approval", msgspec.Raw(b'{"by": "ada", "amount": 1}'))
        await engine.send(run_id, "approval", Signed("ada", "x"))
        result = await engine.result(run_id)
    assert isinstance(result, Succeeded)
    assert result.output == Signed("ada", "x")


@virtually
async def test_one_that_can_no_longer_be_read_makes_the_run_invalid_and_is_mended(system: VirtualSystem) -> None:
    """P-3, D-1, D-2: it is still the first of its name."""
    world, pipeline = World(system), awaiting()
    async with world.client(app(pipeline)) as client:
        run_id = (await client.submit(pipeline, "x")).id
        await client.send(run_id, "approval", Approval("ada"))
    async with world.engine(app(awaiting(type=Signed), build="next")) as engine:
        info = await until(await engine.run(run_id), "invalid")
        assert "payload-unreadable" in info.reason
        assert "signature" in info.reason
        with pytest.raises(InvalidRun):
            await engine.result(run_id)
    async with world.engine(app(pipeline, build="mended")) as engine:
        result = await engine.result(run_id)
        assert isinstance(result, Succeeded)
        assert result.output == Approval("ada")
        assert (await engine.verify()).findings == ()


@virtually
async def test_a_message_for_an_invalid_run_is_kept_until_it_is_mended(system: VirtualSystem) -> None:
    """B-24, E-3, D-8: its await was removed while it waited, which shows when it is woken; restored, it has both."""
    world, pipeline = World(system), approved()
    run_id = await parked(world, pipeline)
    async with world.engine(app(approved(before, after, read=senders()), build="without")) as engine:
        run = await engine.run(run_id)
        assert isinstance((await run.explain()).next, InvalidOp)
        assert await run.send("approval", {"by": "ada", "amount": 2})
        assert (await until(run, "invalid")).reason.startswith("step-missing")
        assert await run.send("approval", {"by": "bob"})
        await system.sleep(60)
        assert (await run.info()).status == "invalid"
    async with world.engine(app(pipeline, build="mended")) as engine:
        result = await engine.result(run_id)
    assert isinstance(result, Succeeded)
    assert result.output == Approval("ada", 2)


@virtually
async def test_a_retired_await_that_is_open_waits_on(system: VirtualSystem) -> None:
    """E-9; a run that has not come to it passes it."""
    world = World(system)
    run_id = await parked(world, approved())
    new = approved(before, retired(approval), after, read=senders())
    async with world.engine(app(new, build="next")) as engine:
        assert isinstance(await (await engine.submit(new, "fresh")).result(), Succeeded)
        run = await engine.run(run_id)
        assert (await run.info()).status == "ready"
        await run.send("approval", Approval("ada"))
        assert isinstance(await run.result(), Succeeded)


@virtually
async def test_another_kind_of_step_under_its_id_makes_the_run_invalid(system: VirtualSystem) -> None:
    """B-20, D-1."""
    world = World(system)
    run_id = await parked(world, approved())
    async with world.engine(app(approved(before, Sleep("approval/v1", 1), after, read=senders()), build="x")) as engine:
        run = await engine.run(run_id)
        assert await run.send("approval", {"by": "ada"})
        assert (await until(run, "invalid")).reason.startswith("shape-changed")
    async with world.engine(app(approved(), build="mended")) as engine:
        assert isinstance(await engine.result(run_id), Succeeded)


@virtually
async def test_an_arm_that_is_not_taken_takes_no_message(system: VirtualSystem) -> None:
    """E-12, B-24: it is accepted, for the pipeline awaits it, and read by nobody."""

    def asks(inv: Inv) -> Way:
        return Way.ASK if inv.input == "ask" else Way.GO

    @step("no/v1")
    async def no(inv: Inv) -> None: ...

    branch: Any = Branch("branch/v1", decide=asks, arms={Way.ASK: (approval,), Way.GO: (no,)})
    pipeline = approved(before, branch, after, read=senders())
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x", delay=5)
        await run.send("approval", Approval("for nobody"))
        assert isinstance(await run.result(), Succeeded)
        assert len(await kept(run)) == 1
        assert "OperationWoken" not in await names(run)
        asked = await engine.submit(pipeline, "ask")
        assert (await until(asked, "ready")).step == "approval/v1"
        await asked.send("approval", Approval("ada"))
        assert isinstance(await asked.result(), Succeeded)


@virtually
async def test_a_condition_that_is_false_leaves_the_message(system: VirtualSystem) -> None:
    """E-12."""
    world = World(system)

    def never(inv: Inv) -> bool:
        return False

    first = AwaitMessage[str, object, Approval]("first/v1", name="approval", type=Approval, when=never)
    pipeline = approved(first, approval, read=senders(approval))
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await run.send("approval", Approval("ada"))
        result = await run.result()
    assert isinstance(result, Succeeded)
    assert result.output == ["ada"]


@virtually
async def test_an_operator_resolves_it_and_retry_changes_nothing(system: VirtualSystem) -> None:
    """R-17, B-20: a message that comes afterwards is for the next await."""
    world = World(system)
    second = AwaitMessage("second/v1", name="approval", type=Approval)
    pipeline = approved(approval, second, read=senders(approval, second))
    async with world.engine(app(pipeline)) as engine:
        run = await waiting(engine, pipeline)
        await run.retry()
        await system.sleep(1)
        assert (await run.info()).reason == "waits for message 'approval'"
        await run.resolve("approval/v1", value=Approval("by hand"))
        await run.send("approval", Approval("ada"))
        result = await run.result()
    assert isinstance(result, Succeeded)
    assert result.output == ["by hand", "ada"]


@virtually
async def test_a_deadline_and_a_cancel_end_it_at_once(system: VirtualSystem) -> None:
    """R-12, U-9."""
    world, pipeline = World(system), approved()
    async with world.engine(app(pipeline)) as engine:
        run = await waiting(engine, pipeline)
        await run.cancel()
        canceled = await run.result()
        late = await engine.submit(pipeline, "late", deadline=timedelta(seconds=30))
        assert (await until(late, "ready")).due_us == (await late.info()).deadline_us
        expired = await late.result()
    assert isinstance(canceled, Canceled)
    assert isinstance(expired, Canceled)
    assert (canceled.in_doubt, expired.in_doubt) == ((), ())
    assert expired.failure.reason == "deadline"


@virtually
async def test_many_runs_are_sent_one_message_each_by_selector(system: VirtualSystem) -> None:
    """R-17, B-24: a key makes it safe to do again; those that refuse say why."""
    world, pipeline = World(system), approved()
    async with world.engine(app(pipeline)) as engine:
        runs = [await waiting(engine, pipeline) for _ in range(3)]
        chosen = Selector(step="approval/v1")
        message = SendMessage("approval", Approval("all"), key="k", actor="ada")
        planned = await engine.each(chosen, message, dry_run=True)
        assert [v.verdict for v in planned] == ["done"] * 3
        assert await kept(runs[0]) == []
        assert [v.verdict for v in await engine.each(chosen, message)] == ["done"] * 3
        for run in runs:
            assert isinstance(await run.result(), Succeeded)
        again = await engine.each(Selector(pipeline="line", statuses=("succeeded",)), message)
        assert [v.verdict for v in again] == ["duplicate"] * 3
        other = await waiting(engine, pipeline)
        refused = await engine.each(Selector(pipeline="line"), SendMessage("aproval", Approval("all")))
        assert [(v.run_id, v.verdict) for v in refused] == [(other.id, "refused")]
        assert "did you mean" in refused[0].detail
        with pytest.raises(InvalidArgument):
            await engine.each(chosen, SendMessage(""))


@virtually
async def test_one_for_a_run_that_waits_for_its_slot_does_not_start_it(system: VirtualSystem) -> None:
    """R-5, B-24."""
    world = World(system)
    pipeline: Approved = Pipeline(
        id="line",
        input=str,
        deps=object,
        steps=(approval,),
        output=lambda inv: inv[approval],
        slot="serial",
        resource=lambda text: "one",
    )
    async with world.engine(app(pipeline)) as engine:
        first = await waiting(engine, pipeline)
        second = await engine.submit(pipeline, "second")
        await second.send("approval", Approval("early"))
        await system.sleep(60)
        info = await second.info()
        assert (info.status, info.reason, await names(second)) == (
            "ready",
            "waits for its slot",
            ["RunSubmitted", "MessageReceived"],
        )
        await first.send("approval", Approval("ada"))
        result = await second.result()
        assert (await engine.verify()).findings == ()
    assert isinstance(result, Succeeded)
    assert result.output == Approval("early")
