"""D-6: what `check` foretells of a run is what it then does."""

from __future__ import annotations

import copy

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.core import facts as f
from perdure.core.diff import TopologyDiff, diff
from perdure.core.drain import drains
from perdure.core.future import Candidate, Future, Missing, Reads, future
from perdure.core.operations import InvalidOp, UnitOp
from perdure.core.signature import ledger_of, projection_of
from perdure.core.topology import Topology
from tests.core.build import AT_ONCE, Life, topology
from tests.core.pasts import past, stopped
from tests.core.strategies import TOPOLOGIES, awaited_goes_well, lives, unit_goes_well


def foretold(life: Life, new: Topology, reads: dict[str, Reads] | None = None) -> Future:
    """From the ledger alone, a hold lifted, as `check` does."""
    p = projection_of(ledger_of(life.p))
    p.held = None
    return future(p, Candidate(new, reads))


BEGUN = (
    f.OperationReserved
    | f.OperationSkipped
    | f.OperationParked
    | f.OperationWoken
    | f.OperationSucceeded
    | f.BoundaryOpened
    | f.BoundaryResolved
)
"""A fact of these says that its step had its turn."""


def lived(life: Life) -> list[f.Fact]:
    """Let everything go well to the end, or until nothing moves; the facts that came of it."""
    before = len(life.facts)
    for _ in range(200):
        if life.p.ended is not None:
            break
        awaited_goes_well(life)
        if isinstance(life.op, UnitOp):
            unit_goes_well(life)
        elif life.op is not None:
            life.ok()
        else:
            life.release()
            life.now_us += 60_000_000
            if not life.claim().facts:
                break
    return life.facts[before:]


@given(lives(), st.sampled_from(TOPOLOGIES))
def test_it_happens_as_foretold(life: Life, text: str) -> None:
    """Which steps run, which unwind, in which order, and how the run ends."""
    assume(life.p.ended is None and life.p.submitted is not None and life.p.submitted.deadline_us == 0)
    unit = life.p.unit()
    assume(unit is None or not unit.failed)  # that an item has failed by now is no part of a ledger
    life.deploy(text)
    said = foretold(life, life.topology)
    life.author.broken.clear()
    life.policy = lambda _step: AT_ONCE
    if life.op is not None:
        life.restart()
    began_unwinding = life.p.failure is not None
    happened = lived(life)
    ran = [x.step for x in happened if isinstance(x, f.OperationReserved) and x.phase == "forward"]
    asked = list(dict.fromkeys(x.step for x in happened if isinstance(x, BEGUN) if _forward(x)))
    undone = [x.step for x in happened if isinstance(x, f.OperationReserved) and x.phase == "unwind"]
    if said.end == "invalid":
        assert life.p.ended is None
        assert type(life.next) is InvalidOp
        return
    assert life.p.ended is not None
    if said.end == "success":
        assert isinstance(life.p.ended, f.RunSucceeded)
        assert list(said.ahead) == asked
        assert not set(said.never) & set(ran)
    elif said.end == "canceled":
        assert isinstance(life.p.ended, f.RunFailed)
        assert life.p.ended.failure.kind == "canceled"
        assert list(said.ahead) == asked
    else:
        assert began_unwinding
        assert list(said.unwinds) == list(dict.fromkeys(undone))
        assert isinstance(life.p.ended, f.RunFailed)
        assert set(life.p.ended.uncompensated) | set(life.p.ended.unavailable) == said.leaks


def _forward(fact: f.Fact) -> bool:
    return not isinstance(fact, f.OperationReserved | f.OperationSucceeded) or fact.phase == "forward"


@pytest.mark.parametrize(
    ("deployed", "reads", "missing"),
    [
        ("A N B", {"B": Reads(("N",))}, [("B", "N")]),
        ("A B N", {"B": Reads(("A",))}, []),
        ("N A B", {"B": Reads(("N",), substitute=False), "N": Reads(substitute=True)}, []),
        ("N A B", {"B": Reads((), ("N",))}, []),
        ("N A B C", {"B": Reads(("N",)), "C": Reads(("N",))}, [("B", "N"), ("C", "N")]),
        ("A N~ B", {"B": Reads(("N",))}, [("B", "N")]),
    ],
)
def test_a_state_that_will_be_asked_for_in_vain(
    deployed: str, reads: dict[str, Reads], missing: list[tuple[str, str]]
) -> None:
    """M-14: B is unresolved, A has a state; what stands before B and is new will never have one."""
    life = past("A B", "ok")
    assert foretold(life, topology(deployed), reads).missing == tuple(Missing(*each) for each in missing)


def test_a_state_that_comes_in_time_is_not_missing() -> None:
    life = stopped("A B", 1)
    assert foretold(life, topology("A N B"), {"B": Reads(("N",))}).missing == ()


@pytest.mark.parametrize(
    ("former", "new", "wanted"),
    [
        ("A B C", "A B C", TopologyDiff()),
        ("A B", "A N B", TopologyDiff(inserted=("N",))),
        ("A B", "B", TopologyDiff(removed=("A",))),
        ("A B C D", "D A B C", TopologyDiff(moved=("D",))),
        ("A B", "A B~", TopologyDiff(retired=("B",))),
        ("A B~", "A B", TopologyDiff(restored=("B",))),
        ("A B*", "A* B", TopologyDiff(flags=("A: +unwind", "B: -unwind"))),
        ("A*", "A*?&!", TopologyDiff(flags=("A: +in-doubt", "A: +conditional", "A: +settle"))),
        ("", "A", TopologyDiff(inserted=("A",))),
    ],
)
def test_what_an_edit_did(former: str, new: str, wanted: TopologyDiff) -> None:
    """D-4: in the words of its author, with the fewest moves."""
    found = diff(topology(former), topology(new))
    assert found == wanted
    assert found.empty is (former == new)


@given(lives(), st.sampled_from(TOPOLOGIES), st.integers(0, 3))
def test_without_a_drained_step_a_run_lives_the_same(life: Life, text: str, which: int) -> None:
    """D-6, E-9: what `drain` lets go nobody misses, whatever the run has behind it."""
    assume(life.p.ended is None and life.p.submitted is not None and life.p.submitted.deadline_us == 0)
    words = text.split()
    assume(which < len(words))
    words[which] = words[which].replace("~", "") + "~"
    step = topology(words[which]).ids[0]
    life.deploy(" ".join(words))
    p = projection_of(ledger_of(life.p))
    p.held = None
    found = drains([(1, 0, p)], life.topology, Candidate(life.topology))
    (drain,) = [each for each in found if each.step == step]
    life.author.broken.clear()
    life.policy = lambda _step: AT_ONCE
    if life.op is not None:
        life.restart()
    with_it, without = copy.deepcopy(life), copy.deepcopy(life)
    without.deploy(" ".join(word for word in words if word != words[which]))
    if drain.drained:
        assert told(lived(with_it)) == told(lived(without))
        assert (with_it.p.ended is None) is (without.p.ended is None)


def told(happened: list[f.Fact]) -> list[object]:
    """What was called, and how it ended; whether a remaining effect is uncompensated or unavailable is the same."""
    calls = [(x.phase, x.step) for x in happened if isinstance(x, f.OperationReserved)]
    ends = [
        (x.failure.kind, x.failure.step, sorted({*x.uncompensated, *x.unavailable}), x.half_unwound)
        if isinstance(x, f.RunFailed)
        else "succeeded"
        for x in happened
        if isinstance(x, f.RunFailed | f.RunSucceeded)
    ]
    return [*calls, *ends]
