"""Lists and counts: filters, order, and pages that stay what they are while runs come, move and go [R-7, I-7]."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from perdure.ports.listing import ListPlace, RunFilter, WaitsFor
from perdure.ports.store import IndexState, Store
from perdure.testing.conformance.lab import ENDED, READY, T0, Check, Draft, Lab, ended, expect, part, put, submitted

CHECKS: list[Check] = []
check = part(CHECKS)


async def pages(store: Store, where: RunFilter, limit: int, *, oldest_first: bool = False) -> list[list[str]]:
    """All pages of a list, each without the letters that all ids begin with."""
    found: list[list[str]] = []
    after: ListPlace | None = None
    while True:
        page = await store.list_runs(where, after=after, oldest_first=oldest_first, limit=limit)
        found.append([row.run.run_id.removeprefix("run-") for row in page.rows])
        after = page.next
        if after is None:
            return found


async def listed(store: Store, where: RunFilter) -> str:
    """The last letters of the ids of a list, read in pages of two; the same as in one page, and as from behind."""
    expect(len(await pages(store, where, 1000)), 1, f"pages of {where} if one is large enough")
    whole = (await pages(store, where, 1000))[0]
    expect([run for page in await pages(store, where, 2) for run in page], whole, f"pages of two of {where}")
    behind = [run for page in await pages(store, where, 3, oldest_first=True) for run in page]
    expect(behind[::-1], whole, f"the same from behind, {where}")
    return "".join(whole)


@check
async def pages_follow_each_other(lab: Lab) -> None:
    """Newest submission first, and of those of one time the one with the greatest number; each run once."""
    store = await lab.engine()
    for number, at_us in ((3, 3), (1, 1), (4, 3), (0, 0), (2, 2)):
        draft = Draft(f"run-{number}", submitted_us=T0 + at_us)
        await put(store, draft, draft.submit())
    expect(await pages(store, RunFilter(), 2), [["4", "3"], ["2", "1"], ["0"]], "pages")
    backwards = await pages(store, RunFilter(), 2, oldest_first=True)
    expect(backwards, [["0", "1"], ["2", "3"], ["4"]], "pages, the oldest first")
    expect(await pages(store, RunFilter(), 5), [["4", "3", "2", "1", "0"]], "a page that holds all")
    nothing: list[list[str]] = [[]]
    expect(await pages(store, RunFilter(pipeline="none"), 5), nothing, "a page of nothing")


@check
async def pages_stay_while_runs_move(lab: Lab) -> None:
    """Between two pages runs are submitted, claimed, ended and removed: what was shown is not shown again, and of what
    was there nothing is left out."""
    store = await lab.engine()
    drafts = [Draft(f"run-{number}", submitted_us=T0 + number) for number in range(8)]
    for draft in drafts:
        await put(store, draft, draft.submit())
    first = await store.list_runs(RunFilter(), limit=3)
    expect([row.run.run_id for row in first.rows], ["run-7", "run-6", "run-5"], "first page")
    newer = Draft("run-9", submitted_us=T0 + 9)
    await put(store, newer, newer.submit())
    for draft, number in ((drafts[7], 1), (drafts[4], 1), (drafts[5], 1)):
        await put(store, draft, draft.claim(number))
    await put(store, drafts[5], drafts[5].next(token=1, index=ENDED, at_us=T0 + 20))
    expect(await store.remove_ended(T0 + 21, 10), 1, "removed")
    second = await store.list_runs(RunFilter(), after=first.next, limit=3)
    expect([row.run.run_id for row in second.rows], ["run-4", "run-3", "run-2"], "second page")
    await put(store, drafts[4], drafts[4].next(token=1, index=ENDED, at_us=T0 + 30))
    third = await store.list_runs(RunFilter(), after=second.next, limit=3)
    expect([row.run.run_id for row in third.rows], ["run-1", "run-0"], "third page")
    expect(third.next, None, "what comes after it")


@check
async def lists_are_filtered(lab: Lab) -> None:
    """Every filter narrows lists and counts in the same way."""
    store = await lab.engine()
    made = [
        Draft("run-0"),
        Draft("run-1", pipeline="refund", slot="invoice-7", submitted_us=T0 + 10, annotations={"team": "a"}),
        Draft("run-2", tenant="acme", slot="invoice-7", submitted_us=T0 + 20, annotations={"team": "b", "x": "y"}),
        Draft("run-3", tenant="acme", submitted_us=T0 + 30, annotations={"team": "b"}),
        Draft("run-4", pipeline="refund", submitted_us=T0 + 40),
    ]
    held = IndexState("held", step="reserve/v1")
    for draft in made:
        await put(store, draft, draft.submit(held if draft.run_id == "run-3" else READY))
    await put(store, made[0], made[0].claim())
    await put(store, made[4], made[4].claim(worker="w2"))
    failed = IndexState("failed", token=1, step="reserve/v1")
    await put(store, made[4], made[4].next(token=1, index=failed, at_us=T0 + 50))
    cases = {
        RunFilter(): "43210",
        RunFilter(pipeline="payout"): "320",
        RunFilter(pipeline="refund", statuses=("failed",)): "4",
        RunFilter(tenant="acme"): "32",
        RunFilter(tenant="default"): "410",
        RunFilter(tenant="default", statuses=("ready",)): "1",
        RunFilter(tenant="acme", pipeline="payout", statuses=("held", "ready")): "32",
        RunFilter(resource="invoice-7"): "21",
        RunFilter(resource="invoice-7", tenant="acme"): "2",
        RunFilter(resource="run-3"): "3",
        RunFilter(statuses=("held", "running")): "30",
        RunFilter(submitted_after_us=T0 + 10): "4321",
        RunFilter(submitted_before_us=T0 + 20): "10",
        RunFilter(submitted_after_us=T0 + 10, submitted_before_us=T0 + 30, pipeline="payout"): "2",
        RunFilter(tenant="acme", statuses=("ready",)): "2",
        RunFilter(annotations=(("team", "b"),)): "32",
        RunFilter(annotations=(("team", "b"), ("x", "y"))): "2",
        RunFilter(annotations=(("team", "b"),), statuses=("held",)): "3",
        RunFilter(annotations=(("team", "c"),)): "",
        RunFilter(step="reserve/v1"): "43",
        RunFilter(step="reserve/v1", statuses=("failed",)): "4",
        RunFilter(worker="w1"): "0",
        RunFilter(worker="w2"): "",
        RunFilter(ended_after_us=T0): "4",
        RunFilter(ended_before_us=T0 + 50): "",
        RunFilter(pipeline="' OR 1 --"): "",
    }
    for where, wanted in cases.items():
        expect(await listed(store, where), wanted, f"list of {where}")
        counts: dict[tuple[str, str], int] = {}
        for row in (await store.list_runs(where)).rows:
            key = row.run.pipeline, row.state.status
            counts[key] = counts.get(key, 0) + 1
        for cap in (None, 100):
            found = await store.count_runs(where, cap=cap)
            expect((found.numbers, found.exact), (counts, True), f"counts of {where} up to {cap}")


@check
async def a_resource_lists_all_its_runs(lab: Lab) -> None:
    """Those that hold its slot, had it, wait for it, or share it with nobody."""
    store = await lab.engine()
    old = await ended(store, "run-0")
    other = await _with_slot(store, "run-1", once=False)
    await put(store, other, other.claim())
    await put(store, other, other.next(token=1, index=ENDED, at_us=T0 + 9))
    kept = await _with_slot(store, "run-2", once=True)
    await put(store, kept, kept.claim())
    waits = Draft("run-3", slot="invoice-7")
    waits.new = replace(waits.new, waits="queue")
    await put(store, waits, waits.submit(IndexState("ready", reason="waits for its slot")))
    free = Draft("run-4")
    free.new = replace(free.new, resource="invoice-7")
    await put(store, free, free.submit())
    expect(await listed(store, RunFilter(resource="invoice-7")), "4321", "runs of a resource")
    await put(store, kept, kept.next(token=1, index=ENDED, at_us=T0 + 10))
    expect(await listed(store, RunFilter(resource="invoice-7")), "4321", "and after the end of one that keeps it")
    expect(await listed(store, RunFilter(resource=old.run_id)), "0", "a run about itself")


async def _with_slot(store: Store, run_id: str, *, once: bool) -> Draft:
    draft = Draft(run_id, slot="invoice-7", once=once)
    await put(store, draft, draft.submit())
    return draft


@check
async def ends_have_their_own_order(lab: Lab) -> None:
    """A list about ends is in the order of ends, and counts what ended in the range."""
    store = await lab.engine()
    for run_id, at_us in (("run-0", 30), ("run-1", 10), ("run-2", 20), ("run-3", 20)):
        await ended(store, run_id, T0 + at_us)
    await submitted(store, "run-4")
    expect(await listed(store, RunFilter(ended_after_us=T0)), "0321", "all ends")
    expect(await listed(store, RunFilter(ended_after_us=T0 + 11, ended_before_us=T0 + 30)), "32", "a range")
    expect(await listed(store, RunFilter(ended_before_us=T0 + 20, statuses=("succeeded",))), "1", "up to")
    found = await store.count_runs(RunFilter(ended_after_us=T0 + 20), cap=10)
    expect(found.numbers, {("payout", "succeeded"): 3}, "count of ends")


WAITING: Mapping[WaitsFor, tuple[IndexState, ...]] = {
    "time": (
        IndexState("ready", due_us=T0 + 9, token=1, reason="sleeping"),
        IndexState("ready", due_us=T0 + 9, token=1, reason="polling"),
        IndexState("ready", due_us=T0 + 9),
    ),
    "retry": (IndexState("ready", due_us=T0 + 9, token=1, reason="timeout"),),
    "message": (IndexState("ready", token=1, reason="waits for message 'approval'", step="approve/v1"),),
    "limit": (IndexState("ready", token=1, reason="waits for limit 'api'"),),
    "deployment": (IndexState("invalid", token=1, reason="removed: reserve/v1"),),
    "run": (IndexState("ready", token=1, reason="waits for a run", awaits=("run-x",), need=1, at_us=T0),),
}


@check
async def waiting_runs_are_found_by_what_they_wait_for(lab: Lab) -> None:
    """A run that nobody owns waits for one thing at most, and is found by it [R-5, B-15, B-24, R-13]."""
    store = await lab.engine()
    await submitted(store, "run-x")
    await submitted(store, "run-y", IndexState("held", reason="sleeping"))
    await submitted(store, "run-z", IndexState("running", worker="w1", token=1, reason="sleeping"))
    wanted: dict[WaitsFor, str] = {}
    number = 0
    for kind, states in WAITING.items():
        for state in states:
            draft = Draft(f"run-{number}", submitted_us=T0 + number)
            await put(store, draft, draft.submit(state if not state.awaits else replace(state, token=0)))
            wanted[kind] = f"{number}{wanted.get(kind, '')}"
            number += 1
    holder, behind = Draft("run-8", slot="s"), Draft("run-9", slot="s", submitted_us=T0 + 9)
    behind.new = replace(behind.new, waits="queue")
    await put(store, holder, holder.submit())
    await put(store, behind, behind.submit(IndexState("ready", reason="waits for its slot")))
    wanted["slot"] = "9"
    for kind, runs in wanted.items():
        expect(await listed(store, RunFilter(waiting=(kind,))), runs, f"runs that wait for a {kind}")
        found = await store.count_runs(RunFilter(waiting=(kind,)), cap=100)
        expect(sum(found.numbers.values()), len(runs), f"number of runs that wait for a {kind}")
    expect(await listed(store, RunFilter(waiting=("slot", "message"))), f"9{wanted['message']}", "either")
    expect(await listed(store, RunFilter(waiting=("message",), step="approve/v1")), wanted["message"], "at a step")
    expect(await listed(store, RunFilter(waiting=("time",), statuses=("held",))), "", "none of these is held")


@check
async def counts_stop_where_they_are_told(lab: Lab) -> None:
    """With a cap no number goes beyond it, and the answer says where there may be more."""
    store = await lab.engine()
    for number in range(7):
        draft = Draft(f"run-{number}", tenant="acme" if number % 2 else "default", annotations={"a": "b"})
        await put(store, draft, draft.submit(IndexState("held") if number == 6 else READY))
    found = await store.count_runs(RunFilter(), cap=3)
    expect(found.numbers, {("payout", "ready"): 3, ("payout", "held"): 1}, "numbers")
    expect((found.at_least, found.complete), (frozenset({("payout", "ready")}), True), "where there are more")
    exact = await store.count_runs(RunFilter(), cap=6)
    expect((exact.numbers["payout", "ready"], exact.exact), (6, True), "a cap that is just met")
    for where in (RunFilter(tenant="default"), RunFilter(annotations=(("a", "b"),))):
        some = await store.count_runs(where, cap=2)
        whole = await store.count_runs(where)
        for key, number in some.numbers.items():
            expect(number <= min(2, whole.numbers[key]), True, f"number of {key} in {where}")
            expect(number == whole.numbers[key] or key in some.at_least, True, f"{key} is told to be more in {where}")
        expect(some.complete <= (set(some.numbers) == set(whole.numbers)), True, f"kinds in {where}")


@check
async def few_among_many_are_found(lab: Lab) -> None:
    """Where what is combined fits few runs a page may be short, and the pages together are the whole list."""
    store = await lab.engine()
    drafts = [
        Draft(f"run-{n:03}", annotations={"all": "of them"}, tenant="acme" if n in (3, 250) else "default")
        for n in range(300)
    ]
    await asyncio.gather(*[store.append(draft.submit()) for draft in drafts])
    where = RunFilter(annotations=(("all", "of them"),), tenant="acme")
    found = [run for page in await pages(store, where, 5) for run in page]
    expect(sorted(found), ["003", "250"], "the two")


@check
async def ids_are_found_by_their_beginning(lab: Lab) -> None:
    """The greatest id first, no more than were asked for; letters of a pattern mean nothing."""
    store = await lab.engine()
    for run_id in ("0ab-1", "0ab-3", "0ab-2", "0ac", "0b%"):
        await submitted(store, run_id)
    expect(list(await store.ids_from("0ab", 2)), ["0ab-3", "0ab-2"], "ids")
    expect(list(await store.ids_from("0ab-1", 9)), ["0ab-1"], "a whole id")
    expect(list(await store.ids_from("", 9)), ["0b%", "0ac", "0ab-3", "0ab-2", "0ab-1"], "all")
    expect(list(await store.ids_from("%", 9)), [], "no pattern")
