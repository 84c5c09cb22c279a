"""Scenarios against the engine on a store: by submit, handlers and the public client alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import assert_never

from perdure.core.facts import (
    OperationParked,
    OperationSkipped,
    OperationSucceeded,
    RunFailed,
    RunSucceeded,
)
from perdure.define.result import Succeeded
from perdure.errors import ConflictError, PerdureError
from perdure.testing.scenario.model import (
    HOUR_US,
    MOTION,
    Abandon,
    Attempt,
    Cancel,
    Deploy,
    End,
    Entry,
    HoldPipeline,
    Invalid,
    Lose,
    Output,
    ReleasePipeline,
    Resolve,
    Restart,
    Skip,
    Sleep,
    Wake,
    hours_at_opening,
)
from perdure.testing.scenario.report import Difference, describe_end
from perdure.testing.scenario.stage import FAR_US, NOT_YET, Stage

_PATIENCE_S = 20.0
_EARLY_US = 60_000_000


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
        await self._settle()

    async def _attempt(self, index: int, entry: Attempt) -> None:
        await self._go()
        await self._settle()
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
        if (
            info.status == "ready" and info.due_us is not None
        ):  # a run is judged when it is due: no sleep goes on so long
            self._system.pass_until(info.due_us)
            await self._client.retry(self._run_id, actor="script")
        info = await self._settle()
        if info.status != "invalid" or NOT_YET in info.reason:
            raise await self._difference(entry, "an invalid run")

    async def _skip(self, entry: Skip) -> None:
        await self._go()
        await self._settle()
        if not any(isinstance(fact, OperationSkipped) and fact.step == entry.step for fact in await self._facts()):
            raise await self._difference(entry, f"{entry.step} skipped")

    async def _sleep(self, entry: Sleep) -> None:
        await self._go()
        await self._settle()
        journal = await self._client.journal(self._run_id)
        opened = [(each.fact.step, each.at_us) for each in journal if isinstance(each.fact, OperationParked)]
        if [step for step, _ in opened[self._slept :]] != [entry.step] or self._arrival is not None:
            raise await self._difference(entry, f"{entry.step} asleep")
        self._slept, self._opened_us = len(opened), opened[-1][1]

    async def _wake(self, index: int, entry: Wake) -> None:
        """A minute before its time a sleep must not be over; after it, it must."""
        self._base = index + 1
        due_us = self._opened_us + hours_at_opening(self._scenario, entry) * HOUR_US
        early_us = due_us - _EARLY_US
        if self._system.now_us() < early_us:
            self._system.pass_until(early_us)
            await self._client.retry(self._run_id, actor="script")
            await self._quiet()
            if self._arrival is not None or await self._woken(entry.step):
                raise await self._difference(entry, f"{entry.step} asleep for as long as was fixed")
        self._system.pass_until(due_us)
        if not self._goes_on(index):
            self._base = len(self._scenario.entries)  # no condition is answered until the script comes to it
        await self._client.retry(self._run_id, actor="script")
        await self._settle()
        if not await self._woken(entry.step):
            raise await self._difference(entry, f"{entry.step} awake")

    async def _woken(self, step: str) -> bool:
        return any(
            isinstance(fact, OperationSucceeded) and fact.step == step and not fact.attempt
            for fact in await self._facts()
        )

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
        await self._settle()

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
                )
            )
        if chosen != entry.text:
            raise Difference(self._scenario, entry, entry.text, chosen)
