"""What others are told of commits: never less than they have to act on [R-2, R-16]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from perdure.core.facts import RunCancelRequested
from perdure.ports.store import Change, IndexState, Store
from perdure.testing.conformance.lab import DEADLINE_S, ENDED, READY, T0, Check, Draft, Lab, claimed, part, put

HOUR_US = 3_600_000_000

CHECKS: list[Check] = []
check = part(CHECKS)


class Ear:
    """What one store is told."""

    def __init__(self, store: Store) -> None:
        self._heard: list[Change] = []
        self._news = asyncio.Event()
        store.on_change(self._hear)

    def _hear(self, change: Change) -> None:
        self._heard.append(change)
        self._news.set()

    async def hears(self, what: str, enough: Callable[[Change], bool]) -> None:
        """Fail unless something is told soon that is enough to act on; what was told before does not count later."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not any(change.anything or enough(change) for change in self._heard):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"nobody was told of {what}, only {self._heard}") from None
        await asyncio.sleep(0.1)  # what was told besides
        self._heard.clear()


@check
async def engines_are_told_of_runs_that_are_due(lab: Lab) -> None:
    """New ones, and those that an engine lets go of."""
    engine, client = await lab.engine(), await lab.client()
    at_engine, at_client = Ear(engine), Ear(client)
    draft = Draft("run-1")
    await put(client, draft, draft.submit())
    await at_engine.hears("a new run", lambda change: change.due)
    await put(engine, draft, draft.claim())
    await put(engine, draft, draft.next(token=1, index=replace(READY, token=1)))
    await at_client.hears("a run that was let go of", lambda change: change.due and "run-1" in change.runs)


@check
async def an_owner_is_told_of_facts_from_outside(lab: Lab) -> None:
    """And so is who waits for the run."""
    engine, client = await lab.engine(), await lab.client()
    draft = await claimed(engine, "run-1")
    ear = Ear(engine)
    await put(client, draft, draft.next(RunCancelRequested("me")))
    await ear.hears("a cancel", lambda change: change.outside and "run-1" in change.runs)


@check
async def who_waits_is_told_of_ends(lab: Lab) -> None:
    """Many in one group, and one alone."""
    engine, client = await lab.engine(), await lab.client()
    drafts = [await claimed(engine, f"run-{number}") for number in range(200)]
    ear = Ear(client)
    appends = [draft.next(token=1, index=ENDED, at_us=T0 + 50) for draft in drafts]
    told: set[str] = set()

    def all_told(change: Change) -> bool:
        told.update(change.runs)
        return len(told) == len(drafts)

    async with client.attending():
        for draft, append, answer in zip(drafts, appends, [engine.append(append) for append in appends], strict=True):
            draft.accept(append, await answer)
        await ear.hears("200 ends", all_told)
        alone = await claimed(engine, "alone")
        await put(engine, alone, alone.next(token=1, index=ENDED, at_us=T0 + 60))
        await ear.hears("an end", lambda change: "alone" in change.runs)


@check
async def who_waits_is_told_of_runs_that_rest_for_long(lab: Lab) -> None:
    """No engine has to act on that soon, and a client that watches shows it."""
    engine, client = await lab.engine(), await lab.client()
    draft = await claimed(engine, "run-1")
    ear = Ear(client)
    async with client.attending():
        await put(engine, draft, draft.next(token=1, index=replace(READY, token=1, due_us=T0 + HOUR_US)))
        await ear.hears("a run that rests", lambda change: "run-1" in change.runs)


@check
async def engines_are_told_of_waits_that_a_deadline_ends(lab: Lab) -> None:
    """Whoever ends what they wait for has to know, however late the deadline is."""
    engine, client = await lab.engine(), await lab.client()
    await claimed(engine, "holder", slot="invoice-7")
    waits, other = Draft("waits", slot="invoice-7"), await claimed(engine, "other")
    waits.new = replace(waits.new, waits="replace", deadline_us=T0 + HOUR_US)
    ear = Ear(client)
    await put(engine, waits, waits.submit(IndexState("ready", T0 + HOUR_US)))
    await ear.hears("a run that waits for its slot", lambda change: change.anything)
    index = IndexState("ready", T0 + HOUR_US, token=1, generation=1, awaits=("holder",), need=1, at_us=T0)
    await put(engine, other, other.next(token=1, index=index))
    await ear.hears("a wait", lambda change: change.anything)


@check
async def engines_are_told_of_what_an_end_passes_on(lab: Lab) -> None:
    """A slot, and that it was the last run which another waited for: those are due for whoever is free."""
    engine, client = await lab.engine(), await lab.client()
    holder, waits = await claimed(engine, "holder", slot="invoice-7"), Draft("waits", slot="invoice-7")
    waits.new = replace(waits.new, waits="queue")
    ear = Ear(client)
    await put(engine, waits, waits.submit(IndexState("ready")))
    await ear.hears("a run that waits for its slot", lambda change: change.anything)
    await put(engine, holder, holder.next(token=1, index=ENDED, at_us=T0 + 50))
    await ear.hears("a slot that was passed on", lambda change: change.due)
    other, last = await claimed(engine, "other"), await claimed(engine, "last")
    awaits = IndexState("ready", None, token=1, generation=1, awaits=("last",), need=1, at_us=T0)
    await put(engine, other, other.next(token=1, index=awaits))
    await ear.hears("a wait", lambda change: change.anything)
    await put(engine, last, last.next(token=1, index=ENDED, at_us=T0 + 60))
    await ear.hears("the end of a wait", lambda change: change.due)
