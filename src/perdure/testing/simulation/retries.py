"""What a judge says of attempts that left their operation, or their item, unresolved [M-5, M-17]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.core.facts import Fact, ItemRetryScheduled, OperationRetryScheduled, RunHeld
from perdure.core.retry import Retry
from perdure.testing.simulation import pauses
from perdure.testing.simulation.parts import base
from perdure.testing.simulation.world import Attempt

if TYPE_CHECKING:
    from perdure.testing.simulation.judge import Judge


def judge_retry(judge: Judge, fact: OperationRetryScheduled, rest: list[Fact]) -> None:
    """The cause is true, and a bound that is used up holds the run or fails the step."""
    attempt = judge.law.attempt((judge.run_id, fact.phase, fact.step, fact.attempt))
    held = any(isinstance(later, RunHeld) for later in rest)
    policy = judge.law.policy(fact.step)
    _cause(judge, fact, fact.step, attempt, policy, held=held, lost=judge.lost)
    _bound(judge, fact, fact.step, policy.bound(fact.phase), policy, held=held, failures=judge.failures)


def judge_item_retry(judge: Judge, fact: ItemRetryScheduled, name: str, rest: list[Fact]) -> None:
    """The same for an item; a hold by another one of them serves as well."""
    attempt = judge.law.attempt((judge.run_id, "forward", name, fact.attempt))
    held = judge.held is not None or any(isinstance(later, RunHeld) for later in rest)
    policy = judge.law.policy(fact.step)
    unit = judge.unit()
    found = None if unit is None else unit.part(fact.index)
    if found is not None:
        _cause(judge, fact, name, attempt, policy, held=held, lost=found.lost)
        _bound(judge, fact, name, policy.max_attempts, policy, held=held, failures=found.failures)


def _cause(
    judge: Judge,
    fact: OperationRetryScheduled | ItemRetryScheduled,
    name: str,
    attempt: Attempt | None,
    policy: Retry,
    *,
    held: bool,
    lost: int,
) -> None:
    what = f"{name}#{fact.attempt}"
    match fact.cause:
        case "lost":
            judge.law.count("attempt lost")
            gone = attempt is None or not judge.law.lives(attempt.worker)
            gone = gone or (judge.was_invalid and attempt is not None and attempt.how != "running")
            judge.demand(gone, "M-17", f"{what} is called lost, and its process lives")
            if lost == 4:
                judge.demand(held or policy.then == "fail", "M-5", "the fifth lost attempt does not hold the run")
                judge.law.count("five lost attempts: held")
        case "interrupted":
            judge.law.count("attempt interrupted")
            judge.demand(fact.due_us <= judge.now_us, "R-6", "an interrupted attempt has a backoff")
            judge.demand(fact.failure is None, "R-6", "an interrupted attempt has a failure")
        case "timeout":
            judge.law.count("attempt timed out")
            stopped = attempt is not None and attempt.stopped
            judge.demand(stopped, "R-18", f"{what} timed out, and the handler was not told")
        case "error":
            never = attempt is not None and attempt.how == "never" and policy.never
            judge.demand(not never, "M-5", f"{what} raised what is never retried, and is retried")
            raised = attempt is not None and attempt.how in ("raised", "never", "canceled", "returned")
            judge.demand(raised, "M-5", f"{what} is called an error, its end was {attempt}")
        case "later":
            pauses.judge_later(judge, fact, attempt)


def _bound(
    judge: Judge,
    fact: OperationRetryScheduled | ItemRetryScheduled,
    name: str,
    bound: int | None,
    policy: Retry,
    *,
    held: bool,
    failures: int,
) -> None:
    """A used-up bound holds the run in the same append, or fails the step instead of a retry [M-5]."""
    if fact.cause in ("interrupted", "later") or bound is None or failures + 1 < bound:
        return
    if policy.then == "fail" and not held:
        judge.blame("M-5", f"{name} used up its {bound} attempts, and is tried again")
    judge.demand(held, "M-5", f"{name} used up its {bound} attempts, and is not held")
    judge.law.count("retry bounded: held")


def check_bound(judge: Judge, name: str, failures: int, lost: int) -> None:
    """An attempt that starts is within its bound [M-5]."""
    bound = judge.law.policy(base(name)).max_attempts
    judge.demand(bound is None or failures < bound, "M-5", f"{name} had {failures} of {bound} attempts")
    judge.demand(lost < 5, "M-5", f"{name} lost five attempts in a row and runs again")
