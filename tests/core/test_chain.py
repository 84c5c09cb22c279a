"""J-11: the hash of a row covers all that the row stores, and the row before it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.chain import chain_hash

ROW = {"prev_hash": b"\x01" * 32, "first_seq": 3, "count": 2, "at_us": 7, "append_id": b"i" * 16, "facts": b"[{}]"}


def hashed(**changes: bytes | int) -> bytes:
    row = ROW | changes
    prev_hash, append_id, facts = row["prev_hash"], row["append_id"], row["facts"]
    first_seq, count, at_us = row["first_seq"], row["count"], row["at_us"]
    assert isinstance(prev_hash, bytes)
    assert isinstance(append_id, bytes)
    assert isinstance(facts, bytes)
    assert isinstance(first_seq, int)
    assert isinstance(count, int)
    assert isinstance(at_us, int)
    return chain_hash(prev_hash, first_seq, count, at_us, append_id, facts)


@pytest.mark.parametrize(
    "change",
    [
        {"prev_hash": b"\x02" * 32},
        {"first_seq": 4},
        {"count": 3},
        {"at_us": 8},
        {"append_id": b"j" * 16},
        {"facts": b"[{} ]"},
        {"first_seq": 2, "count": 3},
    ],
    ids=str,
)
def test_every_part_counts(change: dict[str, bytes | int]) -> None:
    assert hashed(**change) != hashed()


def test_the_form_is_fixed() -> None:
    """Stored journals are verified by later releases: numbers are eight bytes, big end first."""
    numbers = b"".join(number.to_bytes(8, "big") for number in (3, 2, 7))
    assert hashed() == hashlib.sha256(b"\x01" * 32 + numbers + b"i" * 16 + b"[{}]").digest()


def test_the_first_row_has_no_predecessor() -> None:
    assert len(hashed(prev_hash=b"", first_seq=1)) == 32


@given(st.binary(max_size=64), st.integers(0, 63), st.integers(1, 255))
def test_any_changed_byte_changes_the_hash(text: bytes, place: int, flip: int) -> None:
    if not text:
        return
    changed = bytearray(text)
    changed[place % len(text)] ^= flip
    assert hashed(facts=bytes(changed)) != hashed(facts=text)
