"""Mutexes: one run at a time has one for a resource, whatever its pipeline [R-10]."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from perdure.ports.store import (
    Append,
    AppendResult,
    Committed,
    IndexState,
    KeyUsed,
    MutexTaken,
    RunStatus,
    RunTail,
    SlotTaken,
    Store,
    SubmissionKey,
)
from perdure.testing.conformance.lab import ENDED, READY, T0, Check, Draft, Lab, expect, expect_type, loaded, part, put

CHECKS: list[Check] = []
check = part(CHECKS)

ACCOUNT = ("account",)


def wanting(run_id: str, *mutexes: str, pipeline: str = "payout", slot: str = "7", tenant: str = "default") -> Draft:
    """A run that needs mutexes; its slot is its pipeline's own."""
    draft = Draft(run_id, pipeline=pipeline, slot=slot, tenant=tenant)
    draft.new = replace(draft.new, mutexes=mutexes)
    return draft


async def entered(store: Store, draft: Draft) -> Draft:
    """A run that was submitted."""
    await put(store, draft, draft.submit())
    return draft


@check
async def a_mutex_excludes_other_pipelines(lab: Lab) -> None:
    """Refused with the mutex, its holder and that one's pipeline; nothing is written; the slot comes first [R-10]."""
    store = await lab.engine()
    first = await entered(store, wanting("run-1", "account", "bank"))
    expect((await loaded(store, first)).row.run, replace(first.new, mutexes=()), "the row of the holder")
    refused = await store.append(wanting("run-2", "account", "zone", pipeline="refund").submit())
    expect(refused, MutexTaken("account", "run-1", "payout"), "another pipeline")
    expect(await store.load("run-2"), None, "the refused run")
    several = await store.append(wanting("run-2", "bank", "zone", pipeline="refund").submit())
    expect(several, MutexTaken("bank", "run-1", "payout"), "one of several")
    same = await store.append(wanting("run-2", "account").submit())
    expect(same, SlotTaken("run-1", first.new.input_digest), "the same pipeline")
    for other in (
        wanting("run-3", "zone", pipeline="refund"),
        wanting("run-4", "account", pipeline="refund", slot="8"),
        wanting("run-5", "account", pipeline="refund", tenant="acme"),
        wanting("run-6", pipeline="audit"),
    ):
        await entered(store, other)
    await store.close()
    store = await lab.engine()
    refused = await store.append(wanting("run-9", "account", pipeline="move").submit())
    expect(refused, MutexTaken("account", "run-1", "payout"), "after a restart")


@check
async def any_end_frees_a_mutex(lab: Lab) -> None:
    """With the append that ends the run, whoever writes it; also the removal of its row, and its own submission."""
    store = await lab.engine()
    ends: tuple[RunStatus, ...] = ("succeeded", "failed", "canceled")
    for number, status in enumerate(ends):
        draft = await entered(store, wanting(f"run-{number}", "account", pipeline=f"p-{number}"))
        await put(store, draft, draft.claim())
        await put(store, draft, draft.next(token=1, index=IndexState(status, token=1)))
    outside = await entered(store, wanting("run-4", "account", pipeline="p-4"))
    await put(store, outside, outside.next(index=IndexState("canceled"), at_us=T0 + 50))
    at_once = wanting("run-5", "account", pipeline="p-5")
    await put(store, at_once, at_once.submit(ENDED))
    last = await entered(store, wanting("run-6", "account", pipeline="p-6"))
    refused = await store.append(wanting("run-7", "account", pipeline="p-7").submit(ENDED))
    expect(refused, MutexTaken("account", "run-6", "p-6"), "a run that ends at once")
    tail = outside.rows[-1]
    removed = await store.remove_runs([RunTail(outside.locator, tail.first_seq, tail.hash)])
    expect(removed, 1, "removed")
    refused = await store.append(wanting("run-8", "account", pipeline="p-8").submit())
    expect(refused, MutexTaken("account", last.run_id, "p-6"), "after another's removal")


@check
async def many_at_once_for_one_mutex(lab: Lab) -> None:
    """Exactly one wins, in whatever order they name several, and others are not hurt [R-10]."""
    store, beside = await lab.engine(), await lab.client()
    names = (("a", "b"), ("b", "c"), ("a", "b", "c"), ("b",))
    sent: list[asyncio.Future[AppendResult]] = []
    for i in range(24):
        draft = wanting(f"run-{i}", *names[i % 4], pipeline=f"p-{i}")
        sent.append((store, beside)[i % 2].append(draft.submit()))
        sent.append(store.append(Draft(f"plain-{i}").submit()))
    results = await asyncio.gather(*sent)
    kinds = [type(result) for result in results]
    expect(kinds.count(MutexTaken), 23, "how many were refused")
    expect(kinds.count(Committed), 25, "how many were not")
    await _all_name_the_winner(results[::2])


async def _all_name_the_winner(results: list[AppendResult]) -> None:
    won = [i for i, result in enumerate(results) if isinstance(result, Committed)]
    holders = {result.run_id for result in results if isinstance(result, MutexTaken)}
    expect(holders, {f"run-{i}" for i in won}, "whom the refusals name")


@check
async def a_refused_submission_keeps_its_key(lab: Lab) -> None:
    """The key is free for the next try, and stands for the run that got the mutex [R-5, R-10]."""
    store = await lab.engine()
    first = await entered(store, wanting("run-1", "account"))

    def keyed(run_id: str) -> Append:
        draft = wanting(run_id, "account", pipeline="refund")
        append = draft.submit()
        append.key = SubmissionKey("default", "refund", "k", run_id, draft.new.input_digest, T0 + 9_000_000)
        return append

    expect_type(await store.append(keyed("run-2")), MutexTaken, "while it is taken")
    await put(store, first, first.next(index=IndexState("canceled"), at_us=T0 + 50))
    sent = keyed("run-3")
    committed = expect_type(await store.append(sent), Committed, "free")
    expect(await store.append(sent), committed, "the same append again")
    expect_type(await store.append(keyed("run-4")), KeyUsed, "the key again")


@check
async def mutexes_are_put_back(lab: Lab) -> None:
    """With the index row of a run that has not ended; one that another has by now stays with that [J-11, R-10]."""
    store = await lab.engine()
    first = await entered(store, wanting("run-1", "account"))
    await store.restore_index(first.locator, first.new, READY, None, slot_held=True)
    refused = await store.append(wanting("run-2", "account", pipeline="refund").submit())
    expect(refused, MutexTaken("account", "run-1", "payout"), "put back")
    await store.restore_index(first.locator, first.new, ENDED, T0 + 50, slot_held=False)
    second = await entered(store, wanting("run-3", "account", pipeline="refund"))
    await store.restore_index(first.locator, first.new, READY, None, slot_held=True)
    refused = await store.append(wanting("run-4", "account", pipeline="audit").submit())
    expect(refused, MutexTaken("account", "run-3", "refund"), "one that another has by now")
    await put(store, first, first.next(index=IndexState("canceled"), at_us=T0 + 60))
    refused = await store.append(wanting("run-5", "account", pipeline="audit").submit())
    expect(refused, MutexTaken("account", "run-3", "refund"), "after the end of one that does not have it")
    await put(store, second, second.next(index=IndexState("canceled"), at_us=T0 + 70))
    await entered(store, wanting("run-6", "account", pipeline="audit"))
