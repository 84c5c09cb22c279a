"""Checks of transactions: of handlers, and of callers [I-1]. A store may have none, and has to say so."""

from __future__ import annotations

from typing import cast

from perdure.errors import InvalidArgument
from perdure.ports.joining import CallerConnection, OwnTransaction
from perdure.ports.store import Committed, Conflict, Fenced, KeyUsed, SlotTaken, Store, SubmissionKey
from perdure.testing.conformance.lab import (
    ENDED,
    T0,
    Check,
    Draft,
    Lab,
    claimed,
    expect,
    expect_journal,
    expect_type,
    owned,
    part,
    put,
    submitted,
)

CHECKS: list[Check] = []


async def _begun(store: Store) -> OwnTransaction | None:
    """A transaction; None where the store has none, which it says."""
    try:
        return await store.begin()
    except InvalidArgument:
        return None


@part(CHECKS)
async def joining_what_is_no_connection_is_refused(lab: Lab) -> None:
    """Whether the store can join a transaction or not."""
    store = await lab.engine()
    try:
        await store.join(cast("CallerConnection", object()))
    except InvalidArgument:
        return
    raise AssertionError("joined an object that is no connection")


@part(CHECKS)
async def an_append_in_a_transaction_is_there_with_its_commit(lab: Lab) -> None:
    """I-1, J-2: seen by everybody after the commit; a rollback leaves its place free."""
    store, client = await lab.engine(), await lab.client()
    tx = await _begun(store)
    if tx is None:
        return
    draft = await claimed(store, "run-a")
    draft_next = draft.next(token=1)
    draft.accept(draft_next, await tx.commit(draft_next))
    await tx.rollback()
    await expect_journal(client, draft)
    tx = await store.begin()
    await tx.rollback()
    await tx.rollback()
    await put(store, draft, draft.next(token=1))
    tx = await store.begin()
    end = draft.next(token=1, index=ENDED)
    draft.accept(end, await tx.commit(end))
    found = await expect_journal(client, draft)
    expect(found.row.ended_us, end.at_us, "end of a run in a transaction")


@part(CHECKS)
async def a_transaction_that_is_refused_stays_open(lab: Lab) -> None:
    """J-3, J-5: the next append may follow what came first; a stale token wins nothing."""
    store = await lab.engine()
    tx = await _begun(store)
    if tx is None:
        return
    draft = await claimed(store, "run-a")
    late = draft.next(token=1)
    await put(store, draft, draft.next())
    expect_type(await tx.commit(late), Conflict, "an append behind another one")
    again = draft.next(token=1)
    draft.accept(again, await tx.commit(again))
    await put(store, draft, draft.claim(token=2))
    tx = await store.begin()
    expect_type(await tx.commit(draft.next(token=1, index=owned())), Fenced, "an append of a former owner")
    await tx.rollback()
    await expect_journal(store, draft)


@part(CHECKS)
async def whoever_joins_writes_in_the_same_transaction(lab: Lab) -> None:
    """I-1, R-5: reads see what was written before; others see it after the commit, or never."""
    store, client = await lab.engine(), await lab.client()
    tx = await _begun(store)
    if tx is None:
        return
    owner = await claimed(store, "run-0")
    joined = await store.join(cast("CallerConnection", tx.connection))
    lost = Draft("run-a", slot="s")
    expect_type(await joined.append(lost.submit()), Committed, "a submission in a transaction")
    expect((await joined.load("run-a")) is not None, True, "a run in its transaction")
    expect(await client.load("run-a"), None, "a run of an open transaction")
    await tx.rollback()
    expect(await client.load("run-a"), None, "a run that was rolled back")

    there = await submitted(store, "run-b", slot="s")
    tx = await store.begin()
    joined = await store.join(cast("CallerConnection", tx.connection))
    taken = expect_type(await joined.append(Draft("run-c", slot="s").submit()), SlotTaken, "a busy slot")
    expect(taken.run_id, "run-b", "who has the slot")
    kept, key = Draft("run-d", slot="t"), SubmissionKey("default", "payout", "k", "run-d", b"x" * 32, T0 + 10)
    first = kept.submit()
    first.key = key
    kept.accept(first, await joined.append(first))
    second = Draft("run-e").submit()
    second.key = key
    used = expect_type(await joined.append(second), KeyUsed, "a used key")
    expect(used.run_id, "run-d", "whose key it is")
    message = there.next()
    there.accept(message, await joined.append(message))
    step = owner.next(token=1)
    owner.accept(step, await tx.commit(step))
    for draft in (owner, there, kept):
        await expect_journal(client, draft)
    expect(await client.load("run-e"), None, "a run whose key was used")
