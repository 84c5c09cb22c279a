"""Hypothesis strategies: single facts of every type, and whole lives of runs driven through the planner."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec
from hypothesis import strategies as st

from perdure.core import facts as f
from perdure.core import outcomes
from perdure.core.retry import Retry
from tests.core.build import Life, submitted

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STEPS = st.sampled_from(["A", "B", "reserve-capacity/v1", "Ünïcode", ""])
NUMBERS = st.integers(0, 2**63 - 1)
RAW = st.sampled_from([b"null", b"1", b'"x"', b'{"a":[1,{"b":null}]}', b"[]", b'"\xc3\xbc\\n"']).map(msgspec.Raw)
PHASES: st.SearchStrategy[f.Phase] = st.sampled_from(get_args(f.Phase))
FAILURES = st.builds(
    f.Failure,
    step=STEPS,
    message=TEXT,
    phase=PHASES,
    attempt=NUMBERS,
    at_us=NUMBERS,
    kind=st.sampled_from(get_args(f.FailureKind)),
    reason=TEXT,
    error=TEXT,
)
IDS = st.lists(STEPS, max_size=3).map(tuple)

FACTS: dict[type[f.Fact], st.SearchStrategy[f.Fact]] = {
    f.RunSubmitted: st.builds(
        f.RunSubmitted,
        run_id=TEXT,
        pipeline=TEXT,
        input=RAW,
        input_digest=TEXT,
        resource=TEXT,
        tenant=TEXT,
        slot=st.sampled_from(get_args(f.SlotMode)),
        priority=st.sampled_from(f.PRIORITIES),
        start_at_us=NUMBERS,
        deadline_us=NUMBERS,
        actor=TEXT,
        annotations=st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    f.RunCancelRequested: st.builds(f.RunCancelRequested, actor=TEXT, reason=TEXT),
    f.RunHeld: st.builds(f.RunHeld, actor=TEXT, reason=TEXT, note=TEXT, step=STEPS),
    f.RunReleased: st.builds(f.RunReleased, actor=TEXT, note=TEXT),
    f.RunAbandoned: st.builds(f.RunAbandoned, actor=TEXT, failure=FAILURES, note=TEXT),
    f.RunPrioritized: st.builds(f.RunPrioritized, actor=TEXT, priority=st.sampled_from(f.PRIORITIES), note=TEXT),
    f.OutcomeCommitted: st.builds(
        f.OutcomeCommitted, outcome=st.sampled_from(get_args(f.Outcome)), output=RAW, publications=IDS
    ),
    f.RunSucceeded: st.builds(f.RunSucceeded, in_doubt=IDS),
    f.RunFailed: st.builds(
        f.RunFailed,
        failure=FAILURES,
        unwind_failures=st.lists(FAILURES, max_size=2).map(tuple),
        in_doubt=IDS,
        half_unwound=IDS,
        uncompensated=IDS,
        unavailable=IDS,
    ),
    f.SegmentAttemptStarted: st.builds(
        f.SegmentAttemptStarted, token=NUMBERS, worker=TEXT, generation=NUMBERS, build=TEXT
    ),
    f.SegmentCompleted: st.builds(f.SegmentCompleted),
    f.OperationReserved: st.builds(
        f.OperationReserved, step=STEPS, attempt=NUMBERS, phase=PHASES, passed=IDS, crossed=IDS
    ),
    f.OperationProgress: st.builds(f.OperationProgress, step=STEPS, name=TEXT, value=RAW, phase=PHASES),
    f.OperationSucceeded: st.builds(f.OperationSucceeded, step=STEPS, attempt=NUMBERS, state=RAW, phase=PHASES),
    f.OperationRetryScheduled: st.builds(
        f.OperationRetryScheduled,
        step=STEPS,
        attempt=NUMBERS,
        cause=st.sampled_from(get_args(f.RetryCause)),
        due_us=NUMBERS,
        failure=st.none() | FAILURES,
        phase=PHASES,
    ),
    f.OperationFailed: st.builds(
        f.OperationFailed, step=STEPS, failure=FAILURES, phase=PHASES, in_doubt=st.booleans(), passed=IDS
    ),
    f.OperationSkipped: st.builds(f.OperationSkipped, step=STEPS, passed=IDS),
    f.OperationParked: st.builds(
        f.OperationParked,
        step=STEPS,
        due_us=NUMBERS,
        shape=st.sampled_from(get_args(f.ParkShape)),
        awaits=IDS,
        need=NUMBERS,
        passed=IDS,
    ),
    f.OperationWoken: st.builds(
        f.OperationWoken, step=STEPS, by=st.sampled_from(("message", "runs", "time")), key=TEXT
    ),
    f.MessageReceived: st.builds(f.MessageReceived, name=TEXT, payload=RAW, digest=TEXT, actor=TEXT, key=TEXT),
    f.SegmentSuspended: st.builds(f.SegmentSuspended, step=STEPS),
    f.ContinuationSegmentCreated: st.builds(f.ContinuationSegmentCreated),
    f.BoundaryOpened: st.builds(
        f.BoundaryOpened,
        step=STEPS,
        shape=st.sampled_from(get_args(f.UnitShape)),
        items=st.lists(RAW, max_size=3).map(tuple),
        pipeline=TEXT,
        passed=IDS,
    ),
    f.BoundaryInteractionCreated: st.builds(f.BoundaryInteractionCreated, step=STEPS, first=NUMBERS, count=NUMBERS),
    f.BoundaryInteractionDispatched: st.builds(
        f.BoundaryInteractionDispatched, step=STEPS, first=NUMBERS, count=NUMBERS
    ),
    f.BoundaryDispatchCompleted: st.builds(f.BoundaryDispatchCompleted, step=STEPS),
    f.BoundaryCompletionAdmitted: st.builds(
        f.BoundaryCompletionAdmitted,
        step=STEPS,
        index=NUMBERS,
        status=st.sampled_from(get_args(f.EndStatus)),
        output=RAW,
        failure=st.none() | FAILURES,
        in_doubt=st.booleans(),
    ),
    f.ItemReserved: st.builds(f.ItemReserved, step=STEPS, index=NUMBERS, attempt=NUMBERS),
    f.ItemRetryScheduled: st.builds(
        f.ItemRetryScheduled,
        step=STEPS,
        index=NUMBERS,
        attempt=NUMBERS,
        cause=st.sampled_from(get_args(f.RetryCause)),
        due_us=NUMBERS,
        failure=st.none() | FAILURES,
    ),
    f.ItemOutputRecorded: st.builds(
        f.ItemOutputRecorded, step=STEPS, index=NUMBERS, attempt=NUMBERS, output=RAW, more=st.booleans()
    ),
    f.ItemFailed: st.builds(
        f.ItemFailed, step=STEPS, index=NUMBERS, attempt=NUMBERS, failure=FAILURES, in_doubt=st.booleans()
    ),
    f.BoundaryResolved: st.builds(f.BoundaryResolved, step=STEPS, collect=st.booleans()),
    f.OperationResolved: st.builds(
        f.OperationResolved,
        step=STEPS,
        how=st.sampled_from(get_args(f.Resolution)),
        actor=TEXT,
        phase=PHASES,
        state=RAW,
        note=TEXT,
        passed=IDS,
        crossed=IDS,
        failure=st.none() | FAILURES,
    ),
}

# --- whole lives

TOPOLOGIES = (
    "A* B*? C D&",
    "A* B*? C D*&",
    "B* A* D C*",
    "A~ X B* C*? D",
    "C D~ B",
    "X* Y",
    "D* C* B* A*",
    "A*! B*?! C*! D*!",
    "A",
    "",
)
POLICY = Retry(initial=1, cap=4, jitter=0, max_attempts=3, then="fail")


@st.composite
def lives(draw: st.DrawFn, most: int = 40) -> Life:
    """A legal life of a run: whatever may happen next, in an order that Hypothesis chooses."""
    deadline_us = draw(st.sampled_from([0, 0, 0, 25_000]))
    life = Life(draw(st.sampled_from(TOPOLOGIES)), POLICY, submission=submitted(0, deadline_us))
    for _ in range(draw(st.integers(0, most))):
        draw(st.sampled_from(_may_happen(life)))()
        if life.p.ended is not None:
            break
        life.now_us += draw(st.sampled_from([0, 0, 5_000_000]))
    return life


def _may_happen(life: Life) -> list[Callable[[], object]]:
    anytime: list[Callable[[], object]] = [
        life.cancel,
        life.hold,
        life.release,
        life.retry,
        *(lambda text=text: life.deploy(text) for text in TOPOLOGIES),
        lambda: life.author.false.symmetric_difference_update({"D"}),
        lambda: life.author.broken.symmetric_difference_update({"D", "output"}),
    ]
    if life.op is None:
        resolutions = [lambda how=how: life.resolve(how) for how in get_args(f.Resolution)]
        return [life.claim] * 20 + anytime + resolutions + [life.restart]
    ends: list[Callable[[], object]] = [life.raises, life.times_out, life.is_interrupted, life.is_lost, life.fails]
    refused = outcomes.Refused(f.Failure(life.op.step, "too big", reason="payload-too-large"))
    ends += [lambda: life.raises(never=True), lambda: life.ends(refused)]
    named = f"m{life.p.version}"
    return [life.ok] * 20 + ends + anytime + [lambda: life.memo(named, b"[1]")] * 2
