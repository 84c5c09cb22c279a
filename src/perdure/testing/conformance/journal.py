"""Appends: what wins, what loses and why [J-1 to J-5, J-14]."""

from __future__ import annotations

import asyncio

import msgspec

from perdure.core.facts import RunCancelRequested
from perdure.ports.store import Committed, Conflict, Fenced, Gone, IndexState, SlotTaken, Snapshot
from perdure.testing.conformance.lab import (
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
    loaded,
    owned,
    part,
    put,
    submitted,
)

CHECKS: list[Check] = []
check = part(CHECKS)


@check
async def first_append_creates_the_run(lab: Lab) -> None:
    """The run, its index row and its facts are there as they were given [J-1, J-11]."""
    store = await lab.engine()
    draft = Draft("run-1", slot="invoice-7", input='{"naïve": "\\u0000 ok", "n": 1e400}')
    state = IndexState("ready", due_us=T0 + 5, reason="delayed", step="reserve/v1")
    await put(store, draft, draft.submit(state))
    run = await expect_journal(store, draft)
    expect(run.row.locator, draft.locator, "locator")
    expect(run.row.run, draft.new, "immutable columns")
    expect(run.row.state, state, "state")
    expect((run.row.ended_us, run.row.attention), (None, False), "ended and attention")
    expect(await store.load("run-2"), None, "a run that is not there")


@check
async def appends_follow_each_other(lab: Lab) -> None:
    """Sequences are contiguous, rows come back in order, an append without index change leaves the row alone [J-2]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    for _ in range(20):
        await put(store, draft, draft.next(token=1))
    run = await expect_journal(store, draft)
    expect(run.row.state, owned(), "state after the claim")
    expect((await loaded(store, draft)).rows, run.rows, "load without a snapshot")


@check
async def one_loser_hurts_nobody(lab: Lab) -> None:
    """Appends of one turn of the loop travel together; one that is refused never hurts its neighbours."""
    store = await lab.engine()
    drafts = [await claimed(store, f"run-{i:03}") for i in range(50)]
    state = IndexState("ready", due_us=T0 + 9, token=1)
    appends = [draft.next(token=1, index=state) for draft in drafts]
    appends[17].prev_hash = bytes(32)
    appends[31] = drafts[31].next(token=1, after=0)
    results = await asyncio.gather(*[store.append(append) for append in appends])
    expect([i for i, result in enumerate(results) if result == Conflict()], [17, 31], "losers")
    for i, (draft, append, result) in enumerate(zip(drafts, appends, results, strict=True)):
        if i not in {17, 31}:
            draft.accept(append, result)
        run = await expect_journal(store, draft)
        expect(run.row.state, owned() if i in {17, 31} else state, f"state of {draft.run_id}")


@check
async def repeated_and_rivals_in_one_group(lab: Lab) -> None:
    """In one turn: the same append twice is committed twice, two at one place have one winner [J-5, J-14]."""
    store = await lab.engine()
    drafts = [await claimed(store, f"run-{i:03}") for i in range(20)]
    appends = [draft.next(token=1) for draft in drafts]
    rival = drafts[3].next(RunCancelRequested("someone"))
    sent = [*appends[:12], rival, appends[5], *appends[12:]]
    results = await asyncio.gather(*[store.append(append) for append in sent])
    expect(results.pop(13), Committed(drafts[5].locator), "an append sent twice in one group")
    expect(results.pop(12), Conflict(), "the later one of two at one place")
    for draft, append, result in zip(drafts, appends, results, strict=True):
        draft.accept(append, result)
        await expect_journal(store, draft)


@check
async def sent_again_is_committed(lab: Lab) -> None:
    """A collision with one's own append is success, however late, and writes nothing twice [J-14]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    append = draft.next(token=1, index=IndexState("ready", due_us=T0 + 9, token=1))
    await put(store, draft, append)
    expect(await store.append(append), Committed(draft.locator), "the same append again")
    await put(store, draft, draft.claim(2, "w2"))
    expect(await store.append(append), Committed(draft.locator), "the same append after a newer claim")
    run = await expect_journal(store, draft)
    expect(run.row.state, owned(2, "w2"), "the state a repeated append must not write again")


@check
async def submitted_again_is_committed(lab: Lab) -> None:
    """The same holds for the first append, although its slot is taken: by itself [J-14]."""
    store = await lab.engine()
    draft = Draft("run-1", slot="invoice-7")
    append = draft.submit()
    await put(store, draft, append)
    expect(await store.append(append), Committed(draft.locator), "the same submission again")
    await put(store, draft, draft.claim())
    expect(await store.append(append), Committed(draft.locator), "the same submission after the claim")
    await expect_journal(store, draft)


@check
async def same_run_id_conflicts(lab: Lab) -> None:
    """A run id that is taken by another submission is a conflict."""
    store = await lab.engine()
    draft = await submitted(store, "run-1")
    again = Draft("run-1", pipeline="other", input="[1]")
    again.submit()  # so that the second one's append id is another
    expect(await store.append(again.submit()), Conflict(), "another run with the same id")
    await expect_journal(store, draft)


@check
async def place_is_taken(lab: Lab) -> None:
    """Two appends at one place: the first wins, the second is told to read again [J-5]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    mine, theirs = draft.next(token=1), draft.next(RunCancelRequested("someone"))
    first, second = await asyncio.gather(store.append(theirs), store.append(mine))
    expect(second, Conflict(), "the second append at one place")
    draft.accept(theirs, first)
    await expect_journal(store, draft)


@check
async def predecessor_must_be_there(lab: Lab) -> None:
    """Nothing is appended above a gap, beside the tail, or onto a row with another hash [J-2]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    gap = draft.next(token=1)
    gap.first_seq += 7
    gap.prev_seq += 7
    expect(await store.append(gap), Conflict(), "an append above a gap")
    other = draft.next(token=1)
    other.prev_hash = bytes(32)
    expect(await store.append(other), Conflict(), "an append onto another history")
    await expect_journal(store, draft)


@check
async def newer_claim_fences(lab: Lab) -> None:
    """An owner whose token is stale is fenced, also where nobody is in its way; the claim's state stands [J-3]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    late = draft.next(token=1)
    await put(store, draft, draft.claim(2, "w2"))
    expect(await store.append(late), Fenced(2), "a late append of the former owner")
    knowing = draft.next(token=1, index=ENDED)
    expect(await store.append(knowing), Fenced(2), "a stale token at the tail")
    run = await expect_journal(store, draft)
    expect((run.row.state, run.row.ended_us), (owned(2, "w2"), None), "state")


@check
async def removed_run_is_gone(lab: Lab) -> None:
    """A removed run takes no append, and its number is never another run's [J-2, R-9]."""
    store = await lab.engine()
    draft = await ended(store, "run-1")
    late, late_again = draft.next(RunCancelRequested("someone")), draft.next(token=1, index=ENDED)
    expect(await store.remove_ended(T0 + 1000, 10), 1, "removed")
    expect(await store.append(late), Gone(), "an append from outside to a removed run")
    others = [await submitted(store, f"run-2{i}") for i in range(5)]
    expect(draft.locator in {other.locator for other in others}, False, "a number given twice")
    expect(await store.append(late_again), Gone(), "an owner's append to a removed run")
    expect(await store.set_index(draft.locator, READY, draft.tail), False, "index state of a removed run")
    store.put_snapshot(draft.locator, Snapshot(1, bytes(32), 1, 1, b"{}"))
    expect(await store.load("run-1"), None, "the removed run")
    for other in others:
        await expect_journal(store, other)


@check
async def canceled_caller_does_not_cancel_the_append(lab: Lab) -> None:
    """An append in flight is committed whatever becomes of the task that waits for it [J-14]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    append = draft.next(token=1)

    async def caller() -> None:
        await store.append(append)

    task = asyncio.ensure_future(caller())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    expect(await store.append(append), Committed(draft.locator), "the same append again")
    draft.accept(append, Committed(draft.locator))
    await expect_journal(store, draft)


@check
async def many_appends_at_once(lab: Lab) -> None:
    """More appends than any group holds, with payloads of very different sizes."""
    store = await lab.engine()
    drafts = [Draft(f"run-{i:04}", input=msgspec.json.encode("x" * (i * i % 20_011)).decode()) for i in range(1500)]
    appends = [draft.submit() for draft in drafts]
    results = await asyncio.gather(*[store.append(append) for append in appends])
    for draft, append, result in zip(drafts, appends, results, strict=True):
        draft.accept(append, result)
    expect(len({draft.locator for draft in drafts}), 1500, "different numbers")
    for draft in drafts[::100]:
        await expect_journal(store, draft)


@check
async def large_facts_survive(lab: Lab) -> None:
    """A payload of megabytes comes back byte for byte."""
    store = await lab.engine()
    draft = Draft("run-1", input=msgspec.json.encode("ä€😀" * 400_000).decode())
    await put(store, draft, draft.submit())
    await expect_journal(store, draft)


@check
async def snapshot_shortens_the_load(lab: Lab) -> None:
    """With a snapshot only the rows after it are read; without a fitting row it is not used [J-8, J-11]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    for _ in range(6):
        await put(store, draft, draft.next(token=1))
    folded = draft.rows[4]
    snapshot = Snapshot(folded.first_seq, folded.hash, folded.first_seq + folded.count - 1, 1, b'{"p":1}')
    store.put_snapshot(draft.locator, snapshot)
    await put(store, draft, draft.next(token=1))
    run = await loaded(store, draft)
    expect(run.snapshot, snapshot, "snapshot")
    expect(run.rows, tuple(draft.rows[5:]), "rows after the snapshot")
    await expect_journal(store, draft)
    store.put_snapshot(draft.locator, Snapshot(folded.first_seq, bytes(32), 5, 1, b"{}"))
    await put(store, draft, draft.next(token=1))
    run = await loaded(store, draft)
    expect(run.snapshot, None, "a snapshot of another history")
    expect(run.rows, tuple(draft.rows), "all rows, as there is no usable snapshot")


@check
async def ended_in_the_first_append(lab: Lab) -> None:
    """A first append may carry the end already; the slot is free at once [M-1]."""
    store = await lab.engine()
    draft = Draft("run-1", slot="invoice-7")
    await put(store, draft, draft.submit(ENDED))
    run = await expect_journal(store, draft)
    expect((run.row.state, run.row.ended_us), (ENDED, T0), "state and end")
    live = Draft("run-2", slot="invoice-7")
    await put(store, live, live.submit())
    refused = await store.append(Draft("run-3", slot="invoice-7").submit(ENDED))
    expect(refused, SlotTaken("run-2", live.new.input_digest), "an ended run in a slot that is taken")
