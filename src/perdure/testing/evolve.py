"""Test an edit: bring a run to a point under the old pipeline, deploy the new one, and see what becomes of it [I-6].

```python
from perdure.testing.evolve import evolve

story = evolve(payout, payout_v2, at=send_money, moment="retrying", input=Payout("7", 12_500), deps=Bank())
assert story.ran("new") == ("send-money/v1", "archive/v1")
assert story.passed == ("screen/v1",)
```

Everything is the real engine on a memory store in virtual time; a run that waits for days is over at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar, cast

from perdure.core.explain import Explanation, StepFate
from perdure.core.facts import Fact, Phase
from perdure.define.pipeline import AnyPipeline, Pipeline
from perdure.define.result import Result, Succeeded
from perdure.define.step import ErasedStep
from perdure.errors import InvalidArgument, NotFound
from perdure.ports.store import RunStatus

In = TypeVar("In")
NewIn = TypeVar("NewIn")
D = TypeVar("D")
Out = TypeVar("Out")
Out_co = TypeVar("Out_co", covariant=True)
Forward = TypeVar("Forward", bound=ErasedStep | str)
Unwind = TypeVar("Unwind", bound=ErasedStep | str)
Runs = TypeVar("Runs", bound=AnyPipeline | str)

Moment: TypeAlias = Literal[
    "delayed",
    "before",
    "running",
    "retrying",
    "waiting",
    "after",
    "before-unwind",
    "unwinding",
    "retrying-unwind",
    "after-unwind",
    "ended",
]
"""Where the run stands when the new pipeline is deployed; all but the first and the last are about the step `at`.

- `delayed`: submitted to start a day later;
- `before`: at rest, the step is next and was never started;
- `running`: its handler was called, and the process was lost before that was recorded;
- `retrying`: its first attempt failed, the next one is due later; or it is a poll and its script says `Later`;
- `waiting`: the step is a sleep, or waits for a message, for child runs or for other runs, and that has not come;
- `after`: at rest, the step is over;
- `before-unwind`, `unwinding`, `retrying-unwind`, `after-unwind`: the same of its unwind; let another step fail;
- `ended`: the run is over.

Of a step of items, or a loop, `running` and `retrying` are about the items in flight: so many as `done` says are done
by then, the others are lost with the process, or have failed once. The end of a wait and the start of the next step are
one append: `before` a step that follows a wait means that what it waits for has come, and that nobody has acted on it
yet; likewise `after` a wait.
"""

Version: TypeAlias = Literal["old", "via", "new"]


class Each:
    """Scripted results one after the other, one for each call of the handler; the last one is for all further calls.

    Args:
        results: values to return, and exceptions to raise.
    """

    def __init__(self, *results: object) -> None:
        if not results:
            raise InvalidArgument("Each() needs at least one result")
        self.results = results


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt: which handler was called, under which version, and what came of it.

    Attributes:
        outcome: `returned`, `lost` with its process, or the name of the exception that was raised.
        item: the index of the item, or the number of the turn, where the step has such.
    """

    version: Version
    phase: Phase
    step: str
    attempt: int
    outcome: str
    item: int | None = None

    def __str__(self) -> str:
        verb = "unwind" if self.phase == "unwind" else "run"
        item = "" if self.item is None else f"[{self.item}]"
        return f"{self.version}: {verb} {self.step}{item} #{self.attempt}: {self.outcome}"


@dataclass(frozen=True, slots=True)
class Evolution(Generic[Out_co]):
    """What became of the run.

    Attributes:
        run_id: the run.
        calls: every attempt in order.
        status: where the run stands in the end. `invalid` and `held` runs were left there; `ready`: it was still
            retrying when patience ended, or waits for what does not come.
        reason: why it is invalid, held or failed, as the index has it; empty otherwise.
        result: how it ended, None if it did not.
        passed: steps that were recorded as passed, in the order of the new pipeline: they never run for this run [E-7].
        skipped: steps whose condition was false, or that an operator skipped.
        bypassed: retired steps that the run never started [E-9].
        unwound: steps that were undone, in the order in which that happened.
        switch: the run explained in the new pipeline at the moment of the deployment, before anything ran.
        end: the same in the end.
        facts: the journal.
    """

    run_id: str
    calls: tuple[Call, ...]
    status: RunStatus
    reason: str
    result: Result[Out_co] | None
    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    bypassed: tuple[str, ...]
    unwound: tuple[str, ...]
    switch: Explanation
    end: Explanation
    facts: tuple[Fact, ...]

    @property
    def invalid(self) -> str | None:
        """Why the new pipeline cannot continue the run, None if it can: a stable word, such as `step-missing` [D-1]."""
        return self.reason.partition(": ")[0] if self.status == "invalid" else None

    @property
    def succeeded(self) -> bool:
        """The run ended with success."""
        return isinstance(self.result, Succeeded)

    def ran(self, version: Version | None = None, phase: Phase = "forward") -> tuple[str, ...]:
        """The steps whose handlers were called, in order; a step stands there once for each attempt.

        Args:
            version: only calls under this version.
            phase: `unwind` for unwind handlers.
        """
        return tuple(c.step for c in self.calls if c.phase == phase and version in (None, c.version))

    def attempts(self, step: ErasedStep | str) -> int:
        """How often the forward handler of a step was called, under any version."""
        return self.ran().count(_id(step))

    def fate(self, step: ErasedStep | str) -> StepFate:
        """What became of a step in the end [E-11].

        Raises:
            NotFound: neither the new pipeline nor the run knows such a step.
        """
        for known in (*self.end.steps, *self.end.gone):
            if known.step == _id(step):
                return known.fate
        raise NotFound(f"neither the run nor the new pipeline knows a step {_id(step)!r}")

    def __str__(self) -> str:
        lines = [f"run {self.run_id} {self.status}" + (f" ({self.reason})" if self.reason else "")]
        lines += [f"  {call}" for call in self.calls]
        lines += [f"  {step.step}: {step.fate}: {step.why}" for step in (*self.end.steps, *self.end.gone)]
        return "\n".join(lines)


def evolve(
    old: Pipeline[In, D, object],
    new: Pipeline[NewIn, D, Out],
    *,
    input: In,
    at: ErasedStep | str | None = None,
    moment: Moment = "before",
    deps: D | None = None,
    results: Mapping[Forward, object] | None = None,
    unwinds: Mapping[Unwind, object] | None = None,
    via: Sequence[AnyPipeline] = (),
    held: bool = False,
    canceled: bool = False,
    done: int = 0,
    messages: Mapping[str, object] | None = None,
    children: Mapping[Runs, object] | None = None,
    runs: Mapping[str, object] | None = None,
    seed: int = 0,
) -> Evolution[Out]:
    """Run `old` up to a point, deploy `new`, and run on to the end; a plain call, where no event loop runs.

    It ends when the run has ended, is invalid or held, or has failed to get on in twenty attempts under one version.

    Args:
        old, new: the pipelines, of one id.
        input: the run's input.
        at: the step that `moment` is about, or its id.
        moment: where the run stands at the deployment; see `Moment`.
        deps: what handlers of all versions find in `inv.deps`.
        results: by step, what its handler does instead of what is written in it: a value is returned, an exception
            raised; `Each(...)` has one for each call. The real handlers run for all other steps.
        unwinds: the same for unwind handlers.
        via: deployed in between, one after the other, each for as long as the run gets on under it: to test a
            deployment that repairs what another one broke.
        held: an operator holds the run before the deployment, and releases it afterwards.
        canceled: a cancel is requested before the deployment, and no engine has seen it yet.
        done: with `running` or `retrying` of a step of items, or a loop: how many items or turns are done by then.
        messages: by name, what somebody sends when the run waits for it: a value, or `Each(...)` with several for as
            many waits. It is sent before the deployment only where the run has to get past that wait; what is not
            there never comes, so the wait ends with its time-out or not at all.
        children: by child pipeline, or its id, how its runs end instead of running: with a value as output, or an
            exception; `Each(...)` has one for each run. Other child runs run as they are, with the same `deps`. They
            begin before the deployment only where the run has to get past them.
        runs: by run id, how runs end that an `AwaitRuns` waits for; they exist from the beginning, and end as child
            runs do.
        seed: of ids and chance; the same seed gives the same story.

    Raises:
        InvalidArgument: the run never comes to that point, the pipelines have different ids, or `at` is no step of
            the old one.
        DefinitionError: see `App`.
    """
    from perdure.testing.calls import Request
    from perdure.testing.evolving import tell

    request = Request(
        old=old,
        via=tuple(via),
        new=new,
        input=input,
        deps=deps,
        at=None if at is None else _id(at),
        moment=moment,
        script={
            "forward": {_id(step): result for step, result in (results or {}).items()},
            "unwind": {_id(step): result for step, result in (unwinds or {}).items()},
        },
        held=held,
        canceled=canceled,
        done=done,
        messages=dict(messages or {}),
        children={_id(child): result for child, result in (children or {}).items()},
        runs=dict(runs or {}),
    )
    return cast("Evolution[Out]", tell(request, seed))


def _id(named: ErasedStep | AnyPipeline | str) -> str:
    return named if isinstance(named, str) else named.id
