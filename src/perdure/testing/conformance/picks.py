"""Whose turn it is where many workers serve one store: who is served, in which order, and picking [R-1, D-4]."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from perdure.core.facts import RunCancelRequested
from perdure.ports.store import Committed, Conflict, IndexState, PipelineHold, Store
from perdure.testing.conformance.lab import (
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

CHECKS: list[Check] = []
check = part(CHECKS)

LATER = T0 + 1_000


async def _due(store: Store, run_id: str, due_us: int, *, pipeline: str = "payout", tenant: str = "default") -> Draft:
    draft = Draft(run_id, pipeline=pipeline, tenant=tenant)
    await put(store, draft, draft.submit(replace(READY, due_us=due_us)))
    return draft


@check
async def only_what_is_served_is_due(lab: Lab) -> None:
    """A worker is offered runs of its pipelines that no later deployment than its own has advanced [D-4]."""
    store = await lab.engine()
    for generation in range(4):
        state = IndexState("ready", due_us=T0 + 9 - generation, token=generation, generation=generation)
        await submitted(store, f"run-{generation}", state)
    await _due(store, "run-9", T0, pipeline="refund")
    served = [
        ({"payout": 2}, {"run-0", "run-1", "run-2"}, T0 + 7),
        ({"payout": 0}, {"run-0"}, T0 + 9),
        ({"payout": 9, "refund": 1}, {"run-0", "run-1", "run-2", "run-3", "run-9"}, T0),
        ({"nothing": 9}, set[str](), None),
        (dict[str, int](), set[str](), None),
    ]
    for serving, wanted, next_us in served:
        expect(set(await store.due(LATER, 10, 0, serving)), wanted, f"due for who serves {serving}")
        expect(await store.next_due_us(serving), next_us, f"the next due time for who serves {serving}")
        if next_us is not None:
            expect(list(await store.due(next_us - 1, 10, 0, serving)), [], "before that time")
    expect(list(await store.due(LATER, 9)), ["run-3", "run-2", "run-1", "run-9", "run-0"], "due for anybody")
    await store.hold_pipeline(PipelineHold("payout", "ada", "", T0))
    expect(list(await store.due(LATER, 9, 0, {"payout": 9, "refund": 9})), ["run-9"], "due while one is held")
    expect(await store.next_due_us({"payout": 9}), None, "the next due time of one that is held")


@check
async def a_picked_run_is_its_workers(lab: Lab) -> None:
    """Owned and not due, and nothing else of it changes; nobody gets it a second time; facts call its owner [R-1]."""
    store = await lab.engine()
    state = IndexState("ready", due_us=T0, token=3, generation=2, reason="backoff", step="pay/v1", priority=2)
    draft = await submitted(store, "run-1", state)
    await submitted(store, "run-2", replace(state, generation=3))
    await _due(store, "run-3", LATER)
    expect(list(await store.pick("w1", T0, 10, 0, {"payout": 2})), ["run-1"], "picked")
    run = await loaded(store, draft)
    expect(run.row.state, replace(state, worker="w1", due_us=None), "state of the picked run")
    expect(run.rows, tuple(draft.rows), "its journal")
    expect(list(await store.pick("w2", T0, 10, 0, {"payout": 2})), [], "picked a second time")
    expect(list(await store.due(T0, 10)), ["run-2"], "due")
    await put(store, draft, draft.next(RunCancelRequested("someone"), index=READY))
    expect(list(await store.attention("w1")), ["run-1"], "attention")
    claim = draft.claim(4)
    await put(store, draft, claim)
    expect((await loaded(store, draft)).row.state, owned(4), "state of the claimed run")


@check
async def a_picked_run_is_not_ended_from_outside(lab: Lab) -> None:
    """Its owner may know better: who gives it up has to look again. Nobody's run ends as before [D-7, J-6]."""
    store = await lab.engine()
    draft = await _due(store, "run-1", T0)
    await store.pick("w1", T0, 1, 0, {"payout": 0})
    given_up = draft.next(RunCancelRequested("ada"), index=IndexState("failed"))
    expect(await store.append(given_up), Conflict(), "the end of a picked run")
    expect((await loaded(store, draft)).rows, tuple(draft.rows), "its journal")
    await store.unpick("w1", ["run-1"], T0)
    await put(store, draft, given_up)
    expect((await loaded(store, draft)).row.ended_us, given_up.at_us, "its end")


@check
async def what_was_not_claimed_is_given_back(lab: Lab) -> None:
    """`unpick` makes due what its worker picked, and leaves alone what it claimed and what is another's [R-16]."""
    store = await lab.engine()
    drafts = [await _due(store, f"run-{n}", T0 + n) for n in range(4)]
    mine = await store.pick("w1", T0 + 2, 3, 0, {"payout": 0})
    theirs = await store.pick("w2", T0 + 3, 3, 0, {"payout": 0})
    expect((list(mine), list(theirs)), (["run-0", "run-1", "run-2"], ["run-3"]), "picked")
    await put(store, drafts[1], drafts[1].claim())
    await put(store, drafts[2], drafts[2].next(RunCancelRequested("someone"), index=READY))
    everybody = [*[draft.run_id for draft in drafts], "run-none", "run-0"]
    expect(await store.unpick("w1", everybody, T0 + 50), 2, "given back")
    states = [(await loaded(store, draft)).row.state for draft in drafts]
    waiting = IndexState("ready", due_us=T0 + 50)
    expect(states, [waiting, owned(), waiting, replace(waiting, due_us=None, worker="w2")], "states")
    expect(list(await store.attention("w1")), [], "attention")
    expect(await store.unpick("w1", everybody, T0 + 60), 0, "given back again")
    expect(await store.unpick("w1", [], T0 + 60), 0, "given back of none")
    expect(set(await store.due(T0 + 50, 9)), {"run-0", "run-2"}, "due")


@check
async def many_runs_are_loaded_together(lab: Lab) -> None:
    """As one by one, in the order asked for; who is not there is left out."""
    store = await lab.engine()
    drafts = [await claimed(store, "run-2"), await submitted(store, "run-1"), await submitted(store, "run-3")]
    singly = [await loaded(store, draft) for draft in drafts]
    together = await store.load_many(["run-2", "run-none", "run-1", "run-3"])
    expect(list(together), singly, "loaded together")
    expect(list(await store.load_many([])), [], "loaded of none")


@check
async def pipelines_take_turns(lab: Lab) -> None:
    """Each pipeline that has a run due gets a place in every round, however many another has [R-1]."""
    store = await lab.engine()
    for n in range(12):
        await _due(store, f"big-{n:02}", T0 + n, pipeline="big")
    for name in "abc":
        await _due(store, f"small-{name}-1", T0 + 50, pipeline=name)
        await _due(store, f"small-{name}-2", T0 + 51, pipeline=name)
    serving = {"big": 1, "a": 1, "b": 1, "c": 1}
    rounds = [
        f"small-{name}-{n}" if name != "big" else f"big-0{n - 1}" for n in (1, 2) for name in ("a", "b", "big", "c")
    ]
    expect(list(await store.due(LATER, 8, 0, serving)), rounds, "two rounds")
    picked: list[str] = []
    for turn in range(0, 12, 3):
        picked += await store.pick("w1", LATER, 3, turn, serving)
    small = [run_id for run_id in picked if run_id.startswith("small")]
    expect(len(small), 6, f"runs of small pipelines among the first {picked}")


@check
async def tenants_take_turns(lab: Lab) -> None:
    """Four of 16 places go to tenants in turn, one after the other, whoever is due longer and more urgent [R-1]."""
    store = await lab.engine()
    for n in range(40):
        await _due(store, f"loud-{n:02}", T0 + n, tenant="loud")
    for name in ("b", "c", "d", "x", "y", "z"):
        for n in range(2):
            await _due(store, f"{name}-{n}", T0 + 90 + n, tenant=name)
    picked: list[str] = []
    for turn in range(48):
        picked += await store.pick("w1", LATER, 1, turn, {"payout": 1})
    turns = [picked[place] for start in (8, 24, 40) for place in range(start, start + 4)]
    first = [run_id for run_id in turns if not run_id.startswith("loud")]
    expect(first, ["b-0", "c-0", "d-0", "x-0", "y-0", "z-0", "b-1", "c-1", "d-1", "x-1"], f"whose turn: {turns}")
    expect(len([run_id for run_id in picked if run_id.startswith("loud")]), 38, "who is due longest")


@check
async def two_that_pick_at_once_share(lab: Lab) -> None:
    """No run goes to two, and between them they get all there are [R-1, J-3]."""
    store, other = await lab.engine(), await lab.client()
    names = [f"run-{n:02}" for n in range(30)]
    for n, name in enumerate(names):
        await _due(store, name, T0 + n, tenant=f"t{n % 3}")
    mine, theirs = list[str](), list[str]()
    while len(mine) + len(theirs) < len(names):
        found = await asyncio.gather(
            store.pick("w1", LATER, 4, len(mine), {"payout": 1}),
            other.pick("w2", LATER, 4, len(theirs), {"payout": 1}),
        )
        if not found[0] and not found[1]:
            break
        mine += found[0]
        theirs += found[1]
    expect(sorted([*mine, *theirs]), names, "picked by both")
    for run in await store.load_many(names):
        expect(run.row.state.worker, "w1" if run.row.run.run_id in mine else "w2", f"owner of {run.row.run.run_id}")


@check
async def a_picked_runs_claim_is_decided_by_its_journal(lab: Lab) -> None:
    """Whoever claims without having picked is stopped by nothing but the journal, as ever [J-2, J-3]."""
    store = await lab.engine()
    draft = await submitted(store, "run-1")
    expect(list(await store.pick("w1", T0, 1, 0, {"payout": 0})), ["run-1"], "picked")
    rival = draft.claim(1, "w2")
    expect_type(await store.append(rival), Committed, "the rival's claim")
    late = draft.claim(1, "w1")
    expect(type(await store.append(late)).__name__, "Conflict", "the claim of who picked it")
    expect(await store.unpick("w1", ["run-1"], T0), 0, "given back by who picked it")
