"""What a judge knows of one step's items, turns or child runs, from the facts alone [B-1, B-2]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

import msgspec

from perdure.core.facts import (
    BoundaryCompletionAdmitted,
    BoundaryDispatchCompleted,
    BoundaryInteractionCreated,
    BoundaryInteractionDispatched,
    BoundaryOpened,
    BoundaryResolved,
    EndStatus,
    Failure,
    ItemCounts,
    ItemFailed,
    ItemOutputRecorded,
    ItemReserved,
    ItemRetryScheduled,
    Shape,
)

UnitFact: TypeAlias = (
    BoundaryOpened
    | BoundaryInteractionCreated
    | BoundaryInteractionDispatched
    | BoundaryDispatchCompleted
    | BoundaryCompletionAdmitted
    | ItemReserved
    | ItemRetryScheduled
    | ItemOutputRecorded
    | ItemFailed
    | BoundaryResolved
)

UNIT_FACTS = (
    BoundaryOpened,
    BoundaryInteractionCreated,
    BoundaryInteractionDispatched,
    BoundaryDispatchCompleted,
    BoundaryCompletionAdmitted,
    ItemReserved,
    ItemRetryScheduled,
    ItemOutputRecorded,
    ItemFailed,
    BoundaryResolved,
)


@dataclass
class Part:
    """One item, turn or child run that was begun.

    Attributes:
        open: an attempt is reserved, or the child run has not ended, as far as the run knows.
        done: it has its output.
        failures, lost: as of an operation, since it began or was released.
    """

    attempts: int = 0
    open: bool = False
    done: bool = False
    output: object = None
    failure: Failure | None = None
    status: EndStatus | None = None
    in_doubt: bool = False
    failures: int = 0
    lost: int = 0
    due_us: int = 0


@dataclass
class Unit:
    """See the module.

    Attributes:
        items: encoded, as they were settled.
        parts: of those that were begun, which happens in their order.
        sent: so many child runs are said to be submitted.
        turns: of a loop, done since it opened or was released.
        over: of a loop, a turn said so.
    """

    shape: Shape
    items: list[bytes]
    pipeline: str
    opened_us: int
    parts: list[Part] = field(default_factory=list[Part])
    sent: int = 0
    turns: int = 0
    over: bool = False

    @property
    def open(self) -> list[int]:
        """Indices of those under way."""
        return [index for index, part in enumerate(self.parts) if part.open]

    @property
    def failed(self) -> list[int]:
        """Indices of those that failed for good."""
        return [index for index, part in enumerate(self.parts) if part.failure is not None]

    @property
    def complete(self) -> bool:
        """Nothing is left to do."""
        settled = sum(part.done or part.failure is not None for part in self.parts)
        return self.over if self.shape == "loop" else settled == len(self.items)

    def part(self, index: int) -> Part | None:
        """What is known of one that was begun."""
        return self.parts[index] if 0 <= index < len(self.parts) else None

    def state(self, *, collect: bool) -> object:
        """What the outputs add up to [B-10]."""
        if self.shape == "loop":
            return self.parts[-1].output
        made: list[object] = []
        for part in self.parts:
            settled: object = {"failure": part.failure} if part.failure is not None else {"value": part.output}
            made.append(settled if collect else part.output)
        return made[0] if self.shape == "child" else made

    def fates(self) -> list[str]:
        """What became of each item, as an unwind handler is shown it [U-12]."""
        return [self._fate(index) for index in range(len(self.items))]

    def _fate(self, index: int) -> str:
        part = self.part(index)
        if part is None:
            return "not-started"
        if part.done:
            return "completed"
        return "failed" if part.failure is not None and not part.in_doubt else "in-doubt"

    def counts(self, step: str) -> ItemCounts:
        """The same in numbers."""
        fates = self.fates()
        numbers = [fates.count(fate) for fate in ("completed", "failed", "in-doubt")]
        return ItemCounts(step, len(fates), *numbers)

    # --- folding

    def fold(self, fact: UnitFact) -> int:
        """Take a fact in; how many attempts or child runs were begun by it."""
        match fact:
            case ItemReserved(index=index, attempt=attempt):
                part = self.part(index)
                if part is None:
                    part = Part()
                    self.parts.append(part)
                part.attempts, part.open, part.due_us = attempt, True, 0
                return 1
            case BoundaryInteractionCreated(count=count):
                self.parts += [Part(1, open=True) for _ in range(count)]
                return count
            case BoundaryInteractionDispatched(count=count):
                self.sent += count
            case BoundaryCompletionAdmitted():
                self._end_child(fact)
            case ItemRetryScheduled() | ItemOutputRecorded() | ItemFailed():
                self._end_attempt(fact)
            case BoundaryOpened() | BoundaryDispatchCompleted() | BoundaryResolved():
                pass
            case _ as unreachable:
                assert_never(unreachable)
        return 0

    def _end_child(self, fact: BoundaryCompletionAdmitted) -> None:
        part = self.part(fact.index)
        if part is None:
            return
        part.open, part.status, part.in_doubt = False, fact.status, fact.in_doubt
        if fact.status == "succeeded":
            part.done, part.output = True, msgspec.json.decode(fact.output)
        else:
            part.failure = fact.failure

    def _end_attempt(self, fact: ItemRetryScheduled | ItemOutputRecorded | ItemFailed) -> None:
        part = self.part(fact.index)
        if part is None:
            return
        part.open = False
        match fact:
            case ItemOutputRecorded(output=output, more=more):
                part.done, part.output = True, msgspec.json.decode(output)
                self.turns += 1
                if self.shape == "loop":
                    self.over = not more
                    self.items += [bytes(output)] if more else []
            case ItemFailed(failure=failure, in_doubt=in_doubt):
                part.failure, part.in_doubt = failure, in_doubt
            case ItemRetryScheduled(cause=cause, due_us=due_us):
                part.due_us = due_us
                if cause == "later":
                    part.lost = 0
                elif cause != "interrupted":
                    part.failures += 1
                    part.lost = part.lost + 1 if cause == "lost" else 0

    def release(self) -> None:
        """Whatever backs off is due, and bounds count from zero [R-17]."""
        self.turns = 0
        for part in self.parts:
            if not part.done and part.failure is None:
                part.due_us = part.failures = part.lost = 0

    def fence(self) -> None:
        """An operator's word ended the step, whatever is under way."""
        for part in self.parts:
            part.open = False
