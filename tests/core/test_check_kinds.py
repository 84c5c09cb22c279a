"""D-6: what `check`, `drain` and the lock file say of steps that wait and of units [B-15, B-20, B-21]."""

from __future__ import annotations

import pytest
from msgspec import Raw

from perdure.core.check import LedgerRuns, PipelineCheck, check_pipeline
from perdure.core.check_words import KINDS
from perdure.core.facts import (
    BoundaryInteractionCreated,
    BoundaryOpened,
    Fact,
    ItemOutputRecorded,
    ItemReserved,
    OperationFailed,
    OperationParked,
    OperationReserved,
    OperationSucceeded,
    RunSubmitted,
    SegmentAttemptStarted,
    Shape,
)
from perdure.core.future import INPUT, Candidate, Reads
from perdure.core.lock import Lock, LockedPipeline, LockedStep, LockedType, compare_locks, retyped
from perdure.core.projection import Projection
from perdure.core.reducer import fold_all
from perdure.core.signature import decode_ledger, encode_ledger, ledger_of, sign
from perdure.core.topology import StepSpec, Topology
from perdure.core.unit_facts import ItemRetryScheduled
from perdure.core.words import Failure

SHAPES: tuple[Shape, ...] = ("handler", "sleep", "message", "runs", "each", "loop", "child", "children")


def opening(shape: Shape) -> Fact:
    """What stands in the journal when a run comes to a step of that shape."""
    match shape:
        case "handler":
            return OperationReserved("S", 1)
        case "sleep" | "message" | "runs":
            return OperationParked("S", 0, shape, ("ok",), 1)
        case _:
            return BoundaryOpened("S", shape, tuple(Raw(b"1") for _ in range(1000 if shape == "each" else 1)))


def at(shape: Shape, *more: Fact) -> Projection:
    """A run inside S, which it was at after A."""
    p = Projection("r")
    facts: list[Fact] = [RunSubmitted("r", "p", Raw(b"null"), "", "r"), SegmentAttemptStarted(1, "w", 1, "b")]
    done: list[Fact] = [OperationReserved("A", 1), OperationSucceeded("A", 1, Raw(b"7"))]
    fold_all(p, [*facts, *done, opening(shape), *more], 1)
    return p


def steps(*specs: StepSpec) -> Topology:
    return Topology((StepSpec("A"), *specs, StepSpec("Z")))


def checked(shape: Shape, new: Topology, count: int = 12) -> PipelineCheck:
    runs = [LedgerRuns(ledger_of(at(shape)), count, "r")]
    return check_pipeline("p", runs, Candidate(steps(StepSpec("S", shape=shape))), Candidate(new))


GONE = {
    "handler": "12 runs would become invalid because their unresolved step S is gone: keep it as retired",
    "sleep": "12 runs would become invalid because they sleep in S, which is gone: keep it as retired",
    "message": "12 runs would become invalid because they wait for a message in S, which is gone: keep it as retired",
    "runs": "12 runs would become invalid because they wait for other runs in S, which is gone: keep it as retired",
    "each": "12 runs would become invalid because they have open items in S, which is gone: keep it as retired",
    "loop": "12 runs would become invalid because they are in the loop S, which is gone: keep it as retired",
    "child": "12 runs would become invalid because they wait for a child run in S, which is gone: keep it as retired",
    "children": "12 runs would become invalid because they wait for child runs in S, which is gone: keep it as retired",
}
STANDS = {
    "handler": "S is unresolved",
    "sleep": "S sleeps",
    "message": "S waits for a message",
    "runs": "S waits for other runs",
    "each": "S has open items",
    "loop": "S is in a loop",
    "child": "S waits for a child run",
    "children": "S waits for child runs",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_that_is_gone_while_runs_are_in_it(shape: Shape) -> None:
    report = checked(shape, steps())
    assert report.sentences[0] == GONE[shape]
    assert report.kinds[0].stand == STANDS[shape]
    assert report.invalid == 12


def test_of_one_run_it_says_one() -> None:
    assert checked("message", steps(), 1).sentences[0] == (
        "1 run would become invalid because it waits for a message in S, which is gone: keep it as retired"
    )


@pytest.mark.parametrize("new", SHAPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_that_became_another_kind(shape: Shape, new: Shape) -> None:
    """Under the same id nothing but the same kind can go on; the sentence says what it was and what it is."""
    report = checked(shape, steps(StepSpec("S", shape=new)))
    if new == shape:
        assert report.sentences == ("12 runs go on unchanged",)
        return
    sentence = GONE[shape].replace("is gone: keep it as retired", f"is {KINDS[new]} now:")
    assert report.sentences[0].startswith(sentence)
    assert report.kinds[0].effects.reason == "shape-changed"
    assert report.changes.flags == (f"S: {shape} -> {new}",)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_open_keeps_a_retired_step(shape: Shape) -> None:
    """E-9: retired, it goes on for those that are in it; it is drained when they are through."""
    kept = steps(StepSpec("S", shape=shape, retired=True))
    report = check_pipeline("p", [LedgerRuns(ledger_of(at(shape)), 12, "r")], Candidate(kept), Candidate(kept))
    assert report.sentences == ("12 runs go on unchanged",)
    (drain,) = report.drains
    assert (drain.drained, drain.runs, drain.unresolved) == (False, 12, 12)
    none = check_pipeline("p", [], Candidate(kept), Candidate(kept))
    assert none.drains[0].drained


@pytest.mark.parametrize("shape", SHAPES)
def test_a_new_step_behind_what_waits_is_run(shape: Shape) -> None:
    s = StepSpec("S", shape=shape)
    assert checked(shape, Topology((StepSpec("A"), s, StepSpec("N"), StepSpec("Z")))).gaining == 12
    assert checked(shape, Topology((StepSpec("A"), StepSpec("N"), s, StepSpec("Z")))).passing == 12


# --- ledgers


def item(index: int, end: str) -> list[Fact]:
    reserved = ItemReserved("S", index, 1)
    why = Failure("S", "no")
    return [
        reserved,
        ItemOutputRecorded("S", index, 1) if end == "done" else ItemRetryScheduled("S", index, 1, "error", 9, why),
    ]


def test_however_far_items_are_runs_have_few_ledgers() -> None:
    """A hundred thousand runs of a thousand items each, at every number of items done: two ledgers, one look each."""
    lives = [at("each"), *(at("each", *(f for i in range(k) for f in item(i, "done"))) for k in range(1, 1000, 111))]
    lives += [at("each", *item(0, "backs off")), at("each", *item(0, "done"), *item(1, "backs off"))]
    signatures = {sign(p) for p in lives}
    assert len(signatures) == 2  # nothing started, and something started
    assert max(len(ledger) for _, ledger in signatures) < 200
    runs = [LedgerRuns(decode_ledger(ledger), 50_000, "r") for _, ledger in sorted(signatures)]
    s = Candidate(steps(StepSpec("S", shape="each")))
    report = check_pipeline("p", runs, s, Candidate(steps()))
    assert (report.runs, report.ledgers, report.invalid) == (100_000, 2, 100_000)
    assert len(report.kinds) == 1


def test_however_many_children_are_sent_runs_have_few_ledgers() -> None:
    p = at("child")
    sent = at("child", BoundaryInteractionCreated("S", 0, 1))
    assert len({sign(p), sign(sent), sign(at("child", BoundaryInteractionCreated("S", 0, 1)))}) == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_a_ledger_has_the_kind_of_step_it_stands_in(shape: Shape) -> None:
    """Written and read again; so the export of ledgers tells it to a check elsewhere."""
    ledger = decode_ledger(encode_ledger(ledger_of(at(shape))))
    assert ledger.forward["S"].shape == shape
    assert ledger == ledger_of(at(shape))


# --- types of states


def typed(*, retired_z: bool = False, unwind: bool = False, reads: bool = True, step: str = "A") -> PipelineCheck:
    """Runs that stand at S with a state of A, whose type changed."""
    topology = Topology((StepSpec("A", unwind=unwind), StepSpec("S"), StepSpec("Z", retired=retired_z)))
    new = Candidate(topology, {"Z": Reads(("A",))} if reads else {}, {step: ("Hold", "Reservation")})
    return check_pipeline("p", [LedgerRuns(ledger_of(at("handler")), 3, "r")], Candidate(topology), new)


TYPES = "3 runs have a state of A, whose type changed since the lock file was written (Hold to Reservation), and "
ADVICE = ": what is stored must stay readable, so a new field needs a default; or take a new id"


def test_a_state_whose_type_changed_and_who_reads_it() -> None:
    """P-3: the run would become invalid when it is read, if it cannot be read."""
    report = typed()
    assert report.sentences == (f"{TYPES}Z reads it{ADVICE}",)
    assert (report.retyped, report.invalid, report.unchanged) == (3, 0, 0)
    assert typed(unwind=True).sentences == (f"{TYPES}Z, the unwind of A read it{ADVICE}",)
    assert typed(unwind=True, reads=False).sentences == (f"{TYPES}the unwind of A reads it{ADVICE}",)
    assert typed(reads=False).sentences == (f"{TYPES}an output may read it{ADVICE}",)


def test_a_state_that_the_run_does_not_have_is_no_matter() -> None:
    assert typed(step="Z").sentences == ("3 runs go on unchanged",)


def test_of_runs_that_unwind_only_what_is_undone_counts() -> None:
    failed = at("handler", OperationFailed("S", Failure("S", "no", attempt=1)))
    for unwind, expected in ((True, 1), (False, 0)):
        topology = Topology((StepSpec("A", unwind=unwind), StepSpec("S")))
        new = Candidate(topology, {}, {"A": ("Hold", "Reservation")})
        report = check_pipeline("p", [LedgerRuns(ledger_of(failed), 1, "r")], Candidate(topology), new)
        assert report.retyped == expected


def test_an_input_whose_type_changed_concerns_every_run() -> None:
    topology = steps()
    new = Candidate(topology, {}, {INPUT: ("Order", "Order")})
    report = check_pipeline("p", [LedgerRuns(ledger_of(Projection("r")), 2, "r")], Candidate(topology), new)
    assert report.sentences == (
        "2 runs have an input whose type changed since the lock file was written (Order): what is stored must stay "
        "readable, so a new field needs a default",
    )


def test_drains_do_not_mind_types() -> None:
    """The same with the step and without it is the same, whatever is warned of."""
    kept = Topology((StepSpec("A"), StepSpec("S", retired=True), StepSpec("Z")))
    new = Candidate(kept, {}, {"A": ("Hold", "Reservation")})
    behind = at("handler", OperationSucceeded("S", 1))
    report = check_pipeline("p", [LedgerRuns(ledger_of(behind), 1, "r")], Candidate(kept), new)
    assert report.drains[0].drained


def test_open_items_whose_type_changed() -> None:
    """B-20: the items were stored when the step was begun, and the handler of today reads those that are left."""
    topology = steps(StepSpec("S", shape="each"))
    runs = [LedgerRuns(ledger_of(at("each")), 2, "r")]
    sentence = "2 runs have open items in S, and the type of these, or of what is made of them, changed since the lock"
    for new in (
        Candidate(topology, None, None, {"S": ("int", "str")}),
        Candidate(topology, None, {"S": ("int", "str")}),
    ):
        report = check_pipeline("p", runs, Candidate(topology), new)
        assert report.sentences[0].startswith(sentence)
        assert "(int to str)" in report.sentences[0]
        assert (report.retyped, report.unchanged) == (2, 0)
    elsewhere = [LedgerRuns(ledger_of(at("handler")), 2, "r")]
    plain = steps(StepSpec("S"))
    assert check_pipeline(
        "p", elsewhere, Candidate(plain), Candidate(plain, None, None, {"S": ("int", "str")})
    ).unchanged


# --- the lock file


def test_a_lock_has_the_type_of_items() -> None:
    def items(type: str, shape: str) -> Lock:
        state = LockedType("list[str]", "l")
        step = LockedStep("S", state, kind="each", items=LockedType(type, shape))
        return Lock({"p": LockedPipeline(LockedType("str", "s"), (step,))})

    (change,) = compare_locks(items("int", "1"), items("str", "2"))
    assert change.warnings == (
        "the type of the items of S changed (int to str): what is stored must stay readable, so a new field needs a "
        "default where items are open",
    )
    assert compare_locks(items("A", "1"), items("B", "1"))[0].empty


def locked(kind: Shape, state: str = "int", shape: str = "1") -> Lock:
    step = LockedStep("S", LockedType(state, shape), kind=kind)
    return Lock({"p": LockedPipeline(LockedType("str", "s"), (step,))})


@pytest.mark.parametrize("kind", SHAPES[1:])
def test_a_lock_explains_a_change_of_kind(kind: Shape) -> None:
    (change,) = compare_locks(locked("handler"), locked(kind))
    assert change.warnings == (
        f"S became {KINDS[kind]}, and was a step with a handler: runs that are at it become invalid; give it another "
        "id, and keep the old step as retired",
    )
    assert change.changes.flags == (f"S: handler -> {kind}",)


def test_a_change_of_kind_and_of_type_are_two_warnings() -> None:
    former, new = locked("handler"), locked("message", "Approval", "2")
    (change,) = compare_locks(former, new)
    assert [warning.split(":")[0] for warning in change.warnings] == [
        "S became a wait for a message, and was a step with a handler",
        "the state type of S changed under the same id (int to Approval)",
    ]
    assert retyped(former.pipelines["p"], new.pipelines["p"]) == {"S": ("int", "Approval")}


def test_a_lock_without_kinds_is_one_of_handlers() -> None:
    """What former releases wrote reads as before."""
    (change,) = compare_locks(locked("handler"), locked("handler"))
    assert change.empty
