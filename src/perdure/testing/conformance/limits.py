"""Places under limits: taken with the append that needs them, passed on in the transaction that frees one [R-11]."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from perdure.core.permits import Permit
from perdure.ports.store import Append, Committed, Fenced, IndexState, LimitReached, PipelineHold, Store
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
    submitted,
)
from perdure.testing.conformance.workers import worker

CHECKS: list[Check] = []
check = part(CHECKS)

AT = T0 + 100
"""When a run of these checks says what it waits for."""

BANK = Permit("bank", "7", "concurrency", 1)
CPU = Permit("cpu", "", "concurrency", 1)
RUNS = Permit("runs", "", "in_flight", 1)
HOUR_US = 3_600_000_000
API = Permit("api", "", "rate", HOUR_US)


def taking(append: Append, *permits: Permit) -> Append:
    """The append, with the places that it needs."""
    append.permits = permits
    return append


def waiting(*permits: Permit, token: int = 1) -> IndexState:
    """The row of a run that rests until it has these places."""
    return IndexState("ready", token=token, generation=1, reason="waits", permits=permits, at_us=AT)


async def holder(store: Store, run_id: str, *permits: Permit) -> Draft:
    """An owned run that has these places."""
    draft = await claimed(store, run_id)
    await put(store, draft, taking(draft.next(token=1), *permits))
    return draft


async def waiter(store: Store, run_id: str, *permits: Permit) -> Draft:
    """A run that its owner let go of, for want of a place."""
    draft = await claimed(store, run_id)
    full = LimitReached(permits[0].limit, permits[0].key)
    expect(await store.append(taking(draft.next(token=1), *permits)), full, run_id)
    await put(store, draft, draft.next(token=1, index=waiting(*permits)))
    return draft


async def used(store: Store) -> dict[str, tuple[int, int]]:
    """Places taken, and runs that wait, by limit."""
    return {use.limit: (use.held, use.waiting) for use in await store.limits()}


async def expect_due(store: Store, draft: Draft, due_us: int | None, what: str) -> None:
    """Fail unless the run is ready and due at that time."""
    state = (await loaded(store, draft)).row.state
    expect((state.status, state.due_us), ("ready", due_us), what)


@check
async def a_place_is_taken_with_the_append_or_nothing_is_written(lab: Lab) -> None:
    """Of all that an append needs, or none; whoever has one finds it its own [R-11]."""
    store = await lab.engine()
    first, second = await holder(store, "run-1", BANK), await claimed(store, "run-2")
    refused = taking(second.next(token=1), CPU, BANK)
    expect(await store.append(refused), LimitReached("bank", "7"), "the second")
    expect(len((await loaded(store, second)).rows), 2, "rows of the refused run")
    expect(await used(store), {"bank": (1, 0)}, "what is taken")
    await put(store, first, taking(first.next(token=1), BANK, CPU))
    expect(await used(store), {"bank": (1, 0), "cpu": (1, 0)}, "after the first took another")
    await put(store, first, first.next(token=1))
    expect(await used(store), {"bank": (1, 0), "cpu": (1, 0)}, "after an append that says nothing of places")
    await put(store, first, taking(first.next(token=1)))
    expect(await used(store), {"bank": (0, 0), "cpu": (0, 0)}, "after one that needs none")
    await put(store, second, refused)


@check
async def an_append_sent_again_takes_nothing_twice(lab: Lab) -> None:
    """Its answer was lost; it is recognised, a turn of a rate included [J-14]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    append = taking(draft.next(token=1), BANK, API)
    await put(store, draft, append)
    expect_type(await store.append(append), Committed, "the same again")
    expect(await used(store), {"bank": (1, 0), "api": (0, 0)}, "what is taken")


@check
async def places_are_passed_on_first_come_first_served(lab: Lab) -> None:
    """To one run for each place, which is due since it waits; it has it from then on, and nobody is faster [R-16]."""
    store = await lab.engine()
    first = await holder(store, "run-1", BANK)
    second, third = await waiter(store, "run-2", BANK), await waiter(store, "run-3", BANK)
    await expect_due(store, second, None, "while it waits")
    expect(await used(store), {"bank": (1, 2)}, "while they wait")
    await put(store, first, taking(first.next(token=1)))
    await expect_due(store, second, AT, "the first in line")
    await expect_due(store, third, None, "the second in line")
    expect(await used(store), {"bank": (1, 1)}, "after one has got it")
    expect(await store.append(taking(first.next(token=1), BANK)), LimitReached("bank", "7"), "somebody faster")
    await put(store, second, taking(second.claim(2), BANK))
    await put(store, second, second.next(token=2, index=ENDED))
    await expect_due(store, third, AT, "after the end")


@check
async def whoever_comes_too_late_to_wait_has_the_place(lab: Lab) -> None:
    """It was freed between the refusal and the wait: no wake-up is lost [R-16]."""
    store = await lab.engine()
    first, second = await holder(store, "run-1", BANK), await claimed(store, "run-2")
    await put(store, first, first.next(token=1, index=ENDED))
    await put(store, second, second.next(token=1, index=waiting(BANK)))
    await expect_due(store, second, AT, "at once")
    expect(await used(store), {"bank": (1, 0)}, "what is taken")


@check
async def a_run_that_rests_or_ends_gives_back_what_it_had(lab: Lab) -> None:
    """Places of its operation when nobody owns it, whatever the reason; those of the run at its end [R-11]."""
    store = await lab.engine()
    for number, state in enumerate((IndexState("ready", T0, token=1), IndexState("held", token=1), ENDED)):
        draft = await holder(store, f"run-{number}", BANK)
        await put(store, draft, draft.next(token=1, index=state))
        expect(await used(store), {"bank": (0, 0)}, f"after {state.status}")
    draft = await holder(store, "run-8", BANK)
    expect(await store.set_index(draft.locator, IndexState("invalid", token=1), draft.tail), True, "an index write")
    expect(await used(store), {"bank": (0, 0)}, "after an index write")
    draft = await holder(store, "run-9", RUNS, CPU)
    await put(store, draft, draft.next(token=1, index=IndexState("held", token=1)))
    expect((await used(store))["runs"], (1, 0), "in flight while it is held")
    await put(store, draft, draft.next(index=IndexState("canceled", token=1)))
    expect((await used(store))["runs"], (0, 0), "in flight after its end")


@check
async def who_waits_keeps_what_comes_before(lab: Lab) -> None:
    """So that two places are had in the end, and nobody waits in a circle; a wait that is over leaves no trace."""
    store = await lab.engine()
    first = await holder(store, "run-1", CPU)
    second = await claimed(store, "run-2")
    await put(store, second, second.next(token=1, index=waiting(BANK, CPU)))
    expect(await used(store), {"bank": (1, 0), "cpu": (1, 1)}, "while it waits for the second")
    await put(store, first, first.next(token=1, index=ENDED))
    expect(await used(store), {"bank": (1, 0), "cpu": (1, 0)}, "when it has both")
    await put(store, second, second.next(index=IndexState("canceled", token=1)))
    expect(await used(store), {"bank": (0, 0), "cpu": (0, 0)}, "after it was canceled")


@check
async def who_waits_gives_back_what_comes_after(lab: Lab) -> None:
    """Its operation before had it, and the one that is next needs it, too: but whoever has a place and waits for one
    that comes before it may wait for a run that has that one and waits for this [R-11, R-16]."""
    store = await lab.engine()
    first, second = await holder(store, "run-1", BANK), await holder(store, "run-2", CPU)
    await put(store, second, second.next(token=1, index=waiting(BANK, CPU)))
    expect(await used(store), {"bank": (1, 1), "cpu": (0, 0)}, "while the second waits")
    await put(store, first, taking(first.next(token=1), BANK, CPU))
    third = await waiter(store, "run-3", CPU)
    await put(store, first, first.next(token=1, index=ENDED))
    for draft, what in ((second, "the second"), (third, "who waits for the place that the second gave back")):
        await expect_due(store, draft, AT, f"{what}, when the first has ended")


@check
async def a_held_pipeline_keeps_nobody_waiting(lab: Lab) -> None:
    """What its runs were given goes to others, and they are passed over until it is released [R-17]."""
    store = await lab.engine()
    first = await holder(store, "run-1", BANK)
    second, third = await waiter(store, "run-2", BANK), Draft("run-3", pipeline="refund")
    await put(store, third, third.submit(waiting(BANK, token=0)))
    await store.hold_pipeline(PipelineHold("payout", "ada", "", AT))
    await put(store, first, first.next(token=1, index=ENDED))
    await expect_due(store, second, None, "the one that is held")
    await expect_due(store, third, AT, "the one after it")
    await put(store, third, third.next(index=IndexState("canceled")))
    await expect_due(store, second, None, "while it is held")
    await store.release_pipeline("payout", "ada", "", AT + 1)
    await expect_due(store, second, AT, "after the release")
    await store.hold_pipeline(PipelineHold("payout", "ada", "", AT))
    expect(await used(store), {"bank": (0, 0)}, "what is given, and held before it is taken")


@check
async def a_lost_run_of_a_held_pipeline_keeps_nobody_waiting(lab: Lab) -> None:
    """Its worker died while it was in the middle of an operation; it cannot go on before the release [R-17, R-3]."""
    store = await lab.engine()
    await holder(store, "run-1", BANK)
    other = Draft("run-2", pipeline="refund")
    await put(store, other, other.submit(waiting(BANK, token=0)))
    await store.hold_pipeline(PipelineHold("payout", "ada", "", AT))
    expect(await store.grant_permits(AT + 1), 0, "while somebody has the run")
    expect(await store.take_over(AT + 2), 1, "runs taken over")
    expect(await store.grant_permits(AT + 3), 1, "afterwards")
    await expect_due(store, other, AT, "the run of another pipeline")


@check
async def a_limit_grows_and_shrinks(lab: Lab) -> None:
    """A deployment changes the number; nobody loses a place [R-11]."""
    store = await lab.engine()
    first = await holder(store, "run-1", BANK)
    waiters = [await waiter(store, f"run-{number}", BANK) for number in (2, 3)]
    await store.resize_limits({"bank": 3, "unknown": 1})
    expect(await store.grant_permits(AT), 2, "who got a place")
    expect(await used(store), {"bank": (3, 0)}, "after it grew")
    await store.resize_limits({"bank": 1})
    fourth = await claimed(store, "run-4")
    await put(store, fourth, fourth.next(token=1, index=waiting(BANK)))
    await put(store, first, first.next(token=1, index=ENDED))
    await expect_due(store, fourth, None, "while more are in than there are places")
    for draft in waiters:
        await put(store, draft, draft.next(index=IndexState("canceled", token=1)))
    await expect_due(store, fourth, AT, "when one is free")


@check
async def a_place_of_a_run_that_nobody_can_take_is_passed_on(lab: Lab) -> None:
    """Its worker died, and none that is alive serves its generation: nobody waits for that. Where one does, or has only
    just been started, the run has its place still when it is claimed [R-11, D-4]."""
    store = await lab.engine()
    if not store.shared:
        return
    await store.register(worker("w1"))
    newer, served = await holder(store, "run-1", BANK, RUNS), await holder(store, "run-2", CPU)
    await put(store, newer, newer.next(token=1, index=replace(owned(), generation=4)))
    await store.register(worker("w2"))  # which serves generation 3
    waiters = [await waiter(store, f"run-{3 + n}", permit) for n, permit in enumerate((BANK, CPU, RUNS))]
    await store.retire("w1")
    expect(await store.take_over(T0 + 50), 2, "runs taken over")
    await store.register(replace(worker("w3"), serves={"payout": 4}))
    expect(await store.grant_permits(T0 + 60), 0, "while somebody can take it")
    await store.bury("w3", 0)
    expect(await store.grant_permits(T0 + 60), 1, "when nobody can")
    await expect_due(store, waiters[0], AT, "who waited for it")
    for draft, what in zip(waiters[1:], ("whose holder can go on", "what a run has to its end"), strict=True):
        await expect_due(store, draft, None, what)
    expect(await used(store), {"bank": (1, 0), "cpu": (1, 1), "runs": (1, 1)}, "what is taken")
    await store.register(worker("w2"))
    await put(store, served, taking(served.next(token=2, index=owned(2, "w2")), CPU))


@check
async def a_refused_append_takes_and_frees_nothing(lab: Lab) -> None:
    """Whatever it is refused for: its place is taken, its predecessor is not there, its token is old, its worker was
    found dead [R-11, R-3]."""
    store = await lab.engine()
    await store.register(worker("w1"))
    first, second = await holder(store, "run-1", CPU), await claimed(store, "run-2")
    await put(store, first, first.claim(2))
    refused = [first.next(token=2, after=0), first.next(token=1), second.next(token=1, after=0)]
    for append in refused:
        expect(isinstance(await store.append(taking(append, BANK, API)), Committed), False, "an append")
    if store.shared:
        await store.bury("w1", 0)
        for append in (first.next(token=2), second.next(token=1), second.next(token=1, index=READY)):
            expect_type(await store.append(taking(append, BANK, API)), Fenced, "an append of the dead")
    expect({name: use for name, use in (await used(store)).items() if any(use)}, {"cpu": (1, 0)}, "what is taken")
    await store.register(worker("w2"))
    await put(store, second, taking(second.next(token=1), BANK, API))


@check
async def turns_of_a_rate_are_spread(lab: Lab) -> None:
    """Each run has a turn of its own, an interval after the one before; a lost worker takes none of them back."""
    store = await lab.engine()
    await holder(store, "run-1", API)
    dues: list[int] = []
    for number in (2, 3):
        draft = await waiter(store, f"run-{number}", API)
        dues.append((await loaded(store, draft)).row.state.due_us or 0)
    expect(0.9 < (dues[0] - AT) / HOUR_US <= 1.0, True, f"the first turn, {dues[0] - AT} µs later")
    expect(0.9 < (dues[1] - dues[0]) / HOUR_US < 1.1, True, f"the second turn, {dues[1] - dues[0]} µs after it")
    expect(await used(store), {"api": (0, 2)}, "who waits")
    at_once = Permit("quick", "", "rate", 1)
    draft = await claimed(store, "run-4")
    await put(store, draft, draft.next(token=1, index=waiting(at_once)))
    await expect_due(store, draft, AT, "a turn that is there")
    await put(store, draft, taking(draft.next(token=2, index=owned(2), at_us=AT), at_once))
    expect((await used(store))["quick"], (0, 0), "after it was used")


@check
async def a_new_run_takes_places_or_stands_in_line(lab: Lab) -> None:
    """With its submission: claimed at once, or in the order in which they came [R-11, J-12]."""
    store = await lab.engine()
    first, second, third = Draft("run-1"), Draft("run-2"), Draft("run-3")
    await put(store, first, taking(first.submit(owned()), RUNS))
    expect(await store.append(taking(second.submit(owned()), RUNS)), LimitReached("runs", ""), "the second")
    expect(await store.load("run-2"), None, "the second, as it is read")
    for draft in (second, third):
        await put(store, draft, draft.submit(waiting(RUNS, token=0)))
    expect(await used(store), {"runs": (1, 2)}, "while they wait")
    await put(store, first, first.next(token=1, index=ENDED))
    await expect_due(store, second, AT, "the first in line")
    await expect_due(store, third, None, "the second in line")
    await put(store, second, second.next(index=IndexState("canceled")))
    await expect_due(store, third, AT, "after that was canceled")


@check
async def a_whole_group_competes(lab: Lab) -> None:
    """Of many appends in one transaction as many get a place as there are [R-11]."""
    store = await lab.engine()
    drafts = [await claimed(store, f"run-{number:02}") for number in range(40)]
    few = replace(BANK, bound=7)
    results = await asyncio.gather(*[store.append(taking(draft.next(token=1), few)) for draft in drafts])
    expect(sum(isinstance(result, Committed) for result in results), 7, "how many got one")
    expect(sum(isinstance(result, LimitReached) for result in results), 33, "how many were refused")
    expect(await used(store), {"bank": (7, 0)}, "what is taken")


@check
async def what_is_taken_survives(lab: Lab) -> None:
    """A reopened store knows who has what; the taken-over run finds its own place, and the sweep forgets the rest."""
    store = await lab.engine()
    first = await holder(store, "run-1", BANK)
    await submitted(store, "run-2")
    store = await lab.reopened(store, "w1")
    expect(await used(store), {"bank": (1, 0)}, "after it was reopened")
    await put(store, first, taking(first.claim(2), BANK))
    await put(store, first, first.next(token=2, index=ENDED))
    expect(await used(store), {"bank": (0, 0)}, "after its end")
    await store.grant_permits(AT)
    expect(await used(store), {}, "after the sweep")
