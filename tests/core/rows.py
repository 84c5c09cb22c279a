"""Rows of a journal as a store keeps them, and as the corpus files write them down: one JSON object per line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from perdure.core.chain import chain_hash
from perdure.core.facts import Fact
from perdure.core.journal import encode_facts, fold_row
from perdure.core.projection import Projection, dump
from tests.core.build import RUN


class Row(msgspec.Struct, frozen=True):
    """One append. Bytes are written in hex, the facts as the text that is stored."""

    first_seq: int
    count: int
    at_us: int
    append_id: str
    hash: str
    facts: str


def chained(timed: Iterable[tuple[int, list[Fact]]]) -> list[Row]:
    """Rows of these appends, chained by hash."""
    rows: list[Row] = []
    prev_hash, first_seq = b"", 1
    for at_us, facts in timed:
        text = encode_facts(facts)
        append_id = hashlib.sha256(b"append %d" % first_seq).digest()[:16]
        prev_hash = chain_hash(prev_hash, first_seq, len(facts), at_us, append_id, text)
        rows.append(Row(first_seq, len(facts), at_us, append_id.hex(), prev_hash.hex(), text.decode()))
        first_seq += len(facts)
    return rows


def folded(rows: Iterable[Row], run_id: str = RUN) -> Projection:
    """Check and fold rows, as a load does."""
    p = Projection(run_id)
    for row in rows:
        fold(p, row)
    return p


def fold(p: Projection, row: Row) -> list[Fact]:
    append_id, row_hash = bytes.fromhex(row.append_id), bytes.fromhex(row.hash)
    return fold_row(p, row.first_seq, row.count, row.at_us, append_id, row_hash, row.facts.encode())


def write(path: Path, rows: Iterable[Row]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def read(path: Path) -> list[Row]:
    return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]


def plain(p: Projection) -> dict[str, object]:
    """A projection as plain JSON values, sets in order."""
    found = msgspec.json.decode(dump(p), type=dict[str, object])
    return found | {"passed": sorted(p.passed), "crossed": sorted(p.crossed)}
