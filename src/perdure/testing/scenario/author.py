"""What an author would have written, for the steps of a scenario: handlers, conditions and branches of a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from enum import Enum
from typing import Any, Protocol, TypeAlias, cast

from perdure.core.facts import Phase
from perdure.core.retry import Retry
from perdure.define.await_message import AwaitMessage
from perdure.define.await_runs import AwaitRuns
from perdure.define.branch import Branch
from perdure.define.child import Child, ForEachRun
from perdure.define.decorator import step as define_step
from perdure.define.foreach import CONCURRENCY, ForEach
from perdure.define.invocation import Invocation
from perdure.define.items import Done, ItemInvocation, More
from perdure.define.later import Later
from perdure.define.loop import Loop
from perdure.define.pipeline import Pipeline
from perdure.define.poll import poll as define_poll
from perdure.define.sleep import Sleep
from perdure.define.step import AnyStep, retired
from perdure.testing.scenario.model import Attempt, Deploy, Resolve, Scenario, ScriptStep

RETRY = Retry(initial=0, cap=0, jitter=0)
LATER = Later(timedelta(milliseconds=1))

AStep: TypeAlias = AnyStep[None, object]
Inv: TypeAlias = Invocation[None, object]
ItemInv: TypeAlias = ItemInvocation[None, object, int]


class Script(Protocol):
    """Says what the author's functions do."""

    async def handle(self, phase: Phase, step: str, inv: Inv, /) -> str:
        """What the handler is to do: `ok`, `later`, or the arm it takes; raises what it is to raise."""
        ...

    async def handle_item(self, step: str, inv: ItemInv, /) -> str:
        """What the handler of an item is to do: `ok`, or `more`; raises what it is to raise."""
        ...

    async def handle_other(self, inv: Invocation[str, object], /) -> None:
        """What the only handler of another run does; its input says which run it is."""
        ...

    def condition(self, step: str, /) -> bool:
        """What the condition answers; raises where it must not be asked yet."""
        ...

    def others(self, step: ScriptStep, /) -> list[str]:
        """The runs that a step waits for."""
        ...


class Author:
    """Writes the steps of each deployment of one scenario."""

    def __init__(self, scenario: Scenario, script: Script) -> None:
        self._script = script
        self.other = _other(script)
        """The pipeline of child runs and of runs that are waited for."""
        self._choices = {choice: _enum(choice, arms) for choice, arms in _arms(scenario).items()}

    def member(self, choice: str, arm: str) -> Enum:
        """What a choice returns for an arm."""
        return self._choices[choice][arm]

    def steps(self, scripted: Iterable[ScriptStep]) -> tuple[AStep, ...]:
        """The steps of a pipeline, arms within their branches."""
        found: list[ScriptStep] = []
        arms: dict[str, dict[str, list[AStep]]] = {}
        for each in scripted:
            if each.arm is None:
                found.append(each)
            else:
                choice, arm = each.arm
                arms.setdefault(choice, {}).setdefault(arm, []).append(self._step(each))
        return tuple(
            self._branch(each, arms.get(each.id, {})) if each.kind == "choice" else self._step(each) for each in found
        )

    def _branch(self, each: ScriptStep, arms: dict[str, list[AStep]]) -> AStep:
        choice = self._choices[each.id]
        members = {choice[arm]: tuple(steps) for arm, steps in arms.items()}  # in the order in which they stand

        async def decide(inv: Inv) -> Enum:
            return choice[await self._script.handle("forward", each.id, inv)]

        decide.__annotations__["return"] = choice
        branch = Branch(
            each.id,
            decide=decide,
            arms=members | {member: () for member in choice if member not in members},
            when=self._when(each.id),
            retry=RETRY,
        )
        return retired(branch) if each.retired else branch

    def _step(self, each: ScriptStep) -> AStep:
        made = self._made(each)
        return retired(made) if each.retired else made

    def _made(self, each: ScriptStep) -> AStep:
        when = self._when(each.id)
        match each.kind:
            case "sleep":
                return Sleep(each.id, timedelta(hours=each.hours), when=when)
            case "message":
                timeout = timedelta(hours=each.hours) if each.hours else None
                return AwaitMessage(each.id, name=each.id, type=str, timeout=timeout, when=when)
            case "runs":
                return AwaitRuns(each.id, runs=lambda _inv: self._script.others(each), when=when)
            case "items" | "collect" | "loop":
                return self._of_items(each)
            case "child" | "children":
                return self._of_runs(each)
            case _:
                return self._called(each)

    def _of_items(self, each: ScriptStep) -> AStep:
        script = self._script
        options = self._options(each, unwinds_state=True)

        async def handler(inv: ItemInv) -> int:
            await script.handle_item(each.id, inv)
            return inv.index

        async def turn(inv: ItemInv) -> More[int] | Done[int]:
            more = await script.handle_item(each.id, inv) == "more"
            return More(inv.index) if more else Done(inv.index)

        if each.kind == "loop":
            return cast("AStep", Loop(each.id, first=lambda _inv: 0, turn=turn, **options))
        options |= {"concurrency": each.bound or CONCURRENCY, "collect": each.kind == "collect"}
        return cast("AStep", ForEach(each.id, items=lambda _inv: range(each.number), handler=handler, **options))

    def _of_runs(self, each: ScriptStep) -> AStep:
        options = self._options(each, unwinds_state=True)
        del options["retry"]
        names = [f"{each.id}/{index}" for index in range(each.number)]
        if each.kind == "child":
            return cast("AStep", Child(each.id, pipeline=self.other, input=lambda _inv: names[0], **options))
        return cast(
            "AStep",
            ForEachRun(
                each.id, pipeline=self.other, inputs=lambda _inv: names, concurrency=each.bound or None, **options
            ),
        )

    def _called(self, each: ScriptStep) -> AStep:
        script = self._script

        async def handler(inv: Inv) -> None:
            await script.handle("forward", each.id, inv)

        async def asked(inv: Inv) -> Later | None:
            return LATER if await script.handle("forward", each.id, inv) == "later" else None

        options = self._options(each)
        if each.kind == "poll":
            return cast("Callable[[object], AStep]", define_poll(each.id, **options))(asked)
        return cast("Callable[[object], AStep]", define_step(each.id, **options))(handler)

    def _options(self, each: ScriptStep, *, unwinds_state: bool = False) -> dict[str, Any]:
        script = self._script

        async def unwind(inv: Inv, state: None) -> None:
            await script.handle("unwind", each.id, inv)

        async def unwind_state(inv: Inv, state: object) -> None:
            await script.handle("unwind", each.id, inv)

        async def unwind_in_doubt(inv: Inv) -> None:
            await script.handle("unwind", each.id, inv)

        options: dict[str, Any] = {"when": self._when(each.id), "retry": RETRY}
        if each.unwind:
            options["unwind"] = unwind_state if unwinds_state else unwind
        if each.in_doubt:
            options["unwind_in_doubt"] = unwind_in_doubt
        return options

    def _when(self, step: str) -> Callable[[Inv], bool]:
        def when(inv: Inv) -> bool:
            return self._script.condition(step)

        return when


def _arms(scenario: Scenario) -> dict[str, list[str]]:
    """All arms that a scenario names, by choice: what was decided must be readable after every deployment."""
    found: dict[str, list[str]] = {}
    for entry in scenario.entries:
        if isinstance(entry, Deploy):
            for step in entry.steps:
                if step.kind == "choice":
                    found.setdefault(step.id, [])
                if step.arm is not None:
                    found.setdefault(step.arm[0], []).append(step.arm[1])
        elif isinstance(entry, (Attempt, Resolve)) and entry.arm is not None:
            found.setdefault(entry.step, []).append(entry.arm)
    return {choice: list(dict.fromkeys(arms)) for choice, arms in found.items()}


def _enum(choice: str, arms: list[str]) -> type[Enum]:
    return cast("type[Enum]", Enum("Choice", {arm: arm for arm in arms or ["none"]}))


def _other(script: Script) -> Pipeline[str, object, None]:
    async def work(inv: Invocation[str, object]) -> None:
        await script.handle_other(inv)

    step = cast("Callable[[object], AnyStep[str, object]]", define_step("work", retry=RETRY))(work)
    return Pipeline(id="other", input=str, deps=object, steps=(step,), output=lambda _inv: None)
