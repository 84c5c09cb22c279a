"""Index rows: slots, ownership, due times, attention, sweeps [M-1, R-4, R-5, R-16]."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from perdure.core.facts import RunCancelRequested
from perdure.core.signature import signature_of
from perdure.ports.store import (
    Committed,
    Deployment,
    IndexState,
    LedgerCount,
    PipelineHold,
    RunFilter,
    RunStatus,
    SlotTaken,
)
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
    expect_type,
    loaded,
    owned,
    part,
    put,
    submitted,
)

BACKOFF = IndexState("ready", due_us=T0 + 500, token=1, generation=1, reason="backoff", step="reserve/v1")

CHECKS: list[Check] = []
check = part(CHECKS)


@check
async def slot_is_taken_by_a_live_run(lab: Lab) -> None:
    """One live run a slot; the refusal names it and its input, and writes nothing [M-1, R-5]."""
    store = await lab.engine()
    holder = Draft("run-1", slot="invoice-7", input='{"cents":1}')
    await put(store, holder, holder.submit())
    refused = await store.append(Draft("run-2", slot="invoice-7", input='{"cents":2}').submit())
    expect(refused, SlotTaken("run-1", holder.new.input_digest), "a second run of the slot")
    expect(await store.load("run-2"), None, "the refused run")
    await put(store, holder, holder.claim())
    expect(await store.append(Draft("run-3", slot="invoice-7").submit()), refused, "while it runs")
    for other in (
        Draft("run-4", slot="invoice-8"),
        Draft("run-5", slot="invoice-7", pipeline="refund"),
        Draft("run-6", slot="invoice-7", tenant="acme"),
    ):
        expect_type(await store.append(other.submit()), Committed, f"another slot: {other.run_id}")


@check
async def slot_is_free_after_the_end(lab: Lab) -> None:
    """Any end frees the slot, unless it is taken once and for ever [M-1, R-5]."""
    store = await lab.engine()
    ends: tuple[RunStatus, ...] = ("succeeded", "failed", "canceled")
    for number, status in enumerate(ends):
        draft = await claimed(store, f"run-{number}", slot="invoice-7")
        await put(store, draft, draft.next(token=1, index=IndexState(status, token=1)))
    once = Draft("run-4", slot="invoice-7", once=True)
    await put(store, once, once.submit())
    await put(store, once, once.claim())
    await put(store, once, once.next(token=1, index=ENDED))
    refused = await store.append(Draft("run-5", slot="invoice-7").submit())
    expect(refused, SlotTaken("run-4", once.new.input_digest), "after a run that takes its slot once")


@check
async def two_submissions_of_one_slot_in_one_turn(lab: Lab) -> None:
    """Exactly one of many submissions for one slot wins [M-1]."""
    store = await lab.engine()
    drafts = [Draft(f"run-{i}", slot="invoice-7") for i in range(10)]
    results = await asyncio.gather(*[store.append(draft.submit()) for draft in drafts])
    won = [draft.run_id for draft, result in zip(drafts, results, strict=True) if isinstance(result, Committed)]
    lost = [result for result in results if isinstance(result, SlotTaken)]
    expect((len(won), len(lost)), (1, 9), "winners and losers")
    expect({result.run_id for result in lost}, set(won), "who the losers name")


@check
async def no_slot_excludes_nobody(lab: Lab) -> None:
    """Without a slot key any number of runs live side by side, resource or not [M-1]."""
    store = await lab.engine()
    for number in range(3):
        await submitted(store, f"run-{number}")
    expect(len((await store.list_runs(RunFilter())).rows), 3, "runs")


@check
async def owner_writes_its_state(lab: Lab) -> None:
    """What an owner appends is the state; a terminal one records the append's time as the end."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    expect((await loaded(store, draft)).row.state, owned(), "state of a claim")
    await put(store, draft, draft.next(token=1, index=BACKOFF))
    expect((await loaded(store, draft)).row.state, BACKOFF, "state of a backoff")
    end = IndexState("failed", token=2, generation=3, reason="declined", canceling=True, version=9, tail_hash=bytes(32))
    await put(store, draft, draft.claim(2))
    await put(store, draft, draft.next(token=2, index=end, at_us=T0 + 77))
    row = (await loaded(store, draft)).row
    expect((row.state, row.ended_us), (end, T0 + 77), "state and end")


@check
async def outside_changes_only_unowned_runs(lab: Lab) -> None:
    """Facts from outside make an unowned run due; an owned one is only marked, and its owner's state stands [J-6]."""
    store = await lab.engine()
    free, busy = await submitted(store, "run-1", BACKOFF), await claimed(store, "run-2")
    wake = IndexState("ready", due_us=T0 + 1, canceling=True)
    for draft in (free, busy):
        await put(store, draft, draft.next(RunCancelRequested("someone"), index=wake))
    expect((await loaded(store, free)).row.state, wake, "state of the unowned run")
    expect((await loaded(store, busy)).row.state, owned(), "state of the owned run")
    expect(list(await store.attention("w1")), ["run-2"], "attention")
    expect((await loaded(store, busy)).row.attention, True, "attention in the row")
    await put(store, busy, busy.next(token=1))
    expect(list(await store.attention("w1")), ["run-2"], "attention after an append without an index write")
    await put(store, busy, busy.next(token=1, index=BACKOFF))
    expect(list(await store.attention("w1")), [], "attention after the owner's index write")


@check
async def outside_facts_without_a_state_call_the_owner_too(lab: Lab) -> None:
    """Any append from outside to an owned run asks for attention; none to an unowned run does [R-16]."""
    store = await lab.engine()
    free, busy = await submitted(store, "run-1"), await claimed(store, "run-2")
    for draft in (free, busy):
        await put(store, draft, draft.next(RunCancelRequested("someone")))
    expect(list(await store.attention("w1")), ["run-2"], "attention")
    expect((await loaded(store, free)).row.state, READY, "state of the unowned run")


@check
async def state_without_facts_needs_the_tail(lab: Lab) -> None:
    """`set_index` writes only if nobody appended since the caller read: no outside fact is overlooked [R-16]; nor where
    a server lost its last rows, and others stand there now [J-2]."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    before = draft.tail
    await put(store, draft, draft.next(RunCancelRequested("someone"), index=READY))
    expect(await store.set_index(draft.locator, BACKOFF, before), False, "behind the tail")
    expect((await loaded(store, draft)).row.state, owned(), "state")
    expect(list(await store.attention("w1")), ["run-1"], "attention")
    another = replace(BACKOFF, tail_hash=bytes(32))
    expect(await store.set_index(draft.locator, another, draft.tail), False, "another history")
    expect((await loaded(store, draft)).row.state, owned(), "state")
    known = replace(BACKOFF, tail_hash=draft.rows[-1].hash)
    expect(await store.set_index(draft.locator, known, draft.tail), True, "at the tail of this history")
    expect((await loaded(store, draft)).row.state, known, "state")
    expect(await store.set_index(draft.locator, BACKOFF, draft.tail), True, "at the tail")
    expect((await loaded(store, draft)).row.state, BACKOFF, "state")
    expect(list(await store.attention("w1")), [], "attention")
    expect(await store.set_index(draft.locator + 1000, BACKOFF, 1), False, "no such run")


@check
async def state_and_append_keep_their_order(lab: Lab) -> None:
    """Entries of one turn are applied in the order in which they were made."""
    store = await lab.engine()
    draft = await claimed(store, "run-1")
    append = draft.next(token=1, index=BACKOFF)
    held = IndexState("held", token=1)
    first, second, third = await asyncio.gather(
        store.set_index(draft.locator, READY, draft.tail),
        store.append(append),
        store.set_index(draft.locator, held, append.first_seq),
    )
    draft.accept(append, second)
    expect((first, third), (True, True), "both states")
    expect((await loaded(store, draft)).row.state, held, "the last state")


@check
async def due_runs_come_in_order(lab: Lab) -> None:
    """Longest due first; owned, waiting, held and ended runs do not come at all [R-4, R-7]."""
    store = await lab.engine()
    for number, due_us in enumerate((T0 + 30, T0 + 10, T0 + 20, T0 + 20, T0 + 99)):
        await submitted(store, f"run-{number}", IndexState("ready", due_us=due_us))
    await claimed(store, "run-5")
    await ended(store, "run-6")
    await submitted(store, "run-7", IndexState("held"))
    expect(list(await store.due(T0 + 30, 10)), ["run-1", "run-2", "run-3", "run-0"], "due")
    expect(list(await store.due(T0 + 30, 2)), ["run-1", "run-2"], "the first two")
    expect(list(await store.due(T0 + 9, 10)), [], "nothing is due yet")
    expect(await store.next_due_us(), T0 + 10, "the next due time")


@check
async def work_begun_is_finished_before_more_is_begun(lab: Lab) -> None:
    """Runs that were claimed before come first, however late they are due, and new ones are not starved [R-1, R-4]."""
    store = await lab.engine()
    for number in range(6):
        await submitted(store, f"new-{number}", IndexState("ready", due_us=T0 + number))
    for number in range(6):
        await submitted(store, f"begun-{number}", IndexState("ready", due_us=T0 + 50 + number, token=1))
    begun, new = [f"begun-{n}" for n in range(6)], [f"new-{n}" for n in range(6)]
    expect(list(await store.due(T0 + 99, 20)), [*begun[:3], new[0], *begun[3:], *new[1:]], "all")
    expect(list(await store.due(T0 + 99, 4)), begun[:3] + new[:1], "a quarter for new runs")
    expect(list(await store.due(T0 + 51, 8)), begun[:2] + new, "what begun runs do not need")
    expect(list(await store.due(T0 + 99, 1)), begun[:1], "one place")
    expect(list(await store.due(T0 + 99, 1, 3)), new[:1], "the fourth place")
    expect(list(await store.due(T0 + 99, 3, 2)), [begun[0], new[0], begun[1]], "the places from the third on")
    expect(await store.next_due_us(), T0, "the next due time is anyone's")


@check
async def the_higher_priority_comes_first(lab: Lab) -> None:
    """Within what is begun and what is new; of one priority longest due first; nobody before it is due [R-1]."""
    store = await lab.engine()
    for token, kind in ((0, "new"), (1, "begun")):
        for priority, due_us in ((-9, 1), (0, 2), (0, 3), (9, 4), (9, 5), (9, 50)):
            state = IndexState("ready", due_us=T0 + due_us, token=token, priority=priority)
            await submitted(store, f"{kind}-{priority}-{due_us}", state)
    begun = [f"begun-{name}" for name in ("9-4", "9-5", "0-2", "0-3", "-9-1")]
    new = [name.replace("begun", "new") for name in begun]
    expect(list(await store.due(T0 + 20, 12)), [*begun[:3], new[0], *begun[3:], *new[1:]], "due")
    expect(list(await store.due(T0 + 20, 1)), begun[:1], "one place")
    expect(list(await store.due(T0 + 3, 2)), ["begun-0-2", "begun-0-3"], "before the urgent ones are due")
    expect(await store.next_due_us(), T0 + 1, "the next due time is that of any priority")
    row = (await store.list_runs(RunFilter(), limit=1)).rows[0]
    expect((row.run.run_id, row.state.priority), ("begun-9-50", 9), "priority in the row")
    store = await lab.reopened(store)
    expect(list(await store.due(T0 + 60, 3)), [*begun[:2], "begun-9-50"], "after a restart")


@check
async def no_priority_starves(lab: Lab) -> None:
    """One place at a time, and always more urgent runs: whoever is due longest of its class has one of 16 [R-1]."""
    store = await lab.engine()
    patient: dict[str, Draft] = {}
    for n, token in enumerate((0, 0, 1)):
        state = IndexState("ready", due_us=T0 + n, token=token, priority=-9)
        patient[f"patient-{n}"] = await submitted(store, f"patient-{n}", state)
    for token in (0, 1):
        for n in range(9):
            state = IndexState("ready", due_us=T0 + 50 + n, token=token, priority=9)
            await submitted(store, f"urgent-{token}-{n}", state)
    found: dict[int, str] = {}
    for turn in range(32):
        (run_id,) = await store.due(T0 + 99, 1, turn)
        if run_id in patient:
            found[turn] = run_id
            await store.set_index(patient[run_id].locator, IndexState("held"), 1)
    expect(found, {12: "patient-2", 15: "patient-0", 31: "patient-1"}, "who got which place")


@check
async def nothing_is_due(lab: Lab) -> None:
    """An empty store has no due time."""
    store = await lab.engine()
    expect(await store.next_due_us(), None, "the next due time")
    expect(list(await store.due(T0, 10)), [], "due")


@check
async def former_owners_runs_are_taken_over(lab: Lab) -> None:
    """After `take_over` every owned run is due and unowned, its token remembered [R-7, J-3]."""
    store = await lab.engine()
    mine, free, done = await claimed(store, "run-1"), await submitted(store, "run-2"), await ended(store, "run-3")
    await put(store, mine, mine.next(RunCancelRequested("someone")))
    store = await lab.reopened(store, "w2")
    expect(await store.take_over(T0 + 7), 1, "runs taken over")
    row = (await loaded(store, mine)).row
    expect(row.state, IndexState("ready", due_us=T0 + 7, token=1, generation=1), "state of the run taken over")
    expect(row.attention, False, "attention")
    expect((await loaded(store, free)).row.state, READY, "an unowned run")
    expect((await loaded(store, done)).row.state, ENDED, "an ended run")
    expect(await store.take_over(T0 + 8), 0, "a second time")


@check
async def invalid_runs_are_woken_by_another_build(lab: Lab) -> None:
    """Invalid runs become due where pipeline and (generation, build) say that the judgement may differ now [D-2]."""
    store = await lab.engine()
    judged = IndexState("invalid", generation=1, build="b1", reason="step-missing")
    draft = await submitted(store, "run-1", judged)
    other = Draft("run-2", pipeline="refund")
    await put(store, other, other.submit(judged))
    await submitted(store, "run-3", IndexState("held", generation=9, build="b0"))
    expect(await store.wake_invalid({"payout": 1}, "b1", T0 + 1), 0, "the same generation and build")
    expect(await store.wake_invalid({"payout": 1}, "b2", T0 + 1), 1, "another build")
    expect((await loaded(store, draft)).row.state.due_us, T0 + 1, "due time")
    expect((await loaded(store, draft)).row.state.status, "invalid", "status")
    expect(await store.wake_invalid({"payout": 2}, "b1", T0 + 2), 1, "another generation")
    expect((await loaded(store, other)).row.state.due_us, None, "a run of another pipeline")
    each = {"payout": 2, "refund": 1, "nothing": 7}
    expect(await store.wake_invalid(each, None, T0 + 3), 1, "judged under an older generation than the pipeline's own")
    expect(await store.wake_invalid(each, "b1", T0 + 4), 1, "another generation than the pipeline's own")
    expect((await loaded(store, other)).row.state.due_us, None, "a run that was judged as here")
    expect(await store.wake_invalid({}, "b9", T0 + 5), 0, "no pipeline")


@check
async def runs_that_rest_at_a_ledger_are_woken(lab: Lab) -> None:
    """`wake_resting` makes due who rests there and is not due by then; owned, held and other runs are left alone."""
    store = await lab.engine()
    signed = _signed(b'{"pin":"a"}')
    parked = replace(signed, status="ready", due_us=None, worker="")
    never = await submitted(store, "run-1", parked)
    later = await submitted(store, "run-2", replace(parked, due_us=T0 + 1_000))
    early = await submitted(store, "run-3", replace(parked, due_us=T0 + 1))
    held = await submitted(store, "run-4", replace(parked, status="held"))
    other = Draft("run-5", pipeline="refund")
    await put(store, other, other.submit(parked))
    expect(await store.wake_resting("payout", signed.signature, T0 + 5), 2, "runs that were woken")
    due = [(await loaded(store, draft)).row.state.due_us for draft in (never, later, early, held, other)]
    expect(due, [T0 + 5, T0 + 5, T0 + 1, None, None], "due times")
    expect(await store.wake_resting("payout", b"0" * 16, T0 + 6), 0, "nobody rests there")


@check
async def live_runs_are_counted_by_ledger(lab: Lab) -> None:
    """Resting runs by pipeline and ledger; owned, ended and corrupt ones never share one [D-6]."""
    store = await lab.engine()
    new, pinned = _signed(b"{}"), _signed('{"pin":"Ä/v1"}'.encode())
    await submitted(store, "run-2", new)
    await submitted(store, "run-1", new)
    await submitted(store, "run-3", pinned)
    other = Draft("run-4", pipeline="archive", submitted_us=T0 + 5)
    await put(store, other, other.submit(new))
    owned_run = await claimed(store, "run-5")
    await ended(store, "run-6")
    await submitted(store, "run-7", IndexState("corrupt"))
    expected = [
        LedgerCount("archive", new.signature, new.ledger, 1, "run-4", T0 + 5),
        LedgerCount("payout", b"", b"", 1, "run-5", T0),
        *sorted(
            (
                LedgerCount("payout", new.signature, new.ledger, 2, "run-2", T0),
                LedgerCount("payout", pinned.signature, pinned.ledger, 1, "run-3", T0),
            ),
            key=lambda entry: entry.signature,
        ),
    ]
    expect(list(await store.ledgers()), expected, "ledgers")
    both = {new.signature: new.ledger, pinned.signature: pinned.ledger}
    expect(await store.resting_ledgers("payout"), both, "of one pipeline")
    expect(await store.resting_ledgers("nothing"), {}, "of one that has no runs")
    await store.set_index(owned_run.locator, pinned, owned_run.tail)
    expect((await loaded(store, owned_run)).row.state, replace(pinned, ledger=b""), "state as read")
    await put(store, owned_run, owned_run.next(RunCancelRequested("someone"), index=new))
    store = await lab.reopened(store)
    again = [(entry.signature, entry.count) for entry in await store.ledgers() if entry.pipeline == "payout"]
    expect(sorted(again), sorted([(new.signature, 3), (pinned.signature, 1)]), "ledgers after a release and an append")


@check
async def a_ledger_that_no_run_has_is_forgotten(lab: Lab) -> None:
    """By `reclaim`, and not before: the others stay [D-6, R-9]."""
    store = await lab.engine()
    draft = await submitted(store, "run-1", _signed(b"{}"))
    await submitted(store, "run-2", _signed(b'{"pin":"b"}'))
    await store.set_index(draft.locator, _signed(b'{"pin":"a"}'), draft.tail)
    await store.reclaim()
    expect(sorted(entry.ledger for entry in await store.ledgers()), [b'{"pin":"a"}', b'{"pin":"b"}'], "ledgers")
    await store.set_index(draft.locator, replace(_signed(b"{}"), ledger=b""), draft.tail)
    forgotten = [entry.signature for entry in await store.ledgers() if entry.example_run == "run-1"]
    expect(forgotten, [b""], "a signature whose ledger nobody brought again")


def _signed(ledger: bytes) -> IndexState:
    return IndexState("ready", due_us=T0, signature=signature_of(ledger), ledger=ledger)


@check
async def deployments_are_remembered(lab: Lab) -> None:
    """A generation of a pipeline is registered once; the registry keeps its order [D-4]."""
    store = await lab.engine()
    made = [
        Deployment(pipeline, generation, f"digest-{generation}", b'["a/v1"]', T0 - generation, "someone")
        for pipeline, generation in (("payout", 1), ("refund", 1), ("payout", 2))
    ]
    for deployment in made:
        expect(await store.deploy(deployment), True, "a new generation")
    expect(await store.deploy(Deployment("payout", 2, "other", b"[]", T0, "late")), False, "a generation twice")
    store = await lab.reopened(store)
    expect(list(await store.deployments()), made, "the registry")
    expect(list(await store.deployments("payout")), [made[0], made[2]], "the registry of one pipeline")
    expect(list(await store.deployments("nothing")), [], "the registry of an unknown pipeline")


@check
async def runs_of_held_pipelines_are_not_due(lab: Lab) -> None:
    """A hold outlives the process, is in force once, and says afterwards who ended it [R-17, M-16]."""
    store = await lab.engine()
    await submitted(store, "run-1", IndexState("ready", due_us=T0 + 1))
    await submitted(store, "run-2", IndexState("ready", due_us=T0 + 2, token=1))
    other = Draft("run-3", pipeline="refund")
    await put(store, other, other.submit(IndexState("ready", due_us=T0 + 3)))
    hold = PipelineHold("payout", "ada", "the bank is down", T0)
    expect(await store.hold_pipeline(hold), True, "a first hold")
    expect(await store.hold_pipeline(PipelineHold("payout", "bob", "", T0 + 9)), False, "a second hold")
    expect(await store.hold_pipeline(PipelineHold("nothing", "bob", "", T0)), True, "a pipeline without runs")
    store = await lab.reopened(store)
    expect(list(await store.due(T0 + 9, 10)), ["run-3"], "due while held")
    expect(await store.next_due_us(), T0 + 3, "the next due time while held")
    expect([held.pipeline for held in await store.pipeline_holds()], ["payout", "nothing"], "what is held")
    expect((await store.pipeline_holds())[0], hold, "the hold")
    expect(await store.release_pipeline("payout", "eve", "it is up", T0 + 5), True, "the release")
    expect(await store.release_pipeline("payout", "eve", "", T0 + 6), False, "a second release")
    expect(list(await store.due(T0 + 9, 10)), ["run-2", "run-1", "run-3"], "due after the release")
    ended_hold = PipelineHold("payout", "ada", "the bank is down", T0, T0 + 5, "eve", "it is up")
    expect((await store.pipeline_holds(history=True))[0], ended_hold, "the hold on record")
    expect(await store.hold_pipeline(PipelineHold("payout", "bob", "", T0 + 9)), True, "a hold after the release")
    expect(await store.next_due_us(), T0 + 3, "the next due time while held again")


@check
async def a_client_holds_a_pipeline(lab: Lab) -> None:
    """The engine is told of it as of any commit of another process [R-17, R-2]."""
    store, changed = await lab.engine(), asyncio.Event()
    store.on_change(lambda change: changed.set())
    client = await lab.client()
    await client.hold_pipeline(PipelineHold("payout", "ada", "", T0))
    await asyncio.wait_for(changed.wait(), 5)
    expect([held.pipeline for held in await store.pipeline_holds()], ["payout"], "what the engine sees held")
