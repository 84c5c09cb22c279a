"""Room under limits that bound their queues: taken by the submission, given back by the end of the run [R-11]."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from perdure.core.permits import Entrance
from perdure.ports.limits import LimitUse, NoRoom
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
from perdure.testing.conformance.lab import ENDED, READY, T0, Check, Draft, Lab, expect, expect_type, part, put
from perdure.testing.conformance.limits import RUNS, taking

CHECKS: list[Check] = []
check = part(CHECKS)

TWO = Entrance("runs", "", 1, 1)
"""One in flight, one that waits."""


def coming(run_id: str, *entrances: Entrance, slot: str | None = None, mutexes: tuple[str, ...] = ()) -> Draft:
    """A run that needs room under limits; its slot is its own."""
    draft = Draft(run_id, slot=slot or run_id)
    draft.new = replace(draft.new, entrances=entrances, mutexes=mutexes)
    return draft


async def entered(store: Store, run_id: str, *entrances: Entrance) -> Draft:
    """A run that was submitted."""
    draft = coming(run_id, *entrances)
    await put(store, draft, draft.submit())
    return draft


async def shown(store: Store) -> list[tuple[str, str, int, int, int | None]]:
    """Limit, key, places taken, who waits, and how many may."""
    return [(use.limit, use.key, use.held, use.waiting, use.queue) for use in await store.limits()]


@check
async def a_submission_without_room_leaves_nothing(lab: Lab) -> None:
    """Refused with limit and key; keys are counted apart, and of several limits all have room or none [R-11]."""
    store = await lab.engine()
    await entered(store, "run-1", TWO)
    await entered(store, "run-2", TWO)
    expect(await store.append(coming("run-3", TWO).submit()), NoRoom("runs", ""), "the third")
    expect(await store.load("run-3"), None, "the refused run")
    other = Entrance("bank", "n", 1, 0)
    expect(await store.append(coming("run-3", other, TWO).submit()), NoRoom("runs", ""), "one of two limits")
    await entered(store, "run-3", other)
    expect(await store.append(coming("run-4", other).submit()), NoRoom("bank", "n"), "no queue at all")
    await entered(store, "run-4", replace(other, key="s"))
    await entered(store, "run-5")
    await entered(store, "run-6", Entrance("huge", "ü", (1 << 31) - 1, (1 << 31) - 1), replace(TWO, limit="two"))
    await store.close()
    store = await lab.engine()
    expect(await store.append(coming("run-7", TWO).submit()), NoRoom("runs", ""), "after a restart")
    few = [("bank", "n", 0, 1, 0), ("bank", "s", 0, 1, 0)]
    more = [("huge", "ü", 0, 1, (1 << 31) - 1), ("runs", "", 0, 2, 1), ("two", "", 0, 1, 1)]
    expect(await shown(store), [*few, *more], "what is shown")


@check
async def any_end_gives_room(lab: Lab) -> None:
    """With the append that ends the run, whoever writes it, once; also the removal of its row [R-11]."""
    store = await lab.engine()
    ends: tuple[RunStatus, ...] = ("succeeded", "failed", "canceled")
    only = Entrance("runs", "", 1, 0)
    for number, status in enumerate(ends):
        draft = await entered(store, f"run-{number}", only)
        await put(store, draft, draft.claim())
        expect(await store.append(coming("early", only).submit()), NoRoom("runs", ""), f"while run-{number} lives")
        await put(store, draft, draft.next(token=1, index=IndexState(status, token=1)))
        await put(store, draft, draft.next(token=1, index=IndexState(status, token=1)))
    outside = await entered(store, "run-4", only)
    await put(store, outside, outside.next(index=IndexState("canceled"), at_us=T0 + 50))
    last = await entered(store, "run-5", only)
    expect(await store.append(coming("run-6", only).submit(ENDED)), NoRoom("runs", ""), "a run that ends at once")
    tail = outside.rows[-1]
    expect(await store.remove_runs([RunTail(outside.locator, tail.first_seq, tail.hash)]), 1, "removed")
    expect(await store.append(coming("run-7", only).submit()), NoRoom("runs", ""), "after another's removal")
    await put(store, last, last.next(index=IndexState("canceled"), at_us=T0 + 60))
    at_once = coming("run-8", only)
    await put(store, at_once, at_once.submit(ENDED))
    await entered(store, "run-9", only)


@check
async def many_at_once_find_the_room_there_is(lab: Lab) -> None:
    """Never one too many, in whatever order they name several limits, and others are not hurt [R-11]."""
    store, beside = await lab.engine(), await lab.client()
    sizes = Entrance("a", "", 3, 4), Entrance("b", "", 1, 10)
    sent: list[asyncio.Future[AppendResult]] = []
    for i in range(24):
        names = sizes if i % 2 else sizes[::-1]
        sent.append((store, beside)[i % 3 == 0].append(coming(f"run-{i}", *names).submit()))
        sent.append(store.append(Draft(f"plain-{i}").submit()))
    results = await asyncio.gather(*sent)
    kinds = [type(result) for result in results]
    expect((kinds.count(NoRoom), kinds.count(Committed)), (17, 31), "how many were refused, and how many were not")
    expect({result.limit for result in results if isinstance(result, NoRoom)}, {"a"}, "the limit they name")
    expect(await shown(store), [("a", "", 0, 7, 4), ("b", "", 0, 7, 10)], "what is shown")


@check
async def slot_mutex_and_key_come_before_room(lab: Lab) -> None:
    """Whoever is in the way is named first; a refused submission keeps its key, and takes no mutex [R-5, R-10]."""
    store = await lab.engine()
    only = Entrance("runs", "", 1, 0)

    def keyed(run_id: str) -> Append:
        draft = coming(run_id, only)
        append = draft.submit()
        append.key = SubmissionKey("default", draft.new.pipeline, "k", run_id, draft.new.input_digest, T0 + 9_000_000)
        return append

    first = coming("run-1", only, mutexes=("account",))
    await put(store, first, first.submit())
    same = await store.append(coming("run-2", only, slot="run-1").submit())
    expect(same, SlotTaken("run-1", first.new.input_digest), "the same slot")
    draft = coming("run-2", only, mutexes=("account",))
    draft.new = replace(draft.new, resource=first.new.resource, slot_key=None)
    expect_type(await store.append(draft.submit()), MutexTaken, "the same mutex")
    other = coming("run-2", only, mutexes=("zone",))
    expect(await store.append(other.submit()), NoRoom("runs", ""), "neither")
    expect_type(await store.append(keyed("run-2")), NoRoom, "under a key")
    await put(store, first, first.next(index=IndexState("canceled"), at_us=T0 + 50))
    sent = keyed("run-3")
    committed = expect_type(await store.append(sent), Committed, "room")
    expect(await store.append(sent), committed, "the same append again")
    expect_type(await store.append(keyed("run-4")), KeyUsed, "the key again")
    beside = coming("run-5", mutexes=("zone",))
    await put(store, beside, beside.submit())


@check
async def who_is_in_flight_does_not_wait(lab: Lab) -> None:
    """Places and room are two counts of one limit; its size is what the newest submission says [R-11]."""
    store = await lab.engine()
    first = await entered(store, "run-1", TWO)
    await entered(store, "run-2", TWO)
    await put(store, first, taking(first.claim(), RUNS))
    expect(await store.limits(), [LimitUse("runs", "", "in_flight", 1, 1, 1, None, 1)], "one of each")
    larger = replace(TWO, queue=2)
    await entered(store, "run-3", larger)
    expect(await store.append(coming("run-4", TWO).submit()), NoRoom("runs", ""), "whoever thinks it is smaller")
    expect(await store.append(coming("run-4", larger).submit()), NoRoom("runs", ""), "whoever knows better")
    await put(store, first, first.next(token=1, index=IndexState("succeeded", token=1)))
    expect(await store.append(coming("run-4", TWO).submit()), NoRoom("runs", ""), "room for one more, not for two")
    await entered(store, "run-4", larger)


@check
async def room_is_mended_and_kept_by_rows_that_are_put_back(lab: Lab) -> None:
    """A row that is written anew keeps what its run has; where nobody is inside, nothing is left [J-11, R-16]."""
    store = await lab.engine()
    only = Entrance("runs", "", 1, 0)
    first = await entered(store, "run-1", only)
    await store.grant_permits(T0 + 10)
    await store.restore_index(first.locator, replace(first.new, entrances=()), READY, None, slot_held=True)
    expect(await store.append(coming("run-2", only).submit()), NoRoom("runs", ""), "put back")
    await store.restore_index(first.locator, replace(first.new, entrances=()), ENDED, T0 + 50, slot_held=False)
    second = await entered(store, "run-2", only)
    await put(store, second, second.next(index=IndexState("canceled"), at_us=T0 + 60))
    await store.grant_permits(T0 + 70)
    expect(await shown(store), [], "nobody is inside")
    await entered(store, "run-3", only)
