"""Run ids: time-ordered and opaque, of chance for runs that people submit, of their parent for child runs."""

from __future__ import annotations

import hashlib

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)


def encode_run_id(now_us: int, chance: int) -> str:
    """A run id from microseconds (55 bits, which last until the year 3112) and 50 bits of chance."""
    pairs = _PAIRS
    n = (now_us & (1 << 55) - 1) << 50 | chance
    return _ALPHABET[n >> 100] + "".join([pairs[n >> shift & 1023] for shift in range(90, -1, -10)])


def child_id(opened_us: int, parent: str, step: str, index: int) -> str:
    """The id of the child run of an item: the same whenever it is asked for, so no child is submitted twice [B-21].

    Args:
        opened_us: when the unit opened; places the id among those of its time.
    """
    digest = hashlib.sha256(f"{parent}/{step}/{index}".encode()).digest()
    return encode_run_id(opened_us, int.from_bytes(digest[:7], "big") >> 6)
