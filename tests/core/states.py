"""Every kind of stand a run can be at, and every kind of fact that could come next (all pairs are tried).

The pipeline is `A* B*` unless a stand says otherwise; the letters of a stand's facts are what may follow there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from perdure.core import facts as f
from perdure.core import outcomes
from perdure.core.facts import Fact, Failure
from perdure.core.retry import Retry
from tests.core.build import AT_ONCE, RUN, Life, submitted

LATER = Retry(initial=10, cap=10, jitter=0)
STRICT = Retry(initial=0, cap=0, jitter=0, max_attempts=1)


def _failure(step: str, phase: f.Phase = "forward") -> Failure:
    return Failure(step, "no", phase)


# What could come next. Steps: A and B; N is a step that no run has heard of.
CANDIDATES: dict[str, Fact] = {
    "submit": submitted(),
    "submit other": msgspec.structs.replace(submitted(), run_id="another"),
    "cancel": f.RunCancelRequested("user"),
    "hold": f.RunHeld("user", "by hand"),
    "release": f.RunReleased("user"),
    "abandon": f.RunAbandoned("user", _failure("A")),
    "prioritize": f.RunPrioritized("user", 5),
    "outcome success": f.OutcomeCommitted("success"),
    "outcome failure": f.OutcomeCommitted("failure"),
    "succeeded": f.RunSucceeded(),
    "failed": f.RunFailed(_failure("A")),
    "claim 1": f.SegmentAttemptStarted(1, "w", 1),
    "claim 9": f.SegmentAttemptStarted(9, "w", 1),
    "completed": f.SegmentCompleted(),
    **{f"reserve {s}{n}": f.OperationReserved(s, n) for s in "AB" for n in (0, 1, 2)},
    **{f"reserve un{s}{n}": f.OperationReserved(s, n, "unwind") for s in "AB" for n in (1, 2)},
    "reserve N1": f.OperationReserved("N", 1),
    "reserve unN1": f.OperationReserved("N", 1, "unwind"),
    **{f"memo {s}": f.OperationProgress(s, "m", f.NULL) for s in "AB"},
    "memo unA": f.OperationProgress("A", "m", f.NULL, "unwind"),
    **{f"ok {s}{n}": f.OperationSucceeded(s, n) for s in "AB" for n in (1, 2)},
    **{f"ok un{s}1": f.OperationSucceeded(s, 1, f.NULL, "unwind") for s in "AB"},
    "ok N1": f.OperationSucceeded("N", 1),
    **{f"retry {s}1": f.OperationRetryScheduled(s, 1, "error", 5) for s in "AB"},
    "retry unA1": f.OperationRetryScheduled("A", 1, "error", 5, None, "unwind"),
    **{f"fail {s}": f.OperationFailed(s, _failure(s)) for s in "ABN"},
    **{f"fail un{s}": f.OperationFailed(s, _failure(s, "unwind"), "unwind") for s in "ABN"},
    **{f"skip {s}": f.OperationSkipped(s) for s in "ABN"},
    **{f"park {s}": f.OperationParked(s, 7) for s in "AN"},
    "woken A": f.OperationSucceeded("A", 0),
    "woken unA": f.OperationSucceeded("A", 0, f.NULL, "unwind"),
    **{f"value {s}": f.OperationResolved(s, "value", "user") for s in "AB"},
    "value unA": f.OperationResolved("A", "value", "user", "unwind"),
    "given up A": f.OperationResolved("A", "skip", "user"),
    "refused A": f.OperationResolved("A", "fail", "user", failure=_failure("A")),
    "refused A, no reason": f.OperationResolved("A", "fail", "user"),
    "refused unA": f.OperationResolved("A", "fail", "user", "unwind", failure=_failure("A", "unwind")),
}

ALWAYS = "cancel, hold, release, abandon, prioritize, claim 9"


@dataclass(frozen=True)
class Stand:
    """How to get there, and which candidates are legal next (besides `ALWAYS`, unless `final`)."""

    name: str
    make: Callable[[], Life]
    follows: str
    without: str = ""
    final: bool = False

    @property
    def legal(self) -> set[str]:
        words = _words(self.follows) if self.final else _words(f"{self.follows}, {ALWAYS}")
        return set(words) - set(_words(self.without))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _life(*does: str, text: str = "A* B*", policy: Retry = AT_ONCE) -> Callable[[], Life]:
    """A life from the names of methods, in order."""

    def make() -> Life:
        life = Life(text, policy)
        for name in does:
            getattr(life, name)()
        return life

    return make


def _new() -> Life:
    life = Life("A* B*")
    life.rows.clear()
    life.p = type(life.p)(RUN)
    return life


def _with_memo() -> Life:
    life = _life("claim")()
    life.memo("m", b"1")
    return life


def _held_by_policy() -> Life:
    life = _life("claim")()
    life.ends(outcomes.Refused(Failure("A", "too big", reason="payload-too-large")))
    return life


def _unwind_dropped() -> Life:
    """B is being unwound when its handler is gone; then A is resolved."""
    life = _life("claim", "ok", "ok", "fails", text="A* B* C")()
    life.deploy("A* B C")
    return life


def _between() -> Life:
    """A is over, and the worker that owns the run starts nothing more."""
    life = _life("claim")()
    life.may_start = False
    life.ok()
    return life


def _committed() -> Life:
    life = _life("claim", "ok")()
    life.ok()
    p, rows = type(life.p)(RUN), life.rows[:-1]
    at_us, last = life.rows[-1]
    life.rows = [*rows, (at_us, [fact for fact in last if not isinstance(fact, f.RunSucceeded)])]
    life.p = p
    return life


# A never started step may be reserved, skipped, resolved or canceled, whatever stands in the pipeline: that is for the
# planner to decide, which knows the topology. The reducer knows only the ledger.
STANDS: tuple[Stand, ...] = (
    Stand("nothing", _new, "submit", final=True),
    Stand(
        "submitted",
        _life(),
        "claim 1, completed, outcome success, skip A, skip B, skip N, fail A, fail B, fail N, value A, value B, "
        "given up A, refused A",
    ),
    Stand("A sleeps", _life("claim", text="A% B"), "woken A, fail A, value A, given up A, refused A"),
    Stand("A has slept", _life("claim", "wakes", text="A% B"), "memo B, ok B1, retry B1, fail B, value B"),
    Stand(
        "A runs",
        _life("claim"),
        "memo A, ok A1, retry A1, fail A, value A, given up A, refused A",
    ),
    Stand("A runs and remembers", _with_memo, "ok A1, retry A1, fail A, value A, given up A, refused A"),
    Stand(
        "A waits for its second attempt",
        _life("claim", "raises", policy=LATER),
        "reserve A2, fail A, value A, given up A, refused A",
    ),
    Stand(
        "A is held by its policy",
        _life("claim", "raises", policy=STRICT),
        "reserve A2, fail A, value A, given up A, refused A",
    ),
    Stand("A is held for its size", _held_by_policy, "reserve A2, fail A, value A, given up A, refused A"),
    Stand(
        "A runs and a cancel is there",
        _life("claim", "cancel"),
        "memo A, ok A1, retry A1, fail A, value A, given up A, refused A",
        without="cancel",
    ),
    Stand(
        "between A and B",
        _between,
        "reserve B1, reserve N1, completed, outcome success, skip B, skip N, park N, fail B, fail N, value B",
    ),
    Stand("B runs after A", _life("claim", "ok"), "memo B, ok B1, retry B1, fail B, value B"),
    Stand(
        "unwinding A, B failed",
        _life("claim", "ok", "fails"),
        "outcome failure, completed, memo unA, ok unA1, retry unA1, fail unA, value unA, refused unA",
    ),
    Stand(
        "unwinding A waits",
        _life("claim", "ok", "fails", "raises", policy=LATER),
        "outcome failure, completed, reserve unA2, reserve unB1, reserve unN1, value unA, refused unA",
    ),
    Stand(
        "unwinding B, whose handler is gone",
        _unwind_dropped,
        "outcome failure, completed, ok unB1, fail unB, value unA, refused unA",
    ),
    Stand("outcome committed", _committed, "succeeded", final=True),
    Stand("succeeded", _life("claim", "ok", "ok"), "", final=True),
    Stand("failed", _life("claim", "ok", "fails", "ok"), "", final=True),
    Stand("canceled before its start", _life("cancel", "claim"), "", final=True),
)
