"""Scenario files as values: the rules of evolution as scripts. The grammar is in docs/reference/scenarios.md."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.core.facts import Shape
from perdure.core.topology import StepSpec

Result: TypeAlias = Literal["ok", "error", "fail", "later", "crash"]
RESULTS: dict[str, Result] = {"ok": "ok", "error": "error", "fail": "fail", "later": "later", "crash": "crash"}
Kind: TypeAlias = Literal[
    "call", "poll", "sleep", "choice", "message", "runs", "items", "collect", "loop", "child", "children"
]
ItemResult: TypeAlias = Literal["ok", "more", "error", "fail", "runs"]
ITEM_RESULTS: dict[str, ItemResult] = {"ok": "ok", "more": "more", "error": "error", "fail": "fail", "runs": "runs"}
_SHAPES: dict[Kind, Shape] = {
    "sleep": "sleep",
    "message": "message",
    "runs": "runs",
    "items": "each",
    "collect": "each",
    "loop": "loop",
    "child": "child",
    "children": "children",
}
ListName: TypeAlias = Literal["in-doubt", "half-unwound", "uncompensated", "unavailable"]
Lists: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
EndKind: TypeAlias = Literal["success", "failure", "canceled", "abandoned"]
LIST_NAMES: tuple[ListName, ...] = ("in-doubt", "half-unwound", "uncompensated", "unavailable")


class ScenarioError(Exception):
    """A malformed line: the file, the line, and what was expected there."""

    def __init__(self, file: str, line: int, expected: str, found: str) -> None:
        super().__init__(f"{file}:{line}: expected {expected}, found {found!r}")
        self.file, self.line, self.expected, self.found = file, line, expected, found


class Line(msgspec.Struct, frozen=True):
    """Base of all lines; `number` counts from one."""

    number: int
    text: str


class ScriptStep(msgspec.Struct, frozen=True):
    """A step as `deploy` writes it.

    Attributes:
        hours: how long a sleep takes, and a wait for a message may take; 0: for ever.
        number: of items, child runs or awaited runs.
        bound: how many items or child runs at once; 0: all.
        arm: the choice whose arm the step stands in, and the arm.
    """

    id: str
    kind: Kind = "call"
    unwind: bool = False
    in_doubt: bool = False
    retired: bool = False
    hours: int = 0
    arm: tuple[str, str] | None = None
    number: int = 0
    bound: int = 0

    @property
    def spec(self) -> StepSpec:
        """The step in a topology; every step of a scenario has a condition."""
        return StepSpec(
            self.id,
            self.unwind,
            self.in_doubt,
            self.retired,
            conditional=True,
            shape=_SHAPES.get(self.kind, "handler"),
        )


class Deploy(Line, frozen=True):
    """From here on these steps are the current topology."""

    steps: tuple[ScriptStep, ...]


class Attempt(Line, frozen=True):
    """The next operation is this step (as attempt `attempt`, if given) in this phase; then `result` happens."""

    phase: Literal["forward", "unwind"]
    step: str
    attempt: int | None
    result: Result
    arm: str | None = None
    """What a choice decides."""


class Output(Line, frozen=True):
    """Forward work is complete and the output function is called; `raises`: it raises until the next deploy."""

    raises: bool


class Cancel(Line, frozen=True):
    """A cancellation is requested while no handler runs."""


class Restart(Line, frozen=True):
    """Everything in memory is dropped, after an orderly stop."""


class Lose(Line, frozen=True):
    """The process is lost at rest, without an orderly stop."""


class Sleep(Line, frozen=True):
    """The next operation is this step, never started, and it begins to sleep."""

    step: str


class Wake(Line, frozen=True):
    """This step sleeps until the time that was fixed when it began has come, and then it has succeeded."""

    step: str


class Wait(Line, frozen=True):
    """The next operation is this step, never started, and it begins to wait: for a message, child runs or runs."""

    step: str


class Send(Line, frozen=True):
    """A message comes for the steps of this id, while no handler runs."""

    step: str
    value: str


class Take(Line, frozen=True):
    """This step waits for a message, or is next, and succeeds with this one."""

    step: str
    value: str


class TimeOut(Line, frozen=True):
    """This step waits until the time that was fixed when it began has come, and then it has failed."""

    step: str


class Work(Line, frozen=True):
    """The items of this step that run are exactly these; those that do not run on end so, what fails first."""

    step: str
    items: tuple[tuple[int, int | None, ItemResult], ...]
    """Index, attempt if given, and what becomes of it."""


class Finish(Line, frozen=True):
    """These child runs of the step, or runs that it waits for, have not ended, and now end so."""

    step: str
    runs: tuple[tuple[int, Literal["ok", "fail"]], ...]


class HoldPipeline(Line, frozen=True):
    """The pipeline is held while no handler runs: nothing starts."""


class ReleasePipeline(Line, frozen=True):
    """The pipeline is released; since it was held nothing happened but what came from outside."""


class Abandon(Line, frozen=True):
    """An operator gives the run up while no handler runs."""


class Invalid(Line, frozen=True):
    """The run is invalid for the current deployment."""


class Skip(Line, frozen=True):
    """The next operation is this step, never started, and its condition is false."""

    step: str


class Resolve(Line, frozen=True):
    """An operator resolves the next operation, which is of this step."""

    step: str
    how: Literal["value", "skip", "fail"]
    arm: str | None = None
    """The value, where the step is a choice."""


class End(Line, frozen=True):
    """The run ends: with success, or failed, canceled or given up at a step, and names exactly these lists."""

    outcome: EndKind
    at: str | None
    lists: Lists


Entry: TypeAlias = (
    Deploy
    | Attempt
    | Output
    | Cancel
    | Restart
    | Lose
    | Invalid
    | Skip
    | Sleep
    | Wake
    | Wait
    | Send
    | Take
    | TimeOut
    | Work
    | Finish
    | HoldPipeline
    | ReleasePipeline
    | Resolve
    | Abandon
    | End
)


class Scenario(msgspec.Struct, frozen=True):
    """One run's life as a script."""

    file: str
    line: int
    name: str
    entries: tuple[Entry, ...]


MOTION = (Attempt, Output, Skip, Sleep, Wake, Wait, Take, TimeOut, Work, Invalid)
"""Lines for which the run has to be let go on; `End`, too, unless it has ended."""

HOUR_US = 3_600_000_000
"""What a sleep is measured in."""


def hours_at_opening(scenario: Scenario, wake: Wake | TimeOut) -> int:
    """How long the wait takes that this line ends: what was deployed when it began; 0 if no line began it."""
    hours = 0
    steps: dict[str, ScriptStep] = {}
    for entry in scenario.entries:
        if isinstance(entry, Deploy):
            steps = {step.id: step for step in entry.steps}
        elif isinstance(entry, (Sleep, Wait)) and entry.step == wake.step and entry.step in steps:
            hours = steps[entry.step].hours
        elif entry is wake:
            return hours
    return hours
