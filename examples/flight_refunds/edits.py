"""What became of the runs that were under way at each edit: read from the journals, and from nowhere else.

Pure functions over facts. What the demo saw or counted while it ran is not asked.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from examples.flight_refunds.versions import CARELESS, EDITS, VERSIONS, Edit
from perdure.core.check import CheckReport
from perdure.core.facts import (
    Fact,
    OperationFailed,
    OperationReserved,
    OperationResolved,
    OperationRetryScheduled,
    OperationSkipped,
    OperationSucceeded,
    RunFailed,
    RunSucceeded,
)
from perdure.ports.store import Deployment
from perdure.runtime.info import RecordedFact

Stand = Literal["not started", "between steps", "in mid-step", "retrying", "waiting", "unwinding"]
"""Where a run stood. Retrying: an attempt failed, the next is due. Waiting: a poll said `Later`."""

Fate = Literal["ran", "passed", "finished old", "had done", "had passed", "skipped", "unwound", "unclear"]
"""What a run did about the step of an edit, after it:

- ran: started it;
- passed: was past its place, and never runs it;
- finished old: had begun the step that is replaced, finished that, and is past the new one;
- had done, had passed: had started it, or left it behind, before it was moved;
- skipped: its condition was false;
- unwound: had failed already;
- unclear: none of these yet, or several. In the end this must not be.
"""

OUTCOMES = {
    "ran": "ran it",
    "passed": "left it behind",
    "finished old": "went on with the old one",
    "had done": "had run it before",
    "had passed": "had left it behind before",
    "skipped": "owed nothing",
    "unwound": "failed before",
    "unclear": "something else",
}
"""Fates, for people."""


FOR_EVER_US = 2**63

Operation = OperationReserved | OperationRetryScheduled | OperationSucceeded | OperationFailed | OperationSkipped


@dataclass(frozen=True)
class Life:
    """One run, whole."""

    run_id: str
    resource: str
    facts: Sequence[RecordedFact]

    def before(self, at_us: int) -> list[Fact]:
        """What had happened by then."""
        return [recorded.fact for recorded in self.facts if recorded.at_us < at_us]

    def between(self, at_us: int, until_us: int) -> list[Fact]:
        """What happened then or later, and before the other time."""
        return [recorded.fact for recorded in self.facts if at_us <= recorded.at_us < until_us]

    def in_flight(self, at_us: int) -> bool:
        """Submitted by then, and not ended."""
        before = self.before(at_us)
        return bool(before) and not any(isinstance(fact, RunSucceeded | RunFailed) for fact in before)


@dataclass(frozen=True)
class EditTold:
    """One edit that was deployed, and what became of the runs that were under way.

    Attributes:
        at_us: when it was deployed, microseconds since the epoch.
        in_flight: runs under way.
        stands, fates: the same runs, by where they stood and by what they did about the step.
        soon: as `fates`, but of what they did until the next edit came: it may move the step once more.
        stranded: those that had begun the step that is replaced, and were not done with it.
    """

    edit: Edit
    at_us: int
    in_flight: int
    stands: Counter[Stand]
    fates: Counter[Fate]
    soon: Counter[Fate]
    stranded: int


def told(lives: Sequence[Life], deployments: Sequence[Deployment]) -> list[EditTold]:
    """Each edit that was deployed, in order."""
    found: list[EditTold] = []
    until_us = FOR_EVER_US
    for edit in reversed(EDITS):
        at_us = deployed_at(deployments, edit.name)
        if at_us is not None:
            found.insert(0, _told(lives, edit, at_us, until_us))
            until_us = at_us
    return found


def _told(lives: Sequence[Life], edit: Edit, at_us: int, until_us: int) -> EditTold:
    met = [life for life in lives if life.in_flight(at_us)]
    old = None if edit.replaces is None else edit.replaces.id
    return EditTold(
        edit=edit,
        at_us=at_us,
        in_flight=len(met),
        stands=Counter(stand_of(life, at_us) for life in met),
        fates=Counter(fate_of(life, edit, at_us) for life in met),
        soon=Counter(fate_of(life, edit, at_us, until_us) for life in met),
        stranded=sum(unresolved(life.before(at_us)) == old for life in met),
    )


@dataclass(frozen=True)
class Foretold:
    """What `perdure check` said beforehand of the runs under way: how many would run, or be past, the step."""

    edit: Edit
    runs: int
    running: int
    passing: int
    invalid: int

    def __str__(self) -> str:
        return f"check foretold that {self.running} of {self.runs} runs run the step and {self.passing} leave it behind"


def foretold(report: CheckReport, edit: Edit) -> Foretold:
    """The numbers of a report that are about the step of an edit."""
    (found,) = report.pipelines
    gaining = sum(kind.count for kind in found.kinds if edit.step.id in kind.effects.gains)
    passing = sum(kind.count for kind in found.kinds if edit.step.id in kind.effects.passes)
    return Foretold(edit, found.runs, gaining, passing, found.invalid)


def came_true(said: Foretold, became: EditTold) -> bool:
    """Whether what the journals tell is what was foretold.

    Some runs had not come to the step when the next edit came, and what `check` said was about this edit. A step that
    is moved is no gain; and of the runs that are past it `check` names those for which that is new.
    """
    soon = became.soon
    running, passing = soon["ran"] + soon["skipped"], soon["passed"] + soon["finished old"]
    if said.runs != became.in_flight or said.invalid:
        return False
    if said.edit.moves:
        return said.passing <= passing + soon["unclear"]
    foretold = said.running + said.passing
    return running <= said.running and passing <= said.passing and running + passing + soon["unclear"] == foretold


def deployed_at(deployments: Sequence[Deployment], version: str) -> int | None:
    """When a version became current for the first time, by the registry; None if it never did."""
    digest = VERSIONS[version].topology.digest
    return next((each.at_us for each in deployments if each.digest == digest), None)


def stand_of(life: Life, at_us: int) -> Stand:
    """Where a run stood at that time."""
    before = life.before(at_us)
    if any(isinstance(fact, OperationFailed) and fact.phase == "forward" for fact in before):
        return "unwinding"
    last = next(_operations(reversed(before)), None)
    match last:
        case None:
            return "not started"
        case OperationReserved():
            return "in mid-step"
        case OperationRetryScheduled(cause="later"):
            return "waiting"
        case OperationRetryScheduled():
            return "retrying"
        case _:
            return "between steps"


def unresolved(facts: Sequence[Fact]) -> str:
    """The forward step that was started and is not resolved; empty if there is none."""
    last = next(_operations(reversed(facts)), None)
    pins = isinstance(last, OperationReserved | OperationRetryScheduled) and last.phase == "forward"
    return last.step if last is not None and pins else ""


def _operations(facts: Iterator[Fact]) -> Iterator[Operation]:
    return (fact for fact in facts if isinstance(fact, Operation))


def fate_of(life: Life, edit: Edit, at_us: int, until_us: int = FOR_EVER_US) -> Fate:
    """What a run that was under way did about the step of an edit, until some time."""
    before, after = life.before(at_us), life.between(at_us, until_us)
    step, old = edit.step.id, "" if edit.replaces is None else edit.replaces.id
    found: set[Fate] = set()
    if started(before, step):
        found.add("had done")
    elif started(after, step):
        found.add("ran")
    if any(isinstance(fact, OperationSkipped) and fact.step == step for fact in after):
        found.add("skipped")
    if step in passed(before):
        found.add("had passed")
    elif step in passed(after):
        found.add("finished old" if old and unresolved(before) == old else "passed")
    if not found and stand_of(life, at_us) == "unwinding":
        found.add("unwound")
    return found.pop() if len(found) == 1 else "unclear"


def started(facts: Sequence[Fact], step: str) -> bool:
    """Whether an attempt of the step was reserved."""
    return any(isinstance(fact, OperationReserved) and fact.step == step and fact.phase == "forward" for fact in facts)


def passed(facts: Sequence[Fact]) -> set[str]:
    """Steps that the facts record as passed [E-7]."""
    return {
        step
        for fact in facts
        if isinstance(fact, OperationReserved | OperationSkipped | OperationFailed | OperationResolved)
        for step in fact.passed
    }


def problems(lives: Sequence[Life], deployments: Sequence[Deployment], paid: Mapping[str, set[str]]) -> list[str]:
    """What must not be, in sentences; empty if all is well.

    Args:
        paid: the keys under which the bank says that it paid, by resource.
    """
    found = [problem for life in lives for problem in _of_run(life, paid.get(life.resource, set()))]
    found += [f"the bank paid {name}, of which there is no run" for name in paid.keys() - {x.resource for x in lives}]
    if any(each.digest == CARELESS.topology.digest for each in deployments):
        found.append("the version that `perdure check` refused was deployed")
    for each in told(lives, deployments):
        if each.fates["unclear"]:
            found.append(f"{each.edit.what}: {each.fates['unclear']} runs did none of what they could, or several")
    return found


def _of_run(life: Life, paid: set[str]) -> Iterator[str]:
    facts = [recorded.fact for recorded in life.facts]
    if sum(isinstance(fact, RunSucceeded | RunFailed) for fact in facts) != 1:
        yield f"{life.resource} did not end once"
    times = Counter((fact.step, fact.phase) for fact in facts if isinstance(fact, OperationSucceeded))
    yield from (f"{life.resource} carried out {step} twice" for (step, _), count in times.items() if count > 1)
    gone = passed(facts)
    yield from (f"{life.resource} ran {step}, which it had passed" for step in sorted(gone) if started(facts, step))
    payments = [edit for edit in EDITS if edit.replaces is not None]
    for edit in payments:
        both = [step.id for step in (edit.step, edit.replaces) if step is not None and started(facts, step.id)]
        if len(both) > 1:
            yield f"{life.resource} ran both {' and '.join(both)}"
        ours = {f"{life.run_id}/do/{step}" for step in both if times[step, "forward"]}
        if ours != paid:
            yield f"{life.resource} paid under {_keys(ours)} by its journal, under {_keys(paid)} by the bank's file"


def _keys(keys: set[str]) -> str:
    return ", ".join(sorted(keys)) or "no key"
