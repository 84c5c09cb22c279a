"""The table at the end: what the journal says about the runs, and what the bank's file says about the money."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from examples.flight_refunds.audit import Audit
from examples.flight_refunds.edits import OUTCOMES, EditTold
from examples.flight_refunds.progress import dollars
from perdure.core.facts import (
    Fact,
    OperationRetryScheduled,
    OperationSucceeded,
    RunFailed,
    SegmentAttemptStarted,
)


@dataclass(frozen=True)
class Tally:
    """What happened, counted over the facts of runs.

    Attributes:
        runs: runs.
        steps: steps that were carried out, forward and unwind.
        resumed: runs that one worker process began and another went on with.
        retried: attempts that failed or timed out and were followed by another.
        unwound: runs that failed and gave back what they had reserved.
    """

    runs: int
    steps: int
    resumed: int
    retried: int
    unwound: int


def tally(journals: Iterable[Sequence[Fact]]) -> Tally:
    """Counts the facts of runs, one sequence a run."""
    runs = steps = resumed = retried = unwound = 0
    for facts in journals:
        successes = [fact for fact in facts if isinstance(fact, OperationSucceeded)]
        workers = {fact.worker for fact in facts if isinstance(fact, SegmentAttemptStarted)}
        retries = [fact for fact in facts if isinstance(fact, OperationRetryScheduled)]
        failed = any(isinstance(fact, RunFailed) for fact in facts)
        runs += 1
        steps += len(successes)
        resumed += len(workers) > 1
        retried += sum(fact.cause in ("error", "timeout") for fact in retries)
        unwound += failed and any(fact.phase == "unwind" for fact in successes)
    return Tally(runs, steps, resumed, retried, unwound)


@dataclass(frozen=True)
class Summary:
    """The last word of the demo: money from the bank's own file, everything else from the journals.

    Attributes:
        edits: what became of the runs that were under way at each.
        paid_with: runs the bank paid, by the step that it was for, as the keys in its file say.
        problems: what must not be, in sentences.
    """

    tally: Tally
    audit: Audit
    edits: Sequence[EditTold]
    paid_with: Mapping[str, int]
    problems: Sequence[str]
    seconds: float

    @property
    def sound(self) -> bool:
        """No refund was paid twice, none was lost, and nothing else is wrong."""
        return self.audit.doubled == 0 and self.audit.lost == 0 and not self.problems

    def as_json(self) -> dict[str, object]:
        """For programs; keys as in the table, money in cents."""
        return {
            "runs": self.tally.runs,
            "steps": self.tally.steps,
            "resumed": self.tally.resumed,
            "retried": self.tally.retried,
            "unwound": self.tally.unwound,
            "paid": self.audit.paid,
            "paid_cents": self.audit.paid_cents,
            "doubled": self.audit.doubled,
            "lost": self.audit.lost,
            "edits": [
                {
                    "edit": each.edit.what,
                    "in_flight": each.in_flight,
                    "stood": dict(each.stands),
                    "then": dict(each.fates),
                    "stranded_without_retired": each.stranded,
                }
                for each in self.edits
            ],
            "paid_with": dict(self.paid_with),
            "problems": list(self.problems),
            "seconds": round(self.seconds, 1),
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """For people: name, figure, what it means."""
        audit, tally = self.audit, self.tally
        paid = f"{dollars(audit.paid_cents)}; {audit.replays} of the bank's {audit.requests} calls were repeats"
        return [
            ("runs", f"{tally.runs:,}", "one for each carrier and day"),
            ("steps", f"{tally.steps:,}", "carried out, forward and unwind"),
            ("resumed", f"{tally.resumed:,}", "runs one worker began and another finished"),
            ("retried", f"{tally.retried:,}", "attempts that failed and were made again"),
            ("unwound", f"{tally.unwound:,}", "runs the bank refused; their budget was released"),
            ("paid", f"{audit.paid:,}", f"refunds, {paid}"),
            ("doubled", f"{audit.doubled:,}", "paid more than once"),
            ("lost", f"{audit.lost:,}", "owed and not paid, or reserved and never freed"),
            *(
                (f"with {step[-2:]}", f"{count:,}", f"runs were paid by {step}")
                for step, count in self.paid_with.items()
            ),
            *(row for each in self.edits for row in edit_rows(each)),
            ("seconds", f"{self.seconds:,.1f}", ""),
        ]


def edit_rows(told: EditTold) -> list[tuple[str, str, str]]:
    """For people: what became of the runs that were under way at an edit, and where they stood."""
    fates = ", ".join(f"{count} {OUTCOMES[fate]}" for fate, count in told.fates.most_common())
    stands = ", ".join(f"{count} {stand}" for stand, count in told.stands.most_common())
    rows = [
        (f"edit {told.edit.name}", f"{told.in_flight:,}", f"runs were under way when {told.edit.what}"),
        ("", "", f"they stood: {stands}"),
        ("", "", f"then: {fates}"),
    ]
    if told.edit.replaces is not None:
        rows.append(("refused", f"{told.stranded:,}", f"runs would be stranded with {told.edit.replaces.id} removed"))
    return rows
