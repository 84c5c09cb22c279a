"""D-6: runs of equal ledgers do the same under every topology, so one of them may stand for all."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.explain import explain
from perdure.core.operations import Operation, RunOp, UnwindOp
from perdure.core.projection import Projection
from perdure.core.reconciler import Lists, reconcile
from perdure.core.signature import (
    MOST_ENTRIES,
    NOT_STARTED,
    NOT_STARTED_SIGNATURE,
    SIGNATURE_BYTES,
    Ledger,
    decode_ledger,
    encode_ledger,
    ledger_of,
    projection_of,
    sign,
    signature_of,
)
from perdure.core.topology import Topology
from tests.core.build import Life, topology
from tests.core.strategies import TOPOLOGIES, lives
from tests.sweep.core_judge import MODULES, Core, CoreJudge
from tests.sweep.worlds import ALL_FLAGS, reachable, topologies


def without_attempts(op: Operation) -> Operation:
    """The operation, its attempt number forgotten."""
    return msgspec.structs.replace(op, attempt=0) if isinstance(op, RunOp | UnwindOp) else op


def lists(p: Projection, here: Topology) -> tuple[tuple[str, ...], ...]:
    found = Lists(p, here)
    return found.in_doubt, found.half_unwound, found.uncompensated, found.unavailable


def hold_alike(op: Operation) -> Operation:
    """Why a run is held is not in its ledger."""
    return msgspec.structs.replace(op, reason="") if hasattr(op, "reason") and type(op).__name__ == "HeldOp" else op


@given(lives(), st.sampled_from(TOPOLOGIES))
def test_the_ledger_is_all_that_matters(life: Life, text: str) -> None:
    """D-6: what comes next, the lists of U-9, and the fate of every step follow from it."""
    here = topology(text, *life.former, life.topology)
    again = projection_of(decode_ledger(encode_ledger(ledger_of(life.p))))
    if life.p.ended is None:
        expected = hold_alike(without_attempts(reconcile(life.p, here)))
        assert hold_alike(without_attempts(reconcile(again, here))) == expected
    assert lists(again, here) == lists(life.p, here)
    assert [s.fate for s in explain(again, here).steps] == [s.fate for s in explain(life.p, here).steps]


@given(lives())
def test_a_ledger_comes_back_from_its_bytes_and_from_its_projection(life: Life) -> None:
    ledger = ledger_of(life.p)
    data = encode_ledger(ledger)
    assert decode_ledger(data) == ledger
    assert ledger_of(projection_of(ledger)) == ledger
    assert encode_ledger(ledger_of(projection_of(ledger))) == data
    assert len(signature_of(data)) == SIGNATURE_BYTES


def test_every_small_world() -> None:
    """Every ledger that two steps can reach, with every fourth topology: the same decision, the same lists."""
    judge = CoreJudge(Core.of(MODULES))
    here = list(itertools.islice(topologies(("A", ALL_FLAGS), ("B", ALL_FLAGS)), 0, None, 4))
    known = [Topology(judge._topology(rules).steps) for rules in here]  # pyright: ignore[reportPrivateUsage]  # as it does
    compared = 0
    for reached in reachable("AB", fine=True):
        judge._follow(reached.history)  # pyright: ignore[reportPrivateUsage]  # folded by the judge of the sweep
        again = projection_of(decode_ledger(encode_ledger(ledger_of(judge.p))))
        for deployed in known:
            assert without_attempts(reconcile(again, deployed)) == without_attempts(reconcile(judge.p, deployed))
            assert lists(again, deployed) == lists(judge.p, deployed)
            compared += 1
    assert compared > 5_000


def test_payloads_times_and_attempts_do_not_count() -> None:
    one, other = Life("A B"), Life("A B")
    other.now_us += 9_999_999
    for life, state in ((one, b'"x"'), (other, b'{"secret":1}')):
        life.claim()
        if life is other:
            life.raises()
            life.now_us += 10_000_000
        life.ok(state)
    assert sign(one.p) == sign(other.p)
    assert b"secret" not in sign(other.p)[1]


@pytest.mark.parametrize("act", ["cancel", "hold", "claim"])
def test_what_counts_makes_another_signature(act: str) -> None:
    life = Life("A B")
    before = signature_of(encode_ledger(ledger_of(life.p)))
    getattr(life, act)()
    assert signature_of(encode_ledger(ledger_of(life.p))) != before


def test_a_run_that_was_only_submitted_needs_no_hashing() -> None:
    life = Life("A B")
    assert sign(life.p) == (NOT_STARTED_SIGNATURE, NOT_STARTED)
    assert decode_ledger(NOT_STARTED) == Ledger() == ledger_of(life.p)


def test_an_ended_run_and_one_with_a_very_long_past_have_none() -> None:
    life = Life("A")
    life.claim()
    life.ok()
    assert sign(life.p) == (b"", b"")
    long = Life(" ".join(f"s{i}" for i in range(MOST_ENTRIES + 2)))
    long.claim()
    for _ in range(MOST_ENTRIES - 1):
        long.ok()
    assert sign(long.p)[0]
    long.ok()
    assert sign(long.p) == (b"", b"")


def test_bytes_that_are_no_ledger_are_refused() -> None:
    for data in (b"", b"[]", b'{"phase":"sideways"}', b'{"pin":7}'):
        with pytest.raises(msgspec.MsgspecError):
            decode_ledger(data)
