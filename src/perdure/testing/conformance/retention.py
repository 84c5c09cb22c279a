"""What an archive needs of a store: which runs may go, removing exactly those, and putting one back [R-9]."""

from __future__ import annotations

from perdure.ports.store import EndedRun, IndexState, JournalRow, RunFilter, RunTail, Store
from perdure.testing.conformance.lab import (
    ENDED,
    T0,
    Check,
    Draft,
    Lab,
    claimed,
    ended,
    expect,
    expect_journal,
    loaded,
    part,
    put,
    submitted,
)

CHECKS: list[Check] = []
check = part(CHECKS)

LONG = 1_200
"""Journal rows of a long run."""


def tail(draft: Draft) -> RunTail:
    """The run as it is now."""
    return RunTail(draft.locator, draft.tail, draft.rows[-1].hash)


async def _kept(store: Store) -> list[str]:
    return sorted([row.run.run_id for row in (await store.list_runs(RunFilter())).rows])


async def _waited_for(store: Store) -> Draft:
    """An ended run that another is about to look at."""
    target = await claimed(store, "run-target")
    await submitted(store, "run-waiter", IndexState("ready", awaits=("run-target",), need=1, at_us=T0))
    await put(store, target, target.next(token=1, index=ENDED, at_us=T0 + 10))
    return target


@check
async def ended_runs_come_in_pages(lab: Lab) -> None:
    """Each once, also while they are being removed; live, late, awaited and slot-keeping ones never [R-9]."""
    store = await lab.engine()
    runs = [await ended(store, f"run-{number}", T0 + 100 + number % 3) for number in range(7)]
    await claimed(store, "run-live")
    await _waited_for(store)
    once = Draft("run-once", slot="invoice-7", once=True)
    await put(store, once, once.submit(ENDED))
    found: list[EndedRun] = []
    after: EndedRun | None = None
    while page := await store.ended_runs(T0 + 102, 2, after=after):
        expect(len(page) <= 2, True, "length of a page")
        found += page
        after = page[-1]
        await store.remove_runs([tail(draft) for draft in runs if draft.run_id == after.run_id])
    wanted = [EndedRun(T0 + 100 + number % 3, runs[number].locator, f"run-{number}") for number in (0, 1, 3, 4, 6)]
    expect(sorted(found, key=lambda run: run.run_id), wanted, "ended runs")
    expect(list(await store.ended_runs(T0 + 100, 5)), [], "runs that ended before the first")


@check
async def exactly_the_runs_that_were_read_are_removed(lab: Lab) -> None:
    """Whole; a run that is not as it was read stays, and so do live, awaited and slot-keeping ones [R-9]."""
    store = await lab.engine()
    going = [await ended(store, f"run-{number}") for number in range(2)]
    other = await ended(store, "run-other")
    live = await claimed(store, "run-live")
    awaited = await _waited_for(store)
    once = Draft("run-once", slot="invoice-7", once=True)
    await put(store, once, once.submit(ENDED))
    staying = [other, live, awaited, once]
    wrong = [
        RunTail(other.locator, other.tail, bytes(32)),
        RunTail(other.locator, other.rows[0].first_seq, other.rows[0].hash),
        RunTail(10**9, 1, bytes(32)),
        *map(tail, (live, awaited, once)),
    ]
    expect(await store.remove_runs(wrong), 0, "removed of those that differ")
    expect(await store.remove_runs([]), 0, "removed of none")
    for draft in (*going, *staying):
        await expect_journal(store, draft)
    expect(await store.remove_runs([*wrong, *map(tail, going)]), 2, "removed")
    expect(await store.remove_runs(list(map(tail, going))), 0, "removed again")
    for draft in going:
        expect(await store.journal_of(draft.run_id), None, f"bare journal of {draft.run_id}")
        expect(await store.load(draft.run_id), None, f"load of {draft.run_id}")
    expect(list(await store.missing_index(10)), [], "runs to rebuild")
    for draft in staying:
        await expect_journal(store, draft)


@check
async def an_ended_run_is_put_back_as_it_was(lab: Lab) -> None:
    """All of it but its number, and as an ended run: not due, and without its slot [R-9]."""
    store = await lab.engine()
    draft = Draft("run-1", slot="invoice-7", annotations={"team": "red", "region": "eu"})
    await put(store, draft, draft.submit())
    await put(store, draft, draft.claim())
    state = IndexState("failed", None, token=1, generation=3, reason="no money", step="pay/v1", version=3, priority=7)
    await put(store, draft, draft.next(token=1, index=state, at_us=T0 + 10))
    before = (await loaded(store, draft)).row
    expect(await store.remove_runs([tail(draft)]), 1, "removed")
    taker = await submitted(store, "run-2", slot="invoice-7")
    expect(await store.insert_ended(before.run, before.state, T0 + 10, draft.rows), True, "put back")
    after = (await expect_journal(store, draft)).row
    expect(after.locator != before.locator, True, "a number of its own")
    expect(
        (after.run, after.state, after.ended_us, after.attention, after.waiting, after.left),
        (before.run, before.state, T0 + 10, False, False, None),
        "index row",
    )
    expect(list(await store.due(T0 + 999, 5)), ["run-2"], "what is due")
    expect(list(await store.missing_index(10)), [], "runs to rebuild")
    await expect_journal(store, taker)
    draft.locator = after.locator
    expect(await store.remove_runs([tail(draft)]), 1, "removed again")


@check
async def nothing_is_put_over_a_run(lab: Lab) -> None:
    """Whatever stands there under that id stays, live or ended [R-9]."""
    store = await lab.engine()
    live, over = await claimed(store, "run-1"), await ended(store, "run-2")
    other = JournalRow(1, 1, T0, bytes(16), bytes(32), b"[]")
    for draft in (live, over):
        row = (await loaded(store, draft)).row
        expect(await store.insert_ended(draft.new, ENDED, T0 + 5, [other]), False, f"put over {draft.run_id}")
        expect((await loaded(store, draft)).row, row, f"index row of {draft.run_id}")
        await expect_journal(store, draft)
    expect(await _kept(store), ["run-1", "run-2"], "runs")


@check
async def long_runs_go_and_come_whole(lab: Lab) -> None:
    """However many rows one has, removal and return are of all of them [R-9]."""
    store = await lab.engine()
    draft = Draft("run-1")
    rows: list[JournalRow] = []
    for _ in range(LONG):
        append = draft.next(at_us=T0) if rows else draft.submit()
        rows.append(
            JournalRow(append.first_seq, append.count, append.at_us, append.append_id, append.hash, append.facts)
        )
        draft.rows = rows
    expect(await store.insert_ended(draft.new, ENDED, T0 + 10, rows), True, "put in")
    await ended(store, "run-2")
    draft.locator = (await expect_journal(store, draft)).row.locator
    removed = 0
    while count := await store.remove_ended(T0 + 11, 10):
        removed += count
    expect(removed, 2, "removed")
    expect(await store.journal_of("run-1"), None, "bare journal")
