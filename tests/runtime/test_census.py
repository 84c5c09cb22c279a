"""D-4 to D-6 on a store: what checks and deployments say of runs under way, and that nothing is changed by looking."""

from __future__ import annotations

import msgspec
import pytest

from perdure import InvalidArgument, NotAllowed, NotFound, Retry, Succeeded, retired, step
from perdure.core.lock import Lock
from perdure.core.signature import signature_of
from perdure.define.locking import lock_of
from perdure.runtime.census import check, decode_census, encode_census
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, Line, World, app, line, until, virtually

SECRET = "a card number"
SLOW = Retry(initial=3_600, cap=3_600, jitter=0)


@step("reserve/v1")
async def reserve(inv: Inv) -> str:
    return SECRET


@step("charge/v1")
async def charge(inv: Inv) -> None:
    if inv.input == "stuck":
        raise OSError("no route")


@step("fraud-screen/v1")
async def fraud(inv: Inv) -> None:
    pass


@step("ship/v1")
async def ship(inv: Inv) -> None:
    pass


def before() -> Line:
    return line(reserve, charge, ship)


def inserted() -> Line:
    return line(reserve, fraud, charge, ship)


def removed() -> Line:
    return line(reserve, ship)


async def three_stuck(world: World) -> None:
    """Three runs whose charge waits for its second attempt, and one that has not begun; the engine is gone."""
    pipeline = before()
    async with world.engine(app(pipeline, retry=SLOW)) as engine:
        for number in range(3):
            await engine.submit(pipeline, "stuck", resource=f"stuck-{number}")
        await engine.submit(pipeline, "later", delay=36_000)
        await engine.idle()


@virtually
async def test_a_check_says_what_will_happen_and_changes_nothing(system: VirtualSystem) -> None:
    """D-6: per kind of ledger; three runs at one place are one ledger."""
    world = World(system)
    await three_stuck(world)
    async with world.client(app(before())) as client:
        stored = [await client.store.load_all_rows(run.run_id) for run in await client.list()]
        assert (await client.check()).pipelines[0].sentences == ("4 runs go on unchanged",)
        (found,) = (await client.check([inserted()])).pipelines
        assert (found.runs, found.ledgers, found.invalid) == (4, 2, 0)
        assert found.sentences == (
            "3 runs are past fraud-screen/v1 and will never run it",
            "1 run will run fraud-screen/v1 as well",
        )
        assert found.changes.inserted == ("fraud-screen/v1",)
        gone = await client.check([removed()])
        assert not gone.ok
        assert gone.pipelines[0].sentences[0] == (
            "3 runs would become invalid because their unresolved step charge/v1 is gone: keep it as retired"
        )
        assert (await client.check([line(reserve, retired(charge), ship)])).ok
        assert not (await client.check([])).ok, "a pipeline that is left out strands its runs"
        assert [await client.store.load_all_rows(run.run_id) for run in await client.list()] == stored


@virtually
async def test_a_need_is_checked_before_it_is_deployed(system: VirtualSystem) -> None:
    """M-14, D-6: what `check` foretells is what happens."""
    world = World(system)
    await three_stuck(world)

    @step("ship/v1", needs=(fraud,))
    async def careful(inv: Inv) -> None:
        inv[fraud]

    edited = line(reserve, fraud, charge, careful)
    async with world.client(app(edited)) as client:
        report = await client.check()
        assert (report.ok, report.pipelines[0].missing) == (False, 3)
        example = next(kind.example_run for kind in report.pipelines[0].kinds if kind.effects.breaks)
        stuck = await client.run(example)

    @step("charge/v1")
    async def mended(inv: Inv) -> None:
        pass

    async with world.engine(app(line(reserve, fraud, mended, careful), retry=SLOW)) as engine:
        info = await until(await engine.run(stuck.id), "invalid")
        assert info.reason.startswith("state-missing")


@virtually
async def test_an_engine_that_runs_is_counted_too(system: VirtualSystem) -> None:
    """D-6: a run that is being executed has no ledger in the index; its facts tell."""
    world, gate = World(system), Gate()

    @step("charge/v1")
    async def slow(inv: Inv) -> None:
        await gate()

    pipeline = line(reserve, slow, ship)
    async with world.engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, "x")
        await gate.reached.wait()
        (entry,) = await engine.store.ledgers()
        assert (entry.signature, entry.example_run) == (b"", run.id)
        (found,) = (await engine.check([removed()])).pipelines
        assert [kind.stand for kind in found.kinds] == ["charge/v1 is unresolved"]
        assert found.invalid == 1
        gate.go.set()
        await run.result()
        assert (await engine.check()).pipelines[0].runs == 0


@virtually
async def test_an_export_holds_no_payload_and_answers_the_same(system: VirtualSystem) -> None:
    """D-6: a pull request is checked without the database."""
    world = World(system)
    await three_stuck(world)
    async with world.client(app(before())) as client:
        census = await client.census()
        data = encode_census(census)
        assert decode_census(data) == census
        assert SECRET.encode() not in data
        assert b"stuck" not in data
        lock = lock_of([removed()])
        assert check(decode_census(data), lock.candidates()) == await client.check([removed()])
        assert (await client.check(lock)).pipelines == (await client.check([removed()])).pipelines
    for other in (b"", b"[]", b"{}", b"\xff", data[:-9]):
        with pytest.raises(InvalidArgument, match="no export of ledgers"):
            decode_census(other)
    with pytest.raises(InvalidArgument, match="version 2"):
        decode_census(data.replace(b'"perdure_ledgers":1', b'"perdure_ledgers":2'))


@virtually
async def test_a_run_that_cannot_be_read_is_named(system: VirtualSystem) -> None:
    """J-8: nothing is said of a run whose journal contradicts itself."""
    world = World(system)
    await three_stuck(world)
    async with world.client(app(before())) as client:
        (broken, *_) = await client.list()
        run = world.data.run(broken.run_id)
        assert run is not None
        assert run.state is not None
        run.state = msgspec.structs.replace(run.state, signature=b"")
        run.rows[0] = msgspec.structs.replace(run.rows[0], facts=b"[]")
        assert (await client.check()).unreadable == (broken.run_id,)


@virtually
async def test_verify_finds_a_wrong_signature(system: VirtualSystem) -> None:
    """J-11: the index column follows from the facts, and so does what it stands for."""
    world = World(system)
    await three_stuck(world)
    async with world.client(app(before())) as client:
        assert (await client.verify()).findings == ()
        (one, other, *_) = (await client.list())[::-1]
        for run_id, signature in ((one.run_id, bytes(16)), (other.run_id, b"")):
            run = world.data.run(run_id)
            assert run is not None
            assert run.state is not None
            run.state = msgspec.structs.replace(run.state, signature=signature)
        assert [f.run_id for f in (await client.verify()).findings] == [one.run_id]


@virtually
async def test_rows_that_are_rebuilt_have_their_ledgers_again(system: VirtualSystem) -> None:
    """J-11."""
    world = World(system)
    await three_stuck(world)
    async with world.client(app(before())) as client:
        before_loss = list(await client.store.ledgers())
        world.data.lose_index()
        assert list(await client.store.ledgers()) == []
        await client.verify(repair=True)
        assert list(await client.store.ledgers()) == before_loss
        assert all(signature_of(entry.ledger) == entry.signature for entry in before_loss)


# --- deploy


@virtually
async def test_deploying_and_rolling_back_number_generations(system: VirtualSystem) -> None:
    """D-4, D-5: a former topology becomes current as a new generation; the same one again is no news."""
    world = World(system)
    await three_stuck(world)
    async with world.client(app(inserted())) as client:
        assert [(d.generation, d.new) for d in await client.deploy(actor="ada")] == [(2, True)]
        assert [(d.generation, d.new) for d in await client.deploy(actor="ada")] == [(2, False)]
        back = await client.roll_back("line", 1, actor="ada")
        assert (back.generation, back.new) == (3, True)
        assert (await client.roll_back("line", 3)).new is False
        known = await client.deployments("line")
        assert [d.generation for d in known] == [1, 2, 3]
        assert known[0].digest == known[2].digest != known[1].digest
        assert [d.actor for d in known[1:]] == ["ada", "ada"]
        for pipeline, generation in (("line", 9), ("nothing", 1)):
            with pytest.raises(NotFound):
                await client.roll_back(pipeline, generation)


@virtually
async def test_what_would_strand_runs_is_not_deployed(system: VirtualSystem) -> None:
    """D-5, D-6: unless it is forced."""
    world = World(system)
    await three_stuck(world)
    async with world.client(app(before())) as client:
        with pytest.raises(NotAllowed, match="3 runs would become invalid .* nothing was deployed"):
            await client.deploy([removed()])
        with pytest.raises(NotAllowed, match="looks like another application"):
            await client.deploy([line(fraud)])
        with pytest.raises(InvalidArgument, match="no pipelines"):
            await client.deploy([])
        with pytest.raises(InvalidArgument, match="no pipelines"):
            await client.deploy(Lock({}))
        assert len(await client.deployments()) == 1
        assert [d.generation for d in await client.deploy([removed()], force=True)] == [2]
        await client.roll_back("line", 1)


@virtually
async def test_invalid_runs_go_on_after_a_deployment_that_can_continue_them(system: VirtualSystem) -> None:
    """D-2: re-evaluated when the generation differs; restored as retired, the step runs on [E-3]."""
    world = World(system)
    await three_stuck(world)
    async with world.engine(app(removed(), retry=SLOW)) as engine:
        runs = [run for run in await engine.list() if run.step == "charge/v1"]
        for run in runs:
            await engine.retry(run.run_id)
            assert (await until(await engine.run(run.run_id), "invalid")).reason.startswith("step-missing")
        (found,) = (await engine.check([line(reserve, retired(charge), ship)])).pipelines
        assert (found.mended, found.invalid) == (len(runs), 0)

    @step("charge/v1")
    async def works(inv: Inv) -> None:
        pass

    async with world.engine(app(line(reserve, retired(works), ship), retry=SLOW)) as engine:
        for run in runs:
            assert isinstance(await engine.result(run.run_id), Succeeded)


@virtually
async def test_a_retired_step_is_drained_when_the_last_run_has_left_it(system: VirtualSystem) -> None:
    """D-6: how many runs need it, and since when."""
    world = World(system)
    await three_stuck(world)

    @step("charge/v1")
    async def works(inv: Inv) -> None:
        pass

    edited = line(reserve, retired(works), ship)
    async with world.client(app(edited)) as client:
        (drain,) = (await client.check()).pipelines[0].drains
        assert (drain.drained, drain.runs, drain.unresolved, drain.fresh) == (False, 3, 3, True)
        assert drain.oldest_us == min(run.submitted_us for run in await client.list())
    async with world.engine(app(edited, retry=SLOW)) as engine:
        for run in await engine.list():
            if run.step == "charge/v1":
                await engine.result(run.run_id)
        (drain,) = (await engine.check()).pipelines[0].drains
        assert (drain.drained, drain.runs) == (True, 0)
