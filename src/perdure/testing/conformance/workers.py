"""Workers: rows that are renewed, and that others mark dead; what dead ones leave is due [R-2, R-3]."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.permits import Permit
from perdure.ports.store import Committed, Deployment, Fenced, IndexState, SubmissionKey, WorkerRow
from perdure.testing.conformance.lab import (
    ENDED,
    READY,
    T0,
    Check,
    Draft,
    Lab,
    claimed,
    expect,
    expect_type,
    loaded,
    owned,
    part,
    put,
)

CHECKS: list[Check] = []
check = part(CHECKS)


def worker(id: str, since_us: int = T0) -> WorkerRow:
    """A worker's row as it registers."""
    return WorkerRow(
        id, "host", 77, since_us, {"payout": 3}, "build-1", ("daily", "hourly"), seen_us=since_us, lease_us=15_000_000
    )


@check
async def a_worker_registers_and_renews(lab: Lab) -> None:
    """Its row is read back, its beat grows with every renewal and says when, and registering again keeps it [R-3]."""
    store = await lab.engine()
    if not store.shared:
        return
    expect(await store.renew("w1", T0), False, "a renewal of who is not registered")
    await store.register(worker("w2", T0 + 5))
    await store.register(worker("w1"))
    expect(list(await store.workers()), [worker("w1"), worker("w2", T0 + 5)], "both, the oldest first")
    expect(await store.renew("w1", T0 + 9), True, "a renewal")
    expect(await store.renew("w1", T0 + 10, draining=True), True, "another")
    seen = replace(worker("w1"), beat=2, seen_us=T0 + 10, draining=True)
    expect(list(await store.workers()), [seen, worker("w2", T0 + 5)], "beats")
    await store.register(replace(worker("w1"), serves={"refund": 1}))
    (first, _) = await store.workers()
    expect((first.serves, first.beat), ({"refund": 1}, 2), "a worker that serves something else now")
    await store.retire("w1")
    await store.retire("w1")
    expect(list(await store.workers()), [worker("w2", T0 + 5)], "after one took leave")
    expect(await store.renew("w1", T0 + 11), False, "a renewal of who took leave")


@check
async def a_worker_is_buried_at_the_beat_that_was_seen(lab: Lab) -> None:
    """Only where nothing was heard meanwhile; the dead renew no more, whatever they say [R-3]."""
    store = await lab.engine()
    if not store.shared:
        return
    other = await lab.client()
    await store.register(worker("w1"))
    await store.renew("w1", T0)
    expect(await other.bury("w1", 0), False, "at an older beat")
    expect(await other.bury("w1", 1), True, "at the beat")
    expect(await other.bury("w1", 1), False, "twice")
    expect(await other.bury("nobody", 0), False, "who is not there")
    expect(await store.renew("w1", T0 + 1), False, "a renewal of the dead")
    (row,) = await store.workers()
    expect((row.dead, row.beat), (True, 1), "the dead one")


@check
async def what_the_dead_leave_is_due(lab: Lab) -> None:
    """Runs of workers that are dead or not registered are due; those of the living are left alone [R-3, R-16]."""
    store = await lab.engine()
    if not store.shared:
        return
    drafts: dict[str, Draft] = {}
    for name in ("living", "dead", "unknown"):
        drafts[name] = await claimed(store, f"run-{name}")
        await put(store, drafts[name], drafts[name].next(token=1, index=owned(worker=name)))
    for name in ("living", "dead"):
        await store.register(worker(name))
    expect(list(await store.owned("dead")), ["run-dead"], "runs of the one that dies")
    expect([(row.id, row.runs) for row in await store.workers()], [("dead", 1), ("living", 1)], "runs of each")
    await store.bury("dead", 0)
    expect(await store.take_over(T0 + 50), 2, "runs taken over")
    expect(await store.take_over(T0 + 51), 0, "nothing is left")
    for name in ("dead", "unknown"):
        state = (await loaded(store, drafts[name])).row.state
        expect((state.status, state.due_us, state.worker), ("ready", T0 + 50, ""), f"state of what {name} left")
    expect((await loaded(store, drafts["living"])).row.state.worker, "living", "owner of the other")


@check
async def the_dead_append_nothing(lab: Lab) -> None:
    """An owner that was found dead is refused, also where nobody has claimed its run yet; clients go on [R-3]."""
    store = await lab.engine()
    if not store.shared:
        return
    other = await lab.client()
    await store.register(worker("w1"))
    free, mine, ends = [await claimed(store, f"run-{n}") for n in range(3)]
    await put(store, mine, mine.next(token=1))
    await other.bury("w1", 0)
    for append in (mine.next(token=1), ends.next(token=1, index=ENDED), free.claim(2)):
        expect(isinstance(await store.append(append), Committed), False, "an append of the dead")
    expect(await store.set_index(mine.locator, READY, mine.tail), False, "an index state of the dead")
    await put(other, mine, mine.next())
    await store.register(worker("w3"))
    await put(store, ends, ends.next(token=1, index=ENDED))


@check
async def the_dead_submit_nothing_of_their_own(lab: Lab) -> None:
    """A submission that carries a claim is its worker's, and is refused whichever way it goes in, whole: nothing of it
    is kept. One that anybody may claim is as good as a client's; neighbours in its group fare as if alone [R-3, J-12].
    """
    store = await lab.engine()
    if not store.shared:
        return
    other = await lab.client()
    for name in ("buried", "removed"):
        await store.register(worker(name))
        before = Draft(f"{name}-before", slot=f"{name}-taken")
        await put(store, before, before.submit(owned(worker=name)))
        await (other.bury(name, 0) if name == "buried" else other.retire(name))
        plain, slotted, keyed, exclusive, limited, rests = [Draft(f"{name}-{n}", slot=f"{name}-{n}") for n in range(6)]
        exclusive.new = replace(exclusive.new, mutexes=("vault",))
        key = SubmissionKey("default", "payout", name, keyed.run_id, keyed.new.input_digest, T0 + 10)
        mine = owned(worker=name)
        sent = [
            plain.submit(mine),
            slotted.submit(mine),
            replace(keyed.submit(mine), key=key),
            exclusive.submit(mine),
            replace(limited.submit(mine), permits=(Permit(name, "", "concurrency", 1),)),
            rests.submit(IndexState("ready", due_us=T0 + 5, token=1, generation=1)),
        ]
        neighbour = store.append(Draft(f"{name}-free").submit())
        for append, answer in [(append, store.append(append)) for append in sent]:
            expect_type(await answer, Fenced, f"a submission of the {name} worker, {append.run_id}")
            expect(await store.load(append.run_id), None, f"what is there of {append.run_id}")
            expect_type(await store.append(append), Fenced, f"alone, {append.run_id}")
        expect_type(await neighbour, Committed, "the neighbour")
        for draft, append in zip((plain, slotted, keyed, exclusive, limited), sent, strict=False):
            await put(other, draft, replace(append, index=READY))


@check
async def what_was_made_under_a_former_identity_is_refused(lab: Lab) -> None:
    """An append belongs to the worker in whose name it was queued, though that goes on as another one by then [R-3]."""
    store = await lab.engine()
    if not store.shared:
        return
    other = await lab.client()
    await store.register(worker("w1"))
    mine, rests = await claimed(store, "run-1"), await claimed(store, "run-2")
    await other.bury("w1", 0)
    new = Draft("run-3")
    late = [store.append(append) for append in (mine.next(token=1), new.submit(owned()))]
    written = store.set_index(rests.locator, READY, rests.tail)
    await store.register(worker("w2"))
    for answer in late:
        expect_type(await answer, Fenced, "an append of who was found dead")
    expect(await written, False, "an index state of who was found dead")
    await put(store, mine, mine.next(token=1))


@check
async def generations_are_the_newest(lab: Lab) -> None:
    """Of every pipeline the greatest number [D-4]."""
    store = await lab.engine()
    expect(await store.generations(), {}, "of an empty store")
    for pipeline, generation in (("payout", 1), ("refund", 1), ("payout", 2)):
        await store.deploy(Deployment(pipeline, generation, f"digest-{generation}", b"[]", T0, "someone"))
    expect(await store.generations(), {"payout": 2, "refund": 1}, "newest generations")
