"""Runs that wait for other runs: woken in the transaction that ends one, refused where they would wait in a circle."""

from __future__ import annotations

import asyncio

from perdure.core.facts import RunCancelRequested
from perdure.ports.store import Append, Committed, Conflict, Fenced, IndexState, RunStatus, Store, WaitCycle
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
    expect_type,
    loaded,
    owned,
    part,
    put,
    submitted,
)

AT = T0 + 100
"""When a run of these checks says what it waits for."""

CHECKS: list[Check] = []
check = part(CHECKS)


def awaiting(*awaits: str, need: int = 0, status: RunStatus = "ready", due_us: int | None = None) -> IndexState:
    """The row of a run that rests until these have ended, or `need` of them."""
    return IndexState(status, due_us, token=1, generation=1, awaits=awaits, need=need or len(awaits), at_us=AT)


async def waiter(store: Store, run_id: str, *awaits: str, need: int = 0) -> Draft:
    """A run that its owner let go of, to wait."""
    draft = await claimed(store, run_id)
    await put(store, draft, draft.next(token=1, index=awaiting(*awaits, need=need)))
    return draft


def end(draft: Draft, at_us: int) -> Append:
    """The append that ends a run of `claimed`."""
    return draft.next(token=1, index=ENDED, at_us=at_us)


async def expect_due(store: Store, draft: Draft, due_us: int | None, what: str) -> None:
    """Fail unless the run is ready and due at that time."""
    state = (await loaded(store, draft)).row.state
    expect((state.status, state.due_us), ("ready", due_us), what)


@check
async def who_waits_is_due_when_all_have_ended(lab: Lab) -> None:
    """In the append that ends the last, at its time; not before, and not by anything else that happens [R-16]."""
    store = await lab.engine()
    first, second = await claimed(store, "run-1"), await claimed(store, "run-2")
    expect(await store.anybody_waits(), False, "before anybody waits")
    draft = await waiter(store, "run-9", "run-1", "run-2")
    expect(await store.anybody_waits(), True, "while one waits")
    found = (await loaded(store, draft)).row.state
    expect((found.awaits, found.need, found.at_us, found.due_us), ((), 0, 0, None), "its row, as it is read")
    await put(store, first, first.next(token=1))
    await expect_due(store, draft, None, "after a fact that ends nothing")
    await put(store, first, end(first, T0 + 200))
    await expect_due(store, draft, None, "after one of two")
    expect(await store.next_due_us(), None, "what is due then")
    await put(store, second, end(second, T0 + 300))
    await expect_due(store, draft, T0 + 300, "after both")
    expect(list(await store.due(T0 + 300, 5)), ["run-9"], "who is due then")
    await put(store, draft, draft.claim(2))
    expect(await store.anybody_waits(), False, "once it has looked")


@check
async def fewer_may_be_enough(lab: Lab) -> None:
    """`need` of them; one that ends later changes nothing. A run named twice counts once [R-13, R-16]."""
    store = await lab.engine()
    targets = [await claimed(store, f"run-{n}") for n in range(4)]
    draft = await waiter(store, "run-9", "run-0", "run-0", "run-1", "run-2", "run-3", need=2)
    await put(store, targets[0], end(targets[0], T0 + 200))
    await expect_due(store, draft, None, "after one")
    await put(store, targets[2], end(targets[2], T0 + 300))
    await expect_due(store, draft, T0 + 300, "after two")
    await put(store, targets[1], targets[1].next(token=1))
    await expect_due(store, draft, T0 + 300, "after a fact of a third")


@check
async def what_has_ended_or_is_not_there_counts_at_once(lab: Lab) -> None:
    """Otherwise who comes late would wait for ever [R-13, R-16]."""
    store = await lab.engine()
    await ended(store, "run-1")
    live = await claimed(store, "run-2")
    await expect_due(store, await waiter(store, "run-8", "run-1", "run-none"), AT, "for nothing that lives")
    draft = await waiter(store, "run-9", "run-1", "run-1", "run-none", "run-2", need=3)
    await expect_due(store, draft, None, "for one that lives")
    await put(store, live, end(live, T0 + 200))
    await expect_due(store, draft, T0 + 200, "after that one")
    late = Draft("run-7")
    await put(store, late, late.submit(awaiting("run-1")))
    await expect_due(store, late, AT, "a new run")


@check
async def a_time_may_come_before_the_end(lab: Lab) -> None:
    """A row with a due time keeps it, until an end makes the run due [B-8]."""
    store = await lab.engine()
    target = await claimed(store, "run-1")
    draft = await claimed(store, "run-9")
    await put(store, draft, draft.next(token=1, index=awaiting("run-1", due_us=T0 + 900)))
    await expect_due(store, draft, T0 + 900, "while it waits")
    await put(store, target, end(target, T0 + 200))
    await expect_due(store, draft, T0 + 200, "after the end")


@check
async def a_whole_group_of_ends_and_waits(lab: Lab) -> None:
    """Ends and waits that are committed together miss each other in no order [R-16]."""
    store = await lab.engine()
    targets = [await claimed(store, f"run-1{n:02}") for n in range(40)]
    waiters = [await claimed(store, f"run-2{n:02}") for n in range(40)]
    names = [target.run_id for target in targets]
    ends = [end(target, T0 + 200) for target in targets]
    waits = [
        draft.next(token=1, index=awaiting(names[n], names[-1 - n], need=1 + n % 2)) for n, draft in enumerate(waiters)
    ]
    mixed = [append for pair in zip(ends, waits, strict=True) for append in pair]
    for result in await asyncio.gather(*[store.append(append) for append in mixed]):
        expect_type(result, Committed, "one of the group")
    due = await store.due(T0 + 200, 100)
    expect(sorted(due), [draft.run_id for draft in waiters], "who is due")


@check
async def an_owner_is_not_disturbed(lab: Lab) -> None:
    """While a run is owned nothing makes it due; what ended meanwhile counts when it waits again [R-16]."""
    store = await lab.engine()
    targets = [await claimed(store, f"run-{n}") for n in range(2)]
    draft = await waiter(store, "run-9", "run-0", "run-1")
    await put(store, draft, draft.claim(2))
    for target in targets:
        await put(store, target, end(target, T0 + 200))
    expect((await loaded(store, draft)).row.state, owned(2), "its row")
    await put(store, draft, draft.next(token=2, index=awaiting("run-0", "run-1")))
    await expect_due(store, draft, AT, "as soon as it waits again")


@check
async def who_is_held_or_invalid_is_not_woken_and_loses_nothing(lab: Lab) -> None:
    """What it waits for may end, and stays until it has looked [R-9, R-16, R-17]."""
    store = await lab.engine()
    statuses: tuple[RunStatus, ...] = ("held", "invalid")
    for status in statuses:
        target, draft = await claimed(store, f"run-1-{status}"), await claimed(store, f"run-9-{status}")
        await put(store, draft, draft.next(token=1, index=awaiting(target.run_id, status=status)))
        await put(store, target, end(target, T0 + 200))
        state = (await loaded(store, draft)).row.state
        expect((state.status, state.due_us), (status, None), "its row after the end")
        expect(await store.count_ended(T0 + 999), 0, "what may be removed")
        await put(store, draft, draft.next(index=awaiting(target.run_id)))
        await expect_due(store, draft, AT, f"once it is {status} no more")
        await put(store, draft, draft.claim(2))
        expect(await store.remove_ended(T0 + 999, 10), 1, "what is removed then")


@check
async def every_write_replaces_what_was_awaited(lab: Lab) -> None:
    """By other runs, or by none; an append from outside to an owned run writes nothing [R-16]."""
    store = await lab.engine()
    first, second = await claimed(store, "run-1"), await claimed(store, "run-2")
    draft = await waiter(store, "run-9", "run-1")
    await put(store, draft, draft.next(index=awaiting("run-2")))
    await put(store, first, end(first, T0 + 200))
    await expect_due(store, draft, None, "after the end of what it awaits no more")
    expect(await store.set_index(draft.locator, awaiting(), draft.tail), True, "awaiting nothing")
    expect(await store.anybody_waits(), False, "then")
    await put(store, second, end(second, T0 + 300))
    await expect_due(store, draft, None, "after the end of the other")
    third = await claimed(store, "run-3")
    await put(store, draft, draft.claim(2))
    await put(store, draft, draft.next(RunCancelRequested("ada"), index=awaiting("run-3")))
    expect(await store.anybody_waits(), False, "from outside, while it is owned")
    await put(store, draft, draft.next(token=2, index=awaiting("run-3")))
    await put(store, draft, draft.next(index=IndexState("failed", awaits=("run-3",), need=1, at_us=AT)))
    expect(await store.anybody_waits(), False, "once it has ended")
    await put(store, third, end(third, T0 + 400))
    expect((await loaded(store, draft)).row.state.due_us, None, "an ended run")


@check
async def what_is_awaited_is_not_removed(lab: Lab) -> None:
    """Until the waiter has looked, or is gone itself [R-9]."""
    store = await lab.engine()
    await ended(store, "run-1")
    await ended(store, "run-2")
    draft = await waiter(store, "run-9", "run-1")
    expect(await store.count_ended(T0 + 999), 1, "what may be removed")
    expect(await store.remove_ended(T0 + 999, 10), 1, "what is removed")
    expect_type(await store.load("run-1"), object, "what is awaited")
    await put(store, draft, draft.claim(2))
    await put(store, draft, draft.next(token=2, index=awaiting("run-1")))
    expect(await store.remove_ended(T0 + 999, 10), 0, "while it waits again")
    await put(store, draft, draft.next(index=IndexState("failed"), at_us=T0 + 500))
    expect(await store.remove_ended(T0 + 400, 10), 1, "once the waiter has ended")


@check
async def a_circle_is_refused(lab: Lab) -> None:
    """Of one, two and three; nothing is written, and the run can do something else [R-13]."""
    store = await lab.engine()
    first, second, third = [await claimed(store, f"run-{n}") for n in (1, 2, 3)]
    expect(await store.append(first.next(token=1, index=awaiting("run-1"))), WaitCycle(), "for itself")
    await put(store, first, first.next(token=1, index=awaiting("run-2")))
    expect(await store.append(second.next(token=1, index=awaiting("run-none", "run-1"))), WaitCycle(), "of two")
    await put(store, second, second.next(token=1, index=awaiting("run-3", "run-none")))
    refused = third.next(token=1, index=awaiting("run-1"))
    expect(await store.append(refused), WaitCycle(), "of three")
    expect((await expect_journal(store, third)).row.state, owned(), "the run that was refused")
    await put(store, third, end(third, T0 + 200))
    await expect_due(store, second, T0 + 200, "who waited for it")
    await expect_due(store, first, None, "who waits for that one")
    many = [await claimed(store, f"run-m{n:02}") for n in range(12)]
    await put(store, many[0], many[0].next(token=1, index=awaiting("run-m01")))
    appends = [draft.next(token=1, index=awaiting(f"run-m{n - 1:02}")) for n, draft in enumerate(many) if n]
    results = await asyncio.gather(*[store.append(append) for append in appends])
    expect([type(result).__name__ for result in results], ["WaitCycle", *["Committed"] * 10], "eleven in one group")


@check
async def a_circle_is_one_of_runs_that_wait_on(lab: Lab) -> None:
    """Not through one that has ended, has enough, or is invalid; but through one that is held [R-13]."""
    store = await lab.engine()
    last = await claimed(store, "run-9")
    await waiter(store, "run-1", "run-none", "run-9", need=1)
    invalid, held = [await claimed(store, f"run-{n}") for n in (2, 3)]
    await put(store, invalid, invalid.next(token=1, index=awaiting("run-9", status="invalid")))
    await put(store, held, held.next(token=1, index=awaiting("run-9", status="held")))
    over = await waiter(store, "run-4", "run-9")
    expect(await store.append(last.next(token=1, index=awaiting("run-4"))), WaitCycle(), "through one that waits")
    expect(await store.append(last.next(token=1, index=awaiting("run-3"))), WaitCycle(), "through one that is held")
    await put(store, over, over.next(index=IndexState("failed")))
    await put(store, last, last.next(token=1, index=awaiting("run-1", "run-2", "run-4")))


@check
async def a_circle_that_comes_from_outside_is_shown_to_an_owner(lab: Lab) -> None:
    """Who closes it from outside is not refused: its run is due at once, and its owner hears of it [R-13, R-16]."""
    store = await lab.engine()
    first, second = await claimed(store, "run-1"), await claimed(store, "run-2")
    expect(await store.set_index(first.locator, awaiting("run-1"), first.tail), WaitCycle(), "for itself")
    expect((await loaded(store, first)).row.state, owned(), "then")
    await put(store, first, first.next(token=1, index=IndexState("ready", token=1)))
    await put(store, second, second.next(token=1, index=awaiting("run-1")))
    await put(store, first, first.next(index=awaiting("run-2")))
    await expect_due(store, first, AT, "after an append from outside")
    expect(await store.set_index(first.locator, awaiting("run-2"), first.tail), WaitCycle(), "an owner that looks")
    expect(await store.set_index(first.locator, awaiting("run-2"), first.tail + 7), False, "one that has not read")
    fresh = Draft("run-3")
    await put(store, fresh, fresh.submit(awaiting("run-3")))
    await expect_due(store, fresh, AT, "a new run that waits for itself")
    await store.restore_index(second.locator, second.new, awaiting("run-1"), None, slot_held=False)
    await expect_due(store, second, AT, "one that was put back")


@check
async def whoever_lost_is_told_that_first(lab: Lab) -> None:
    """A circle is no answer to an append that came too late, or once more [J-3, J-14]."""
    store = await lab.engine()
    first, second = await claimed(store, "run-1"), await claimed(store, "run-2")
    sent = first.next(token=1, index=awaiting("run-2"))
    await put(store, first, sent)
    await put(store, second, second.next(token=1, index=IndexState("ready", token=1)))
    await put(store, second, second.next(index=awaiting("run-1")))
    expect(await store.append(sent), Committed(first.locator), "the same append once more")
    late = second.next(token=1, index=awaiting("run-1"), after=0)
    expect(await store.append(late), Conflict(), "one that came too late")
    await put(store, first, first.claim(3))
    expect(await store.append(first.next(token=2, index=awaiting("run-2"))), Fenced(3), "an old owner")


@check
async def rows_that_are_put_back_wait_and_wake(lab: Lab) -> None:
    """`restore_index` registers what a run awaits; the end of one that comes back is an end [J-11, R-16]."""
    store = await lab.engine()
    target, other = await claimed(store, "run-1"), await claimed(store, "run-2")
    draft = await waiter(store, "run-9", "run-2")
    await store.restore_index(draft.locator, draft.new, awaiting("run-1", "run-2"), None, slot_held=False)
    await put(store, other, end(other, T0 + 200))
    await expect_due(store, draft, None, "after one of two")
    await store.restore_index(target.locator, target.new, ENDED, T0 + 300, slot_held=False)
    await expect_due(store, draft, T0 + 300, "after the other came back as ended")
    await store.restore_index(draft.locator, draft.new, awaiting("run-1"), None, slot_held=False)
    await expect_due(store, draft, AT, "put back when all is over")


@check
async def waits_outlive_their_store(lab: Lab) -> None:
    """And sweeps leave them alone [R-4, R-16]."""
    store = await lab.engine()
    target = await claimed(store, "run-1")
    draft = await waiter(store, "run-9", "run-1")
    invalid = await claimed(store, "run-8")
    await put(store, invalid, invalid.next(token=1, index=awaiting("run-1", status="invalid")))
    store = await lab.reopened(store)
    expect(await store.anybody_waits(), True, "after opening again")
    expect(await store.take_over(T0 + 150), 1, "owned runs of the former owner")
    expect(await store.wake_invalid({"payout": 2}, "b2", T0 + 160), 1, "invalid runs of an earlier deployment")
    await put(store, draft, draft.next(RunCancelRequested("ada")))
    await put(store, target, end(target, T0 + 200))
    await expect_due(store, draft, T0 + 200, "after the end")
    expect((await loaded(store, invalid)).row.state.due_us, T0 + 160, "the invalid one")
    await put(store, draft, draft.claim(2))
    expect(await store.count_ended(T0 + 999), 0, "what may be removed")


@check
async def a_removed_waiter_awaits_nothing(lab: Lab) -> None:
    """Retention leaves nothing behind [R-9]."""
    store = await lab.engine()
    await submitted(store, "run-1")
    draft = await waiter(store, "run-9", "run-1")
    await put(store, draft, draft.next(index=IndexState("failed"), at_us=T0 + 200))
    expect(await store.remove_ended(T0 + 999, 10), 1, "what is removed")
    expect(await store.anybody_waits(), False, "then")
