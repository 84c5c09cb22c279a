"""The hash chain over stored appends [J-11]."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct

_HEAD = Struct(">qqq")


def chain_hash(prev_hash: bytes, first_seq: int, count: int, at_us: int, append_id: bytes, facts: bytes) -> bytes:
    """SHA-256 over the previous row's hash and everything this row stores, in fixed-width big-endian form.

    Args:
        prev_hash: 32 bytes, or b"" for the first row of a run.
        facts: the JSON text exactly as stored, never a normalised copy.
    """
    return sha256(prev_hash + _HEAD.pack(first_seq, count, at_us) + append_id + facts).digest()
