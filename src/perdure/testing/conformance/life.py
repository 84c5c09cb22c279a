"""Rebuilding, labels, and stores that come, go and stand side by side [R-2, R-9, J-11]."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from perdure.core.facts import RunCancelRequested
from perdure.errors import StoreInUse
from perdure.ports.store import IndexState, RunFilter, SlotTaken, Snapshot, Store
from perdure.testing.conformance.lab import (
    DEADLINE_S,
    ENDED,
    READY,
    T0,
    Check,
    Draft,
    Lab,
    claimed,
    ended,
    expect,
    expect_journal,
    expect_type,
    expect_unavailable,
    loaded,
    owned,
    part,
    put,
    submitted,
)

CHECKS: list[Check] = []
check = part(CHECKS)


@check
async def retention_removes_only_what_ended_before(lab: Lab) -> None:
    """Whole ended runs go, in bounded batches; live ones and later ends stay [R-9]."""
    store = await lab.engine()
    for number in range(6):
        await ended(store, f"run-{number}", T0 + 100 + number)
    live = await claimed(store, "run-7")
    expect(await store.count_ended(T0 + 105), 5, "count of what would be removed")
    counts = [await store.remove_ended(T0 + 105, 2) for _ in range(4)]
    expect(counts, [2, 2, 1, 0], "removed a batch")
    expect(sorted([row.run.run_id for row in (await store.list_runs(RunFilter())).rows]), ["run-5", "run-7"], "stay")
    expect(await store.load_all_rows("run-0"), None, "journal of a removed run")
    expect(await store.journal_of("run-0"), None, "bare journal of a removed run")
    expect(list(await store.missing_index(10)), [], "runs to rebuild")
    await expect_journal(store, live)
    expect(await store.remove_ended(T0 + 106, 10), 1, "removed later")
    expect(await store.reclaim() >= 0, True, "bytes given back")
    await expect_journal(store, live)


@check
async def retention_keeps_what_holds_a_slot_for_ever(lab: Lab) -> None:
    """A slot that was taken once stays taken: its run is the record of that, so retention leaves it [R-5, R-9]."""
    store = await lab.engine()
    draft = Draft("run-1", slot="invoice-7", once=True)
    await put(store, draft, draft.submit(ENDED))
    expect(await store.count_ended(T0 + 1), 0, "count of what would be removed")
    expect(await store.remove_ended(T0 + 1, 10), 0, "removed")
    expect_type(await store.append(Draft("run-2", slot="invoice-7").submit()), SlotTaken, "another run")


@check
async def index_rows_are_restored(lab: Lab) -> None:
    """A row computed from the facts replaces what stands there, slot and end included [J-11]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1", slot="invoice-7")
    found = await store.journal_of("run-1")
    bare = None if found is None else (found[0], tuple(found[1]))
    expect(bare, (draft.locator, tuple(draft.rows)), "bare journal")
    expect(await store.journal_of("run-9"), None, "no such run")
    state = IndexState("ready", due_us=T0 + 3, token=1, generation=1)
    await store.restore_index(draft.locator, draft.new, state, None, slot_held=True)
    expect((await loaded(store, draft)).row.state, state, "restored state")
    expect(list(await store.due(T0 + 3, 5)), ["run-1"], "due")
    second = Draft("run-2", slot="invoice-7")
    expect(await store.append(second.submit()), SlotTaken("run-1", draft.new.input_digest), "the slot")
    await store.restore_index(draft.locator, draft.new, ENDED, T0 + 50, slot_held=False)
    expect((await loaded(store, draft)).row.ended_us, T0 + 50, "restored end")
    await put(store, second, second.submit())
    await store.restore_index(draft.locator, draft.new, state, None, slot_held=True)
    third = await store.append(Draft("run-3", slot="invoice-7").submit())
    expect(third, SlotTaken("run-2", second.new.input_digest), "a slot that a newer run holds by now")
    await put(store, draft, draft.next(token=1, index=ENDED))
    third = await store.append(Draft("run-3", slot="invoice-7").submit())
    expect(third, SlotTaken("run-2", second.new.input_digest), "after the end of a run that did not hold it")


@check
async def annotations_are_kept(lab: Lab) -> None:
    """A run's labels stay as they were given, whatever is written to its row, and are restored with it [J-11]."""
    store = await lab.engine()
    given = {"invoice": "Ä 7", "team": "", "a key": 'with "quotes"'}
    draft = Draft("run-1", annotations=given)
    plain = [Draft(f"run-1{i:02}", annotations={"number": str(i)} if i % 2 else None) for i in range(40)]
    appends = [(each, each.submit()) for each in (draft, *plain)]
    answers = [store.append(append) for _, append in appends]
    for (each, append), answer in zip(appends, answers, strict=True):
        each.accept(append, await answer)
    await put(store, draft, draft.claim())
    expect((await loaded(store, draft)).row.run.annotations, tuple(sorted(given.items())), "annotations")
    for each in plain:
        expect((await loaded(store, each)).row.run, each.new, "a run of many")
    other = replace(draft.new, annotations=(("team", "new"),))
    await store.restore_index(draft.locator, other, READY, None, slot_held=False)
    expect((await loaded(store, draft)).row.run, other, "restored")


@check
async def everything_survives_closing(lab: Lab) -> None:
    """A store opened again is the store that was closed; numbers go on where they were [J-1]."""
    store = await lab.engine()
    drafts = [await claimed(store, f"run-{i}", slot=f"invoice-{i}") for i in range(3)]
    last = drafts[0].rows[-1]
    snapshot = Snapshot(last.first_seq, last.hash, 3, 1, b"{}")
    store.put_snapshot(drafts[0].locator, snapshot)
    store = await lab.reopened(store)
    for draft in drafts:
        run = await expect_journal(store, draft)
        expect(run.row.state, owned(), "state")
        await put(store, draft, draft.next(token=1))
    expect((await loaded(store, drafts[0])).snapshot, snapshot, "snapshot")
    newer = await submitted(store, "run-9")
    expect(newer.locator in {draft.locator for draft in drafts}, False, "a number given twice")


@check
async def closing_finishes_what_was_appended(lab: Lab) -> None:
    """`close` waits for appends in flight, even of the same turn of the loop; closing twice is nothing."""
    store = await lab.engine()
    draft = await submitted(store, "run-1")
    append = draft.next(RunCancelRequested("someone"))
    future = store.append(append)
    await store.close()
    draft.accept(append, await asyncio.wait_for(future, DEADLINE_S))
    await store.close()
    await expect_journal(await lab.engine(), draft)


@check
async def closed_store_answers_nothing(lab: Lab) -> None:
    """After `close` every use is `StoreUnavailable`, at once."""
    store = await lab.engine()
    draft = await submitted(store, "run-1")
    await store.close()
    await expect_refusals(store, draft)


@check
async def aborted_store_answers_nothing(lab: Lab) -> None:
    """After `abort` too; aborting twice is nothing."""
    store = await lab.engine()
    draft = await submitted(store, "run-1")
    store.abort()
    store.abort()
    await expect_refusals(store, draft)


async def expect_refusals(store: Store, draft: Draft) -> None:
    """Fail unless the store refuses reads, appends and sweeps."""

    async def append() -> object:
        return await store.append(draft.next(RunCancelRequested("someone")))

    await expect_unavailable(lambda: store.load(draft.run_id), "load")
    await expect_unavailable(append, "append")
    await expect_unavailable(lambda: store.take_over(T0), "take_over")


@check
async def aborting_loses_nothing_acknowledged(lab: Lab) -> None:
    """`abort` is a kill: what was acknowledged stays, what was in flight may go, ownership is free at once [R-2]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    flying = draft.next(token=1)
    future = store.append(flying)
    store.abort()
    store = await lab.engine("w2")
    expect(future.done() and not future.cancelled(), False, "an append in flight was answered after the abort")
    run = expect_type(await store.load_all_rows("run-1"), type(await loaded(store, draft)), "run")
    expect(run.rows[: len(draft.rows)], tuple(draft.rows), "acknowledged rows")
    again = await store.append(flying)
    draft.accept(flying, again)
    await expect_journal(store, draft)


@check
async def one_owner_at_a_time(lab: Lab) -> None:
    """Where engines do not share a store, a second one is refused by the holder's name, a client is not; after `close`
    the next engine may [R-2].
    """
    first = await lab.engine("worker-one")
    second = lab.unopened()
    if first.shared:
        await second.open(owner="worker-two")
        draft = await submitted(second, "run-1")
        expect((await loaded(first, draft)).row.state, READY, "a run of the other engine")
        return
    try:
        await second.open(owner="worker-two")
    except StoreInUse as error:
        expect("worker-one" in str(error), True, f"the holder's name in {str(error)!r}")
    else:
        raise AssertionError("a second engine was let in")
    await expect_unavailable(lambda: second.load("run-1"), "a store that did not open")
    await submitted(await lab.client(), "run-1")
    await first.close()
    await second.open(owner="worker-two")
    expect_type(await second.load("run-1"), object, "the run the client submitted")


@check
async def client_works_beside_the_engine(lab: Lab) -> None:
    """A client submits, reads and appends from outside while the engine owns the store; both see all of it [R-2]."""
    engine, client = await lab.engine(), await lab.client()
    draft = await submitted(client, "run-1", slot="invoice-7")
    await put(engine, draft, draft.claim())
    await put(client, draft, draft.next(RunCancelRequested("someone"), index=READY))
    for store in (engine, client):
        await expect_journal(store, draft)
        expect(list(await store.attention("w1")), ["run-1"], "attention")
    refused = await client.append(Draft("run-2", slot="invoice-7").submit())
    expect(refused, SlotTaken("run-1", draft.new.input_digest), "the slot, seen by the client")
    await put(engine, draft, draft.next(token=1, index=ENDED))
    expect((await loaded(client, draft)).row.state, ENDED, "the end, seen by the client")


@check
async def engine_notices_a_client(lab: Lab) -> None:
    """The engine's listener is called after a client's commit, and after each later one [R-2]."""
    engine, client = await lab.engine(), await lab.client()
    noticed = asyncio.Event()
    engine.on_change(lambda change: noticed.set())
    for number in range(3):
        noticed.clear()
        await submitted(client, f"run-{number}")
        await asyncio.wait_for(noticed.wait(), DEADLINE_S)


@check
async def own_commits_are_no_news(lab: Lab) -> None:
    """A store does not call its own listeners about its own commits."""
    engine, client = await lab.engine(), await lab.client()
    heard: list[str] = []
    noticed = asyncio.Event()
    engine.on_change(lambda change: heard.append("engine"))
    client.on_change(lambda change: noticed.set())
    await submitted(engine, "run-1")
    await asyncio.wait_for(noticed.wait(), DEADLINE_S)  # by now the engine would have noticed, had it looked wrongly
    await submitted(engine, "run-2")
    expect(heard, [], "what the engine heard of its own commits")


@check
async def info_tells_what_it_is(lab: Lab) -> None:
    """`info` counts runs and rows and names the kind of store."""
    store = await lab.engine()
    await claimed(store, "run-1")
    await submitted(store, "run-2")
    info = await store.info()
    expect((info["runs"], info["journal_rows"]), (2, 3), "runs and rows")
    expect_type(info["kind"], str, "kind")
