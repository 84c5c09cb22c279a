"""The table at the end: what the journal says about the runs, and what the bank's file says about the money."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from examples.flight_refunds.audit import Audit
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
    """The last word of the demo: the first half from the journal, the second from the bank's own file."""

    tally: Tally
    audit: Audit
    seconds: float

    @property
    def sound(self) -> bool:
        """No refund was paid twice and none was lost."""
        return self.audit.doubled == 0 and self.audit.lost == 0

    def as_json(self) -> dict[str, int | float]:
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
            ("seconds", f"{self.seconds:,.1f}", ""),
        ]
