"""Scenarios against the engine on a store: by submit, handlers and the public client alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import assert_never

import msgspec

from perdure.core.facts import (
    BoundaryOpened,
    Fact,
    OperationFailed,
    OperationParked,
    OperationSkipped,
    OperationSucceeded,
    RunFailed,
    RunSucceeded,
)
from perdure.core.operations import InvalidOp
from perdure.core.unit_facts import ItemFailed, ItemOutputRecorded, ItemReserved, ItemRetryScheduled
from perdure.define.result import Succeeded
from perdure.errors import ConflictError, PerdureError
from perdure.runtime.info import RunInfo
from perdure.testing.scenario.model import (
    HOUR_US,
    MOTION,
    Abandon,
    Attempt,
    Cancel,
    Deploy,
    End,
    Entry,
    Finish,
    HoldPipeline,
    Invalid,
    Lose,
    Output,
    ReleasePipeline,
    Resolve,
    Restart,
    Send,
    Skip,
    Sleep,
    Take,
    TimeOut,
    Wait,
    Wake,
    Work,
    hours_at_opening,
)
from perdure.testing.scenario.report import Difference, describe_end
from perdure.testing.scenario.scripted import other_ids
from perdure.testing.scenario.stage import FAR_US, NOT_YET, Stage

_PATIENCE_S = 20.0
_EARLY_US = 60_000_000
AWAITED = "awaited "
"""Begins the input of a run that a step waits for: a child run of the same step may be under way beside it."""


class EngineDriver(Stage):
    """Drives one scenario on a store; raises `Difference` at the first line that is not what the engine chooses."""

    async def run(self) -> None:
        """Every line in turn."""
        try:
            for index, entry in enumerate(self._scenario.entries):
                self._base = index
                try:
                    async with asyncio.timeout(_PATIENCE_S):
                        await self._line(index, entry)
                except TimeoutError:
                    raise Difference(self._scenario, entry, entry.text, "nothing, for ever") from None
                except ConflictError as error:
                    raise Difference(self._scenario, entry, entry.text, str(error)) from None
        finally:
            if self._engine is not None:
                self._engine.abort()
            with suppress(PerdureError):
                await self._stack.aclose()

    async def _line(self, index: int, entry: Entry) -> None:
        if self._held_at is not None and isinstance(entry, MOTION):
            raise Difference(self._scenario, entry, entry.text, "the pipeline is held")
        match entry:
            case Deploy():
                self._raising = False
                self._steps = entry.steps
                await self._reopen(index)
            case Restart():
                await self._reopen(index)
            case Lose():
                if self._items:
                    await self._rest()
                self._abort()
                await self._start()
                await self._settle()
            case Attempt():
                await self._attempt(index, entry)
            case Output():
                await self._output(entry)
            case Cancel():
                await self._rest()
                await self._client.cancel(self._run_id, actor="script")
                await self._settle()
            case Invalid():
                await self._invalid(entry)
            case Skip():
                await self._skip(entry)
            case Sleep():
                await self._sleep(entry)
            case Wake():
                await self._wake(index, entry)
            case TimeOut():
                await self._wake(index, entry)
            case Wait():
                await self._sleep(entry)
            case Send():
                await self._rest()
                await self._client.send(self._run_id, entry.step, entry.value, actor="script")
            case Take():
                await self._take(index, entry)
            case Work():
                await self._work(index, entry)
            case Finish():
                await self._finish(index, entry)
            case HoldPipeline():
                await self._hold_pipeline(entry)
            case ReleasePipeline():
                await self._release_pipeline(index, entry)
            case Resolve():
                await self._resolve(entry)
            case Abandon():
                await self._abandon()
            case End():
                await self._end(entry)
            case _ as unreachable:
                assert_never(unreachable)

    # --- lines

    async def _reopen(self, index: int) -> None:
        """A deployment or a restart: the engine ends, the store is opened anew, and a new engine starts."""
        if self._run_id:
            await self._rest()
        await self._stop()
        self._base = index + 1
        await self._start()
        if not self._run_id:
            pipeline = self._pipeline
            if pipeline is None:
                raise RuntimeError("a scenario begins with a deploy")
            run = await self._client.submit(pipeline, None, delay=FAR_US / 1_000_000)
            self._run_id = run.id
            await self._rest()
            await self._submit_others()
        await self._settle()

    async def _submit_others(self) -> None:
        deployed = [step for entry in self._scenario.entries if isinstance(entry, Deploy) for step in entry.steps]
        for step in deployed:
            for name in other_ids(step) if step.kind == "runs" else ():
                if name not in self._other_ids:
                    self._other_ids[name] = (await self._client.submit(self._author.other, AWAITED + name)).id

    async def _attempt(self, index: int, entry: Attempt) -> None:
        await self._go()
        await self._until(self._called)
        arrival = self._arrival
        verb = "run" if entry.phase == "forward" else "unwind"
        if arrival is None:
            raise await self._difference(entry, f"{verb} {entry.step}")
        chosen = f"{'run' if arrival.phase == 'forward' else 'unwind'} {arrival.step} #{arrival.attempt}"
        number = entry.attempt if entry.attempt is not None else arrival.attempt
        if chosen != f"{verb} {entry.step} #{number}":
            raise Difference(self._scenario, entry, f"{verb} {entry.step} #{number}", chosen)
        self._base = index + 1
        self._take_arrival()
        hold = not self._goes_on(index)
        arrival.verdict.set_result((entry.result, entry.arm, hold))
        if entry.result == "crash":
            await self._crashed.wait()
            self._crashed.clear()
            self._abort()
            await self._start()
        if hold:
            await self._settle()

    async def _called(self, info: RunInfo) -> bool:
        """A handler was called, or items run and no other is about to, or the run rests."""
        if self._arrival is not None or self._rests(info):
            return True
        steps = {step for step, _ in self._items}
        return any([await self._all_run(step) for step in steps])

    async def _all_run(self, step: str) -> bool:
        """The items that run are those of which the journal says so."""
        return open_items(await self._facts(), step) == {index for each, index in self._items if each == step}

    async def _output(self, entry: Output) -> None:
        self._raising = entry.raises
        await self._go()
        info = await self._settle()
        expected = "invalid" if entry.raises else "succeeded"
        if info.status != expected or (entry.raises and "output-raised" not in info.reason):
            raise await self._difference(entry, f"the output function, and then a run that is {expected}")

    async def _invalid(self, entry: Invalid) -> None:
        await self._go()
        info = await self._settle()
        if info.status == "ready" and info.due_us is None and not info.worker:
            # who waits for others is judged when they have come
            explained = await self._client.explain(self._run_id)
            if not isinstance(explained.next, InvalidOp):
                raise await self._difference(entry, "an invalid run")
            return
        if info.status == "ready":  # a run is judged when it is due: no sleep goes on so long
            self._system.pass_until(info.due_us or 0)
            await self._client.retry(self._run_id, actor="script")
        info = await self._settle()
        if info.status != "invalid" or NOT_YET in info.reason:
            raise await self._difference(entry, "an invalid run")

    async def _skip(self, entry: Skip) -> None:
        await self._go()
        await self._settle()
        if not any(isinstance(fact, OperationSkipped) and fact.step == entry.step for fact in await self._facts()):
            raise await self._difference(entry, f"{entry.step} skipped")

    async def _sleep(self, entry: Sleep | Wait) -> None:
        await self._go()
        await self._settle()
        journal = await self._client.journal(self._run_id)
        opens = (OperationParked, BoundaryOpened)
        opened = [(each.fact.step, each.at_us) for each in journal if isinstance(each.fact, opens)]
        waits = not self._items and self._arrival is None
        if [step for step, _ in opened[self._opened :]] != [entry.step] or not waits:
            raise await self._difference(entry, f"{entry.step} waiting")
        self._opened, self._opened_us = len(opened), opened[-1][1]

    async def _note_opened(self, step: str) -> None:
        """The script has shown what opened so far, up to this step."""
        opens = (OperationParked, BoundaryOpened)
        opened = [fact.step for fact in await self._facts() if isinstance(fact, opens)]
        self._opened = max(self._opened, opened.index(step) + 1 if step in opened else 0)

    async def _take(self, index: int, entry: Take) -> None:
        self._taking = entry.step
        self._base = index + 1 if self._goes_on(index) else len(self._scenario.entries)
        await self._go()
        await self._settle()
        self._taking = ""
        await self._note_opened(entry.step)
        expected = msgspec.json.encode(entry.value)
        taken = [
            bytes(fact.state)
            for fact in await self._facts()
            if isinstance(fact, OperationSucceeded) and fact.step == entry.step and not fact.attempt
        ]
        if taken != [expected]:
            raise await self._difference(entry, f"{entry.step} taking {entry.value}")

    async def _work(self, index: int, entry: Work) -> None:
        await self._go()

        async def recorded(_info: RunInfo) -> bool:
            return await self._all_run(entry.step)

        await self._until(self._called)
        await self._note_opened(entry.step)
        expected = {(entry.step, i): number for i, number, _ in entry.items}
        if set(expected) != set(self._items) or any(
            number not in (None, self._items[key].attempt) for key, number in expected.items()
        ):
            raise await self._difference(entry, entry.text)
        self._base = index + 1
        goes_on = self._goes_on(index)
        if not goes_on and any(result != "runs" for _, _, result in entry.items):
            await self._rest()
        ended = sorted(entry.items, key=lambda item: item[2] != "fail")
        for i, _, result in ended:
            if result != "runs":
                self._items.pop((entry.step, i)).result.set_result(result)
        if not goes_on:
            await self._until(recorded)
        if not goes_on and not self._items:
            await self._settle()

    async def _finish(self, index: int, entry: Finish) -> None:
        self._base = index + 1
        if not self._goes_on(index):
            await self._rest()
        prefix = AWAITED if self._is_awaited(index, entry.step) else ""
        for each, result in entry.runs:
            name = f"{prefix}{entry.step}/{each}"
            if name not in self._others:
                await self._go()  # it is to be submitted first
            while name not in self._others:
                self._stirred.clear()
                await self._stirred.wait()
            verdict = self._others.pop(name)
            verdict.result.set_result(result)
            await self._client.result(verdict.run_id)

    def _is_awaited(self, index: int, step: str) -> bool:
        """Whether the runs of a step are runs that it waits for, and not child runs, as last deployed."""
        deployed = [
            each for entry in self._scenario.entries[:index] if isinstance(entry, Deploy) for each in entry.steps
        ]
        return [each.kind for each in deployed if each.id == step][-1:] == ["runs"]

    async def _wake(self, index: int, entry: Wake | TimeOut) -> None:
        """A minute before its time a wait must not be over; after it, it must, by success or as failed."""
        self._base = index + 1
        due_us = self._opened_us + hours_at_opening(self._scenario, entry) * HOUR_US
        early_us = due_us - _EARLY_US
        if self._system.now_us() < early_us:
            self._system.pass_until(early_us)
            await self._client.retry(self._run_id, actor="script")
            await self._quiet()
            if self._arrival is not None or await self._over(entry):
                raise await self._difference(entry, f"{entry.step} waiting for as long as was fixed")
        self._system.pass_until(due_us)
        if not self._goes_on(index):
            self._base = len(self._scenario.entries)  # no condition is answered until the script comes to it
        await self._client.retry(self._run_id, actor="script")
        await self._settle()
        if not await self._over(entry):
            raise await self._difference(entry, f"{entry.step} over")

    async def _over(self, entry: Wake | TimeOut) -> bool:
        for fact in await self._facts():
            if isinstance(entry, TimeOut) and isinstance(fact, OperationFailed) and fact.step == entry.step:
                return True
            if isinstance(entry, Wake) and isinstance(fact, OperationSucceeded) and fact.step == entry.step:
                return not fact.attempt
        return False

    async def _hold_pipeline(self, entry: HoldPipeline) -> None:
        """From here on nothing but the hold of the pipeline keeps the run from going on."""
        await self._rest()
        await self._client.hold_pipeline("scenario", actor="script")
        self._held_at = await self._claims()
        await self._client.retry(self._run_id, actor="script")
        await self._check_held(entry)

    async def _check_held(self, entry: Entry) -> None:
        """No worker called, claimed or judged the run since its pipeline was held."""
        info = await self._quiet()
        if self._arrival is not None or info.status == "invalid" or await self._claims() != self._held_at:
            raise await self._difference(entry, "a run that did nothing")

    async def _release_pipeline(self, index: int, entry: ReleasePipeline) -> None:
        await self._check_held(entry)
        self._held_at = None
        self._base = index + 1
        if not self._goes_on(index):
            await self._rest()
        await self._client.release_pipeline("scenario", actor="script")
        await self._settle(items=True)

    async def _abandon(self) -> None:
        info = await self._client.info(self._run_id)
        if info.status != "invalid":
            await self._rest()
        await self._client.abandon(self._run_id, actor="script", force=info.status != "invalid")

    async def _resolve(self, entry: Resolve) -> None:
        await self._rest()
        match entry.how:
            case "value":
                value = None if entry.arm is None else self._author.member(entry.step, entry.arm)
                await self._client.resolve(self._run_id, entry.step, value=value, actor="script")
            case "skip":
                await self._client.resolve(self._run_id, entry.step, skip=True, actor="script")
            case "fail":
                await self._client.resolve(self._run_id, entry.step, fail="scripted", actor="script")
            case _ as unreachable:
                assert_never(unreachable)
        await self._settle()

    async def _end(self, entry: End) -> None:
        await self._go()
        info = await self._settle()
        if not info.ended:
            raise await self._difference(entry, entry.text)
        result = await self._client.result(self._run_id)
        if isinstance(result, Succeeded):
            chosen = describe_end(RunSucceeded(result.in_doubt))
        else:
            chosen = describe_end(
                RunFailed(
                    result.failure,
                    result.unwind_failures,
                    result.in_doubt,
                    result.half_unwound,
                    result.uncompensated,
                    result.unavailable,
                    result.item_counts,
                )
            )
        if chosen != entry.text:
            raise Difference(self._scenario, entry, entry.text, chosen)


def open_items(facts: Iterable[Fact], step: str) -> set[int]:
    """Items of a step that are reserved, and of whose end the journal has nothing."""
    found: set[int] = set()
    for fact in facts:
        if isinstance(fact, ItemReserved) and fact.step == step:
            found.add(fact.index)
        elif isinstance(fact, (ItemRetryScheduled, ItemOutputRecorded, ItemFailed)) and fact.step == step:
            found.discard(fact.index)
        elif isinstance(fact, (BoundaryOpened, OperationFailed)) and fact.step == step:
            found.clear()
    return found
