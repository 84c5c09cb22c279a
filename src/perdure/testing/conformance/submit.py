"""Runs that wait for their slot, and keys that outlive runs [R-5, R-16]."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.facts import RunCancelRequested
from perdure.ports.store import (
    Append,
    Committed,
    IndexState,
    KeyUsed,
    SlotTaken,
    Store,
    SubmissionKey,
    WaitingRuns,
)
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
    part,
    put,
    submitted,
)

CHECKS: list[Check] = []
check = part(CHECKS)

SLOT = "invoice-7"
WAITS = IndexState("ready", None, reason="waits")


async def _waiting(store: Store, run_id: str, *, replaces: bool = False, deadline_us: int = 0) -> Draft:
    draft = Draft(run_id, slot=SLOT, input=f'"{run_id}"')
    draft.new = replace(draft.new, waits="replace" if replaces else "queue", deadline_us=deadline_us)
    await put(store, draft, draft.submit(replace(WAITS, due_us=deadline_us or None)))
    return draft


async def _standing(store: Store, draft: Draft) -> tuple[bool, int | None]:
    """Whether a run waits, and when it is due."""
    row = (await loaded(store, draft)).row
    return row.waiting, row.state.due_us


@check
async def a_slot_is_passed_on_when_its_run_ends(lab: Lab) -> None:
    """First come, first served, in the append that ends the run before; also in another store's eyes [R-5, R-16]."""
    store = await lab.engine()
    first = await claimed(store, "run-0", slot=SLOT)
    second, third = await _waiting(store, "run-1"), await _waiting(store, "run-2")
    expect(await _standing(store, second), (True, None), "a run that waits")
    expect(list(await store.due(T0 + 1000, 10)), [], "nobody is due")
    expect((await loaded(store, second)).row.run, second.new, "columns of a run that waits")
    await put(store, first, first.next(token=1, index=ENDED, at_us=T0 + 50))
    expect(await _standing(store, second), (False, T0 + 50), "the next run")
    expect(await _standing(store, third), (True, None), "the one after it")
    expect(list(await store.due(T0 + 50, 10)), ["run-1"], "who is due")
    taken = expect_type(await store.append(Draft("run-9", slot=SLOT).submit()), SlotTaken, "a run that does not wait")
    expect(taken.run_id, "run-1", "who has the slot")
    store = await lab.reopened(store)
    await put(store, second, second.next(index=ENDED, at_us=T0 + 60))
    expect(await _standing(store, third), (False, T0 + 60), "the last, after a restart")


@check
async def who_waits_for_a_free_slot_gets_it_at_once(lab: Lab) -> None:
    """Nobody has to end for it [R-16]."""
    store = await lab.engine()
    draft = await _waiting(store, "run-1")
    expect(await _standing(store, draft), (False, T0), "a run on a free slot")
    expect((await loaded(store, draft)).row.state.reason, "", "why it waits")


@check
async def a_slot_is_waited_for_in_the_order_of_one_group(lab: Lab) -> None:
    """Of many that are submitted together the first gets the free slot, and each the turn of its place [R-5]."""
    store = await lab.engine()
    drafts = [Draft(f"run-{n:02}", slot=SLOT, input=str(n)) for n in reversed(range(40))]
    for draft in drafts:
        draft.new = replace(draft.new, waits="queue")
    appends = [draft.submit(WAITS) for draft in drafts]
    for draft, append, answer in zip(drafts, appends, [store.append(append) for append in appends], strict=True):
        draft.accept(append, await answer)
    for n, draft in enumerate(drafts):
        expect(list(await store.due(T0 + 100, 5)), [draft.run_id], f"who is due after {n}")
        await put(store, draft, draft.next(index=ENDED, at_us=T0 + n))


@check
async def who_ends_while_waiting_passes_nothing_on(lab: Lab) -> None:
    """A canceled run leaves the queue; the slot stays where it is [R-5, M-1]."""
    store = await lab.engine()
    first = await claimed(store, "run-0", slot=SLOT)
    second, third = await _waiting(store, "run-1"), await _waiting(store, "run-2")
    await put(store, second, second.next(RunCancelRequested("me"), index=IndexState("ready", T0 + 5, canceling=True)))
    expect(await _standing(store, second), (True, T0 + 5), "a run that is canceled while it waits")
    await put(store, second, second.next(index=ENDED, at_us=T0 + 10))
    expect(await _standing(store, second), (False, None), "a run that ended while it waited")
    expect(await _standing(store, third), (True, None), "who waits behind it")
    await put(store, first, first.next(token=1, index=ENDED, at_us=T0 + 50))
    expect(await _standing(store, third), (False, T0 + 50), "who is next")


@check
async def a_held_run_that_waits_gets_the_slot_and_stays_held(lab: Lab) -> None:
    """A slot wakes nobody whom an operator stopped [R-17]."""
    store = await lab.engine()
    first = await claimed(store, "run-0", slot=SLOT)
    second = await _waiting(store, "run-1")
    await put(store, second, second.next(index=IndexState("held", None, reason="operator")))
    await put(store, first, first.next(token=1, index=ENDED, at_us=T0 + 50))
    row = (await loaded(store, second)).row
    expect((row.waiting, row.state.status, row.state.due_us), (False, "held", None), "a held run with a slot")
    expect(row.state.reason, "operator", "why it is held")


@check
async def the_sweep_mends_what_waits(lab: Lab) -> None:
    """Who waits is due at its deadline only, and a slot that nobody has goes to the first [R-16]."""
    store = await lab.engine()
    first = await claimed(store, "run-0", slot=SLOT)
    second = await _waiting(store, "run-1")
    third = await _waiting(store, "run-2", deadline_us=T0 + 500)
    for draft in (second, third):
        await put(store, draft, draft.next(index=READY))
    expect(await store.grant_slots(T0 + 20), 0, "granted while the slot is taken")
    expect(await _standing(store, second), (True, None), "due without a slot")
    expect(await _standing(store, third), (True, T0 + 500), "due at its deadline")
    expect(await store.grant_slots(T0 + 600), 0, "granted after a deadline")
    expect(await _standing(store, third), (True, T0 + 500), "to be canceled at its deadline")
    row = (await loaded(store, first)).row
    await store.restore_index(first.locator, row.run, row.state, None, slot_held=False)
    expect(await store.grant_slots(T0 + 30), 1, "granted")
    expect(await _standing(store, second), (False, T0 + 30), "the first")
    expect((await _standing(store, third))[0], True, "the second")


@check
async def who_is_to_make_place(lab: Lab) -> None:
    """Everybody for the slot that came before a run that replaces, unless it was asked to cancel [R-5]."""
    store = await lab.engine()
    expect(await store.waiting_runs(), WaitingRuns(0, ()), "nobody waits")
    first = await claimed(store, "run-0", slot=SLOT)
    other = await claimed(store, "run-8", slot="another")
    second = await _waiting(store, "run-1")
    expect(await store.waiting_runs(), WaitingRuns(1, ()), "nobody replaces")
    await _waiting(store, "run-2", replaces=True)
    await _waiting(store, "run-3")
    expect(await store.waiting_runs(), WaitingRuns(3, ("run-0", "run-1")), "who came before")
    canceling = IndexState("ready", T0, canceling=True)
    await put(store, second, second.next(RunCancelRequested("me"), index=canceling))
    expect(await store.waiting_runs(), WaitingRuns(3, ("run-0",)), "who was not asked yet")
    await put(store, first, first.next(token=1, index=ENDED))
    expect((await store.waiting_runs()).superseded, (), "after it ended")
    expect((await loaded(store, other)).row.state.status, "running", "the run of another slot")


@check
async def a_restored_row_waits_again(lab: Lab) -> None:
    """The slot stays with whom it is; whoever may wait goes on waiting [J-11]."""
    store = await lab.engine()
    await claimed(store, "run-0", slot=SLOT)
    second = await _waiting(store, "run-1")
    await store.restore_index(second.locator, second.new, READY, None, slot_held=True)
    expect((await _standing(store, second))[0], True, "restored")
    await store.grant_slots(T0 + 5)
    expect(await _standing(store, second), (True, None), "mended")


def _keyed(draft: Draft, key: str = "order-1", expires_us: int = T0 + 1000) -> Append:
    append = draft.submit()
    new = draft.new
    append.key = SubmissionKey(new.tenant, new.pipeline, key, new.run_id, new.input_digest, expires_us)
    return append


@check
async def a_key_stands_for_one_run(lab: Lab) -> None:
    """Also after its end and its removal, until the key expires [R-5]."""
    store = await lab.engine()
    draft = Draft("run-1")
    append = _keyed(draft)
    await put(store, draft, append)
    expect_type(await store.append(append), Committed, "the same append, sent again")  # J-14
    answer = KeyUsed("run-1", draft.new.input_digest)
    expect(await store.append(_keyed(Draft("run-2", submitted_us=T0 + 999))), answer, "the key used again")
    expect(await store.load("run-2"), None, "the refused run")
    await put(store, draft, draft.next(index=ENDED, at_us=T0 + 5))
    expect(await store.remove_ended(T0 + 6, 10), 1, "removed")
    store = await lab.reopened(store)
    expect(await store.append(_keyed(Draft("run-3", submitted_us=T0 + 999))), answer, "after the run is gone")
    late = Draft("run-4", submitted_us=T0 + 1000)
    await put(store, late, _keyed(late, expires_us=T0 + 2000))
    expect(await store.append(_keyed(Draft("run-5"))), KeyUsed("run-4", late.new.input_digest), "the key's next run")


@check
async def a_key_is_of_its_tenant_and_pipeline(lab: Lab) -> None:
    """Elsewhere it says nothing [R-5]."""
    store = await lab.engine()
    for draft in (Draft("run-1"), Draft("run-2", tenant="acme"), Draft("run-3", pipeline="refund")):
        await put(store, draft, _keyed(draft))
    other = Draft("run-4")
    await put(store, other, _keyed(other, "order-2"))


@check
async def a_refused_run_takes_no_key(lab: Lab) -> None:
    """Key and run come together [R-5]."""
    store = await lab.engine()
    await submitted(store, "run-1", slot=SLOT)
    expect_type(await store.append(_keyed(Draft("run-2", slot=SLOT))), SlotTaken, "a busy slot")
    draft = Draft("run-3")
    await put(store, draft, _keyed(draft))


@check
async def a_key_is_claimed_for_a_run_that_is_there(lab: Lab) -> None:
    """Whoever joins a run takes the key for it, unless somebody has it [R-5]."""
    store = await lab.engine()
    key = SubmissionKey("default", "payout", "order-1", "run-1", b"\1" * 32, T0 + 100)
    later = replace(key, run_id="run-2", expires_us=T0 + 300)
    expect(await store.claim_key(key, T0), key, "a free key")
    expect(await store.claim_key(later, T0 + 99), key, "a key that is taken")
    expect(await store.claim_key(later, T0 + 100), later, "an expired key")
    expect(await store.forget_keys(T0 + 299), 0, "forgotten too early")
    expect(await store.forget_keys(T0 + 300), 1, "forgotten")
    expect(await store.claim_key(key, T0), key, "a forgotten key")


@check
async def many_new_runs_fare_as_one_would(lab: Lab) -> None:
    """Appends of many new runs in one group: each is committed or refused for itself, in order [M-1, J-14]."""
    store = await lab.engine()
    known = await submitted(store, "run-known", slot="slot-3")
    drafts = [Draft(f"run-{n:03}", slot=f"slot-{n % 50}") for n in range(100)]
    appends = [draft.submit() for draft in drafts]
    answers = [await answer for answer in [store.append(append) for append in appends]]
    for n, (draft, answer) in enumerate(zip(drafts, answers, strict=True)):
        if n < 50 and n != 3:
            draft.accept(appends[n], answer)
            expect((await loaded(store, draft)).rows[0].append_id, appends[n].append_id, f"first row of run {n}")
        else:
            holder = known.run_id if n % 50 == 3 else f"run-{n % 50:03}"
            expect(expect_type(answer, SlotTaken, f"run {n}").run_id, holder, f"who has the slot of run {n}")
    again = [await answer for answer in [store.append(append) for append in appends]]
    expect(again, answers, "all of them sent again")
    after = await submitted(store, "run-zzz")
    expect(after.locator not in {draft.locator for draft in drafts}, True, "the number of the next run is new")
