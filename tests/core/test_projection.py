"""J-8: a projection is what the facts add up to, whether folded at once, in parts, or from a snapshot."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.frontier import view_of
from perdure.core.projection import Projection, Stored, dump, memo_key, restore
from perdure.core.reducer import fold
from tests.core.build import RUN, Life, content
from tests.core.strategies import lives


@given(lives(), st.data())
def test_a_snapshot_of_any_prefix_and_the_rest_give_the_same(life: Life, data: st.DataObject) -> None:
    """J-8: fold(all) = fold(snapshot of a prefix, rest); views take no part."""
    timed = [(at_us, fact) for at_us, facts in life.rows for fact in facts]
    cut = data.draw(st.integers(1, len(timed)))
    prefix = Projection(RUN)
    for at_us, fact in timed[:cut]:
        fold(prefix, fact, at_us)
    whole = restore(dump(prefix), 0, 0, b"")
    view_of(whole, life.topology)
    for at_us, fact in timed[cut:]:
        fold(whole, fact, at_us)
    assert content(whole) == content(life.p)
    assert whole.version == len(timed)


def test_a_snapshot_holds_every_field_that_facts_decide() -> None:
    derived_or_of_the_row = {"view", "locator", "row_seq", "row_hash"}
    assert set(Projection.__slots__) - derived_or_of_the_row == set(Stored.__struct_fields__)


def test_a_snapshot_stands_at_its_row() -> None:
    life = Life("A")
    life.claim()
    p = restore(dump(life.p), 17, 2, b"h" * 32)
    assert (p.locator, p.row_seq, p.row_hash, p.view) == (17, 2, b"h" * 32, None)
    assert content(p) == content(life.p)


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b'{"run_id":1}'])
def test_other_bytes_are_no_snapshot(data: bytes) -> None:
    """The caller folds from the start instead."""
    with pytest.raises(msgspec.DecodeError):
        restore(data, 0, 0, b"")


def test_state_is_there_only_after_success() -> None:
    """M-6, E-12."""
    life = Life("A B& C")
    life.author.false.add("B")
    life.claim()
    assert life.p.state("A") is None
    life.ok(b'{"seat":"12A"}')
    assert life.p.state("A") == b'{"seat":"12A"}'
    assert life.p.state("B") is None
    assert life.p.state("C") is None
    assert life.p.state("never heard of") is None


def test_a_handler_that_returns_nothing_has_a_state_all_the_same() -> None:
    """M-4: `None` is a legal state, and not the same as none."""
    life = Life("A B")
    life.claim()
    life.ok(b"null")
    assert life.p.state("A") == b"null"


def test_attempts_count_by_phase() -> None:
    """M-8."""
    life = Life("A* B")
    life.claim()
    life.raises()
    life.ok()
    life.fails()
    life.raises()
    life.is_lost()
    assert life.p.attempts("forward", "A") == 2
    assert life.p.attempts("unwind", "A") == 3
    assert life.p.attempts("forward", "C") == 0


def test_memos_are_seen_by_later_attempts_and_by_the_unwind() -> None:
    """M-15, U-10: by phase and step and name; they move no frontier."""
    life = Life("A* B")
    life.claim()
    life.memo("token", b'"t-1"')
    life.is_lost()
    assert life.p.memo("forward", "A", "token") == b'"t-1"'
    life.memo("other", b"2")
    life.ok()
    life.fails()
    life.memo("token", b'"u-1"')
    assert life.p.memo("forward", "A", "token") == b'"t-1"'
    assert life.p.memo("unwind", "A", "token") == b'"u-1"'
    assert life.p.memo("forward", "A", "unknown") is None
    assert life.p.memo("forward", "B", "token") is None
    assert memo_key("forward", "A") != memo_key("unwind", "A")
    life.restart()
    assert life.p.memo("forward", "A", "other") == b"2"


def test_what_the_run_is_shows_in_its_projection() -> None:
    life = Life("A B")
    assert life.p.submitted is not None
    assert (life.p.submitted.pipeline, life.p.submitted_us, life.p.version) == ("p", 1_000, 1)
    life.claim()
    assert (life.p.token, life.p.worker, life.p.generation, life.p.build) == (1, "w", 1, "build-1")
    life.ok()
    life.ok()
    assert life.p.ended_us == 4_000
    assert life.p.version == len(life.facts)
