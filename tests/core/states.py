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
from perdure.core.plan import Opening, Terms
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
    # waits
    "message": f.MessageReceived("go", f.NULL, "digest", "user"),
    "message k": f.MessageReceived("go", f.NULL, "digest", "user", "k"),
    "await A": f.OperationParked("A", 7, "message", ("go",)),
    "await N": f.OperationParked("N", 7, "message", ("go",)),
    "await two messages": f.OperationParked("N", 7, "message", ("go", "stop")),
    "wakes A": f.OperationWoken("A", "time"),
    "wakes A by message": f.OperationWoken("A", "message"),
    "wakes A by message k": f.OperationWoken("A", "message", "k"),
    "suspend A": f.SegmentSuspended("A"),
    "suspend B": f.SegmentSuspended("B"),
    "continue": f.ContinuationSegmentCreated(),
    # units
    "open A": f.BoundaryOpened("A", "each", (f.NULL, f.NULL)),
    "open N": f.BoundaryOpened("N", "children", (f.NULL,)),
    "open two turns": f.BoundaryOpened("N", "loop", (f.NULL, f.NULL)),
    "open two for one": f.BoundaryOpened("N", "child", (f.NULL, f.NULL)),
    **{f"item {i}.{n}": f.ItemReserved("A", i, n) for i in (0, 1, 2) for n in (1, 2)},
    "item of N": f.ItemReserved("N", 0, 1),
    **{f"memo item {i}": f.OperationProgress("A", "m", f.NULL, item=i) for i in (0, 1)},
    **{f"item {i} waits": f.ItemRetryScheduled("A", i, 1, "error", 5) for i in (0, 1)},
    **{f"item {i} ok": f.ItemOutputRecorded("A", i, 1) for i in (0, 1)},
    "item 0 ok again": f.ItemOutputRecorded("A", 0, 2),
    **{f"item {i} failed": f.ItemFailed("A", i, 1, _failure("A")) for i in (0, 1)},
    **{f"create {i}+{n}": f.BoundaryInteractionCreated("A", i, n) for i, n in ((0, 1), (0, 3), (1, 1), (0, 0))},
    **{f"dispatch {i}+{n}": f.BoundaryInteractionDispatched("A", i, n) for i, n in ((0, 1), (0, 2), (1, 1), (0, 0))},
    "all dispatched": f.BoundaryDispatchCompleted("A"),
    **{f"child {i} ok": f.BoundaryCompletionAdmitted("A", i, "succeeded") for i in (0, 1)},
    "child 0 failed": f.BoundaryCompletionAdmitted("A", 0, "failed", failure=_failure("A")),
    "unit A done": f.BoundaryResolved("A"),
    "unit A collected": f.BoundaryResolved("A", collect=True),
}

ANYHOW = "fail A, value A, given up A, refused A"
"""How any step that is started may end."""
ALWAYS = "cancel, hold, release, abandon, prioritize, claim 9, message, message k"


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


def _awaits(*sent: str) -> Callable[[], Life]:
    """A waits for message `go`, and none came since, or these, by key."""

    def make() -> Life:
        life = Life("A@ B*")
        life.author.openings["A"] = Opening(0, ("go",))
        life.claim()
        for key in sent:
            life.send("go", key=key)
        return life

    return make


def _unit(sign: str, *does: Callable[[Life], object], bound: int = 0, collect: bool = False) -> Callable[[], Life]:
    """A has two items, or as many child runs as its bound says are created."""

    def make() -> Life:
        life = Life(f"A{sign} B*", LATER)
        life.author.openings["A"] = Opening(items=(b"1",) if sign == "$" else (b"1", b"2"))
        life.author.terms_of["A"] = Terms(bound, collect)
        life.claim()
        for act in does:
            act(life)
        return life

    return make


def _item_ok(life: Life) -> None:
    life.items_end(life.item(0, b"1"), running=True)


def _item_raises(life: Life) -> None:
    life.items_end(life.item(0, outcomes.Raised(life.item_failure(0))), running=True)


def _item_fails(life: Life) -> None:
    life.items_end(life.item(0, outcomes.Declined(life.item_failure(0))), running=True)


def _turn(life: Life) -> None:
    life.items_end(life.item(0, b"1", more=True))


def _dispatched(life: Life) -> None:
    life.dispatched()


def _children_end(*indices: int) -> Callable[[Life], None]:
    """As far as the journal knows: nobody has planned on it."""

    def act(life: Life) -> None:
        life.record(*(f.BoundaryCompletionAdmitted("A", index, "succeeded") for index in indices))

    return act


def _last_item_ends(life: Life) -> None:
    life.record(f.ItemOutputRecorded("A", 1, 1))


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
    Stand("A sleeps", _life("claim", text="A% B"), f"{ANYHOW}, woken A, wakes A, continue"),
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
        "reserve B1, reserve N1, completed, outcome success, skip B, skip N, park N, await N, open N, "
        "fail B, fail N, value B",
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
    Stand("A awaits a message", _awaits(), f"{ANYHOW}, wakes A, woken A, continue"),
    Stand(
        "A awaits a message that came",
        _awaits("", "k"),
        f"{ANYHOW}, wakes A, wakes A by message, woken A, continue",
        without="message k",
    ),
    Stand(
        "A has two items in flight",
        _unit("+"),
        f"{ANYHOW}, suspend A, memo item 0, memo item 1, item 0 waits, item 1 waits, item 0 ok, item 1 ok, "
        "item 0 failed, item 1 failed",
    ),
    Stand(
        "A has one of two items done",
        _unit("+", _item_ok),
        f"{ANYHOW}, suspend A, memo item 1, item 1 waits, item 1 ok, item 1 failed",
    ),
    Stand(
        "A has an item that backs off",
        _unit("+", _item_raises),
        f"{ANYHOW}, suspend A, item 0.2, memo item 1, item 1 waits, item 1 ok, item 1 failed",
    ),
    Stand(
        "A has a failed item",
        _unit("+", _item_fails),
        f"{ANYHOW}, suspend A, memo item 1, item 1 waits, item 1 ok, item 1 failed",
    ),
    Stand(
        "A has all items done",
        _unit("+", _item_ok, _last_item_ends),
        f"{ANYHOW}, suspend A, unit A done, unit A collected",
    ),
    Stand(
        "A has all items done, one failed",
        _unit("+", _item_fails, _last_item_ends, collect=True),
        f"{ANYHOW}, suspend A, unit A collected",
    ),
    Stand(
        "A is in its second turn",
        _unit("$", _turn),
        f"{ANYHOW}, suspend A, memo item 1, item 1 waits, item 1 ok, item 1 failed",
    ),
    Stand(
        "A has two child runs on their way",
        _unit("^"),
        f"{ANYHOW}, suspend A, dispatch 0+1, dispatch 0+2, child 0 ok, child 1 ok, child 0 failed",
    ),
    Stand(
        "A has one child run on its way",
        _unit("^", bound=1),
        f"{ANYHOW}, suspend A, create 1+1, dispatch 0+1, child 0 ok, child 0 failed",
    ),
    Stand(
        "A has two child runs",
        _unit("^", _dispatched),
        f"{ANYHOW}, continue, all dispatched, child 0 ok, child 1 ok, child 0 failed",
    ),
    Stand(
        "A has two child runs that ended",
        _unit("^", _dispatched, _children_end(0, 1)),
        f"{ANYHOW}, continue, all dispatched, unit A done, unit A collected",
    ),
    Stand("outcome committed", _committed, "succeeded", final=True),
    Stand("succeeded", _life("claim", "ok", "ok"), "", final=True),
    Stand("failed", _life("claim", "ok", "fails", "ok"), "", final=True),
    Stand("canceled before its start", _life("cancel", "claim"), "", final=True),
)
