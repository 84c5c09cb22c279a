"""Hypothesis strategies: single facts of every type, and whole lives of runs driven through the planner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, get_args

import msgspec
from hypothesis import strategies as st

from perdure.core import commit, outcomes
from perdure.core import facts as f
from perdure.core.operations import UnitOp
from perdure.core.plan import Opening, Plan, RunEnd, Setting, Terms
from perdure.core.projection import Projection
from perdure.core.retry import Retry
from perdure.core.topology import Topology
from perdure.core.unit import CHILD_SHAPES
from perdure.core.units import awaited_children
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
    "A* E+ M@ B",
    "E*?+ R# A* M@",
    "L$ A* K^ B",
    "K*?^ E+! C*",
    "B E+~ K^! M@& N@",
    "M@ L*?$ K^> C~",
    "E^ K+ M# L",
)
"""`E` has items, `L` turns, `K` child runs; `M` and `N` wait for a message and `R` for runs, but for the last one."""
POLICY = Retry(initial=1, cap=4, jitter=0, max_attempts=3, then="fail")


@st.composite
def lives(draw: st.DrawFn, most: int = 40) -> Life:
    """A legal life of a run: whatever may happen next, in an order that Hypothesis chooses."""
    deadline_us = draw(st.sampled_from([0, 0, 0, 25_000]))
    life = Life(draw(st.sampled_from(TOPOLOGIES)), POLICY, submission=submitted(0, deadline_us))
    opening = Opening(3_000_000, ("go",), 1, (b"1",), "p")
    several = msgspec.structs.replace(opening, items=(b"1", b"2", b"3"), awaits=("r1", "r2"))
    life.author.openings = dict.fromkeys("MNL", opening) | dict.fromkeys("EKR", several)
    life.author.terms_of = {"E": Terms(2), "K": Terms(2, draw(st.booleans())), "L": Terms(most=2)}
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
        lambda: life.author.broken.symmetric_difference_update({"D", "output", "open E", "message M"}),
        lambda: life.send("go", b"1", "k"),
        lambda: life.send("go", b"2"),
    ]
    if life.op is None:
        resolutions = [lambda how=how: life.resolve(how) for how in get_args(f.Resolution)]
        return [lambda: claimed(life)] * 30 + anytime + resolutions + [life.restart] + _awaited_end(life)
    if isinstance(life.op, UnitOp):
        return [*_unit_goes_on(life, life.op), *anytime]
    lost = partial(_lost, life)
    ends: list[Callable[[], object]] = [life.raises, life.times_out, life.is_interrupted, lost, life.fails]
    refused = outcomes.Refused(f.Failure(life.op.step, "too big", reason="payload-too-large"))
    ends += [lambda: life.raises(never=True), lambda: life.ends(refused)]
    named = f"m{life.p.version}"
    return [life.ok] * 20 + ends + anytime + [lambda: life.memo(named, b"[1]")] * 2


# --- waits and units


def _awaited(life: Life) -> tuple[str, ...]:
    """Ids of runs that the run waits for."""
    entry, step = life.p.pinned(), life.p.pin
    if entry is None or step is None:
        return ()
    if entry.shape in CHILD_SHAPES:
        return awaited_children(life.p, step)
    return entry.awaits if entry.shape == "runs" else ()


def _unsent(life: Life) -> list[str]:
    """Ids of child runs that are to be submitted."""
    unit = life.p.unit()
    if unit is None or unit.shape not in CHILD_SHAPES:
        return []
    return [life.child(index) for index in range(unit.sent, unit.next)]


def claimed(life: Life) -> Plan:
    """A worker reads how awaited runs ended, and claims the run; child runs that nobody submitted are missing."""
    known = life.ends_of
    life.ends_of = dict.fromkeys(_unsent(life), RunEnd("missing")) | known
    life.told = True
    try:
        return life.claim()
    finally:
        life.ends_of, life.told = known, False


def _lost(life: Life) -> object:
    life.restart()
    return claimed(life)


Acts: TypeAlias = list[Callable[[], object]]


def _awaited_end(life: Life) -> Acts:
    """One of the awaited runs ends."""
    failure = f.Failure("X", "no", reason="broken")
    made = (RunEnd("succeeded", b"1"), RunEnd("failed", failure=failure, in_doubt=True), RunEnd("canceled"))
    found: Acts = []
    for run_id in _awaited(life):
        found += [partial(life.ends_of.setdefault, run_id, end) for end in (*made, *made[:1] * 5)]
    return found


def _unit_goes_on(life: Life, op: UnitOp) -> Acts:
    """Items end, one or all; or child runs are submitted, or one is refused; or the worker is lost."""
    found: Acts = [partial(_lost, life)]
    if op.shape in CHILD_SHAPES:
        found += [life.dispatched] * 10
        return [*found, partial(life.dispatched, {op.start[0][0]: f.Failure(op.step, "no")})]
    unit = life.p.units.get(op.step)
    if unit is None or life.p.pin != op.step:
        return [life.items_end, partial(life.items_end, running=True)]
    at_work = sorted(unit.open)
    found += [partial(life.items_end, *(life.item(index, b"1") for index in at_work))] * 5
    for index in at_work:
        failure = life.item_failure(index)
        made = [
            *[life.item(index, b"1")] * 4,
            *[life.item(index, b"2", more=op.shape == "loop")] * 4,
            life.item(index, outcomes.Raised(failure)),
            life.item(index, outcomes.Raised(failure, never=True)),
            life.item(index, outcomes.Declined(failure)),
            life.item(index, outcomes.TimedOut(failure)),
            life.item(index, outcomes.Interrupted()),
            life.item(index, outcomes.Postponed(5)),
            life.item(index, outcomes.Refused(failure)),
        ]
        found += [partial(life.items_end, end, running=len(at_work) > 1) for end in made]
        found.append(partial(life.item_memo, index, f"m{life.p.version}", b"1"))
    return found


def awaited_goes_well(life: Life) -> None:
    """The message that it waits for is there; the runs that it waits for have ended."""
    entry = life.p.parked()
    if entry is not None and entry.shape == "message":
        life.send(entry.awaits[0])
    ids = set(_awaited(life)) - set(_unsent(life))
    life.ends_of |= dict.fromkeys(ids, RunEnd("succeeded", b"1"))


def unit_goes_well(life: Life) -> None:
    """All child runs are submitted; or all items that are at work do."""
    op = life.unit
    if op.shape in CHILD_SHAPES:
        life.dispatched()
        return
    unit = life.p.units[op.step]
    life.items_end(*(life.item(index, b"1") for index in sorted(unit.open)))


def unit_plan(p: Projection, topology: Topology, op: UnitOp, s: Setting) -> Plan:
    """All child runs are submitted, or all items that are at work succeed."""
    if op.shape in CHILD_SHAPES:
        return commit.plan_dispatched(p, topology, op, {}, s)
    unit = p.units.get(op.step)
    at_work = () if unit is None else sorted((i, unit.entries[i].attempts) for i in unit.open)
    ended = [outcomes.ItemOutcome(index, attempt, outcomes.Returned(b"2")) for index, attempt in at_work]
    return commit.plan_items(p, topology, op, ended, s, running=False)
